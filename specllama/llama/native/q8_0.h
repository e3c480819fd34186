// Included by mul_mat.h: weights of Q8_0.

// A block of each column, the initial values of its sums, and its scales.
inline void load_q8_0(vec256::ints * quants, vec256::ints * init, vec256::floats * d, const block_q8_0 * w,
                      const block_q8_0 *) {
    *quants = vec256::load_row(w->qs);
    *init   = vec256::offset_correction(*quants);
    *d      = vec256::set1_ps(float_of(w->d));
}

#ifdef SPECLLAMA_VEC512
inline void load_q8_0(vec512::ints * quants, vec512::ints * init, vec512::floats * d, const block_q8_0 * w,
                      const block_q8_0 * next) {
    *quants = vec512::concat(vec256::load_row(w->qs), vec256::load_row(next->qs));
    *init   = vec512::offset_correction(*quants);
    *d      = _mm512_castsi512_ps(vec512::concat(_mm256_castps_si256(vec256::set1_ps(float_of(w->d))),
                                                 _mm256_castps_si256(vec256::set1_ps(float_of(next->d)))));
}
#endif

struct row_q8_0 {  // a block of a row
    float  d;
    int8_t qs[QK8_0];  // plus ROW_OFFSET
};

static const row_q8_0 * prepare_q8_0(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    row_q8_0 * row_blocks = scratch<row_q8_0>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_0 * a = (const block_q8_0 *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            row_blocks[r * nb + b].d = float_of(a[b].d);
            for (int i = 0; i < QK8_0; i++) {
                row_blocks[r * nb + b].qs[i] = (int8_t) (a[b].qs[i] ^ widest::ROW_OFFSET);
            }
        }
    }
    return row_blocks;
}

template <typename V, int R>
static int64_t mul_mat_q8_0(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                            const row_q8_0 * row_blocks) {
    const int64_t nb = n / QK8_0;
    int64_t x = 0;
    for (; x + V::COLUMNS <= nc; x += V::COLUMNS) {
        const block_q8_0 * w    = (const block_q8_0 *) (weights + x * pitch);
        const block_q8_0 * next = (const block_q8_0 *) (weights + (x + V::COLUMNS - 1) * pitch);
        typename V::floats acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = V::zero_ps();
        }
        for (int64_t b = 0; b < nb; b++) {
            typename V::ints quants, init;
            typename V::floats d;
            load_q8_0(&quants, &init, &d, w + b, next + b);
            prefetch<R>((const char *) (w + b) + V::COLUMNS * pitch);
            prefetch<R>((const char *) (next + b) + V::COLUMNS * pitch);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const row_q8_0 & a = row_blocks[r * nb + b];
                acc[r] = V::accumulate(acc[r], V::dot_q8_0(init, quants, a.qs), V::mul(d, V::set1_ps(a.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store_totals(s + r * bs + x, acc[r]);
        }
    }
    return x;
}

template <> struct kernel<block_q8_0> {
    static constexpr int MAX_ROWS = specllama::MAX_ROWS;
    static size_t prepared_bytes(int64_t n) { return n / QK8_0 * sizeof(row_q8_0); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return prepare_q8_0(n / QK8_0, rows, stride, n_rows);
    }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                        const void * prepared) {
        const row_q8_0 * row_blocks = (const row_q8_0 *) prepared;
        int64_t x = 0;
        if (R > 1) {  // a single row is faster with one column after another
            x = mul_mat_q8_0<widest, R>(n, nc, s, bs, w, pitch, row_blocks);
        }
        mul_mat_q8_0<vec256, R>(n, nc - x, s + x, bs, w + x * pitch, pitch, row_blocks);
    }
};
