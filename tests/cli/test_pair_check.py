"""`specllama pair-check` as users type it: the table, the object of `--json`, exit codes, bad input."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.command import ROOT, Command, Result, assert_error
from tests.support.foreign import permuted
from tests.support.ggufbytes import llama, vocab_metadata, vocabulary, words

EMBEDDED = str(EMBEDDED_TARGET), str(EMBEDDED_DRAFT)
W = words(40)
KEYS = {
    *("schema", "verdict", "ok", "reason", "target", "draft", "differing", "n_differing", "first_difference"),
    "head",
    "translation",
    "notes",
}


def check(command: Command, *args: str, **more: Any) -> Result:
    """A check that comes to a verdict: nothing on stderr, everything on stdout fit for a terminal."""
    result = command("pair-check", *args, **more)
    assert result.code in (0, 7), result.err
    assert result.err == ""
    assert result.out.replace("\n", "").isprintable()
    return result


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    """Writes a model of a few kilobytes, named, with a vocabulary and other keys; its path."""

    def write(
        name: str, tokens: list[str], n_layer: int = 1, keys: dict[str, Any] | None = None, **vocab: Any
    ) -> str:
        path = tmp_path / name
        meta = {**vocab_metadata(tokens, **vocab), "tokenizer.chat_template": "x", **(keys or {})}
        path.write_bytes(llama(n_layer=n_layer, tokens=tokens, metadata=meta).build())
        return str(path)

    return write


def test_json_is_one_object_with_the_findings(shared: Command) -> None:
    result = check(shared, *EMBEDDED, "--json")
    report = result.json
    assert result.code == 0
    assert report.keys() == KEYS
    assert (report["schema"], report["verdict"], report["ok"]) == (
        "specllama.pair-check/1",
        "identical",
        True,
    )
    assert (report["differing"], report["n_differing"], report["first_difference"]) == ([], 0, None)
    target = report["target"]
    assert target["path"] == EMBEDDED[0]
    assert (target["quant"], target["params"], target["architecture"]) == ("Q4_0", 13111808, "llama")
    assert (target["tokenizer"], target["pre"], target["n_tokens"]) == ("bpe", "gpt-2", 4096)
    assert (target["bos_id"], target["eos_id"], target["add_bos"], target["add_eos"]) == (0, 2, True, False)
    assert (target["end_ids"], target["chat_template"], target["n_ctx_train"]) == ([0, 2], True, 2048)
    assert target["bytes_per_token"] > 5 * report["draft"]["bytes_per_token"] > 0


def test_a_head_inside_the_model(command: Command) -> None:
    path = tinymtp.step35(command.home / "m.gguf")
    result = check(command, str(path))
    rows = {line[:12].strip(): line[12:].split() for line in result.out.splitlines() if line}
    assert result.code == 0
    assert rows["file"] == [str(path), str(path)]
    assert rows["head"] == ["MTP,", "3", "layers"] * 2
    assert (rows["layers"], rows["hidden size"]) == (["2", "2"], ["48", "reads", "48"])
    assert rows["params"] == ["0.142", "M", "0.075", "M"]
    assert "identical: the head is a part of the model" in result.out
    assert "each of its 3 layers drafts one token, the last one those after it too" in result.out
    report = check(command, str(path), "--json").json
    assert report.keys() == KEYS
    head = report["head"]
    assert (head["kind"], head["in_target"], head["n_layer"], head["n_chained"]) == ("mtp", True, 3, 3)
    assert head["weight_bytes"] > head["step_bytes"] > 0


def test_the_check_of_an_inner_head_is_the_one_that_the_documentation_shows(command: Command) -> None:
    tinymtp.qwen35(command.home / "model.gguf")
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    assert f"```text\n{check(command, 'model.gguf').out}```\n" in page


def test_a_head_in_a_file_of_its_own(command: Command) -> None:
    target = tinygguf.llama(command.home / "t.gguf")
    head = tinyheads.eagle3(command.home / "h.gguf", d2t=range(5, 50))
    result = check(command, str(target), str(head))
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0].split() == ["target", "head"]
    rows = {line[:11].strip(): line[11:].split() for line in lines if line}
    assert rows["layers"] == ["2", "reads", "0,", "1,", "1"]
    assert rows["proposes"] == ["45", "of", "280"]
    assert "note: the head proposes 45 of the 280 tokens" in lines
    report = check(command, str(target), str(head), "--json").json
    assert report["head"]["target_layers"] == [0, 1, 1]
    assert (report["head"]["own_embeddings"], report["head"]["own_output"]) == (False, True)
    assert (report["verdict"], report["draft"]["architecture"]) == ("identical", "eagle3")


def test_heads_that_do_not_fit(command: Command) -> None:
    target = tinygguf.llama(command.home / "t.gguf")
    head = tinyheads.eagle3(command.home / "h.gguf", target_layers=(0, 1, 9))
    result = check(command, str(target), str(head))
    assert result.code == 7
    assert "incompatible: the head reads layer 9, the target has 2" in result.out
    assert result.out.endswith("Choose a head that was made for the target, or run without one: -md none.\n")
    report = check(command, str(target), str(head), "--json").json
    assert (report["ok"], report["notes"]) == (False, [])
    assert_error(command("pair-check", str(head), str(target)), 2, "a head without a model")
    assert_error(command("pair-check", str(target)), 2, "has no head of its own", "name a draft too")
    promise = tinymtp.mimo2(command.home / "p.gguf", part="promise")
    assert_error(command("pair-check", str(promise)), 7, "the header promises 1 MTP layer")
    head.write_bytes(head.read_bytes()[:-200])
    assert_error(command("pair-check", str(target), str(head)), 6, "h.gguf", "bytes are missing")


SAME_SIZE = (
    "the draft reads 1 times what the target reads per token (79.6 kB against 79.6 kB): it cannot be faster; "
    "a tenth is usual; are target and draft swapped?"
)


def test_incompatible_files_are_refused_with_a_reason(command: Command, file: Callable[..., str]) -> None:
    pair = file("t.gguf", W), file("d.gguf", [*W[:4], *[f"x{i}" for i in range(36)]])
    result = check(command, *pair)
    assert result.code == 7
    lines = result.out.splitlines()
    at = lines.index("incompatible: token 5 is 't5' in the target and 'x1' in the draft")
    assert lines[at + 1] == "  4: target 't4', draft 'x0'"
    assert lines[at + 6] == "  and 31 more"
    assert lines[at + 7 :] == [
        "Choose a draft of the target's own family, or run without one: -md none.",
        "note: 10 % of tokens shared, can draft with --draft-vocab auto",
        f"warning: {SAME_SIZE}",
    ]
    checked = check(command, *pair, "--json")
    assert checked.code == 7
    assert (checked.json["verdict"], checked.json["ok"]) == ("incompatible", False)
    assert checked.json["first_difference"] == {"id": 5, "target": "t5", "draft": "x1"}
    assert checked.json["n_differing"] == 36
    notes = [line.removeprefix("note: ") for line in lines[at + 8 :]]
    assert checked.json["notes"] == notes


def test_run_refuses_the_same_pair_for_the_same_reason(command: Command) -> None:
    pair = [str(tinygguf.llama(command.home / f"{n}.gguf", n_vocab=n)) for n in (280, 409)]
    reason = check(command, *pair, "--json").json["reason"]
    assert reason == "vocabulary sizes differ by 129, more than 128: target 280 tokens, draft 409"
    result = command("run", "-m", pair[0], "-md", pair[1], "-p", "x", "-n", "1")
    assert_error(result, 7, reason)


def test_a_draft_that_cannot_pay(command: Command, file: Callable[..., str]) -> None:
    small, large = file("small.gguf", W), file("large.gguf", W, n_layer=9)
    assert "warning" not in check(command, large, small).out
    result = check(command, small, large)
    assert result.code == 0
    assert "it cannot be faster" in result.out
    assert "swapped" in result.out


def test_vocabularies_without_weights(command: Command) -> None:
    for name, tokens in (("t", W), ("d", [*W, "more"])):
        (command.home / f"{name}.gguf").write_bytes(vocabulary(tokens).build())
    result = check(command, "t.gguf", "d.gguf")
    assert result.code == 0
    assert "compatible: 1 of 41 token ids differ" in result.out
    assert result.out.count("is a vocabulary without weights: it cannot be run") == 2


def test_relative_paths_links_and_odd_names(command: Command, file: Callable[..., str]) -> None:
    path = Path(file("with space and 'quote'.gguf", W))
    odd = os.fsencode(path.parent) + b"/not-utf8-\xff.gguf"
    shutil.copy(path, odd)
    result = command("pair-check", path.name, odd, "--json")
    assert result.code == 0
    assert "not-utf8-\udcff.gguf" in result.json["draft"]["path"]
    assert command("pair-check", path.name, odd).code == 0


EVIL = "\x1b]0;gone\x07\x9b2J\u202e\r\n\x7f"


def test_control_characters_of_the_files_are_escaped(command: Command, file: Callable[..., str]) -> None:
    keys = {"general.name": EVIL}
    target = file(f"t{EVIL}.gguf", [*W, EVIL], keys=keys, eos_token_id=40, bos_token_id=40)
    draft = file("d.gguf", [*W, "x" * 5000], keys=keys)
    unknown = file("u.gguf", W, pre=EVIL)
    for pair in ((target, target), (target, draft), (draft, unknown)):
        for args in ((), ("--json",)):
            raw = check(command, *pair, *args).raw
            assert not any((b < 0x20 and b != 0x0A) or b == 0x7F for b in raw)
            assert b"\xc2\x9b" not in raw
            assert "\u202e".encode() not in raw
    assert check(command, target, draft, "--json").json["target"]["name"] == EVIL
    lines = check(command, target, draft).out.splitlines()
    assert any(line.startswith("name") and r"\x1b]0;gone\x07\x9b2J\u202e\r\n\x7f" in line for line in lines)
    assert max(map(len, lines)) < 400


def test_the_report_fits_twenty_columns(shared: Command) -> None:
    lines = check(shared, *EMBEDDED, env={"COLUMNS": "20"}).out.splitlines()
    assert (lines[0], lines.count("draft")) == ("target", 1)
    assert all(len(line) <= 20 or len(line.split()) == 1 for line in lines), "only names are not broken"
    assert lines[3:7] == ["  name pydoc-target", "  quant Q4_0", "  params 13.1 M", "  tokenizer bpe"]
    assert "identical: the same 4096 tokens" in " ".join(lines)


def test_llama_cpp_is_not_needed(command: Command) -> None:
    broken = command.home / "broken" / "llama_cpp"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('must not be loaded')\n")
    env = {"PYTHONPATH": os.pathsep.join([str(broken.parent), str(ROOT)])}
    assert "must not be loaded" in command("run", "-p", "x", env=env).err
    assert check(command, *EMBEDDED, env=env).out == check(command, *EMBEDDED).out


GOOD = EMBEDDED_DRAFT.read_bytes()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 4212345678\n"
BAD = {
    "empty": (b"", "the file is empty"),
    "html": (b"<!DOCTYPE html><html>404</html>" * 9, "an HTML or XML page"),
    "json": (b'{"error": "Repository not found"}', "JSON text"),
    "lfs": (LFS, "a git-LFS pointer"),
    "cut in the magic": (GOOD[:3], "magic"),
    "cut in the header": (GOOD[:5000], "do not fit in a file of 5000 bytes"),
    "cut in the weights": (GOOD[:-1], "1 bytes are missing"),
    "no tokenizer": (llama(metadata=vocab_metadata([], "none")).build(), "no tokenizer"),
    "tokenizer of the future": (llama(metadata={"tokenizer.ggml.model": "new"}).build(), "'new' is unknown"),
    "tokens twice": (llama(tokens=[*W, "t3"]).build(), "the same text 't3'"),
    "no tokens, no weights": (vocabulary([]).build(), "without weights"),
    "another architecture": (llama(metadata={"general.architecture": "\x1b[2J"}).build(), r"\x1b[2J"),
}


@pytest.mark.parametrize(("data", "needle"), BAD.values(), ids=BAD.keys())
def test_bad_files_are_refused_with_a_reason(command: Command, data: bytes, needle: str) -> None:
    (command.home / "bad.gguf").write_bytes(data)
    for args in (("bad.gguf", EMBEDDED[1]), (EMBEDDED[0], "bad.gguf", "--json")):
        result = command("pair-check", *args)
        assert_error(result, 6, "bad.gguf", needle)
        assert "\x1b" not in result.err


def test_paths_that_are_not_files_are_refused(command: Command) -> None:
    (command.home / "folder").mkdir()
    os.mkfifo(command.home / "pipe")
    (command.home / "gone").symlink_to("nowhere")
    cases = {
        "folder": (2, "folder is a folder"),
        "pipe": (2, "not a regular file, but a named pipe"),
        "/dev/null": (2, "not a regular file, but a device"),
        "missing.gguf": (3, "there is no file missing.gguf"),
        "gone": (3, "there is no file gone"),
        f"{EMBEDDED[0]}/x": (3, "there is no file"),
        "": (2, "needs the path"),
        "x" * 5000: (2, "not a usable path"),
    }
    for name, (code, needle) in cases.items():
        for result in command.many(("pair-check", name, EMBEDDED[1]), ("pair-check", EMBEDDED[0], name)):
            assert_error(result, code, needle)
    assert "MAIN" in command("pair-check", "missing.gguf", EMBEDDED[1]).err
    assert "DRAFT" in command("pair-check", EMBEDDED[0], "missing.gguf").err


def test_wrong_usage_is_one_clear_line(shared: Command) -> None:
    for args in ((), (EMBEDDED[0],), (*EMBEDDED, "third"), (*EMBEDDED, "--nothing")):
        assert_error(shared("pair-check", *args), 2)


def test_without_a_draft_it_is_what_run_uses(shared: Command) -> None:
    by_place, alone, flags = shared.many(
        ["pair-check", "pydoc", "pydoc"],
        ["pair-check", "pydoc"],
        ["pair-check", "-m", "pydoc", "-md", "pydoc"],
    )
    assert by_place.code == 0
    assert "0.16 times what the target reads" in by_place.out
    assert by_place.raw == alone.raw == flags.raw
    for auto in (["pydoc", "auto"], ["-m", "pydoc", "-md", "auto"]):
        assert shared("pair-check", *auto).raw == alone.raw
    assert_error(shared("pair-check", "-m", "pydoc", "-md", "none"), 2, "none is no draft to check")
    assert_error(shared("pair-check", "pydoc", "-m", "pydoc"), 2, "MAIN is given twice")
    assert_error(shared("pair-check", "-md", "pydoc"), 2, "MAIN is missing")


def test_a_closed_pipe_is_silent(shared: Command) -> None:
    process = shared.start("pair-check", *EMBEDDED)
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_the_object_is_one_line_of_ascii(shared: Command) -> None:
    raw = check(shared, *EMBEDDED, "--json", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}).raw
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert json.loads(raw)["ok"] is True


def test_a_draft_whose_tokens_can_be_translated(command: Command) -> None:
    """llama.cpp's verdict stays, and the exit code is 0 only where translating was asked for."""
    draft = str(permuted(Path(EMBEDDED_DRAFT), command.home / "other.gguf"))
    strict = check(command, EMBEDDED[0], draft)
    assert strict.code == 7
    assert "incompatible: bos tokens differ: " in strict.out
    assert "Choose a draft of the target's own family, or run without one: -md none." in strict.out
    assert "note: 100 % of tokens shared, can draft with --draft-vocab auto" in strict.out
    assert check(command, EMBEDDED[0], draft, "--draft-vocab", "strict").out == strict.out
    auto = check(command, EMBEDDED[0], draft, "--draft-vocab", "auto")
    assert auto.code == 0
    assert "incompatible: bos tokens differ: " in auto.out
    assert "note: 100 % of tokens shared, its tokens are translated" in auto.out
    assert "Choose" not in auto.out
    report = check(command, EMBEDDED[0], draft, "--draft-vocab", "auto", "--json").json
    assert (report["verdict"], report["ok"]) == ("incompatible", True)
    assert report["translation"] == {"n_shared": 4093, "n_tokens": 4093, "share": 1.0}
    report = check(command, EMBEDDED[0], draft, "--json").json
    assert (report["verdict"], report["ok"]) == ("incompatible", False)
    assert check(command, *EMBEDDED, "--draft-vocab", "auto", "--json").json["translation"] is None
    wrong = command("pair-check", *EMBEDDED, "--draft-vocab", "some")
    assert_error(wrong, 2, "--draft-vocab", "auto, strict")


def test_what_cannot_be_translated(command: Command) -> None:
    draft = str(permuted(Path(EMBEDDED_DRAFT), command.home / "other.gguf", prefix="~~"))
    result = check(command, EMBEDDED[0], draft, "--draft-vocab", "auto")
    assert result.code == 7
    assert "note: its tokens cannot be translated: the vocabularies share 0 of the draft" in result.out
    target = tinygguf.llama(command.home / "t.gguf")
    head = tinyheads.eagle3(command.home / "h.gguf", target_layers=(0, 1, 9))
    result = check(command, str(target), str(head), "--draft-vocab", "auto")
    assert result.code == 7
    assert "--draft-vocab is of no use to a head" in result.out
