"""The pair check compared with llama.cpp itself, which loads the vocabularies in a child process.

Run as a program, this file is the child: paths in, JSON out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specllama.errors import GGUFError
from specllama.gguf.check import check_tokenizer
from specllama.gguf.header import Header, read_header
from specllama.pair.check import check_pair
from specllama.pair.vocab import PRE_TYPES, end_ids, read_vocab
from tests.support.command import Command
from tests.support.ggufbytes import Typed, vocabulary, words
from tests.support.paths import ROOT

VOCABS = sorted((ROOT.parent / "shared" / "vocabs").glob("*.gguf"))
needs_vocabs = pytest.mark.skipif(
    not VOCABS, reason=f"no real vocabularies in {ROOT.parent / 'shared' / 'vocabs'}"
)
KINDS = {0: "none", 1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv", 6: "plamo2", 7: "test"}

W = words(40)
BIG = words(429)
BYTES = [f"<0x{i:02X}>" for i in range(256)]
SPM = ["<unk>", "<s>", "</s>", *BYTES, *words(20)]
HARMONY = ["<|return|>", "<|call|>", "<|end|>"]

Case = tuple[str, Sequence[str | bytes], dict[str, Any]]


def changed(at: int, text: str | bytes, tokens: Sequence[str | bytes] = W) -> list[str | bytes]:
    out = list(tokens)
    out[at] = text
    return out


# All ordered pairs of these are checked.
PAIRED: dict[str, Case] = {
    "plain": ("gpt2", W, {}),
    "no pre": ("gpt2", W, {"pre": None}),
    "qwen2": ("gpt2", W, {"pre": "qwen2"}),
    "llama-bpe": ("gpt2", W, {"pre": "llama-bpe"}),
    "llama-bpe up to NUL": ("gpt2", W, {"pre": "llama-bpe\0x"}),
    "llama-bpe, bos off": ("gpt2", W, {"pre": "llama-bpe", "add_bos_token": False}),
    "llama-bpe, bos 7": ("gpt2", W, {"pre": "llama-bpe", "bos_token_id": 7}),
    "llama-bpe, bos 40": ("gpt2", W, {"pre": "llama-bpe", "bos_token_id": 40}),
    "tekken": ("gpt2", W, {"pre": "tekken"}),
    "glm4": ("gpt2", W, {"pre": "glm4"}),
    "glm4, bos on": ("gpt2", W, {"pre": "glm4", "add_bos_token": True}),
    "glm4, bos 7 on": ("gpt2", W, {"pre": "glm4", "add_bos_token": True, "bos_token_id": 7}),
    "gemma4 as pre": ("gpt2", W, {"pre": "gemma4", "add_bos_token": False}),
    "gemma4": ("gemma4", W, {"pre": "default"}),
    "gemma4, ids": ("gemma4", W, {"bos_token_id": 2, "eos_token_id": 1, "add_bos_token": False}),
    "kimi-k2 without merges": ("gpt2", W, {"pre": "kimi-k2", "merges": None}),
    "unknown pre": ("gpt2", W, {"pre": "no such one"}),
    "whitespace": ("whitespace", W, {}),
    "bos on": ("gpt2", W, {"add_bos_token": True}),
    "bos on, 39": ("gpt2", W, {"add_bos_token": True, "bos_token_id": 39}),
    "bos on, 2^32-1": ("gpt2", W, {"add_bos_token": True, "bos_token_id": 4294967295}),
    "bos 3, not added": ("gpt2", W, {"bos_token_id": 3}),
    "eos on": ("gpt2", W, {"add_eos_token": True}),
    "eos on, 11": ("gpt2", W, {"add_eos_token": True, "eos_token_id": 11}),
    "eos on, 0": ("gpt2", W, {"add_eos_token": True, "eos_token_id": 0}),
    "eos on, 40": ("gpt2", W, {"add_eos_token": True, "eos_token_id": 40}),
    "both on": ("gpt2", W, {"add_bos_token": True, "add_eos_token": True}),
    "no types, no scores": ("gpt2", W, {"token_type": None, "scores": None}),
    "odd types": ("gpt2", W, {"token_type": Typed("arr[i32]", [0, 3, 4, 5, 99, -1, *[1] * 34])}),
    "whole scores": ("gpt2", W, {"scores": Typed("arr[i32]", [1] * 40)}),
    "odd merges": ("gpt2", W, {"merges": Typed("arr[str]", ["", "a", " b", "t 1"])}),
    "id 0": ("gpt2", changed(0, "x"), {}),
    "id 4": ("gpt2", changed(4, "x"), {}),
    "id 5": ("gpt2", changed(5, "x"), {}),
    "last id": ("gpt2", changed(39, "x"), {}),
    "ids 0 to 4": ("gpt2", [*"abcde", *W[5:]], {}),
    "empty at 9": ("gpt2", changed(9, ""), {}),
    "empty at 9 and 10": ("gpt2", changed(9, "", changed(10, "")), {}),
    "named as empty at 9": ("gpt2", changed(9, "[EMPTY_9]"), {}),
    "NUL first at 9": ("gpt2", changed(9, "\0x"), {}),
    "up to NUL at 9": ("gpt2", changed(9, "t9\0x"), {}),
    "not UTF-8": ("gpt2", changed(9, b"\xff"), {}),
    "not UTF-8 either": ("gpt2", changed(9, b"\xfe"), {}),
    "escapes": ("gpt2", changed(9, "\x1b[31m"), {}),
    "4 tokens": ("gpt2", words(4), {}),
    "4 other tokens, bos on": ("gpt2", list("abcd"), {"add_bos_token": True}),
    "5 tokens": ("gpt2", words(5), {}),
    "6 tokens": ("gpt2", words(6), {}),
    "167 tokens": ("gpt2", BIG[:167], {}),
    "168 tokens": ("gpt2", BIG[:168], {}),
    "169 tokens": ("gpt2", BIG[:169], {}),
    "168 tokens, last other": ("gpt2", [*BIG[:167], "x"], {}),
    "DNA": ("hybriddna", [*W[:-2], "<oov>", "t39\ue000"], {}),
    "DNA before <oov>": ("hybriddna", ["t0\ue000", *W[1:-2], "<oov>", "\ue000"], {}),
    "DNA without <oov>": ("hybriddna", [*W[:-1], "t39\ue000"], {}),
    "as DNA, mark alone": ("gpt2", ["x", *W[1:-2], "<oov>", "\ue000"], {}),
    "as DNA": ("gpt2", [*W[:-2], "<oov>", "t39"], {}),
    "spm": ("llama", SPM, {"pre": None}),
    "spm, pre ignored": ("llama", SPM, {"pre": "llama-bpe"}),
    "spm, bos off": ("llama", SPM, {"add_bos_token": False}),
    "spm, bos 3": ("llama", SPM, {"bos_token_id": 3}),
    "spm, eos 9 on": ("llama", SPM, {"add_eos_token": True, "eos_token_id": 9}),
    "spm without bytes": ("llama", W, {}),
    "wpm": ("bert", ["[PAD]", *words(200)], {"pre": None}),
    "wpm, bos out of range": ("bert", ["[PAD]", *words(75)], {"pre": None}),
    "ugm": ("t5", SPM, {"pre": None}),
    "rwkv": ("rwkv", [*W, "\\n"], {"pre": None}),
    "plamo2": ("plamo2", SPM, {"pre": None}),
    "test": ("test", W, {"pre": None}),
    "none": ("none", W, {}),
    "no vocab": ("no_vocab", [], {}),
}  # fmt: skip

# The end tokens of these are checked.
ENDS: dict[str, Case] = {
    "by eos": ("gpt2", W, {"eos_token_id": 3}),
    "by eos, eot and eom": ("gpt2", W, {"eos_token_id": 3, "eot_token_id": 4, "eom_token_id": 5}),
    "out of range": ("gpt2", W, {"eos_token_id": 40, "eot_token_id": 41, "eom_token_id": 42}),
    "by key and text": ("gpt2", [*W, "<|eot_id|>", "<|eom_id|>"], {"eot_token_id": 4, "eom_token_id": 5}),
    **{text: ("gpt2", [*W, text], {}) for text in (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
        "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
        "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
        "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
        "<|fim_prefix|>", "<|im_start|>", "<|plamo:eos|>", "<pad>",
    )},
    "all of a model": ("gpt2", [*W, "<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>"], {}),
    "harmony": ("gpt2", [*W, *HARMONY], {}),
    "harmony, end is eos": ("gpt2", [*W, *HARMONY], {"eos_token_id": 42}),
    "harmony without return": ("gpt2", [*W, "<|call|>", "<|end|>"], {}),
    "solar": ("gpt2", [*W, "<|flush|>", "<|calls|>", "<|end|>"], {}),
    "solar without calls": ("gpt2", [*W, "<|flush|>", "<|end|>"], {}),
    "gemma4": ("gpt2", [*W, "</s>", "<|tool_response>"], {}),
    "plamo": ("gpt2", [*W, "</s>", "<|plamo:eos|>"], {"eos_token_id": 41}),
    "plamo, not its eos": ("gpt2", [*W, "</s>", "<|plamo:eos|>"], {}),
    "fill by key": ("gpt2", W, {"fim_pad_token_id": 7, "fim_rep_token_id": 8, "fim_sep_token_id": 9}),
    "fill by key and text": ("gpt2", [*W, "<|fim_pad|>"], {"fim_pad_token_id": 7}),
    "fill out of range": ("gpt2", [*W, "<|fim_pad|>"], {"fim_pad_token_id": 99}),
    "fill, not an end": ("gpt2", W, {"fim_pre_token_id": 7, "fim_mid_token_id": 8, "fim_suf_token_id": 9}),
    "up to NUL": ("gpt2", [*W, "</s>\0x"], {}),
    "spm": ("llama", SPM, {"eos_token_id": 9}),
    "ugm": ("t5", SPM, {}),
}  # fmt: skip


def child(paths: Sequence[str]) -> dict[str, Any]:
    """llama.cpp's view of each file, None where it rejects it, and which ordered pairs its rule allows."""
    from specllama.config.load import ModelSettings
    from specllama.errors import IntegrityError
    from specllama.llama.library import llama
    from specllama.llama.model import LlamaModel

    views: list[dict[str, Any] | None] = []
    texts: list[list[bytes]] = []
    for path in paths:
        try:
            model = LlamaModel(ModelSettings(path=path), vocab_only=True)
        except IntegrityError:
            views.append(None)
            texts.append([])
            continue
        kind = llama.llama_vocab_type(model.vocab)
        n = model.n_vocab if kind else 0  # without a vocabulary, llama.cpp aborts on queries about tokens
        end_ids = [i for i in range(n) if llama.llama_vocab_is_eog(model.vocab, i)]
        if n:
            assert model.end_ids == frozenset(end_ids), path
        views.append(
            {
                "kind": KINDS[kind],
                "n_tokens": model.n_vocab,
                "bos_id": model.bos_id,
                "eos_id": model.eos_id,
                "add_bos": model.adds_bos,
                "add_eos": bool(llama.llama_vocab_get_add_eos(model.vocab)),
                "end_ids": end_ids,
            }
        )
        texts.append([llama.llama_vocab_get_text(model.vocab, i) for i in range(n)])
        model.close()
    allowed = [
        [rule(a, b, x, y) for b, y in zip(views, texts, strict=True)]
        for a, x in zip(views, texts, strict=True)
    ]
    return {"views": views, "allowed": allowed}


def rule(
    a: dict[str, Any] | None, b: dict[str, Any] | None, texts_a: Sequence[bytes], texts_b: Sequence[bytes]
) -> bool:
    """common_speculative_are_compatible, on what llama.cpp reports of target and draft."""
    if a is None or b is None or a["kind"] != b["kind"] or a["kind"] == "none":
        return False
    for name in ("bos", "eos"):
        if a[f"add_{name}"] != b[f"add_{name}"]:
            return False
        if a[f"add_{name}"] and a[f"{name}_id"] != b[f"{name}_id"]:
            return False
    if abs(a["n_tokens"] - b["n_tokens"]) > 128:
        return False
    return all(texts_a[i] == texts_b[i] for i in range(5, min(a["n_tokens"], b["n_tokens"])))


def query_llama(paths: Sequence[Path]) -> dict[str, Any]:
    done = Command(paths[0].parent).python("-m", "tests.engine.test_pair_check", *paths, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def our_view(header: Header) -> dict[str, Any]:
    v = read_vocab(header)
    return {
        "kind": v.kind,
        "n_tokens": v.n_tokens,
        "bos_id": -1 if v.bos_id is None else v.bos_id,
        "eos_id": -1 if v.eos_id is None else v.eos_id,
        "add_bos": v.add_bos,
        "add_eos": v.add_eos,
        "end_ids": sorted(end_ids(header, v)),
    }


def write_files(cases: dict[str, Case], folder: Path) -> list[Path]:
    paths = []
    for i, (model, tokens, extra) in enumerate(cases.values()):
        paths.append(folder / f"{i}.gguf")
        paths[-1].write_bytes(vocabulary(tokens, model, **extra).build())
    return paths


def check_agreement(names: Sequence[str], paths: Sequence[Path], rejected: Sequence[str] = ()) -> None:
    """llama.cpp and the pair check agree on every file and on every ordered pair."""
    report = query_llama(paths)
    headers = [read_header(path) for path in paths]
    assert [name for name, f in zip(names, report["views"], strict=True) if f is None] == list(rejected)
    for name, header, theirs in zip(names, headers, report["views"], strict=True):
        if theirs is not None:
            assert our_view(header) == theirs, name
    wrong = [
        (a, b, verdict)
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if (verdict := check_pair(headers[i], headers[j])).ok is not report["allowed"][i][j]
    ]
    assert wrong == []


def test_every_pair_of_edge_cases(tmp_path: Path) -> None:
    check_agreement(list(PAIRED), write_files(PAIRED, tmp_path), rejected=["unknown pre"])


@needs_vocabs
def test_every_pair_of_real_vocabularies() -> None:
    check_agreement([path.name for path in VOCABS], VOCABS)


def test_every_pre_tokenizer(tmp_path: Path) -> None:
    cases: dict[str, Case] = {name: ("gpt2", W, {"pre": name}) for name in PRE_TYPES}
    paths = write_files(cases, tmp_path)
    for path, name, theirs in zip(paths, cases, query_llama(paths)["views"], strict=True):
        assert theirs == our_view(read_header(path)), name


def test_every_kind_of_end_token(tmp_path: Path) -> None:
    paths = write_files(ENDS, tmp_path)
    for path, name, theirs in zip(paths, ENDS, query_llama(paths)["views"], strict=True):
        assert theirs == our_view(read_header(path)), name


def test_rejects_equal_token_texts_on_which_llama_cpp_aborts(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(vocabulary([*W, "t3"]).build())
    with pytest.raises(AssertionError, match="GGML_ASSERT"):
        query_llama([path])
    with pytest.raises(GGUFError, match="tokens 3 and 40 have the same text 't3'"):
        check_tokenizer(read_header(path))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(child(sys.argv[1:])))
