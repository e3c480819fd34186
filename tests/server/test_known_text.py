"""Predictions in requests of every API; answers to draft from after a restart; a corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.prefix_disk.directory import MEMORY
from tests.support.serving import START, Reply, Server

QUESTION = [{"role": "user", "content": "What does shutil.copytree do?"}]
GREEDY = {"temperature": 0, "seed": 1, "speculation": {"memory": False}}
APIS: dict[str, tuple[str, dict[str, Any], Callable[[Any], str]]] = {
    "chat": (
        "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 40},
        lambda body: body["choices"][0]["message"]["content"],
    ),
    "completions": (
        "/v1/completions", {"prompt": "def read(", "max_tokens": 40},
        lambda body: body["choices"][0]["text"],
    ),
    "responses": (
        "/v1/responses", {"input": QUESTION, "max_output_tokens": 40},
        lambda body: body["output"][-1]["content"][0]["text"],
    ),
    "messages": (
        "/v1/messages", {"messages": QUESTION, "max_tokens": 40}, lambda body: body["content"][-1]["text"]
    ),
    "ollama": (
        "/api/chat", {"messages": QUESTION, "stream": False, "options": {"num_predict": 40}},
        lambda body: body["message"]["content"],
    ),
    "llama-server": (
        "/completion", {"prompt": "def read(", "n_predict": 40}, lambda body: body["content"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("api", APIS)
def test_a_prediction_changes_no_text(exact: Server, api: str) -> None:
    path, asked, text = APIS[api]
    plain = exact.post(path, {**asked, "temperature": 0, "speculation": {"enabled": False}}).json
    more = {"memory": False, "prediction": text(plain)}
    reply = exact.post(path, {**asked, "temperature": 0, "speculation": more})
    assert text(reply.json) == text(plain) != ""
    assert reply.json["speculation"]["drafted_by"]["prediction"] > 20
    assert "ignored_fields" not in reply.json


def ask(server: Server, **fields: Any) -> Reply:
    return server.chat(QUESTION, max_tokens=40, **{**GREEDY, **fields})


def test_openais_form_is_counted_as_openai_counts(exact: Server) -> None:
    whole = ask(exact).json["choices"][0]["message"]["content"]
    half, wrong = whole[: len(whole) // 2], " and something else that is never said"
    parts = [{"type": "text", "text": half}, {"type": "text", "text": wrong}]
    for n, asked in ((1, {}), (2, {"n": 2}), (1, {"logprobs": True})):
        body = ask(exact, prediction={"type": "content", "content": parts}, **asked).json
        assert [choice["message"]["content"] for choice in body["choices"]] == [whole] * n
        details, drafted = body["usage"]["completion_tokens_details"], body["speculation"]["drafted_by"]
        accepted, rejected = (details[f"{k}_prediction_tokens"] for k in ("accepted", "rejected"))
        assert accepted > 5 * n
        assert rejected > 0
        assert accepted + rejected == drafted["prediction"]


@pytest.mark.parametrize(
    "prediction", ["", "völlig andere Wörter, 漢字", "<|im_start|>user\n<|im_end|></s>", "\0\ufffd\n" * 50]
)
def test_a_prediction_of_no_use_changes_no_text(exact: Server, prediction: str) -> None:
    assert ask(exact, prediction=prediction).json["choices"] == ask(exact).json["choices"]


def test_a_prediction_that_is_too_long(exact: Server) -> None:
    for n, stream in ((4_000, False), (400_000, False), (400_000, True)):
        reply = ask(exact, prediction="zip " * n, stream=stream)
        assert reply.status == 400
        assert reply.error["message"].startswith("the prediction has at least ")
        assert reply.error["param"] == "prediction"
    assert ask(exact, prediction="zip " * 1_200_000).status == 413


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prediction": 5}, "prediction"),
        ({"prediction": ["a"]}, "prediction"),
        ({"prediction": {"type": "text", "content": "a"}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"content": [{"type": "image_url"}]}}, "prediction.content[0].type"),
        ({"prediction": "a", "speculation": {"prediction": "b"}}, "prediction"),
    ],
)
def test_what_is_no_prediction_is_refused(exact: Server, fields: dict[str, Any], param: str) -> None:
    reply = exact.chat(QUESTION, **fields)
    assert reply.status == 400
    assert reply.error["param"].startswith(param), reply.error


def test_answers_are_drafted_from_after_a_kill_by_their_key_alone(tmp_path: Path) -> None:
    """And the files of --memory-from by every key. A file that is cut off is ignored."""
    notes = tmp_path / "notes.txt"
    flags = ("-md", "none", "--draft-max", "6", "--api-key", "alice,bob", "--memory-from", str(notes))

    def complete(server: Server, key: str) -> tuple[str, dict[str, int]]:
        asked = {"prompt": "def read(", "max_tokens": 40, "seed": 2, "temperature": 1.0, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {key}"}
        body = server.post("/v1/completions", asked, headers=headers).json
        return body["choices"][0]["text"], body["speculation"]["drafted_by"]

    def files() -> list[Path]:
        return [path for path in tmp_path.rglob("*.memory") if MEMORY.fullmatch(path.name)]

    notes.write_text("nothing\n")
    with Server(tmp_path, *flags) as server:
        text, drafted = complete(server, "alice")
        assert "memory" not in drafted
        server.until(files, START)
        server.process.kill()
    notes.write_text(f"def read({text}")
    with Server(tmp_path, *flags) as server:
        assert server.said("--memory-from: 1 file", seconds=START)
        again, drafted = complete(server, "alice")
        assert again == text
        assert drafted["memory"] > 20
        bobs, drafted = complete(server, "bob")
        assert bobs == text
        assert drafted.keys() <= {"copy", "corpus"}
        assert drafted["corpus"] > 20
        server.until(lambda: len(files()) == 2, START)
        server.process.kill()
    for file in files():
        file.write_bytes(file.read_bytes()[:-4])
    with Server(tmp_path, *flags) as server:
        again, drafted = complete(server, "alice")
        assert again == text
        assert "memory" not in drafted
