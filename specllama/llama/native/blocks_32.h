// Included by mul_mat.h: weights of Q8_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4 as in the file, in blocks of 32 with one scale
// each, and a minimum if unsigned. Each column has eight lanes of a sum.

inline __m256i nibbles(const uint8_t * from) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) from));
    return _mm256_and_si256(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)), _mm256_set1_epi8(15));
}

inline __m256i bytes_of_bits(const uint8_t * bits) {  // 0xFF for each of 32 bits that is set
    int32_t word;
    memcpy(&word, bits, sizeof(word));
    const __m256i place = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit   = _mm256_set1_epi64x((int64_t) 0x8040201008040201);
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), place), bit), bit);
}

// The first two fields of a block, of 16 bits, as floats; the second one means something if it is a minimum.
template <typename BLOCK> inline __m128 first_floats(const BLOCK & a) {
    return _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *) &a));
}
template <typename BLOCK> inline float scale_of(const BLOCK & a) { return _mm_cvtss_f32(first_floats(a)); }
template <typename BLOCK> inline float min_of(const BLOCK & a) { return _mm_cvtss_f32(_mm_movehdup_ps(first_floats(a))); }

// For each type: the type of row that it is multiplied by, its values, and its minimum.
template <typename BLOCK> struct block_32 {
    static constexpr bool supported = false;
};

template <> struct block_32<block_q8_0> {
    using row = block_q8_0;
    static constexpr bool supported = true, is_signed = true;
    static __m256i quants(const block_q8_0 & w) { return vec256::load_row(w.qs); }
    static float min(const block_q8_0 &) { return 0; }
};

template <> struct block_32<block_q4_1> {
    using row = block_q8_1;
    static constexpr bool supported = true, is_signed = false;
    static __m256i quants(const block_q4_1 & w) { return nibbles(w.qs); }
    static float min(const block_q4_1 & w) { return min_of(w); }
};

template <> struct block_32<block_q5_0> {
    using row = block_q8_0;
    static constexpr bool supported = true, is_signed = true;
    static __m256i quants(const block_q5_0 & w) {
        return _mm256_or_si256(nibbles(w.qs), _mm256_andnot_si256(bytes_of_bits(w.qh), _mm256_set1_epi8((char) 0xF0)));
    }
    static float min(const block_q5_0 &) { return 0; }
};

template <> struct block_32<block_q5_1> {
    using row = block_q8_1;
    static constexpr bool supported = true, is_signed = false;
    static __m256i quants(const block_q5_1 & w) {
        return _mm256_or_si256(nibbles(w.qs), _mm256_and_si256(bytes_of_bits(w.qh), _mm256_set1_epi8(16)));
    }
    static float min(const block_q5_1 & w) { return min_of(w); }
};

inline float scale_of(const block_mxfp4 & w) {  // mxfp4_values() are doubled; 2^-127 and less count as 0
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(w.e > 1 ? (w.e - 1) << 23 : 0)));
}

template <> struct block_32<block_iq4_nl> {
    using row = block_q8_0;
    static constexpr bool supported = true, is_signed = true;
    static __m256i quants(const block_iq4_nl & w) { return vec256::lookup(iq4_values(), nibbles(w.qs)); }
    static float min(const block_iq4_nl &) { return 0; }
};

template <> struct block_32<block_mxfp4> {
    using row = block_q8_0;
    static constexpr bool supported = true, is_signed = true;
    static __m256i quants(const block_mxfp4 & w) { return vec256::lookup(mxfp4_values(), nibbles(w.qs)); }
    static float min(const block_mxfp4 &) { return 0; }
};

struct row_32 {  // a block of a row
    float  d;
    float  sum_8th;    // an eighth of the sum of its values: each of eight lanes multiplies it by the minimum
    int8_t qs[QK8_0];  // plus ROW_OFFSET for signed weights
};

inline float sum_of(const block_q8_0 &) { return 0; }
inline float sum_of(const block_q8_1 & a) { return float_of(a.data.data.s); }

template <typename BLOCK>
static const row_32 * prepare_32(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    row_32 * row_blocks = scratch<row_32>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const auto * a = (const typename block_32<BLOCK>::row *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            row_32 & to = row_blocks[r * nb + b];
            to.d    = scale_of(a[b]);
            to.sum_8th = sum_of(a[b]) / 8;
            for (int i = 0; i < QK8_0; i++) {
                to.qs[i] = block_32<BLOCK>::is_signed ? (int8_t) (a[b].qs[i] ^ widest::ROW_OFFSET) : a[b].qs[i];
            }
        }
    }
    return row_blocks;
}

template <typename V, typename BLOCK, int R>
static int64_t mul_mat_32(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                          const row_32 * row_blocks) {
    using format = block_32<BLOCK>;
    const int64_t nb = n / QK8_0;
    int64_t x = 0;
    for (; x + V::COLUMNS <= nc; x += V::COLUMNS) {
        const BLOCK * w    = (const BLOCK *) (weights + x * pitch);
        const BLOCK * next = (const BLOCK *) (weights + (x + V::COLUMNS - 1) * pitch);
        typename V::floats acc[R], acc_min[R];  // two accumulators: one would wait for its own result twice per block
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = acc_min[r] = V::zero_ps();
        }
        for (int64_t b = 0; b < nb; b++) {
            const typename V::ints quants = V::per_column(format::quants(w[b]), [&] { return format::quants(next[b]); });
            const typename V::ints init   = format::is_signed ? V::offset_correction(quants) : V::zero_si();
            const typename V::floats d = V::per_column(scale_of(w[b]), [&] { return scale_of(next[b]); });
            const typename V::floats m = V::per_column(format::min(w[b]), [&] { return format::min(next[b]); });
            if (widest::COLUMNS == 2) {
                constexpr int PREFETCHED = std::is_same<BLOCK, block_q8_0>::value ? R : MAX_ROWS;
                prefetch<PREFETCHED>((const char *) (w + b) + V::COLUMNS * pitch);
                prefetch<PREFETCHED>((const char *) (next + b) + V::COLUMNS * pitch);
            }
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const row_32 & a = row_blocks[r * nb + b];
                const typename V::ints sums =
                    format::is_signed ? V::dot_q8_0(init, quants, a.qs)
                                      : V::widen_sums(V::dot_u8i8(V::zero_si(), quants, V::broadcast_row(a.qs)));
                acc[r] = V::accumulate(acc[r], sums, V::mul(d, V::set1_ps(a.d)));
                if (!format::is_signed) {
                    acc_min[r] = V::accumulate(acc_min[r], m, V::set1_ps(a.sum_8th));
                }
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store_totals(s + r * bs + x, format::is_signed ? acc[r] : V::add_ps(acc[r], acc_min[r]));
        }
    }
    return x;
}

// The scales of four blocks, twice, and their minimums; `first` has the first four bytes of each.
template <typename BLOCK> inline __m256 scales_of_4(__m128i first) {
    return _mm256_cvtph_ps(_mm_shuffle_epi8(first, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13)));
}
template <> inline __m256 scales_of_4<block_mxfp4>(__m128i first) {
    const __m128i e = _mm_and_si128(first, _mm_set1_epi32(255)), one = _mm_set1_epi32(1);
    const __m128i d = _mm_and_si128(_mm_slli_epi32(_mm_sub_epi32(e, one), 23), _mm_cmpgt_epi32(e, one));
    return _mm256_castsi256_ps(_mm256_broadcastsi128_si256(d));
}
inline __m128 mins_of_4(__m128i first) {
    return _mm_cvtph_ps(_mm_shuffle_epi8(first, _mm_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, 2, 3, 6, 7, 10, 11, 14, 15)));
}

inline __m256 lane(__m256 four, int c) {  // one of four, in all lanes
    return c == 0   ? _mm256_permute_ps(four, 0x00)
           : c == 1 ? _mm256_permute_ps(four, 0x55)
           : c == 2 ? _mm256_permute_ps(four, 0xAA)
                    : _mm256_permute_ps(four, 0xFF);
}

// As mul_mat_32<vec256>, for few rows: C columns, up to four, have their scales multiplied together.
template <typename BLOCK, int R, int C>
static int64_t mul_mat_32_few(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                              const row_32 * row_blocks) {
    using format = block_32<BLOCK>;
    using V = vec256;
    const int64_t nb = n / QK8_0;
    int64_t x = 0;
    for (; x + C <= nc; x += C) {
        __m256 acc[R][C];
        __m128 acc_min[R];  // one column in each lane
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc_min[r] = _mm_setzero_ps();
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                acc[r][c] = V::zero_ps();
            }
        }
        for (int64_t b = 0; b < nb; b++) {
            const BLOCK * w[C];
            int32_t first[4] = {};
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                w[c] = (const BLOCK *) (weights + (x + c) * pitch) + b;
                memcpy(first + c, w[c], sizeof(first[c]));
                prefetch<R>((const char *) w[c] + C * pitch);
            }
            const __m128i fields = _mm_setr_epi32(first[0], first[1], first[2], first[3]);
            __m256 d[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const row_32 & a = row_blocks[r * nb + b];
                d[r] = V::mul(scales_of_4<BLOCK>(fields), V::set1_ps(a.d));
                if (!format::is_signed) {
                    acc_min[r] = _mm_fmadd_ps(mins_of_4(fields), _mm_set1_ps(a.sum_8th), acc_min[r]);
                }
            }
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                const __m256i quants = format::quants(*w[c]);
                const __m256i init   = format::is_signed ? V::offset_correction(quants) : V::zero_si();
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const int8_t * a = row_blocks[r * nb + b].qs;
                    const __m256i sums = format::is_signed ? V::dot_q8_0(init, quants, a)
                                                           : V::widen_sums(V::dot_u8i8(init, quants, V::load_row(a)));
                    acc[r][c] = V::accumulate(acc[r][c], sums, lane(d[r], c));
                }
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            float mins[4];
            _mm_storeu_ps(mins, acc_min[r]);
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                s[r * bs + x + c] = V::hsum(format::is_signed ? acc[r][c] : V::add_ps(acc[r][c], V::set1_ps(mins[c])));
            }
        }
    }
    return x;
}

template <typename BLOCK> struct kernel<BLOCK, std::enable_if_t<block_32<BLOCK>::supported>> {
    static constexpr int MAX_ROWS = specllama::MAX_ROWS;
    static size_t prepared_bytes(int64_t n) { return n / QK8_0 * sizeof(row_32); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return prepare_32<BLOCK>(n / QK8_0, rows, stride, n_rows);
    }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                        const void * prepared) {
        const row_32 * row_blocks = (const row_32 *) prepared;
        int64_t x = 0;
        if constexpr (widest::COLUMNS == 1 && R <= 4) {
            x = mul_mat_32_few<BLOCK, R, R <= 2 ? 4 : 2>(n, nc, s, bs, w, pitch, row_blocks);
        } else if (widest::COLUMNS == 2 && R > 1) {  // a single row is faster with one column after another
            x = mul_mat_32<widest, BLOCK, R>(n, nc, s, bs, w, pitch, row_blocks);
        }
        mul_mat_32<vec256, BLOCK, R>(n, nc - x, s + x, bs, w + x * pitch, pitch, row_blocks);
    }
};
