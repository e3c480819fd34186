"""llama-server's native /completion, as its clients use it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.support.serving import Reply, Server, first_event

PROMPT = "def read("
SILLY_TAVERN = {
    "prompt": PROMPT, "model": None, "max_new_tokens": 12, "max_tokens": 12, "n_predict": 12, "top_p": 0.95,
    "temperature": 0.8, "typical_p": 1, "typical": 1, "sampler_seed": 3, "seed": 3, "min_p": 0.05,
    "min_keep": 0, "repetition_penalty": 1, "rep_pen": 1, "repeat_penalty": 1, "frequency_penalty": 0,
    "presence_penalty": 0, "top_k": 40, "skew": 0, "min_tokens": 0, "add_bos_token": True,
    "smoothing_factor": 0, "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0,
    "dry_base": 1.75, "dry_penalty_last_n": 0, "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "max_tokens_second": 0, "top_n_sigma": 0, "nsigma": 0,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "stopping_strings": ["\nUser:", ""], "stop": ["\nUser:", ""], "truncation_length": 8192, "tfs": 1,
    "ban_eos_token": False, "skip_special_tokens": True, "include_reasoning": True, "top_a": 0,
    "mirostat_mode": 0, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "xtc_threshold": 0.1,
    "xtc_probability": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9, "dynamic_temperature": False,
    "dynatemp_low": 1, "dynatemp_high": 1, "dynatemp_range": 0, "dynatemp_exponent": 1, "grammar": "",
    "repetition_penalty_range": 64, "repeat_last_n": 64, "logit_bias": [], "n_probs": 10,
    "cache_prompt": True, "api_type": "llamacpp", "api_server": "http://127.0.0.1:8080", "stream": True,
    "json_schema": None,
}  # fmt: skip
CONTINUE = {
    "prompt": PROMPT, "stream": True, "n_predict": 12, "frequency_penalty": None, "presence_penalty": 0,
    "min_p": None, "mirostat": None, "stop": ["</s>"], "top_k": 40, "top_p": 0.9, "temperature": 0.5,
}  # fmt: skip


def ask(server: Server, **fields: Any) -> Any:
    """The answer of a request that must succeed."""
    reply = server.post("/completion", {"prompt": PROMPT, "n_predict": 12, "seed": 3, **fields})
    assert reply.status == 200, reply.body
    return reply.json


def chunks(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = reply.body.decode().split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines if not line.startswith(":")]


def test_a_whole_answer(server: Server) -> None:
    completion = ask(server)
    assert completion["content"]
    assert completion["tokens"] == []
    assert (completion["index"], completion["stop"], completion["model"]) == (0, True, "pydoc-target")
    assert completion["stop_type"] in ("limit", "eos")
    assert completion["prompt"].endswith(PROMPT)
    assert (completion["truncated"], completion["has_new_line"]) == (False, "\n" in completion["content"])
    assert (
        completion["tokens_evaluated"] == completion["timings"]["prompt_n"] + completion["timings"]["cache_n"]
    )
    assert completion["tokens_predicted"] == completion["timings"]["predicted_n"]
    assert completion["tokens_cached"] == completion["tokens_evaluated"] + completion["tokens_predicted"] - 1
    assert 0 <= completion["id_slot"] < 4
    settings = completion["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["temperature"]) == (12, 3, 0.8)
    assert (settings["adaptive_target"], settings["logit_bias"], settings["samplers"][0]) == (
        -1.0,
        [],
        "penalties",
    )
    assert "ignored_fields" not in completion


def test_no_tokens_are_shown_as_asked_for(server: Server) -> None:
    settings = ask(server, n_predict=0)["generation_settings"]
    assert (settings["n_predict"], settings["max_tokens"]) == (0, 0)
    stream = server.post("/completion", {"prompt": PROMPT, "n_predict": 0, "stream": True})
    last = chunks(stream)[-1]
    assert last["generation_settings"]["n_predict"] == 0
    verbose = server.complete(PROMPT, n_predict=0, max_tokens=None, verbose=True).json["__verbose"]
    assert verbose["generation_settings"]["n_predict"] == 0


def test_the_same_text_as_completions(exact: Server) -> None:
    asked = {"max_tokens": 20, "seed": 5, "ignore_eos": True}
    native = exact.post("/completions", {"prompt": PROMPT, "return_tokens": True, **asked}).json
    assert native["content"] == exact.complete(PROMPT, **asked).json["choices"][0]["text"]
    assert len(native["tokens"]) == 20
    assert exact.post("/detokenize", {"tokens": native["tokens"]}).json["content"] == native["content"]


def test_a_stream_adds_up_to_the_answer(exact: Server) -> None:
    asked = {"n_predict": 30, "seed": 3, "n_probs": 2, "return_tokens": True, "ignore_eos": True}
    whole = exact.post("/completion", {"prompt": PROMPT, **asked}).json
    *pieces, last = chunks(exact.post("/completion", {"prompt": PROMPT, "stream": True, **asked}))
    assert all(piece["stop"] is False and piece["tokens"] for piece in pieces)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [i for piece in pieces for i in piece["tokens"]] == whole["tokens"]
    probabilities = [p for piece in pieces for p in piece["completion_probabilities"]]
    assert [p["id"] for p in probabilities] == [p["id"] for p in whole["completion_probabilities"]]
    assert (last["content"], last["stop"], last["stop_type"]) == ("", True, "limit")
    assert last["generation_settings"] == whole["generation_settings"] | {"stream": True}
    assert last["tokens_predicted"] == pieces[-1]["tokens_predicted"] == 30


def test_all_forms_of_prompts(exact: Server) -> None:
    def content(prompt: Any) -> Any:
        asked = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True}
        reply = exact.post("/completion", asked)
        assert reply.status == 200, reply.body
        return reply.json

    one = content(PROMPT)
    ids = exact.post("/tokenize", {"content": PROMPT, "add_special": True}).json["tokens"]
    assert content(ids)["content"] == content({"prompt_string": PROMPT})["content"] == one["content"]
    several = content([ids, PROMPT, {"prompt_string": PROMPT}, [*ids[:2], exact_text(exact, ids[2:])]])
    assert [answer["content"] for answer in several] == [one["content"]] * 4
    assert [answer["index"] for answer in several] == [0, 1, 2, 3]
    assert {answer["prompt"] for answer in several} == {one["prompt"]}
    mixed = content([1, 2, 3, PROMPT, 7, 8, PROMPT])
    assert mixed["tokens_evaluated"] == 5 + 2 * len(
        exact.post("/tokenize", {"content": PROMPT}).json["tokens"]
    )
    assert mixed["content"]


def exact_text(server: Server, ids: list[int]) -> str:
    text: str = server.post("/detokenize", {"tokens": ids}).json["content"]
    return text


def test_several_answers_to_a_prompt(server: Server) -> None:
    answers = ask(server, n_cmpl=3, temperature=1.5, return_tokens=True, ignore_eos=True)
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert len({answer["content"] for answer in answers}) > 1
    assert len({answer["generation_settings"]["seed"] for answer in answers}) == 3
    assert all(answer["prompt"].endswith(PROMPT) for answer in answers)
    two = ask(server, prompt=["a", "b"], n=2)
    assert [answer["prompt"][-1] for answer in two] == ["a", "a", "b", "b"]


@pytest.mark.parametrize("final", [False, True])
def test_probabilities(server: Server, final: bool) -> None:
    completion = ask(
        server, n_probs=10, n_predict=5, ignore_eos=True, post_sampling_probs=final, temperature=1.0
    )
    entries = completion["completion_probabilities"]
    assert len(entries) == 5
    key, top = ("prob", "top_probs") if final else ("logprob", "top_logprobs")
    for entry in entries:
        assert all(set(one) >= {"id", "token", "bytes", key} for one in (entry, *entry[top]))
        values = [one[key] if final else math.exp(one[key]) for one in entry[top]]
        assert all(0 < value <= 1 for value in values)
        assert values == sorted(values, reverse=True)
        assert len(values) == 10 or (final and sum(values) == pytest.approx(1, abs=1e-4))
    assert completion["generation_settings"]["post_sampling_probs"] is final


def test_greedy_choices_are_certain_after_sampling(server: Server) -> None:
    completion = ask(server, n_probs=3, n_predict=4, ignore_eos=True, post_sampling_probs=True, temperature=0)
    assert [[e["prob"], len(e["top_probs"])] for e in completion["completion_probabilities"]] == [
        [1.0, 1]
    ] * 4


@pytest.mark.parametrize("speculate", [True, False])
@pytest.mark.parametrize("n", [5, 6, 7, 8, 30])
def test_one_entry_per_token_in_every_form(server: Server, n: int, speculate: bool) -> None:
    """Of a text whose characters are several tokens each, cut within one of them; in all forms and APIs."""
    shared = {"temperature": 0, "grammar": 'root ::= "😀🎉é🎉😀 ok"', "seed": 3,
              "speculation": {"enabled": speculate}}  # fmt: skip
    native = {**shared, "n_predict": n, "n_probs": 1}
    whole = ask(server, **native, return_tokens=True)
    n_tokens = whole["tokens_predicted"]
    assert len(whole["completion_probabilities"]) == len(whole["tokens"]) == n_tokens
    streamed = chunks(server.post("/completion", {"prompt": PROMPT, **native, "stream": True}))
    streamed_entries = [entry for chunk in streamed for entry in chunk.get("completion_probabilities", ())]
    assert streamed_entries == whole["completion_probabilities"]
    assert [i for chunk in streamed for i in chunk["tokens"]] == whole["tokens"]
    assert "".join(chunk["content"] for chunk in streamed) == whole["content"]

    fields = {**shared, "max_tokens": n}
    n_written = n_tokens - (whole["stop_type"] == "eos")  # OpenAI's forms leave the end token out
    chat = {"messages": [{"role": "user", "content": "hi"}], **fields, "logprobs": True}
    (choice,) = server.post("/v1/chat/completions", chat).json["choices"]
    assert len(choice["logprobs"]["content"]) == n_written
    events = server.post("/v1/chat/completions", {**chat, "stream": True}).events
    parts = [c["logprobs"]["content"] for e in events for c in e["choices"] if c["logprobs"]]
    assert [entry for part in parts for entry in part] == choice["logprobs"]["content"]

    completion = {"prompt": PROMPT, **fields, "logprobs": 1}
    (choice,) = server.post("/v1/completions", completion).json["choices"]
    events = server.post("/v1/completions", {**completion, "stream": True}).events
    parts = [c["logprobs"] for e in events for c in e["choices"] if c["logprobs"]]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert len(choice["logprobs"][name]) == n_written
        assert [x for part in parts for x in part[name]] == choice["logprobs"][name]
    offsets, text = choice["logprobs"]["text_offset"], choice["text"]
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(text)


def test_stop_types(exact: Server) -> None:
    text = ask(exact, n_predict=20, ignore_eos=True)
    assert (text["stop_type"], text["stopping_word"], text["truncated"]) == ("limit", "", False)
    word = text["content"].split()[2]
    stopped = ask(exact, n_predict=20, ignore_eos=True, stop=["", word])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert word not in stopped["content"]
    full = ask(exact, n_predict=-1, ignore_eos=True, temperature=0)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["tokens_evaluated"] + full["tokens_predicted"] == 512
    forced = ask(exact, grammar='root ::= "yes"')
    assert (forced["content"], forced["stop_type"]) == ("yes", "eos")


def test_clients_of_llama_server(server: Server) -> None:
    *pieces, last = chunks(server.post("/completion", SILLY_TAVERN))
    assert all(len(piece["completion_probabilities"]) == 1 for piece in pieces if piece["content"])
    assert last["tokens_predicted"] <= 12
    assert {"api_type", "truncation_length"} <= set(last["ignored_fields"])
    *pieces, last = chunks(server.post("/completion", CONTINUE))
    assert any(piece["content"] for piece in pieces)
    assert last["generation_settings"]["top_p"] == 0.9


def test_omitted_samplers_are_off(exact: Server) -> None:
    asked = {"temperature": 3, "top_k": 2, "top_p": 0.1, "n_predict": 20, "ignore_eos": True}
    none = ask(exact, samplers=["temperature"], **asked)
    off = ask(exact, **asked | {"top_k": 0, "top_p": 1, "min_p": 0})
    assert none["content"] == off["content"] != ask(exact, **asked)["content"]
    assert ask(exact, samplers="edskypmxt", **asked)["content"] == ask(exact, **asked)["content"]


CHAINS = (
    {"samplers": ["temperature", "top_k", "xtc"], "xtc_probability": 0.6, "xtc_threshold": 0.02, "top_k": 20},
    {"dry_multiplier": 4, "dry_allowed_length": 1, "dry_sequence_breakers": ["("], "temperature": 0.1},
    {"typical_p": 0.6, "dynatemp_range": 0.7, "top_n_sigma": 2, "min_keep": 2},
    {"mirostat_mode": 2, "mirostat_tau": 2, "temperature": 0.6},
    {"samplers": "ka", "adaptive_target": 0.3},
)


@pytest.mark.parametrize("fields", CHAINS, ids=str)
def test_any_samplers_write_the_same_text_with_and_without_drafts(
    exact: Server, fields: dict[str, Any]
) -> None:
    asked = {"n_predict": 24, "ignore_eos": True, "n_probs": 2, "post_sampling_probs": True, **fields}
    drafted = ask(exact, **asked)
    plain = ask(exact, **asked, speculation={"enabled": False})
    assert drafted["content"] == plain["content"]
    assert drafted["completion_probabilities"] == plain["completion_probabilities"]
    shown = drafted["generation_settings"]
    name = next(name for name in fields if name != "mirostat_mode")
    given = fields[name]
    assert shown[name] == (["top_k", "adaptive_p"] if given == "ka" else given)


def test_an_empty_list_of_samplers_is_no_step(exact: Server) -> None:
    asked = {"n_predict": 12, "ignore_eos": True}
    empty = ask(exact, samplers=[], temperature=0, **asked)
    assert empty["content"] == ask(exact, **asked, temperature=1, top_k=0, top_p=1, min_p=0)["content"]
    assert empty["generation_settings"]["samplers"] == []


def test_biases_of_texts(exact: Server) -> None:
    asked = {"temperature": 0, "n_predict": 24, "ignore_eos": True}
    plain = ask(exact, **asked)["content"]
    word = max(plain.split(), key=len)
    for biases in ([[word, False], [" " + word, -100]], {word: -100, " " + word: -100}):
        assert word not in ask(exact, logit_bias=biases, **asked)["content"]
    reply = exact.complete(PROMPT, logit_bias={word: -100, f" {word}": -100}, max_tokens=24, temperature=0)
    assert word not in reply.json["choices"][0]["text"]


def test_banned_end_tokens_are_shown(server: Server) -> None:
    biases = ask(server, ignore_eos=True)["generation_settings"]["logit_bias"]
    assert biases
    assert all(entry["bias"] is None for entry in biases)


def test_response_fields_selects_fields(server: Server) -> None:
    fields = ["content", "generation_settings/n_predict", "prompt", "timings/predicted_n", "nothing"]
    completion = ask(server, response_fields=fields, ignore_eos=True)
    assert set(completion) == set(fields) - {"nothing"}
    assert completion["generation_settings/n_predict"] == completion["timings/predicted_n"] == 12
    assert completion["prompt"].endswith(PROMPT)
    assert "generation_settings" in ask(server, response_fields=[])


def test_progress(server: Server) -> None:
    prompt = "the quick brown fox jumps over the lazy dog " * 20
    asked = {
        "prompt": prompt,
        "n_predict": 4,
        "stream": True,
        "return_progress": True,
        "timings_per_token": True,
    }
    stream_chunks = chunks(server.post("/completion", {**asked, "speculation": {"memory": False}}))
    progress = [chunk["prompt_progress"] for chunk in stream_chunks if "prompt_progress" in chunk]
    assert len(progress) > 1
    assert progress[0]["processed"] == progress[0]["cache"]
    done = [one["processed"] for one in progress]
    assert done == sorted(set(done))
    assert done[-1] == progress[0]["total"] == stream_chunks[-1]["tokens_evaluated"]
    assert len({(one["total"], one["cache"]) for one in progress}) == 1
    timings = [chunk["timings"] for chunk in stream_chunks]
    assert timings[0]["prompt_n"] == timings[0]["predicted_n"] == 0
    assert all(value >= 0 for one in timings for value in one.values())
    assert [one["predicted_n"] for one in timings] == sorted(one["predicted_n"] for one in timings)
    assert timings[-2]["predicted_n"] == timings[-1]["predicted_n"] == stream_chunks[-1]["tokens_predicted"]
    again = chunks(server.post("/completion", asked))
    assert again[0]["prompt_progress"]["cache"] > 0


def test_without_reuse_all_of_a_prompt_is_evaluated(server: Server) -> None:
    prompt = "a prompt that is to be read as often as it is sent " * 8
    alone = {"prompt": prompt, "n_predict": 2, "temperature": 0, "cache": {"reuse": False}}
    first, second = (server.post("/completion", alone).json for _ in range(2))
    after = server.post("/completion", {**alone, "cache": {}}).json
    again = server.post("/completion", {**alone, "cache": {}}).json
    n = first["tokens_evaluated"]
    evaluated = [one["timings"]["prompt_n"] for one in (first, second, after, again)]
    assert evaluated[:2] == [n, n]
    assert evaluated[2] > n - 8, "what it may reuse is the beginning of other prompts"
    assert evaluated[3] < n - 8
    assert len({one["content"] for one in (first, second, after, again)}) == 1
    ollama = {"model": "pydoc-target", "prompt": prompt, "stream": False, "options": {"num_predict": 2}}
    assert server.post("/api/generate", {**ollama, "cache": {"reuse": False}}).status == 200
    refused = server.post("/completion", {**alone, "cache": {"reuse": False, "keep": True}})
    assert (refused.status, "cache: has the fields store and reuse only" in refused.error["message"]) == (
        400,
        True,
    )


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "missing"),
        ({"prompt": 5}, "prompt", ""),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": [[]]}, "prompt", "at least 1"),
        ({"prompt": ["x"] * 65}, "prompt", "64 prompts"),
        ({"prompt": ["x"] * 64, "n_cmpl": 2}, "prompt", "64 answers"),
        ({"prompt": [1, {"prompt_string": "x"}]}, "prompt", "mixed with texts only"),
        ({"prompt": [1, *["x"] * 257]}, "prompt", "at most 256 texts"),
        ({"prompt": [1, *["x"] * 4096]}, "prompt", "at most 4096"),
        ({"prompt": [-1]}, "prompt[0]", "greater than or equal to 0"),
        (
            {"prompt": {"prompt_string": "x", "multimodal_data": ["aa"]}},
            "prompt.multimodal_data",
            "0 markers <__media__>, and 1 image",
        ),
        ({"n_probs": 21}, "n_probs", "20"),
        ({"n_cmpl": 9}, "n_cmpl", "8"),
        ({"typical": 1.5}, "typical", "from 0 to 1"),
        ({"tfs": 0.5}, "tfs_z", "not supported"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora", "not supported"),
        ({"grammar_lazy": True}, "grammar_lazy", "not supported"),
        ({"logit_bias": [["a" * 65, 1]]}, "logit_bias", "64 characters"),
        ({"logit_bias": {f"a{i}": 1 for i in range(129)}}, "logit_bias", "128 texts"),
        ({"response_fields": [1]}, "response_fields[0]", "string"),
        ({"response_fields": ["x"] * 65}, "response_fields", "at most 64"),
        ({"grammar": "root ::= ("}, None, "grammar"),
        ({"json_schema": {"type": "hiccup"}}, None, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals(server: Server, fields: dict[str, Any], param: str | None, words: str) -> None:
    for stream in (False, True):
        asked = {"prompt": PROMPT, "n_predict": 4, "stream": stream, **fields}
        reply = server.post("/completion", asked)
        assert reply.status == 400, reply.body
        assert reply.error["type"] == "invalid_request_error"
        assert words in reply.error["message"]
        if param is not None:
            assert (reply.error["param"] or "").startswith(param.split("[")[0])


def test_a_prompt_that_is_too_long(server: Server) -> None:
    for prompt in ("def read( " * 2000, [7] * 3000, ["x", *[7] * 3000], ["def read( " * 2000, 1]):
        error = server.post("/completion", {"prompt": prompt}).error
        assert error["type"] == "exceed_context_size_error"
        assert "exceeds the available context size" in error["message"]
        assert error["n_prompt_tokens"] >= error["n_ctx"] == 2048


def test_another_model(server: Server) -> None:
    reply = server.post("/completion", {"prompt": "x", "model": "nope"})
    assert (reply.status, reply.error["type"]) == (404, "not_found_error")


def test_a_client_that_disconnects(server: Server) -> None:
    first_event(server.begin("/completion", prompt="x", stream=True, ignore_eos=True, n_predict=1500))
    assert server.n_busy() == 1
    server.hang_up()
    assert server.until(lambda: server.n_busy() == 0) < 1


def test_a_trace(server: Server) -> None:
    stream_chunks = chunks(
        server.post(
            "/completion",
            {
                "prompt": PROMPT,
                "n_predict": 40,
                "temperature": 0,
                "stream": True,
                "speculation": {"trace": True},
            },
        )
    )
    traced = [chunk for chunk in stream_chunks if chunk["content"]]
    assert all(sum(n for n, _ in chunk["speculation"]["tokens"]) == len(chunk["content"]) for chunk in traced)
    assert stream_chunks[-1]["speculation"]["n_drafted"] == stream_chunks[-1]["timings"]["draft_n"]
