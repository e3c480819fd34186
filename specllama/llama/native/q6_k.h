// Included by mul_mat.h: weights of Q6_K, which llama.cpp does not repack on x86.

// Unpacks vector `step` of a block, one value per byte, from four low and two high bits; and its scales.
inline void unpack_q6_k(vec256::ints * quants, vec256::ints * scales, const block_q6_K & w, __m128i packed_scales,
                        int step) {
    const int half = step / 4, i = step % 4;
    const vec256::ints four = _mm256_loadu_si256((const __m256i *) w.ql + 2 * half + i % 2);
    const vec256::ints two  = _mm256_srli_epi16(_mm256_loadu_si256((const __m256i *) w.qh + half), 2 * i);
    *quants = _mm256_or_si256(vec256::bit_and(i < 2 ? four : vec256::srli4(four), vec256::set1_epi8(15)),
                              _mm256_slli_epi16(vec256::bit_and(two, vec256::set1_epi8(3)), 4));
    *scales = vec256::scales_per_16(packed_scales, step);
}

#ifdef SPECLLAMA_VEC512
inline void unpack_q6_k(vec512::ints * quants, vec512::ints * scales, const block_q6_K & w, __m128i packed_scales,
                        int step) {
    const int half = step / 2, i = step % 2;
    const vec512::ints four = _mm512_loadu_si512(w.ql + 64 * half);
    const vec512::ints two  = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) w.qh + half));
    const vec512::ints down = _mm512_inserti64x4(_mm512_set1_epi16(4 * i), _mm256_set1_epi16(4 * i + 2), 1);
    *quants = _mm512_or_si512(vec512::bit_and(i ? vec512::srli4(four) : four, vec512::set1_epi8(15)),
                              _mm512_slli_epi16(vec512::bit_and(_mm512_srlv_epi16(two, down), vec512::set1_epi8(3)), 4));
    *scales = vec512::scales_per_16(packed_scales, step);
}
#endif

template <typename V, int R>
static void mul_mat_q6_k(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                         const char * rows, size_t stride) {
    for (int64_t x = 0; x < nc; x++) {
        const block_q6_K * w = (const block_q6_K *) (weights + x * pitch);
        __m256 acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < n / QK_K; b++) {
            const __m128i scales = _mm_loadu_si128((const __m128i *) w[b].scales);
            typename V::ints sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = V::zero_si();
            }
            if (widest::COLUMNS == 1) {
                prefetch_bytes<R>((const char *) (w + b) + pitch, sizeof(*w));
            }
            constexpr int SIZE = sizeof(typename V::ints);
            SPECLLAMA_UNROLL
            for (int step = 0; step < QK_K / SIZE; step++) {
                typename V::ints quants, step_scales;
                unpack_q6_k(&quants, &step_scales, w[b], scales, step);
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const block_q8_K & a = ((const block_q8_K *) (rows + r * stride))[b];
                    const typename V::ints products = V::dot_u8i8(V::zero_si(), quants, V::load_row(a.qs + step * SIZE));
                    sum[r] = V::dot_i16(sum[r], products, step_scales);
                }
            }
            const float d = float_of(w[b].d);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {  // minus 32 x the sums: weights of -32 to 31 were multiplied as 0 to 63
                const block_q8_K & a = ((const block_q8_K *) (rows + r * stride))[b];
                const __m256i scaled_bsums = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *) a.bsums),
                                                               _mm256_cvtepi8_epi16(scales));
                const __m256i sums = _mm256_sub_epi32(V::fold_to_8(sum[r]), _mm256_slli_epi32(scaled_bsums, 5));
                acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(a.d * d), _mm256_cvtepi32_ps(sums), acc[r]);
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            s[r * bs + x] = vec256::hsum(acc[r]);
        }
    }
}

template <> struct kernel<block_q6_K> {
    static constexpr int MAX_ROWS = specllama::MAX_ROWS;
    static size_t prepared_bytes(int64_t) { return 0; }
    static const void * prepare(int64_t, const char *, size_t, int64_t) { return nullptr; }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                        size_t stride, const void *) {
        mul_mat_q6_k<widest, R>(n, nc, s, bs, w, pitch, rows, stride);
    }
};
