"""The fix of native/amx.h: compilers must not drop parts of a tile configuration on the stack."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import NATIVE

HEADER = NATIVE / "amx.h"
ROWS = 0x5A  # in the last of the 64 bytes
SOURCE = f"""
#include <immintrin.h>
void configure() {{
    alignas(64) unsigned char config[64] = {{}};
    config[0] = 1;
    config[63] = {ROWS};
    _tile_loadconfig(config);
}}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")
@pytest.mark.parametrize("standard", ["-std=c++17", "-std=gnu++20"])
def test_all_of_a_tile_configuration_is_written(tmp_path: Path, standard: str) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "llama.cpp was compiled with a compiler"
    source, assembly = tmp_path / "tile.cpp", tmp_path / "tile.s"
    source.write_text(SOURCE)
    command = [compiler, standard, "-O3", "-mamx-tile", "-Wall", "-Werror", "-include", HEADER, "-S"]
    subprocess.run([*command, source, "-o", assembly], check=True)
    code = assembly.read_text()
    assert "ldtilecfg" in code
    assert str(ROWS) in code or hex(ROWS) in code


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")
def test_without_amx_the_header_is_empty(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    source = tmp_path / "empty.cpp"
    source.write_text("int a;\n")
    command = [compiler, "-mno-amx-tile", "-include", HEADER, "-E", "-P", source]
    preprocessed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert preprocessed.split() == ["int", "a;"]
