"""Heads against targets: what fits, and the reason for what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from specllama.gguf.architectures import (
    ARCHITECTURES,
    HYBRID,
    LAST_LAYER_OUTPUT,
    LAYER_INPUTS,
    MTP,
    MTP_ASSERTED,
    MTP_CHAINED,
    MTP_REQUIRED,
    NEXTN_ROWS,
    ROLLBACK,
)
from specllama.gguf.header import Header, read_header
from specllama.heads import HEAD_ARCHITECTURES, read_head
from specllama.pair.check import HeadVerdict, check_head, step_bytes
from tests.support import tinygguf, tinyheads, tinymtp

N_VOCAB = tinygguf.N_VOCAB


def checked(target: Path | Header, head: Path | Header) -> HeadVerdict:
    target, head = (read_header(x) if isinstance(x, Path) else x for x in (target, head))
    info = read_head(head)
    assert info is not None
    return check_head(target, info)


def changed(header: Header, **keys: object) -> Header:
    more = {f"{header.architecture}.{name}": value for name, value in keys.items()}
    return replace(header, metadata=MappingProxyType({**header.metadata, **more}))


def of_architecture(header: Header, name: str) -> Header:
    """The header as one of another architecture."""
    old = f"{header.architecture}."
    keys = {key.replace(old, f"{name}."): value for key, value in header.metadata.items()}
    return replace(header, metadata=MappingProxyType(keys | {"general.architecture": name}))


@pytest.fixture
def llama(tmp_path: Path) -> Header:
    return read_header(tinygguf.llama(tmp_path / "llama.gguf"))


def test_tables_name_known_architectures() -> None:
    tables = (
        HEAD_ARCHITECTURES,
        MTP,
        MTP_CHAINED,
        MTP_REQUIRED,
        LAYER_INPUTS,
        LAST_LAYER_OUTPUT,
        NEXTN_ROWS,
        ROLLBACK,
    )
    for table in (*tables, frozenset(MTP_ASSERTED)):
        assert table <= ARCHITECTURES
    assert MTP_CHAINED | frozenset(MTP_ASSERTED) <= MTP
    assert LAST_LAYER_OUTPUT <= LAYER_INPUTS
    assert MTP <= NEXTN_ROWS
    assert ROLLBACK <= HYBRID
    assert not {"qwen2", "gemma3", "mistral3", "glm4", "qwen4exp"} & LAYER_INPUTS


@pytest.mark.parametrize("build", [tinymtp.qwen35, tinymtp.mimo2, tinymtp.step35])
def test_a_head_inside_the_model_fits(build, tmp_path: Path) -> None:
    path = build(tmp_path / "t.gguf")
    verdict = checked(path, path)
    assert (verdict.verdict, verdict.reason) == ("identical", "the head is a part of the model")
    assert verdict.vocabulary is None


@pytest.mark.parametrize("build", [tinymtp.qwen35, tinymtp.mimo2, tinymtp.step35])
def test_a_head_beside_the_model_fits(build, tmp_path: Path) -> None:
    head = build(tmp_path / "mtp-t.gguf", part="head")
    for part in ("trunk", "all"):
        verdict = checked(build(tmp_path / f"{part}.gguf", part=part), head)
        assert (verdict.verdict, verdict.reason) == ("identical", f"the same {N_VOCAB} tokens")
        assert verdict.ok


def test_heads_with_files_of_their_own_fit(llama: Header, tmp_path: Path) -> None:
    assert checked(llama, tinyheads.eagle3(tmp_path / "e.gguf")).ok
    assert checked(llama, tinyheads.dflash(tmp_path / "d.gguf", markov=True)).ok
    gemma4 = tinyheads.gemma4(tmp_path / "g.gguf")
    assert checked(gemma4, tinyheads.gemma4_assistant(tmp_path / "a.gguf")).ok
    mimo2 = tinymtp.mimo2(tmp_path / "m.gguf")
    last = (0, 1, 2)  # mimo2 hands out the output of its last layer, gemma4 for EAGLE-3 alone
    for target in (mimo2, gemma4):
        assert checked(target, tinyheads.eagle3(tmp_path / "e.gguf", target_layers=last)).ok
    assert checked(mimo2, tinyheads.dflash(tmp_path / "d.gguf", target_layers=last)).ok
    assert "output of the last layer" in checked(gemma4, tmp_path / "d.gguf").reason


def test_a_head_of_another_model(llama: Header, tmp_path: Path) -> None:
    mimo2 = read_header(tinymtp.mimo2(tmp_path / "m.gguf", part="trunk"))
    sidecar = tinymtp.qwen35(tmp_path / "mtp-q.gguf", part="head")
    assert checked(mimo2, sidecar).reason == "the head is of a 'qwen35' model, the target is 'mimo2'"
    deeper = tinymtp.mimo2(tmp_path / "mtp-m.gguf", n_layer=3, part="head")
    assert checked(mimo2, deeper).reason == "the head is of a model of 3 layers, the target has 2"
    assistant = tinyheads.gemma4_assistant(tmp_path / "a.gguf")
    assert checked(llama, assistant).reason == "the head is an assistant of Gemma 4, the target is 'llama'"
    wider = tinyheads.gemma4_assistant(tmp_path / "a2.gguf", n_embd_target=50)
    gemma4 = read_header(tinyheads.gemma4(tmp_path / "g.gguf"))
    assert (
        checked(gemma4, wider).reason == "the head reads hidden states of 50 elements, the target's have 48"
    )
    reason = checked(changed(gemma4, **{"attention.key_length": 32}), assistant).reason
    assert reason == "key_length differs: target 32, head 16; the head reads the target's KV cache"
    assert (
        "heads of the KV cache differ"
        in checked(changed(gemma4, **{"attention.head_count_kv": 3}), assistant).reason
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"n_embd_target": 50}, "the head reads hidden states of 50 elements, the target's have 48"),
        ({"target_layers": (0, 1, 3)}, "the head reads layer 3, the target has 2"),
        (
            {"target_layers": (0, 1, 2)},
            "the head reads the output of the last layer, 1, which llama.cpp here does not hand out for "
            "'llama' models",
        ),
        (
            {"n_vocab": 281},
            "the head uses the target's embeddings and output, but their vocabularies are 280 and 281",
        ),
        (
            {"n_vocab": 500, "own_embeddings": True, "own_output": True},
            "vocabulary sizes differ by 220, more than 128: target 280 tokens, draft 500",
        ),
    ],
)
def test_eagle3_heads_that_do_not_fit(settings, reason: str, llama: Header, tmp_path: Path) -> None:
    verdict = checked(llama, tinyheads.eagle3(tmp_path / "e.gguf", **settings))
    assert (verdict.verdict, verdict.reason, verdict.notes) == ("incompatible", reason, ())


def test_a_narrower_head_needs_tensors_of_its_own(llama: Header, tmp_path: Path) -> None:
    wide = changed(llama, embedding_length=96)
    head = changed(read_header(tinyheads.eagle3(tmp_path / "e.gguf")), target_hidden_size=96)
    tensors = tuple(replace(t, shape=(288, 48)) if t.name == "fc.weight" else t for t in head.tensors)
    reason = checked(wide, replace(head, tensors=tensors)).reason
    assert reason == "the head uses the target's embeddings and output, but their hidden sizes are 96 and 48"


def test_targets_that_do_not_hand_out_their_layers(llama: Header, tmp_path: Path) -> None:
    head = tinyheads.eagle3(tmp_path / "e.gguf")
    for name in ("qwen2", "gemma3", "mistral3", "glm4", "qwen4exp"):
        expected = f"llama.cpp here does not hand out the layers of {name!r} models"
        assert checked(of_architecture(llama, name), head).reason == expected
    for name in ("qwen3", "gpt-oss", "hunyuan-dense"):
        assert checked(of_architecture(llama, name), head).ok


def test_targets_without_rollback(tmp_path: Path) -> None:
    head = tinyheads.eagle3(tmp_path / "e.gguf")
    for build in (tinygguf.mamba, tinygguf.jamba):
        assert "cannot roll back" in checked(build(tmp_path / "t.gguf"), head).reason
    assert checked(tinygguf.lfm2(tmp_path / "t.gguf"), head).ok


def test_a_head_is_no_target(tmp_path: Path) -> None:
    head = tinyheads.eagle3(tmp_path / "e.gguf")
    assert checked(head, head).reason == "the target is a head itself, not a model"


def test_another_tokenizer(llama: Header, tmp_path: Path) -> None:
    head = read_header(tinyheads.eagle3(tmp_path / "e.gguf"))
    metadata = dict(head.metadata)
    metadata["tokenizer.ggml.add_bos_token"] = False
    other = replace(head, metadata=MappingProxyType(metadata))
    assert checked(llama, other).reason == "the target adds a bos token, the draft does not add one"


def test_notes_state_what_a_head_costs(llama: Header, tmp_path: Path) -> None:
    short = read_header(tinyheads.eagle3(tmp_path / "e.gguf", d2t=range(5, 50)))
    verdict = checked(llama, short)
    notes = [str(note) for note in verdict.notes]
    assert notes[0] == "the head proposes 45 of the 280 tokens"
    assert notes[1].startswith("warning: a step of the head reads")
    sizes = {t.name: t.n_bytes for t in short.tensors}
    assert step_bytes(llama, verdict.head) == sum(sizes.values())
    whole = read_head(read_header(tinyheads.eagle3(tmp_path / "w.gguf")))
    assert whole is not None
    output = next(t.n_bytes for t in llama.tensors if t.name == "output.weight")
    assert step_bytes(llama, whole) == whole.weight_bytes + output
    mtp = read_header(tinymtp.step35(tmp_path / "s.gguf"))
    head = read_head(mtp)
    assert head is not None
    assert step_bytes(mtp, head) == head.weight_bytes // 3 + output
    several = "each of its 3 layers drafts one token, the last one those after it too"
    assert several in [n.message for n in check_head(mtp, head).notes]
    big = replace(llama, tensors=tuple(replace(t, n_bytes=100 * t.n_bytes) for t in llama.tensors))
    assert [n.severity for n in checked(big, short).notes] == ["note", "note"]


def test_numbers_of_a_header_are_bounded(llama: Header, tmp_path: Path) -> None:
    """Damaged numbers give a reason, never a loop or an exception of another kind."""
    head = read_header(tinyheads.eagle3(tmp_path / "e.gguf"))
    far = changed(head, target_layers=np.array([0, 1, 2**31 - 1], np.int32))
    assert checked(llama, far).reason == "the head reads layer 2147483647, the target has 2"
    for n in (2, 3, 2**32 - 1):
        assert not checked(changed(llama, nextn_predict_layers=n), far).ok
