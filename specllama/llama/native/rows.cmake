# Runs inside ggml's project (scripts/installation): makes rows of a batch bit-identical to single rows, and lets them
# share the reading of weights.
#
# llama.cpp's CPU backend sums a row in a batch in another order than a single row, so that a text generated with drafts
# is not always the text generated without them. This file changes the unpacked source (of llama-cpp-python 0.3.36)
# before it is compiled: attention uses attention.h, multiplications rows.h, and those of AMX tiles.h. If the source of another
# version differs at these places, the installation stops here.

# llama-cpp-python's CMakeLists forces llama.cpp's common library on, 40 % of the compilation; nothing here uses it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(LLAMA_BUILD_COMMON OFF PARENT_SCOPE)
  include("${CMAKE_CURRENT_LIST_DIR}/libllama.cmake")
endif()

set(SPECLLAMA_ROWS 18) # batches of this many rows count as a prompt; drafts have up to 16 tokens usually
set(SPECLLAMA_DONE "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/specllama_rows")
if(EXISTS "${SPECLLAMA_DONE}") # an earlier run has changed this source
  return()
endif()

function(specllama_change file count from to)
  set(path "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/${file}")
  file(READ "${path}" text)
  string(LENGTH "${text}" before)
  string(REPLACE "${from}" "" without "${text}")
  string(LENGTH "${without}" after)
  string(LENGTH "${from}" size)
  math(EXPR expected "${before} - ${count} * ${size}")
  if(NOT after EQUAL expected)
    message(FATAL_ERROR "specllama: ${file} of this llama.cpp is not the version that is known: "
      "specllama/llama/native/rows.cmake has to be adapted. It expects ${count} times: ${from}")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
  file(WRITE "${path}" "${text}")
endfunction()

# Flash attention on a cache of 16-bit floats (x86 with AVX2): attention.h, for single rows and prompts alike.
configure_file("${CMAKE_CURRENT_LIST_DIR}/attention.h"
  "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/specllama_attention.h" COPYONLY)
specllama_change(ops.cpp 1 "#include \"vec.h\"\n" "#include \"vec.h\"\n#include \"specllama_attention.h\"\n")
specllama_change(ops.cpp 1
"    const bool use_ref = params->use_ref;
"
"    const bool use_ref = params->use_ref;
#ifdef SPECLLAMA_ATTENTION
    if (!use_ref && specllama_attention::attends(dst)) {
        specllama_attention::attend(params, dst);
        return;
    }
#endif
")

# On other processors and other caches: from 512 used cells on llama.cpp sums a single row in as many parts as there are
# threads, but not rows of a batch. The parts kept each thread to its share of the cache; now heads that share keys and
# values stay with one thread. After 2,000 tokens a row takes 1.03 to 1.07 times as long as in parts.
specllama_change(ops.cpp 1
  "const bool use_split_kv_path = !use_ref &&"
  "const bool use_split_kv_path = false && !use_ref &&")
specllama_change(ops.cpp 1
[=[        const int64_t nr = neq1*neq2*neq3;

        // disable for NUMA
        const bool disable_chunking = ggml_is_numa();

        // 4x chunks per thread
        int nth_scaled = nth * 4;
        int64_t chunk_size = (nr + nth_scaled - 1) / nth_scaled;
]=]
[=[        const int64_t nr = neq1*neq2*neq3;

        // disable for NUMA
        const bool disable_chunking = ggml_is_numa();

        // 4x chunks per thread
        int nth_scaled = nth * 4;
        int64_t chunk_size = (nr + nth_scaled - 1) / nth_scaled;
        const int64_t sharing = neq1*(neq2/nek2);
        const int64_t shared = nr/sharing;
        if (shared % nth == 0 || shared >= nth_scaled) {
            chunk_size = (chunk_size + sharing - 1)/sharing*sharing;
        }
]=])

# On x86 with AVX2, rows of a batch share the reading and unpacking of Q4_0, Q4_K, Q6_K, Q8_0 and F16 weights (rows.h):
# a row is the same in any batch, and two to eight rows take about half as long.
configure_file("${CMAKE_CURRENT_LIST_DIR}/rows.h"
  "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/specllama_rows.h" COPYONLY)
specllama_change(repack.cpp 1 "#include \"repack.h\"\n" "#include \"repack.h\"\n#include \"specllama_rows.h\"\n")
specllama_change(ggml-cpu.c 1
[=[void ggml_compute_forward_mul_mat(
]=]
[=[extern bool specllama_takes(const struct ggml_tensor * dst);
extern void specllama_multiply(const struct ggml_compute_params * params, struct ggml_tensor * dst);

void ggml_compute_forward_mul_mat(
]=])
specllama_change(ggml-cpu.c 1
[=[    ggml_barrier(params->threadpool);

#if GGML_USE_LLAMAFILE
    if (src1->type != vec_dot_type) {
]=]
[=[    ggml_barrier(params->threadpool);

    if (specllama_takes(dst)) {
        specllama_multiply(params, dst);
        return;
    }
#if GGML_USE_LLAMAFILE
    if (src1->type != vec_dot_type) {
]=])
specllama_change(tiled/tiled.cpp 1
[=[// tiled K-quant matmul; returns true if the op was computed here,
// false to fall through to the stock path
bool ggml_compute_forward_mul_mat_tiled(
]=]
[=[extern "C" bool specllama_takes(const struct ggml_tensor * dst);

bool ggml_compute_forward_mul_mat_tiled(
]=])
specllama_change(tiled/tiled.cpp 1
  "if (!ggml_tiled_min_batch(dst->src[1]->ne[1])) {"
  "if (!ggml_tiled_min_batch(dst->src[1]->ne[1]) || (specllama_takes(dst) && !ggml_tiled_matmul_forced())) {")

# Weights that llama.cpp stores in groups (repack.cpp) are multiplied there: Q4_0 and Q4_K by rows.h, the other K-quants
# row by row while there are few rows, since llama.cpp has another kernel for four rows.
specllama_change(repack.cpp 1
  "template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type PARAM_TYPE> class tensor_traits :"
  "template <typename BLOC_TYPE, ggml_type PARAM_TYPE> static int64_t rows_by_fours(int64_t n) {
#if defined(__x86_64__) || defined(_M_X64)
    if (specllama::shared<BLOC_TYPE> || (PARAM_TYPE == GGML_TYPE_Q8_K && n < ${SPECLLAMA_ROWS})) {
        return 0;
    }
#endif
    return n - n % 4;
}

template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type PARAM_TYPE> class tensor_traits :")
specllama_change(repack.cpp 1 "        if (nrows > 3) {"
"        if constexpr (specllama::shared<BLOC_TYPE>) {
            specllama::batch<BLOC_TYPE>(ne00, ncols, (float *) dst_ptr + src0_start, nb1 / nb0,
                                        src0_ptr + src0_start * nb01, nb01, src1_ptr, src1_col_stride, nrows);
            return;
        }
        if (rows_by_fours<BLOC_TYPE, PARAM_TYPE>(nrows) > 0) {")
specllama_change(repack.cpp 2 "nrows - (nrows % 4)" "rows_by_fours<BLOC_TYPE, PARAM_TYPE>(nrows)")
specllama_change(repack.cpp 2 "ne11 - ne11 % 4" "rows_by_fours<BLOC_TYPE, PARAM_TYPE>(ne11)")

# Weights that llama.cpp packs for AMX: tiles.h multiplies a few rows. F16 weights are not packed but excluded, so that
# they are multiplied as without AMX.
configure_file("${CMAKE_CURRENT_LIST_DIR}/tiles.h"
  "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/amx/specllama_tiles.h" COPYONLY)
specllama_change(amx/mmq.cpp 1
"} // anonymous namespace

// get the packed tensor size for quantized weights
"
"} // anonymous namespace

#include \"specllama_tiles.h\"

// get the packed tensor size for quantized weights
")
specllama_change(amx/mmq.cpp 1
"    if (M == 1) {
        // MB = 1"
"    if (specllama_tiles::multiply(params, dst)) {
        return;
    }
    if (M == 1) {
        // MB = 1")
specllama_change(amx/amx.cpp 1
"            case GGML_TYPE_F16:
                alignment = 16;
                break;
"
"")
file(TOUCH "${SPECLLAMA_DONE}")
