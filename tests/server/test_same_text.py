"""Requests that run together are what they are alone; a server is what the command and Python are."""

from __future__ import annotations

import shutil
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from specllama import LLM, data
from tests.support import tinygguf
from tests.support.command import Command
from tests.support.serving import QUESTION, Server

EXACT = ("-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off")


@pytest.mark.parametrize("length", ["auto", "3"])
def test_eight_concurrent_texts_equal_sequential_ones(tmp_path, length: str) -> None:
    """On a pair whose rows are bit-equal however they are batched."""
    tinygguf.llama(tmp_path / "target.gguf")
    tinygguf.llama(tmp_path / "draft.gguf", noise=0.1)
    flags = ("-m", "target.gguf", "-md", "draft.gguf", "--draft-max", length, *EXACT)
    with Server(tmp_path, *flags) as one:

        def ask(word: str) -> str:
            asked = {"max_tokens": 30, "seed": 7, "temperature": 0.8, "ignore_eos": True}
            return one.complete(f"{word} read(", **asked).json["choices"][0]["text"]

        alone = [ask(word) for word in "abcdefgh"]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, "abcdefgh")) == alone
        assert len(set(alone)) == 8


def test_same_text_as_the_command_line_and_python(
    exact: Server, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    text = exact.chat(QUESTION, max_tokens=40, seed=9).json["choices"][0]["message"]["content"]
    flags = ("-p", QUESTION[0]["content"], "-n", "40", "-s", "9", "-c", "512")
    assert Command(tmp_path).generate(*flags).out.rstrip("\n") == text.rstrip("\n")
    with LLM(max_num_seqs=1, max_model_len=512, n_threads=1, calibrate=False) as llm:
        assert llm.chat(QUESTION, {"max_tokens": 40, "seed": 9})[0].outputs[0].text == text


class TestCommandLines:
    """As llama-server's and vLLM's users write them; the port is one that is free here."""

    @pytest.mark.parametrize(
        "line",
        [
            "-m main.gguf -md draft.gguf -c 4096 -cd 4096 -ngl 99 -ngld 99 --draft-max 8 --draft-min 4 "
            "--draft-p-min 0.9 --host 127.0.0.1 --port {port}",
            "--model main.gguf --speculative-model draft.gguf --num-speculative-tokens 5 --host 127.0.0.1 "
            "--port {port} -np 2 --alias one --alias two --api-key secret",
        ],
        ids=["llama-server", "vllm"],
    )
    def test_verbatim(self, tmp_path, line: str) -> None:
        shutil.copyfile(data.EMBEDDED_TARGET, tmp_path / "main.gguf")
        shutil.copyfile(data.EMBEDDED_DRAFT, tmp_path / "draft.gguf")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with Server(tmp_path, *line.format(port=port).split()) as one:
            assert one.port == port
            key = {"Authorization": "Bearer secret"}
            props = one.get("/props", headers=key).json
            assert props["speculation"]["draft_max"] == (8 if "-md" in line else 5)
            assert props["draft_model_path"] == str(tmp_path / "draft.gguf")
            names = [model["id"] for model in one.get("/v1/models", headers=key).json["data"]]
            assert names == (["main"] if "-md" in line else ["one", "two"])
            asked = {"messages": QUESTION, "max_tokens": 40, "temperature": 0, "model": names[-1]}
            reply = one.post("/v1/chat/completions", asked, headers=key)
            assert reply.status == 200, reply.body
            assert reply.json["model"] == names[-1]
            assert any("read --api-key in" in said for said in one.lines) == ("--api-key" in line)

    def test_defaults_of_the_server(self, tmp_path) -> None:
        """What a client does not send is what the command line says, from files and environment too."""
        user = tmp_path / "config" / "specllama" / "config.toml"
        user.parent.mkdir(parents=True)
        user.write_text('alias = ["mine"]\nn_slots = 2\ntemperature = 0.5\n')
        (tmp_path / "specllama.toml").write_text("temperature = 0.0\n")
        with Server(tmp_path, "-n", "3", env={"SPECLLAMA_API_KEY": "from-env"}) as one:
            assert one.get("/props").status == 401
            headers = {"x-api-key": "from-env"}
            props = one.get("/props", headers=headers).json
            assert (props["total_slots"], props["model_alias"]) == (2, "mine")
            params = props["default_generation_settings"]["params"]
            assert (params["temperature"], params["n_predict"]) == (0.0, 3)
            texts = {
                one.post("/v1/completions", {"prompt": "def ", **more}, headers=headers).json["usage"][
                    "completion_tokens"
                ]
                for more in ({}, {"seed": 5}, {"max_tokens": 3})
            }
            assert texts == {3}
            assert not any("read --api-key in" in said for said in one.lines)


def test_an_idle_server_measures(tmp_path) -> None:
    with Server(tmp_path, "-np", "1", calibrate=True) as one:
        asked = {"max_tokens": 40, "seed": 1, "ignore_eos": True}
        assert one.complete(**asked).json["speculation"]["plain_source"] in ("run", "none")
        one.until(lambda: list((tmp_path / "cache").rglob("*.json")), 60)
        one.until(lambda: one.n_busy() == 0)
        assert one.complete("x", speculation={"enabled": True}, **asked).status == 200
