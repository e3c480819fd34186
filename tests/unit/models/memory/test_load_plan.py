"""From load settings to the GPUs that a load uses."""

from __future__ import annotations

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import ResourceError
from specllama.models.memory.cost import stays_on_host, tensor_overrides
from specllama.models.memory.plan import on_gpus


def settings(n: int, devices: tuple[str, ...] = (), draft: tuple[str, ...] = ()) -> LoadSettings:
    return LoadSettings(
        target=ModelSettings(path="t.gguf", tensor_parallel_size=n, devices=devices),
        draft=ModelSettings(path="d.gguf", devices=draft),
    )


@pytest.mark.parametrize(
    ("asked", "target", "draft"),
    [
        (settings(0), (), ()),
        (settings(1), ("CUDA0",), ("CUDA0",)),
        (settings(2), ("CUDA0", "CUDA1"), ("CUDA0", "CUDA1")),
        (settings(2, draft=("CUDA2",)), ("CUDA0", "CUDA1"), ("CUDA2",)),
        (settings(2, ("CUDA1", "CUDA2")), ("CUDA1", "CUDA2"), ("CUDA1", "CUDA2")),
    ],
)
def test_the_first_gpus_are_used(
    asked: LoadSettings, target: tuple[str, ...], draft: tuple[str, ...]
) -> None:
    placed = on_gpus(asked, ["CUDA0", "CUDA1", "CUDA2"])
    assert placed.target.devices == target
    assert placed.draft is not None
    assert placed.draft.devices == draft
    assert placed.target.split_mode == "layer"


@pytest.mark.parametrize(
    ("asked", "there", "needle"),
    [
        (settings(2), [], "needs 2 GPUs, and no GPU can be used"),
        (settings(4), ["CUDA0", "CUDA1"], "needs 4 GPUs, and only CUDA0, CUDA1 can be used"),
        (settings(2, ("CUDA1",)), ["CUDA0", "CUDA1"], "needs 2 GPUs, and only CUDA1 can be used"),
        (settings(2, ("none",)), ["CUDA0", "CUDA1"], "needs 2 GPUs, and no GPU can be used"),
    ],
)
def test_too_few_gpus_are_named(asked: LoadSettings, there: list[str], needle: str) -> None:
    with pytest.raises(ResourceError, match=f"tensor_parallel_size {needle}") as raised:
        on_gpus(asked, there)
    assert raised.value.exit_code == 8


def test_one_needs_no_gpu() -> None:
    """vLLM's tutorials write tensor_parallel_size=1, which must work on a machine without GPUs."""
    assert on_gpus(settings(1), []) == settings(1)
    assert on_gpus(settings(1, ("none",)), ["CUDA0"]) == settings(1, ("none",))


def test_the_first_pattern_that_matches_places_a_tensor() -> None:
    own = (("blk.0.*exps", "CUDA0"), ("(", "CPU"))
    overrides = tuple(tensor_overrides(ModelSettings(path="t.gguf", override_tensor=own, n_cpu_moe=2)))
    on_host = [stays_on_host(f"blk.{i}.ffn_up_exps.weight", overrides) for i in range(3)]
    assert on_host == [False, True, False]
    assert not stays_on_host("blk.1.attn_q.weight", overrides)
    everywhere = tuple(tensor_overrides(ModelSettings(path="t.gguf", n_cpu_moe=-1)))
    assert stays_on_host("blk.77.ffn_gate_exps.weight", everywhere)
