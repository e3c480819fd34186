"""Filling gaps as editors ask for it: the requests of llama.vim and llama.vscode by their documented fields,
with a tiny random model whose vocabulary has the tokens. The plugins themselves are not installed here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import tinygguf
from tests.support.serving import Reply, Server

TIMINGS = ("prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
           "predicted_per_token_ms", "predicted_per_second")  # fmt: skip
FIELDS = ["content", *(f"timings/{name}" for name in TIMINGS), "truncated", "tokens_cached"]
BEFORE = "".join(f"def f{i}(a, b):\n    return a * {i} + b\n\n\n" for i in range(12))
AFTER = "    return total\n\n\ndef last(items):\n    return items[-1]\n"
CHUNKS = [
    {"text": "import os\n", "time": [123, 456789], "filename": "a.py"},
    {"text": "LIMIT = 5\n", "time": [124, 1], "filename": "b.py"},
]
VIM = {
    "id_slot": 0, "input_prefix": BEFORE, "input_suffix": AFTER, "input_extra": CHUNKS,
    "prompt": "    total = ", "n_predict": 24, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 5000,
    "t_max_predict_ms": 5000, "response_fields": FIELDS,
}  # fmt: skip
VIM_WARMS = {
    "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": CHUNKS, "prompt": "", "n_predict": 0,
    "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1, "response_fields": [""],
}  # fmt: skip
VSCODE = {
    "id_slot": 0, "input_prefix": BEFORE, "input_suffix": AFTER, "input_extra": [], "prompt": "    total = ",
    "n_predict": 16, "n_cmpl": 2, "top_k": 40, "top_p": 0.99, "stream": False,
    "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "n_indent": 4, "t_max_prompt_ms": 5000,
    "t_max_predict_ms": 5000,
}  # fmt: skip
ENDLESS = {"ignore_eos": True, "temperature": 0, "samplers": ["top_k", "temperature"], "response_fields": []}


@pytest.fixture(scope="module")
def fim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fim")
    path = tinygguf.llama(folder / "fim.gguf", more=tinygguf.FIM, n_ctx_train=8192)
    with Server(folder, "-m", str(path), "-c", "8192", "-np", "2") as one:
        yield one


def filled(server: Server, asked: dict[str, Any], **fields: Any) -> Any:
    reply = server.post("/infill", {**asked, **fields})
    assert reply.status == 200, reply.body
    return reply.json


def test_the_request_of_llama_vim(fim: Server) -> None:
    completion = filled(fim, VIM)
    assert set(completion) == set(FIELDS)
    assert completion["timings/predicted_n"] <= 24
    assert completion["truncated"] is False


def test_llama_vims_request_that_only_warms_the_cache(fim: Server) -> None:
    chunks = [{"text": f"value_{i} = {i}\n" * 40, "filename": f"{i}.py"} for i in range(3)]
    assert filled(fim, VIM_WARMS, input_extra=chunks) == {}
    completion = filled(fim, VIM, input_extra=chunks, response_fields=[])
    evaluated, cached = completion["timings"]["prompt_n"], completion["timings"]["cache_n"]
    assert cached > 500  # the other texts
    assert evaluated < completion["tokens_evaluated"] - 500


def test_a_prompt_that_is_only_evaluated(fim: Server) -> None:
    completion = filled(fim, VIM_WARMS, response_fields=[])
    assert (completion["content"], completion["tokens_predicted"], completion["stop_type"]) == (
        "",
        0,
        "limit",
    )


def test_the_requests_of_llama_vscode(fim: Server) -> None:
    both = filled(fim, VSCODE)
    assert [one["index"] for one in both] == [0, 1]
    warm = {k: v for k, v in VSCODE.items() if k != "n_cmpl"} | {"n_predict": 0, "samplers": []}
    assert filled(fim, warm)["content"] == ""


def test_the_text_depends_on_what_follows_the_gap(fim: Server) -> None:
    asked = {**VIM, **ENDLESS, "n_probs": 1, "n_predict": 1}
    tokens = [filled(fim, asked, input_suffix=f"{i}\n")["completion_probabilities"] for i in range(3)]
    assert len({probabilities[0]["logprob"] for probabilities in tokens}) == 3


@pytest.mark.parametrize("sampling", [{}, ENDLESS], ids=["as llama.vim", "greedy"])
def test_the_same_text_without_drafts(fim: Server, sampling: dict[str, Any]) -> None:
    asked = {**VIM, **sampling, "response_fields": [], "n_predict": 60, "seed": 3}
    texts = [filled(fim, asked, speculation={"enabled": on})["content"] for on in (True, False)]
    assert texts[0] == texts[1]


def test_a_stream(fim: Server) -> None:
    asked = {**VIM, **ENDLESS, "n_predict": 12}
    reply = fim.post("/infill", {**asked, "stream": True})
    pieces = [line for line in reply.body.decode().split("\n\n") if line.startswith("data: ")]
    assert '"stop":true' in pieces[-1]
    assert filled(fim, asked)["tokens_predicted"] == 12


@pytest.mark.parametrize("milliseconds", [250, 1000])
def test_a_text_ends_in_time(fim: Server, milliseconds: int) -> None:
    asked = {**VIM, **ENDLESS, "n_predict": 6000, "t_max_predict_ms": milliseconds}
    completion = filled(fim, asked)
    assert completion["stop_type"] == "limit"
    assert 1 < completion["tokens_predicted"] < 6000


def test_a_prompt_over_its_time_limit_is_resumed_by_the_next_request(fim: Server) -> None:
    long = [{"text": "".join(f"{i * i}, " for i in range(900)), "filename": "long.py"}]
    for _ in range(200):
        completion = filled(fim, VIM, input_extra=long, t_max_prompt_ms=1, response_fields=[])
        if completion["tokens_predicted"]:
            break
        assert completion["stop_type"] == "limit"
    assert completion["tokens_predicted"]


def begun(server: Server, replies: list[Reply], **fields: Any) -> threading.Thread:
    """A request for a very long text, once its slot is busy."""
    asked = {**VIM, **ENDLESS, "n_predict": 7000, "t_max_predict_ms": 0, **fields}
    thread = threading.Thread(target=lambda: replies.append(server.post("/infill", asked)))
    n_busy = server.n_busy()
    thread.start()
    server.until(lambda: server.n_busy() > n_busy)
    return thread


def test_a_newer_request_of_the_same_client_ends_the_older_one(fim: Server) -> None:
    replies: list[Reply] = []
    older = begun(fim, replies)
    assert filled(fim, VIM_WARMS) == {}  # which ends no other
    assert older.is_alive()
    assert filled(fim, VIM, n_predict=2)
    older.join(10)
    assert replies[0].status == 200
    ended_early = replies[0].json
    assert (ended_early["stop_type"], ended_early["stop"]) == ("limit", True)
    assert ended_early["tokens_predicted"] < 7000


def test_requests_with_another_slot_or_none_continue(fim: Server) -> None:
    replies: list[Reply] = []
    older = begun(fim, replies, n_predict=400)
    filled(fim, VIM, id_slot=1, n_predict=2)
    filled(fim, VIM, id_slot=-1, n_predict=2)
    older.join(30)
    assert replies[0].json["tokens_predicted"] == 400


def test_text_ends_at_a_line_indented_too_little(fim: Server) -> None:
    """Here the model writes nothing but empty lines."""
    completion = filled(fim, {**VIM, **ENDLESS}, n_indent=4, logit_bias=[["\n", 100]])
    assert (completion["content"], completion["tokens_predicted"], completion["stop_type"]) == (
        "\n",
        2,
        "limit",
    )


def test_tokens_reevaluated_when_the_cursor_moves(fim: Server) -> None:
    """By a line: that line and what follows the cursor. Where the text before it is cut, nearly always."""
    lines = [f"x{i} = {i * i % 97} + {i * 31 % 89}\n" for i in range(500)]

    def moved(gap: int, n: int) -> list[int]:
        n_evaluated = []
        for at in range(gap, gap + n):
            asked = {"input_prefix": "".join(lines[:at]), "input_suffix": "".join(lines[at : at + 5])}
            got = filled(fim, VIM, **asked, input_extra=[], n_predict=1, response_fields=[])
            n_evaluated.append(got["timings"]["prompt_n"])
        return sorted(n_evaluated[1:])

    assert moved(50, 5)[-1] < 180
    evaluated = moved(440, 21)
    assert evaluated[14] < 180
    assert evaluated[-1] > 1000


REFUSED = [
    ({"input_prefix": None}, "input_prefix", "missing"),
    ({"input_suffix": None}, "input_suffix", "missing"),
    ({"input_extra": {"text": "a"}}, "input_extra", "list"),
    ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text", "missing"),
    ({"input_extra": [{"text": "a", "filename": 1}]}, "input_extra[0].filename", "string"),
    ({"input_extra": [{"text": "a"}] * 1025}, "input_extra", "at most 1024"),
    ({"prompt": ["a"]}, "prompt", "string"),
    ({"id_slot": -2}, "id_slot", "-1"),
    ({"prompt": "x" * 3_000_000}, None, "exceeds"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=lambda x: str(x)[:30])
def test_refusals(fim: Server, fields: dict[str, Any], param: str | None, words: str) -> None:
    reply = fim.post("/infill", {**VIM, **fields})
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param
    assert words in reply.error["message"]


def test_infill_needs_the_models_infill_tokens(server: Server) -> None:
    reply = server.post("/infill", VIM)
    assert (reply.status, reply.error["type"]) == (501, "not_supported_error")
    assert "middle" in reply.error["message"]
    assert server.complete("a", suffix="b").status == 501
    refusal = server.post("/api/generate", {"prompt": "a", "suffix": "b", "stream": False})
    assert (refusal.status, "does not support insert" in refusal.json["error"]) == (400, True)


def test_suffix_first_order(tmp_path: Path) -> None:
    """Typing at the end of a line then leaves all but the line itself in the cache."""
    path = tinygguf.llama(tmp_path / "fim.gguf", more=tinygguf.FIM)
    with Server(tmp_path, "-m", str(path), "--spm-infill", "-np", "1", "--draft-max", "0") as server:
        timings = [
            filled(server, VIM, prompt=f"    total = {typed}", n_predict=1, response_fields=[])["timings"]
            for typed in ("", "a", "ab", "abc")
        ]
    assert [one["prompt_n"] < 20 for one in timings] == [False, True, True, True]


def test_suffix_of_completions(fim: Server) -> None:
    asked = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    one, other, none = (fim.complete(BEFORE, suffix=s, **asked).json for s in (AFTER, "7", ""))
    assert len({answer["choices"][0]["text"] for answer in (one, other, none)}) == 3
    refused = fim.complete([[5, 6]], suffix="a")
    assert (refused.status, refused.error["param"]) == (400, "suffix")
    assert fim.complete("a", suffix="x" * 3_000_000).status == 400


def test_suffix_of_ollama(fim: Server) -> None:
    asked = {"prompt": BEFORE, "stream": False, "options": {"num_predict": 12, "temperature": 0}}
    one, other = (fim.post("/api/generate", {**asked, "suffix": s}).json for s in (AFTER, "7"))
    assert one["response"] != other["response"]
    completion = fim.complete(BEFORE, suffix=AFTER, max_tokens=12, temperature=0).json
    assert one["response"] == completion["choices"][0]["text"]
    assert "insert" in fim.post("/api/show", {"model": "fim"}).json["capabilities"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_every_route_can_warm_the_cache(server: Server, path: str) -> None:
    text = f"The quick brown fox of {path} jumps over the lazy dog. " * 6
    body: dict[str, Any] = {"prompt": text, "messages": [{"role": "user", "content": text}]}
    del body["messages" if "chat" not in path else "prompt"]
    first = server.post(path, {**body, "n_predict": 0}).json
    assert first["timings"]["predicted_n"] == 0
    again = server.post(path, {**body, "n_predict": 1}).json
    assert again["timings"]["prompt_n"] < 8


def test_a_moving_gap_on_a_hybrid_model(tmp_path: Path) -> None:
    """States are made where the text before the gap ends, and where the other texts do."""
    path = tinygguf.lfm2(tmp_path / "fim.gguf", more=tinygguf.FIM, n_ctx_train=8192)
    texts = [{"text": BEFORE * 2, "filename": "a.py"}]
    asked = VIM | {"input_extra": texts, "input_suffix": AFTER * 6} | ENDLESS
    flags = ("-m", str(path), "-c", "8192", "-np", "1", "-md", "none", "--cache-disk", "0")
    with Server(tmp_path, *flags) as server:
        first = filled(server, asked)
        n_prompt, n_after = first["timings"]["prompt_n"], len(AFTER * 6)
        typed = filled(server, asked, prompt="    total = sum(")
        assert typed["timings"]["prompt_n"] <= n_after + 150
        away = filled(server, asked, input_prefix="def other(x):\n", prompt="    return ")
        assert away["timings"]["cache_n"] > 800
        again = filled(server, asked)
        assert again["timings"]["prompt_n"] < n_prompt / 2
