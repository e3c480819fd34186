"""The pair check: llama.cpp's rule and defaults, against a table and against llama.cpp itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ggufbytes import GGUF, Typed, llama, vocab_metadata, words

from specllama.gguf import Header, check_model, read_header, read_source
from specllama.vocab import PairVerdict, check_pair, read_vocab

SHARED = Path(__file__).parents[3] / "shared"
VOCABS = sorted((SHARED / "vocabs").glob("*.gguf"))
needs_vocabs = pytest.mark.skipif(not VOCABS, reason=f"no real vocabularies in {SHARED / 'vocabs'}")

ASK_LLAMA = """
import ctypes, json, sys
import llama_cpp as L

@L.llama_log_callback
def silent(level, text, data):
    pass

L.llama_log_set(silent, ctypes.c_void_p(0))
answers = []
for path in sys.argv[1:]:
    params = L.llama_model_default_params()
    params.vocab_only = True
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        answers.append(None)
        continue
    vocab = L.llama_model_get_vocab(model)
    answers.append(
        dict(
            kind=int(L.llama_vocab_type(vocab)),
            n_tokens=int(L.llama_vocab_n_tokens(vocab)),
            bos_id=int(L.llama_vocab_bos(vocab)),
            eos_id=int(L.llama_vocab_eos(vocab)),
            add_bos=bool(L.llama_vocab_get_add_bos(vocab)),
            add_eos=bool(L.llama_vocab_get_add_eos(vocab)),
        )
    )
    L.llama_model_free(model)
print(json.dumps(answers))
"""
KINDS = {0: "none", 1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv", 6: "plamo2"}


class Memory:
    name = "memory.gguf"

    def __init__(self, data: bytes, name: str = "memory.gguf") -> None:
        self.data, self.size, self.name = data, len(data), name

    def read(self, offset: int, n: int) -> bytes:
        return self.data[offset : offset + n]


def header(tokens: Sequence[str | bytes], model: str = "gpt2", name: str = "m.gguf", **extra: Any) -> Header:
    meta = {"general.architecture": "llama", **vocab_metadata(tokens, model, **extra)}
    return read_source(Memory(GGUF(meta).build(), name))


def ask_llama(paths: Sequence[Path]) -> list[dict[str, Any] | None]:
    command = [sys.executable, "-c", ASK_LLAMA, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any] | None] = json.loads(done.stdout)
    return answers


def as_llama_says(h: Header) -> dict[str, Any]:
    v = read_vocab(h)
    ids = {"bos_id": -1 if v.bos_id is None else v.bos_id, "eos_id": -1 if v.eos_id is None else v.eos_id}
    return {"kind": v.kind, "n_tokens": v.n_tokens, "add_bos": v.add_bos, "add_eos": v.add_eos, **ids}


BYTES = [f"<0x{i:02X}>" for i in range(256)]
SPM = ["<unk>", "<s>", "</s>", *BYTES, *words(20)]
PRES = (
    "default gpt-2 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano minicpm5 "
    "qwen2 qwen35 tekken chameleon chatglm-bpe glm4 glm5 gemma4 granite-embed-multi-311m whitespace kimi-k2 "
    "jina-v2-code deepseek-v3 gpt-4o smollm command-r falcon starcoder refact"
)
CASES: list[tuple[str, Sequence[str], dict[str, Any]]] = [
    *(("gpt2", words(40), {"pre": pre}) for pre in PRES.split()),
    ("gpt2", words(40), {"pre": None}),
    ("gpt2", words(8), {}),  # the default ids 11 are out of range
    ("gpt2", words(40), {"bos_token_id": 39, "eos_token_id": 40}),
    ("gpt2", words(40), {"bos_token_id": 4294967295, "eos_token_id": 0}),
    ("gpt2", words(40), {"add_bos_token": True, "add_eos_token": True}),
    ("gpt2", words(40), {"pre": "llama-bpe", "add_bos_token": False}),
    ("gpt2", words(40), {"pre": "gemma4", "add_bos_token": False}),
    ("gpt2", words(40), {"pre": "glm4", "bos_token_id": 7}),
    ("gpt2", words(40), {"pre": "kimi-k2", "merges": None}),
    ("gemma4", words(40), {"pre": "default"}),
    ("gemma4", words(40), {"bos_token_id": 2, "eos_token_id": 1, "add_bos_token": False}),
    ("llama", SPM, {"pre": None}),
    ("llama", SPM, {"pre": "llama-bpe", "add_bos_token": False, "add_eos_token": True, "eos_token_id": 9}),
    ("bert", ["[PAD]", *words(200)], {"pre": None}),
    ("bert", ["[PAD]", *words(50)], {"pre": None}),
    ("t5", SPM, {"pre": None}),
    ("none", words(3), {}),
]


def test_defaults_are_those_of_llama_cpp(tmp_path: Path) -> None:
    paths = []
    for i, (model, tokens, extra) in enumerate(CASES):
        scores = Typed("arr[f32]", [0.0] * len(tokens))
        kinds = Typed("arr[i32]", [6 if t.startswith("<0x") else 2 if t == "<unk>" else 1 for t in tokens])
        meta = {"general.architecture": "llama", "llama.vocab_size": 77}
        meta |= vocab_metadata(tokens, model, **{"scores": scores, "token_type": kinds, **extra})
        paths.append(tmp_path / f"{i}.gguf")
        paths[-1].write_bytes(GGUF(meta).build())
    refused = []
    for path, case, theirs in zip(paths, CASES, ask_llama(paths), strict=True):
        if theirs is None:
            refused.append(case)
            continue
        theirs["kind"] = KINDS[theirs["kind"]]
        ours = as_llama_says(read_header(path))
        if theirs["kind"] == "none":
            ours["n_tokens"] = theirs["n_tokens"]  # llama.cpp takes vocab_size there, we the tokens
        assert ours == theirs, case
    assert not refused


@needs_vocabs
def test_real_vocabularies_as_llama_cpp_reads_them() -> None:
    for path, theirs in zip(VOCABS, ask_llama(VOCABS), strict=True):
        assert theirs is not None
        theirs["kind"] = KINDS[theirs["kind"]]
        assert as_llama_says(read_header(path)) == theirs, path


@needs_vocabs
def test_real_pairs() -> None:
    by_name = {p.stem.removeprefix("ggml-vocab-"): p for p in VOCABS}
    start = time.perf_counter()
    same = check_pair(read_header(by_name["llama-bpe"]), read_header(by_name["llama-bpe"]))
    other = check_pair(read_header(by_name["llama-bpe"]), read_header(by_name["qwen2"]))
    seconds = time.perf_counter() - start
    assert same.verdict == "identical"
    assert other.verdict == "incompatible"
    assert other.n_differing > 100_000
    assert len(other.differing) == 64
    grown = check_pair(read_header(by_name["phi-3"]), read_header(by_name["llama-spm"]))
    assert (grown.verdict, grown.n_differing) == ("compatible", 64)
    assert grown.first_difference == (32000, "<|endoftext|>", "")
    assert seconds < 2


def verdict(a: Header, b: Header) -> PairVerdict:
    answer = check_pair(a, b)
    assert answer.ok is (answer.verdict != "incompatible")
    assert answer.reason
    assert len(answer.differing) <= answer.n_differing
    return answer


def changed(tokens: Sequence[str], at: int, text: str = "other") -> list[str]:
    out = list(tokens)
    out[at] = text
    return out


W = words(300)
PAIRS = {
    "same": (header(W), header(W), "identical", 0, None),
    "id 4": (header(W), header(changed(W, 4)), "compatible", 1, (4, "t4", "other")),
    "id 5": (header(W), header(changed(W, 5)), "incompatible", 1, (5, "t5", "other")),
    "id 2 and 9": (
        header(W),
        header(changed(changed(W, 9), 2, "x")),
        "incompatible",
        2,
        (9, "t9", "other"),
    ),
    "last id": (header(W), header(changed(W, 299)), "incompatible", 1, (299, "t299", "other")),
    "128 more": (header(W), header([*W, *words(428)[300:]]), "compatible", 128, (300, "", "t300")),
    "128 fewer": (header(words(428)), header(W), "compatible", 128, (300, "t300", "")),
    "129 more": (header(W), header(words(429)), "incompatible", 129, (300, "", "t300")),
    "empty is named": (header(changed(W, 9, "")), header(changed(W, 9, "[EMPTY_9]")), "identical", 0, None),
    "up to NUL": (header(changed(W, 9, "a\0b")), header(changed(W, 9, "a\0c")), "identical", 0, None),
    "bad UTF-8": (header([*W, b"\xff"]), header([*W, b"\xfe"]), "incompatible", 1, (300, "�", "�")),
    "types": (header(W), header(W, "llama"), "incompatible", 0, None),
    "add_bos": (header(W), header(W, add_bos_token=True), "incompatible", 0, None),
    "add_bos by pre": (header(W, pre="llama-bpe"), header(W), "incompatible", 0, None),
    "add_bos by pre and key": (
        header(W, pre="llama-bpe"),
        header(W, add_bos_token=True),
        "identical",
        0,
        None,
    ),
    "bos id, added": (
        header(W, add_bos_token=True, bos_token_id=1),
        header(W, add_bos_token=True, bos_token_id=2),
        "incompatible",
        0,
        None,
    ),
    "bos id, default": (
        header(W, add_bos_token=True, bos_token_id=11),
        header(W, add_bos_token=True),
        "identical",
        0,
        None,
    ),
    "bos id, out of range": (
        header(W, add_bos_token=True, bos_token_id=300),
        header(W, add_bos_token=True),
        "identical",
        0,
        None,
    ),
    "bos id, not added": (header(W, bos_token_id=1), header(W, bos_token_id=2), "identical", 0, None),
    "add_eos": (header(W, add_eos_token=True), header(W), "incompatible", 0, None),
    "eos id, added": (
        header(W, add_eos_token=True, eos_token_id=1),
        header(W, add_eos_token=True, eos_token_id=2),
        "incompatible",
        0,
        None,
    ),
    "no tokenizer": (header(W), header([], "none"), "incompatible", 300, (0, "t0", "")),
}


@pytest.mark.parametrize(("target", "draft", "is_", "n_differing", "first"), PAIRS.values(), ids=PAIRS.keys())
def test_rule(
    target: Header, draft: Header, is_: str, n_differing: int, first: tuple[int, str, str] | None
) -> None:
    answer = verdict(target, draft)
    assert (answer.verdict, answer.n_differing, answer.first_difference) == (is_, n_differing, first)
    back = verdict(draft, target)
    assert (back.verdict, back.n_differing) == (is_, n_differing)


def test_reasons_name_both_sides() -> None:
    assert "target bpe, draft spm" in verdict(*PAIRS["types"][:2]).reason
    assert "token 5 is 't5' in the target and 'other' in the draft" in verdict(*PAIRS["id 5"][:2]).reason
    assert "does not add a bos token, the draft adds one" in verdict(*PAIRS["add_bos"][:2]).reason
    assert "bos tokens differ: target 1, draft 2" in verdict(*PAIRS["bos id, added"][:2]).reason
    assert "differ by 129" in verdict(*PAIRS["129 more"][:2]).reason
    assert "the draft has no tokenizer" in verdict(*PAIRS["no tokenizer"][:2]).reason


def test_notes_on_pre_tokenizer_and_end_token() -> None:
    notes = verdict(header(W, pre="qwen2", eos_token_id=7), header(W)).notes
    assert any("target qwen2, draft gpt-2" in n for n in notes)
    assert any("end tokens differ: target 7, draft 11" in n for n in notes)
    assert verdict(header(W, "llama", pre="a"), header(W, "llama", pre="b")).notes == (
        "warning: target and draft are the same file, which cannot be faster",
    )


def model(name: str, **shape: Any) -> Header:
    h = read_source(Memory(llama(**shape).build(), name))
    check_model(h)
    return h


def test_notes_on_cost() -> None:
    target, draft = model("t.gguf", n_layer=8), model("d.gguf", n_layer=1)
    notes = verdict(target, draft).notes
    assert len(notes) == 1
    assert f"the draft reads {draft.bytes_per_token / target.bytes_per_token:.2f} of" in notes[0]
    half = verdict(target, model("d.gguf", n_layer=5)).notes
    assert any(n.startswith("warning: the draft costs too much") for n in half)


def test_same_file_by_two_names(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(llama().build())
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    notes = verdict(read_header(path), read_header(link)).notes
    assert any("the same file" in n for n in notes)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    assert not any("the same file" in n for n in verdict(read_header(path), read_header(copy)).notes)
