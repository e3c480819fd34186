"""The memory plan: sizes compared with arithmetic and llama.cpp's log, choices, and advice that fits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.options import as_flag
from specllama.errors import ResourceError, UsageError, with_option_names
from specllama.gguf.header import Header, read_header, read_source
from specllama.gguf.parse import TensorInfo
from specllama.heads.check import check_model
from specllama.models.memory.available import available_memory
from specllama.models.memory.cost import MemoryCosts, keeps_all_cells
from specllama.models.memory.plan import DeviceMemory, MemoryPlan, plan_memory
from tests.support import tinygguf
from tests.support.ggufbytes import BytesSource, Typed, llama, words
from tests.support.memory import cost_settings, plan_settings
from tests.support.paths import SHARED

GB = 10**9


def model(
    name: str,
    architecture: str = "llama",
    n_layer: int = 32,
    n_embd: int = 4096,
    n_head: int = 32,
    n_head_kv: int | list[int] = 8,
    n_ff: int = 14336,
    n_vocab: int = 128_256,
    n_ctx_train: int = 131_072,
    bits: float = 16,
    tied: bool = False,
    **keys: Any,
) -> Header:
    """A header with the shapes of a large model, without a file."""
    heads: Any = np.array(n_head_kv) if isinstance(n_head_kv, list) else n_head_kv
    meta: dict[str, Any] = {"general.architecture": architecture, "general.name": name}
    meta |= {
        f"{architecture}.{k}": v
        for k, v in {
            "context_length": n_ctx_train,
            "embedding_length": n_embd,
            "block_count": n_layer,
            "feed_forward_length": n_ff,
            "attention.head_count": n_head,
            "attention.head_count_kv": heads,
            "vocab_size": n_vocab,
            **keys,
        }.items()
    }
    block = 2 * n_embd * n_embd + n_embd * n_embd // 2 + 3 * n_embd * n_ff
    shapes = {"token_embd.weight": (n_embd, n_vocab)} | ({} if tied else {"output.weight": (n_embd, n_vocab)})
    shapes |= {f"blk.{i}.all.weight": (n_embd, block // n_embd) for i in range(n_layer)}
    tensors = tuple(TensorInfo(k, s, "F16", int(s[0] * s[1] * bits / 8), 0) for k, s in shapes.items())
    return Header(name, meta, tensors, sum(t.n_bytes for t in tensors))


TARGET = model("Big-8B")
DRAFT = model("Small-1B", n_layer=16, n_embd=2048, n_ff=8192, tied=True)
ENOUGH = plan_settings(available=1000 * GB)


def plan(available: float, draft: Header | None = DRAFT, target: Header = TARGET, **more: Any) -> MemoryPlan:
    return plan_memory(target, draft, plan_settings(available=int(available * GB), **more))


def kv(header: Header, n_ctx: int, **settings: Any) -> int:
    return MemoryCosts(header, cost_settings(**settings)).kv(n_ctx)


def test_kv_is_exact() -> None:
    assert kv(TARGET, 8192) == 8192 * 32 * 8 * 128 * 2 * 2
    assert kv(TARGET, 8192, cache_type_k="q8_0", cache_type_v="q8_0") == 8192 * 32 * 8 * 128 * 34 // 32 * 2
    assert (
        kv(TARGET, 8192, cache_type_k="f32", cache_type_v="q4_0")
        == 8192 * 32 * 1024 * 4 + 8192 * 32 * 1024 * 18 // 32
    )
    assert kv(TARGET, 300) == kv(TARGET, 512)  # rounded up to 256


def test_kv_depends_on_head_sizes_and_per_layer_heads() -> None:
    wide = model("w", **{"attention.key_length": 256, "attention.value_length": 64})
    assert kv(wide, 1024) == 1024 * 32 * 8 * (256 + 64) * 2
    uneven = model("u", n_layer=3, n_head_kv=[8, 0, 4])
    assert kv(uneven, 1024) == 1024 * (8 + 4) * 128 * 2 * 2
    assert (
        kv(uneven, 1024, flash_attn="off") == 1024 * ((8 + 4) * 128 + 2 * 8 * 128) * 2
    )  # V padded to the widest
    latent = model("l", n_head_kv=1, **{"attention.key_length": 576, "attention.key_length_mla": 192})
    assert kv(latent, 1024) == 1024 * 32 * 576 * 2
    pattern = {"attention.sliding_window_pattern": np.array([True, False]), "attention.sliding_window": 512}
    sizes = {"attention.key_length": 512, "attention.value_length": 512}
    window = {"attention.key_length_swa": 256, "attention.value_length_swa": 256}
    gemma = model("g", "gemma4", n_layer=2, **pattern, **sizes, **window)
    assert kv(gemma, 1024) == 1024 * 8 * (256 + 512) * 2 * 2
    shared = model("g", "gemma4", n_layer=2, **sizes, **{"attention.shared_kv_layers": 1})
    assert kv(shared, 1024) == 1024 * 8 * 512 * 2 * 2


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 16, "ssm.group_count": 2}


def test_recurrent_state_is_exact() -> None:
    each = (3 * (1024 + 2 * 2 * 16) + 16 * 1024) * 4
    mamba = MemoryCosts(
        model("m", "mamba", n_layer=4, n_head=0, n_head_kv=0, **SSM), cost_settings(n_slots=3)
    )
    assert (mamba.kv(8192), mamba.state_layers) == (0, (each * 3,) * 4)
    jamba = model("j", "jamba", n_layer=4, n_head_kv=[0, 8, 0, 0], **SSM)
    hybrid = MemoryCosts(jamba, cost_settings(n_slots=2, n_rs_seq=5))
    assert hybrid.state_layers == (each * 2, 0, each * 2, each * 2)  # no rollback: n_rs_seq is clamped to 0
    assert hybrid.kv(1024) == 1024 * 8 * 128 * 2 * 2
    qwen = model("q", "qwen35", n_layer=8, **SSM, full_attention_interval=4)
    rollback = MemoryCosts(qwen, cost_settings(n_slots=2, n_rs_seq=5))
    assert rollback.state_layers == ((each * 2 * 6,) * 3 + (0,)) * 2
    assert rollback.kv(1024) == 2 * 1024 * 8 * 128 * 2 * 2
    assert rollback.usage(1024).state == 6 * each * 2 * 6
    both = MemoryCosts(model("f", "falcon-h1", n_layer=2, **SSM), cost_settings())
    assert both.state_layers == (each, each)
    assert both.kv(1024) == 2 * 1024 * 8 * 128 * 2 * 2


def test_parts_add_up_and_layers_move() -> None:
    costs = MemoryCosts(TARGET, cost_settings())
    host = costs.usage(8192, 0)
    parts = host.weights + host.kv + host.state + host.compute + host.outputs + host.fixed
    assert (host.host, host.device) == (parts, 0)
    sizes = [costs.usage(8192, n) for n in range(34)]
    assert all(a.device < b.device and a.host > b.host for a, b in pairwise(sizes))
    offloaded = sizes[33]
    embedding = TARGET.tensors[0].n_bytes
    assert offloaded.device == offloaded.weights - embedding + offloaded.kv + offloaded.compute
    assert offloaded.host == embedding + offloaded.compute + offloaded.outputs + offloaded.fixed
    assert costs.usage(8192, 999) == offloaded
    tied = MemoryCosts(DRAFT, cost_settings()).usage(8192, 17)
    assert tied.device == tied.weights + tied.kv + tied.compute  # the embeddings are there twice


def test_outputs_and_batch_sizes_need_memory() -> None:
    costs = MemoryCosts(TARGET, cost_settings(n_outputs_max=512))
    assert costs.usage(8192).outputs == 512 * 128_256 * 4
    assert costs.compute(8192) > 512 * 128_256 * 4
    odd, even = (MemoryCosts(TARGET, cost_settings(n_outputs_max=n)).usage(8192) for n in (65, 80))
    assert odd == even  # as many as a context reserves
    assert MemoryCosts(TARGET, cost_settings(n_ubatch=2048)).compute(8192) > 3 * MemoryCosts(
        TARGET, cost_settings()
    ).compute(8192)
    off = MemoryCosts(TARGET, cost_settings(flash_attn="off"))
    assert off.compute(8192) > 8192 * 512 * 32 * 4


# Reserved by llama.cpp 0.3.36 on a CPU: n_ctx, n_ubatch, flash_attn, compute buffer in MiB.
MEASURED = {
    "8B": (TARGET, [(2048, 512, "on", 118.0), (8192, 64, "on", 33.3), (4096, 512, "off", 308.0)]),
    "1B": (DRAFT, [(2048, 512, "on", 66.0), (8192, 64, "on", 32.3), (4096, 512, "off", 286.0)]),
    "0.5B": (
        model("q", n_layer=24, n_embd=896, n_head=14, n_head_kv=2, n_ff=4864, n_vocab=151_936),
        [(2048, 512, "on", 41.0), (8192, 64, "on", 37.5), (4096, 512, "off", 129.3)],
    ),
    "wide": (
        model("w", n_layer=4, n_embd=8192, n_head=64, n_ff=28672, n_vocab=32_000),
        [(2048, 512, "on", 234.0), (8192, 64, "on", 30.0), (4096, 512, "off", 604.0)],
    ),
}


@pytest.mark.parametrize(("header", "rows"), MEASURED.values(), ids=MEASURED.keys())
def test_compute_is_an_upper_estimate_of_the_measured_buffers(
    header: Header, rows: list[tuple[int, int, Any, float]]
) -> None:
    for n_ctx, n_ubatch, flash_attn, mib in rows:
        settings = cost_settings(n_batch=n_ubatch, n_ubatch=n_ubatch, flash_attn=flash_attn)
        estimate = MemoryCosts(header, settings).compute(n_ctx) / (1 << 20)
        assert mib <= estimate <= 1.5 * mib, (n_ctx, n_ubatch, flash_attn)


def test_default_context_is_8192_or_the_models() -> None:
    assert plan(100).n_ctx == 8192
    assert plan(100).n_ctx_draft == 8192
    assert plan(100, target=model("t", n_ctx_train=2048)).n_ctx == 2048
    assert plan(100, target=model("t", n_ctx_train=300)).n_ctx == 300
    assert plan(100, n_ctx=4000, n_ctx_draft=1024).n_ctx == 4000
    assert plan(100, n_ctx=4000, n_ctx_draft=1024).n_ctx_draft == 1024
    assert plan(100, draft=None).n_ctx_draft == 0


def test_default_context_shrinks_to_what_fits() -> None:
    target = model("wide cache", n_head_kv=32)
    full = plan(1000, target=target).host
    tight = plan(full / GB, target=target)
    assert 512 <= tight.n_ctx < 8192
    assert tight.n_ctx % 256 == 0
    assert tight.host <= 0.9 * tight.available
    assert (
        plan_memory(target, DRAFT, plan_settings(1000 * GB, n_ctx=tight.n_ctx + 256)).host
        > 0.9 * tight.available
    )
    least = plan(1000, n_ctx=512).host / GB
    assert plan(least + 1e-9).n_ctx == 512  # fits to the last byte
    with pytest.raises(ResourceError):
        plan(least - 1e-6)


def advice(**settings: Any) -> tuple[ResourceError, list[str]]:
    draft = settings.pop("draft", DRAFT)
    with pytest.raises(ResourceError) as caught:
        plan(draft=draft, **settings)
    hint = caught.value.with_option_names(as_flag).hint
    assert "\n" not in hint
    return caught.value, re.split(r", or with ", hint.removeprefix("It would fit with ").removesuffix("."))


def follow(option: str, settings: dict[str, Any]) -> MemoryPlan:
    """The plan with the flags of an advice."""
    args = dict(re.findall(r"-(\w+) (\S+)", option))
    changed = dict(settings)
    names = {"c": "n_ctx", "cd": "n_ctx_draft", "ngl": "n_gpu_layers", "ngld": "n_gpu_layers_draft"}
    changed |= {name: int(args[flag]) for flag, name in names.items() if flag in args}
    caches = {
        "ctk": "cache_type_k",
        "ctv": "cache_type_v",
        "ctkd": "cache_type_k_draft",
        "ctvd": "cache_type_v_draft",
    }
    changed |= {name: args[flag] for flag, name in caches.items() if flag in args}
    draft = None if args.get("md") == "none" else changed.pop("draft", DRAFT)
    changed.pop("draft", None)
    return plan(draft=draft, **changed)


@pytest.mark.parametrize(
    "settings",
    [
        {"available": 24, "n_ctx": 65536},
        {"available": 20, "n_ctx": 8192},
        {"available": 20, "n_ctx": 8192, "n_ctx_draft": 8192},
        {"available": 19.5, "n_ctx": 4096},
        {"available": 17, "n_ctx": 8192},
        {"available": 19},
        {"available": 30, "n_ctx": 131_072, "draft": None},
        {"available": 24, "n_gpu_layers": 99, "devices": (DeviceMemory("gpu", 12 * GB),)},
    ],
)
def test_every_advice_fits_when_followed(settings: dict[str, Any]) -> None:
    error, options = advice(**settings)
    assert error.exit_code == 8
    needed, there = (float(x) for x in re.findall(r"([\d.]+) GB", error.message))
    assert needed > there
    assert options
    for option in options:
        assert follow(option, settings).fits, option


def test_advice_on_context_is_the_largest_that_fits() -> None:
    settings = {"available": 24, "n_ctx": 65536}
    _, options = advice(**settings)
    first = next(o for o in options if re.fullmatch(r"-c \d+", o))
    n_ctx = int(first.split()[1])
    assert n_ctx % 256 == 0
    with pytest.raises(ResourceError):
        plan(24, n_ctx=n_ctx + 256)
    assert any("-ctk q8_0 -ctv q8_0" in o and "-fa on" in o for o in options)
    assert any("-md none" in o for o in options)


def test_advice_never_offers_caches_that_llama_cpp_refuses() -> None:
    even = model("even", n_head=128)  # heads of 32 divide into blocks, those of 40 do not
    assert any("q8_0" in o for o in advice(available=40, n_ctx=1 << 20, draft=None, target=even)[1])
    odd = model("odd", n_embd=4000, n_head=100)
    assert not any("q8_0" in o for o in advice(available=40, n_ctx=1 << 20, draft=None, target=odd)[1])
    with pytest.raises(UsageError, match="multiple of 32"):
        plan(100, target=odd, cache_type_k="q8_0")


def test_advice_when_only_a_smaller_file_fits() -> None:
    error, options = advice(available=8)
    assert options == ["-md none and a Q6_K file of the model"]
    assert "Big-8B and Small-1B" in error.message
    quantised = model("Big-8B", bits=6.6)
    assert plan(8, draft=None, target=quantised).fits
    with pytest.raises(ResourceError, match="No setting makes it fit"):
        plan(1)


def test_as_many_layers_as_fit_are_offloaded() -> None:
    assert plan(100).target.n_gpu_layers == 0
    assert plan(100, n_gpu_layers=99).target.n_gpu_layers == 0  # without a device
    large = plan(100, devices=(DeviceMemory("gpu", 80 * GB),))
    assert (large.target.n_gpu_layers, large.draft and large.draft.n_gpu_layers) == (33, 17)
    assert large.host < 5 * GB
    middle = plan(100, devices=(DeviceMemory("gpu", 10 * GB),))
    assert 1 < middle.target.n_gpu_layers < 33
    assert middle.device <= 10 * GB
    two = plan(100, devices=(DeviceMemory("a", 10 * GB), DeviceMemory("b", 10 * GB)))
    assert two.target.n_gpu_layers == 33
    assert (
        plan(100, n_gpu_layers=5, n_gpu_layers_draft=-1, devices=(DeviceMemory("gpu", 80 * GB),)).device > 0
    )
    small = plan(100, devices=(DeviceMemory("gpu", 10**8),))
    assert (small.target.n_gpu_layers, small.device) == (0, 0)


def test_rpc_workers_hold_only_the_target() -> None:
    workers = (DeviceMemory("RPC0", 10 * GB), DeviceMemory("RPC1", 10 * GB))
    remote = plan(100, devices=workers, devices_draft=())
    assert remote.draft is not None
    assert (remote.target.n_gpu_layers, remote.draft.n_gpu_layers) == (33, 0)
    assert remote.device == remote.target.device
    assert remote.host == remote.target.host + remote.draft.host
    small = plan(100, devices=workers[:1], devices_draft=())
    assert 1 < small.target.n_gpu_layers < 33
    assert small.host > remote.host  # layers that do not fit on the worker stay on the host
    layers = {"n_gpu_layers": 99, "n_gpu_layers_draft": 99, "n_ctx": 8192, "devices": workers}
    assert plan(100, devices_draft=(), **layers).draft == remote.draft  # no device: -ngld has no effect


def test_the_draft_may_have_other_devices() -> None:
    worker, gpu = DeviceMemory("RPC0", 40 * GB), DeviceMemory("gpu", 4 * GB)
    apart = plan(100, devices=(worker,), devices_draft=(gpu,))
    assert apart.draft is not None
    assert (apart.target.n_gpu_layers, apart.draft.n_gpu_layers) == (33, 17)
    assert apart.draft_room < 4 * GB
    shared = plan(100, devices=(worker, gpu), devices_draft=(gpu,))
    assert 0 < shared.draft_room < apart.draft_room  # llama.cpp spreads the target over both
    assert shared.device_room > apart.device_room
    error, _ = advice(
        available=100, n_gpu_layers_draft=99, devices=(worker,), devices_draft=(DeviceMemory("gpu", GB),)
    )
    assert "GB on the draft's devices needed" in error.message
    same = plan(100, devices=(worker, gpu), devices_draft=(gpu, worker))
    assert same == plan(100, devices=(worker, gpu))


def test_only_local_devices_are_unified() -> None:
    metal, worker = DeviceMemory("metal", 20 * GB, unified=True), DeviceMemory("RPC0", 60 * GB)
    mixed = plan(100, devices=(worker, metal), devices_draft=(metal,))
    assert mixed.draft is not None
    apart = plan(100, devices=(worker,), devices_draft=(metal,))
    assert apart.draft is not None
    assert apart.host == apart.target.host + apart.draft.host + apart.draft.device
    on_metal = mixed.host - (mixed.target.host + mixed.draft.host + mixed.draft.device)
    assert on_metal == pytest.approx(mixed.target.device * 20 / 80, rel=0.02)


def test_unified_memory_counts_once_against_the_host() -> None:
    devices = (DeviceMemory("metal", 80 * GB, unified=True),)
    shared = plan(100, devices=devices)
    assert shared.target.n_gpu_layers == 33
    assert shared.host > TARGET.weight_bytes
    with pytest.raises(ResourceError):
        plan(12, devices=devices)


def test_context_beyond_training_is_a_warning() -> None:
    target = model("T", n_ctx_train=4096)
    assert plan(100, target=target).warnings == ()
    (warning,) = plan(100, target=target, n_ctx=8192).warnings
    assert "T was trained on 4096 tokens, n_ctx is 8192" in warning
    assert "-c 4096" in with_option_names(warning, as_flag)
    (warning,) = plan(100, draft=model("D", n_layer=2, n_ctx_train=2048)).warnings
    assert "-cd 2048" in with_option_names(warning, as_flag)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable: 8000000 kB\n"


@pytest.mark.skipif(sys.platform == "darwin", reason="Linux files")
@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 8_192_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": "5\n"}, 8_192_000_000),
        (
            "0::/a/b\n",
            {
                "a/b/memory.max": "max\n",
                "a/b/memory.current": "5\n",
                "a/memory.max": "3000000000\n",
                "a/memory.current": "2500000000\n",
                "a/memory.stat": "anon 1\ninactive_file 900000000\nactive_file 100000000\n",
            },
            1_500_000_000,
        ),
        ("0::/gone\n", {"memory.max": "2000\n", "memory.current": "500\n"}, 1500),
        ("0::/\n", {"memory.max": "2000\n", "memory.current": "5000\n"}, 0),
        (
            "9:cpu:/x\n4:memory:/x\n0::/\n",
            {
                "memory/x/memory.limit_in_bytes": "7000\n",
                "memory/x/memory.usage_in_bytes": "6000\n",
                "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 50\ntotal_active_file 20\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "1\n",
            },
            1070,
        ),
    ],
)
def test_available_memory_is_limited_by_cgroups(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    proc = tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": groups})
    cgroup = tree(tmp_path / "cgroup", files)
    assert available_memory(proc, cgroup) == expected


def test_available_memory_of_this_machine() -> None:
    assert available_memory() > 1 << 20


ASK_LLAMA = """
import ctypes, json, re, sys
import llama_cpp as L

lines = []

@L.llama_log_callback
def keep(level, text, data):
    lines.append(text.decode(errors="replace"))

L.llama_log_set(keep, ctypes.c_void_p(0))
path, n_ctx, type_k, type_v, flash = sys.argv[1], *map(int, sys.argv[2:])
model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
params = L.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch, params.n_outputs_max = n_ctx, 512, 512, 64
params.kv_unified, params.swa_full = True, True
params.type_k, params.type_v, params.flash_attn_type = type_k, type_v, flash
context = L.llama_init_from_model(model, params)
assert context, "".join(lines)[-2000:]
log = "".join(lines)
matches = {name: re.findall(name + r" buffer size =\\s+([\\d.]+)", log) for name in ("KV", "compute")}
print(json.dumps({name: sum(map(float, sizes)) for name, sizes in matches.items()}))
"""
TYPE_IDS = {"f32": 0, "f16": 1, "q8_0": 8}


@pytest.mark.parametrize(
    ("n_ctx", "cache_type", "flash_attn"),
    [
        (512, "f16", "auto"),
        (4096, "f16", "on"),
        (2048, "q8_0", "on"),
        (1000, "f32", "off"),
        (4096, "f16", "off"),
    ],
)
def test_estimates_agree_with_llama_cpp(tmp_path: Path, n_ctx: int, cache_type: str, flash_attn: Any) -> None:
    path = SHARED / "models" / "pydoc-target-f16.gguf"
    if not path.exists():
        path = tmp_path / "m.gguf"
        shape = {"n_layer": 3, "n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 640}
        few = {"tokenizer.ggml.token_type": Typed("arr[i32]", [1] * 600)}
        path.write_bytes(llama(tokens=words(600), metadata=few, **shape).build())
    header = read_header(path)
    check_model(header)
    flash = {"auto": -1, "on": 1, "off": 0}[flash_attn]
    args = [str(path), str(n_ctx), str(TYPE_IDS[cache_type]), str(TYPE_IDS[cache_type]), str(flash)]
    command = [sys.executable, "-c", ASK_LLAMA, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout)
    settings = cost_settings(
        n_batch=512, cache_type_k=cache_type, cache_type_v=cache_type, flash_attn=flash_attn
    )
    usage = MemoryCosts(header, settings).usage(n_ctx)
    assert usage.kv / (1 << 20) == pytest.approx(real["KV"], abs=0.01)
    assert real["compute"] <= usage.compute / (1 << 20) <= 2 * real["compute"] + 2


def test_a_real_header_can_be_planned() -> None:
    header = read_source(BytesSource(llama().build(), "tiny.gguf"))
    answer = plan_memory(header, header, plan_settings(available=GB))
    assert (answer.n_ctx, answer.n_ctx_draft) == (2048, 2048)
    assert answer.host == answer.target.host + (answer.draft.host if answer.draft else 0)


ASK_WINDOWS = ASK_LLAMA.replace("swa_full = True, True", "swa_full = True, False").replace(
    "params.n_ubatch,", "params.n_ubatch, params.n_seq_max,"
)


@pytest.mark.parametrize("n_slots", [1, 3])
@pytest.mark.parametrize("kind", ["array", "every sixth"])
def test_windows_keep_the_cells_that_llama_cpp_keeps(tmp_path: Path, n_slots: int, kind: str) -> None:
    path = tmp_path / "m.gguf"
    tinygguf.gemma3(path, n_layer=6, n_swa=512, n_ctx_train=32768)
    if kind == "every sixth":  # as in files of Gemma 3: by the architecture
        data = path.read_bytes()
        path.write_bytes(
            data.replace(
                b"gemma3.attention.sliding_window_pattern", b"gemma3.attention.sliding_window_pattxxx"
            )
        )
    header = read_header(path)
    ask = ASK_WINDOWS.replace("= n_ctx, 512, 512, 64", f"= n_ctx, 512, 512, {n_slots}, 64")
    done = subprocess.run(
        [sys.executable, "-c", ask, str(path), "32768", "1", "1", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout)["KV"]
    whole, windowed = (
        MemoryCosts(header, cost_settings(n_slots=n_slots, swa_full=full)).kv(32768) / (1 << 20)
        for full in (True, False)
    )
    assert windowed == pytest.approx(real, abs=0.01)
    assert windowed < (0.6 if kind == "array" else 0.35) * whole


def test_a_gemma_3_shape_at_32k() -> None:
    """Gemma 3 12B: 48 layers, every sixth without a window of 1,024."""
    header = model("g", "gemma3", n_layer=48, n_embd=3840, n_head=16, n_head_kv=8)
    more = {
        "gemma3.attention.sliding_window": 1024,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.value_length": 256,
    }
    header = replace(header, metadata=header.metadata | more)
    whole, windowed = (MemoryCosts(header, cost_settings(swa_full=full)).kv(32768) for full in (True, False))
    assert whole == 48 * 32768 * 2 * 8 * 256 * 2
    assert windowed == (8 * 32768 + 40 * 1536) * 2 * 8 * 256 * 2


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, False),
        ({"swa_full": True}, True),
        ({"cache_type_k": "q8_0"}, True),
        ({"flash_attn": "off"}, True),
        ({"swa_full": False, "cache_type_v": "q8_0"}, False),
    ],
)
def test_windows_keep_all_cells_where_a_restored_one_would_be_rounded_in_another_way(
    changed: dict[str, Any], expected: bool
) -> None:
    settings = LoadSettings(target=ModelSettings(path="m.gguf", **changed))
    assert keeps_all_cells(settings) == expected
    if not changed:
        assert keeps_all_cells(replace(settings, exact=True))
        assert keeps_all_cells(settings, with_head=True)
