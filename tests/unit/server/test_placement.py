"""Which models leave memory for another one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import ResourceError
from specllama.gguf.header import Header
from specllama.gguf.parse import TensorInfo
from specllama.heads.kind import HeadInfo
from specllama.server.memory import FreeGpu, FreeMemory, Resident
from specllama.server.placement import Newcomer, must_leave
from specllama.server.placement import newcomer as newcomer_of
from tests.support import tinygguf, tinymtp

GB = 10**9


def header(n_layer: int = 16, n_embd: int = 2048) -> Header:
    """Of a model of 2 GB, without a file."""
    meta = {
        "general.architecture": "llama",
        "general.name": "newcomer",
        "llama.context_length": 131072,
        "llama.embedding_length": n_embd,
        "llama.block_count": n_layer,
        "llama.feed_forward_length": 8192,
        "llama.attention.head_count": 16,
        "llama.attention.head_count_kv": 16,
        "llama.vocab_size": 32000,
    }
    shapes = {"token_embd.weight": (n_embd, 32000)}
    shapes |= {f"blk.{i}.all.weight": (n_embd, 30000) for i in range(n_layer)}
    tensors = tuple(TensorInfo(name, shape, "F16", 2 * math.prod(shape), 0) for name, shape in shapes.items())
    return Header("m.gguf", meta, tensors, sum(t.n_bytes for t in tensors))


@pytest.fixture(scope="module")
def newcomer() -> Newcomer:
    settings = LoadSettings(target=ModelSettings(path="m.gguf"), n_slots=4)
    found = Newcomer(settings, header(), None)
    assert 2 * GB < found.plan(FreeMemory(100 * GB)).host < 5 * GB
    return found


def resident(id_: str, used_at: float, gigabytes: float = 6.0, busy: bool = False) -> Resident:
    return Resident(id_, busy, used_at, int(gigabytes * GB))


def leaving(newcomer: Newcomer, there: list[Resident], free: float, most: int = 0) -> list[str]:
    return [one.id for one in must_leave(newcomer, there, FreeMemory(int(free * GB)), most)]


def test_nobody_leaves_where_there_is_room(newcomer: Newcomer) -> None:
    assert leaving(newcomer, [], 4) == []
    assert leaving(newcomer, [resident("a", 1), resident("b", 2)], 10) == []


def test_the_one_that_was_not_used_for_the_longest_time_leaves(newcomer: Newcomer) -> None:
    assert leaving(newcomer, [resident("a", 2), resident("b", 1), resident("c", 3)], 0.1) == ["b"]


def test_idle_ones_leave_before_those_in_use(newcomer: Newcomer) -> None:
    there = [resident("old", 1, busy=True), resident("new", 9)]
    assert leaving(newcomer, there, 0.1) == ["new"]
    assert leaving(newcomer, [resident("old", 1, busy=True)], 0.1) == ["old"]


def test_no_more_leave_than_needed(newcomer: Newcomer) -> None:
    there = [resident("small", 1, 0.01), resident("large", 2), resident("other", 3)]
    assert leaving(newcomer, there, 0.1) == ["large"]


def test_a_limit_of_models(newcomer: Newcomer) -> None:
    there = [resident("a", 2), resident("b", 1)]
    assert leaving(newcomer, there, 100, most=3) == []
    assert leaving(newcomer, there, 100, most=2) == ["b"]
    assert set(leaving(newcomer, there, 100, most=1)) == {"a", "b"}


def test_one_that_never_fits_drives_nobody_out(newcomer: Newcomer) -> None:
    with pytest.raises(ResourceError, match=r"not enough memory .* GB of memory needed"):
        leaving(newcomer, [resident("a", 1, 0.01)], 0.05)


def test_a_smaller_context_is_not_accepted_for_company(newcomer: Newcomer) -> None:
    """Next to the other model it would fit with half of its context."""
    alone = newcomer.plan(FreeMemory(100 * GB))
    free = alone.host * 0.95
    assert newcomer.plan(FreeMemory(int(free))).n_ctx < alone.n_ctx
    assert leaving(newcomer, [resident("a", 1)], free / GB) == ["a"]


def test_gpus_are_kept_free_for_the_whole_model(newcomer: Newcomer) -> None:
    """Without its layers on the GPU it would fit, and be slow."""
    full = FreeMemory(100 * GB, (FreeGpu("CUDA0", GB // 20),))
    there = [Resident("a", False, 1.0, GB, 8 * GB)]
    assert [one.id for one in must_leave(newcomer, there, full)] == ["a"]
    roomy = FreeMemory(100 * GB, (FreeGpu("CUDA0", 8 * GB),))
    assert must_leave(newcomer, there, roomy) == []


def test_what_becomes_free_is_spread_over_the_gpus() -> None:
    free = FreeMemory(1, (FreeGpu("a", 300), FreeGpu("b", 100)))
    found = free.without([Resident("x", False, 0.0, 10, 400)])
    assert (found.host, [gpu.free for gpu in found.gpus]) == (11, [600, 200])
    empty = FreeMemory(1, (FreeGpu("a", 0), FreeGpu("b", 0)))
    assert [gpu.free for gpu in empty.without([Resident("x", False, 0.0, 0, 400)]).gpus] == [200, 200]


def test_a_model_with_a_head_of_its_own_needs_memory_for_both_or_goes_without(tmp_path: Path) -> None:
    path = str(tinymtp.qwen35(tmp_path / "m.gguf"))
    settings = LoadSettings(target=ModelSettings(path=path, n_ctx=4096), draft=ModelSettings(path=path))
    found = newcomer_of(settings, None)
    assert isinstance(found.draft, HeadInfo)
    both = found.plan(FreeMemory(GB))
    assert both.draft is not None
    assert both.target.weights + both.draft.weights == found.target.weight_bytes
    alone = found.plan(FreeMemory(both.host - 1000))
    assert alone.draft is None
    with pytest.raises(ResourceError):
        found.plan(FreeMemory(alone.host - 1000))


def test_a_head_next_to_a_draft_model_is_left_out_first(tmp_path: Path) -> None:
    path, small = tinymtp.mimo2(tmp_path / "m.gguf"), tinygguf.llama(tmp_path / "d.gguf")
    settings = LoadSettings(
        target=ModelSettings(path=str(path), n_ctx=4096), draft=ModelSettings(path=str(small))
    )
    found = newcomer_of(settings, None)
    assert isinstance(found.draft, Header)
    assert found.head is not None
    all_three = found.plan(FreeMemory(GB))
    assert all_three.head is not None
    less = found.plan(FreeMemory(all_three.host - 1))
    assert (less.head, less.draft) == (None, all_three.draft)
    with pytest.raises(ResourceError):
        found.plan(FreeMemory(less.host - 1))
    there = [Resident("a", False, 1.0, GB)]
    assert must_leave(found, there, FreeMemory(all_three.host)) == []
    assert must_leave(found, there, FreeMemory(all_three.host - 1)) == there


def test_a_head_in_a_file_of_its_own_replaces_the_one_inside(tmp_path: Path) -> None:
    path = tinymtp.mimo2(tmp_path / "m.gguf")
    head = tinymtp.mimo2(tmp_path / "mtp-m.gguf", part="head")
    settings = LoadSettings(target=ModelSettings(path=str(path)), draft=ModelSettings(path=str(head)))
    assert newcomer_of(settings, None).head is None
