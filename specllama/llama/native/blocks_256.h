// Included by mul_mat.h: weights in blocks of 256 with a scale for every 16 values (the types of k_quants.h). Columns are
// unpacked once, then multiplied by all rows, up to eight at once; for a few rows, each block is unpacked when it is
// needed. Integers are summed in the same lanes, and floating-point numbers in the same order, as in ggml's vec_dot, which
// computes single rows: the results are the same.

struct unpacked_block {  // of one column, in registers
    __m256i values[8];
    __m128i scales;  // of 16 values each
    __m256i mins;    // 16 or 8, as 16-bit integers
};

// How minimums are subtracted: not at all, one product per block, in the lanes of the sums, or in the sums themselves,
// before they are scaled.
enum class mins { none, summed, in_lanes, in_sums };

template <typename BLOCK> struct block_256 {
    static constexpr bool supported = false;
    static constexpr int  FEW_ROWS = 0;
};

// For each type (k_quants.h): unpack, scale, min, with two SCALED_BYTES unpack_scaled, and
struct format_256 {
    static constexpr bool supported          = true;
    static constexpr bool is_signed          = false;  // values may be negative
    static constexpr bool has_large_products = false;  // sums of four may exceed 16 bits
    static constexpr mins MINS               = mins::none;  // how minimums are subtracted
    static constexpr int  FEW_ROWS           = 4;      // up to so many are multiplied without unpacking whole columns
    static constexpr int  SCALED_BYTES       = 0;      // of a value times its scale, times SIGN; 0: they are too many
    static constexpr int  SIGN               = 1;
};

// With vectors of 32 bytes it takes less time to sum two large products than to scale sums of four.
template <typename BLOCK>
using vectors_of = std::conditional_t<block_256<BLOCK>::has_large_products && widest::COLUMNS == 1, vec256_with<false>, widest>;

// Sums of four products need no scaling where whole columns are unpacked to values times their scales.
template <typename V, typename BLOCK>
constexpr int SCALED_BYTES = V::PRODUCTS_PER_SUM == 4 ? block_256<BLOCK>::SCALED_BYTES : 0;

template <typename V, typename BLOCK> struct unpacked {  // a block of each of V::COLUMNS columns
    static constexpr int BYTES = SCALED_BYTES<V, BLOCK> == 2 ? 2 : 1;
    alignas(64) int8_t quants[BYTES * QK_K * V::COLUMNS];  // 32 bytes of each column in turn, with two bytes the high ones first
    typename V::ints init;                                 // initial values of the sums
    typename V::ints scales[SCALED_BYTES<V, BLOCK> > 0 ? 1 : 8];  // in the lanes of the sums of products
    alignas(64) __m256i mins[V::COLUMNS];
    float   d[V::COLUMNS], min[V::COLUMNS];
};

constexpr int64_t TILE_COLUMNS = 16;  // columns that are unpacked together for more than MAX_ROWS rows

template <typename BLOCK> struct row_256 {  // a block of a row
    alignas(64) int8_t qs[QK_K];  // plus ROW_OFFSET for signed weights
    int16_t sums_of_16[QK_K / 16], sums[QK_K / 32];
    float   d;
};

// 32 values of a block times their scales, as bytes.
template <typename BLOCK> static __m256i scaled_values(const unpacked_block & from, int j) {
    using format = block_256<BLOCK>;
    const __m128i each_eight_times = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i picked = _mm_shuffle_epi8(from.scales, _mm_add_epi8(each_eight_times, _mm_set1_epi8((char) (2 * j))));
    const __m256i scale  = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(picked), _mm256_set1_epi16(format::SIGN));
    if (!format::is_signed) {
        return _mm256_mullo_epi16(from.values[j], scale);  // bytes do not overflow into the next ones
    }
    const __m256i even = _mm256_mullo_epi16(_mm256_srai_epi16(_mm256_slli_epi16(from.values[j], 8), 8), scale);
    const __m256i odd  = _mm256_mullo_epi16(_mm256_srai_epi16(from.values[j], 8), scale);
    return _mm256_blendv_epi8(even, _mm256_slli_epi16(odd, 8), _mm256_set1_epi16((short) 0xff00));
}

template <typename BLOCK>
static const row_256<BLOCK> * prepare_256(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    row_256<BLOCK> * row_blocks = scratch<row_256<BLOCK>>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_K * a = (const block_q8_K *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            row_256<BLOCK> & to = row_blocks[r * nb + b];
            to.d = a[b].d;
            for (int i = 0; i < QK_K; i++) {
                to.qs[i] = (int8_t) (a[b].qs[i] ^ (block_256<BLOCK>::is_signed ? vectors_of<BLOCK>::ROW_OFFSET : 0));
            }
            memcpy(to.sums_of_16, a[b].bsums, sizeof(to.sums_of_16));
            for (int i = 0; i < QK_K / 32; i++) {
                to.sums[i] = (int16_t) (a[b].bsums[2 * i] + a[b].bsums[2 * i + 1]);
            }
        }
    }
    return row_blocks;
}

template <typename V, typename BLOCK>
static void unpack(int64_t nb, const char * weights, size_t pitch, unpacked<V, BLOCK> * to) {  // V::COLUMNS columns
    using format = block_256<BLOCK>;
    constexpr int SCALED = SCALED_BYTES<V, BLOCK>, BYTES = SCALED == 2 ? 2 : 1;
    for (int64_t b = 0; b < nb; b++) {
        unpacked_block blocks[V::COLUMNS];
        SPECLLAMA_UNROLL
        for (int c = 0; c < V::COLUMNS; c++) {
            const BLOCK & w = ((const BLOCK *) (weights + c * pitch))[b];
            prefetch_bytes<1>((const char *) &w + V::COLUMNS * pitch, sizeof(BLOCK));
            format::unpack(w, blocks[c]);
            SPECLLAMA_UNROLL
            for (int j = 0; j < 8; j++) {
                __m256i values[BYTES] = {blocks[c].values[j]};
                if constexpr (SCALED == 1) {
                    values[0] = scaled_values<BLOCK>(blocks[c], j);
                } else if constexpr (SCALED == 2) {
                    format::unpack_scaled(w, blocks[c], j, values);
                }
                for (int i = 0; i < BYTES; i++) {
                    _mm256_store_si256((__m256i *) (to[b].quants + 32 * ((BYTES * j + i) * V::COLUMNS + c)), values[i]);
                }
            }
            to[b].d[c]      = format::scale(w) * (SCALED > 0 ? format::SIGN : 1);
            if (format::MINS != mins::none) {
                to[b].mins[c] = blocks[c].mins;
                to[b].min[c]  = format::min(w);
            }
        }
        const __m128i first = blocks[0].scales, last = blocks[V::COLUMNS - 1].scales;
        const __m128i low   = V::COLUMNS == 2 ? _mm_unpacklo_epi16(first, last) : first;  // two of each column in turn
        const __m128i high  = V::COLUMNS == 2 ? _mm_unpackhi_epi16(first, last) : first;
        SPECLLAMA_UNROLL
        for (int step = 0; SCALED == 0 && step < 8; step++) {
            constexpr int STEPS = 8 / V::COLUMNS;  // whose scales are 16 bytes
            to[b].scales[step] = V::scales_per_16(step < STEPS ? low : high, step % STEPS);
        }
    }
    // In a loop of its own: loading a vector right after it was stored in two halves stalls.
    for (int64_t b = 0; format::is_signed && b < nb; b++) {
        to[b].init = V::zero_si();
        for (int step = 0; V::ROW_OFFSET != 0 && step < 8; step++) {
            const auto correction = [&](int i) {
                return V::offset_correction(V::load_row(to[b].quants + (BYTES * step + i) * sizeof(typename V::ints)));
            };
            if (SCALED > 0) {
                to[b].init = SCALED == 1 ? V::add(to[b].init, correction(0))
                                         : V::add(V::add(to[b].init, V::times_64(correction(0))), correction(1));
            } else {
                to[b].init = V::add_scaled(to[b].init, correction(0), to[b].scales[step]);
            }
        }
    }
}

// Whether the minimums of these columns are subtracted separately (subtract_mins), with a column in each lane.
template <typename V, typename BLOCK> static bool mins_are_separate(int64_t nc) {
    return block_256<BLOCK>::MINS == mins::summed && V::COLUMNS == 2 && nc == TILE_COLUMNS;
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
struct tile_mins {  // of a block of each column
    int32_t pairs[4][TILE_COLUMNS];  // of 16-bit integers
    float   min[TILE_COLUMNS];
};

template <typename BLOCK> static const tile_mins * gather_mins(const unpacked<vec512, BLOCK> * w, int64_t nb) {
    tile_mins * to = scratch<tile_mins>(nb);
    for (int64_t x = 0; x < TILE_COLUMNS; x++) {
        for (int64_t b = 0; b < nb; b++) {
            const unpacked<vec512, BLOCK> & from = w[x / vec512::COLUMNS * nb + b];
            int32_t pairs[4];
            _mm_storeu_si128((__m128i *) pairs, _mm256_castsi256_si128(from.mins[x % vec512::COLUMNS]));
            for (int i = 0; i < 4; i++) {
                to[b].pairs[i][x] = pairs[i];
            }
            to[b].min[x] = from.min[x % vec512::COLUMNS];
        }
    }
    return to;
}

template <typename BLOCK>
static void subtract_mins(int64_t nb, float * s, size_t bs, const tile_mins * w, const row_256<BLOCK> * row_blocks,
                          int64_t n_rows) {
    for (int64_t r = 0; r < n_rows; r++) {
        __m512 minus_mins = _mm512_setzero_ps();
        for (int64_t b = 0; b < nb; b++) {
            const row_256<BLOCK> & a = row_blocks[r * nb + b];
            __m512i sum = _mm512_setzero_si512();
            for (int i = 0; i < 4; i++) {
                int32_t pair;
                memcpy(&pair, a.sums + 2 * i, sizeof(pair));
                sum = _mm512_dpwssd_epi32(sum, _mm512_set1_epi32(pair), _mm512_loadu_si512(w[b].pairs[i]));
            }
            const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(-a.d), _mm512_loadu_ps(w[b].min));
            minus_mins = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), minus_mins);
        }
        _mm512_storeu_ps(s + r * bs, _mm512_add_ps(_mm512_loadu_ps(s + r * bs), minus_mins));
    }
}
#else
struct tile_mins;
template <typename V, typename BLOCK> static const tile_mins * gather_mins(const unpacked<V, BLOCK> *, int64_t) {
    return nullptr;
}
template <typename BLOCK>
static void subtract_mins(int64_t, float *, size_t, const tile_mins *, const row_256<BLOCK> *, int64_t) {}
#endif

// Of all columns before the next ones, so that this part of the rows stays in the L1 cache, which two threads may share.
template <typename BLOCK> constexpr int64_t BLOCKS_AT_ONCE = block_256<BLOCK>::SCALED_BYTES == 2 ? 2 : 4;

template <typename V, typename BLOCK, int R>
static void mul_mat_256(int64_t n, int64_t nc, float * s, size_t bs, const unpacked<V, BLOCK> * columns,
                        const row_256<BLOCK> * row_blocks) {
    using format = block_256<BLOCK>;
    using ints   = typename V::ints;
    using floats = typename V::floats;
    const int64_t nb = n / QK_K;
    const bool    with_mins = !mins_are_separate<V, BLOCK>(nc);
    constexpr int SCALED = SCALED_BYTES<V, BLOCK>;
    floats acc_so_far[TILE_COLUMNS / V::COLUMNS][R];
    __m128 mins_so_far[TILE_COLUMNS / V::COLUMNS][R];
    for (int64_t at = 0; at < nb; at += BLOCKS_AT_ONCE<BLOCK>)
    for (int64_t x = 0; x < nc; x += V::COLUMNS) {
        floats acc[R];
        __m128 minus_mins[R];  // one column in each lane
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r]        = at == 0 ? V::zero_ps() : acc_so_far[x / V::COLUMNS][r];
            minus_mins[r] = at == 0 || format::MINS != mins::summed ? _mm_setzero_ps() : mins_so_far[x / V::COLUMNS][r];
        }
        const int64_t end = std::min(nb, at + BLOCKS_AT_ONCE<BLOCK>);
        const unpacked<V, BLOCK> * w = columns + x / V::COLUMNS * nb + at;
        for (int64_t b = at; b < end; b++, w++) {
            ints sum[R], high[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = high[r] = V::zero_si();
                if (format::MINS == mins::in_sums) {
                    const ints sums = V::broadcast_row((const int8_t *) row_blocks[r * nb + b].sums_of_16);
                    sum[r] = V::dot_i16(sum[r], V::load_row((const int8_t *) w->mins), sums);
                } else if (format::is_signed) {
                    sum[r] = w->init;
                }
            }
            SPECLLAMA_UNROLL
            for (int step = 0; SCALED > 0 && step < 8; step++) {
                const int8_t * from = w->quants + SCALED * step * sizeof(ints);
                const ints quants = V::load_row(from), low = SCALED == 2 ? V::load_row(from + sizeof(ints)) : V::zero_si();
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const ints a = V::broadcast_row(row_blocks[r * nb + b].qs + 32 * step);
                    if (SCALED == 2) {
                        high[r] = V::dot_u8i8(high[r], a, quants);
                        sum[r]  = V::dot_u8i8(sum[r], a, low);
                    } else {
                        sum[r] = format::is_signed ? V::dot_u8i8(sum[r], a, quants) : V::dot_u8i8(sum[r], quants, a);
                    }
                }
            }
            SPECLLAMA_UNROLL
            for (int r = 0; SCALED == 2 && r < R; r++) {
                sum[r] = V::add(sum[r], V::times_64(high[r]));
            }
            SPECLLAMA_UNROLL
            for (int step = 0; SCALED == 0 && step < 8; step++) {
                const ints quants = V::load_row(w->quants + step * sizeof(ints)), scales = w->scales[step];
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const ints a        = V::broadcast_row(row_blocks[r * nb + b].qs + 32 * step);
                    const ints products = format::is_signed ? V::dot_with_offset(V::zero_si(), a, quants)
                                                          : V::dot_u8i8(V::zero_si(), quants, a);
                    sum[r] = V::dot_i16(sum[r], products, scales);
                }
            }
            const floats d = V::per_column(w->d[0], [&] { return w->d[V::COLUMNS - 1]; });
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const row_256<BLOCK> & a = row_blocks[r * nb + b];
                if (format::MINS == mins::in_lanes) {
                    const __m256i sums = _mm256_loadu_si256((const __m256i *) a.sums_of_16);
                    const auto products = [&](int c) {
                        return _mm256_madd_epi16(w->mins[c], sums);
                    };
                    const floats min = V::per_column(w->min[0], [&] { return w->min[V::COLUMNS - 1]; });
                    acc[r] = V::accumulate(acc[r], V::per_column(products(0), [&] { return products(V::COLUMNS - 1); }),
                                      V::mul(min, V::set1_ps(-a.d)));
                } else if (format::MINS == mins::summed && with_mins) {
                    const __m128i sums  = _mm_loadu_si128((const __m128i *) a.sums);
                    const __m128i first = _mm_madd_epi16(_mm256_castsi256_si128(w->mins[0]), sums);
                    const __m128i last  = _mm_madd_epi16(_mm256_castsi256_si128(w->mins[V::COLUMNS - 1]), sums);
                    const __m128i two   = _mm_add_epi32(_mm_unpacklo_epi32(first, last), _mm_unpackhi_epi32(first, last));
                    const __m128i one   = _mm_add_epi32(two, _mm_unpackhi_epi64(two, two));
                    const __m128  min   = _mm_setr_ps(w->min[0], w->min[V::COLUMNS - 1], 0, 0);
                    minus_mins[r] = _mm_fmadd_ps(_mm_mul_ps(_mm_set1_ps(-a.d), min), _mm_cvtepi32_ps(one), minus_mins[r]);
                }
                acc[r] = V::accumulate(acc[r], sum[r], V::mul(d, V::set1_ps(a.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R && end < nb; r++) {
            acc_so_far[x / V::COLUMNS][r] = acc[r];
            if (format::MINS == mins::summed) {
                mins_so_far[x / V::COLUMNS][r] = minus_mins[r];
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R && end == nb; r++) {
            float * to = s + r * bs + x;
            V::store_totals(to, acc[r]);
            if (format::MINS == mins::summed && with_mins) {
                float columns[4];
                _mm_storeu_ps(columns, minus_mins[r]);
                for (int c = 0; c < V::COLUMNS; c++) {
                    to[c] += columns[c];
                }
            }
        }
    }
}

template <typename V, typename BLOCK, int R>  // up to FEW_ROWS rows: one column at once, each block unpacked when needed
static void mul_mat_256_few(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                            const row_256<BLOCK> * row_blocks) {
    using format = block_256<BLOCK>;
    using ints = typename V::ints;
    constexpr int SIZE = sizeof(ints);
    const int64_t nb = n / QK_K;
    for (int64_t x = 0; x < nc; x++) {
        const BLOCK * w = (const BLOCK *) (weights + x * pitch);
        __m256 acc[R];
        float  minus_mins[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r]        = _mm256_setzero_ps();
            minus_mins[r] = 0;
        }
        for (int64_t b = 0; b < nb; b++) {
            prefetch_ahead((const char *) (w + b), sizeof(BLOCK));
            unpacked_block u;
            format::unpack(w[b], u);
            ints sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = V::zero_si();
            }
            SPECLLAMA_UNROLL
            for (int step = 0; step < QK_K / SIZE; step++) {
                const ints values = V::of_steps(u.values, step), scales = V::scales_per_16(u.scales, step);
                const ints init   = format::is_signed ? V::offset_correction(values) : V::zero_si();
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const ints a        = V::load_row(row_blocks[r * nb + b].qs + step * SIZE);
                    const ints products = format::is_signed ? V::dot_with_offset(init, a, values)
                                                            : V::dot_u8i8(init, values, a);
                    sum[r] = format::has_large_products ? V::add_scaled(sum[r], products, scales)
                                                        : V::dot_i16(sum[r], products, scales);
                }
            }
            const float d = format::scale(w[b]), min = format::min(w[b]);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const row_256<BLOCK> & a = row_blocks[r * nb + b];
                if (format::MINS == mins::in_lanes) {
                    const __m256i sums = _mm256_loadu_si256((const __m256i *) a.sums_of_16);
                    acc[r] = vec256::accumulate(acc[r], _mm256_madd_epi16(u.mins, sums), _mm256_set1_ps(-a.d * min));
                } else if (format::MINS == mins::summed) {
                    __m128i four = _mm_madd_epi16(_mm256_castsi256_si128(u.mins), _mm_loadu_si128((const __m128i *) a.sums));
                    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
                    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
                    minus_mins[r] = std::fma(-a.d * min, (float) _mm_cvtsi128_si32(four), minus_mins[r]);
                }
                __m256i eight = V::fold_to_8(sum[r]);
                if (format::MINS == mins::in_sums) {
                    eight = vec256::dot_i16(eight, u.mins, _mm256_loadu_si256((const __m256i *) a.sums_of_16));
                }
                acc[r] = vec256::accumulate(acc[r], eight, _mm256_set1_ps(a.d * d));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            s[r * bs + x] = format::MINS == mins::summed ? vec256::hsum(acc[r]) + minus_mins[r] : vec256::hsum(acc[r]);
        }
    }
}

// Unpacks `n_columns` columns, or fewer, in which case it is set to their number. Sets `pitch` to UNPACKED_WIDEST for
// columns that are stored widest::COLUMNS at once, to UNPACKED_SINGLE for the last one alone.
constexpr int64_t UNPACKED_WIDEST = 0, UNPACKED_SINGLE = 1;

template <typename BLOCK>
static const char * unpack_tile(int64_t nb, const char * w, int64_t * pitch, int64_t * n_columns) {
    const int64_t from_pitch = *pitch;
    using V = vectors_of<BLOCK>;
    if (*n_columns < V::COLUMNS) {
        auto * to = scratch<unpacked<vec256, BLOCK>>(nb);
        unpack<vec256, BLOCK>(nb, w, from_pitch, to);
        *n_columns = 1;
        *pitch     = UNPACKED_SINGLE;
        return (const char *) to;
    }
    *n_columns -= *n_columns % V::COLUMNS;
    auto * to = scratch<unpacked<V, BLOCK>>(*n_columns / V::COLUMNS * nb);
    for (int64_t x = 0; x < *n_columns; x += V::COLUMNS) {
        unpack<V, BLOCK>(nb, w + x * from_pitch, from_pitch, to + x / V::COLUMNS * nb);
    }
    *pitch = UNPACKED_WIDEST;
    return (const char *) to;
}

template <typename BLOCK> struct kernel<BLOCK, std::enable_if_t<block_256<BLOCK>::supported>> {
    static constexpr int MAX_ROWS = specllama::MAX_ROWS;
    static size_t prepared_bytes(int64_t n) { return n / QK_K * sizeof(row_256<BLOCK>); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return prepare_256<BLOCK>(n / QK_K, rows, stride, n_rows);
    }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                        const void * prepared) {
        using V = vectors_of<BLOCK>;
        const auto * row_blocks = (const row_256<BLOCK> *) prepared;
        if (pitch > UNPACKED_SINGLE) {
            mul_mat_256_few<V, BLOCK, R <= block_256<BLOCK>::FEW_ROWS ? R : 1>(n, nc, s, bs, w, pitch, row_blocks);
        } else if (pitch == UNPACKED_SINGLE) {
            mul_mat_256<vec256, BLOCK, R>(n, nc, s, bs, (const unpacked<vec256, BLOCK> *) w, row_blocks);
        } else {
            mul_mat_256<V, BLOCK, R>(n, nc, s, bs, (const unpacked<V, BLOCK> *) w, row_blocks);
        }
    }
};
