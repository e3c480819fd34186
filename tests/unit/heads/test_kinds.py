"""Heads in headers: every kind is recognised with its fields, and damage is named before a load."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from specllama.errors import GGUFError, UsageError
from specllama.gguf.header import Header, read_header
from specllama.heads import is_head_file, read_head, unusable_head
from specllama.heads.check import check_draft, check_model
from specllama.heads.kind import HeadInfo, read_d2t
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.tinygguf import N_EMBD, N_VOCAB

MTP = {"qwen35": tinymtp.qwen35, "mimo2": tinymtp.mimo2, "step35": tinymtp.step35}
FILES: dict[str, Callable[[Path], Path]] = {
    "assistant": tinyheads.gemma4_assistant,
    "eagle3": tinyheads.eagle3,
    "dflash": tinyheads.dflash,
    "dflash2": lambda path: tinyheads.dflash(path, top_k=4),
    "dspark": lambda path: tinyheads.dflash(path, markov=True),
    "sidecar": lambda path: tinymtp.qwen35(path, part="head"),
}


def changed(header: Header, **keys: object) -> Header:
    """The header with other metadata, by the keys' last parts; None removes a key."""
    metadata = dict(header.metadata)
    for name, value in keys.items():
        key = f"{header.architecture}.{name}"
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value  # type: ignore[assignment]
    return replace(header, metadata=MappingProxyType(metadata))


def without(header: Header, *names: str) -> Header:
    assert set(names) <= {t.name for t in header.tensors}
    return replace(header, tensors=tuple(t for t in header.tensors if t.name not in names))


def head_of(header: Header) -> HeadInfo:
    head = read_head(header)
    assert head is not None
    return head


@pytest.mark.parametrize("name", MTP)
def test_a_model_with_a_head_of_its_own(name: str, tmp_path: Path) -> None:
    header = read_header(MTP[name](tmp_path / "t.gguf"))
    check_model(header)
    check_draft(header)
    head, n_mtp = head_of(header), 3 if name == "step35" else 1
    assert (head.kind.name, head.own_file, head.n_layer) == ("mtp", False, n_mtp)
    assert (head.n_layer_target, head.n_embd_target) == (header.n_layer - n_mtp, N_EMBD)
    assert (head.n_chained, head.n_draft_max) == (n_mtp, None)
    assert head.label == ("MTP, 3 layers" if n_mtp > 1 else "MTP, 1 layer")
    assert not is_head_file(header)
    of_head = [t for t in header.tensors if t.name.startswith(f"blk.{head.n_layer_target}.")]
    assert head.weight_bytes == n_mtp * sum(t.n_bytes for t in of_head)
    assert header.bytes_per_token == read_header(MTP[name](tmp_path / "x.gguf", part="trunk")).bytes_per_token


@pytest.mark.parametrize("name", MTP)
def test_a_head_in_a_file_of_its_own(name: str, tmp_path: Path) -> None:
    header = read_header(MTP[name](tmp_path / "mtp-t.gguf", part="head"))
    assert is_head_file(header)
    check_draft(header)
    head = head_of(header)
    assert (head.own_file, head.own_embeddings, head.own_output) == (True, True, True)
    with pytest.raises(UsageError, match="a head without a model") as caught:
        check_model(header)
    assert "as its draft" in caught.value.hint
    for missing in (
        "token_embd.weight",
        "output_norm.weight",
        f"blk.{head.n_layer_target}.nextn.enorm.weight",
    ):
        with pytest.raises(GGUFError, match=missing):
            check_draft(without(header, missing))


@pytest.mark.parametrize("name", MTP)
def test_a_header_without_the_head_that_it_promises(name: str, tmp_path: Path) -> None:
    header = read_header(MTP[name](tmp_path / "t.gguf", part="promise"))
    assert read_head(header) is None
    assert "promises" in unusable_head(header)
    if name == "qwen35":  # the only one of the three that llama.cpp does not load
        with pytest.raises(GGUFError, match="the header promises 1 MTP layer, which the file does not have"):
            check_model(header)
    else:
        check_model(header)


def test_a_model_without_a_head(tmp_path: Path) -> None:
    header = read_header(tinygguf.llama(tmp_path / "t.gguf"))
    assert read_head(header) is None
    assert unusable_head(header) == ""
    assert not is_head_file(header)


def test_heads_that_llama_cpp_would_abort_on(tmp_path: Path) -> None:
    mimo2 = read_header(tinymtp.mimo2(tmp_path / "m.gguf"))
    for name in ("attn_qkv", "ffn_up"):
        broken = without(mimo2, f"blk.2.{name}.weight")
        assert read_head(broken) is None
        assert name in unusable_head(broken)
    keys = {key.replace("mimo2.", "glm4."): value for key, value in mimo2.metadata.items()}
    keys["general.architecture"] = "glm4"
    other = replace(mimo2, metadata=MappingProxyType(keys))
    assert "does not run the MTP layers of 'glm4'" in unusable_head(other)
    two = read_header(tinymtp.qwen35(tmp_path / "q.gguf", n_mtp=2))
    assert unusable_head(two) == "llama.cpp here runs one MTP layer of 'qwen35' models, the file has 2"
    assert read_head(two) is None


def test_an_incomplete_head_keeps_llama_cpp_from_loading_the_model(tmp_path: Path) -> None:
    for build, n_layer in ((tinymtp.qwen35, 4), (tinymtp.mimo2, 2)):
        header = read_header(build(tmp_path / "t.gguf"))
        with pytest.raises(GGUFError, match=rf"lacks blk\.{n_layer}\.nextn\.hnorm\.weight"):
            check_model(without(header, f"blk.{n_layer}.nextn.hnorm.weight"))


def test_fields_of_the_files_of_heads(tmp_path: Path) -> None:
    heads = {name: head_of(read_header(build(tmp_path / f"{name}.gguf"))) for name, build in FILES.items()}
    assistant, eagle3, dflash, dspark = (heads[n] for n in ("assistant", "eagle3", "dflash", "dspark"))
    assert (assistant.n_embd, assistant.n_embd_target, assistant.n_layer) == (64, N_EMBD, 2)
    assert (assistant.kind.shares_cache, assistant.own_embeddings) == (True, False)
    assert (eagle3.target_layers, eagle3.n_embd_target, eagle3.n_draft_max) == ((0, 1, 1), N_EMBD, None)
    assert (eagle3.own_embeddings, eagle3.own_output) == (False, False)
    assert (dflash.block_size, dflash.n_draft_max, dflash.mask_id) == (4, 3, 3)
    two = heads["dflash2"]
    assert (two.kind.name, two.selector_top_k, two.n_draft_max) == ("dflash", 4, 3)
    assert (two.label, dflash.label) == ("DFlash 2, blocks of 4", "DFlash, blocks of 4")
    assert (dspark.kind.name, dspark.n_draft_max) == ("dspark", 4)
    own = tinyheads.eagle3(tmp_path / "own.gguf", own_embeddings=True, own_output=True)
    whole = head_of(read_header(own))
    assert (whole.own_embeddings, whole.own_output) == (True, True)
    short = head_of(read_header(tinyheads.eagle3(tmp_path / "short.gguf", d2t=range(5, 50))))
    assert (short.n_proposed, short.has_d2t, short.own_output, short.own_embeddings) == (
        45,
        True,
        True,
        False,
    )
    read_d2t(short)


@pytest.mark.parametrize("name", FILES)
def test_files_of_heads_pass_as_drafts_and_not_as_models(name: str, tmp_path: Path) -> None:
    header = read_header(FILES[name](tmp_path / "h.gguf"))
    check_draft(header)
    with pytest.raises(UsageError, match="a head without a model"):
        check_model(header)


@pytest.mark.parametrize("name", FILES)
def test_any_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    header = read_header(FILES[name](tmp_path / "h.gguf"))
    optional = {"output.weight", "conf_proj.weight", "conf_proj.bias", "rope_freqs.weight"}
    optional |= {"markov_w1.weight"}  # without it the file is of DFlash
    if name in ("dflash", "dflash2", "dspark"):  # whose keys may be the values too
        optional |= {"blk.0.attn_v.weight", "blk.1.attn_v.weight"}
    for tensor in header.tensors:
        if tensor.name in optional:
            check_draft(without(header, tensor.name))
        elif name != "sidecar":
            with pytest.raises(GGUFError, match=re.escape(tensor.name)):
                check_draft(without(header, tensor.name))


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [
        ("eagle3", {"target_layers": None}, "0 layers, three are needed"),
        ("eagle3", {"target_layers": np.array([1, 2], np.int32)}, "2 layers, three are needed"),
        ("eagle3", {"target_layers": np.array([-1, 0, 1], np.int32)}, "layer -1 is not possible"),
        ("eagle3", {"target_hidden_size": None}, "the head needs it"),
        ("eagle3", {"target_hidden_size": 64}, "'fc.weight' is 144 × 48, not 192 × 48"),
        ("eagle3", {"block_count": 2}, "an EAGLE-3 head has one layer"),
        ("eagle3", {"embedding_length": 50}, "is 144 × 48, not 144 × 50"),
        ("dflash", {"target_layers": None}, "the head needs it"),
        ("dflash", {"block_size": 1}, "1 is not in 2 to 256"),
        ("dflash", {"block_size": 1 << 31}, "is not in 2 to 256"),
        ("dspark", {"block_size": None}, "0 is not in 2 to 256"),
        ("dflash2", {"block_size": None}, "0 is not in 2 to 256"),
        ("dflash2", {"selector_top_k": 0}, "0, a selector needs 1 or more"),
        ("dflash2", {"selector_top_k": 7}, "7 candidates do not fit into 48 values"),
        ("dflash2", {"selector_rank": 9}, "is 8 × [0-9]+, not 9 × "),
        ("dflash2", {"selector_rank": None}, "0, a selector needs 1 or more"),
        ("dflash2", {"conv_kernel_size": None}, "0, a selector needs 1 or more"),
        ("dflash2", {"conv_group_size": 5}, "5 does not divide the hidden size 48"),
        ("dflash2", {"hyper_connection.count": 2}, "does not run a selector"),
        ("dflash", {"block_count": 1 << 31}, "not in 1 to 512"),
        ("assistant", {"nextn_predict_layers": 3}, "3 of 2 layers"),
        ("assistant", {"nextn_predict_layers": 0}, "0 of 2 layers"),
        ("assistant", {"embedding_length_out": 64}, "the target's hidden size, not its own"),
        ("assistant", {"embedding_length_out": None}, "the target's hidden size, not its own"),
        ("assistant", {"embedding_length_out": 52}, "is 96 × 64, not 104 × 64"),
    ],
)
def test_wrong_keys_are_named(name: str, keys: dict[str, object], reason: str, tmp_path: Path) -> None:
    header = changed(read_header(FILES[name](tmp_path / "h.gguf")), **keys)
    with pytest.raises(GGUFError, match=reason):
        check_draft(header)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [((3, 4, N_VOCAB), f"ids from 3 to {N_VOCAB}"), ((3, 4, 3), "twice"), ((-1, 4, 5), "from -1")],
)
def test_ids_of_a_shortened_vocabulary_are_checked(ids: tuple[int, ...], reason: str, tmp_path: Path) -> None:
    path = tinyheads.eagle3(tmp_path / "h.gguf", d2t=(3, 4, 5))
    header = read_header(path)
    offset = next(t.offset for t in header.tensors if t.name == "d2t")
    data = bytearray(path.read_bytes())
    data[offset : offset + 24] = np.array(ids, "<i8").tobytes()
    path.write_bytes(data)
    check_draft(header)
    with pytest.raises(GGUFError, match=reason):
        read_d2t(head_of(header))


def test_a_shortened_vocabulary_needs_an_output_of_its_size(tmp_path: Path) -> None:
    header = read_header(tinyheads.eagle3(tmp_path / "h.gguf", d2t=range(5, 50)))
    with pytest.raises(GGUFError, match=r"needs output\.weight, which the file lacks"):
        check_draft(without(header, "output.weight"))
    tensors = tuple(replace(t, shape=(48, 44)) if t.name == "output.weight" else t for t in header.tensors)
    with pytest.raises(GGUFError, match="is 48 × 44, not 48 × 45"):
        check_draft(replace(header, tensors=tensors))


def test_a_truncated_head_is_refused(tmp_path: Path) -> None:
    for name, build in FILES.items():
        path = build(tmp_path / f"{name}.gguf")
        data = path.read_bytes()
        for n in (10, 1000, len(data) // 2, len(data) - 64):
            path.write_bytes(data[:n])
            with pytest.raises(GGUFError):
                check_draft(read_header(path))
