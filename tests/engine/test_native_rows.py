"""The changes of native/rows.cmake to llama.cpp's source, and that it rejects unknown versions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import NATIVE

SCRIPT = NATIVE / "rows.cmake"
CMAKE = shutil.which("cmake")
ATTENTION = """#include "vec.h"
    const bool use_ref = params->use_ref;
    const bool use_split_kv_path = !use_ref && (neq1 == 1 && neq3 == 1);
        const int64_t nr = neq1*neq2*neq3;

        // disable for NUMA
        const bool disable_chunking = ggml_is_numa();

        // 4x chunks per thread
        int nth_scaled = nth * 4;
        int64_t chunk_size = (nr + nth_scaled - 1) / nth_scaled;
        int64_t nchunk = 1; // [a] {b}
"""
CLASS = "template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type PARAM_TYPE> class "
REPACK = f"""#include "repack.h"
{CLASS}tensor_traits : {{
        if (nrows > 3) {{
            gemm(nrows - (nrows % 4), ncols);
        for (int iter = nrows - (nrows % 4); iter < nrows; iter++) {{
            for (int64_t i11 = ith * 4; i11 < ne11 - ne11 % 4; i11 += nth * 4) {{
            const int64_t i11_processed = ne11 - ne11 % 4;
"""
TILED = """// tiled K-quant matmul; returns true if the op was computed here,
// false to fall through to the stock path
bool ggml_compute_forward_mul_mat_tiled(
    if (!ggml_tiled_min_batch(dst->src[1]->ne[1])) {
        return false;
"""
MULTIPLY = """void ggml_compute_forward_mul_mat(
    ggml_barrier(params->threadpool);

#if GGML_USE_LLAMAFILE
    if (src1->type != vec_dot_type) {
"""

MMQ = """} // anonymous namespace

// get the packed tensor size for quantized weights
    if (M == 1) {
        // MB = 1 and handle 8 tiles in each block
"""
AMX = """            case GGML_TYPE_Q8_0:
                break;
            case GGML_TYPE_F16:
                alignment = 16;
                break;
            default:
"""

pytestmark = pytest.mark.skipif(CMAKE is None, reason="no cmake")


def source(directory: Path, **other: str) -> dict[str, Path]:
    """The parts of ggml's source that are changed."""
    texts = {"ops": ATTENTION, "repack": REPACK, "tiled": TILED, "ggml-cpu": MULTIPLY, "mmq": MMQ, "amx": AMX}
    texts |= other
    cpu = directory / "src" / "ggml-cpu"
    files = {name: cpu / f"{name}.cpp" for name in ("ops", "repack")}
    files |= {"tiled": cpu / "tiled" / "tiled.cpp", "ggml-cpu": cpu / "ggml-cpu.c"}
    files |= {name: cpu / "amx" / f"{name}.cpp" for name in ("mmq", "amx")}
    for name, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[name])
    return files


def change(directory: Path) -> subprocess.CompletedProcess[str]:
    assert CMAKE is not None
    return subprocess.run([CMAKE, "-P", SCRIPT], cwd=directory, capture_output=True, text=True, check=False)


def test_all_changes_are_made_once(tmp_path: Path) -> None:
    files = source(tmp_path)
    found = change(tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    texts = {name: file.read_text() for name, file in files.items()}
    assert "use_split_kv_path = false && !use_ref &&" in texts["ops"]
    assert "shared % nth == 0" in texts["ops"]
    assert texts["ops"].endswith(ATTENTION.splitlines()[-1] + "\n"), "the rest is unchanged"
    assert "% 4)" not in texts["repack"].split("class tensor_traits")[1]
    assert texts["repack"].count("rows_by_fours<BLOC_TYPE, PARAM_TYPE>(nrows)") == 3
    assert texts["repack"].count("rows_by_fours<BLOC_TYPE, PARAM_TYPE>(ne11)") == 2
    assert '#include "specllama_rows.h"' in texts["repack"]
    assert "specllama::batch<BLOC_TYPE>" in texts["repack"]
    assert "|| (specllama_takes(dst) &&" in texts["tiled"]
    assert "specllama_multiply(params, dst);" in texts["ggml-cpu"].split("ggml_barrier")[1]
    first = texts["ops"].split("use_ref = ")[1].split("use_split")[0]
    assert "specllama_attention::attend(params, dst);" in first
    places = ('#include "specllama_tiles.h"', "if (specllama_tiles::multiply(params", "if (M == 1)")
    found_at = [texts["mmq"].index(place) for place in places]
    assert found_at == sorted(found_at)
    assert "F16" not in texts["amx"]
    cpu = files["ops"].parent
    for copy in (cpu / "specllama_rows.h", cpu / "specllama_attention.h", cpu / "amx" / "specllama_tiles.h"):
        original = SCRIPT.parent / copy.name.removeprefix("specllama_")
        assert copy.read_text() == original.read_text()
    second = change(tmp_path)
    assert second.returncode == 0
    assert {name: file.read_text() for name, file in files.items()} == texts


@pytest.mark.parametrize("name", ["ops", "repack", "tiled", "ggml-cpu", "mmq", "amx"])
@pytest.mark.parametrize("text", ["", "int a;\n"])
def test_another_llama_cpp_is_rejected(tmp_path: Path, name: str, text: str) -> None:
    """Otherwise a new version could change outputs unnoticed."""
    source(tmp_path, **{name: text})
    found = change(tmp_path)
    assert found.returncode != 0
    file = "ggml-cpu.c" if name == "ggml-cpu" else f"{name}.cpp"
    assert f"{file} of this llama.cpp is not the version that is known" in " ".join(found.stderr.split())


def test_an_ambiguous_place_is_rejected(tmp_path: Path) -> None:
    source(tmp_path, ops=ATTENTION * 2)
    assert change(tmp_path).returncode != 0
