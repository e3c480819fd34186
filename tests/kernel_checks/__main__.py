"""Checks the kernels (specllama/llama/native) with odd sizes: results against sums of 64-bit floats, and rows
alone against the same rows among others, bit for bit.

usage: python -m tests.kernel_checks [--levels L,...] [--only PART,...] [--no-sanitizers] [--few]
           [--library DIR --machine M --compiler CXX --emulator COMMAND]

Products (MUL_MAT), products with experts (MUL_MAT_ID) and attention are computed by ggml with the kernels,
compiled with AddressSanitizer and UndefinedBehaviorSanitizer. Each tensor has memory of its own size.
The second line is for another processor: ggml's libraries compiled for it, a compiler, and an emulator:
    --library build/bin --machine aarch64 --compiler aarch64-linux-gnu-g++ --no-sanitizers --few
    --emulator "qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu"
Exit code 1 if anything differs. With sanitizers three minutes per level.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specllama.llama import kernel_build
from tests.support.campaigns import command_parser

SOURCE = Path(__file__).with_name("checks.cpp")
PARTS = ("products", "experts", "attention")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
SECONDS = 3600  # for the checks of one level
LACKING = 3  # exit code where the processor lacks these instructions


def build(directory: Path, args: argparse.Namespace) -> Path:
    """The program, compiled in `directory`."""
    flags = ["-std=c++17", "-fno-rtti", "-w", *(SANITIZERS if args.sanitizers else ("-O2",))]
    jobs = kernel_build.objects(args.machine) | {
        "checks.o": [str(SOURCE), f"-I{kernel_build.NATIVE / 'ggml'}"],
    }
    for name, given in jobs.items():
        subprocess.run([*args.compiler, *flags, "-c", *given, "-o", name], cwd=directory, check=True)
    libraries = [str(args.library / f"libggml-{name}.so") for name in ("cpu", "base")]
    search = [f"-Wl,{option},{args.library}" for option in ("-rpath", "-rpath-link")]
    link = [*args.compiler, *flags, "-rdynamic", "-o", "checks", *jobs, *libraries, *search, "-ldl"]
    subprocess.run(link, cwd=directory, check=True)
    return directory / "checks"


def installed() -> Path:
    """The libraries of the llama-cpp-python that is installed."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        sys.exit("llama-cpp-python is not installed")
    return Path(found.origin).parent / "lib"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = command_parser("tests.kernel_checks", __doc__)
    parser.add_argument("--levels", default="", help="instruction sets; those of the processor by default")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--few", action="store_const", const=["few"], default=[], help="fewer sizes")
    parser.add_argument("--no-sanitizers", dest="sanitizers", action="store_false")
    parser.add_argument("--library", type=Path, help="a directory with libggml-cpu.so and libggml-base.so")
    parser.add_argument("--machine", default=platform.machine(), help="the processor, as uname -m names it")
    parser.add_argument("--compiler", type=shlex.split, default=["g++"])
    parser.add_argument("--emulator", type=shlex.split, default=[])
    return parser.parse_args(arguments)


def main() -> None:
    """Exit code 1 if a check fails."""
    args = parse(sys.argv[1:])
    args.library = (args.library or installed()).resolve()
    environ = os.environ | {"OMP_WAIT_POLICY": "passive"}  # there are more threads than cores
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory), args)
        for level in args.levels.split(",") if args.levels else kernel_build.OF_MACHINE[args.machine]:
            command = [
                *args.emulator,
                str(program),
                level,
                *args.only.split(","),
                *(["few"] if args.few else []),
            ]
            code = subprocess.run(command, env=environ, timeout=SECONDS, check=False).returncode
            if code != LACKING or args.levels:
                failed |= code != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
