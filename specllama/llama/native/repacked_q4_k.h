// Included by mul_mat.h: weights of Q4_K as llama.cpp repacks them (CPU_REPACK), in groups of eight columns, each block
// with 256 values of each column.

// Eight 6-bit scales (bytes 0-7) and mins (8-15) from 12 bytes, as in ggml's Q4_K and Q5_K.
static inline __m128i scales_and_mins(const uint8_t * packed) {
    uint32_t p[3];
    memcpy(p, packed, sizeof(p));
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, high2 = 0x30303030;
    return _mm_setr_epi32((int) (p[0] & low6), (int) ((p[2] & low4) | ((p[0] >> 2) & high2)),
                          (int) (p[1] & low6), (int) (((p[2] >> 4) & low4) | ((p[1] >> 2) & high2)));
}

static inline __m128i pair_mins(__m128i one, __m128i two) {  // the two mins of each column in turn
    return _mm_unpackhi_epi8(one, two);
}

static const int16_t * prepare_q4_k(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    int16_t * sums = scratch<int16_t>(n_rows * nb * 8);  // of 32 values each
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_K * a = (const block_q8_K *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            for (int i = 0; i < 8; i++) {
                sums[(r * nb + b) * 8 + i] = (int16_t) (a[b].bsums[2 * i] + a[b].bsums[2 * i + 1]);
            }
        }
    }
    return sums;
}

template <typename V, int R>
static int64_t mul_mat_q4_k(int64_t n, int64_t nc, float * s, size_t bs, const block_q4_Kx8 * weights, const char * rows,
                            size_t stride, const int16_t * sums) {
    using ints = typename V::ints;
    const int64_t nb = n / QK_K;
    int64_t x = 0;
    for (; x + 8 * V::N_GROUPS <= nc; x += 8 * V::N_GROUPS) {
        const block_q4_Kx8 * w    = weights + x / 8 * nb;
        const block_q4_Kx8 * next = w + (V::N_GROUPS - 1) * nb;
        typename V::floats acc[R], acc_min[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = acc_min[r] = V::zero_ps();
        }
        for (int64_t b = 0; b < nb; b++) {
            prefetch_groups<V, 1>(w + b, next + b, nb);
            ints first_sum[R], second_sum[R], min_sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                first_sum[r] = second_sum[r] = min_sum[r] = V::zero_si();
            }
            for (int part = 0; part < 4; part++) {  // 64 values: 32 in the low halves of bytes, 32 in the high halves
                const __m128i scales[2] = { scales_and_mins(w[b].scales + 24 * part),
                                           scales_and_mins(w[b].scales + 24 * part + 12) };
                const __m128i next_scales[2] = { scales_and_mins(next[b].scales + 24 * part),
                                           scales_and_mins(next[b].scales + 24 * part + 12) };
                const ints mins = V::u8_pairs(pair_mins(scales[0], scales[1]), pair_mins(next_scales[0], next_scales[1]));
                SPECLLAMA_UNROLL
                for (int half = 0; half < 2; half++) {
                    ints first[4], second[4], first_scales, second_scales;
                    SPECLLAMA_UNROLL
                    for (int i = 0; i < 4; i++) {
                        V::load_columns(first + i, second + i, w[b].qs + 256 * part + 64 * i,
                                        next[b].qs + 256 * part + 64 * i);
                        first[i]  = V::bit_and(half ? V::srli4(first[i]) : first[i], V::set1_epi8(15));
                        second[i] = V::bit_and(half ? V::srli4(second[i]) : second[i], V::set1_epi8(15));
                    }
                    V::column_scales(&first_scales, &second_scales, scales[half], next_scales[half]);
                    SPECLLAMA_UNROLL
                    for (int r = 0; r < R; r++) {
                        const block_q8_K & a = ((const block_q8_K *) (rows + r * stride))[b];
                        ints bytes[4];
                        broadcast_eights<V>(bytes, a.qs + 64 * part + 32 * half);
                        first_sum[r]  = V::dot_i16(first_sum[r], dot_32<V>(first, bytes), first_scales);
                        second_sum[r] = V::dot_i16(second_sum[r], dot_32<V>(second, bytes), second_scales);
                    }
                }
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    int32_t pair;
                    memcpy(&pair, sums + (r * nb + b) * 8 + 2 * part, sizeof(pair));
                    min_sum[r] = V::dot_i16(min_sum[r], V::set1_epi32(pair), mins);
                }
            }
            const typename V::floats d = V::load_f16_scales(w[b].d, next[b].d),
                                     dmin = V::load_f16_scales(w[b].dmin, next[b].dmin);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const typename V::floats scale = V::set1_ps(((const block_q8_K *) (rows + r * stride))[b].d);
                acc[r] = V::accumulate(acc[r], V::reduce_columns(first_sum[r], second_sum[r]), V::mul(d, scale));
                acc_min[r] = V::accumulate(acc_min[r], min_sum[r], V::mul(dmin, scale));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store_columns(s + r * bs + x, V::sub(acc[r], acc_min[r]));
        }
    }
    return x;
}

template <> struct kernel<block_q4_Kx8> {
    static constexpr int MAX_ROWS = specllama::MAX_ROWS;
    static size_t prepared_bytes(int64_t n) { return n / QK_K * 8 * sizeof(int16_t); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return prepare_q4_k(n / QK_K, rows, stride, n_rows);
    }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                        size_t stride, const void * prepared) {
        const int16_t * sums = (const int16_t *) prepared;
        int64_t x = 0;
        if (R > 1) {
            x = mul_mat_q4_k<widest, R>(n, nc, s, bs, (const block_q4_Kx8 *) w, rows, stride, sums);
        }
        mul_mat_q4_k<vec256, R>(n, nc - x, s + x, bs, (const block_q4_Kx8 *) (w + x * pitch), rows, stride, sums);
    }
};
