// Included by rows.h: weights of Q5_K, Q3_K and IQ4_XS, in blocks of 256 with a scale for every 16 values. A block is
// unpacked once, then multiplied by up to eight rows. Integers are summed in the lanes, and floating-point numbers in the
// order, of ggml's product of two rows (vec_dot), which computes single rows: the results are the same.

struct unpacked {
    alignas(64) int8_t numbers[QK_K];
    int8_t  scales[QK_K / 16];
    int16_t mins[QK_K / 32];
};

template <typename BLOCK> struct super {
    static constexpr bool known = false;
};

inline void keep(int8_t * to, __m256i numbers) { _mm256_store_si256((__m256i *) to, numbers); }

template <> struct super<block_q5_K> {
    static constexpr bool known = true, is_signed = false, has_mins = true, is_large = false;
    static void unpack(const block_q5_K & w, unpacked & to) {
        const __m256i fifths = _mm256_loadu_si256((const __m256i *) w.qh);
        for (int j = 0; j < 8; j++) {
            const __m256i both  = _mm256_loadu_si256((const __m256i *) w.qs + j / 2);
            const __m256i four  = _mm256_and_si256(j % 2 ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
            const __m256i fifth = _mm256_and_si256(_mm256_srli_epi16(fifths, j), _mm256_set1_epi8(1));
            keep(to.numbers + 32 * j, _mm256_or_si256(four, _mm256_slli_epi16(fifth, 4)));
        }
        uint32_t p[3];
        memcpy(p, w.scales, sizeof(p));
        const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, high2 = 0x30303030;
        const __m128i all = _mm_setr_epi32((int) (p[0] & low6), (int) ((p[2] & low4) | ((p[0] >> 2) & high2)),
                                           (int) (p[1] & low6), (int) (((p[2] >> 4) & low4) | ((p[1] >> 2) & high2)));
        _mm_storeu_si128((__m128i *) to.scales, _mm_unpacklo_epi8(all, all));
        _mm_storeu_si128((__m128i *) to.mins, _mm_cvtepu8_epi16(_mm_srli_si128(all, 8)));
    }
    static float min(const block_q5_K & w) { return float_of(w.data.data.dmin); }
    static float scale(const block_q5_K & w) { return float_of(w.data.data.d); }
};

template <> struct super<block_q3_K> {
    static constexpr bool known = true, is_signed = true, has_mins = false, is_large = false;
    static void unpack(const block_q3_K & w, unpacked & to) {
        const __m256i thirds = _mm256_loadu_si256((const __m256i *) w.hmask);
        for (int j = 0; j < 8; j++) {  // of -4 to 3
            const __m256i four = _mm256_srli_epi16(_mm256_loadu_si256((const __m256i *) w.qs + j / 4), 2 * (j % 4));
            const __m256i none = _mm256_andnot_si256(_mm256_srli_epi16(thirds, j), _mm256_set1_epi8(1));
            keep(to.numbers + 32 * j, _mm256_sub_epi8(_mm256_and_si256(four, _mm256_set1_epi8(3)),
                                                      _mm256_slli_epi16(none, 2)));
        }
        uint32_t p[3];
        memcpy(p, w.scales, sizeof(p));
        const uint32_t low4 = 0x0f0f0f0f, low2 = 0x03030303;
        const __m128i all = _mm_setr_epi32((int) ((p[0] & low4) | (p[2] & low2) << 4),
                                           (int) ((p[1] & low4) | (p[2] >> 2 & low2) << 4),
                                           (int) ((p[0] >> 4 & low4) | (p[2] >> 4 & low2) << 4),
                                           (int) ((p[1] >> 4 & low4) | (p[2] >> 6 & low2) << 4));
        _mm_storeu_si128((__m128i *) to.scales, _mm_sub_epi8(all, _mm_set1_epi8(32)));
    }
    static float min(const block_q3_K &) { return 0; }
    static float scale(const block_q3_K & w) { return float_of(w.d); }
};

template <> struct super<block_iq4_xs> {
    static constexpr bool known = true, is_signed = true, has_mins = false, is_large = true;
    static void unpack(const block_iq4_xs & w, unpacked & to) {
        const __m256i values = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
        for (int j = 0; j < 8; j++) {
            keep(to.numbers + 32 * j, _mm256_shuffle_epi8(values, nibbles(w.qs + 16 * j)));
            const int low = w.scales_l[j / 2] >> 4 * (j % 2) & 15, high = w.scales_h >> 2 * j & 3;
            to.scales[2 * j] = to.scales[2 * j + 1] = (int8_t) ((low | high << 4) - 32);
        }
    }
    static float min(const block_iq4_xs &) { return 0; }
    static float scale(const block_iq4_xs & w) { return float_of(w.d); }
};

struct more_super {  // a block of a row
    alignas(64) int8_t qs[QK_K];  // plus V::MORE for signed weights
    int16_t sums[QK_K / 32];
    float   d;
};

template <typename BLOCK>
static const more_super * more_of_super(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    more_super * of = scratch<more_super>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_K * a = (const block_q8_K *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            more_super & to = of[r * nb + b];
            to.d = a[b].d;
            for (int i = 0; i < QK_K; i++) {
                to.qs[i] = super<BLOCK>::is_signed ? (int8_t) (a[b].qs[i] ^ widest::MORE) : a[b].qs[i];
            }
            for (int i = 0; i < QK_K / 32; i++) {
                to.sums[i] = (int16_t) (a[b].bsums[2 * i] + a[b].bsums[2 * i + 1]);
            }
        }
    }
    return of;
}

template <typename V, typename BLOCK, int R>
static void rows_super(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                       const more_super * of) {
    using kind = super<BLOCK>;
    constexpr int SIZE = sizeof(typename V::ints);
    const int64_t nb = n / QK_K;
    unpacked      u;
    for (int64_t x = 0; x < nc; x++) {
        const BLOCK * w = (const BLOCK *) (weights + x * pitch);
        __m256 acc[R];
        float  less[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r]  = _mm256_setzero_ps();
            less[r] = 0;
        }
        for (int64_t b = 0; b < nb; b++) {
            kind::unpack(w[b], u);
            const __m128i of_16 = _mm_loadu_si128((const __m128i *) u.scales);
            typename V::ints sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = V::zero();
            }
            SPECLLAMA_UNROLL
            for (int step = 0; step < QK_K / SIZE; step++) {
                const typename V::ints numbers = V::row(u.numbers + step * SIZE), by = V::scales_of_16(of_16, step);
                const typename V::ints begin   = kind::is_signed ? V::less_more(numbers) : V::zero();
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const typename V::ints a = V::row(of[r * nb + b].qs + step * SIZE);
                    const typename V::ints products = kind::is_signed ? V::signed_plus(begin, a, numbers)
                                                                      : V::plus(V::zero(), numbers, a);
                    sum[r] = kind::is_large ? V::plus_large(sum[r], products, by) : V::plus_pairs(sum[r], products, by);
                }
            }
            const float d = kind::scale(w[b]), min = kind::min(w[b]);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const more_super & a = of[r * nb + b];
                if (kind::has_mins) {
                    __m128i four = _mm_madd_epi16(_mm_loadu_si128((const __m128i *) u.mins),
                                                  _mm_loadu_si128((const __m128i *) a.sums));
                    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
                    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
                    less[r] = std::fma(-a.d * min, (float) _mm_cvtsi128_si32(four), less[r]);
                }
                acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(a.d * d), _mm256_cvtepi32_ps(V::eight_sums(sum[r])), acc[r]);
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            s[r * bs + x] = kind::has_mins ? narrow::sum(acc[r]) + less[r] : narrow::sum(acc[r]);
        }
    }
}
