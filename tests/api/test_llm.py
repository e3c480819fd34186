"""LLM with the embedded pair: what it returns, streams and refuses."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama import LLM, Delta, RequestOutput, SamplingParams
from specllama.core.sampling.params import nth_seed
from specllama.errors import ContextLengthError, EngineDiedError, EngineError, TemplateError, UsageError
from tests.support import tinygguf
from tests.support.command import Command

SOON = 30.0  # seconds; it takes some hundredths
FREE = 10.0  # seconds after which a slot is free; one, and more for a busy machine
OPTIONS: dict[str, Any] = {"n_threads": 1, "calibrate": False}
PROMPTS = [
    *("def read(", "import os\n\ndef ", "class Path:\n", "    return self.", "# The ", '    """Return the '),
    *("for name in ", "def read(self, n):\n"),
]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
WARM = SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True, seed=7)
QUESTION = [{"role": "user", "content": "What does shutil.copytree do?"}]
FOR_EVER = SamplingParams(max_tokens=-2, seed=1)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache directory of their own for all engine processes of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECLLAMA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(**OPTIONS) as one:
        yield one


@pytest.fixture(scope="module")
def single() -> Iterator[LLM]:
    """One slot: the same request is computed the same way each time, whatever came before."""
    with LLM(max_num_seqs=1, **OPTIONS) as one:
        yield one


@pytest.fixture(scope="module")
def roomy() -> Iterator[LLM]:
    """One slot, in which a text goes on for a minute."""
    with LLM(max_num_seqs=1, max_model_len=32768, **OPTIONS) as one:
        yield one


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Target and draft with random weights in single precision."""
    directory = tmp_path_factory.mktemp("tiny")
    target = tinygguf.llama(directory / "target.gguf")
    return target, tinygguf.llama(directory / "draft.gguf", noise=0.1)


@pytest.fixture(scope="module")
def tiny(models: tuple[Path, Path]) -> Iterator[LLM]:
    """Rows that hardly depend on what else is computed with them, and drafts whatever they cost."""
    exact: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
    exact |= {"cache_type_k_draft": "f32", "cache_type_v_draft": "f32"}
    with LLM(*models, 4, **exact, **OPTIONS) as one:
        yield one


def text(output: RequestOutput) -> str:
    return output.outputs[0].text


def ids(output: RequestOutput) -> tuple[int, ...]:
    return output.outputs[0].token_ids


class TestGenerate:
    def test_what_a_tutorial_does(self, llm: LLM) -> None:
        params = SamplingParams(temperature=0.7, top_p=0.95, max_tokens=100)
        outputs = llm.generate(["def fibonacci(n):", "import "], params)
        assert [output.prompt for output in outputs] == ["def fibonacci(n):", "import "]
        for output in outputs:
            assert output.finished
            (one,) = output.outputs
            assert one.text
            assert one.index == 0
            assert one.finish_reason in ("stop", "length")
            assert 0 < len(one.token_ids) <= 100
        assert outputs[0].request_id != outputs[1].request_id

    def test_the_text_of_the_command(self, single: LLM, command: Command) -> None:
        args = ("--seed", "5", "-n", "40", "--ignore-eos", "--json", "-p")
        raw = command.generate("--raw", *args, "def fib(n):").json
        chat = command.generate(*args, "zip").json
        params = SamplingParams(seed=5, max_tokens=40, ignore_eos=True)
        here, answer = (
            single.generate("def fib(n):", params)[0],
            single.chat([{"role": "user", "content": "zip"}], params)[0],
        )
        assert (text(here), list(ids(here))) == (raw["text"], raw["tokens"])
        assert (text(answer), list(ids(answer))) == (chat["text"], chat["tokens"])

    @pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
    def test_together_as_one_by_one(self, tiny: LLM, params: SamplingParams) -> None:
        """Eight prompts share four slots; each text is what it is alone, without drafts too."""
        together = tiny.generate(PROMPTS, params)
        assert [output.prompt for output in together] == PROMPTS
        assert sum(output.stats.n_accept for output in together) > 8
        assert [text(o) for o in together] == [text(tiny.generate(p, params)[0]) for p in PROMPTS]
        assert [ids(o) for o in together] == [ids(o) for o in tiny.generate(PROMPTS, params, speculate=False)]

    @pytest.mark.parametrize("temperature", [0, 0.8])
    def test_min_tokens_and_stop_ids(self, tiny: LLM, temperature: float) -> None:
        """Nothing ends a text before, and drafts change no token of it, whatever they propose there."""
        free = SamplingParams(temperature=temperature, max_tokens=60, seed=3, ignore_eos=True)
        seen = Counter(i for output in tiny.generate(PROMPTS, free) for i in ids(output))
        frequent = [i for i, _ in seen.most_common(4)]
        params = dataclasses.replace(
            free, ignore_eos=False, stop_token_ids=frequent, min_tokens=30, skip_special_tokens=False
        )
        drafted = tiny.generate(PROMPTS, params)
        assert [ids(o) for o in drafted] == [ids(o) for o in tiny.generate(PROMPTS, params, speculate=False)]
        assert sum(output.stats.n_accept for output in drafted) > 8
        for one in (output.outputs[0] for output in drafted):
            assert not set(frequent) & set(one.token_ids[:30])
            assert len(one.token_ids) > 30
            assert one.stop_reason == (one.token_ids[-1] if one.token_ids[-1] in frequent else None)
        assert {one.outputs[0].finish_reason for one in drafted} >= {"stop"}

    def test_forms_of_vllm(self, llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
        tokenizer = llm.get_tokenizer()
        prompt = tokenizer.encode("<|im_start|>é", add_special_tokens=False)
        assert tokenizer.decode(prompt) == "<|im_start|>é"
        assert tokenizer.decode(prompt, skip_special_tokens=True) == "é"
        assert (tokenizer.decode([]), tokenizer.encode("", False)) == ("", [])
        assert tokenizer.encode("a")[0] == tokenizer.bos_token_id == 0
        assert tokenizer.eos_token_id in tokenizer.end_ids
        assert len(tokenizer) == tokenizer.vocab_size == 4096
        forms = {"tokenize": False, "add_generation_prompt": True}
        rendered = tokenizer.apply_chat_template(QUESTION, **forms)
        assert isinstance(rendered, str)
        assert "What does shutil" in rendered
        ids_ = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
        assert ids_ == tokenizer.encode(rendered, False)
        with pytest.raises(UsageError, match="add_generation_prompt=True"):
            tokenizer.apply_chat_template(QUESTION)
        with pytest.raises(UsageError, match="token ids must be from 0 to 4095"):
            tokenizer.decode([4096])
        bars: list[int] = []

        class Bar:
            def __init__(self, total: int, **_: str) -> None:
                bars.append(total)

            def update(self, n: int) -> None:
                bars.append(n)

            def close(self) -> None:
                bars.append(0)

        shown = {prompt[0]: 1000.0}
        params = SamplingParams(n=2, max_tokens=2, seed=-1, stop_token_ids=[9999], logit_bias=shown)
        (output,) = llm.generate(prompt_token_ids=prompt, sampling_params=params, use_tqdm=Bar)
        assert bars == [1, 1, 0]
        assert [one.text for one in output.outputs] == ["", ""]
        assert caplog.text.count("stop_token_ids: this model has ids from 0 to 4095: 9999 cannot") == 1
        params = dataclasses.replace(params, n=1, skip_special_tokens=False)
        (output,) = llm.chat(QUESTION, params, use_tqdm=False)
        assert [one.text for one in output.outputs] == ["<|im_start|>" * 2]
        with pytest.raises(UsageError, match="ask for 2 texts, this call for 1"):
            llm.stream("a", {"n": 2})

    def test_together_with_weights_of_four_bits(self, llm: LLM) -> None:
        """Their rows change with what else is in the cache, so that a text may go another way where two
        tokens are as likely; nowhere else.
        """
        params = dataclasses.replace(GREEDY, logprobs=5)
        for here, prompt in zip(llm.generate(PROMPTS, params), PROMPTS, strict=True):
            one, other = here.outputs[0], llm.generate(prompt, params)[0].outputs[0]
            pairs = zip(one.token_ids, other.token_ids, strict=True)
            at = next((j for j, (a, b) in enumerate(pairs) if a != b), None)
            if at is not None:
                assert one.logprobs is not None
                there = one.logprobs[at]
                assert there[one.token_ids[at]].logprob - there[other.token_ids[at]].logprob < 0.25

    def test_parameters_of_each_prompt(self, llm: LLM) -> None:
        outputs = llm.generate(PROMPTS[:3], [{"max_tokens": n, "ignore_eos": True} for n in (3, 5, 7)])
        assert [len(ids(output)) for output in outputs] == [3, 5, 7]
        assert {output.outputs[0].finish_reason for output in outputs} == {"length"}

    def test_prompts_in_all_forms(self, llm: LLM) -> None:
        numbers = list(range(300, 310))
        by_ids, in_a_dict = llm.generate([numbers, {"prompt_token_ids": tuple(numbers)}], GREEDY)
        assert ids(by_ids) == ids(in_a_dict) == ids(llm.generate(numbers, GREEDY)[0])
        assert by_ids.prompt is None
        assert by_ids.prompt_token_ids == tuple(numbers)
        assert by_ids.stats.n_prompt == 10
        bare, in_a_dict = llm.generate(["import ", {"prompt": "import "}], GREEDY)
        assert text(bare) == text(in_a_dict)
        assert in_a_dict.prompt == "import "
        assert llm.generate([]) == []

    def test_choices_are_those_of_their_seeds(self, single: LLM) -> None:
        params = SamplingParams(temperature=1.5, top_p=1, max_tokens=12, seed=3)
        first, second = single.generate(["def ", "import "], params, n=3)
        assert [one.index for one in first.outputs] == [0, 1, 2]
        assert [one.stats.seed for one in first.outputs] == [nth_seed(3, i) for i in range(3)]
        assert len({one.text for one in first.outputs}) == 3
        for one in second.outputs:
            alone = single.generate("import ", dataclasses.replace(params, seed=one.stats.seed))[0]
            assert text(alone) == one.text

    def test_a_random_seed_is_reported(self, single: LLM) -> None:
        one, other = single.generate(["def "] * 2, SamplingParams(temperature=1.5, top_p=1, max_tokens=12))
        assert one.stats.seed != other.stats.seed
        again = single.generate(
            "def ", SamplingParams(temperature=1.5, top_p=1, max_tokens=12, seed=one.stats.seed)
        )
        assert text(again[0]) == text(one)

    def test_figures(self, tiny: LLM) -> None:
        output = tiny.generate("def total(", SamplingParams(temperature=0, max_tokens=40))[0]
        stats = output.stats
        assert stats.n_predict == len(ids(output)) == 40
        assert stats.n_prompt == 10
        assert 0 < stats.n_accept < stats.n_drafted
        assert stats.acceptance_rate == stats.n_accept / stats.n_drafted
        assert stats.decode_tps is not None
        unknown = stats.plain_tps is None  # a process that was disturbed while it loaded knows no plain rate
        assert (stats.plain_source == "none", stats.speedup is None) == (unknown, unknown)
        as_json = json.loads(json.dumps(stats.to_dict()))
        assert as_json["n_accept"] == stats.n_accept
        assert as_json["decode_tps"] == stats.decode_tps
        assert as_json["speedup"] == stats.speedup
        plain = tiny.generate("def total(", SamplingParams(temperature=0, max_tokens=40), speculate=False)[0]
        assert plain.stats.n_drafted == 0
        assert text(plain) == text(output)

    def test_what_is_measured_after_an_answer(self, models: tuple[Path, Path]) -> None:
        """In the background; answers that come later know the plain rate and with it the speed-up."""
        params = SamplingParams(temperature=0, max_tokens=30)
        deadline = time.monotonic() + 6 * SOON
        with LLM(*models, 4, n_threads=1) as measured:  # and calibrate=True
            assert measured.generate("def total(", params)[0].stats.plain_source == "none"
            while (stats := measured.generate("def total(", params)[0].stats).plain_source == "none":
                assert time.monotonic() < deadline
                time.sleep(2.5)  # nobody calls: then it is measured
        assert stats.plain_source == "stored"
        assert stats.speedup == pytest.approx(stats.decode_tps / stats.plain_tps)

    def test_many_more_prompts_than_slots(self, llm: LLM) -> None:
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        outputs = llm.generate([f"def f{i}(" for i in range(150)], params)
        assert len({output.request_id for output in outputs}) == 150
        assert {len(ids(output)) for output in outputs} == {2}


class TestParameters:
    def test_json_schema(self, llm: LLM) -> None:
        schema = {
            "type": "object",
            "properties": {"name": {"enum": ["zip", "open"]}, "size": {"type": "boolean"}},
            "required": ["name", "size"],
            "additionalProperties": False,
        }
        output = llm.chat(QUESTION, SamplingParams(json_schema=schema, max_tokens=60, seed=1))[0]
        assert output.outputs[0].finish_reason == "stop"
        parsed = json.loads(text(output))
        assert parsed["name"] in ("zip", "open")
        assert isinstance(parsed["size"], bool)

    def test_grammar(self, llm: LLM) -> None:
        params = SamplingParams(grammar='root ::= ("yes" | "no") " indeed"', max_tokens=20, seed=1)
        assert text(llm.generate("is it?", params)[0]) in ("yes indeed", "no indeed")

    def test_logprobs(self, llm: LLM) -> None:
        output = llm.generate("def read(", SamplingParams(temperature=0, max_tokens=5, logprobs=3))[0]
        (one,) = output.outputs
        assert one.logprobs is not None
        assert len(one.logprobs) == len(one.token_ids) == 5
        for token, entry in zip(one.token_ids, one.logprobs, strict=True):
            assert len(entry) == 3  # the likeliest token is the emitted one
            assert next(iter(entry)) == token
            assert [candidate.rank for candidate in entry.values()] == [1, 2, 3]
            assert entry[token].logprob == max(candidate.logprob for candidate in entry.values()) <= 0
        assert (
            "".join(entry[t].decoded_token for t, entry in zip(one.token_ids, one.logprobs, strict=True))
            == one.text
        )
        total = sum(entry[t].logprob for t, entry in zip(one.token_ids, one.logprobs, strict=True))
        assert one.cumulative_logprob == pytest.approx(total)
        (bare,) = llm.generate("def read(", SamplingParams(max_tokens=2))[0].outputs
        assert (bare.logprobs, bare.cumulative_logprob) == (None, None)
        (alone,) = llm.generate("def read(", SamplingParams(temperature=0, max_tokens=2, logprobs=0))[
            0
        ].outputs
        assert alone.logprobs is not None
        assert [list(entry) for entry in alone.logprobs] == [[t] for t in alone.token_ids]
        assert all(entry[t].rank is None for t, entry in zip(alone.token_ids, alone.logprobs, strict=True))

    def test_stop_strings(self, llm: LLM) -> None:
        output = llm.generate("def read(", SamplingParams(temperature=0, max_tokens=50, stop=(")",)))[0]
        (one,) = output.outputs
        assert (one.finish_reason, one.stop_reason) == ("stop", ")")
        assert ")" not in one.text

    def test_what_might_have_become_a_stop_string(self, single: LLM) -> None:
        whole = single.generate("def read(", WARM)[0].outputs[0]
        params = dataclasses.replace(WARM, stop=(whole.text[-3:] + " never",))
        held_back = single.generate("def read(", params)[0].outputs[0]
        assert (held_back.text, held_back.stop_reason) == (whole.text, None)
        parts = list(single.stream("def read(", params))
        assert "".join(part.text for part in parts) == whole.text
        assert len(parts[-1].text) >= 3

    def test_a_full_context(self) -> None:
        with LLM(max_model_len=256, **OPTIONS) as small:
            assert small.info["n_ctx"] == 256
            output = small.generate("def ", FOR_EVER)[0]
            assert output.outputs[0].finish_reason == "context"
            assert output.stats.n_prompt + output.stats.n_predict == 256

    def test_requests_without_a_seed_use_that_of_the_llm(self) -> None:
        params = {"temperature": 1.5, "top_p": 1, "max_tokens": 12}
        with LLM(seed=11, **OPTIONS) as seeded:
            one, other = seeded.generate(["def ", "def "], [params, {**params, "seed": 12}])
        assert (one.stats.seed, other.stats.seed) == (11, 12)
        assert text(one) != text(other)

    def test_no_drafts(self) -> None:
        with LLM(num_speculative_tokens=0, **OPTIONS) as plain:
            assert plain.info["speculation"] == "off"
            assert plain.generate("def " * 20, GREEDY)[0].stats.n_drafted == 0


class TestChat:
    def test_one_conversation_or_several(self, llm: LLM) -> None:
        other = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "zip"}]
        one, two = llm.chat([QUESTION, other], GREEDY)
        assert text(llm.chat(QUESTION, GREEDY)[0]) == text(one)
        assert text(llm.chat(other, GREEDY)[0]) == text(two)
        assert text(one) != text(llm.generate(QUESTION[0]["content"], GREEDY)[0])
        assert one.prompt is None

    def test_a_template_and_what_it_is_given(self) -> None:
        template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tail }}"
        with LLM(chat_template=template, **OPTIONS) as llm:
            wanted = text(llm.generate("def read(self", GREEDY)[0])
            messages = [{"role": "user", "content": "def read("}]
            assert text(llm.chat(messages, GREEDY, chat_template_kwargs={"tail": "self"})[0]) == wanted
            parts = list(llm.stream(messages, GREEDY, chat_template_kwargs={"tail": "self"}))
            assert "".join(part.text for part in parts) == wanted

    def test_a_template_that_refuses(self) -> None:
        template = "{{ raise_exception('no ' + messages[0].content) if messages[0].content == 'tea' }}x"
        with LLM(chat_template=template, **OPTIONS) as llm:
            coffee, tea = ([{"role": "user", "content": drink}] for drink in ("coffee", "tea"))
            with pytest.raises((TemplateError, UsageError), match=r"prompt 1: .*no tea"):
                llm.chat([coffee, tea], GREEDY)


class TestStream:
    @pytest.mark.parametrize(
        "prompt", ["def read(", QUESTION, {"prompt": "import "}, [300, 301, 302]], ids=str
    )
    def test_the_pieces_are_the_text(self, single: LLM, prompt: Any) -> None:
        longer = SamplingParams(temperature=0.8, max_tokens=96, ignore_eos=True, seed=7)
        parts = list(single.stream(prompt, longer))
        whole = (single.chat if prompt is QUESTION else single.generate)(prompt, longer)[0]
        assert "".join(part.text for part in parts) == text(whole) == text(parts[-1].output)
        assert tuple(itertools.chain.from_iterable(part.token_ids for part in parts)) == ids(whole)
        assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
        assert len(parts) > 5

    def test_outputs_grow(self, llm: LLM) -> None:
        before = ""
        for part in llm.stream("def read(", WARM):
            assert text(part.output) == before + part.text
            before = text(part.output)
            assert part.output.stats.n_predict == len(ids(part.output))
            assert part.output.stats.seed == 7
            assert part.output.outputs[0].finish_reason == ("length" if part.finished else None)

    def test_pieces_say_who_wrote_them(self, tiny: LLM) -> None:
        parts = list(tiny.stream("def read(", SamplingParams(temperature=0, max_tokens=40)))
        runs = [run for part in parts for run in part.runs]
        assert sum(n for n, _ in runs) == len(text(parts[-1].output))
        assert {source for _, source in runs} <= {"target", "model", "copy", "memory"}
        assert {source for _, source in runs} & {"model", "copy", "memory"}

    def test_logprobs_arrive_with_their_tokens(self, llm: LLM) -> None:
        for part in llm.stream("def read(", SamplingParams(max_tokens=6, logprobs=1, seed=1)):
            (one,) = part.output.outputs
            assert one.logprobs is not None
            assert len(one.logprobs) == len(one.token_ids)

    def test_nothing_happens_before_the_first_piece(self, llm: LLM) -> None:
        with pytest.raises(UsageError):
            llm.stream(5)  # type: ignore[arg-type]
        llm.stream("def ", FOR_EVER)
        assert len(llm.generate("def ", GREEDY)) == 1


class TestLeaving:
    """One slot: a generation that goes on would keep the next one waiting."""

    def soon_free(self, roomy: LLM) -> None:
        started = time.monotonic()
        output = roomy.generate("import ", SamplingParams(max_tokens=2, ignore_eos=True))[0]
        assert len(ids(output)) == 2
        assert time.monotonic() - started < FREE

    def begun(self, roomy: LLM) -> Iterator[Delta]:
        stream = roomy.stream("def ", FOR_EVER)
        next(stream)
        return stream

    def test_break(self, roomy: LLM) -> None:
        for part in roomy.stream("def ", FOR_EVER):
            if len(ids(part.output)) > 3:
                break
        self.soon_free(roomy)

    def test_close(self, roomy: LLM) -> None:
        stream = roomy.stream("def ", FOR_EVER)
        next(stream)
        stream.close()
        self.soon_free(roomy)

    def test_an_exception_in_the_loop(self, roomy: LLM) -> None:
        def fail() -> None:
            for _ in roomy.stream("def ", FOR_EVER):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        self.soon_free(roomy)

    def test_forgetting_it(self, roomy: LLM) -> None:
        self.begun(roomy)
        self.soon_free(roomy)

    def test_forgetting_it_in_a_circle(self, roomy: LLM) -> None:
        circle: list[Any] = [self.begun(roomy)]
        circle.append(circle)
        del circle
        gc.collect()
        self.soon_free(roomy)

    def test_a_bad_prompt_ends_the_others(self, roomy: LLM) -> None:
        started = time.monotonic()
        with pytest.raises(ContextLengthError, match="prompt 2: the prompt has 40000 tokens"):
            roomy.generate(["def ", "import ", [300] * 40000, "class "], FOR_EVER)
        assert time.monotonic() - started < FREE
        self.soon_free(roomy)


class TestThreads:
    def test_several_at_once(self, tiny: LLM) -> None:
        wanted = {
            prompt: text(output) for prompt, output in zip(PROMPTS, tiny.generate(PROMPTS, WARM), strict=True)
        }
        texts: dict[str, str] = {}

        def one(prompt: str) -> None:
            if len(prompt) % 2:
                texts[prompt] = text(tiny.generate(prompt, WARM)[0])
            else:
                texts[prompt] = "".join(part.text for part in tiny.stream(prompt, WARM))

        threads = [threading.Thread(target=one, args=(prompt,)) for prompt in PROMPTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert texts == wanted

    def test_close_wakes_waiting_threads(self) -> None:
        llm, errors = LLM(**OPTIONS), []

        def wait() -> None:
            try:
                llm.generate(PROMPTS, FOR_EVER)
            except EngineDiedError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        llm.close()
        thread.join(SOON)
        assert errors == ["the engine process was closed"]


class TestClosed:
    def test_use_after_close(self) -> None:
        llm = LLM(**OPTIONS)
        stream = llm.stream("def ", FOR_EVER)
        next(stream)
        llm.close()
        llm.close()
        for use in (
            lambda: llm.generate("def "),
            lambda: llm.chat(QUESTION),
            lambda: list(llm.stream("def ")),
            lambda: llm.__enter__().generate("def "),
        ):
            with pytest.raises(EngineError, match="this LLM is closed"):
                use()
        with pytest.raises(EngineDiedError, match="was closed"):
            list(stream)


def test_a_prediction_changes_no_text(single: LLM) -> None:
    plain = single.generate(PROMPTS[:2], GREEDY, speculate=False)
    text = plain[0].outputs[0].text
    outputs = single.generate(PROMPTS[:2], GREEDY, prediction=[text, None])
    assert [output.outputs[0].text for output in outputs] == [output.outputs[0].text for output in plain]
    assert outputs[0].stats.n_prediction > 10
    assert outputs[1].stats.n_prediction == 0
    answer = single.chat(QUESTION, GREEDY, speculate=False)[0].outputs[0].text
    assert single.chat(QUESTION, GREEDY, prediction=answer)[0].outputs[0].text == answer
    assert "".join(part.text for part in single.stream(QUESTION, GREEDY, prediction="no")) == answer


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (5, "prediction must be a text, or one for each prompt, not 5"),
        ([1], "prediction must be a text, or one for each prompt, not [1]"),
        (b"x", "prediction must be a text, or one for each prompt, not b'x'"),
        (["a", "b"], "prediction is a list of 2 for 1 prompt"),
    ],
)
def test_what_is_no_prediction_is_refused(single: LLM, prediction: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        single.generate("x", GREEDY, prediction=prediction)
    with pytest.raises(UsageError, match="the prediction has at least "):
        single.generate("x", GREEDY, prediction="zip " * 100_000)
