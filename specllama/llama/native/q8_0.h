// Included by multiply.h: weights of Q8_0.

struct more_q8_0 {
    float  d;
    int8_t qs[QK8_0];  // plus V::MORE
};

static const more_q8_0 * more_of_q8_0(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    more_q8_0 * of = scratch<more_q8_0>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_0 * a = (const block_q8_0 *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            of[r * nb + b].d = float_of(a[b].d);
            for (int i = 0; i < QK8_0; i++) {
                of[r * nb + b].qs[i] = (int8_t) (a[b].qs[i] ^ widest::MORE);
            }
        }
    }
    return of;
}

template <typename V, int R>
static int64_t rows_q8_0(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                         const more_q8_0 * of) {
    const int64_t nb = n / QK8_0;
    int64_t x = 0;
    for (; x + V::COLUMNS <= nc; x += V::COLUMNS) {
        const block_q8_0 * w    = (const block_q8_0 *) (weights + x * pitch);
        const block_q8_0 * next = (const block_q8_0 *) (weights + (x + V::COLUMNS - 1) * pitch);
        typename V::floats acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = V::none();
        }
        for (int64_t b = 0; b < nb; b++) {
            typename V::ints numbers, begin;
            typename V::floats d;
            V::load(&numbers, &begin, &d, w + b, next + b);
            prefetch<R>((const char *) (w + b) + V::COLUMNS * pitch);
            prefetch<R>((const char *) (next + b) + V::COLUMNS * pitch);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const more_q8_0 & a = of[r * nb + b];
                acc[r] = V::plus(acc[r], V::products(begin, numbers, a.qs), V::times(d, V::all(a.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store_sums(s + r * bs + x, acc[r]);
        }
    }
    return x;
}

template <> struct kernel<block_q8_0> {
    static constexpr int MOST = specllama::MOST;
    static size_t per_row(int64_t n) { return n / QK8_0 * sizeof(more_q8_0); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return more_of_q8_0(n / QK8_0, rows, stride, n_rows);
    }
    template <int R>
    static void times(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                      const void * prepared) {
        const more_q8_0 * of = (const more_q8_0 *) prepared;
        int64_t x = 0;
        if (R > 1) {  // for one row, reading column after column is faster
            x = rows_q8_0<widest, R>(n, nc, s, bs, w, pitch, of);
        }
        rows_q8_0<narrow, R>(n, nc - x, s + x, bs, w + x * pitch, pitch, of);
    }
};
