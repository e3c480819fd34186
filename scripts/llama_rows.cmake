# Run inside ggml's project (setup.sh): rows of a small batch are computed as single rows are, bit for bit.
#
# llama.cpp's CPU backend sums a row up in another order when it is decoded alone than when it is decoded beside
# others. A text that was written with drafts is then not always the one that is written without them. The
# unpacked source (that of llama-cpp-python 0.3.36) is changed in three places before it is compiled. Where
# another version reads otherwise the installation ends here, so that nobody misses it.

set(SPECLLAMA_ROWS 18) # from so many rows on a batch is taken for a prompt; drafts of 16 are usual
set(SPECLLAMA_DONE "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/specllama_rows")
if(EXISTS "${SPECLLAMA_DONE}") # by an earlier run in the same folder
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
    message(FATAL_ERROR "specllama: ${file} of this llama.cpp is another than the one that is known: "
      "scripts/llama_rows.cmake has to be looked at anew. It expects ${count} times: ${from}")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
  file(WRITE "${path}" "${text}")
endfunction()

# Flash attention: from 512 cells of the cache in use a single row is summed up in as many parts as there are
# threads, rows of a batch are not. The parts kept each thread to its share of the cache; now heads that share
# keys and values stay with one thread. Behind 2,000 ids a row takes 1.03 to 1.07 times as long as in parts.
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

# K-quants on x86: four rows and more are multiplied by another kernel than one to three. One by one, four rows
# take less (0.85 to 0.9 x), eight as much, sixteen 1.3 to 1.4 times as long.
specllama_change(repack.cpp 1
  "template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type PARAM_TYPE> class tensor_traits :"
  "template <ggml_type PARAM_TYPE> static int64_t rows_by_fours(int64_t n) {
#if defined(__x86_64__) || defined(_M_X64)
    if (PARAM_TYPE == GGML_TYPE_Q8_K && n < ${SPECLLAMA_ROWS}) {
        return 0;
    }
#endif
    return n - n % 4;
}

template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type PARAM_TYPE> class tensor_traits :")
specllama_change(repack.cpp 1 "if (nrows > 3) {" "if (rows_by_fours<PARAM_TYPE>(nrows) > 0) {")
specllama_change(repack.cpp 2 "nrows - (nrows % 4)" "rows_by_fours<PARAM_TYPE>(nrows)")
specllama_change(repack.cpp 2 "ne11 - ne11 % 4" "rows_by_fours<PARAM_TYPE>(ne11)")

# Q6_K, which most 4-bit files use for a part of their weights: eight rows and more are multiplied by tiles.
# Where all weights are Q6_K the tiles are 1.5 to 1.8 times as fast from twelve rows on; those of other kinds
# (Q5_K, IQ4_XS, ...), which gain more, are left alone.
specllama_change(tiled/tiled.cpp 1
  "if (!ggml_tiled_min_batch(dst->src[1]->ne[1])) {"
  "if (!ggml_tiled_min_batch(dst->src[1]->ne[1]) ||
        (dst->src[0]->type == GGML_TYPE_Q6_K && dst->src[1]->ne[1] < ${SPECLLAMA_ROWS} && !ggml_tiled_matmul_forced())) {")
file(TOUCH "${SPECLLAMA_DONE}")
