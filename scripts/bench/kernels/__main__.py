"""How near products of weights and rows come to the limits of this machine, and how they compare with
llama.cpp's own.

usage: python -m scripts.bench.kernels [--types T,...] [--rows N,...] [-t N] [--runs N] [--mib N] [--json F]
           [--experts N] [--used N] [--best SECONDS] [--level NAME] [--products FILE.npz]

Random weights of each type, more than the processor's caches hold, stored as a model's are (in groups of
columns where llama.cpp has such a layout) and multiplied through ggml. Two processes, with specllama's
kernels and without, are measured in turn. Of their medians: a single row as a share of the memory's
bandwidth, 16 rows as a share of the peak of multiply-add instructions (of 8-bit integers; of 32-bit floats
for F16 and BF16), both measured in the same run with as many threads; and times relative to llama.cpp's own,
with their geometric mean. Run nothing else on the machine. Needs a C++ compiler (CXX, or one on the path).
Ctrl-C ends it with what has been measured.

--experts 32: matrices of 32 experts of 1024 x 768 weights, of which each row is multiplied by --used, chosen
at random (MUL_MAT_ID). The shares count the weights that are used.

--best 0.3: each product of a matrix of 1024 columns is repeated for that long, up to 60 times, and the
shortest time counts. With -t 1, of which processor time is measured, and few MiB that gives usable relative
times on a machine that is busy otherwise; the shares mean little there.

--level avx2, avxvnni or avx512: the kernels as on an older processor. The llama.cpp that they are compared
with has to be compiled for it as well, and LLAMA_CPP_LIB_PATH to name its folder; without, it is the one that
is installed, for this processor.

--products writes products of random rows as this process computes them, by type and number of rows, and
measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
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
from specllama.llama.kernel_build import OF_MACHINE, Unusable, compiler_of, run_compilers
from specllama.llama.kernels import VARIABLE
from specllama.models.memory.available import available_memory

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
            raise cli.BadInput(str(error).removesuffix(f"\nunset {VARIABLE}")) from None

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


class Sizes:
    """Of the matrices of one type. experts: how many each has, and how many of them a row is multiplied by;
    (0, 0) without experts. n: matrices, which together have about `mib` MiB.
    """

    def __init__(self, kind: str, mib: int, experts: tuple[int, int], small: bool) -> None:
        self.number, bits = TYPES[kind]
        self.n_experts, self.n_used = experts
        self.columns, self.length = EXPERT_SHAPE if self.n_experts else SMALL_SHAPE if small else SHAPE
        self.values = max(1, self.n_experts) * self.columns * self.length
        self.bytes_each = int(self.values * bits / 8)
        self.n = max(1, round(mib * 2**20 / self.bytes_each))

    def room(self, n_rows: int, n_times: int) -> int:
        """Bytes for the rows, the products and ggml's work, which takes new memory each of so many times."""
        products = 4 * self.n * self.columns * n_rows * max(1, self.n_used)
        work = n_rows * (4 * self.length + 8 * self.n_experts * self.n_used) + 256 * self.n_experts
        return products + 4 * n_rows * (self.length + self.n * self.n_used) + n_times * work + 4096 * self.n

    def memory(self, n_rows: int, n_times: int) -> int:
        """Bytes that two processes take at most, of which one multiplies, with the measuring of limits."""
        making = 12 * (self.values + n_rows * self.length) + 2 * self.bytes_each
        return 3 * self.n * self.bytes_each + making + self.room(n_rows, n_times)


class Matrices(Sizes):
    """Random matrices of these sizes, ready to be multiplied."""

    def __init__(self, ggml: Ggml, kind: str, mib: int, experts: tuple[int, int], small: bool) -> None:
        super().__init__(kind, mib, experts, small)
        self.ggml = ggml
        self._rooms: list[int] = []
        self._buffers: list[int] = []
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
        for buffer in self._buffers:
            self.ggml.call("ggml_backend_buffer_free", None, POINTER(buffer))

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
            buffer = self.ggml.call(
                "ggml_backend_alloc_ctx_tensors_from_buft", POINTER, POINTER(room), POINTER(buffer_type)
            )
            self._buffers.append(buffer)
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
        room, call = self._room(self.room(len(rows), 1) + (64 << 20)), self.ggml.call
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
        room = self._room(self.room(n_rows, MOST_TIMES if best_of else 3) + (64 << 20))
        values = np.random.default_rng(n_rows).normal(size=(n_rows, self.length)).astype(np.float32)
        rows = self._put(room, 0, values[:, None] if self.n_experts else values)
        call = self.ggml.call
        n_tensors = ctypes.c_size_t(3 * self.n + 1)
        graph = call("ggml_new_graph_custom", POINTER, POINTER(room), n_tensors, ctypes.c_bool(False))
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
    """A child process: says that it is ready, reads "type rows" lines, answers each with a line of seconds
    and two sizes.
    """
    ggml = Ggml()
    print("ready", flush=True)
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
    """A process that multiplies, with specllama's kernels or without. Raises BadInput if it cannot."""

    def __init__(self, kernels: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.bench.kernels", *sys.argv[1:], "--child"],
            env=os.environ | {VARIABLE: kernels},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if answer := self._process.stdout.readline():
            return answer
        ended = self._process.wait()
        why = f"by signal {-ended}" if ended < 0 else "its reason is above"
        raise cli.BadInput(f"a process that multiplies has ended ({why})")

    def seconds(self, kind: str, n_rows: int) -> tuple[float, int, int]:
        """(seconds, bytes of weights that are read, and that are multiplied). Raises BadInput if the process
        has ended.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is its answer
            self._process.stdin.write(f"{kind} {n_rows}\n")
            self._process.stdin.flush()
        seconds, read, multiplied = self._answer().split()
        return float(seconds), int(read), int(multiplied)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Limits:
    """Measures what the machine can do at most."""

    def __init__(self, n_threads: int, mib: int) -> None:
        self._n_threads, self._data = n_threads, np.ones(mib << 20, np.uint8)
        with tempfile.TemporaryDirectory() as directory:
            source = str(Path(__file__).with_name("limits.cpp"))
            options = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
            try:
                command = [*compiler_of(os.environ), *options, source, "-o", "limits.so"]
                run_compilers([command], Path(directory))
            except Unusable as error:
                raise cli.BadInput(f"what measures the machine's limits: {error}") from None
            self._library = ctypes.CDLL(f"{directory}/limits.so")
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


def check_memory(kinds: list[str], args: argparse.Namespace) -> None:
    """Raises BadInput if what is asked for needs more memory than there is."""
    experts = (args.experts, args.used if args.experts else 0)
    most = max(
        Sizes(kind, args.mib, experts, args.best > 0).memory(max(args.rows), MOST_TIMES if args.best else 3)
        for kind in kinds
    )
    if most > (available := available_memory()):
        raise cli.BadInput(
            f"this can take {most / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available: name "
            "fewer --rows, MiB of weights (--mib) or --experts"
        )


def finish(found: list[Any], args: argparse.Namespace) -> None:
    """Print what the machine can do at most, and write the figures of the types that have been measured."""
    limits = [f"{statistics.median(x['bandwidth'] for x in found) / 1e9:.1f} GB/s"]
    for name, of_floats in (("8-bit integers", False), ("32-bit floats", True)):
        if some := [x["peak"] for x in found if (x["type"] in FLOATS) == of_floats]:
            limits.append(f"{statistics.median(some) / 1e9:.0f} Gop/s of {name}")
    print(f"\n{args.threads} threads: {'; '.join(limits)}")
    if args.level != "on" and not os.environ.get("LLAMA_CPP_LIB_PATH"):
        print(f"The kernels are those for {args.level}, llama.cpp is that of this installation.")
    if args.json:
        cli.write(args.json, json.dumps(found, indent=1) + "\n")


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--types", type=str.lower, default=",".join(TYPES), help="comma-separated")
    p.add_argument("--rows", type=cli.whole_list(1, 1 << 20), default=[1, 2, 4, 8, 16, 64, 512])
    p.add_argument("-t", "--threads", type=cli.threads)
    p.add_argument("--runs", type=cli.whole(1), default=5, help="of both processes for each number of rows")
    p.add_argument("--mib", type=cli.whole(1, 1 << 30), default=256, help="MiB of weights")
    p.add_argument(
        "--experts", type=cli.whole(0, 1 << 20), default=0, help="of a matrix; 0: matrices without experts"
    )
    p.add_argument("--used", type=cli.whole(1), help="experts that a row is multiplied by, 4 by default")
    p.add_argument(
        "--best", type=cli.seconds, default=0.0, metavar="SECONDS", help="the shortest of many times"
    )
    p.add_argument("--json", type=cli.output, metavar="FILE", help="write all figures to this file")
    levels = OF_MACHINE.get(platform.machine(), ())
    p.add_argument("--level", default="on", choices=["on", *levels], help="of the kernels; on: the best")
    p.add_argument("--products", type=cli.output, metavar="FILE", help="write products, measure nothing")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.used and not args.experts:
        raise cli.BadInput("--used needs --experts")
    args.used = args.used or 4
    if args.experts and args.used > args.experts:
        raise cli.BadInput(f"--used {args.used} is more than --experts {args.experts}")
    if args.products and (args.experts or args.json or args.level != "on"):
        raise cli.BadInput("--products goes without --experts, --json and --level")
    if args.child:
        serve(args.threads, args.mib, (args.experts, args.used if args.experts else 0), args.best)
        return
    kinds = [*dict.fromkeys(args.types.split(","))]
    if unknown := [kind for kind in kinds if kind not in TYPES]:
        raise cli.BadInput(f"{unknown[0]!r} is none of {', '.join(TYPES)}")
    check_memory(kinds, args)
    if args.products:
        write_products(kinds, args)
        return
    cli.check_kernels_variable()
    limits, children, found = Limits(args.threads, args.mib), dict[str, Child](), list[Any]()
    rows = [*map(str, args.rows), "mean"]
    try:
        children["on"] = Child(args.level)
        children["off"] = Child("off")
        print("| type | one row, of bandwidth | 16 rows, of peak |", *(f" {name} |" for name in rows), sep="")
        print("|---|---|---|", *("---|" for _ in rows), sep="")
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
        if found:  # also where a process has ended, or Ctrl-C
            finish(found, args)


if __name__ == "__main__":
    cli.run(main, OSError)
