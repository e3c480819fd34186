// Included by multiply.h: weights of Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4, in blocks of 32 with one scale each, and a minimum if unsigned.
// The loop is that of Q8_0: one or two columns at once, each in eight lanes of the sum.

inline __m256i nibbles(const uint8_t * from) {
    const __m128i low = _mm_loadu_si128((const __m128i *) from);
    const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_srli_epi16(low, 4), 1);
    return _mm256_and_si256(all, _mm256_set1_epi8(15));
}

inline __m256i where_set(const uint8_t * bits) {  // 0xFF for each of 32 bits that is set
    int32_t word;
    memcpy(&word, bits, sizeof(word));
    const __m256i place = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit   = _mm256_set1_epi64x((int64_t) 0x8040201008040201);
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), place), bit), bit);
}

template <typename BLOCK> struct small {
    static constexpr bool known = false;
};

template <> struct small<block_q4_1> {
    using row = block_q8_1;
    static constexpr bool known = true, is_signed = false;
    static __m256i numbers(const block_q4_1 & w) { return nibbles(w.qs); }
    static float min(const block_q4_1 & w) { return float_of(w.data.data.m); }
};

template <> struct small<block_q5_0> {
    using row = block_q8_0;
    static constexpr bool known = true, is_signed = true;
    static __m256i numbers(const block_q5_0 & w) {
        return _mm256_or_si256(nibbles(w.qs), _mm256_andnot_si256(where_set(w.qh), _mm256_set1_epi8((char) 0xF0)));
    }
    static float min(const block_q5_0 &) { return 0; }
};

template <> struct small<block_q5_1> {
    using row = block_q8_1;
    static constexpr bool known = true, is_signed = false;
    static __m256i numbers(const block_q5_1 & w) {
        return _mm256_or_si256(nibbles(w.qs), _mm256_and_si256(where_set(w.qh), _mm256_set1_epi8(16)));
    }
    static float min(const block_q5_1 & w) { return float_of(w.data.data.m); }
};

inline float scale_of(const block_mxfp4 & w) {  // numbers are twofold; 2^-127, and less, is taken for 0
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(w.e > 1 ? (w.e - 1) << 23 : 0)));
}

template <> struct small<block_iq4_nl> {
    using row = block_q8_0;
    static constexpr bool known = true, is_signed = true;
    static __m256i numbers(const block_iq4_nl & w) { return narrow::looked_up(numbers_of_iq4(), nibbles(w.qs)); }
    static float min(const block_iq4_nl &) { return 0; }
};

template <> struct small<block_mxfp4> {
    using row = block_q8_0;
    static constexpr bool known = true, is_signed = true;
    static __m256i numbers(const block_mxfp4 & w) { return narrow::looked_up(numbers_of_mxfp4(), nibbles(w.qs)); }
    static float min(const block_mxfp4 &) { return 0; }
};

struct more_small {
    float  d;
    float  part;  // an eighth of the sum of the block's values, which each of eight lanes multiplies with the minimum
    int8_t qs[QK8_0];  // plus V::MORE for signed weights
};

template <typename BLOCK> inline float scale_of(const BLOCK & a) {
    ggml_half first;  // of every other block of these types
    memcpy(&first, &a, sizeof(first));
    return float_of(first);
}
inline float sum_of(const block_q8_0 &) { return 0; }
inline float sum_of(const block_q8_1 & a) { return float_of(a.data.data.s); }

template <typename BLOCK>
static const more_small * more_of_small(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    more_small * of = scratch<more_small>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const auto * a = (const typename small<BLOCK>::row *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            more_small & to = of[r * nb + b];
            to.d    = scale_of(a[b]);
            to.part = sum_of(a[b]) / 8;
            for (int i = 0; i < QK8_0; i++) {
                to.qs[i] = small<BLOCK>::is_signed ? (int8_t) (a[b].qs[i] ^ widest::MORE) : a[b].qs[i];
            }
        }
    }
    return of;
}

template <typename V, typename BLOCK, int R>
static int64_t rows_small(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                          const more_small * of) {
    using kind = small<BLOCK>;
    const int64_t nb = n / QK8_0;
    int64_t x = 0;
    for (; x + V::COLUMNS <= nc; x += V::COLUMNS) {
        const BLOCK * w    = (const BLOCK *) (weights + x * pitch);
        const BLOCK * next = (const BLOCK *) (weights + (x + V::COLUMNS - 1) * pitch);
        typename V::floats acc[R], of_mins[R];  // two sums, since one would wait for its own result twice per block
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = of_mins[r] = V::none();
        }
        for (int64_t b = 0; b < nb; b++) {
            const typename V::ints numbers = V::columns_of(kind::numbers(w[b]), [&] { return kind::numbers(next[b]); });
            const typename V::ints begin   = kind::is_signed ? V::less_more(numbers) : V::zero();
            const typename V::floats d = V::columns_of(scale_of(w[b]), [&] { return scale_of(next[b]); });
            const typename V::floats m = V::columns_of(kind::min(w[b]), [&] { return kind::min(next[b]); });
            __builtin_prefetch((const char *) (w + b) + V::COLUMNS * pitch);
            __builtin_prefetch((const char *) (next + b) + V::COLUMNS * pitch);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const more_small & a = of[r * nb + b];
                const typename V::ints sums = kind::is_signed ? V::products(begin, numbers, a.qs)
                                                              : V::whole(V::plus(V::zero(), numbers, V::twice(a.qs)));
                acc[r] = V::plus(acc[r], sums, V::times(d, V::all(a.d)));
                if (!kind::is_signed) {
                    of_mins[r] = V::plus(of_mins[r], m, V::all(a.part));
                }
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store_sums(s + r * bs + x, kind::is_signed ? acc[r] : V::add(acc[r], of_mins[r]));
        }
    }
    return x;
}

template <typename BLOCK> struct kernel<BLOCK, std::enable_if_t<small<BLOCK>::known>> {
    static constexpr int MOST = specllama::MOST;
    static size_t per_row(int64_t n) { return n / QK8_0 * sizeof(more_small); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return more_of_small<BLOCK>(n / QK8_0, rows, stride, n_rows);
    }
    template <int R>
    static void times(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                      const void * prepared) {
        const more_small * of = (const more_small *) prepared;
        int64_t x = 0;
        if (R > 1) {
            x = rows_small<widest, BLOCK, R>(n, nc, s, bs, w, pitch, of);
        }
        rows_small<narrow, BLOCK, R>(n, nc - x, s + x, bs, w + x * pitch, pitch, of);
    }
};
