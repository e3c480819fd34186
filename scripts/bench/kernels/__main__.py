"""How near products of weights and rows come to the limits of this machine, and how they compare with
llama.cpp's own.

usage: python -m scripts.bench.kernels [--types T,...] [--rows N,...] [-t N] [--runs N] [--mib N] [--json F]
           [--experts N] [--used N] [--best SECONDS] [--level NAME] [--products FILE.npz]

Random weights of each type, more than the processor's caches hold, stored as a model's are (in groups of
columns where llama.cpp has such a layout) and multiplied through ggml. Two processes, with specllama's
kernels and without, are measured in turn. Of their medians: a single row as a share of the memory's
bandwidth, 16 rows as a share of the peak of multiply-add instructions (of 8-bit integers; of 32-bit floats
for F16 and BF16), both measured in the same run with as many threads; and times relative to llama.cpp's own,
with their geometric mean. Run nothing else on the machine.

--experts 32: matrices of 32 experts of 1024 x 768 weights, of which each row is multiplied by --used, chosen
at random (MUL_MAT_ID). The shares count the weights that are used.

--best 0.3: each product of a matrix of 1024 columns is repeated for that long, up to 60 times, and the
shortest time counts. With -t 1, of which processor time is measured, and few MiB that gives usable relative
times on a machine that is busy otherwise; the shares mean little there.

--level avx2, avxvnni or avx512: the kernels as on an older processor. The llama.cpp that they are compared
with has to be compiled for it as well, and LLAMA_CPP_LIB_PATH to name its folder.

--products writes products of random rows as this process computes them, by type and number of rows, and
measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts import cli
from specllama.errors import EngineError
from specllama.llama.kernel_build import LEVELS
from specllama.llama.kernels import VARIABLE

TYPES = {  # ggml_type, and bits per weight
    "f16": (1, 16.0), "bf16": (30, 16.0), "q8_0": (8, 8.5), "q6_k": (14, 6.5625), "q5_k": (13, 5.5),
    "q5_1": (7, 6.0), "q5_0": (6, 5.5), "q4_k": (12, 4.5), "q4_1": (3, 5.0), "q4_0": (2, 4.5),
    "iq4_nl": (20, 4.5), "iq4_xs": (23, 4.25), "mxfp4": (39, 4.25), "q3_k": (11, 3.4375), "q2_k": (10, 2.625),
}  # fmt: skip
FLOATS = ("f16", "bf16")
# Columns of one matrix (of an expert), and the length of a row.
SHAPE, SMALL_SHAPE, EXPERT_SHAPE = (4096, 4096), (1024, 4096), (768, 1024)
LAYOUTS = (b"AMX", b"CPU_REPACK")  # of weights in groups of columns, in llama.cpp's order
EXTRA = 320  # bytes of ggml_tensor before `extra`
MOST_TIMES = 60  # ggml takes new memory for each product
STEPS = 4_000_000  # of a measurement of the peak
I32 = 26  # ggml_type
POINTER, INT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class Room(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml:
    """ggml's functions by name, as this process has loaded them. Raises BadInput if it cannot."""

    def __init__(self) -> None:
        try:
            from specllama.llama.library import ggml
        except EngineError as error:
            raise cli.BadInput(str(error)) from None

        self._library = ggml

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *map(type, arguments))((name, self._library))(*arguments)

    def group_buffers(self) -> list[int]:
        """ggml's buffer types for weights in groups of columns, in llama.cpp's order."""
        reg = self.call("ggml_backend_cpu_reg", POINTER)
        name = ctypes.c_char_p(b"ggml_backend_dev_get_extra_bufts")
        address = self.call("ggml_backend_reg_get_proc_address", POINTER, POINTER(reg), name)
        device = self.call("ggml_backend_reg_dev_get", POINTER, POINTER(reg), ctypes.c_size_t(0))
        found = ctypes.CFUNCTYPE(ctypes.POINTER(POINTER), POINTER)(address)(device)
        types: list[int] = []
        while found[len(types)]:
            types.append(found[len(types)])
        named = {self.call("ggml_backend_buft_name", ctypes.c_char_p, POINTER(t)): t for t in types}
        return [named[name] for name in LAYOUTS if name in named]

    def multiplies(self, node: int) -> bool:
        """Whether ggml computes this product with its weights in the buffer that they are in."""
        reg = self.call("ggml_backend_cpu_reg", POINTER)
        device = self.call("ggml_backend_reg_dev_get", POINTER, POINTER(reg), ctypes.c_size_t(0))
        return bool(self.call("ggml_backend_dev_supports_op", ctypes.c_bool, POINTER(device), POINTER(node)))


class Matrices:
    """Random matrices of one type, which together have about `mib` MiB, ready to be multiplied. experts: how
    many each has, and how many of them a row is multiplied by; (0, 0) without experts.
    """

    def __init__(self, ggml: Ggml, kind: str, mib: int, experts: tuple[int, int], small: bool) -> None:
        self.ggml, (self.number, bits) = ggml, TYPES[kind]
        self.n_experts, self.n_used = experts
        self.columns, self.length = EXPERT_SHAPE if self.n_experts else SMALL_SHAPE if small else SHAPE
        self.bytes_each = int(max(1, self.n_experts) * self.columns * self.length * bits / 8)
        self.n = max(1, round(mib * 2**20 / self.bytes_each))
        self._rooms: list[int] = []
        data = self._random()
        self.matrices = [self._stored(data) for _ in range(self.n)]

    def n_bytes(self, n_rows: int) -> tuple[int, int]:
        """Bytes of weights that are read for `n_rows` rows, and that are multiplied: some by several rows."""
        if not self.n_experts:
            return self.n * self.bytes_each, n_rows * self.n * self.bytes_each
        read = sum(len(np.unique(self._ids(at, n_rows))) for at in range(self.n))
        multiplied = n_rows * self.n_used * self.n
        return self.bytes_each * read // self.n_experts, self.bytes_each * multiplied // self.n_experts

    def close(self) -> None:
        for room in self._rooms:
            self.ggml.call("ggml_free", None, POINTER(room))

    def _room(self, size: int, no_alloc: bool = False) -> int:
        room: int = self.ggml.call("ggml_init", POINTER, Room(size, None, no_alloc))
        self._rooms.append(room)
        return room

    def _new(self, room: int, kind: int, *shape: int) -> int:
        lengths = [*shape, 1, 1][:3]
        found: int = self.ggml.call(
            "ggml_new_tensor_3d", POINTER, POINTER(room), INT(kind), *map(LONG, lengths)
        )
        return found

    def _put(self, room: int, kind: int, values: NDArray[Any]) -> int:
        tensor = self._new(room, kind, *reversed(values.shape))
        ctypes.memmove(self._data(tensor), values.ctypes.data, values.nbytes)
        return tensor

    def _data(self, tensor: int) -> int:
        found: int = self.ggml.call("ggml_get_data", POINTER, POINTER(tensor))
        return found

    def _random(self) -> bytes:
        n_columns = self.columns * max(1, self.n_experts)
        values = np.random.default_rng(0).normal(size=(n_columns, self.length)).astype(np.float32)
        data = ctypes.create_string_buffer(self.bytes_each)
        room = (LONG(0), LONG(n_columns), LONG(self.length))
        importance = np.ones(self.length, np.float32)
        self.ggml.call(
            "ggml_quantize_chunk",
            ctypes.c_size_t,
            *(INT(self.number), POINTER(values.ctypes.data), POINTER(ctypes.addressof(data))),
            *(*room, POINTER(importance.ctypes.data)),
        )
        return data.raw

    def _stored(self, data: bytes) -> int:
        shape = (self.length, self.columns, max(1, self.n_experts))
        for buffer_type in self.ggml.group_buffers():
            room = self._room(1 << 16, no_alloc=True)
            tensor = self._new(room, self.number, *shape)
            self.ggml.call(
                "ggml_backend_alloc_ctx_tensors_from_buft", POINTER, POINTER(room), POINTER(buffer_type)
            )
            if ctypes.c_void_p.from_address(tensor + EXTRA).value and self._is_multiplied(room, tensor):
                size = (ctypes.c_size_t(0), ctypes.c_size_t(len(data)))
                self.ggml.call("ggml_backend_tensor_set", None, POINTER(tensor), ctypes.c_char_p(data), *size)
                return tensor
        tensor = self._new(self._room(len(data) + (1 << 16)), self.number, *shape)
        ctypes.memmove(self._data(tensor), data, len(data))
        return tensor

    def _is_multiplied(self, room: int, matrix: int) -> bool:
        factors = [POINTER(room), POINTER(matrix), POINTER(self._new(room, 0, self.length, 1))]
        if self.n_experts:
            factors.append(POINTER(self._new(room, I32, self.n_used, 1)))
        name = "ggml_mul_mat_id" if self.n_experts else "ggml_mul_mat"
        return self.ggml.multiplies(self.ggml.call(name, POINTER, *factors))

    def _ids(self, at: int, n_rows: int) -> NDArray[np.int32]:
        """The experts of each row, for matrix number `at`."""
        rng = np.random.default_rng((at, n_rows))
        chosen = [rng.permutation(self.n_experts)[: self.n_used] for _ in range(n_rows)]
        return np.array(chosen, np.int32)

    def product(self, rows: NDArray[np.float32], n_threads: int) -> NDArray[np.float32]:
        """rows: (n, length), times the first matrix: (n, columns)."""
        room, call = self._room(rows.nbytes + 4 * len(rows) * self.columns + (64 << 20)), self.ggml.call
        node = call(
            "ggml_mul_mat", POINTER, *map(POINTER, (room, self.matrices[0], self._put(room, 0, rows)))
        )
        graph = call("ggml_new_graph", POINTER, POINTER(room))
        call("ggml_build_forward_expand", None, POINTER(graph), POINTER(node))
        call("ggml_graph_compute_with_ctx", INT, POINTER(room), POINTER(graph), INT(n_threads))
        found = np.empty((len(rows), self.columns), np.float32)
        ctypes.memmove(found.ctypes.data, self._data(node), found.nbytes)
        return found

    def seconds(self, n_rows: int, n_threads: int, best_of: float) -> float:
        """Seconds for the product of every matrix with `n_rows` rows: the shortest of those in `best_of`
        seconds, or the median of two if that is 0.
        """
        n_results = self.n * self.columns * n_rows * max(1, self.n_used)
        room = self._room(n_results * 4 + n_rows * self.length * 4 + (256 << 20))
        values = np.random.default_rng(n_rows).normal(size=(n_rows, self.length)).astype(np.float32)
        rows = self._put(room, 0, values[:, None] if self.n_experts else values)
        call = self.ggml.call
        graph = call("ggml_new_graph", POINTER, POINTER(room))
        for at, matrix in enumerate(self.matrices):
            factors = [POINTER(room), POINTER(matrix), POINTER(rows)]
            if self.n_experts:
                factors.append(POINTER(self._put(room, I32, self._ids(at, n_rows))))
            node = call("ggml_mul_mat_id" if self.n_experts else "ggml_mul_mat", POINTER, *factors)
            call("ggml_build_forward_expand", None, POINTER(graph), POINTER(node))
        clock = time.process_time if best_of and n_threads == 1 else time.perf_counter
        times, end = list[float](), time.perf_counter() + best_of
        while len(times) < 3 or (len(times) < MOST_TIMES and time.perf_counter() < end):
            began = clock()
            call("ggml_graph_compute_with_ctx", INT, POINTER(room), POINTER(graph), INT(n_threads))
            times.append(clock() - began)
        self._rooms.remove(room)
        call("ggml_free", None, POINTER(room))
        return min(times) if best_of else statistics.median(times[1:])


def serve(n_threads: int, mib: int, experts: tuple[int, int], best_of: float) -> None:
    """A child process: reads "type rows" lines, answers each with a line of seconds and two sizes."""
    ggml = Ggml()
    kind, matrices = "", None
    for line in sys.stdin:
        wanted, n_rows = line.split()
        if wanted != kind:
            if matrices is not None:
                matrices.close()
            kind, matrices = wanted, Matrices(ggml, wanted, mib, experts, best_of > 0)
        assert matrices is not None
        print(matrices.seconds(int(n_rows), n_threads, best_of), *matrices.n_bytes(int(n_rows)), flush=True)


def write_products(kinds: list[str], args: argparse.Namespace) -> None:
    """Of each type and number of rows, as "q8_0 4" to a file of numpy's."""
    ggml, found = Ggml(), {}
    for kind in kinds:
        matrices = Matrices(ggml, kind, 1, (0, 0), small=True)
        rows = np.random.default_rng(1).normal(size=(max(args.rows), matrices.length)).astype(np.float32)
        for n in args.rows:
            found[f"{kind} {n}"] = matrices.product(rows[:n], args.threads)
        matrices.close()
    try:
        with args.products.open("wb") as file:
            np.savez(file, **found)
    except OSError as error:
        raise cli.BadInput(f"{args.products} cannot be written: {error.strerror}") from None


class Child:
    """A process that multiplies, with specllama's kernels or without."""

    def __init__(self, kernels: str, args: argparse.Namespace) -> None:
        line = [sys.executable, "-m", "scripts.bench.kernels", "--child", "-t", str(args.threads)]
        self._process = subprocess.Popen(
            [
                *line,
                "--mib",
                str(args.mib),
                "--experts",
                str(args.experts),
                "--used",
                str(args.used),
                "--best",
                str(args.best),
            ],
            env=os.environ | {VARIABLE: kernels},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, kind: str, n_rows: int) -> tuple[float, int, int]:
        """(seconds, bytes of weights that are read, and that are multiplied). Raises BadInput if the process
        has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{kind} {n_rows}\n")
            self._process.stdin.flush()
            seconds, read, multiplied = self._process.stdout.readline().split()
        except (OSError, ValueError):
            raise cli.BadInput("a process that multiplies has ended (its reason is above)") from None
        return float(seconds), int(read), int(multiplied)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._process.stdin.close()
        self._process.wait(timeout=60)


class Limits:
    """Measures what the machine can do at most."""

    def __init__(self, n_threads: int, mib: int) -> None:
        self._n_threads, self._data = n_threads, np.ones(mib << 20, np.uint8)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "limits.so"
            source = Path(__file__).with_name("limits.cpp")
            options = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
            try:
                subprocess.run([os.environ.get("CXX", "g++"), *options, source, "-o", path], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise cli.BadInput(f"the measuring of limits cannot be compiled: {error}") from None
            self._library = ctypes.CDLL(str(path))
        for name in ("read_bandwidth", "int8_peak", "float_peak"):
            getattr(self._library, name).restype = ctypes.c_double

    def bandwidth(self) -> float:
        """Bytes a second."""
        data = POINTER(self._data.ctypes.data)
        found: float = self._library.read_bandwidth(self._n_threads, data, ctypes.c_size_t(self._data.nbytes))
        return found

    def peak(self, of_floats: bool) -> float:
        """Operations a second; a multiplication and an addition are two."""
        peak = self._library.float_peak if of_floats else self._library.int8_peak
        found: float = peak(self._n_threads, LONG(STEPS))
        return found


def measured(kind: str, args: argparse.Namespace, limits: Limits, children: dict[str, Child]) -> Any:
    """For one type: seconds by rows with and without kernels, medians or the shortest; shares of limits."""
    rows, typical = args.rows, min if args.best else statistics.median
    seconds: dict[str, dict[int, list[float]]] = {name: {n: [] for n in rows} for name in children}
    bandwidths, peaks, n_bytes = list[float](), list[float](), dict[int, list[int]]()
    for run in range(args.runs):
        bandwidths.append(limits.bandwidth())
        peaks.append(limits.peak(kind in FLOATS))
        for n in rows:
            for name in sorted(children, reverse=run % 2 == 1):
                found, *n_bytes[n] = children[name].seconds(kind, n)
                seconds[name][n].append(found)
    times = {name: {n: typical(x) for n, x in by_rows.items()} for name, by_rows in seconds.items()}
    bandwidth, peak = statistics.median(bandwidths), statistics.median(peaks)
    n_read, n_multiplied = (n_bytes[n][of] if n in rows else 0 for n, of in ((1, 0), (16, 1)))
    return {
        "type": kind,
        "bandwidth": bandwidth,
        "peak": peak,
        "seconds": times,
        "share_of_bandwidth": n_read / times["on"][1] / bandwidth if 1 in rows else None,
        "share_of_peak": 2 * n_multiplied * 8 / TYPES[kind][1] / times["on"][16] / peak
        if 16 in rows
        else None,
        "relative": {n: times["on"][n] / times["off"][n] for n in rows},
        "rows_to_single": {n: times["on"][n] / times["on"][1] for n in rows} if 1 in rows else {},
    }


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--types", default=",".join(TYPES), help="comma-separated")
    p.add_argument("--rows", type=cli.whole_list(1), default=[1, 2, 4, 8, 16, 64, 512])
    p.add_argument("-t", "--threads", type=cli.whole(1))
    p.add_argument("--runs", type=cli.whole(1), default=5, help="of both processes for each number of rows")
    p.add_argument("--mib", type=cli.whole(1), default=256, help="MiB of weights")
    p.add_argument("--experts", type=cli.whole(0), default=0, help="of a matrix; 0: matrices without experts")
    p.add_argument("--used", type=cli.whole(1), default=4, help="experts that a row is multiplied by")
    p.add_argument("--best", type=float, default=0.0, metavar="SECONDS", help="the shortest of many times")
    p.add_argument("--json", type=Path, help="write all figures to this file")
    p.add_argument("--level", default="on", choices=["on", *LEVELS], help="of the kernels; on: the best")
    p.add_argument("--products", type=Path, metavar="FILE", help="write products, measure nothing")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.experts and args.used > args.experts:
        raise cli.BadInput(f"--used {args.used} is more than --experts {args.experts}")
    if args.products and args.experts:
        raise cli.BadInput("--products writes products without --experts")
    if args.child:
        serve(args.threads, args.mib, (args.experts, args.used if args.experts else 0), args.best)
        return
    kinds = args.types.split(",")
    if unknown := [kind for kind in kinds if kind not in TYPES]:
        raise cli.BadInput(f"{unknown[0]!r} is none of {', '.join(TYPES)}")
    if args.products:
        write_products(kinds, args)
        return
    limits = Limits(args.threads, args.mib)
    children = {"on": Child(args.level, args), "off": Child("off", args)}
    found = []
    rows = [*map(str, args.rows), "mean"]
    print("| type | one row, of bandwidth | 16 rows, of peak |", *(f" {name} |" for name in rows), sep="")
    print("|---|---|---|", *("---|" for _ in rows), sep="")
    try:
        for kind in kinds:
            one = measured(kind, args, limits, children)
            found.append(one)
            shares = (
                "" if x is None else f"{x:.2f}" for x in (one["share_of_bandwidth"], one["share_of_peak"])
            )
            print(f"| {kind.upper()} |", *(f" {s} |" for s in shares), sep="", end="")
            relative = [*one["relative"].values(), statistics.geometric_mean(one["relative"].values())]
            print(*(f" {x:.2f} |" for x in relative), sep="", flush=True)
    finally:
        for child in children.values():
            child.close()
    bandwidth, peaks = (
        statistics.median(x["bandwidth"] for x in found),
        [(x["type"], x["peak"]) for x in found],
    )
    print(f"\n{args.threads} threads: {bandwidth / 1e9:.1f} GB/s;", end="")
    for name, of_floats in (("8-bit integers", False), ("32-bit floats", True)):
        if some := [peak for kind, peak in peaks if (kind in FLOATS) == of_floats]:
            print(f" {statistics.median(some) / 1e9:.0f} Gop/s of {name};", end="")
    print()
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    cli.run(main)
