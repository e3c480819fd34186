"""`specllama run` as users type it: the text on stdout, the read-out on stderr, one object for `--json`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.cli import run
from specllama.client import protocol
from specllama.config.options import RUN
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.planner import Planner
from specllama.core.stats import RunStats
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.worker.profile import CostCurves
from tests.support.command import Command, CommandLine, Result, assert_error
from tests.support.scripted import ScriptedDrafter
from tests.support.stored_steps import is_kept

CODE = (
    "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result\n"
)
RENAME = f"Rename `result` to `payload` in this code:\n{CODE}"
ARGS = ("-p", RENAME, "--seed", "3", "--ignore-eos", "-n", "60")
LLAMA_CPP_COMMAND_LINE = (  # its options, with the same meaning
    "specllama run -m main.gguf -md draft.gguf -c 4096 -cd 4096 -ngl 99 -ngld 99 --draft-max 16 "
    '--draft-min 4 -n 128 -p "Who was the first prime minister of Britain?"'
)
RATE = r"(encoded|decoded) +(\d+) tokens in +\d+\.\d{3} s(, speed: +\d+\.\d t/s)?"
GAIN = (
    r"(faster|slower|about as fast): (at most )?\d+\.\d\dx plain \(\d+\.\d\d - \d+\.\d\d\)(; .+)?|"
    r"(faster, by how much is unclear|slower, by how much is unclear|unclear): "
    r"between \d+\.\d\dx and \d+\.\d\dx plain(; .+)?|gain unknown: .+"
)
SHORT_READ_OUT = [
    r"speculation on: draft pydoc-draft Q4_0 \(vocabulary identical\) \+ copy, length up to 4",
    r"",
    GAIN,
    r"60 tokens at \d+\.\d t/s, prompt \d+ tokens( at \d+\.\d t/s)?"
    r"(, plain \d+\.\d t/s( \(stored\))?)?, seed 3",
]
READ_OUT = [  # the end of it with -v
    rf"{RATE}",
    rf"{RATE}",
    r"",
    r"n_predict = 60",
    r"n_drafted = \d{1,7} +((model|copy) \d+)( · (model|copy) \d+)?",
    r"n_accept  = \d+",
    r"accept    = \d+\.\d %   by position( \d+ %){4}",
    r"time      = verify \d+ % · draft \d+ % · sampling \d+ % · other \d+ %",
    r"seed      = 3",
]
NUMBER = (int, float)
OBJECT = {
    "schema": str, "text": str, "tokens": list, "finish_reason": str, "seed": int,
    "n_prompt": int, "n_evaluated": int, "n_predict": int,
    "n_drafted": int, "n_accept": int, "n_discarded": int, "accept_by_position": list,
    "accept_by_source": dict, "drafted_by": dict,
    "load_ms": NUMBER, "ttft_ms": NUMBER, "encode_tps": NUMBER, "decode_tps": NUMBER,
    "plain_tps": (int, float, type(None)), "plain_source": str, "plain_rounds": int,
    "speedup": (int, float, type(None)),
    "speedup_range": (list, type(None)), "speedup_limited": bool, "speedup_reason": str,
    "busy": bool, "verdict": str, "time": dict,
    "rounds": int, "near_ties": (int, type(None)),
    "redecided": int, "target": dict, "draft": (dict, type(None)), "head": str, "head_in_target": bool,
    "speculation": str, "reason": str,
}  # fmt: skip


@pytest.fixture(scope="module")
def answer(shared: Command) -> Result:
    return shared.generate(*ARGS, "--draft-max", "4")


@pytest.fixture(scope="module")
def answer_json(shared: Command) -> Result:
    return shared.generate(*ARGS, "--draft-max", "4", "--json")


@pytest.fixture(scope="module")
def plain(shared: Command) -> Result:
    return shared.generate(*ARGS, "-md", "none", "--drafters", "none", "--json")


def test_the_read_out_has_the_lines_that_users_know(answer: Result) -> None:
    assert len(answer.lines) == len(SHORT_READ_OUT), answer.err
    for line, pattern in zip(answer.lines, SHORT_READ_OUT, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
    assert "\x1b" not in answer.err


def test_all_figures_are_shown_on_request(shared: Command, answer: Result) -> None:
    verbose = shared.generate(*ARGS, "--draft-max", "4", "-v")
    assert verbose.out == answer.out
    lines = verbose.lines[-len(READ_OUT) :]
    for line, pattern in zip(lines, READ_OUT, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
    assert max(map(len, lines)) < 80
    before = [line for line in verbose.lines[-len(READ_OUT) - 2 :] if not line.startswith("plain     = ")]
    assert any(re.fullmatch(GAIN, line) for line in before[: -len(READ_OUT)])


def test_stdout_is_the_text_alone_and_the_same_in_every_form(
    answer: Result, answer_json: Result, plain: Result
) -> None:
    text = answer_json.json["text"]
    assert len(text) > 40
    assert answer.out == (text if text.endswith("\n") else text + "\n")
    assert plain.json["text"] == text
    assert plain.json["tokens"] == answer_json.json["tokens"]


def test_json_is_one_object_with_the_documented_keys(answer_json: Result) -> None:
    assert answer_json.raw.count(b"\n") == 1
    answer = answer_json.json
    assert list(answer) == list(OBJECT)
    for name, kind in OBJECT.items():
        assert isinstance(answer[name], kind), name
        assert kind is bool or not isinstance(answer[name], bool), name
    assert answer["schema"] == "specllama.run/1"
    assert answer["finish_reason"] == "length"
    assert set(answer["time"]) == {"verify", "draft", "sampling", "other"}
    assert set(answer["target"]) == set(answer["draft"]) == {"path", "params", "quant", "n_gpu_layers"}
    assert answer["target"]["path"] == str(EMBEDDED_TARGET)
    assert (answer["target"]["quant"], answer["draft"]["quant"]) == ("Q4_0", "Q4_0")
    assert len(answer_json.lines) == 1
    assert re.fullmatch(SHORT_READ_OUT[0], answer_json.lines[0])


def test_the_figures_agree_with_each_other(answer_json: Result) -> None:
    answer = answer_json.json
    assert answer["seed"] == 3
    assert answer["n_predict"] == len(answer["tokens"]) == 60
    assert 0 < answer["n_accept"] <= answer["n_drafted"] == sum(answer["drafted_by"].values())
    assert answer["n_predict"] == 1 + answer["rounds"] + answer["n_accept"]
    assert len(answer["accept_by_position"]) == 4
    assert all(0 <= share <= 1 for share in answer["accept_by_position"])
    assert set(answer["accept_by_source"]) == set(answer["drafted_by"])
    assert all(len(shares) <= 4 for shares in answer["accept_by_source"].values())
    seconds = sum(answer["time"].values())
    assert seconds == pytest.approx(59 / answer["decode_tps"], rel=0.01)
    if answer["speedup"] is not None and not (answer["speedup_limited"] or answer["busy"]):
        assert answer["speedup"] == pytest.approx(
            answer["decode_tps"] / answer["plain_tps"], rel=0.12
        )  # but for stalls
    else:
        assert answer["speedup_reason"]


def test_plain_decoding_reports_no_drafts(plain: Result, shared: Command) -> None:
    answer = plain.json
    assert (answer["n_drafted"], answer["n_accept"], answer["drafted_by"], answer["draft"]) == (
        0,
        0,
        {},
        None,
    )
    assert (answer["speculation"], answer["speedup"]) == ("off", None)
    assert answer["plain_rounds"] <= answer["rounds"] - 2 == 57, (
        "those that followed two others and did not stall"
    )
    assert plain.lines[0].startswith("speculation off: ")
    zero = shared.generate(*ARGS, "--draft-max", "0", "--json")
    assert zero.json["reason"] == "--draft-max 0"
    assert zero.json["tokens"] == answer["tokens"]
    shown = shared.generate(*ARGS, "--draft-max", "0", "-v")
    assert "\nn_drafted = 0\nn_accept  = 0\n" in shown.err
    assert not re.search("n_drafted = [1-9]|accept    =|plain  ", shown.err)


DRAFTING = {  # flags, and who may have drafted
    "--temp 0": {"model", "copy"},
    "--temp 0 --draft-max 5": {"model", "copy"},
    "--temp 1.3 --seed 11 --top-k 0 --top-p 1 --min-p 0 --draft-max 5": {"model", "copy"},
    "--drafters copy --seed 5 --draft-max 9": {"copy"},
    "--drafters model --draft-max 7 --seed 6": {"model"},
    "--draft-max 1 --repeat-penalty 1.3 --seed 7": {"model", "copy"},
    "--draft-max 16 --draft-min 2 --draft-p-min 0.5 --exact": {"model", "copy"},
}


def test_speculative_text_is_plain_text(shared: Command) -> None:
    common = ("run", "--no-calibrate", *ARGS, "--compare", "--json")
    results = shared.many(*((*common, *flags.split()) for flags in DRAFTING))
    for result, (flags, sources) in zip(results, DRAFTING.items(), strict=True):
        assert result.json["compare"]["identical"] is True, flags
        if "--draft-max" in flags:  # the default drafts or not, as the clock has it
            assert result.json["n_drafted"] > 0, flags
        assert set(result.json["drafted_by"]) <= sources, flags


@pytest.mark.parametrize(("encode", "reused", "again"), [(0.1, 0, True), (2.0, 0, False), (0.1, 5, False)])
def test_compare_begins_after_a_prompt_as_the_answer_did(
    monkeypatch: pytest.MonkeyPatch, encode: float, reused: int, again: bool
) -> None:
    """The first decodes after it take longer: a short answer seemed to be slower with drafts."""
    asked: list[protocol.Generate] = []
    monkeypatch.setattr(run, "generate", lambda _client, request, **_: asked.append(request))
    monkeypatch.setattr(run, "_result", lambda *_: None)
    stats = RunStats(n_reused=reused, encode_seconds=encode, decode_seconds=1.0)
    answer: Any = SimpleNamespace(seed=1, stats=stats)
    client: Any = SimpleNamespace(next_id=lambda: 7)
    run._compare(client, protocol.Generate(1, protocol.TextInput("x")), answer, Any)
    assert [(one.reuse, one.speculate) for one in asked] == [(not again, False)]


def test_compare_says_so_and_measures_the_plain_rate(shared: Command) -> None:
    result = shared.generate(*ARGS, "--compare", "--draft-max", "4")
    assert re.fullmatch(r"compare   = plain \d+\.\d t/s, the same text", result.lines[-1])
    assert re.fullmatch(GAIN, result.lines[2]), result.lines[2]
    assert (shown := re.search(r", plain (\d+\.\d t/s) \(compared\), seed 3$", result.lines[3]))
    assert f"plain {shown[1]}," in result.lines[-1]
    one = shared("run", "-p", "x", "--no-calibrate", "-n", "1", "--compare")
    assert "compare   = no speed, as nothing follows the first token, the same text" in one.lines


def test_the_line_of_llama_speculative_works_as_it_stands(command: Command) -> None:

    shutil.copy(EMBEDDED_TARGET, command.home / "main.gguf")
    shutil.copy(EMBEDDED_DRAFT, command.home / "draft.gguf")
    result = command(*shlex.split(LLAMA_CPP_COMMAND_LINE)[1:])
    assert result.code == 0
    assert result.out.strip()
    assert result.lines[0].endswith("(vocabulary identical) + copy, length up to 16")
    gpu = [line for line in result.lines if "GPU" in line]
    assert len(gpu) == 1
    assert gpu[0].startswith("note: ")
    assert sum("was trained on 2048 tokens, n_ctx is 4096" in line for line in result.lines) == 2


@pytest.mark.parametrize("form", ["-p", "-f", "stdin"])
def test_the_prompt_comes_from_flag_file_or_pipe(shared: Command, form: str) -> None:
    text = "What does zip do? Grüße, 日本"
    (shared.home / "prompt.txt").write_text(text, encoding="utf-8")
    args = {"-p": ["-p", text], "-f": ["-f", "prompt.txt"], "stdin": []}[form]
    stdin = text.encode() if form == "stdin" else b""
    answer = shared.generate(*args, "--seed", "4", "-n", "6", "--json", stdin=stdin).json
    expected = shared.generate("-p", text, "--seed", "4", "-n", "6", "--json").json
    assert answer["tokens"] == expected["tokens"]
    assert answer["n_prompt"] == expected["n_prompt"]


def test_raw_parses_control_tokens_and_messages_do_not(shared: Command) -> None:
    templated = "<|im_start|>user\nzip<|im_end|>\n<|im_start|>assistant\n"
    prompts = (
        ("--raw", "-p", templated),
        ("-p", "zip"),
        ("-p", "zip<|im_end|>"),
        ("-p", "zip", "-sys", "Be brief."),
    )
    results = shared.many(*(("run", "--no-calibrate", "-n", "1", "--json", *prompt) for prompt in prompts))
    raw, message, attack, system = (result.json["n_prompt"] for result in results)
    assert raw == message
    assert attack > message + 2
    assert system > message + 3


def test_a_template_of_the_user(shared: Command) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    (shared.home / "own.jinja").write_text(template)
    few = ("-n", "5", "--seed", "1", "--json")
    inline = shared.generate("-p", "zip", *few, "--chat-template", template)
    file = shared.generate("-p", "zip", *few, "--chat-template-file", "own.jinja")
    raw = shared.generate("-p", "user: zip", *few, "--raw")
    assert inline.json["tokens"] == file.json["tokens"] == raw.json["tokens"]


def test_until_stop_and_until_the_context_is_full(shared: Command) -> None:
    stopped = shared.generate("-p", "zip", "-n", "-1", "--seed", "2", "--json").json
    assert stopped["finish_reason"] == "stop"
    full = shared.generate("-p", "zip", "-n", "-2", "-c", "256", "--seed", "2", "--json").json
    assert full["finish_reason"] == "context"
    assert full["n_prompt"] + full["n_predict"] == 256
    output = shared.generate("-p", "zip", "-n", "-2", "-c", "256", "--seed", "2")
    assert output.lines[-1] == "note: the context of 256 tokens is full; -c makes it larger"


def test_stop_strings_and_banned_tokens(shared: Command, plain: Result) -> None:
    text = plain.json["text"]
    stop = text[12:17]
    cut = shared.generate(*ARGS, "--stop", stop, "--json").json
    assert (cut["text"], cut["finish_reason"]) == (text[: text.index(stop)], "stop")
    several = shared.generate(*ARGS, "-r", "never there", "-r", stop, "--json").json
    assert several["text"] == cut["text"]
    tokens = plain.json["tokens"]
    at, banned = next((i, t) for i, t in enumerate(tokens) if i > 4 and t not in tokens[:i])
    free = shared.generate(*ARGS, "--logit-bias", f"{banned}-inf", "--json").json
    assert free["tokens"][:at] == tokens[:at]
    assert banned not in free["tokens"]
    forced = shared.generate(*ARGS, "-l", f"{banned}+200", "--json").json
    assert set(forced["tokens"]) == {banned}


def test_seeds(shared: Command) -> None:
    args = ("-p", "zip", "-n", "24", "--ignore-eos", "--json")
    first, second = (shared.generate(*args).json for _ in range(2))
    assert first["seed"] != second["seed"]
    assert shared.generate(*args, "-s", str(first["seed"])).json["tokens"] == first["tokens"]
    assert shared.generate(*args, "--seed", "-1").json["seed"] not in (-1, first["seed"])


def test_steps_left_out_of_the_sampling_sequence_are_off(shared: Command) -> None:
    hot = "--temp 1.5 --top-k 5 --top-p 0.7 --min-p 0.1 --repeat-penalty 1.5"
    cases = (
        f"{hot} --sampling-seq pt",
        "--temp 1.5 --top-k 0 --top-p 0.7 --min-p 0",
        f"{hot} --sampling-seq ekpmt",
        hot,
        "--temp 0 --sampling-seq kpm",
        "--temp 1",
    )
    common = ("run", *ARGS, "--no-calibrate", "--draft-max", "0", "--json")
    tokens = [result.json["tokens"] for result in shared.many(*((*common, *case.split()) for case in cases))]
    assert tokens[0] == tokens[1] != tokens[3]
    assert tokens[2] == tokens[3]
    assert tokens[4] == tokens[5]


def test_cache_types_and_flash_attention_reach_the_engine(shared: Command, plain: Result) -> None:
    wide = ("-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off")
    assert len(shared.generate(*ARGS, *wide, "--json").json["tokens"]) == 60
    log = shared.home / "llama.library"
    result = shared.generate(
        *ARGS, "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on", "-c", "512", "--log-file", log.name
    )
    text = log.read_text()
    assert "q8_0" in text
    assert re.search(r"n_ctx += 512", text)
    assert len(result.lines) >= 4
    assert "llama_context" not in result.err
    assert "llama_context" in shared.generate(*ARGS[:2], "-n", "1", "--verbose").err
    assert plain.json["n_predict"] == 60


VALUES = {
    "prompt": "zip", "system_prompt": "Be brief.", "chat_template": "{{ messages[0].content }}",
    "tool_format": "hermes",
    "reasoning": "off", "model": str(EMBEDDED_TARGET), "n_ctx": "512", "n_batch": "256", "n_ubatch": "128",
    "n_threads": "1", "n_threads_batch": "1", "n_gpu_layers": "0", "devices": "none", "tensor_split": "1,1",
    "split_mode": "layer", "main_gpu": "0", "tensor_parallel_size": "1", "n_cpu_moe": "0",
    "cache_type_k": "q8_0",
    "cache_type_v": "q8_0", "flash_attn": "on", "rope_scaling": "none", "rope_scale": "1",
    "rope_freq_base": "10000", "rope_freq_scale": "1", "yarn_orig_ctx": "2048", "yarn_ext_factor": "-1",
    "yarn_attn_factor": "1", "yarn_beta_slow": "1", "yarn_beta_fast": "32",
    "draft_model": str(EMBEDDED_DRAFT), "drafters": "model,copy", "draft_max": "4", "draft_min": "1",
    "draft_p_min": "0.1", "exact_width": "4", "n_ctx_draft": "512",
    "n_threads_draft": "1", "n_threads_batch_draft": "1",
    "n_gpu_layers_draft": "all", "devices_draft": "none", "n_cpu_moe_draft": "0",
    "cache_type_k_draft": "f16", "cache_type_v_draft": "f16", "max_tokens": "3", "seed": "1",
    "temperature": "0.5", "top_k": "20", "top_p": "0.9", "min_p": "0.1", "repeat_penalty": "1.1",
    "repeat_last_n": "32", "presence_penalty": "0.1", "frequency_penalty": "0.1", "logit_bias": "5-1",
    "top_n_sigma": "2", "typical_p": "0.9", "xtc_probability": "0.1", "xtc_threshold": "0.2",
    "dynatemp_range": "0.1", "dynatemp_exponent": "1.1", "dry_multiplier": "0.1", "dry_base": "1.5",
    "dry_allowed_length": "3", "dry_penalty_last_n": "32", "dry_sequence_breakers": "x", "mirostat": "0",
    "mirostat_eta": "0.2", "mirostat_tau": "4", "adaptive_target": "0.5", "adaptive_decay": "0.8",
    "min_keep": "1", "samplers": "dry;top_k;temperature;adaptive_p",
    "sampling_seq": "ekpmt", "stop": "xyzzy", "log_file": "all.log",
    "json_schema": '{"const": 1}', "logprobs": "1", "cache_disk": "0", "cache_ram": "512",
    "ctx_checkpoints": "4", "reasoning_budget": "100", "reasoning_budget_message": "Enough.",
    "draft_vocab": "strict", "draft_tree": "2", "models_dir": ".", "prediction": os.devnull,
    "memory_from": str(EMBEDDED_DRAFT), "mmproj": "none", "image_min_tokens": "8", "image_max_tokens": "64",
}  # fmt: skip
ALONE = {  # in tests of their own
    "file", "raw", "chat_template_file", "lora", "lora_scaled", "cpu_moe", "cpu_moe_draft", "override_tensor",
    "override_tensor_draft", "compare", "json", "json_schema_file", "grammar", "grammar_file", "hf_repo",
    "hf_repo_draft", "rpc", "words", "escape", "no_escape", "quiet", "image",
}  # fmt: skip


def test_every_spelling_of_every_flag_is_accepted(shared: Command) -> None:
    lines = []
    for spelling in range(max(len(o.flags) for o in RUN)):
        lines.append(["run", "--json"])
        for option in RUN:
            if option.name not in ALONE:
                flag = option.flags[min(spelling, len(option.flags) - 1)]
                lines[-1] += [flag] if option.kind is bool else [flag, VALUES[option.name]]
    for result in shared.many(*lines):
        assert result.code == 0, result.err
        assert result.json["n_predict"] <= 3
        assert result.json["seed"] == 1


def test_more_gpus_than_there_are(shared: Command) -> None:
    result = shared("run", "-p", "zip", "--tensor-parallel-size", "200")
    assert_error(result, 8, "--tensor-parallel-size needs 200 GPUs, and ", "can be used", "specllama doctor")


@pytest.mark.parametrize("flag", ["-ot", "-otd"])
def test_tensors_are_put_where_a_pattern_says(shared: Command, flag: str) -> None:
    few = ("-p", "zip", "-n", "3", "--seed", "1", "--json")
    result = shared.generate(*few, flag, r"blk\.0\.ffn=CPU,blk\.1=CPU")
    assert result.json["tokens"] == shared.generate(*few).json["tokens"]


def test_experts_on_the_cpu(shared: Command) -> None:
    shared.generate("-p", "zip", "-n", "3", "-cmoe", "-ncmoed", "1", "--json")


def test_a_blob_of_ollama_is_a_model(command: Command) -> None:
    """Its files are named by their hashes, without an ending."""
    name = f"sha256-{hashlib.sha256(EMBEDDED_TARGET.read_bytes()).hexdigest()}"
    blobs = command.home / ".ollama" / "models" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / name).symlink_to(EMBEDDED_TARGET)
    result = command("run", "-m", f"~/.ollama/models/blobs/{name}", "-p", "zip", "-n", "3", "--json")
    assert (result.code, result.json["n_predict"]) == (0, 3)


def test_unsupported_flags_of_llama_cpp_are_refused_by_name(shared: Command) -> None:
    flags = ("--backend-sampling", "--no-such", "--draft-p-split 0.1", "--grp-attn-n 4")
    results = shared.many(*(("run", "-p", "zip", *flag.split()) for flag in flags))
    for result, flag in zip(results, flags, strict=True):
        assert (result.code, result.out) == (2, "")
        assert result.lines[0].lower().startswith(f"error: no such option: {flag.split()[0]}")


def test_measured_figures_are_kept_and_used_by_the_next_run(command: Command) -> None:
    few = (
        "-p",
        "zip",
        "-n",
        "4",
        "--ignore-eos",
        "--draft-max",
        "4",
        "--draft-min",
        "0",
        "--json",
        "--seed",
        "3",
    )
    assert command.generate(*few).json["plain_source"] in ("none", "run")
    assert not command.cache.exists()
    assert command("run", "-p", "zip", "-n", "40", "--seed", "3").code == 0
    files = list((command.cache / "calibration").glob("*.json"))
    assert [f.suffix for f in files] == [".json"]
    stored = json.loads(files[0].read_text())
    assert stored["t1"] > 0
    assert stored["epsilon"] >= 0
    second = command.generate(*few)
    told = second.json["plain_source"] == "stored", second.json["speedup"] is not None
    disagrees = re.search("decodes were (slower|faster) than at other times", command.generate(*few[:-3]).err)
    assert told == (True, True) or disagrees  # a machine that was busy at one of the two times
    assert second.json["near_ties"] is not None
    assert command("run", "-p", "zip", "-n", "4").code == 0
    assert is_kept(json.loads(files[0].read_text())["t1"], stored["t1"])


def test_the_next_run_begins_with_what_was_measured_and_learnt(command: Command) -> None:
    """Told from the file, and from a planner made of it; the second run has another context size."""

    def stored() -> tuple[dict[str, Any], Planner]:
        (file,) = (command.cache / "calibration").glob("*.json")
        data = json.loads(file.read_text())
        (pair,) = data["pairs"]
        assert pair["pair"]["draft"]["model"][0] == "pydoc-draft"
        drafters = [ScriptedDrafter(lambda history, draft: None, n) for n in pair["pair"]["drafters"]]  # noqa: ARG005
        curve = CostCurves.from_dict(data["curves"]).at(0)
        return data, Planner(drafters, float, curve, pair["learnt"])

    anything = "root ::= [^\\x00]*"  # where a grammar may force something every round is looked at
    once = ("run", *ARGS, "--temp", "0", "--grammar", anything)
    assert command(*once).code == 0
    data, first = stored()
    assert first.costs.count(1) >= DEFAULT.min_samples
    assert first.costs.predict(1) == pytest.approx(data["curves"]["0"]["widths"][0][1])
    assert first.learnt.tables["copy"].n_seen > 20
    assert command(*once, "-c", "1024").code == 0
    _, second = stored()
    assert second.learnt.tables["copy"].n_seen > 1.5 * first.learnt.tables["copy"].n_seen
    (file,) = (command.cache / "calibration").glob("*.json")
    before = file.read_bytes()
    command.generate(*once[1:])  # --no-calibrate
    assert file.read_bytes() == before


@pytest.mark.parametrize(("length", "mentioned"), [("16", False), ("17", True), ("40", True)])
def test_shortened_drafts_are_mentioned(command: Command, length: str, mentioned: bool) -> None:
    """Before rows were compared, and where wider decodes are rounded in another way."""
    result = command("run", "-p", "zip", "-n", "4", "--draft-max", length)
    assert result.code == 0
    note = f"note: drafts have 16 tokens at most, not {length}"
    assert (note in " ".join(result.err.split())) is mentioned


def test_runs_at_once_leave_one_whole_file(command: Command) -> None:
    line = ("run", "-p", "zip", "-n", "20", "--ignore-eos", "--seed", "3")
    assert [result.code for result in command.many(*[line] * 4)] == [0] * 4
    (file,) = (command.cache / "calibration").glob("*.json")
    assert json.loads(file.read_text())["t1"] > 0


def test_parts_of_the_wrong_type_are_left_out(command: Command) -> None:
    line = ("run", "-p", "zip", "-n", "20", "--ignore-eos", "--seed", "3", "--json")
    first = command(*line)
    (file,) = (command.cache / "calibration").glob("*.json")
    good = json.loads(file.read_text())
    parts: tuple[dict[str, Any], ...] = (
        {"t1": "fast", "epsilon": [1], "curves": 5, "pairs": {"x": 1}},
        {
            "t1": -1,
            "epsilon": None,
            "curves": {"0": {"widths": [["a"]]}, "4096": 1},
            "pairs": [7, {"pair": {}, "learnt": []}],
        },
    )
    for part in parts:
        file.write_text(json.dumps({**good, **part}))
        assert "Traceback" not in command("doctor").err
        again = command(*line)
        assert (again.code, again.json["tokens"]) == (0, first.json["tokens"])
        assert "rror" not in again.err
        repaired = json.loads(file.read_text())
        assert [p.suffix for p in file.parent.iterdir()] == [".json"]
        assert {name: type(repaired[name]) for name in good} == {name: type(good[name]) for name in good}


def test_an_object_says_whether_it_was_drafted_for(answer_json: Result, shared: Command) -> None:
    answer = answer_json.json
    assert (answer["speculation"], answer["reason"]) == ("on", "")
    line = ("-p", "zip", "--seed", "3", "--ignore-eos", "-n", "300", "--drafters", "copy", "-md", "none")
    answer = shared.generate(*line, "--json").json
    assert (answer["speculation"] == "on") == (answer["reason"] == "")
    assert (answer["speculation"] == "on") == (answer["n_drafted"] > 9)


def test_environment_and_files_set_what_flags_would(command: Command) -> None:
    (command.home / "config" / "specllama").mkdir(parents=True)
    user, project = command.home / "config" / "specllama" / "config.toml", command.home / "specllama.toml"
    user.write_text("seed = 1\nmax_tokens = 7\ntop-k = 3\n")
    assert command.generate("-p", "zip", "--ignore-eos", "--json").json["n_predict"] == 7
    project.write_text('seed = 2\nmax_tokens = 6\nignore_eos = true\ndrafters = "copy"\n')
    result = command.generate("-p", "zip", "--json")
    assert result.lines[0] == "settings: ./specllama.toml"
    answer = result.json
    assert (answer["seed"], answer["n_predict"], answer["draft"]) == (2, 6, None)
    env = {"SPECLLAMA_SEED": "3", "SPECLLAMA_DRAFT_MAX": "0"}
    answer = command.generate("-p", "zip", "--json", env=env).json
    assert (answer["seed"], answer["n_predict"], answer["reason"]) == (3, 6, "--draft-max 0")
    answer = command.generate("-p", "zip", "--json", "-s", "4", "-n", "5", env=env).json
    assert (answer["seed"], answer["n_predict"]) == (4, 5)


def test_a_projects_file_sets_little(command: Command) -> None:
    """For all commands that read it; below the directory with the file too."""
    cases = (
        ("run", 'rpc = "203.0.113.5:50052"'),
        ("run", 'chat_template_file = "/etc/passwd"'),
        ("chat", 'model = "me/evil"'),
        ("serve", 'host = "0.0.0.0"'),
        ("serve", 'api-key = ["x"]'),
        ("bench", 'lora = ["evil.gguf"]'),
        ("tune", 'hf_repo = "me/evil"'),
    )
    lines = []
    for n, (verb, line) in enumerate(cases):
        (command.home / str(n) / "deep").mkdir(parents=True)
        (command.home / str(n) / "specllama.toml").write_text(f"max_tokens = 3\n\n{line}\n")
        args = ("run", "-p", "zip", "--no-calibrate") if verb == "run" else (verb,)
        lines.append(CommandLine(args, cwd=command.home / str(n) / "deep"))
    for n, ((_, line), result) in enumerate(zip(cases, command.batch(*lines), strict=True)):
        where, key = f"{command.home}/{n}/specllama.toml, line 3", line.split()[0]
        assert_error(result, 2, f"{where}: {key} cannot be set by a project's specllama.toml")
        assert f"set it in {command.home}/config/specllama/config.toml" in result.err
    (command.home / "0" / "specllama.toml").write_text("max_tokens = 3\n")
    (result,) = command.batch(lines[0])
    assert result.lines[0] == f"settings: {command.home}/0/specllama.toml"
    assert "3 tokens at " in result.err


def test_help_has_examples_and_fits_narrow_terminals(shared: Command) -> None:
    text = shared("run", "--help").out
    assert "specllama run -p" in text
    assert "--draft-max" in text
    assert "\x1b" not in text
    narrow = shared("run", "--help", env={"COLUMNS": "20", "TERM": "dumb"})
    assert narrow.code == 0
    assert "--draft-max" in "".join(narrow.out.split())
    assert "specllama run" in shared("--help").out
    assert re.fullmatch(r"specllama \d+\.\d+\.\d+\n", shared("--version").out)
    assert "Usage" in shared().out + shared().err


def test_text_survives_locales_without_unicode(shared: Command) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    args = ("-p", "Repeat: Grüße, 日本", "--seed", "4", "-n", "12", "-l", "200+100", "--draft-max", "4")
    result = shared.generate(*args, "-v", env=ascii_only)
    assert result.raw.isascii()
    assert "time      = verify" in result.err
    as_json = shared.generate(*args, "--json", env=ascii_only)
    assert as_json.raw.isascii()
    assert as_json.json["tokens"] == [200] * 12
    expected = shared.generate(*args, "--json")
    assert as_json.json["text"] == expected.json["text"]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_on_terminals_only(shared: Command, env: dict[str, str], coloured: bool) -> None:
    ours, theirs = os.openpty()
    args = ("run", "-p", "zip", "-m", "nope.gguf")
    process = shared.start(*args, env={"TERM": "xterm", **env}, fork=not coloured, stderr=theirs)
    os.close(theirs)
    assert process.stdout is not None
    assert process.stdout.read() == b""
    assert process.wait(60) == 3
    process.stdout.close()
    output = os.read(ours, 4096)
    os.close(ours)
    assert b"there is no file nope.gguf" in output
    assert (b"\x1b[" in output) is coloured


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
def test_without_a_prompt_a_terminal_is_not_waited_for(shared: Command) -> None:
    ours, theirs = os.openpty()
    process = shared.start("run", stdin=theirs)
    out, err = process.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert (process.returncode, out) == (2, b"")
    assert b"there is no prompt" in err
    assert b'specllama run -p "' in err


LOOP = ("--raw", "--temp", "0", "-p", "zip", "--logit-bias", "300+50")  # one token, whatever rounds how


def test_an_endless_answer_ends_in_a_script(shared: Command) -> None:
    ended = shared("run", "--no-calibrate", *LOOP, "--json", "--compare")
    assert (ended.code, ended.json["finish_reason"], ended.json["compare"]["identical"]) == (8, "loop", True)
    n = len(ended.json["tokens"])
    assert f"error: the answer only repeated itself, and was ended after {n} tokens" in ended.err
    asked_for = shared.generate(*LOOP, "-q", "-n", "-1")
    assert asked_for.out.startswith(ended.json["text"])
    assert len(asked_for.out) > len(ended.json["text"]) + 100
    assert asked_for.err == ""


def test_what_cuts_an_answer_is_said(shared: Command) -> None:
    """Beside the limit of the user alone; half an object is an error, since nothing can read it."""
    cut = shared.generate("-p", "zip", "-n", "3", "--seed", "2")
    assert cut.lines[-1] == "note: the answer was cut at -n 3; -n -1 lets it end by itself"
    schema = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
    half = shared("run", "--no-calibrate", "-q", "-j", schema, "-p", "zip", "-n", "3", "--seed", "2")
    assert (half.code, half.out[:2]) == (8, '{"')
    assert "error: the answer was cut at -n 3, before its schema or grammar allows an end" in half.err
    assert shared.generate("-q", "--grammar", 'root ::= "a"+', "-p", "zip", "-n", "3").err == ""
