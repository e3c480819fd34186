"""What LLM and its methods may be given, and what they say of anything else. No engine is started."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama import LLM, SamplingParams, SpecllamaError, wire
from specllama.api import prompts
from specllama.api.base import BaseLLM
from specllama.api.prompts import PromptSource
from specllama.config import build
from specllama.config.build import NAMED, OPTIONS
from specllama.config.defaults import DRAFTERS
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.load_options import LoadOptions
from specllama.config.options import as_argument
from specllama.config.sources import read_file
from specllama.core.sampling.params import PARAMETERS
from specllama.errors import NotFoundError, UsageError, option, with_option_names
from specllama.text.prompt_parts import template_variables


class Unloaded(BaseLLM):
    """An LLM before it is loaded."""

    def _start(self) -> None:
        pass

    @property
    def settings(self) -> LoadSettings:
        return self._engine.settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "main.gguf"
    path.touch()
    return path


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    path = tmp_path / "draft.gguf"
    path.touch()
    return path


class TestModels:
    def test_the_embedded_pair(self) -> None:
        settings = Unloaded().settings
        assert Path(settings.target.path).is_file()
        assert settings.draft is not None
        assert Path(settings.draft.path).is_file()
        assert settings == LoadSettings(
            target=ModelSettings(path=settings.target.path),
            draft=ModelSettings(path=settings.draft.path),
            n_slots=4,
        )

    def test_files_of_the_user(self, model: Path, draft: Path) -> None:
        for one, other in ((model, draft), (str(model), str(draft))):
            settings = Unloaded(model=one, speculative_model=other, num_speculative_tokens=5).settings
            assert (settings.target.path, settings.draft and settings.draft.path) == (str(model), str(draft))
            assert settings.draft_max == 5
        assert Unloaded(model).settings.draft is None
        assert Unloaded(model, None).settings.draft is None
        assert Unloaded(model, "none").settings.draft is None
        assert Unloaded(speculative_model=None).settings.draft is None

    def test_vllms_dict(self, model: Path, draft: Path) -> None:
        config: Any = {"model": str(draft), "num_speculative_tokens": 5}
        assert Unloaded(model, speculative_config=config).settings == Unloaded(model, draft, 5).settings
        assert Unloaded(model, speculative_config={"model": draft}).settings.draft_max is None
        assert (
            Unloaded(speculative_config={"num_speculative_tokens": 0}).settings
            == Unloaded(num_speculative_tokens=0).settings
        )
        with pytest.raises(UsageError, match="'method' is not known"):
            Unloaded(model, speculative_config={"method": "ngram"})  # type: ignore[typeddict-unknown-key]
        with pytest.raises(UsageError, match="both given"):
            Unloaded(model, draft, speculative_config=config)
        with pytest.raises(UsageError, match="both given"):
            Unloaded(model, num_speculative_tokens=3, speculative_config=config)
        with pytest.raises(UsageError, match="must be a dict"):
            Unloaded(model, speculative_config=5)  # type: ignore[arg-type]

    def test_home_directories(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(model.parent))
        assert Unloaded("~/main.gguf").settings.target.path == str(model)

    @pytest.mark.parametrize(
        ("name", "error", "needle"),
        [
            ("nothing.gguf", NotFoundError, "model: there is no file nothing.gguf"),
            ("9B", NotFoundError, "there is no file 9B"),
            ("", UsageError, "model must be the path"),
            ("a\0b", UsageError, "model must be the path"),
            ("x" * 5000, UsageError, "model must be the path"),
            (5, UsageError, "model must be the path of a GGUF file or a model's name, not 5"),
            (b"main.gguf", UsageError, "model must be the path"),
        ],
    )
    def test_invalid_values_are_refused(self, name: Any, error: type[SpecllamaError], needle: str) -> None:
        with pytest.raises(error, match=needle):
            Unloaded(name)
        if name != "9B":
            with pytest.raises(error, match="speculative_" + needle):
                Unloaded(speculative_model=name)


class TestOptions:
    def test_the_types_name_them_all(self) -> None:
        """A field that settings gain is an option, or an argument, or this fails."""
        model = {f.name for f in fields(ModelSettings)} - {"path", "n_ctx", "n_gpu_layers"}
        arguments = {"target", "draft", "n_slots", "drafters", "draft_max", "exact", "chat_template"}
        arguments.add("mmproj_found")  # of models/prepare.py
        load = {f.name for f in fields(LoadSettings)} - arguments
        known = set(LoadOptions.__annotations__)
        assert known == set(OPTIONS)
        assert {name for name in known if not name.endswith("_draft")} == model | load
        of_the_draft = {name.removesuffix("_draft") for name in known if name.endswith("_draft")}
        assert of_the_draft <= {f.name for f in fields(ModelSettings)}

    def test_what_may_be_none_may_be_given_as_none(self, model: Path) -> None:
        optional = [name for name, hint in LoadOptions.__annotations__.items() if "None" in str(hint)]
        optional.remove("mmproj")  # where None is no projector
        assert "swa_full" in optional
        given: Any = dict.fromkeys(optional)
        assert Unloaded(model, **given).settings == Unloaded(model).settings

    def test_options_reach_the_engine(self, model: Path, draft: Path) -> None:
        settings = Unloaded(
            model,
            draft,
            max_num_seqs=2,
            max_model_len=512,
            n_gpu_layers="all",
            drafters=["copy", "model"],
            chat_template="{{ messages }}",
            exact=True,
            n_batch=64,
            n_ubatch=32,
            n_threads=3,
            devices=["CUDA0"],
            tensor_split=[1, 2],
            tensor_parallel_size=2,
            override_tensor=[("a", "CPU")],
            lora=[(str(draft), 0.5)],
            use_mmap=False,
            flash_attn="on",
            cache_type_k="q8_0",
            rope_freq_base=10000,
            n_ctx_draft=128,
            n_threads_draft=1,
            n_gpu_layers_draft=7,
            cache_type_k_draft="q4_0",
            draft_p_min=0.5,
            calibrate=False,
        ).settings
        assert settings == LoadSettings(
            target=ModelSettings(
                path=str(model),
                n_ctx=512,
                n_gpu_layers=-2,
                n_batch=64,
                n_ubatch=32,
                n_threads=3,
                devices=("CUDA0",),
                tensor_split=(1.0, 2.0),
                tensor_parallel_size=2,
                override_tensor=(("a", "CPU"),),
                lora=((str(draft), 0.5),),
                use_mmap=False,
                flash_attn="on",
                cache_type_k="q8_0",
                rope_freq_base=10000,
            ),
            draft=ModelSettings(
                path=str(draft),
                n_ctx=128,
                n_gpu_layers=7,
                n_batch=64,
                n_ubatch=32,
                n_threads=1,
                n_threads_batch=1,
                use_mmap=False,
                flash_attn="on",
                cache_type_k="q4_0",
            ),
            n_slots=2,
            drafters=("copy", "model"),
            draft_p_min=0.5,
            exact=True,
            calibrate=False,
            chat_template="{{ messages }}",
        )
        assert wire.from_plain(LoadSettings, json.loads(wire.to_json(settings))) == settings

    def test_all_named_arguments_are_known_to_hints(self) -> None:
        parameters = inspect.signature(BaseLLM.__init__).parameters
        assert (*NAMED, "options") == tuple(parameters)[1:]

    def test_options_choose_the_drafters(self) -> None:
        assert Unloaded().settings.drafters == DRAFTERS
        assert Unloaded(drafters=()).settings.drafters == ()
        assert Unloaded(drafters=("copy",)).settings.draft is None

    @pytest.mark.parametrize(
        ("name", "text", "items"),
        [
            ("drafters", "model, copy", ["model", "copy"]),
            ("drafters", "none", []),
            ("drafters", "none", ["none"]),
            ("devices", "CUDA0,CUDA1", ["CUDA0", "CUDA1"]),
            ("tensor_split", "3,1", [3, 1]),
            ("rpc", "127.0.0.1:1,127.0.0.1:2", ["127.0.0.1:1", "127.0.0.1:2"]),
        ],
    )
    def test_lists_have_the_same_forms_in_python_and_in_files(
        self, tmp_path: Path, name: str, text: str, items: list[object]
    ) -> None:
        def of_file(value: object) -> LoadSettings:
            file = tmp_path / "config.toml"
            file.write_text(f"{name} = {json.dumps(value)}\n")
            return build.load_settings(read_file(file))

        def values(settings: LoadSettings) -> list[object]:
            return [getattr(s, name) for s in (settings, settings.target) if hasattr(s, name)]

        expected = values(Unloaded(**{name: items}).settings)
        assert len(expected) == 1
        assert values(Unloaded(**{name: text}).settings) == expected
        assert values(of_file(text)) == values(of_file(items)) == expected

    @pytest.mark.parametrize(
        ("options", "needle"),
        [
            ({"n_treads": 4}, "there is no option 'n_treads'\ndid you mean n_threads"),
            ({"modle": "x"}, "did you mean model?"),
            ({"ctx_size": 4096}, "it is called max_model_len here"),
            ({"temp": 0}, r"it is a sampling parameter: SamplingParams\(temperature=…\)"),
            ({"tensor_parallel_size": -1}, "tensor_parallel_size must be a whole number from 0, not -1"),
            ({"tensor_parallel_size": "2"}, "tensor_parallel_size must be a whole number"),
            ({"tensor_parallel_size": 2, "split_mode": "row"}, "tensor_parallel_size splits by layers"),
            ({"pipeline_parallel_size": 2}, "there is no option 'pipeline_parallel_size'"),
            ({"n_ctx": 4096}, "called max_model_len here"),
            ({"n_slots": 4}, "called max_num_seqs here"),
            ({"draft_max": 4}, "called num_speculative_tokens here"),
            ({"draft_model": "x"}, "called speculative_model here"),
            ({"path": "x"}, "there is no option 'path'"),
            ({"num_speculative_tokens": -1}, "num_speculative_tokens must be"),
            ({"num_speculative_tokens": 513}, "num_speculative_tokens must be"),
            ({"num_speculative_tokens": "5"}, "num_speculative_tokens must be"),
            ({"num_speculative_tokens": True}, "num_speculative_tokens must be"),
            ({"max_num_seqs": 0}, "max_num_seqs must be a whole number from 1 to 256, not 0"),
            ({"max_num_seqs": "4"}, "max_num_seqs must be"),
            ({"max_num_seqs": 257}, "max_num_seqs must be"),
            ({"max_model_len": 0}, "max_model_len must be a whole number from 1 to 2147483647, not 0"),
            ({"max_model_len": 4096.0}, "max_model_len must be"),
            ({"n_gpu_layers": -1}, "n_gpu_layers must be a number of layers from 0, auto or all, not -1"),
            ({"n_gpu_layers": "99"}, "n_gpu_layers must be"),
            ({"n_gpu_layers_draft": None}, "n_gpu_layers_draft must be"),
            ({"drafters": 5}, "drafters must be a list of names, not 5"),
            ({"drafters": ["copy", "magic"]}, "drafters: no drafter 'magic'"),
            ({"drafters": "copy,magic"}, "drafters: no drafter 'magic'"),
            ({"chat_template": 5}, "chat_template must be a text"),
            ({"exact": "yes"}, "exact must be true or false, not 'yes'"),
            ({"calibrate": 1}, "calibrate must be true or false"),
            ({"seed": 2**64}, f"seed must be a whole number from {-(2**63)} to {2**64 - 1}"),
            ({"cache_disk": 5}, "cache_disk must be a size with its unit, as 8G or 500M, auto, or 0"),
            ({"cache_ram": -2}, "cache_ram must be a size with its unit"),
            ({"n_threads": 1.5}, "n_threads must be a whole number"),
            ({"n_threads": 10**6}, "n_threads must be a whole number from 0 to 512"),
            ({"flash_attn": True}, "flash_attn must be a text"),
            ({"flash_attn": "off", "cache_type_v": "q8_0"}, "omit flash_attn='off'"),
            ({"flash_attn": "maybe"}, "flash_attn must be one of on, off, auto"),
            ({"cache_type_k": "f8"}, "cache_type_k must be one of"),
            ({"rope_freq_base": "10000"}, "rope_freq_base must be a number"),
            ({"devices": 0}, "devices must be a list of names"),
            ({"tensor_split": 1}, "tensor_split must be a list of numbers"),
            ({"override_tensor": ["a=CPU"]}, "override_tensor must be a list of pairs"),
            ({"lora": [("nothing.gguf", 1)]}, "lora: there is no file nothing.gguf"),
        ],
        ids=str,
    )
    def test_wrong_values_are_refused(self, options: dict[str, Any], needle: str) -> None:
        with pytest.raises(SpecllamaError, match=needle):
            Unloaded(**options)

    def test_a_wrong_name_gets_a_list_of_options(self) -> None:
        with pytest.raises(UsageError) as raised:
            Unloaded(gpu_memory_utilization=0.9)  # type: ignore[call-arg]
        assert raised.value.hint.startswith("there are: cache_disk, cache_ram, cache_type_k, ")

    def test_an_llm_that_was_not_made_leaves_no_process(self) -> None:
        with pytest.raises(UsageError):
            LLM(n_threads=-1)


@pytest.mark.parametrize(
    ("canonical", "spelling"),
    [
        (f"use {option('n_ctx', 512)} or more", "use max_model_len=512 or more"),
        (
            f"{option('cache_type_k', 'q8_0')} {option('cache_type_v', 'q8_0')} {option('n_ctx', 4701952)},",
            "cache_type_k='q8_0' cache_type_v='q8_0' max_model_len=4701952,",
        ),
        (f"cannot do without {option('flash_attn', 'on')}", "cannot do without flash_attn='on'"),
        (
            f"choose another draft, or {option('draft_model', 'none')}",
            "choose another draft, or speculative_model=None",
        ),
        (
            f"with {option('draft_model', 'none')} {option('n_ctx', 4096)}",
            "with speculative_model=None max_model_len=4096",
        ),
        (
            f"{option('n_gpu_layers', 3)} {option('n_gpu_layers_draft', 4)}",
            "n_gpu_layers=3 n_gpu_layers_draft=4",
        ),
        (f"or fewer {option('n_gpu_layers')} layers", "or fewer n_gpu_layers layers"),
        (
            f"use {option('raw')}, or give one with {option('chat_template')}",
            "use generate, or give one with chat_template",
        ),
        ("give some text", "give some text"),
        (f"{option('drafters')} names none that can be used", "drafters names none that can be used"),
        ("a file my-c 5 is-md none; --raw-x", "a file my-c 5 is-md none; --raw-x"),
    ],
    ids=str,
)
def test_options_in_messages_are_arguments(canonical: str, spelling: str) -> None:
    assert with_option_names(canonical, as_argument) == spelling
    error = UsageError("no: " + canonical, canonical).with_option_names(as_argument).prefixed("prompt 1: ")
    assert (type(error), error.message, error.hint) == (UsageError, "prompt 1: no: " + spelling, spelling)


class TestPrompts:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("text", [PromptSource(text="text")]),
            ("", [PromptSource(text="")]),
            ([], []),
            (["a", "b"], [PromptSource(text="a"), PromptSource(text="b")]),
            (("a",), [PromptSource(text="a")]),
            ([1, 2], [PromptSource(ids=(1, 2))]),
            ((1,), [PromptSource(ids=(1,))]),
            ([[1, 2], [3]], [PromptSource(ids=(1, 2)), PromptSource(ids=(3,))]),
            (np.array([1, 2]), [PromptSource(ids=(1, 2))]),
            (np.array([[1, 2], [3, 4]]), [PromptSource(ids=(1, 2)), PromptSource(ids=(3, 4))]),
            ({"prompt": "a"}, [PromptSource(text="a")]),
            ([{"prompt": "a"}, "b", {"prompt_token_ids": [1]}, [2]],
             [PromptSource(text="a"), PromptSource(text="b"), PromptSource(ids=(1,)),
               PromptSource(ids=(2,))]),
        ],
        ids=str,
    )  # fmt: skip
    def test_forms(self, given: Any, expected: list[PromptSource]) -> None:
        assert prompts.sources(given) == expected

    @pytest.mark.parametrize(
        ("given", "needle"),
        [
            (None, "prompts must be texts or lists of token ids, not NoneType"),
            (5, "not int"),
            (b"bytes", "not bytes"),
            ({"prompt": 5}, "as a dict"),
            ({"prompt": "a", "prompt_token_ids": [1]}, "as a dict"),
            ({"text": "a"}, "as a dict"),
            (["a", b"b"], "prompt 1: .* not b'b'"),
            (["a", None], "prompt 1: "),
            (["a", 5], "prompt 1: "),
            ([1, "a"], "token ids must be whole numbers"),
            ([1, 2.5], "token ids must be whole numbers"),
            ([True], "token ids must be whole numbers"),
            ([[1], []], "prompt 1: the list of token ids is empty"),
            ([{"prompt_token_ids": "abc"}], "prompt 0: "),
            ([{"role": "user", "content": "a"}], "these are messages"),
        ],
        ids=str,
    )
    def test_invalid_values_are_refused(self, given: Any, needle: str) -> None:
        with pytest.raises(UsageError, match=needle):
            prompts.sources(given)

    def test_messages(self) -> None:
        one = [{"role": "user", "content": "a"}]
        source = PromptSource(messages=one)
        assert prompts.conversations(one) == prompts.conversations([one]) == [source]
        assert prompts.conversations([one, tuple(one)]) == [source, source]
        assert prompts.prompt_or_messages(one) == source
        assert prompts.prompt_or_messages([1, 2]) == PromptSource(ids=(1, 2))
        assert prompts.prompt_or_messages({"prompt": "a"}) == PromptSource(text="a")
        empty = prompts.conversation([{"role": "developer"}, {"role": "user", "content": None}])
        assert empty.messages == [{"role": "system", "content": ""}, {"role": "user", "content": ""}]

    @pytest.mark.parametrize(
        ("given", "needle"),
        [
            ([], "there are no messages"),
            ([[]], "conversation 0: there are no messages"),
            ("hello", "messages must be a list of dicts, not str"),
            (["hello"], "conversation 0: messages must be a list of dicts, not str"),
            ({"role": "user", "content": "a"}, "not dict"),
            ([{"content": "a"}], r'messages\[0\] must be a dict with a "role"'),
            ([{"role": 5, "content": "a"}], r'messages\[0\] must be a dict with a "role"'),
            ([{"role": "user", "content": "a"}, "b"], r"messages\[1\] must be a dict"),
            ([{"role": "x", "content": "a"}], r"messages\[0\].role must be one of system, developer, user"),
            ([{"role": "user", "tool_calls": [{}]}], r"messages\[0\].tool_calls: only an assistant message"),
            ([{"role": "user", "content": 5}], r'messages\[0\]: "content" must be a text, not 5'),
            ([[{"role": "user", "content": "a"}], [5]], r"conversation 1: messages\[0\]"),
        ],
        ids=str,
    )
    def test_invalid_messages_are_refused(self, given: Any, needle: str) -> None:
        with pytest.raises(UsageError, match=needle):
            prompts.conversations(given)

    @pytest.mark.parametrize(
        "given", [5, "x", {5: 6}, {"messages": []}, {"self": 1}, {"enable_thinking": "false"}], ids=str
    )
    def test_invalid_template_variables_are_refused(self, given: Any) -> None:
        with pytest.raises(UsageError, match="chat_template_kwargs"):
            template_variables(given)


class TestParameters:
    def test_forms(self) -> None:
        whole = prompts.sampling(SamplingParams(max_tokens=5), 2)
        assert whole[0] == whole[1]
        assert SamplingParams(**whole[0]) == SamplingParams(max_tokens=5)
        assert prompts.sampling(None, 2) == [{}, {}]
        assert prompts.sampling({"seed": 1}, 2) == [{"seed": 1}] * 2
        assert prompts.sampling([None, {"seed": 1}], 2) == [{}, {"seed": 1}]

    @pytest.mark.parametrize(
        ("given", "needle"),
        [
            (5, "sampling_params must be SamplingParams or a dict, not int"),
            ("x", "not str"),
            ([{}], "sampling_params is a list of 1 for 2 prompts"),
            ([{}, 5], "not int"),
            ({"temprature": 1}, "unknown sampling parameter 'temprature'"),
            ({"temperature": -1}, "temperature must be"),
            ({"n": 0}, "n must be a whole number from 1 to 128"),
            ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must not exceed max_tokens: 9 is more than 8"),
            ({"min_tokens": -1}, "min_tokens must be"),
            ({"stop_token_ids": [-1]}, "stop_token_ids must be a list of token ids"),
            ({"stop_token_ids": ["a"]}, "stop_token_ids must be"),
            ({"stop_token_ids": 5}, "stop_token_ids must be"),
            ({"stop_token_ids": [True]}, "stop_token_ids must be"),
            ({"skip_special_tokens": 1}, "skip_special_tokens must be true or false"),
            ({"repetition_penalty": 0}, "repeat_penalty must be"),
            ({"seed": -(2**63) - 1}, "seed must be"),
            ({"top_k": -2}, "top_k must be"),
        ],
        ids=str,
    )
    def test_wrong_values_are_refused(self, given: Any, needle: str) -> None:
        with pytest.raises(UsageError, match=needle):
            prompts.sampling(given, 2)

    @pytest.mark.parametrize("n", [0, -1, 129, 10**9, 1.0, "2", True])
    def test_choices(self, n: Any) -> None:
        for given in ((n, {}), (None, {"n": n})):
            with pytest.raises(UsageError, match="n must be a whole number from 1 to 128"):
                prompts.n_completions(*given)
        with pytest.raises(UsageError, match="sampling_params ask for 2 texts, this call for 3"):
            prompts.n_completions(3, {"n": 2})
        assert prompts.n_completions(None, {"n": 2}) == prompts.n_completions(2, {}) == 2
        assert prompts.n_completions(None, {}) == 1

    def test_forms_of_vllm(self) -> None:
        """None stands for every default, -1 for a random seed and for top_k off."""
        assert SamplingParams(**dict.fromkeys(PARAMETERS)) == SamplingParams()
        given = SamplingParams(seed=-1, top_k=-1, repetition_penalty=1.5, stop_token_ids=[3, 4])
        assert given == SamplingParams(top_k=0, repeat_penalty=1.5, stop_token_ids=(3, 4))
        assert SamplingParams(seed=-5).seed == 2**53 - 5
        assert SamplingParams.merge({"repetition_penalty": 1.5}).repeat_penalty == 1.5
        assert dataclasses.replace(given, seed=3).repeat_penalty == 1.5

    @pytest.mark.parametrize(
        ("given", "ids", "needle"),
        [
            (None, None, "give either prompts or prompt_token_ids"),
            ("a", [1], "give either prompts or prompt_token_ids"),
            (None, "abc", "prompt_token_ids must be lists of token ids"),
            (None, ["abc"], "prompt_token_ids must be lists of token ids"),
            (None, [[1], 5], "prompt_token_ids must be lists of token ids"),
            (None, [[]], "prompt 0: the list of token ids is empty"),
            (None, [1, "a"], "token ids must be whole numbers"),
        ],
    )
    def test_prompts_or_ids(self, given: Any, ids: Any, needle: str) -> None:
        with pytest.raises(UsageError, match=needle):
            prompts.prompts_or_ids(given, ids)
        assert prompts.prompts_or_ids(None, []) == prompts.prompts_or_ids([], None) == []
        assert [s.ids for s in prompts.prompts_or_ids(None, [1, 2])] == [(1, 2)]
        assert [s.ids for s in prompts.prompts_or_ids(None, [[1], (2,)])] == [(1,), (2,)]
