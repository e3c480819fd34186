"""What every kind of heads must do: a new entry of `KINDS` needs a line in CASES, and passes the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import specllama.heads
from specllama.errors import UsageError
from specllama.gguf.architectures import ARCHITECTURES
from specllama.gguf.header import Header, read_header
from specllama.heads import KINDS, is_head_file, kind_of, read_head, unusable_head
from specllama.heads.check import check_draft, check_model
from specllama.heads.kind import HeadInfo, HeadKind
from specllama.models.memory.plan import PlanSettings, plan_memory
from specllama.models.quants import is_head_name
from specllama.models.trim import trim_source
from specllama.pair.check import check_any, check_head, step_bytes
from tests.support import tinygguf, tinyheads, tinymtp

Build = Callable[[Path], Path]


@dataclass(frozen=True)
class Case:
    """A file with a head, and a target that it fits."""

    kind: str
    head: Build
    target: Build


CASES = {
    "mtp inside": Case("mtp", tinymtp.qwen35, tinymtp.qwen35),
    "mtp of three layers": Case("mtp", tinymtp.step35, tinymtp.step35),
    "mtp file": Case("mtp", lambda path: tinymtp.qwen35(path, part="head"), tinymtp.qwen35),
    "assistant": Case("gemma4-assistant", tinyheads.gemma4_assistant, tinyheads.gemma4),
    "eagle3": Case("eagle3", tinyheads.eagle3, tinygguf.llama),
    "dflash": Case("dflash", tinyheads.dflash, tinygguf.llama),
    "dflash2": Case("dflash", lambda path: tinyheads.dflash(path, top_k=4), tinygguf.llama),
    "dspark": Case("dspark", lambda path: tinyheads.dflash(path, markov=True), tinygguf.llama),
}


@dataclass(frozen=True)
class Read:
    """What was read of a case."""

    kind: HeadKind
    header: Header
    head: HeadInfo
    target: Header


@pytest.fixture(params=CASES)
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Read:
    case = CASES[request.param]
    header = read_header(case.head(tmp_path / "head.gguf"))
    head = read_head(header)
    assert head is not None
    kind = next(kind for kind in KINDS if kind.name == case.kind)
    return Read(kind, header, head, read_header(case.target(tmp_path / "target.gguf")))


def test_every_kind_has_a_case_and_a_name_of_its_own() -> None:
    names = [kind.name for kind in KINDS]
    assert sorted(names) == sorted({case.kind for case in CASES.values()})
    assert {"mtp", "gemma4-assistant", "eagle3", "dflash", "dspark"} <= set(names)  # in stored profiles
    assert {kind.architecture for kind in KINDS} - {""} <= ARCHITECTURES
    assert [name for name in names if not is_head_name(f"{name}-model.gguf")] == []


def test_it_is_recognised(read: Read) -> None:
    assert kind_of(read.header) is read.head.kind is read.kind
    assert is_head_file(read.header) is read.head.own_file
    assert read.head.own_file or not read.kind.architecture
    assert unusable_head(read.header) == ""
    model = read_header(tinygguf.llama(Path(read.header.path).with_name("model.gguf")))
    assert not read.kind.recognises(model)


def test_its_file_passes_as_a_draft_and_alone_not_as_a_model(read: Read) -> None:
    check_draft(read.header)
    if read.head.own_file:
        with pytest.raises(UsageError, match="a head without a model"):
            check_model(read.header)
    else:
        check_model(read.header)


def test_its_fields_agree(read: Read) -> None:
    head, kind = read.head, read.kind
    assert head.n_layer >= head.n_chained >= 1
    assert 0 < head.n_proposed <= head.n_vocab
    assert kind.drafts_blocks is (head.block_size > 0)
    assert kind.drafts_blocks <= (head.n_draft_max is not None)
    assert not (kind.drafts_blocks and (kind.encodes or kind.shares_cache))
    assert bool(head.target_layers) is not kind.nextn_layers  # which read the rows before the output norm
    assert head.runs_alone <= (not kind.drafts_blocks and not kind.shares_cache)
    assert set(head.step_tensors) <= set(head.tensors) <= set(read.header.tensors)
    assert (len(head.step_tensors) < len(head.tensors)) is (head.n_chained > 1)
    assert head.weight_bytes > 0
    assert head.label == kind.label(head) != ""


def test_it_fits_its_target_and_no_other(read: Read, tmp_path: Path) -> None:
    verdict = check_head(read.target, read.head)
    assert verdict.ok, verdict.reason
    assert step_bytes(read.target, read.head) > 0
    if not read.head.own_file:
        return
    for build in (tinygguf.mamba, tinymtp.mimo2, tinyheads.gemma4, tinygguf.llama):
        other = read_header(build(tmp_path / "other.gguf"))
        refusals = list(read.kind.refusals(other, read.head))
        assert all(refusals)
        assert not refusals or check_head(other, read.head).reason
    assert not check_head(read_header(tinygguf.mamba(tmp_path / "other.gguf")), read.head).ok


def test_its_memory_can_be_planned(read: Read) -> None:
    own = read.head.memory_header
    assert len(own.tensors) == len(read.head.tensors)
    assert own.n_layer >= read.head.n_layer
    assert any(own.n_head_kv) is not read.kind.shares_cache
    plan = plan_memory(read.target, read.head, PlanSettings(available=1 << 30))
    assert plan.draft is not None
    assert plan.draft.weights == read.head.weight_bytes


def test_it_is_trimmed_or_refused(read: Read) -> None:
    why = read.kind.untrimmable
    if not why and read.head.own_file and not read.head.own_output:
        why = "the head uses the output matrix of its target"
    if why:
        with pytest.raises(UsageError, match=why):
            trim_source(read.header, False, None)
    else:
        source = trim_source(read.header, not read.head.own_file, None)
        # llama.cpp looks for no d2t in layers of multi-token prediction.
        assert source.keeps_tokenizer is read.kind.keeps_tokenizer is not read.kind.nextn_layers


def test_a_header_is_read_once(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks: the check, the pair, the plan."""
    calls: list[str] = []

    def reading(kind: HeadKind) -> HeadKind:
        def one(header: Header) -> HeadInfo | None:
            calls.append(kind.name)
            return kind.read(header)

        return replace(kind, read=one)

    monkeypatch.setattr(specllama.heads, "KINDS", tuple(map(reading, KINDS)))
    header = replace(read.header)
    check_draft(header)
    check_any(read.target, header)
    head = read_head(header)
    assert head is read_head(header)
    assert head is not None
    plan_memory(read.target, header if read.head.own_file else head, PlanSettings(available=1 << 30))
    assert calls == [read.kind.name]
    assert read_head(replace(header)) is not head  # another header is another file, or a changed one
