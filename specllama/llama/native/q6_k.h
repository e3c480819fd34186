// Included by multiply.h: weights of Q6_K, which llama.cpp does not store in groups on x86.

template <typename V, int R>
static void rows_q6_k(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                      const char * rows, size_t stride) {
    for (int64_t x = 0; x < nc; x++) {
        const block_q6_K * w = (const block_q6_K *) (weights + x * pitch);
        __m256 acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < n / QK_K; b++) {
            const __m128i of_16 = _mm_loadu_si128((const __m128i *) w[b].scales);
            typename V::ints sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = V::zero();
            }
            constexpr int SIZE = sizeof(typename V::ints);
            SPECLLAMA_UNROLL
            for (int step = 0; step < QK_K / SIZE; step++) {
                typename V::ints numbers, by;
                V::six(&numbers, &by, w[b], of_16, step);
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const block_q8_K & a = ((const block_q8_K *) (rows + r * stride))[b];
                    sum[r] = V::plus_pairs(sum[r], V::plus(V::zero(), numbers, V::row(a.qs + step * SIZE)), by);
                }
            }
            const float d = float_of(w[b].d);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {  // weights of -32 to 31 were computed as 0 to 63
                const block_q8_K & a = ((const block_q8_K *) (rows + r * stride))[b];
                const __m256i of_bsums = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *) a.bsums),
                                                           _mm256_cvtepi8_epi16(of_16));
                const __m256i sums = _mm256_sub_epi32(V::eight_sums(sum[r]), _mm256_slli_epi32(of_bsums, 5));
                acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(a.d * d), _mm256_cvtepi32_ps(sums), acc[r]);
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            s[r * bs + x] = narrow::sum(acc[r]);
        }
    }
}

template <> struct kernel<block_q6_K> {
    static constexpr int MOST = specllama::MOST;
    static size_t per_row(int64_t) { return 0; }
    static const void * prepare(int64_t, const char *, size_t, int64_t) { return nullptr; }
    template <int R>
    static void times(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                      size_t stride, const void *) {
        rows_q6_k<widest, R>(n, nc, s, bs, w, pitch, rows, stride);
    }
};
