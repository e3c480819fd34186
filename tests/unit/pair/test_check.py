"""The pair check: its rule by a table and by a property, and each note.

tests/engine/test_pair_check.py compares it with llama.cpp itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.gguf.header import Header, read_header, read_source
from specllama.heads.check import check_model
from specllama.pair.check import MAX_LISTED, PairVerdict, check_pair
from specllama.pair.vocab import end_ids, read_vocab
from tests.support.ggufbytes import GGUF, BytesSource, Typed, llama, vocab_metadata, words
from tests.support.paths import SHARED

VOCABS = sorted((SHARED / "vocabs").glob("*.gguf"))
needs_vocabs = pytest.mark.skipif(not VOCABS, reason=f"no real vocabularies in {SHARED / 'vocabs'}")


def header(tokens: Sequence[str | bytes], model: str = "gpt2", name: str = "m.gguf", **extra: Any) -> Header:
    meta = {"general.architecture": "llama", **vocab_metadata(tokens, model, **extra)}
    return read_source(BytesSource(GGUF(meta).build(), name))


@needs_vocabs
def test_verdicts_on_real_vocabularies() -> None:
    by_name = {p.stem.removeprefix("ggml-vocab-"): read_header(p) for p in VOCABS}
    assert check_pair(by_name["llama-bpe"], by_name["llama-bpe"]).verdict == "identical"
    other = check_pair(by_name["llama-bpe"], by_name["qwen2"])
    assert other.verdict == "incompatible"
    assert other.n_differing > 100_000
    assert len(other.differing) == MAX_LISTED
    grown = check_pair(by_name["phi-3"], by_name["llama-spm"])
    assert (grown.verdict, grown.n_differing) == ("compatible", 64)
    assert grown.first_difference == grown.differing[0] == (32000, "<|endoftext|>", None)


def verdict(a: Header, b: Header) -> PairVerdict:
    answer = check_pair(a, b)
    assert answer.ok is (answer.verdict != "incompatible")
    assert answer.reason
    assert len(answer.differing) == min(answer.n_differing, MAX_LISTED)
    assert answer.ok or not answer.notes
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
    "128 more": (header(W), header([*W, *words(428)[300:]]), "compatible", 128, (300, None, "t300")),
    "128 fewer": (header(words(428)), header(W), "compatible", 128, (300, "t300", None)),
    "129 more": (header(W), header(words(429)), "incompatible", 129, (300, None, "t300")),
    "empty is named": (header(changed(W, 9, "")), header(changed(W, 9, "[EMPTY_9]")), "identical", 0, None),
    "up to NUL": (header(changed(W, 9, "a\0b")), header(changed(W, 9, "a\0c")), "identical", 0, None),
    "bad UTF-8": (header([*W, b"\xff"]), header([*W, b"\xfe"]), "incompatible", 1, (300, r"\xff", r"\xfe")),
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
    "no tokenizer": (header(W), header([], "none"), "incompatible", 300, (0, "t0", None)),
    "no tokenizer in both": (header([], "none"), header([], "no_vocab"), "incompatible", 0, None),
    "unknown pre": (header(W, pre="new"), header(W, pre="new"), "incompatible", 0, None),
    "only a NUL": (header(changed(W, 9, "\0b")), header(changed(W, 9, "")), "identical", 0, None),
}


@pytest.mark.parametrize(("target", "draft", "is_", "n_differing", "first"), PAIRS.values(), ids=PAIRS.keys())
def test_verdict_follows_the_rule(
    target: Header,
    draft: Header,
    is_: str,
    n_differing: int,
    first: tuple[int, str | None, str | None] | None,
) -> None:
    answer = verdict(target, draft)
    assert (answer.verdict, answer.n_differing, answer.first_difference) == (is_, n_differing, first)
    back = verdict(draft, target)
    assert (back.verdict, back.n_differing) == (is_, n_differing)


def test_reasons_name_both_sides() -> None:
    assert "target bpe, draft spm" in verdict(*PAIRS["types"][:2]).reason
    assert "token 5 is 't5' in the target and 'other' in the draft" in verdict(*PAIRS["id 5"][:2]).reason
    assert "does not add a bos token, the draft adds one" in verdict(*PAIRS["add_bos"][:2]).reason
    assert "bos tokens differ: target 1 't1', draft 2 't2'" in verdict(*PAIRS["bos id, added"][:2]).reason
    nothing = header(W, pre="glm4", add_bos_token=True)
    assert "bos tokens differ: target none, draft 11 't11'" in verdict(nothing, PAIRS["add_bos"][1]).reason
    other = header(words(600), add_bos_token=True)
    assert "vocabulary sizes differ by 300" in verdict(header(W), other).reason
    assert "differ by 129" in verdict(*PAIRS["129 more"][:2]).reason
    assert "the draft has no tokenizer" in verdict(*PAIRS["no tokenizer"][:2]).reason
    assert "the target's pre-tokenizer 'new' is unknown" in verdict(*PAIRS["unknown pre"][:2]).reason


def test_all_differences_of_a_compatible_pair_are_listed() -> None:
    answer = verdict(header([*"abcde", *words(433)[5:]]), header(words(305)))
    assert answer.verdict == "compatible"
    assert [d.id for d in answer.differing] == [0, 1, 2, 3, 4, *range(305, 433)]
    assert answer.differing[4:6] == ((4, "e", "t4"), (305, "t305", None))


@given(st.data())
def test_the_verdict_agrees_with_a_plain_comparison_of_texts(data: st.DataObject) -> None:
    target = data.draw(st.lists(st.text(max_size=3), min_size=1, max_size=12, unique=True))
    draft = list(target)
    for i in data.draw(st.lists(st.integers(0, len(target) - 1), max_size=2)):
        draft[i] = data.draw(st.text(max_size=3))
    draft = draft[: data.draw(st.integers(1, len(draft)))]
    texts = [[t.partition("\0")[0] or f"[EMPTY_{i}]" for i, t in enumerate(v)] for v in (target, draft)]
    a, b = texts[0], [*texts[1], *[None] * (len(target) - len(draft))]
    differing = [(i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    answer = verdict(header(target), header(draft))
    assert list(answer.differing) == differing
    assert answer.ok is not any(i >= 5 and y is not None for i, _, y in differing)
    assert (answer.verdict == "identical") is (not differing)


def texts(answer: PairVerdict) -> list[str]:
    return [str(note) for note in answer.notes]


def notes(target: Header, draft: Header) -> list[str]:
    """The notes on a pair of two files, without those on missing weights and chat templates."""
    answer = verdict(replace(target, path="t.gguf"), replace(draft, path="d.gguf"))
    assert answer.ok, answer.reason
    return [n for n in texts(answer) if "without weights" not in n and "no chat template: messages" not in n]


def test_note_on_pre_tokenizers() -> None:
    (note,) = notes(header(W, pre="qwen2"), header(W, pre=None))
    assert note.startswith("pre-tokenizers differ: target qwen2, draft default;")
    assert (
        notes(header(W, pre="qwen2"), header(W, pre="deepseek-r1-qwen")) == []
    )  # two names of one pre-tokenizer
    assert notes(header(W, "llama", pre="a"), header(W, "llama", pre="b")) == []  # not used by this tokenizer


def test_note_on_merges() -> None:
    def merges(*pairs: str) -> Header:
        return header(W, merges=Typed("arr[str]", pairs))

    (note,) = notes(merges("a b", "c d", "e f"), merges("a b", "c x"))
    assert note.startswith("merges differ: target 3, draft 2, 3 in one of them only; the first at 1: ")
    assert "target 'c d', draft 'c x';" in note
    (note,) = notes(merges("a b", "c d"), merges("a b"))
    assert "1 in one of them only; the first at 1: target 'c d', draft none" in note
    (note,) = notes(merges("a b", "c d"), merges("c d", "a b"))
    assert "the same ones in another order; the first at 0" in note
    assert notes(merges("a b"), merges("a b")) == []


def test_note_on_end_tokens() -> None:
    (note,) = notes(header(W, eos_token_id=7, eot_token_id=8), header(W))
    assert "7 't7', 8 't8' of the target only, 11 't11' of the draft only; the target's are used" in note
    assert notes(header(W, eos_token_id=7, eot_token_id=8), header(W, eos_token_id=8, eot_token_id=7)) == []
    grown = header([*W, "<|im_end|>", "<|eot_id|>", "</s>", "<eos>", "[EOT]"])
    (note,) = notes(grown, header(W))
    assert "302 '</s>', 303 '<eos>', 1 more of the target only" in note


def test_a_file_without_tokenizer_has_no_end_tokens() -> None:
    h = header([], "none", eos_token_id=7)
    assert end_ids(h, read_vocab(h)) == frozenset()


def test_notes_on_chat_templates() -> None:
    def template(text: str | None) -> Header:
        return model("m.gguf", metadata={"tokenizer.chat_template": text})

    by_templates = {
        (a, b): texts(verdict(template(a), template(b))) for a in ("x", None) for b in ("x", "y", None)
    }
    assert not any("template" in n for n in by_templates["x", "x"])
    assert any(n.startswith("chat templates differ: the target's is used") for n in by_templates["x", "y"])
    assert any(n.startswith("the draft has no chat template") for n in by_templates["x", None])
    for b in ("x", "y", None):
        assert [n.split(":")[0] for n in by_templates[None, b] if "template" in n] == [
            "the target has no chat template"
        ]


def test_note_on_context() -> None:
    long, short = model("t.gguf", n_ctx_train=4096), model("d.gguf", n_ctx_train=512)
    assert any(
        "the draft was trained on 512 tokens of context, the target on 4096" in n
        for n in texts(verdict(long, short))
    )
    assert not any("trained on" in n for n in texts(verdict(short, long)))
    assert not any("trained on" in n for n in texts(verdict(long, long)))


def test_texts_in_reasons_and_notes_are_escaped() -> None:
    evil = "\x1b]0;gone\x07\x9b2J\u202e" + "x" * 500
    answers = [
        verdict(header(W), header(changed(W, 9, evil))),
        verdict(header(W, pre=evil), header(W)),
        verdict(header([*W, evil], eos_token_id=300), header(W, merges=Typed("arr[str]", [evil]))),
        verdict(header([*W, evil], eos_token_id=300, add_eos_token=True), header(W, add_eos_token=True)),
    ]
    for answer in answers:
        for line in (answer.reason, *texts(answer)):
            assert line.isprintable()
            assert len(line) < 400
    assert sum(r"\x1b]0;gone\x07\x9b2J\u202e" in " ".join((a.reason, *texts(a))) for a in answers) == 4


def model(name: str, **shape: Any) -> Header:
    h = read_source(BytesSource(llama(**shape).build(), name))
    check_model(h)
    return h


def cost(target: Header, draft: Header) -> str:
    return str(verdict(target, draft).notes[-1])


def test_notes_on_cost() -> None:
    target = model("t.gguf", n_layer=8)
    sizes = {n: model("d.gguf", n_layer=n) for n in (1, 5, 8, 9)}
    ratios = {n: d.bytes_per_token / target.bytes_per_token for n, d in sizes.items()}
    assert f"the draft reads {ratios[1]:.2g} times what the target reads per token (" in cost(
        target, sizes[1]
    )
    assert not cost(target, sizes[1]).startswith("warning:")
    assert cost(target, sizes[5]).startswith("warning: the draft reads 0.6")
    assert f"more than {100 * ratios[5]:.0f} % of its tokens must be accepted" in cost(target, sizes[5])
    for n in (8, 9):
        assert cost(target, sizes[n]).startswith("warning:")
        assert "it cannot be faster" in cost(target, sizes[n])


def test_note_on_missing_weights() -> None:
    full = model("t.gguf", tokens=W)
    assert cost(full, header(W)) == "warning: the draft is a vocabulary without weights: it cannot be run"
    assert cost(header(W), full) == "warning: the target is a vocabulary without weights: it cannot be run"


def test_the_same_file_under_two_names_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(llama().build())
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    warning = "warning: target and draft are the same file, which cannot be faster"
    assert cost(read_header(path), read_header(link)) == warning
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    assert "cannot be faster" in cost(read_header(path), read_header(copy))
    assert "same file" not in cost(read_header(path), read_header(copy))
