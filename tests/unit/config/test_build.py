"""Settings built from option values, and the errors for invalid values in the spelling of each front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specllama.config import build
from specllama.config.defaults import DRAFTERS
from specllama.config.forms import named_template
from specllama.config.load import ALL_LAYERS, AUTO, LoadSettings, ModelSettings
from specllama.config.options import as_argument, as_flag
from specllama.config.sources import Values
from specllama.config.text_file import read_text
from specllama.core.sampling.params import DEFAULT_SAMPLERS, DEFAULT_STEPS, SamplingParams
from specllama.errors import NotFoundError, SpecllamaError, UsageError
from specllama.text.chat_template import ChatTemplate


def built(values: dict[str, Any]) -> tuple[LoadSettings, dict[str, Any]]:
    return build.load_settings(values), build.sampling(values)


def test_without_values_the_default_pair_is_loaded() -> None:
    pair = LoadSettings(target=ModelSettings(path=""), draft=ModelSettings(path="auto"), mmproj="none")
    assert build.load_settings({}) == pair  # commands that measure read no images
    assert build.sampling({}) == {}


def test_values_become_settings() -> None:
    settings = build.load_settings(
        {
            "model": "8B",
            "hf_repo_draft": "user/repo:Q8_0",
            "n_ctx": 512,
            "n_threads_draft": 2,
            "n_gpu_layers": "all",
            "n_gpu_layers_draft": "7",
            "devices": "CUDA0, CUDA1",
            "tensor_split": "3,1",
            "override_tensor": ["ffn=CPU,exps=CUDA1"],
            "cpu_moe": True,
            "no_mmap": True,
            "mlock": True,
            "rope_scale": 2.0,
            "draft_max": "4",
            "draft_min": 1,
            "drafters": "copy,model",
            "no_calibrate": True,
            "no_memory": True,
            "exact": True,
            "rpc": "worker",
        },
        n_slots=3,
    )
    assert settings.target == ModelSettings(
        path="8B",
        n_ctx=512,
        n_gpu_layers=ALL_LAYERS,
        devices=("CUDA0", "CUDA1"),
        tensor_split=(3.0, 1.0),
        override_tensor=(("ffn", "CPU"), ("exps", "CUDA1")),
        n_cpu_moe=-1,
        use_mmap=False,
        use_mlock=True,
        rope_scale=2.0,
    )
    assert settings.draft == ModelSettings(
        path="hf:user/repo:Q8_0",
        n_gpu_layers=7,
        n_threads=2,
        n_threads_batch=2,
        use_mmap=False,
        use_mlock=True,
    )
    rest = (settings.n_slots, settings.draft_max, settings.draft_min, settings.drafters, settings.rpc)
    assert rest == (3, 4, 1, ("copy", "model"), ("worker:50052",))
    assert (settings.calibrate, settings.memory, settings.exact) == (False, False, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", AUTO),
        ("0", 0),
        ("8G", 8_000_000_000),
        ("8GB", 8_000_000_000),
        ("1.5 gb", 1_500_000_000),
        ("500M", 500_000_000),
        ("2GiB", 2 << 30),
        ("100k", 100_000),
        ("3T", 3_000_000_000_000),
        ("999999999999999T", 2**60),
    ],
)
def test_sizes_on_disk(text: str, expected: int) -> None:
    assert build.load_settings({"cache_disk": text}, kept_seconds=2.0).cache_disk == expected


@pytest.mark.parametrize("text", ["8", "", "-1G", "8X", "1e3G", "G", "8iB", "inf", "8 G G", "0x8G", "๘G"])
def test_sizes_without_a_unit_and_others_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        build.load_settings({"cache_disk": text}, kept_seconds=2.0)
    assert raised.value.option == "cache_disk"


def test_commands_that_measure_neither_keep_prompts_on_disk_nor_read_them() -> None:
    assert build.load_settings({"cache_disk": "8G"}).cache_disk == 0
    settings = build.load_settings({}, kept_seconds=5.0)
    assert (settings.cache_disk, settings.kept_seconds) == (AUTO, 5.0)


def test_drafters_and_draft_model() -> None:
    assert build.load_settings({}).drafters == DRAFTERS
    assert build.load_settings({"drafters": "none"}).drafters == ()
    assert build.load_settings({"drafters": "copy", "draft_model": "x.gguf"}).draft is None
    assert build.load_settings({"draft_model": "none"}).draft is None


def test_the_letters_of_the_steps_are_their_order() -> None:
    params = SamplingParams(**build.sampling({"sampling_seq": "tk", "repeat_penalty": 1.3}))
    assert params.samplers == ("temperature", "top_k")
    assert params.without_effect(["repeat_penalty", "top_k"])
    usual = build.sampling({"sampling_seq": DEFAULT_STEPS})
    assert usual == {"samplers": DEFAULT_SAMPLERS, "infill_sampling": False}
    both = build.sampling({"samplers": ["top-k;Temp"], "sampling_seq": "p"})
    assert both["samplers"] == ["top-k;Temp"]
    assert SamplingParams(**both).samplers == ("top_k", "temperature")
    assert build.sampling({"dry_sequence_breakers": ["none"]}) == {"dry_sequence_breakers": []}


def test_a_seed_of_minus_one_is_unset() -> None:
    assert build.sampling({"seed": -1}) == {}
    assert build.sampling({"seed": -5}) == {"seed": 2**53 - 5}
    assert build.sampling({"seed": 7, "logit_bias": ["5+1", "7-inf"]}) == {
        "seed": 7,
        "logit_bias": {5: 1.0, 7: -float("inf")},
    }


@pytest.mark.parametrize(
    ("values", "flag", "argument"),
    [
        ({"top_p": 3.0}, "--top-p must be", "top_p must be"),
        ({"temperature": -1.0}, "--temp must be", "temperature must be"),
        ({"max_tokens": 0}, "-n must be 1 or more", "max_tokens must be 1 or more"),
        ({"logit_bias": ["x"]}, "--logit-bias must be ID+BIAS", "logit_bias must be ID+BIAS"),
        ({"sampling_seq": "tz"}, "--sampling-seq must be letters", "sampling_seq must be letters"),
        ({"samplers": ["top_k;magic"]}, "--samplers has 'magic', only", "samplers has 'magic', only"),
        ({"samplers": ["top_k"] * 33}, "--samplers has 33 steps", "samplers has 33 steps"),
        ({"mirostat": 3}, "--mirostat must be", "mirostat must be"),
        ({"xtc_probability": float("nan")}, "--xtc-probability must be", "xtc_probability must be"),
        ({"dry_sequence_breakers": ["x"] * 10_000}, "--dry-sequence-breaker has 10000 texts", "dry_sequence"),
        ({"n_ctx": -1}, "-c must be", "max_model_len must be"),
        ({"n_ctx_draft": -1}, "-cd must be", "n_ctx_draft must be"),
        ({"n_threads_draft": 1000}, "-td must be a whole number", "n_threads_draft must be a whole number"),
        ({"cache_type_k_draft": "f8"}, "-ctkd must be one of", "cache_type_k_draft must be one of"),
        ({"n_gpu_layers_draft": "x"}, "-ngld must be a number", "n_gpu_layers_draft must be a number"),
        ({"draft_max": "many"}, "--draft-max must be", "num_speculative_tokens must be"),
        (
            {"draft_max": "2", "draft_min": 3},
            "--draft-min 3 is more than --draft-max 2",
            "draft_min 3 is more than num_speculative_tokens 2",
        ),
        ({"drafters": "magic"}, "--drafters: no drafter 'magic'", "drafters: no drafter 'magic'"),
        ({"model": "a", "hf_repo": "b"}, "-m and -hf are both given", "model and hf_repo are both given"),
        ({"hf_repo": ""}, "-hf needs a repository", "hf_repo needs a repository"),
        (
            {"grammar": "x", "json_schema_file": "y"},
            "-jf and --grammar are both given",
            "json_schema_file and grammar are both given",
        ),
        ({"rpc": "a:b:c"}, "--rpc: 'a:b:c' is not host:port", "rpc: 'a:b:c' is not host:port"),
        ({"lora": ["none.gguf"]}, "--lora: there is no file none.gguf", "lora: there is no file none.gguf"),
    ],
    ids=str,
)
def test_errors_name_the_option_in_the_spelling_of_the_front(
    values: dict[str, Any], flag: str, argument: str
) -> None:
    with pytest.raises(SpecllamaError) as caught:
        built(values)
    assert caught.value.with_option_names(as_flag).message.startswith(flag)
    assert caught.value.with_option_names(as_argument).message.startswith(argument)


def test_an_error_names_the_file_or_variable_of_the_value() -> None:
    values = Values({"top_p": 3.0, "n_ctx_draft": -1, "file": "x"}, {"top_p": "a.toml, line 2: top-p"})
    with pytest.raises(UsageError) as caught:
        build.sampling(values)
    assert caught.value.with_option_names(as_flag).message.startswith(
        "a.toml, line 2: top-p must be a number from 0 to 1"
    )
    with pytest.raises(UsageError) as caught:
        build.load_settings(values)
    assert caught.value.with_option_names(as_flag).message.startswith("-cd must be")
    values = Values({"n_ctx_draft": -1}, {"n_ctx_draft": "SPECLLAMA_N_CTX_DRAFT"})
    with pytest.raises(UsageError) as caught:
        build.load_settings(values)
    assert caught.value.with_option_names(as_flag).message.startswith("SPECLLAMA_N_CTX_DRAFT must be")


def test_options_that_name_files(tmp_path: Path) -> None:
    (tmp_path / "a.gbnf").write_text('root ::= "a"', "utf-8")
    assert build.sampling({"grammar_file": str(tmp_path / "a.gbnf")}) == {"grammar": 'root ::= "a"'}
    with pytest.raises(NotFoundError) as caught:
        read_text(str(tmp_path / "none"), "grammar_file")
    assert caught.value.with_option_names(as_flag).message.startswith("--grammar-file: there is no file")
    with pytest.raises(UsageError, match="cannot be read"):
        read_text(str(tmp_path), "grammar_file")
    with pytest.raises(UsageError, match="not a usable path"):
        read_text("a\0b", "grammar_file")


def test_templates_by_name() -> None:
    written = ChatTemplate(named_template("chatml")).render([{"role": "user", "content": "Hello"}])
    text = "".join(part.text for part in written)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert named_template("{{ messages }}") == "{{ messages }}"
    for name in ("command-q", "llama-2-sys", "granite-9"):
        with pytest.raises(UsageError, match=f"chat_template: '{name}' is no template, .*: chatml, llama2, "):
            named_template(name)


def test_projectors(tmp_path: Path) -> None:
    file = tmp_path / "mmproj-F16.gguf"
    file.touch()

    def made(**given: Any) -> str:
        return build.load_settings(given, kept_seconds=1).mmproj

    assert made() == made(mmproj="auto") == ""
    assert made(no_mmproj=True) == made(mmproj="none") == "none"
    assert made(mmproj=str(file), no_mmproj=True) == made(mmproj=str(file)) == str(file)
    with pytest.raises(NotFoundError, match=r"^mmproj: there is no file .*gone.gguf"):
        made(mmproj=str(tmp_path / "gone.gguf"))
    with pytest.raises(UsageError, match=r"^image_min_tokens 64 is more than image_max_tokens=32"):
        build.load_settings({"image_min_tokens": 64, "image_max_tokens": 32})
