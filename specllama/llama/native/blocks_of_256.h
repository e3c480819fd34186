// Included by multiply.h: weights of Q2_K, Q3_K, Q5_K and IQ4_XS, in blocks of 256 with a scale for every 16 values. Columns
// are unpacked once, then multiplied by all rows, up to eight at once; for few rows block by block. Integers are summed in
// the lanes, and floating-point numbers in the order, of ggml's product of two rows (vec_dot), which computes single rows:
// the results are the same.

struct block_of_256 {  // a block, unpacked; 32 numbers each are written `step` bytes apart
    int8_t * numbers;
    int      step;
    __m128i  scales;  // of 16 numbers each
    __m256i  mins;    // 16 or 8, as 16-bit numbers
    void keep(int j, __m256i of_32) { _mm256_store_si256((__m256i *) (numbers + step * j), of_32); }
};

template <typename V> struct unpacked {  // a block of each of V::COLUMNS columns
    alignas(64) int8_t numbers[QK_K * V::COLUMNS];  // 32 of each column in turn
    typename V::ints begin;                         // what the sums begin with
    __m128i scales[V::COLUMNS];                     // two of each column in turn
    __m256i mins[V::COLUMNS];
    float   d[V::COLUMNS], min[V::COLUMNS];
};

constexpr int     FEW  = 4;   // rows
constexpr int64_t TILE = 16;  // columns that are unpacked for more rows than are multiplied at once

enum class mins { none, summed, in_lanes };

template <typename BLOCK> struct super {
    static constexpr bool known = false;
};

template <> struct super<block_q5_K> {
    static constexpr bool known = true, is_signed = false, is_large = false;
    static constexpr mins MINS = mins::summed;
    static void unpack(const block_q5_K & w, block_of_256 & to) {
        const __m256i fifths = _mm256_loadu_si256((const __m256i *) w.qh);
        for (int j = 0; j < 8; j++) {
            const __m256i both  = _mm256_loadu_si256((const __m256i *) w.qs + j / 2);
            const __m256i four  = _mm256_and_si256(j % 2 ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
            const __m256i fifth = _mm256_and_si256(_mm256_srli_epi16(fifths, j), _mm256_set1_epi8(1));
            to.keep(j, _mm256_or_si256(four, _mm256_slli_epi16(fifth, 4)));
        }
        uint32_t p[3];
        memcpy(p, w.scales, sizeof(p));
        const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, high2 = 0x30303030;
        const __m128i all = _mm_setr_epi32((int) (p[0] & low6), (int) ((p[2] & low4) | ((p[0] >> 2) & high2)),
                                           (int) (p[1] & low6), (int) (((p[2] >> 4) & low4) | ((p[1] >> 2) & high2)));
        to.scales = _mm_unpacklo_epi8(all, all);
        to.mins   = _mm256_castsi128_si256(_mm_cvtepu8_epi16(_mm_srli_si128(all, 8)));
    }
    static float min(const block_q5_K & w) { return float_of(w.data.data.dmin); }
    static float scale(const block_q5_K & w) { return float_of(w.data.data.d); }
};

template <> struct super<block_q2_K> {
    static constexpr bool known = true, is_signed = false, is_large = false;
    static constexpr mins MINS = mins::in_lanes;
    static void unpack(const block_q2_K & w, block_of_256 & to) {
        for (int j = 0; j < 8; j++) {
            const __m256i four = _mm256_loadu_si256((const __m256i *) w.qs + j / 4);
            to.keep(j, _mm256_and_si256(_mm256_srli_epi16(four, 2 * (j % 4)), _mm256_set1_epi8(3)));
        }
        const __m128i both = _mm_loadu_si128((const __m128i *) w.scales), low4 = _mm_set1_epi8(15);
        to.scales = _mm_and_si128(both, low4);
        to.mins   = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), low4));
    }
    static float min(const block_q2_K & w) { return float_of(w.data.data.dmin); }
    static float scale(const block_q2_K & w) { return float_of(w.data.data.d); }
};

template <> struct super<block_q3_K> {
    static constexpr bool known = true, is_signed = true, is_large = false;
    static constexpr mins MINS = mins::none;
    static void unpack(const block_q3_K & w, block_of_256 & to) {
        const __m256i thirds = _mm256_loadu_si256((const __m256i *) w.hmask);
        for (int j = 0; j < 8; j++) {  // of -4 to 3
            const __m256i four = _mm256_srli_epi16(_mm256_loadu_si256((const __m256i *) w.qs + j / 4), 2 * (j % 4));
            const __m256i none = _mm256_andnot_si256(_mm256_srli_epi16(thirds, j), _mm256_set1_epi8(1));
            to.keep(j, _mm256_sub_epi8(_mm256_and_si256(four, _mm256_set1_epi8(3)),
                                                      _mm256_slli_epi16(none, 2)));
        }
        uint32_t p[3];
        memcpy(p, w.scales, sizeof(p));
        const uint32_t low4 = 0x0f0f0f0f, low2 = 0x03030303;
        const __m128i all = _mm_setr_epi32((int) ((p[0] & low4) | (p[2] & low2) << 4),
                                           (int) ((p[1] & low4) | (p[2] >> 2 & low2) << 4),
                                           (int) ((p[0] >> 4 & low4) | (p[2] >> 4 & low2) << 4),
                                           (int) ((p[1] >> 4 & low4) | (p[2] >> 6 & low2) << 4));
        to.scales = _mm_sub_epi8(all, _mm_set1_epi8(32));
    }
    static float min(const block_q3_K &) { return 0; }
    static float scale(const block_q3_K & w) { return float_of(w.d); }
};

template <> struct super<block_iq4_xs> {
    static constexpr bool known = true, is_signed = true, is_large = true;
    static constexpr mins MINS = mins::none;
    static void unpack(const block_iq4_xs & w, block_of_256 & to) {
        const __m256i values = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
        for (int j = 0; j < 8; j++) {
            to.keep(j, _mm256_shuffle_epi8(values, nibbles(w.qs + 16 * j)));
        }
        int32_t low;
        memcpy(&low, w.scales_l, sizeof(low));
        const __m128i low4 = _mm_cvtsi32_si128(low), places = _mm_set1_epi8(15);
        const __m128i low8 = _mm_unpacklo_epi8(_mm_and_si128(low4, places), _mm_and_si128(_mm_srli_epi16(low4, 4), places));
        const __m256i high = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(w.scales_h),
                                                                _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                                              _mm256_set1_epi32(3));
        const __m128i high8 = _mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        const __m128i both  = _mm_or_si128(low8, _mm_slli_epi16(_mm_packs_epi16(high8, high8), 4));
        const __m128i all   = _mm_sub_epi8(both, _mm_set1_epi8(32));
        to.scales = _mm_unpacklo_epi8(all, all);
    }
    static float min(const block_iq4_xs &) { return 0; }
    static float scale(const block_iq4_xs & w) { return float_of(w.d); }
};

struct more_super {  // a block of a row
    alignas(64) int8_t qs[QK_K];  // plus V::MORE for signed weights
    int16_t sums_of_16[QK_K / 16], sums[QK_K / 32];
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
            memcpy(to.sums_of_16, a[b].bsums, sizeof(to.sums_of_16));
            for (int i = 0; i < QK_K / 32; i++) {
                to.sums[i] = (int16_t) (a[b].bsums[2 * i] + a[b].bsums[2 * i + 1]);
            }
        }
    }
    return of;
}

template <typename V> static typename V::ints scales_of_step(const unpacked<V> & w, int step) {
    constexpr int STEPS = 8 / V::COLUMNS;  // whose scales are 16 bytes
    return V::scales_of_16(w.scales[step / STEPS], step % STEPS);
}

template <typename V, bool LARGE>
static typename V::ints plus_scaled(typename V::ints sum, typename V::ints products, typename V::ints by) {
    return LARGE ? V::plus_large(sum, products, by) : V::plus_pairs(sum, products, by);
}

template <typename V, typename BLOCK>
static void unpack(int64_t nb, const char * weights, size_t pitch, unpacked<V> * to) {  // V::COLUMNS columns
    using kind = super<BLOCK>;
    for (int64_t b = 0; b < nb; b++) {
        block_of_256 one[V::COLUMNS];
        SPECLLAMA_UNROLL
        for (int c = 0; c < V::COLUMNS; c++) {
            const BLOCK & w = ((const BLOCK *) (weights + c * pitch))[b];
            for (size_t at = 0; at < sizeof(BLOCK); at += 64) {
                prefetch<1>((const char *) &w + V::COLUMNS * pitch + at);
            }
            one[c].numbers = to[b].numbers + 32 * c;
            one[c].step    = 32 * V::COLUMNS;
            kind::unpack(w, one[c]);
            to[b].scales[c] = one[c].scales;
            to[b].d[c]      = kind::scale(w);
            if (kind::MINS != mins::none) {
                to[b].mins[c] = one[c].mins;
                to[b].min[c]  = kind::min(w);
            }
        }
        if (V::COLUMNS == 2) {
            const __m128i second = one[V::COLUMNS - 1].scales;
            to[b].scales[0]              = _mm_unpacklo_epi16(one[0].scales, second);
            to[b].scales[V::COLUMNS - 1] = _mm_unpackhi_epi16(one[0].scales, second);
        }
    }
    // In a loop of its own: numbers that have just been stored in two parts cannot be loaded as one at once.
    for (int64_t b = 0; kind::is_signed && b < nb; b++) {
        to[b].begin = V::zero();
        for (int step = 0; V::MORE != 0 && step < 8; step++) {
            const typename V::ints less = V::less_more(V::row(to[b].numbers + step * sizeof(typename V::ints)));
            to[b].begin = V::plus_large(to[b].begin, less, scales_of_step(to[b], step));
        }
    }
}

// Whether the minimums of these columns are multiplied by themselves (less_mins), with a column in each lane.
template <typename V, typename BLOCK> static bool mins_are_apart(int64_t nc) {
    return super<BLOCK>::MINS == mins::summed && V::COLUMNS == 2 && nc == TILE;
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
struct mins_of_tile {  // a block of each column
    int32_t pairs[4][TILE];  // of 16-bit numbers
    float   min[TILE];
};

static const mins_of_tile * mins_of(const unpacked<wide> * w, int64_t nb) {
    mins_of_tile * to = scratch<mins_of_tile>(nb);
    for (int64_t x = 0; x < TILE; x++) {
        for (int64_t b = 0; b < nb; b++) {
            const unpacked<wide> & from = w[x / wide::COLUMNS * nb + b];
            int32_t pairs[4];
            _mm_storeu_si128((__m128i *) pairs, _mm256_castsi256_si128(from.mins[x % wide::COLUMNS]));
            for (int i = 0; i < 4; i++) {
                to[b].pairs[i][x] = pairs[i];
            }
            to[b].min[x] = from.min[x % wide::COLUMNS];
        }
    }
    return to;
}

static void less_mins(int64_t nb, float * s, size_t bs, const mins_of_tile * w, const more_super * of, int64_t n_rows) {
    for (int64_t r = 0; r < n_rows; r++) {
        __m512 less = _mm512_setzero_ps();
        for (int64_t b = 0; b < nb; b++) {
            const more_super & a = of[r * nb + b];
            __m512i sum = _mm512_setzero_si512();
            for (int i = 0; i < 4; i++) {
                int32_t pair;
                memcpy(&pair, a.sums + 2 * i, sizeof(pair));
                sum = _mm512_dpwssd_epi32(sum, _mm512_set1_epi32(pair), _mm512_loadu_si512(w[b].pairs[i]));
            }
            const __m512 by = _mm512_mul_ps(_mm512_set1_ps(-a.d), _mm512_loadu_ps(w[b].min));
            less = _mm512_fmadd_ps(by, _mm512_cvtepi32_ps(sum), less);
        }
        _mm512_storeu_ps(s + r * bs, _mm512_add_ps(_mm512_loadu_ps(s + r * bs), less));
    }
}
#else
struct mins_of_tile;
template <typename V> static const mins_of_tile * mins_of(const unpacked<V> *, int64_t) { return nullptr; }
static void less_mins(int64_t, float *, size_t, const mins_of_tile *, const more_super *, int64_t) {}
#endif

template <typename V, typename BLOCK, int R>
static void rows_super(int64_t n, int64_t nc, float * s, size_t bs, const unpacked<V> * w, const more_super * of) {
    using kind   = super<BLOCK>;
    using ints   = typename V::ints;
    using floats = typename V::floats;
    const int64_t nb = n / QK_K;
    const bool    with_mins = !mins_are_apart<V, BLOCK>(nc);
    for (int64_t x = 0; x < nc; x += V::COLUMNS) {
        floats acc[R];
        __m128 less[R];  // one column in each lane
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r]  = V::none();
            less[r] = _mm_setzero_ps();
        }
        for (int64_t b = 0; b < nb; b++, w++) {
            ints sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = kind::is_signed ? w->begin : V::zero();
            }
            SPECLLAMA_UNROLL
            for (int step = 0; step < 8; step++) {
                const ints numbers = V::row(w->numbers + step * sizeof(ints)), by = scales_of_step(*w, step);
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const ints a        = V::twice(of[r * nb + b].qs + 32 * step);
                    const ints products = kind::is_signed ? V::signed_plus(V::zero(), a, numbers)
                                                          : V::plus(V::zero(), numbers, a);
                    sum[r] = plus_scaled<V, kind::is_large>(sum[r], products, by);
                }
            }
            const floats d = V::columns_of(w->d[0], [&] { return w->d[V::COLUMNS - 1]; });
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const more_super & a = of[r * nb + b];
                if (kind::MINS == mins::in_lanes) {
                    const __m256i sums = _mm256_loadu_si256((const __m256i *) a.sums_of_16);
                    const auto products = [&](int c) {
                        return _mm256_madd_epi16(w->mins[c], sums);
                    };
                    const floats min = V::columns_of(w->min[0], [&] { return w->min[V::COLUMNS - 1]; });
                    acc[r] = V::plus(acc[r], V::columns_of(products(0), [&] { return products(V::COLUMNS - 1); }),
                                     V::times(min, V::all(-a.d)));
                } else if (kind::MINS == mins::summed && with_mins) {
                    const __m128i sums  = _mm_loadu_si128((const __m128i *) a.sums);
                    const __m128i first = _mm_madd_epi16(_mm256_castsi256_si128(w->mins[0]), sums);
                    const __m128i last  = _mm_madd_epi16(_mm256_castsi256_si128(w->mins[V::COLUMNS - 1]), sums);
                    const __m128i two   = _mm_add_epi32(_mm_unpacklo_epi32(first, last), _mm_unpackhi_epi32(first, last));
                    const __m128i one   = _mm_add_epi32(two, _mm_unpackhi_epi64(two, two));
                    const __m128  min   = _mm_setr_ps(w->min[0], w->min[V::COLUMNS - 1], 0, 0);
                    less[r] = _mm_fmadd_ps(_mm_mul_ps(_mm_set1_ps(-a.d), min), _mm_cvtepi32_ps(one), less[r]);
                }
                acc[r] = V::plus(acc[r], sum[r], V::times(d, V::all(a.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            float * to = s + r * bs + x;
            V::store_sums(to, acc[r]);
            if (kind::MINS == mins::summed && with_mins) {
                float columns[4];
                _mm_storeu_ps(columns, less[r]);
                for (int c = 0; c < V::COLUMNS; c++) {
                    to[c] += columns[c];
                }
            }
        }
    }
}

template <typename V, typename BLOCK, int R>  // for a FEW rows: one column at once, each block unpacked as it is needed
static void few_rows_super(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                           const more_super * of) {
    using kind = super<BLOCK>;
    using ints = typename V::ints;
    constexpr int SIZE = sizeof(ints);
    const int64_t nb = n / QK_K;
    alignas(64) int8_t numbers[QK_K];
    block_of_256 u;
    u.numbers = numbers;
    u.step    = 32;
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
            ints sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = V::zero();
            }
            SPECLLAMA_UNROLL
            for (int step = 0; step < QK_K / SIZE; step++) {
                const ints here  = V::row(numbers + step * SIZE), by = V::scales_of_16(u.scales, step);
                const ints begin = kind::is_signed ? V::less_more(here) : V::zero();
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const ints a        = V::row(of[r * nb + b].qs + step * SIZE);
                    const ints products = kind::is_signed ? V::signed_plus(begin, a, here) : V::plus(begin, here, a);
                    sum[r] = plus_scaled<V, kind::is_large>(sum[r], products, by);
                }
            }
            const float d = kind::scale(w[b]), min = kind::min(w[b]);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const more_super & a = of[r * nb + b];
                if (kind::MINS == mins::in_lanes) {
                    const __m256i sums = _mm256_loadu_si256((const __m256i *) a.sums_of_16);
                    acc[r] = narrow::plus(acc[r], _mm256_madd_epi16(u.mins, sums), _mm256_set1_ps(-a.d * min));
                } else if (kind::MINS == mins::summed) {
                    __m128i four = _mm_madd_epi16(_mm256_castsi256_si128(u.mins), _mm_loadu_si128((const __m128i *) a.sums));
                    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
                    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
                    less[r] = std::fma(-a.d * min, (float) _mm_cvtsi128_si32(four), less[r]);
                }
                acc[r] = narrow::plus(acc[r], V::eight_sums(sum[r]), _mm256_set1_ps(a.d * d));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            s[r * bs + x] = kind::MINS == mins::summed ? narrow::sum(acc[r]) + less[r] : narrow::sum(acc[r]);
        }
    }
}

// Unpacks `now` columns, or fewer, in which case `now` changes: for V::COLUMNS at once, where `pitch` becomes 0, or the
// last one alone, where it becomes 1.
template <typename BLOCK>
static const char * unpacked_columns(int64_t nb, const char * w, int64_t * pitch, int64_t * now) {
    const int64_t at = *pitch;
    if (*now < widest::COLUMNS) {
        unpacked<narrow> * to = scratch<unpacked<narrow>>(nb);
        unpack<narrow, BLOCK>(nb, w, at, to);
        *now = *pitch = 1;
        return (const char *) to;
    }
    *now -= *now % widest::COLUMNS;
    unpacked<widest> * to = scratch<unpacked<widest>>(*now / widest::COLUMNS * nb);
    for (int64_t x = 0; x < *now; x += widest::COLUMNS) {
        unpack<widest, BLOCK>(nb, w + x * at, at, to + x / widest::COLUMNS * nb);
    }
    *pitch = 0;
    return (const char *) to;
}

template <typename BLOCK> struct kernel<BLOCK, std::enable_if_t<super<BLOCK>::known>> {
    static constexpr int MOST = specllama::MOST;
    static size_t per_row(int64_t n) { return n / QK_K * sizeof(more_super); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return more_of_super<BLOCK>(n / QK_K, rows, stride, n_rows);
    }
    template <int R>
    static void times(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                      const void * prepared) {
        const more_super * of = (const more_super *) prepared;
        if (pitch > 1) {
            few_rows_super<widest, BLOCK, R <= FEW ? R : 1>(n, nc, s, bs, w, pitch, of);
        } else if (pitch == 1) {
            rows_super<narrow, BLOCK, R>(n, nc, s, bs, (const unpacked<narrow> *) w, of);
        } else {
            rows_super<widest, BLOCK, R>(n, nc, s, bs, (const unpacked<widest> *) w, of);
        }
    }
};
