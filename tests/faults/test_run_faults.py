"""Invalid files, input and environments with `run`: one clear error and the exit code."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import ResourceError
from specllama.gguf.header import read_model
from specllama.models.memory.plan import plan_memory
from tests.support import ggufbytes as g
from tests.support import tinygguf
from tests.support.command import ROOT, Command, CommandLine, Result, assert_error
from tests.support.memory import plan_settings

GOOD = EMBEDDED_TARGET.read_bytes()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 4212345678\n"


def meta(key: str, value: object) -> bytes:
    return g.llama(metadata={key: value}).build()


def tensors(change: Callable[[list[g.Tensor]], list[g.Tensor]]) -> bytes:
    model = g.llama()
    model.tensors = change(list(model.tensors))
    return model.build()


DAMAGED = {  # content, and a part of the message
    "empty": (b"", "empty"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>" * 9, "HTML"),
    "json": (b'{"error": "Repository not found"}' * 9, "JSON"),
    "lfs": (LFS, "LFS"),
    "magic": (b"GGML" + GOOD[4:4096], "magic"),
    "version 0": (g.GGUF(version=0).build(), "version"),
    "version 1": (g.GGUF(version=1).build(), "version"),
    "version 99": (g.GGUF(version=99).build(), "version"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64), "big-endian"),
    "cut in the header": (GOOD[:5000], "tokenizer.ggml.tokens"),
    "cut in the weights": (GOOD[: len(GOOD) // 2], "end"),
    "one byte short": (GOOD[:-1], "end"),
    "tensor count": (g.GGUF(n_tensors=2**62).build(), "tensor"),
    "key count": (g.GGUF(n_kv=2**63).build(), "count"),
    "string length": (g.GGUF([("a", g.Typed("raw", struct.pack("<IQ", 8, 2**60)))]).build(), "a"),
    "array length": (g.GGUF([("a", g.Typed("raw", struct.pack("<IIQ", 9, 4, 2**61)))]).build(), "a"),
    "nested arrays": (g.GGUF([("a", g.Typed("raw", struct.pack("<II", 9, 9) * 2000))]).build(), "a"),
    "value type": (g.GGUF([("a", g.Typed("raw", struct.pack("<I", 77)))]).build(), "a"),
    "alignment": (meta("general.alignment", 3), "alignment"),
    "tensor type": (tensors(lambda t: [g.Tensor("x", (32,), 4711, n_bytes=64), *t]), "x"),
    "dimensions": (tensors(lambda t: [g.Tensor("x", (2**40, 2**40), 0, n_bytes=64), *t]), "x"),
    "beyond the end": (
        tensors(lambda t: [*t, g.Tensor("x", (32,), 0, offset=1 << 40, n_bytes=0)])[:60000],
        "x",
    ),
    "no layers": (meta("llama.block_count", 0), "block_count"),
    "a million layers": (meta("llama.block_count", 1_000_000), "block_count"),
    "no tokenizer": (meta("tokenizer.ggml.model", None), "tokenizer"),
    "unknown architecture": (meta("general.architecture", "llamma"), "llamma"),
    "a key of another type": (meta("llama.context_length", "long"), "context_length"),
    "vocabulary only": (tensors(lambda _: []), "tensor_count"),
    "no embedding": (tensors(lambda t: t[1:]), "token_embd"),
}


@pytest.fixture(scope="module")
def damaged(shared: Command) -> dict[str, Result]:
    """The result of a run with each of the files."""
    directory = shared.home / "damaged"
    directory.mkdir()
    for name, (content, _) in DAMAGED.items():
        (directory / f"{name}.gguf").write_bytes(content)
    lines = (("run", "-p", "zip", "-m", f"damaged/{name}.gguf") for name in DAMAGED)
    results = shared.batch(*map(CommandLine, lines))
    return dict(zip(DAMAGED, results, strict=True))


@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_rejects_damaged_files_naming_the_field(damaged: dict[str, Result], name: str) -> None:
    assert_error(damaged[name], 6, f"damaged/{name}.gguf", DAMAGED[name][1])


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        (lambda t: [x for x in t if x.name != "blk.1.ffn_up.weight"], "blk.1.ffn_up.weight"),
        (lambda t: [x for x in t if x.name != "output_norm.weight"], "output_norm"),
        (lambda t: [g.Tensor(x.name, (64,), x.type_id) if "attn_q" in x.name else x for x in t], "attn_q"),
    ],
)
def test_errors_of_llama_cpp_are_one_line_too(
    shared: Command, change: Callable[[list[g.Tensor]], list[g.Tensor]], needle: str
) -> None:
    (shared.home / "bad.gguf").write_bytes(tensors(change))
    assert_error(shared("run", "-p", "zip", "-m", "bad.gguf"), 6, "bad.gguf", needle)


def test_a_bad_draft_is_named(shared: Command) -> None:
    (shared.home / "bad-draft.gguf").write_bytes(EMBEDDED_DRAFT.read_bytes()[:-5])
    assert_error(shared("run", "-p", "zip", "-md", "bad-draft.gguf"), 6, "bad-draft.gguf")
    assert_error(shared("run", "-p", "zip", "-md", "none.gguf"), 3, "-md", "none.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_rejects_special_files_without_blocking(shared: Command) -> None:
    os.mkfifo(shared.home / "fifo.gguf")
    assert_error(shared("run", "-p", "zip", "-m", "fifo.gguf", timeout=20), 2, "a named pipe")
    (shared.home / "folder").mkdir()
    for name in (".", "folder"):
        assert_error(shared("run", "-p", "zip", "-m", name), 2, f"-m: {name} is a folder", ".gguf file in it")
    assert_error(shared("run", "-p", "zip", "-m", "/dev/zero", timeout=20), 2, "/dev/zero")
    assert_error(shared("run", "-p", "zip", "-m", ""), 2, "-m")
    assert_error(shared("run", "-p", "zip", "-m", "x" * 5000), 2, "-m")
    (shared.home / "loop.gguf").symlink_to("loop.gguf")
    assert_error(shared("run", "-p", "zip", "-m", "loop.gguf"), 3, "loop.gguf")


def test_rejects_a_pair_with_different_vocabularies(shared: Command) -> None:
    tinygguf.llama(shared.home / "tiny.gguf")
    tinygguf.llama(shared.home / "other.gguf", n_vocab=600)
    assert_error(shared("run", "-p", "zip", "-md", "tiny.gguf"), 7, "do not fit together", "-md none")
    assert_error(shared("run", "-p", "zip", "-m", "tiny.gguf", "-md", "other.gguf"), 7, "do not fit")
    same = shared.generate("-p", "zip", "-n", "2", "-m", str(EMBEDDED_TARGET), "-md", str(EMBEDDED_TARGET))
    assert "warning: target and draft are the same file" in same.err


FLAGS = [  # added to a valid command line: exit code, and a part of the message
    ("-n 0", 2, "-n must be"),
    ("-n -3", 2, "-n must be"),
    ("-n 99999999999", 2, "-n must be"),
    ("-n many", 2, "-n"),
    ("--temp -1", 2, "--temp must be"),
    ("--temp nan", 2, "--temp must be"),
    ("--top-p 1.5", 2, "--top-p must be"),
    (f"--seed {-(2**63) - 1}", 2, "--seed must be"),
    ("--seed 18446744073709551616", 2, "--seed must be"),
    ("--sampling-seq tq", 2, "--sampling-seq"),
    ("--sampling-seq k,t", 2, "--sampling-seq"),
    ("--logit-bias 5", 2, "--logit-bias"),
    ("--logit-bias 5+inf", 2, "--logit-bias"),
    ("--drafters model,parrot", 2, "parrot"),
    ("--draft-max 513", 2, "--draft-max must be"),
    ("--draft-max ²", 2, "--draft-max"),
    ("--draft-max -1", 2, "--draft-max"),
    ("--draft-max 3 --draft-min 4", 2, "--draft-min 4"),
    ("--draft-p-min 2", 2, "--draft-p-min must be"),
    ("-ngl ²", 2, "-ngl"),
    ("-ngld some", 2, "-ngld"),
    ("-t -1", 2, "-t must be"),
    ("-t 100000", 2, "-t must be"),
    ("-b 0", 2, "-b must be"),
    ("-c -1", 2, "-c must be"),
    ("-ctk f17", 2, "-ctk must be"),
    ("-ctv q8_0 -fa off", 2, "flash attention"),
    ("-fa maybe", 2, "-fa must be"),
    ("-sm diagonal", 2, "-sm must be"),
    ("-ts 1,x", 2, "-ts"),
    ("-ts nan", 2, "-ts must be"),
    ("-dev CUDA9", 2, "CUDA9"),
    ("-devd CUDA9", 2, "CUDA9"),
    ("-ot nothing", 2, "-ot"),
    ("-ot (=CPU", 2, "regular expression"),
    ("-ot blk=NOPE", 2, "NOPE"),
    ("--lora none.gguf", 3, "none.gguf"),
    (f"--lora {EMBEDDED_DRAFT}", 6, "LoRA"),
    ("--lora-scaled x:y", 2, "FILE:SCALE"),
    ("--rope-scaling round", 2, "--rope-scaling must be"),
    ("--rope-scale 0", 2, "--rope-scale must be"),
    ("--rope-freq-base nan", 2, "--rope-freq-base must be"),
    ("--yarn-orig-ctx -5", 2, "--yarn-orig-ctx must be"),
    ("--reasoning maybe", 2, "--reasoning"),
    ("--raw -sys x", 2, "-sys"),
    ("-f zip.txt", 3, "there is no file zip.txt"),
    ("-e --no-escape", 2, "-e and --no-escape"),
    ("zap", 2, "two prompts"),
    ("--chat-template a --chat-template-file b", 2, "--chat-template-file"),
    ("--chat-template-file none.jinja", 3, "none.jinja"),
    ("--log-file /dev/null/x.log", 2, "--log-file"),
    ("--log-file -", 2, "--log-file must be the path of a file"),
    (f"-s {2**64}", 2, f"--seed must be a whole number from {-(2**63)} to {2**64 - 1}, not {2**64}"),
    ("--stop=", 2, "--stop must be"),
    ("unexpected", 2, "unexpected"),
]


@pytest.fixture(scope="module")
def flag_results(shared: Command) -> dict[str, Result]:
    """The result of a run with each of the flags."""
    results = shared.many(*(("run", "-p", "zip", *flags.split()) for flags, *_ in FLAGS))
    return dict(zip((flags for flags, *_ in FLAGS), results, strict=True))


@pytest.mark.parametrize(("flags", "code", "needle"), FLAGS)
def test_rejects_invalid_flags(flag_results: dict[str, Result], flags: str, code: int, needle: str) -> None:
    assert_error(flag_results[flags], code, needle)


def test_rejects_unusable_prompts(shared: Command) -> None:
    assert_error(shared("run", "-p", " \n"), 2, "the prompt is empty")
    assert_error(shared("run", stdin=b""), 2, "the prompt is empty")
    assert_error(shared("run", "-f", "none.txt"), 3, "none.txt")
    assert_error(shared("run", "-f", "."), 2, "-f")
    refused = shared("run", "-c", "256", "-p", "word " * 400)
    assert_error(refused, 2, "context size of 256", "use -c ")
    assert "trained" not in refused.err
    trained = "trained on 2048 tokens: beyond that answers get worse"
    assert_error(shared("run", "-c", "1024", "-p", "word " * 1500), 2, "use -c ", trained)
    assert_error(shared("run", "-c", "256", "-p", "w" * 1_000_000), 2, "is the least that could", trained)


def test_rejects_a_line_of_ten_megabytes(shared: Command) -> None:
    result = shared("run", stdin=b"w" * 10_000_000)
    assert_error(result, 2, "standard input is larger than 4 MiB")


@pytest.mark.parametrize(
    ("stdin", "why"),
    [
        (b"zip\0 zap", "a NUL in line 1"),
        (b"zip \xff\xfe zap", "byte 4 is 0xff"),
        (b"\xed\xa0\x80", "byte 0 is 0xed"),
    ],
)
def test_what_is_no_text_on_stdin_is_an_error(shared: Command, stdin: bytes, why: str) -> None:
    for args in ((), ("-p", "zip"), ("-f", "-")):
        assert_error(shared("run", *args, stdin=stdin), 2, "standard input", why)


def test_endless_input_is_read_up_to_a_limit(shared: Command) -> None:
    (shared.home / "yes").symlink_to("/dev/zero")
    for flag in ("-f", "--grammar-file", "-jf", "--chat-template-file"):
        assert_error(shared("run", "-p", "zip", flag, "yes"), 2, f"{flag}: yes is larger than 4 MiB")
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as yes:
        process = shared.start("run", stdin=yes.stdout)
        _, err = process.communicate(timeout=60)
        yes.kill()
    assert process.returncode == 2
    assert b"standard input is larger than 4 MiB" in err


def test_arguments_that_are_no_text_are_refused(shared: Command) -> None:
    for args, why in (
        ((b"-p", b"a\xff"), "-p: line 1 is not UTF-8 (byte 1 is 0xff)"),
        ((b"a\n\xff",), "the prompt: line 2 is not UTF-8 (byte 2 is 0xff)"),
        ((b"-p", b"zip", b"-sys", b"\x80"), "-sys: line 1 is not UTF-8 (byte 0 is 0x80)"),
        ((b"-p", b"zip", b"-r", b"\xed\xa0\x80", b"--no-escape"), "--stop: line 1"),
        ((b"-p", b"zip", b"-j", b"\xff\xfe"), "-j: line 1"),
    ):
        assert_error(shared("run", *args), 2, why, "convert it to UTF-8")
    assert_error(shared("run", b"-p", b"zip", b"-m", b"\xff.gguf"), 3, "there is no file")
    assert_error(shared("run", b"-p", b"zip", b"--no-\xff"), 2, "No such option")


def test_the_error_for_too_large_a_context_suggests_one_that_fits(shared: Command) -> None:
    result = shared("run", "-p", "zip", "-c", "2000000000")
    assert_error(result, 8, "not enough memory", "n_ctx 2000000000", "It would fit with -c ")
    suggested = int(re.findall(r"with -c (\d+)", result.err)[0])
    target, draft = read_model(str(EMBEDDED_TARGET)), read_model(str(EMBEDDED_DRAFT))
    available = float(re.findall(r"([\d.]+) GB available", result.err)[0])
    room = plan_settings(available=int(available * 1.01e9), n_ctx=suggested, n_outputs_max=65)
    plan_memory(target, draft, room)
    with pytest.raises(ResourceError):
        plan_memory(target, draft, replace(room, target=room.target.with_model(n_ctx=2 * suggested)))


def test_a_context_beyond_training_is_a_warning_with_a_setting(shared: Command) -> None:
    result = shared.generate("-p", "zip", "-n", "2", "-c", "2304")
    assert "was trained on 2048 tokens, n_ctx is 2304" in result.err
    assert "-c 2048 avoids it" in result.err
    assert "was trained" not in shared.generate("-p", "zip", "-n", "2", "-c", "2048").err


TEMPLATES = {
    "raises": ("{{ raise_exception('system role not supported') }}", "system role not supported"),
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "0.75 s"),
    "prints": ("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "4 MB"),
    "escapes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "fails": ("{{ 1 / 0 }}", "division"),
    "is cut": ("{% if messages %}", "does not compile"),
}


def test_failing_templates_of_the_user_are_errors(shared: Command) -> None:
    lines = (("run", "-p", "zip", "--chat-template", source) for source, _ in TEMPLATES.values())
    for result, (_, needle) in zip(shared.many(*lines), TEMPLATES.values(), strict=True):
        assert_error(result, 2, "chat template", needle)


@pytest.mark.parametrize("name", ["raises", "loops", "is cut"])
def test_failing_templates_of_the_model_are_errors(
    shared: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, needle = TEMPLATES[name]
    monkeypatch.setattr(tinygguf, "CHATML", source)
    tinygguf.llama(shared.home / "template.gguf")
    result = shared("run", "-p", "zip", "-m", "template.gguf", timeout=30)
    assert result.code in (2, 6)
    assert_error(result, result.code, "chat template", needle, "--raw")
    assert shared.generate("-p", "zip", "-m", "template.gguf", "--raw", "-n", "3").raw


def test_sampling_settings_of_a_file_are_read_as_llama_cpp_reads_them(shared: Command) -> None:
    odd = {"top_k": -1, "temp": -1.0, "penalty_last_n": -5, "penalty_repeat": 0.0}
    tinygguf.llama(shared.home / "odd.gguf", sampling=odd | {"mirostat": 2, "xtc_probability": 0.5})
    ask = ("run", "-p", "zip", "-m", "odd.gguf", "-n", "5", "--json", "--no-calibrate")
    found, greedy, flags = shared.many(ask, (*ask, "--temp", "0"), (*ask, "--top-k", "40", "-s", "1"))
    for result in (found, greedy, flags):
        assert result.code == 0, result.err
    assert found.json["tokens"] == greedy.json["tokens"]
    assert "left out: penalty_repeat = 0.000000\n" in found.err


def test_a_model_without_a_template_goes_on_with_the_prompt(shared: Command) -> None:
    content = g.llama(tokens=tinygguf.vocabulary(280)[0], metadata={"tokenizer.ggml.merges": ["a b"]}).build()
    (shared.home / "plain.gguf").write_bytes(content)
    arguments = ("-m", "plain.gguf", "-n", "4", "-s", "1", "--no-calibrate")
    result = shared("run", "-p", "zip", *arguments)
    assert result.code == 0, result.err
    assert result.lines.count("the model has no chat template: it goes on with the text of the prompt") == 1
    assert result.out == shared("run", "--raw", "-p", "zip", *arguments).out
    assert_error(shared("run", "-p", "zip", "-sys", "x", *arguments), 2, "-sys needs a chat template")
    assert_error(shared("chat", *arguments[:2]), 2, "no chat template")


@pytest.mark.skipif(os.name != "posix", reason="a shell's redirections")
class TestStreams:
    """Closed streams, pipes and full disks."""

    def shell(self, command: Command, line: str) -> Result:
        run = f"{shlex.quote(sys.executable)} -m specllama run -p zip --ignore-eos --no-calibrate"
        done = subprocess.run(
            ["bash", "-c", line.replace("RUN", run)],
            capture_output=True,
            env=command.env,
            cwd=command.home,
            timeout=60,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))

    def test_a_closed_pipe_ends_the_run(self, shared: Command) -> None:
        result = self.shell(shared, "RUN -n 1500 | head -c 1; exit ${PIPESTATUS[0]}")
        assert (result.code, len(result.raw)) == (141, 1)
        assert len(result.lines) == 1
        as_json = self.shell(shared, "RUN -n 5 --json | true; exit ${PIPESTATUS[0]}")
        assert (as_json.code, len(as_json.lines)) == (141, 1)

    def test_a_closed_stderr_is_tolerated(self, shared: Command) -> None:
        result = self.shell(shared, "RUN -n 5 2>&-")
        assert (result.code, result.err) == (0, "")
        assert result.raw

    @pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
    def test_an_answer_without_stdout_is_an_error(self, shared: Command, closed: str) -> None:
        result = self.shell(shared, f"RUN -n 5 {closed}")
        assert (result.code, result.raw) == (8, b"")
        assert ("standard output is closed" in result.err) == ("2>&-" not in closed)

    def test_a_pipe_that_does_not_block_gets_all_of_the_text(self, shared: Command) -> None:
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        more = ("-n", "60", "--ignore-eos", "--json", "--logprobs", "20")
        silent = {"stdout": theirs, "stderr": subprocess.DEVNULL}
        process = shared.start("run", "-p", "zip", "--no-calibrate", *more, **silent)
        os.close(theirs)
        time.sleep(3)  # the pipe, of 64 KiB, is full before it is read
        with open(ours, "rb") as pipe:
            data = pipe.read()
        assert process.wait(60) == 0
        assert len(data) > 100_000
        assert len(json.loads(data)["logprobs"]) == 60

    def test_without_prompt_and_stdin_there_is_an_error(self, shared: Command) -> None:
        result = self.shell(shared, f"{shlex.quote(sys.executable)} -m specllama run <&-")
        assert_error(result, 2, "there is no prompt")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk_at_stdout_is_an_error(self, shared: Command) -> None:
        result = self.shell(shared, "RUN -n 5 > /dev/full")
        assert_error(result, 8, "standard output cannot be written")
        assert "Exception ignored" not in result.err
        assert_error(self.shell(shared, "RUN --help > /dev/full"), 8, "standard output cannot be written")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_log_that_cannot_be_written_costs_no_answer(self, shared: Command) -> None:
        result = self.shell(shared, "RUN -n 5 -q --log-file /dev/full")
        assert (result.code, bool(result.raw)) == (0, True)
        assert result.lines == ["warning: --log-file: /dev/full cannot be written: No space left on device"]


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("temperature = 1\n\nno_such = 3\n", ("line 3", "no_such")),
        ("# x\ntop_k = 'many'\n", ("line 2", "top_k", "a whole number")),
        ("seed = = 1\n", ("line 1", "TOML")),
        ("draft_maximum = 4\n", ("draft_max",)),
        ("prompt = 'x'\n", ("prompt",)),
        ("[run]\nseed = 1\n", ("line 1", "run")),
    ],
)
def test_errors_in_a_config_file_name_file_and_line(
    shared: Command, text: str, needles: tuple[str, ...]
) -> None:
    project = shared.home / "specllama.toml"
    project.write_text(text)
    try:
        assert_error(shared("run", "-p", "zip"), 2, "specllama.toml", *needles)
    finally:
        project.unlink()


def test_errors_in_the_environment_name_the_variable(shared: Command) -> None:
    for variable, value, needle in (
        ("SPECLLAMA_TOP_K", "many", "SPECLLAMA_TOP_K must be a whole number"),
        ("SPECLLAMA_EXACT", "perhaps", "SPECLLAMA_EXACT must be true or false"),
        ("SPECLLAMA_TEMPERATUR", "1", "did you mean SPECLLAMA_TEMPERATURE"),
        ("SPECLLAMA_TEMPERATURE", "-1", "SPECLLAMA_TEMPERATURE must be"),
        ("SPECLLAMA_CONFIG", "/nowhere.toml", "SPECLLAMA_CONFIG names /nowhere.toml"),
    ):
        assert_error(shared("run", "-p", "zip", env={variable: value}), 2, needle)


def test_a_malformed_calibration_file_is_renamed_and_measured_again(command: Command) -> None:
    args = ("run", "-p", "zip", "-n", "24", "--ignore-eos", "--seed", "1")
    assert command(*args).code == 0
    (file,) = (command.cache / "calibration").glob("*.json")
    for content in (b"", b"[1]", b'{"schema": 99, "t1": 1}'):
        file.write_bytes(content)
        assert command(*args).code == 0
        assert {f.suffix for f in file.parent.iterdir()} == {".broken", ".json"}
        assert b'"t1"' in file.read_bytes()


def test_a_cache_that_cannot_be_written_is_not_an_error(command: Command) -> None:
    command.cache.write_text("a file where the directory should be")
    result = command("run", "-p", "zip", "-n", "5")
    assert (result.code, "rror" in result.err) == (0, False)


class TestLlamaCpp:
    """llama-cpp-python is missing, broken, or has another version."""

    def path(self, home: Path, *more: str) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(home), *more])}

    def test_another_version_is_an_error(self, command: Command) -> None:
        info = command.home / "llama_cpp_python-0.0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.0.1\n")
        result = command("run", "-p", "zip", env=self.path(command.home))
        assert_error(result, 9, "llama-cpp-python 0.0.1 is installed", " llama-cpp-python==")

    def test_a_missing_package_is_an_error(self, command: Command) -> None:
        (command.home / "sitecustomize.py").write_text(
            "from importlib import metadata\n"
            "def version(name):\n"
            "    raise metadata.PackageNotFoundError(name)\n"
            "metadata.version = version\n"
        )
        result = command("run", "-p", "zip", env=self.path(command.home))
        assert_error(result, 9, "llama-cpp-python is not installed", " llama-cpp-python==")

    @pytest.mark.parametrize(
        "source",
        [
            "raise ImportError('libllama.so: cannot open shared object file')",
            "raise RuntimeError(\"Failed to load shared library 'libllama.so'\")",
        ],
    )
    def test_a_broken_library_is_an_error(self, command: Command, source: str) -> None:
        (command.home / "llama_cpp").mkdir()
        (command.home / "llama_cpp" / "__init__.py").write_text(source + "\n")
        result = command("run", "-p", "zip", env=self.path(command.home))
        assert_error(result, 9, "cannot be loaded", " llama-cpp-python==")

    def test_a_folder_without_llama_cpp_is_named(self, command: Command) -> None:
        own = self.path(command.home)  # a process of its own
        result = command("run", "-p", "zip", env=own | {"LLAMA_CPP_LIB_PATH": "/nowhere"})
        assert_error(result, 9, "in /nowhere, which LLAMA_CPP_LIB_PATH names", "unset LLAMA_CPP_LIB_PATH")
        result = command("run", "-p", "zip", env=own | {"LLAMA_CPP_LIB_PATH": "."})
        assert_error(result, 9, f"in {command.home}, which LLAMA_CPP_LIB_PATH names")
        found = importlib.util.find_spec("llama_cpp")
        assert found is not None
        assert found.origin is not None
        (command.home / "lib").symlink_to(Path(found.origin).parent / "lib")
        words, folders = ("run", "-m", "pydoc", "-p", "zip", "-n", "1"), {"": None, "~/lib": None}
        for folder, cwd in (folders | {".": command.home / "lib"}).items():
            (result,) = command.batch(CommandLine(words, own | {"LLAMA_CPP_LIB_PATH": folder}, cwd))
            assert result.code == 0, (folder, result.err)

    def test_help_works_without_it(self, command: Command) -> None:
        (command.home / "llama_cpp").mkdir()
        (command.home / "llama_cpp" / "__init__.py").write_text("raise ImportError('no')\n")
        assert command("run", "--help", env=self.path(command.home)).code == 0
