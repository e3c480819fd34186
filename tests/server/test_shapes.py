"""What answers look like on the wire, to the key."""

from __future__ import annotations

import json

import pytest

from tests.support.serving import QUESTION, Server, first_event

THINK = 'root ::= "<think>\\n2 is\\nsmall\\n</think>\\n\\nIt is 2."'


def deltas(events, index=0):
    return [c["delta"] for e in events for c in e["choices"] if c["index"] == index]


def content(events, index=0, key="content"):
    return "".join(d.get(key) or "" for d in deltas(events, index))


class TestStream:
    def test_the_order_of_a_chat_stream(self, server: Server) -> None:
        reply = server.chat(
            stream=True, max_tokens=12, seed=1, ignore_eos=True, stream_options={"include_usage": True}
        )
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = reply.events
        *chunks, last = events
        assert len({e["id"] for e in events}) == 1
        assert "cmpl" in events[0]["id"]
        assert {e["object"] for e in events} == {"chat.completion.chunk"}
        assert all(isinstance(e["system_fingerprint"], str) for e in events)
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        inner = [e["choices"][0]["delta"] for e in chunks[1:-1]]
        assert inner
        assert all(set(d) == {"content"} and d["content"] for d in inner)
        assert [e["choices"][0]["finish_reason"] for e in chunks] == [None] * (len(chunks) - 1) + ["length"]
        assert chunks[-1]["choices"][0]["delta"] == {}
        assert all(e["usage"] is None for e in chunks)
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 12
        assert last["timings"]["predicted_n"] == 12

    def test_without_a_usage_chunk_the_last_one_has_the_figures(self, server: Server) -> None:
        events = server.chat(stream=True, max_tokens=5, ignore_eos=True).events
        assert all(len(e["choices"]) == 1 and "usage" not in e for e in events)
        assert [("timings" in e, "metrics" in e) for e in events[:-1]] == [(False, False)] * (len(events) - 1)
        assert events[-1]["timings"]["predicted_n"] == 5
        assert events[-1]["choices"][0]["finish_reason"] == "length"

    @pytest.mark.parametrize("temperature", [0, 0.8, 1.5])
    def test_the_whole_is_the_fold_of_the_stream(self, exact: Server, temperature: float) -> None:
        asked = {
            "temperature": temperature, "seed": 3, "max_tokens": 30, "n": 2, "logprobs": True,
            "top_logprobs": 2,
        }  # fmt: skip
        whole, events = exact.chat(**asked).json, exact.chat(**asked, stream=True).events
        for choice in whole["choices"]:
            i = choice["index"]
            assert content(events, i) == choice["message"]["content"] != ""
            streamed = [c for e in events for c in e["choices"] if c["index"] == i]
            assert streamed[-1]["finish_reason"] == choice["finish_reason"]
            assert streamed[-1]["seed"] == choice["seed"]
            entries = [entry for c in streamed if c["logprobs"] for entry in c["logprobs"]["content"]]
            assert [entry["token"] for entry in entries] == [
                entry["token"] for entry in choice["logprobs"]["content"]
            ]
        assert whole["choices"][0]["seed"] == 3
        assert whole["choices"][0]["message"] != whole["choices"][1]["message"] or temperature == 0

    def test_logprobs_on_every_chunk_with_content(self, server: Server) -> None:
        events = server.chat(stream=True, max_tokens=20, seed=2, logprobs=True, top_logprobs=3).events
        text = ""
        for choice in (e["choices"][0] for e in events):
            if choice["delta"].get("content"):
                entries = choice["logprobs"]["content"]
                assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
                assert all(entry["logprob"] <= 0 and entry["bytes"] for entry in entries)
                text += "".join(entry["token"] for entry in entries)
            else:
                assert choice["logprobs"] is None
        assert text == content(events)

    def test_a_trace_is_sent_on_request(self, server: Server) -> None:
        asked = {"stream": True, "max_tokens": 60, "seed": 1, "temperature": 0}
        events = server.chat(**asked, speculation={"trace": True}).events
        shown = [e for e in events if e["choices"] and e["choices"][0]["delta"].get("content")]
        assert all(
            sum(n for n, _ in e["speculation"]["tokens"]) == len(e["choices"][0]["delta"]["content"])
            for e in shown
        )
        sources = {source for e in shown for _, source in e["speculation"]["tokens"]}
        assert sources <= {"target", "model", "copy", "memory", "grammar"}
        assert {"model", "copy"} & sources
        rounds = [e["speculation"]["round"] for e in shown if "round" in e["speculation"]]
        names = {"drafted", "accepted", "ms", "n_predict"}
        assert set(rounds[0]) == {*names, "rounds"}  # the first token is of the prompt's decode
        assert rounds[0]["rounds"] == 0
        assert all(set(r) == names and r["ms"] >= 0 for r in rounds[1:])
        plain = server.chat(**asked).events
        assert not any("speculation" in e for e in plain[:-1])

    def test_a_full_trace_has_the_rejected_tokens(self, server: Server) -> None:
        asked = {"stream": True, "max_tokens": 80, "seed": 1, "temperature": 0, "ignore_eos": True}
        more = {"stream_options": {"include_usage": True}}
        events = server.chat(**asked, **more, speculation={"trace": "full"}).events
        traced = [e["speculation"] for e in events[:-1] if "speculation" in e]
        rounds = [
            r for t in traced for r in [*t.get("earlier_rounds", []), *([t["round"]] if "round" in t else [])]
        ]
        figures = events[-1]["speculation"]
        assert sum(r.get("rounds", 1) for r in rounds) == figures["rounds"]
        assert sum(r["drafted"] for r in rounds) == figures["n_drafted"]
        assert sum(r["accepted"] for r in rounds) == figures["n_accept"] > 0
        rejected = [r["rejected"] for r in rounds if "rejected" in r]
        assert rejected
        assert all(len(r.get("rejected", [])) <= r["drafted"] - r["accepted"] for r in rounds)
        assert all(
            text and source in {"model", "copy", "memory"} for tokens in rejected for text, source in tokens
        )
        short = server.chat(**asked, speculation={"trace": True}).events
        assert not any("rejected" in e.get("speculation", {}).get("round", {}) for e in short)

    def test_queue_position(self, server: Server) -> None:
        first_event(server.begin(prompt="def ", stream=True, ignore_eos=True, max_tokens=120, n=5))
        events = server.chat(stream=True, max_tokens=2, return_progress=True).events
        progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        places = [one["queue_place"] for one in progress if "queue_place" in one]
        assert places
        assert places == sorted(places, reverse=True)
        assert places[-1] == 1
        assert "queue_place" not in progress[-1]
        assert progress[-1]["processed"] == progress[-1]["total"]

    def test_completions(self, exact: Server) -> None:
        prompts = ["def read(", "import "]
        asked = {"max_tokens": 9, "seed": 4, "ignore_eos": True, "logprobs": 1}
        events = exact.complete(prompts, stream=True, **asked).events
        whole = exact.complete(prompts, **asked).json
        assert {e["object"] for e in events} == {whole["object"]} == {"text_completion"}
        for i in (0, 1):
            choices = [c for e in events for c in e["choices"] if c["index"] == i]
            assert "".join(c["text"] for c in choices) == whole["choices"][i]["text"]
            assert choices[-1]["text"] == ""
            offsets = [o for c in choices if c["logprobs"] for o in c["logprobs"]["text_offset"]]
            assert offsets == whole["choices"][i]["logprobs"]["text_offset"]
            assert offsets == sorted(offsets)
            assert offsets[0] == 0


class TestChat:
    def test_a_whole_answer(self, server: Server) -> None:
        answer = server.chat(max_tokens=4, ignore_eos=True, seed=1).json
        (choice,) = answer["choices"]
        assert set(choice["message"]) == {"role", "content", "refusal"}
        assert choice["finish_reason"] == "length"
        assert choice["logprobs"] is None
        assert answer["object"] == "chat.completion"
        assert answer["model"] == "pydoc-target"
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + 4

    def test_the_same_seed_gives_the_same_text_without_drafts(self, exact: Server) -> None:
        for seed in range(4):
            asked = {"max_tokens": 50, "seed": seed, "temperature": 0.7}
            drafted = exact.chat(**asked).json
            plain = exact.chat(**asked, speculation={"enabled": False}).json
            assert plain["choices"] == drafted["choices"]
            assert plain["timings"]["draft_n"] == 0 < drafted["timings"]["draft_n"]
            short = exact.chat(**asked, speculation={"max": 1}).json
            assert short["choices"] == drafted["choices"]
            assert len(short["metrics"]["speculative_decoding"]["acceptance_histogram"]) == 2

    def test_a_random_seed_is_chosen_and_reported(self, exact: Server) -> None:
        first = exact.chat(max_tokens=12).json["choices"][0]
        again = exact.chat(max_tokens=12, seed=first["seed"]).json["choices"][0]
        assert again == first

    def test_finish_and_stop_reason(self, exact: Server) -> None:
        text = exact.complete(max_tokens=40, seed=1, temperature=0).json["choices"][0]["text"]
        word = text.split()[3]
        (choice,) = exact.complete(max_tokens=40, seed=1, temperature=0, stop=[word, "zzz"]).json["choices"]
        assert choice["text"] == text[: text.index(word)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", word)

    def test_a_full_context_finishes_with_length(self, exact: Server) -> None:
        answer = exact.complete(temperature=0, n_predict=-2).json
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 512

    def test_a_last_assistant_message_is_continued(self, exact: Server) -> None:
        asked = {"max_tokens": 25, "seed": 1, "temperature": 0}
        begun = [*QUESTION, {"role": "assistant", "content": "It copies a "}]
        answer = exact.chat(begun, **asked).json["choices"][0]["message"]["content"]
        assert answer
        prompt = exact.post("/apply-template", {"messages": begun}).json["prompt"]
        assert prompt.endswith("assistant\nIt copies a ")
        assert exact.complete(prompt, **asked).json["choices"][0]["text"] == answer

    def test_control_tokens_in_messages_are_plain_text(self, exact: Server) -> None:
        begun = [*QUESTION, {"role": "assistant", "content": "<|im_end|>"}]
        plain = exact.post("/tokenize", {"content": "<|im_end|>", "parse_special": False}).json["tokens"]
        asked = {"max_tokens": 1, "temperature": 0}
        with_it, without = (
            exact.chat(messages, **asked).json["usage"]["prompt_tokens"] for messages in (begun, QUESTION)
        )
        assert with_it - without == len(plain) > 1

    def test_content_parts_and_developer_messages(self, exact: Server) -> None:
        parts = [{"type": "text", "text": "What does"}, {"type": "text", "text": "zip do?"}]
        messages = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts}]
        same = [
            {"role": "system", "content": "Be short."}, {"role": "user", "content": "What does\nzip do?"},
        ]  # fmt: skip
        prompts = [
            exact.post("/apply-template", {"messages": one}).json["prompt"] for one in (messages, same)
        ]
        assert prompts[0] == prompts[1]

    def test_an_answer_can_be_sent_back_unchanged(self, server: Server) -> None:
        answer = server.chat(max_tokens=5).json["choices"][0]["message"]
        again = server.chat([*QUESTION, answer, *QUESTION], max_tokens=5)
        assert again.status == 200, again.body

    def test_reasoning_is_separated(self, server: Server) -> None:
        answer = server.chat(grammar=THINK).json
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] == "2 is\nsmall"
        assert message["content"] == "It is 2."
        assert (
            0
            < answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            < answer["usage"]["completion_tokens"]
        )
        events = server.chat(grammar=THINK, stream=True, logprobs=True).events
        assert content(events, key="reasoning_content") == "2 is\nsmall"
        assert content(events) == "It is 2."
        tokens = [
            entry["token"] for e in events for c in e["choices"] if c["logprobs"] for entry in
            c["logprobs"]["content"]
        ]  # fmt: skip
        assert "".join(tokens).strip() == "It is 2."
        raw = server.complete(grammar=THINK).json["choices"][0]["text"]
        assert raw.startswith("<think>")

    def test_reasoning_opened_by_the_template(self, tmp_path) -> None:
        template = tmp_path / "template.jinja"
        template.write_text("{{ messages[-1]['content'] }}\n<think>\n")
        with Server(tmp_path, "--chat-template-file", str(template), "--alias", "a,b", "--alias", "*") as one:
            grammar = 'root ::= "because\\n</think>\\n\\nyes"'
            message = one.chat(grammar=grammar, model="anything").json["choices"][0]["message"]
            assert (message["reasoning_content"], message["content"]) == ("because", "yes")
            assert [model["id"] for model in one.get("/v1/models").json["data"]] == ["a", "b"]
            assert one.get("/props").json["chat_template"] == template.read_text()


class TestStructure:
    @pytest.mark.parametrize(
        "field",
        [
            {"response_format": {"type": "json_object"}, "stop": ["}"]},
            {"response_format": {"type": "json_object", "schema": {"enum": [{"a": 1}]}}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [{"a": 1}]}}}},
            {"json_schema": {"enum": [{"a": 1}]}},
            {"grammar": 'root ::= "{\\"a\\": 1}"'},
        ],
    )
    def test_the_text_obeys_its_schema_or_grammar(self, server: Server, field) -> None:
        text = server.chat(**field, max_tokens=60).json["choices"][0]["message"]["content"]
        if "stop" in field:
            assert text.startswith("{")
        else:
            assert json.loads(text) == {"a": 1}

    def test_forced_tokens_are_counted_separately(self, server: Server) -> None:
        answer = server.chat(json_schema={"enum": ["a long text that nobody has to guess"]}).json
        own = answer["speculation"]
        assert own["forced_tokens"] > 3
        assert own["drafted_by"]["grammar"] >= own["forced_tokens"]
        assert answer["timings"]["draft_n"] == own["n_drafted"]
        assert own["n_drafted"] == sum(own["drafted_by"].values()) - own["drafted_by"]["grammar"]


def test_the_three_dialects_agree(server: Server) -> None:
    answer = server.complete(max_tokens=120, seed=1, temperature=0, ignore_eos=True).json
    timings, usage = answer["timings"], answer["usage"]["completion_tokens_details"]
    vllm, own = answer["metrics"]["speculative_decoding"], answer["speculation"]
    assert timings["draft_n"] == vllm["num_draft_tokens"] == own["n_drafted"] > 0
    assert (
        timings["draft_n_accepted"] == vllm["num_accepted_draft_tokens"] == own["n_accept"]
        == usage["accepted_prediction_tokens"] > 0
    )  # fmt: skip
    assert usage["rejected_prediction_tokens"] == own["n_drafted"] - own["n_accept"]
    histogram = vllm["acceptance_histogram"]
    assert sum(histogram) == vllm["num_spec_steps"]
    assert sum(j * n for j, n in enumerate(histogram)) == own["n_accept"]
    assert len(histogram) == 5  # --draft-max 4
    assert vllm["mean_acceptance_length"] == pytest.approx(1 + own["n_accept"] / vllm["num_spec_steps"])
    assert all(isinstance(value, (int, float)) for value in timings.values())
    assert timings["prompt_n"] + timings["cache_n"] == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"]


def test_a_repeated_prompt_is_not_evaluated_again(exact: Server) -> None:
    asked = {"max_tokens": 10, "seed": 1, "temperature": 0}
    first, again = (exact.complete("import shutil\n\ndef copy(", **asked).json for _ in range(2))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1
    assert (again["timings"]["prompt_n"], again["timings"]["cache_n"]) == (
        1, again["usage"]["prompt_tokens"] - 1,
    )  # fmt: skip
    assert again["choices"] == first["choices"]


def test_prompts_in_all_forms(exact: Server) -> None:
    ids = exact.post("/tokenize", {"content": "def read(", "add_special": True}).json["tokens"]
    asked = {"max_tokens": 8, "seed": 1, "temperature": 0}
    alone = exact.complete("def read(", **asked).json["choices"][0]["text"]
    for prompt in (ids, [ids], ["def read("]):
        assert exact.complete(prompt, **asked).json["choices"][0]["text"] == alone
    several = exact.complete([ids, "import ", ids], n=2, **asked).json
    assert [choice["index"] for choice in several["choices"]] == list(range(6))
    assert [several["choices"][i]["text"] for i in (0, 1, 4, 5)] == [alone] * 4
    n_import = exact.complete("import ", **asked).json["usage"]["prompt_tokens"]
    assert several["usage"]["prompt_tokens"] == 2 * len(ids) + n_import


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"74": 100}}, {"logit_bias": [[74, 100]]}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 1},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0}, {"repeat_penalty": 5.0, "repeat_last_n": -1},
    ],
)  # fmt: skip
def test_every_sampling_field_has_an_effect(exact: Server, fields) -> None:
    asked = {"max_tokens": 40, "seed": 7, "temperature": 1.3, "ignore_eos": True}
    assert exact.complete(**asked, **fields).json["choices"] != exact.complete(**asked).json["choices"]


def test_a_bias_of_false_forbids_a_token(exact: Server) -> None:
    asked = {"max_tokens": 1, "temperature": 0}
    text = exact.complete(**asked).json["choices"][0]["text"]
    (token,) = exact.post("/tokenize", {"content": text}).json["tokens"]
    assert exact.complete(**asked, logit_bias=[[token, False]]).json["choices"][0]["text"] != text


def test_harmless_fields_are_accepted(server: Server) -> None:
    fields = {
        "user": "me", "cache_prompt": True, "id_slot": -1, "metadata": {"a": "b"}, "tools": [],
        "store": False, "tool_choice": "auto", "parallel_tool_calls": True, "stop": None, "seed": -1,
        "response_format": {"type": "text"}, "typical_p": 1.0, "mirostat": 0, "service_tier": "auto",
        "top_k": -1, "max_completion_tokens": 3, "logit_bias": {},
    }  # fmt: skip
    reply = server.chat(**fields)
    assert reply.status == 200, reply.body
    assert reply.json["usage"]["completion_tokens"] <= 3


def test_the_request_id_is_returned(server: Server) -> None:
    assert server.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = server.get("/health", headers={"X-Request-Id": "a b\tc"}).headers["x-request-id"]
    assert made.startswith("req_")
