"""`specllama bench --server` as users type it: against specllama serve, and a plain server with faults."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.command import Command, Result, assert_error
from tests.support.openai_server import Faults, OpenAIServer, openai_server
from tests.support.report_schemas import COUNT, MAYBE, NUMBER, TEXT, an_object
from tests.support.serving import Server

FEW = ("--runs", "1", "-n", "8", "--workloads", "edit", "--concurrency", "1,3")
ONE = (*FEW[:-1], "1", "--requests", "1")


TAILS = {"anyOf": [an_object(p50=NUMBER, p99=NUMBER), {"type": "null"}]}
COUNTS = {"type": "array", "items": COUNT}
TEXTS = {"type": "array", "items": TEXT}
ROW = an_object(
    series=TEXT, concurrency=COUNT, runs=COUNT, tps=MAYBE, ttft_ms=TAILS, inter_token_ms=TAILS, seconds=TAILS,
    answers=COUNT, failed=COUNT, refused=COUNT, n_predict=COUNT, n_drafted=MAYBE, n_accept=MAYBE,
    acceptance=MAYBE, prompt_cached=MAYBE,
)  # fmt: skip
CELL = an_object(
    series=TEXT, concurrency=COUNT, run=COUNT, complete={"type": "boolean"}, seconds=NUMBER, tps=MAYBE,
    ttft_ms=TAILS, inter_token_ms=TAILS, answer_seconds=TAILS, answers=COUNT, n_predict=COUNT, problems=TEXTS,
)  # fmt: skip
OBJECT = an_object(
    schema={"const": "specllama.bench-server/1"}, version=TEXT, date=TEXT,
    server=an_object(url=TEXT, model=TEXT, owner=TEXT, build=TEXT, n_slots={"type": ["integer", "null"]}),
    series=TEXTS, one_series={"type": ["string", "null"]},
    settings=an_object(
        requests=COUNT, concurrency=COUNTS, runs=COUNT, n_tokens=COUNT, temperature=NUMBER,
        raw={"type": "boolean"}, ignore_eos={"type": "boolean"}, timeout=NUMBER, workloads={"type": "object"},
    ),
    answers=COUNT, planned=COUNT, seconds=NUMBER, interrupted={"type": "boolean"},
    failure={"type": ["string", "null"]}, problems=TEXTS, tokens_counted_by={"enum": ["server", "chunks"]},
    rows={"type": "array", "items": ROW},
    speculative_against_plain={"type": "array", "items": an_object(concurrency=COUNT, tps=NUMBER)},
    texts_compared=COUNT, texts_different=COUNT, verdict=TEXT, cells={"type": "array", "items": CELL},
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--draft-max", "4", "-np", "2", "--api-key", "sesame", "--strict-model")
    with Server(tmp_path_factory.mktemp("served"), *flags) as one:
        yield one
        assert not any("unexpected" in line for line in one.lines)


@pytest.fixture
def plain() -> Iterator[OpenAIServer]:
    with openai_server() as one:
        yield one


def error_of(result: Result) -> str:
    """The one line that says what went wrong."""
    assert "Traceback" not in result.err
    lines = [line for line in result.lines if line.startswith("error: ")]
    assert len(lines) == 1, result.err
    return lines[0]


class TestSpecllamaServer:
    """Our own server."""

    def test_the_object(self, shared: Command, served: Server) -> None:
        args = ("--server", f"{served.url}/v1", *FEW, "--runs", "2", "--json", "--report", "serving.html")
        result = shared("bench", *args, env={"SPECLLAMA_API_KEY": "sesame"})
        assert result.code == 0, result.err
        report = result.json
        jsonschema.validate(report, OBJECT)
        assert report["series"] == ["speculative", "plain"]
        assert report["server"]["model"] == "pydoc-target"
        assert report["server"]["n_slots"] == 2
        assert report["settings"]["requests"] == 6  # four prompts, a multiple of three clients
        assert (report["answers"], report["planned"], report["texts_compared"]) == (48, 48, 24)
        rows = {(row["series"], row["concurrency"]): row for row in report["rows"]}
        assert list(rows) == [(name, c) for name in ("speculative", "plain") for c in (1, 3)]
        for (name, _), row in rows.items():
            assert (row["answers"], row["failed"], row["refused"], row["runs"]) == (12, 0, 0, 2)
            assert 12 < row["n_predict"] <= 96
            assert row["tps"] > 0
            assert row["ttft_ms"]["p50"] < 1000 * row["seconds"]["p50"]
            assert row["prompt_cached"] == 0, "neither series finds prompts in the cache"
            assert (row["n_drafted"] > 0) is (name == "speculative")
            assert (row["acceptance"] is None) is (name == "plain")
        factors = {x["concurrency"]: x["tps"] for x in report["speculative_against_plain"]}
        assert factors == {c: rows["speculative", c]["tps"] / rows["plain", c]["tps"] for c in (1, 3)}
        assert report["tokens_counted_by"] == "server"
        page = (shared.home / "serving.html").read_text("utf-8")
        assert page.count('data-chart="') == 3
        assert report["verdict"][:40] in page
        assert "sesame" not in page + result.out + result.err

    def test_the_table(self, shared: Command, served: Server) -> None:
        (shared.home / "key.txt").write_text("sesame\n")
        args = ("--server", f"{served.host}:{served.port}", *FEW, "--api-key-file", "key.txt")
        result = shared("bench", *args, "--ignore-eos", "--raw", env={"COLUMNS": "80"})
        assert result.code == 0, result.err
        lines = result.out.splitlines()
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in result.out + result.err
        assert lines[0] == f"pydoc-target at {served.url}/v1"
        assert lines[1].startswith("24 of 24 answers, 6 requests at every concurrency, 8 tokens each")
        header = next(i for i, line in enumerate(lines) if line.startswith("clients"))
        first_words = [line.split()[0] for line in lines[header + 2 : header + 6]]
        assert first_words == ["1", "plain", "3", "plain"]
        text = " ".join(lines)
        assert "The server answers 2 requests at once" in text
        assert "with speculation over without it, by concurrency: " in text

    def test_the_key_is_needed_and_never_shown(self, shared: Command, served: Server) -> None:
        result = shared("bench", "--server", served.url, *ONE)
        assert_error(result, 4, "rejects the key (401): the API key is missing or wrong")
        wrong = shared("bench", "--server", served.url, *ONE, "--api-key", "wröng")
        assert wrong.code == 4
        assert "wröng" not in wrong.err

    def test_an_unknown_model_is_refused(self, shared: Command, served: Server) -> None:
        args = ("--server", served.url, *ONE, "--api-key", "sesame", "--model", "large")
        result = shared("bench", *args)
        assert result.code == 3
        assert "this server has pydoc-target" in error_of(result)

    def test_a_prompt_that_is_too_long(self, shared: Command, served: Server) -> None:
        (shared.home / "long.json").write_text(json.dumps({"long": ["word " * 9000]}))
        args = ("--server", served.url, "--prompts", "long.json", "--concurrency", "1", "--runs", "1")
        result = shared("bench", *args, "--api-key", "sesame")
        assert_error(result, 2, "refuses the request (400)")


def test_a_server_that_does_not_speculate_gets_one_series(shared: Command, tmp_path: Path) -> None:
    with Server(tmp_path, "-md", "none", "--drafters", "none", "-np", "1") as one:
        result = shared("bench", "--server", one.url, *ONE, "--json")
    assert result.code == 0, result.err
    assert result.json["series"] == ["as served"]
    assert result.json["one_series"].startswith("the server does not speculate: ")


class TestOtherServers:
    """A server of somebody else's."""

    def test_there_is_one_series_and_a_reason(self, shared: Command, plain: OpenAIServer) -> None:
        args = ("--server", plain.url, *FEW, "--json", "--temp", "0.5")
        result = shared("bench", *args)
        assert result.code == 0, result.err
        report = result.json
        jsonschema.validate(report, OBJECT)
        assert report["series"] == ["as served"]
        assert "owned by 'somebody'" in report["one_series"]
        assert [row["n_predict"] for row in report["rows"]] == [30, 30]
        assert [row["acceptance"] for row in report["rows"]] == [None, None]
        assert report["rows"][0]["inter_token_ms"]["p50"] >= 3
        assert plain.most == 3
        known = {"model", "messages", "max_tokens", "temperature", "seed", "stream", "stream_options"}
        assert {name for body in plain.asked for name in body} == known
        asked = plain.asked[1:]  # the first one was for warming up
        texts = [body["messages"][0]["content"] for body in asked]
        assert len(set(texts)) == len(asked) == 12  # nothing was asked before
        bare = [text.partition(" ")[2] for text in texts]
        assert sorted(bare[:6]) == sorted(bare[6:])
        assert sorted(b["seed"] for b in asked[:6]) == sorted(b["seed"] for b in asked[6:])

    def test_narrow_terminals(self, shared: Command, plain: OpenAIServer) -> None:
        result = shared("bench", "--server", plain.url, *FEW, env={"COLUMNS": "40"})
        assert result.code == 0, result.err
        assert max(map(len, result.out.splitlines()[1:])) <= 40

    def test_without_usage_each_chunk_counts_as_one_token(self, shared: Command, plain: OpenAIServer) -> None:
        plain.faults = Faults(uncounted=True)
        result = shared("bench", "--server", plain.url, *FEW)
        assert result.code == 0, result.err
        assert "each chunk of its streams counts as one" in " ".join(result.out.split())

    @pytest.mark.parametrize("form", ["{root}", "{root}/", "{root}/v1", "{root}/v1/", "{root}/v1/models"])
    def test_forms_of_the_address(self, shared: Command, plain: OpenAIServer, form: str) -> None:
        result = shared("bench", "--server", form.format(root=plain.root), *ONE)
        assert result.code == 0, result.err
        assert plain.paths[0] == "/v1/models"
        assert plain.paths[-1] == "/v1/chat/completions"

    def test_an_api_elsewhere(self, shared: Command) -> None:
        with openai_server(prefix="/openai/beta", key="sesame") as one:
            args = ("--server", one.url.removeprefix("http://"), *ONE, "--raw")
            result = shared("bench", *args, env={"SPECLLAMA_API_KEY": "sesame"})
            assert result.code == 0, result.err
            assert one.paths[-1] == "/openai/beta/completions"
            assert "prompt" in one.asked[-1]

    def test_a_busy_server_is_asked_again(self, shared: Command, plain: OpenAIServer) -> None:
        plain.faults = Faults(healthy=2, statuses=[(429, "0"), 429])
        result = shared("bench", "--server", plain.url, *FEW, "--json")
        assert result.code == 0, result.err
        assert (result.json["answers"], result.json["planned"]) == (12, 12)
        assert sum(row["refused"] for row in result.json["rows"]) == 2
        assert sum(row["failed"] for row in result.json["rows"]) == 0

    def test_a_server_that_stays_busy_is_given_up(self, shared: Command, plain: OpenAIServer) -> None:
        plain.faults = Faults(statuses=[(429, "0")] * 9)
        result = shared("bench", "--server", plain.url, *ONE)
        assert_error(result, 8, "is busy (429): not now")
        assert len(plain.asked) == 5

    @pytest.mark.parametrize(
        ("ending", "why"),
        [
            ("error", "the stream ends in an error: the engine died"),
            ("cut", "peer closed connection"),
            ("foreign", "is not a JSON object"),
        ],
    )
    def test_a_broken_stream_is_a_failed_answer(
        self, shared: Command, plain: OpenAIServer, ending: str, why: str
    ) -> None:
        plain.faults = Faults(ending=ending)
        at_once = shared("bench", "--server", plain.url, *FEW)
        assert_error(at_once, 5, why)
        plain.asked.clear()
        plain.faults.healthy = 9  # the rest of the second cell breaks
        later = shared("bench", "--server", plain.url, *FEW, "--json")
        assert later.code == 0, later.err
        assert sum(row["failed"] for row in later.json["rows"]) == 4
        assert why in later.json["problems"][0]

    def test_when_nothing_of_a_cell_is_answered_it_ends(self, shared: Command, plain: OpenAIServer) -> None:
        plain.faults = Faults(healthy=7, statuses=[500] * 99)
        result = shared("bench", "--server", plain.url, *FEW, "--report", "half.html")
        assert result.code == 5
        assert "failed (500): not now" in error_of(result)
        assert "Interrupted: 6 of 12 answers" in result.out
        assert "Ended by: " in (shared.home / "half.html").read_text("utf-8")

    def test_an_answer_that_never_comes_times_out(self, shared: Command, plain: OpenAIServer) -> None:
        plain.faults = Faults(hang=20)
        result = shared("bench", "--server", plain.url, *ONE, "--timeout", "0.5", timeout=15)
        assert_error(result, 5, "has not answered within 0.5 s")

    @pytest.mark.parametrize(
        ("faults", "code", "needle"),
        [
            (Faults(models=b"<html>hello</html>"), 3, "not as an OpenAI-compatible API does: no JSON"),
            (Faults(models=[1]), 3, "no list of models"),
            (Faults(models={"data": []}), 3, "lists no model"),
            (Faults(models={"data": [{"id": 5}, 7]}), 3, "lists no model"),
            (Faults(models={"data": [{"id": "e", "meta": {"embeds": True}}]}), 2, "e makes vectors"),
            (Faults(ending="page"), 3, "text/html instead of a stream"),
            (Faults(statuses=[404]), 3, "(404): not now"),
            (Faults(statuses=[400]), 2, "refuses the request (400): not now"),
            (Faults(statuses=[403]), 4, "rejects the key (403)"),
            (Faults(statuses=[503]), 5, "failed (503): not now"),
            (Faults(redirect="http://127.0.0.1:1"), 5, "redirects to http://127.0.0.1:1"),
        ],
    )
    def test_a_server_without_the_api_is_refused(
        self, shared: Command, plain: OpenAIServer, faults: Faults, code: int, needle: str
    ) -> None:
        plain.faults = faults
        result = shared("bench", "--server", plain.url, *ONE, "--api-key", "sesame")
        assert_error(result, code, needle)
        assert "sesame" not in result.err
        assert len(result.lines) <= 4


@contextlib.contextmanager
def measuring(command: Command, server: OpenAIServer, *more: str) -> Iterator[Any]:
    """A long bench, once it has some answers; it is ended whatever becomes of the test."""
    args = ("--server", server.url, "--runs", "1000", "--concurrency", "2", *more)
    process = command.start("bench", *args, fork=True)
    try:
        while len(server.asked) < 60:
            assert process.poll() is None
            time.sleep(0.02)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_ctrl_c_shows_what_was_measured(command: Command, plain: OpenAIServer) -> None:
    with measuring(command, plain, "--report", "part.html") as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Interrupted: " in out
    assert b"Traceback" not in err
    assert "Interrupted: " in (command.home / "part.html").read_text("utf-8")


def test_a_server_that_goes_away(command: Command) -> None:
    one = OpenAIServer()
    one.start()
    with measuring(command, one, "--json") as process:
        one.stop()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 5
    report = json.loads(out)
    jsonschema.validate(report, OBJECT)
    assert report["interrupted"]
    assert report["answers"] > 40
    assert b"cannot be reached" in err
    assert b"Traceback" not in err


def nobody() -> int:
    """A port at which nobody listens."""
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return int(link.getsockname()[1])


def test_an_unreachable_server_is_one_clear_error(shared: Command) -> None:
    for scheme in ("http", "https"):
        result = shared("bench", "--server", f"{scheme}://127.0.0.1:{nobody()}", *ONE)
        assert_error(result, 5, "cannot be reached", "is the server running")


def test_https_to_a_server_without(shared: Command, plain: OpenAIServer) -> None:
    result = shared("bench", "--server", plain.url.replace("http:", "https:"), *ONE)
    assert_error(result, 5, "SSL")


@pytest.mark.parametrize(
    "env", [{"SSL_CERT_FILE": "absent.pem"}, {"HTTP_PROXY": "nonsense://x", "http_proxy": None}]
)
def test_settings_of_the_network_that_cannot_be_used(shared: Command, env: dict[str, str | None]) -> None:
    result = shared("bench", "--server", "http://host.invalid", *ONE, env=env)
    assert_error(result, 5, "the proxy or certificate settings cannot be used")


@pytest.mark.parametrize(
    ("args", "code", "needle"),
    [
        (("--server", ""), 2, "--server"),
        (("--server", "ftp://host"), 2, "http:// or https://"),
        (("--server", "http://"), 2, "no host"),
        (("--server", "http://host:99999"), 2, "--server is not a URL"),
        (("--server", "http://[::1"), 2, "--server is not a URL"),
        (("--server", "http://a b"), 2, "blanks"),
        (("--server", "http://host/v1?key=5"), 2, "after ? or #"),
        (("--server", "http://me:sesame@host/v1"), 2, "user or password"),
        (("--server", "x", "-m", "main.gguf"), 2, "-m has no meaning"),
        (("--server", "x", "-md", "none"), 2, "-md has no meaning"),
        (("--server", "x", "--text", "a.txt"), 2, "--text has no meaning"),
        (("--server", "x", "--k", "3"), 2, "--k has no meaning"),
        (("--server", "x", "-t", "2"), 2, "-t has no meaning"),
        (("--server", "x", "-v"), 2, "-v has no meaning"),
        (("--server", "x", "--concurrency", "0"), 2, "--concurrency"),
        (("--server", "x", "--concurrency", "1,257"), 2, "'257'"),
        (("--server", "x", "--concurrency", ","), 2, "empty list"),
        (("--server", "x", "--requests", "3"), 2, "fewer than the 16 clients"),
        (("--server", "x", "--requests", "0", "--concurrency", "1"), 2, "--requests"),
        (("--server", "x", "--timeout", "0"), 2, "--timeout"),
        (("--server", "x", "--timeout", "nan"), 2, "--timeout"),
        (("--server", "x", "--temp", "0,0.8"), 2, "one temperature"),
        (("--server", "x", "--temp", "-1"), 2, "--temp"),
        (("--server", "x", "-n", "1"), 2, "-n"),
        (("--server", "x", "--workloads", "nope"), 2, "nope"),
        (("--server", "x", "--prompts", "absent.json"), 3, "absent.json"),
        (("--server", "x", "--report", "absent/x.html"), 2, "--report"),
        (("--server", "x", "--api-key-file", "absent.txt"), 3, "absent.txt"),
        (("--server", "x", "--api-key", "a\tb"), 2, "printable"),
        (("--server", "x", "--model", "a\tb"), 2, "--model"),
        (("--concurrency", "1"), 2, "--concurrency needs --server"),
        (("--timeout", "1"), 2, "--timeout needs --server"),
        (("-m", "a.gguf", "--model", "b.gguf"), 2, "-m and --model"),
    ],
)
def test_bad_input_is_one_clear_line(shared: Command, args: tuple[str, ...], code: int, needle: str) -> None:
    result = shared("bench", *args, timeout=30)
    assert_error(result, code, needle)
    assert "sesame" not in result.err
