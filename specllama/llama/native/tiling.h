// Included by mul_mat.h: the rows of a batch share the reading and unpacking of weights (x86-64 with AVX2).
//
// llama.cpp reads or unpacks weights once per row of a small batch, so that verifying three tokens takes two to three
// times as long as one decode. Here weights are unpacked once and multiplied by up to eight rows. Integer sums are
// exact in any order; the floating-point sums of a row are computed in the same order for any number of rows, that of
// llama.cpp's single row except for F16 and BF16. So a row is bit-identical alone and in any batch.

// Multiplies n_rows rows by nc columns of `pitch` bytes each (kernel.h), in tiles of columns that stay in a cache while
// all rows are multiplied. The rows are divided into as few parts as possible, of equal size.
template <typename BLOCK>
static void mul_mat_tiled(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                          size_t stride, int64_t n_rows) {
    if (n_rows > MAX_PREPARED_ROWS) {
        const int64_t rest = n_rows - MAX_PREPARED_ROWS;
        mul_mat_tiled<BLOCK>(n, nc, s, bs, w, pitch, rows, stride, MAX_PREPARED_ROWS);
        mul_mat_tiled<BLOCK>(n, nc, s + MAX_PREPARED_ROWS * bs, bs, w, pitch, rows + MAX_PREPARED_ROWS * stride, stride,
                             rest);
        return;
    }
    using type = kernel<BLOCK>;
    using rows_fn = void (*)(int64_t, int64_t, float *, size_t, const char *, size_t, const char *, size_t, const void *);
    constexpr int M = type::MAX_ROWS;
    static constexpr rows_fn BY_ROWS[8] = {
        type::template mul_mat<1>, type::template mul_mat<2>, type::template mul_mat<3>,
        type::template mul_mat<M < 4 ? M : 4>, type::template mul_mat<M < 5 ? M : 5>,
        type::template mul_mat<M < 6 ? M : 6>, type::template mul_mat<M < 7 ? M : 7>,
        type::template mul_mat<M < 8 ? M : 8>};
    const char * prepared = (const char *) type::prepare(n, rows, stride, n_rows);
    // Rows that are converted to floats do not fit in the L1 cache as a whole (f16.h).
    const int64_t few = std::is_base_of_v<f16_kernel<BLOCK>, type> && n_rows > 1 ? COLUMNS_AT_ONCE : nc;
    int64_t tile = n_rows <= M ? few : std::max<int64_t>(16, CACHED_BYTES / (int64_t) pitch / 16 * 16);
    if (block_256<BLOCK>::supported && n_rows > block_256<BLOCK>::FEW_ROWS) {
        tile = n_rows <= M ? widest::COLUMNS : TILE_COLUMNS;
    }
    for (int64_t x = 0; x < nc; x += tile) {
        int64_t      n_columns = std::min(tile, nc - x), tile_pitch = pitch;
        const char * tile_w    = w + x * pitch;
        if constexpr (block_256<BLOCK>::supported) {
            if (n_rows > block_256<BLOCK>::FEW_ROWS) {
                tile_w = unpack_tile<BLOCK>(n / QK_K, tile_w, &tile_pitch, &n_columns);
                tile   = n_columns;
            }
        }
        for (int64_t done = 0, parts = (n_rows + M - 1) / M; parts > 0; parts--) {
            const int64_t count = (n_rows - done) / parts;
            BY_ROWS[count - 1](n, n_columns, s + done * bs + x, bs, tile_w, tile_pitch, rows + done * stride, stride,
                               prepared + done * type::prepared_bytes(n));
            done += count;
        }
        if constexpr (block_256<BLOCK>::supported) {
            if (n_rows > block_256<BLOCK>::FEW_ROWS && mins_are_separate<widest, BLOCK>(n_columns)) {
                const auto * mins = gather_mins((const unpacked<vectors_of<BLOCK>, BLOCK> *) tile_w, n / QK_K);
                subtract_mins(n / QK_K, s + x, bs, mins, (const row_256<BLOCK> *) prepared, n_rows);
            }
        }
    }
}
