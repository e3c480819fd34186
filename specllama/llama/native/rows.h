// Included by multiply.h: rows of a batch share the reading and unpacking of weights (x86-64 with AVX2).
//
// llama.cpp reads or unpacks weights once per row of a small batch, so that verifying three tokens takes two to three
// times as long as one decode. Here weights are unpacked once and multiplied by up to eight rows. Integer sums are
// exact in any order; the floating-point sums of a row have one order for any number of rows, that of llama.cpp's
// single row except for F16 and BF16. So a row is bit-identical alone and in any batch.

// n_rows of a batch times nc columns of `pitch` bytes each (see above), in blocks of columns that stay in a cache while
// all rows are multiplied; the rows in as few and as equal parts as possible.
template <typename BLOCK>
static void batch(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                  size_t stride, int64_t n_rows) {
    if (n_rows > TOGETHER) {
        const int64_t rest = n_rows - TOGETHER;
        batch<BLOCK>(n, nc, s, bs, w, pitch, rows, stride, TOGETHER);
        batch<BLOCK>(n, nc, s + TOGETHER * bs, bs, w, pitch, rows + TOGETHER * stride, stride, rest);
        return;
    }
    using type = kernel<BLOCK>;
    using part = void (*)(int64_t, int64_t, float *, size_t, const char *, size_t, const char *, size_t, const void *);
    constexpr int M = type::MOST;
    static constexpr part BY_ROWS[8] = {
        type::template times<1>, type::template times<2>, type::template times<3>,
        type::template times<M < 4 ? M : 4>, type::template times<M < 5 ? M : 5>, type::template times<M < 6 ? M : 6>,
        type::template times<M < 7 ? M : 7>, type::template times<M < 8 ? M : 8>};
    const char * prepared = (const char *) type::prepare(n, rows, stride, n_rows);
    int64_t fit = n_rows <= M ? nc : std::max<int64_t>(16, CACHED / (int64_t) pitch / 16 * 16);
    if (super<BLOCK>::known && n_rows > FEW) {
        fit = n_rows <= M ? widest::COLUMNS : TILE;
    }
    for (int64_t x = 0; x < nc; x += fit) {
        int64_t      now  = std::min(fit, nc - x), of_w = pitch;
        const char * here = w + x * pitch;
        if constexpr (super<BLOCK>::known) {
            if (n_rows > FEW) {
                here = unpacked_columns<BLOCK>(n / QK_K, here, &of_w, &now);
                fit  = now;
            }
        }
        for (int64_t done = 0, parts = (n_rows + M - 1) / M; parts > 0; parts--) {
            const int64_t count = (n_rows - done) / parts;
            BY_ROWS[count - 1](n, now, s + done * bs + x, bs, here, of_w, rows + done * stride, stride,
                               prepared + done * type::per_row(n));
            done += count;
        }
        if constexpr (super<BLOCK>::known) {
            if (n_rows > FEW && mins_are_apart<widest, BLOCK>(now)) {
                const auto * mins = mins_of((const unpacked<widest> *) here, n / QK_K);
                less_mins(n / QK_K, s + x, bs, mins, (const more_super *) prepared, n_rows);
            }
        }
    }
}

