// Rows of a batch share the reading and unpacking of weights (x86-64 with AVX2). kernels.cpp includes this file.
//
// llama.cpp reads or unpacks weights once per row of a small batch, so that verifying three tokens takes two to three
// times as long as one decode. Here weights are unpacked once and multiplied by up to eight rows. Integer sums are
// exact in any order; the floating-point sums of a row have one order for any number of rows, that of llama.cpp's
// single row except for F16. So a row is bit-identical alone and in any batch.
#pragma once

// Otherwise the compiler keeps sums in memory from some number of rows on.
#if defined(__clang__)
#define SPECLLAMA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SPECLLAMA_UNROLL _Pragma("GCC unroll 8")
#else
#define SPECLLAMA_UNROLL
#endif

namespace specllama {

constexpr int     MOST = 8;          // rows at once: more do not fit in registers
constexpr int64_t CACHED = 1 << 17;  // bytes of weights that stay in the cache for the next rows
constexpr int64_t TOGETHER = 128;    // rows that are prepared together

// Vectors of 32 bytes: half a group in each. The products of SUMMED unsigned and signed bytes form one sum of 32 bits,
// or of 16 bits, which neither sixteen products of 4-bit weights nor four of 6-bit weights overflow.
struct narrow {
    using ints   = __m256i;
    using floats = __m256;
    static constexpr int GROUPS = 1;  // groups of columns at once
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
    static constexpr int SUMMED = 4;
#else
    static constexpr int SUMMED = 2;
#endif
    static ints zero() { return _mm256_setzero_si256(); }
    static ints bytes(int value) { return _mm256_set1_epi8((char) value); }
    static ints words(int32_t value) { return _mm256_set1_epi32(value); }
    static ints eight(int64_t value) { return _mm256_set1_epi64x(value); }
    static ints both(ints a, ints b) { return _mm256_and_si256(a, b); }
    static ints other(ints a, ints b) { return _mm256_xor_si256(a, b); }
    static ints less(ints a, ints b) { return _mm256_sub_epi32(a, b); }
    static ints high(ints a) { return _mm256_srli_epi16(a, 4); }
    static ints plus(ints sum, ints w, ints a) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        return _mm256_dpbusd_epi32(sum, w, a);
#elif defined(__AVXVNNI__)
        return _mm256_dpbusd_avx_epi32(sum, w, a);
#else
        return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, a));
#endif
    }
    static ints plus_pairs(ints sum, ints a, ints b) {  // sums of two 16-bit products
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        return _mm256_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
        return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
        return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
    }
    static ints whole(ints sums) { return SUMMED == 4 ? sums : _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
    static floats none() { return _mm256_setzero_ps(); }
    static floats all(float value) { return _mm256_set1_ps(value); }
    static floats times(floats a, floats b) { return _mm256_mul_ps(a, b); }
    static floats plus(floats sum, ints a, floats b) { return _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), b, sum); }
    static floats less(floats a, floats b) { return _mm256_sub_ps(a, b); }

    // 64 bytes of a group: columns 0-3, then 4-7, eight values of each.
    static void load(ints * first, ints * second, const void * group, const void *) {
        *first  = _mm256_loadu_si256((const __m256i *) group);
        *second = _mm256_loadu_si256((const __m256i *) group + 1);
    }
    // One sum per column, in the order 0 1 4 5 2 3 6 7, as in `halves` and `pairs`; `store` restores the order.
    static ints columns(ints first, ints second) { return _mm256_hadd_epi32(first, second); }
    static floats halves(const ggml_half * group, const ggml_half *) {
        const __m128i d = _mm_loadu_si128((const __m128i *) group);
        return _mm256_cvtph_ps(_mm_shuffle_epi32(d, _MM_SHUFFLE(3, 1, 2, 0)));
    }
    static floats powers(__m128i group, __m128i) {  // 16-bit exponents, as those of MXFP4, whose numbers are twofold
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_shuffle_epi32(group, _MM_SHUFFLE(3, 1, 2, 0))), 23));
    }
    static ints looked_up(__m128i table, ints at) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), at); }
    static ints plus_signed(ints sum, ints w, ints a) {  // sums of 32 bits
        return _mm256_add_epi32(sum, whole(plus(zero(), _mm256_abs_epi8(w), _mm256_sign_epi8(a, w))));
    }
    static ints pairs(__m128i group, __m128i) {  // pairs of bytes, one per column, as 16-bit values
        return _mm256_cvtepu8_epi16(_mm_shuffle_epi32(group, _MM_SHUFFLE(3, 1, 2, 0)));
    }
    static void store(float * to, floats sums) {
        const __m256d by_two = _mm256_permute4x64_pd(_mm256_castps_pd(sums), _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_storeu_ps(to, _mm256_castpd_ps(by_two));
    }
    // Signed 8-bit scales from `at` on, each for BYTES products, in the lanes of their sums.
    template <int BYTES> static ints scales(__m128i from, int at) {
        constexpr int N = SUMMED;
        const __m128i place = _mm_setr_epi8(0, N / BYTES, 2 * N / BYTES, 3 * N / BYTES, 4 * N / BYTES, 5 * N / BYTES,
                                            6 * N / BYTES, 7 * N / BYTES, 8 * N / BYTES, 9 * N / BYTES,
                                            10 * N / BYTES, 11 * N / BYTES, 12 * N / BYTES, 13 * N / BYTES,
                                            14 * N / BYTES, 15 * N / BYTES);
        const __m128i picked = _mm_shuffle_epi8(from, _mm_add_epi8(place, _mm_set1_epi8((char) at)));
        return N == 2 ? _mm256_cvtepi8_epi16(picked)
                      : _mm256_blend_epi16(_mm256_cvtepi8_epi32(picked), _mm256_setzero_si256(), 0xAA);
    }
    static void scales_of_columns(ints * first, ints * second, __m128i group, __m128i) {
        *first  = scales<8>(group, 0);
        *second = scales<8>(group, 4);
    }

    // Q6_K: one value per byte of the vector, from four low and two high bits, and their scales.
    static void six(ints * numbers, ints * by, const block_q6_K & w, __m128i of_16, int step) {
        const int half = step / 4, i = step % 4;
        const ints four = _mm256_loadu_si256((const __m256i *) w.ql + 2 * half + i % 2);
        const ints two  = _mm256_srli_epi16(_mm256_loadu_si256((const __m256i *) w.qh + half), 2 * i);
        *numbers = _mm256_or_si256(both(i < 2 ? four : high(four), bytes(15)),
                                   _mm256_slli_epi16(both(two, bytes(3)), 4));
        *by = scales_of_16(of_16, step);
    }
    static ints row(const int8_t * from) { return _mm256_loadu_si256((const __m256i *) from); }
    static ints scales_of_16(__m128i of_16, int step) { return scales<16>(of_16, 2 * step); }
    static ints signed_plus(ints begin, ints a, ints numbers) {  // of both; `a` and `begin` as in `products`
        if (SUMMED == 4) {
            return plus(begin, a, numbers);
        }
        return plus(begin, _mm256_abs_epi8(numbers), _mm256_sign_epi8(a, numbers));
    }
    static ints plus_large(ints sum, ints products, ints by) {  // four products may not fit into 16 bits
        if (SUMMED == 4) {
            const ints scale = _mm256_srai_epi32(_mm256_slli_epi32(by, 16), 16);
            return _mm256_add_epi32(sum, _mm256_mullo_epi32(products, scale));
        }
        return plus_pairs(sum, products, by);
    }
    static __m256i eight_sums(ints sums) { return sums; }

    // Q8_0: the values of COLUMNS, and the initial values of their products with a row. If the row must be unsigned,
    // MORE = 128 is added to it, and the products begin at -128 x the sum of the weights; otherwise it gets their sign.
    static constexpr int COLUMNS = 1;
    static constexpr int MORE    = SUMMED == 4 ? 0x80 : 0;
    static void load(ints * numbers, ints * begin, floats * d, const block_q8_0 * w, const block_q8_0 *) {
        *numbers = row(w->qs);
        *begin   = less_more(*numbers);
        *d       = all(float_of(w->d));
    }
    static ints products(ints begin, ints numbers, const int8_t * from) {
        if (SUMMED == 4) {
            return plus(begin, row(from), numbers);
        }
        return whole(plus(begin, _mm256_abs_epi8(numbers), _mm256_sign_epi8(row(from), numbers)));
    }
    static void store_sums(float * to, floats sums) { *to = sum(sums); }
    // A value of one column, or of two: the second is asked for only then.
    template <typename F> static ints columns_of(__m256i column, F) { return column; }
    template <typename F> static floats columns_of(float column, F) { return all(column); }
    static ints twice(const int8_t * from) { return row(from); }  // for each column
    static ints less_more(ints numbers) {                          // what `products` begins with
        return SUMMED == 4 ? less(zero(), plus(zero(), bytes(MORE), numbers)) : zero();
    }
    static float sum(__m256 sums) {
        const __m128 four = _mm_add_ps(_mm256_extractf128_ps(sums, 1), _mm256_castps256_ps128(sums));
        const __m128 two  = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

    // F16: values as floats, and the number of rows that fit in registers.
    static constexpr int FLOATS = 8, MOST_F16 = 3;
    static floats from_f16(const ggml_half * w) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) w)); }
    static floats from_bf16(const ggml_bf16_t * w) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) w)), 16));
    }
    static floats load(const float * from) { return _mm256_loadu_ps(from); }
    static void   keep(float * to, floats numbers) { _mm256_storeu_ps(to, numbers); }
    static floats plus(floats sum, floats a, floats b) { return _mm256_fmadd_ps(a, b, sum); }
    static floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
    static float  total(floats sums) { return sum(sums); }
};

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
// Vectors of 64 bytes: two groups at once.
struct wide {
    using ints   = __m512i;
    using floats = __m512;
    static constexpr int GROUPS = 2;
    static constexpr int SUMMED = 4;
    static ints zero() { return _mm512_setzero_si512(); }
    static ints bytes(int value) { return _mm512_set1_epi8((char) value); }
    static ints words(int32_t value) { return _mm512_set1_epi32(value); }
    static ints eight(int64_t value) { return _mm512_set1_epi64(value); }
    static ints both(ints a, ints b) { return _mm512_and_si512(a, b); }
    static ints other(ints a, ints b) { return _mm512_xor_si512(a, b); }
    static ints less(ints a, ints b) { return _mm512_sub_epi32(a, b); }
    static ints high(ints a) { return _mm512_srli_epi16(a, 4); }
    static ints plus(ints sum, ints w, ints a) { return _mm512_dpbusd_epi32(sum, w, a); }
    static ints plus_pairs(ints sum, ints a, ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
    static ints whole(ints sums) { return sums; }
    static floats none() { return _mm512_setzero_ps(); }
    static floats all(float value) { return _mm512_set1_ps(value); }
    static floats times(floats a, floats b) { return _mm512_mul_ps(a, b); }
    static floats plus(floats sum, ints a, floats b) { return _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), b, sum); }
    static floats less(floats a, floats b) { return _mm512_sub_ps(a, b); }
    static void load(ints * first, ints * second, const void * group, const void * next) {
        *first  = _mm512_loadu_si512(group);
        *second = _mm512_loadu_si512(next);
    }
    // The order: 0 1 of the first group, 0 1 of the second, 2 3 of the first, and so on.
    static ints columns(ints first, ints second) {
        const __m512 a = _mm512_castsi512_ps(first), b = _mm512_castsi512_ps(second);
        return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)));
    }
    static __m256i in_turn(__m128i a, __m128i b) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi32(a, b)), _mm_unpackhi_epi32(a, b), 1);
    }
    static floats halves(const ggml_half * group, const ggml_half * next) {
        return _mm512_cvtph_ps(in_turn(_mm_loadu_si128((const __m128i *) group), _mm_loadu_si128((const __m128i *) next)));
    }
    static floats powers(__m128i group, __m128i next) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(in_turn(group, next)), 23));
    }
    static ints looked_up(__m128i table, ints at) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), at); }
    static ints plus_signed(ints sum, ints, ints) { return sum; }  // not needed: SUMMED is 4
    static ints pairs(__m128i group, __m128i next) { return _mm512_cvtepu8_epi16(in_turn(group, next)); }
    static void store(float * to, floats sums) {
        const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        _mm512_storeu_ps(to, _mm512_castsi512_ps(_mm512_permutexvar_epi64(order, _mm512_castps_si512(sums))));
    }
    static void scales_of_columns(ints * first, ints * second, __m128i group, __m128i next) {
        const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        *first  = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(group, twice));
        *second = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(next, twice));
    }
    static void six(ints * numbers, ints * by, const block_q6_K & w, __m128i of_16, int step) {
        const int half = step / 2, i = step % 2;
        const ints four = _mm512_loadu_si512(w.ql + 64 * half);
        const ints two  = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) w.qh + half));
        const ints down = _mm512_inserti64x4(_mm512_set1_epi16(4 * i), _mm256_set1_epi16(4 * i + 2), 1);
        *numbers = _mm512_or_si512(both(i ? high(four) : four, bytes(15)),
                                   _mm512_slli_epi16(both(_mm512_srlv_epi16(two, down), bytes(3)), 4));
        *by = scales_of_16(of_16, step);
    }
    static ints row(const int8_t * from) { return _mm512_loadu_si512(from); }
    static ints scales_of_16(__m128i of_16, int step) {
        const __m128i place = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        const __m128i at    = _mm_add_epi8(place, _mm_set1_epi8((char) (4 * step)));
        return _mm512_maskz_mov_epi16(0x55555555, _mm512_cvtepi8_epi32(_mm_shuffle_epi8(of_16, at)));
    }
    static ints signed_plus(ints begin, ints a, ints numbers) { return plus(begin, a, numbers); }
    static ints plus_large(ints sum, ints products, ints by) {
        const ints scale = _mm512_srai_epi32(_mm512_slli_epi32(by, 16), 16);
        return _mm512_add_epi32(sum, _mm512_mullo_epi32(products, scale));
    }
    static __m256i eight_sums(ints sums) {
        return _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
    }

    static constexpr int COLUMNS = 2;
    static constexpr int MORE    = 0x80;
    static ints two(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
    static void load(ints * numbers, ints * begin, floats * d, const block_q8_0 * w, const block_q8_0 * next) {
        *numbers = two(narrow::row(w->qs), narrow::row(next->qs));
        *begin   = less_more(*numbers);
        *d = _mm512_castsi512_ps(two(_mm256_castps_si256(narrow::all(float_of(w->d))),
                                     _mm256_castps_si256(narrow::all(float_of(next->d)))));
    }
    template <typename F> static ints columns_of(__m256i column, F next) { return two(column, next()); }
    template <typename F> static floats columns_of(float column, F next) {
        return _mm512_castsi512_ps(two(_mm256_castps_si256(narrow::all(column)),
                                       _mm256_castps_si256(narrow::all(next()))));
    }
    static ints twice(const int8_t * from) { return _mm512_broadcast_i64x4(narrow::row(from)); }
    static ints less_more(ints numbers) { return less(zero(), plus(zero(), bytes(MORE), numbers)); }
    static ints products(ints begin, ints numbers, const int8_t * from) { return plus(begin, twice(from), numbers); }
    static void store_sums(float * to, floats sums) {
        to[0] = narrow::sum(_mm512_castps512_ps256(sums));
        to[1] = narrow::sum(_mm512_extractf32x8_ps(sums, 1));
    }

    static constexpr int FLOATS = 16, MOST_F16 = 6;
    static floats from_f16(const ggml_half * w) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) w)); }
    static floats from_bf16(const ggml_bf16_t * w) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) w)), 16));
    }
    static floats load(const float * from) { return _mm512_loadu_ps(from); }
    static void   keep(float * to, floats numbers) { _mm512_storeu_ps(to, numbers); }
    static floats plus(floats sum, floats a, floats b) { return _mm512_fmadd_ps(a, b, sum); }
    static floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
    static float  total(floats sums) { return _mm512_reduce_add_ps(sums); }
};
using widest = wide;
#else
using widest = narrow;
#endif

template <typename V>
static typename V::ints dot(const typename V::ints * w, const typename V::ints * a) {
    return V::plus(V::plus(V::plus(V::plus(V::zero(), w[0], a[0]), w[1], a[1]), w[2], a[2]), w[3], a[3]);
}

// Values 0-7, 8-15, 16-23 and 24-31 of a row, each group of eight for all columns.
template <typename V> static void eights(typename V::ints * to, const int8_t * from) {
    SPECLLAMA_UNROLL
    for (int i = 0; i < 4; i++) {
        int64_t bytes;
        memcpy(&bytes, from + 8 * i, sizeof(bytes));
        to[i] = V::eight(bytes);
    }
}

// Prefetches what the next columns need, if several columns are read at once, which the hardware does not predict: into
// the L2 cache, or for MOST rows, which take longer, into L1.
template <int R> static void prefetch(const void * from) { __builtin_prefetch(from, 0, R < MOST ? 2 : 3); }

template <typename V, int R, typename GROUP> static void ahead(const GROUP * w, const GROUP * next, int64_t nb) {
    if (V::GROUPS > 1) {
        for (size_t at = 0; at < sizeof(GROUP); at += 64) {
            prefetch<R>((const char *) (w + V::GROUPS * nb) + at);
            prefetch<R>((const char *) (next + V::GROUPS * nb) + at);
        }
    }
}

// Room of this thread, kept for the next multiplication.
template <typename T> static T * scratch(size_t size) {
    static thread_local struct room {
        void * data = nullptr;
        size_t size = 0;
        ~room() { free(data); }
    } kept;
    if (kept.size < size * sizeof(T)) {
        free(kept.data);
        kept.size = (size * sizeof(T) + 63) / 64 * 64;
        kept.data = aligned_alloc(64, kept.size);
    }
    return (T *) kept.data;
}

// Below, for each type: R rows of `n` values each, `stride` bytes apart, times `nc` columns of weights; row r of the
// result is at s + r x bs. Functions that compute several columns at once leave out the remaining ones and return how
// many they have computed.

struct of_q8_0 {  // a block of a row, as every column needs it
    float   d;
    int32_t eightfold;  // 8 x its sum: weights of -8 to 7 are computed as 0 to 15
};

static const of_q8_0 * all_of_q8_0(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    of_q8_0 * of = scratch<of_q8_0>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_0 * a = (const block_q8_0 *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            int32_t sum = 0;
            for (int i = 0; i < QK8_0; i++) {
                sum += a[b].qs[i];
            }
            of[r * nb + b] = { float_of(a[b].d), 8 * sum };
        }
    }
    return of;
}

template <typename V, int R>
static int64_t rows_q4_0(int64_t n, int64_t nc, float * s, size_t bs, const block_q4_0x8 * weights, const char * rows,
                         size_t stride, const of_q8_0 * of) {
    using ints = typename V::ints;
    const int64_t nb = n / QK8_0;
    int64_t x = 0;
    for (; x + 8 * V::GROUPS <= nc; x += 8 * V::GROUPS) {
        const block_q4_0x8 * w    = weights + x / 8 * nb;
        const block_q4_0x8 * next = w + (V::GROUPS - 1) * nb;
        typename V::floats acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = V::none();
        }
        for (int64_t b = 0; b < nb; b++) {
            ahead<V, R>(w + b, next + b, nb);
            ints first[4], second[4];  // as in eights()
            SPECLLAMA_UNROLL
            for (int i = 0; i < 2; i++) {
                ints one, two;
                V::load(&one, &two, w[b].qs + 64 * i, next[b].qs + 64 * i);
                one = V::other(one, V::bytes(0x88));
                two = V::other(two, V::bytes(0x88));
                first[i]      = V::both(one, V::bytes(15));
                second[i]     = V::both(two, V::bytes(15));
                first[i + 2]  = V::both(V::high(one), V::bytes(15));
                second[i + 2] = V::both(V::high(two), V::bytes(15));
            }
            const typename V::floats d = V::halves(w[b].d, next[b].d);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const of_q8_0 & more = of[r * nb + b];
                ints bytes[4];
                eights<V>(bytes, ((const block_q8_0 *) (rows + r * stride))[b].qs);
                const ints sums = V::columns(V::whole(dot<V>(first, bytes)), V::whole(dot<V>(second, bytes)));
                acc[r] = V::plus(acc[r], V::less(sums, V::words(more.eightfold)), V::times(d, V::all(more.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store(s + r * bs + x, acc[r]);
        }
    }
    return x;
}

struct block_iq4_nlx8 {  // as in repack.h: laid out like block_q4_0x8
    ggml_half d[8];
    uint8_t   qs[QK4_NL * 4];
};

struct block_mxfp4x8 {
    uint8_t e[8];
    uint8_t qs[QK_MXFP4 * 4];
};

inline __m128i numbers_of_iq4() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}
inline __m128i numbers_of_mxfp4() { return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }

template <typename BLOCK> constexpr bool is_table = false;
template <> constexpr bool is_table<block_iq4_nlx8> = true;
template <> constexpr bool is_table<block_mxfp4x8> = true;

template <typename V> static typename V::floats scales_of(const block_iq4_nlx8 & w, const block_iq4_nlx8 & next) {
    return V::halves(w.d, next.d);
}
inline __m128i exponents(const uint8_t * e) {  // 2^-127, and less, is taken for 0
    const __m128i all = _mm_loadl_epi64((const __m128i *) e);
    return _mm_cvtepu8_epi16(_mm_subs_epu8(all, _mm_set1_epi8(1)));
}
template <typename V> static typename V::floats scales_of(const block_mxfp4x8 & w, const block_mxfp4x8 & next) {
    return V::powers(exponents(w.e), exponents(next.e));
}

template <typename V, typename BLOCK, int R>  // IQ4_NL and MXFP4 in groups: each four bits are looked up
static int64_t rows_table(int64_t n, int64_t nc, float * s, size_t bs, const BLOCK * weights, const char * rows,
                          size_t stride, const of_q8_0 * of) {
    using ints = typename V::ints;
    // Numbers become unsigned by adding MORE, except where sums of 16 bits would overflow.
    constexpr bool IQ4 = std::is_same_v<BLOCK, block_iq4_nlx8>, SIGNED = IQ4 && V::SUMMED == 2;
    constexpr int  MORE = SIGNED ? 0 : IQ4 ? 128 : 16;
    const __m128i  table = _mm_add_epi8(IQ4 ? numbers_of_iq4() : numbers_of_mxfp4(), _mm_set1_epi8((char) MORE));
    const int64_t  nb = n / QK8_0;
    int64_t x = 0;
    for (; x + 8 * V::GROUPS <= nc; x += 8 * V::GROUPS) {
        const BLOCK * w    = weights + x / 8 * nb;
        const BLOCK * next = w + (V::GROUPS - 1) * nb;
        typename V::floats acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = V::none();
        }
        for (int64_t b = 0; b < nb; b++) {
            ahead<V, R>(w + b, next + b, nb);
            ints first[4], second[4];  // as in eights()
            SPECLLAMA_UNROLL
            for (int i = 0; i < 2; i++) {
                ints one, two;
                V::load(&one, &two, w[b].qs + 64 * i, next[b].qs + 64 * i);
                first[i]      = V::looked_up(table, V::both(one, V::bytes(15)));
                second[i]     = V::looked_up(table, V::both(two, V::bytes(15)));
                first[i + 2]  = V::looked_up(table, V::both(V::high(one), V::bytes(15)));
                second[i + 2] = V::looked_up(table, V::both(V::high(two), V::bytes(15)));
            }
            const typename V::floats d = scales_of<V>(w[b], next[b]);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const of_q8_0 & more = of[r * nb + b];
                ints bytes[4], one = V::zero(), two = V::zero();
                eights<V>(bytes, ((const block_q8_0 *) (rows + r * stride))[b].qs);
                SPECLLAMA_UNROLL
                for (int i = 0; i < 4; i++) {
                    one = SIGNED ? V::plus_signed(one, first[i], bytes[i]) : V::plus(one, first[i], bytes[i]);
                    two = SIGNED ? V::plus_signed(two, second[i], bytes[i]) : V::plus(two, second[i], bytes[i]);
                }
                const ints sums = SIGNED ? V::columns(one, two) : V::columns(V::whole(one), V::whole(two));
                acc[r] = V::plus(acc[r], V::less(sums, V::words(more.eightfold * (MORE / 8))), V::times(d, V::all(more.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store(s + r * bs + x, acc[r]);
        }
    }
    return x;
}

// 6-bit scales (bytes 0-7) and mins (8-15) of eight columns for 32 values each, packed in 12 bytes.
static inline __m128i scales_and_mins(const uint8_t * packed) {
    uint32_t p[3];
    memcpy(p, packed, sizeof(p));
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, high2 = 0x30303030;
    return _mm_setr_epi32((int) (p[0] & low6), (int) ((p[2] & low4) | ((p[0] >> 2) & high2)),
                          (int) (p[1] & low6), (int) (((p[2] >> 4) & low4) | ((p[1] >> 2) & high2)));
}

static inline __m128i mins_of(__m128i one, __m128i two) {  // for two times 32 values, column by column
    return _mm_unpackhi_epi8(one, two);
}

static const int16_t * sums_of_q8_k(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
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
static int64_t rows_q4_k(int64_t n, int64_t nc, float * s, size_t bs, const block_q4_Kx8 * weights, const char * rows,
                         size_t stride, const int16_t * sums) {
    using ints = typename V::ints;
    const int64_t nb = n / QK_K;
    int64_t x = 0;
    for (; x + 8 * V::GROUPS <= nc; x += 8 * V::GROUPS) {
        const block_q4_Kx8 * w    = weights + x / 8 * nb;
        const block_q4_Kx8 * next = w + (V::GROUPS - 1) * nb;
        typename V::floats acc[R], acc_min[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = acc_min[r] = V::none();
        }
        for (int64_t b = 0; b < nb; b++) {
            ahead<V, 1>(w + b, next + b, nb);
            ints first_sum[R], second_sum[R], min_sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                first_sum[r] = second_sum[r] = min_sum[r] = V::zero();
            }
            for (int part = 0; part < 4; part++) {  // 64 values: 32 in the low halves of bytes, 32 in the high halves
                const __m128i here[2]  = { scales_and_mins(w[b].scales + 24 * part),
                                           scales_and_mins(w[b].scales + 24 * part + 12) };
                const __m128i there[2] = { scales_and_mins(next[b].scales + 24 * part),
                                           scales_and_mins(next[b].scales + 24 * part + 12) };
                const ints mins = V::pairs(mins_of(here[0], here[1]), mins_of(there[0], there[1]));
                SPECLLAMA_UNROLL
                for (int half = 0; half < 2; half++) {
                    ints first[4], second[4], first_scales, second_scales;
                    SPECLLAMA_UNROLL
                    for (int i = 0; i < 4; i++) {
                        V::load(first + i, second + i, w[b].qs + 256 * part + 64 * i, next[b].qs + 256 * part + 64 * i);
                        first[i]  = V::both(half ? V::high(first[i]) : first[i], V::bytes(15));
                        second[i] = V::both(half ? V::high(second[i]) : second[i], V::bytes(15));
                    }
                    V::scales_of_columns(&first_scales, &second_scales, here[half], there[half]);
                    SPECLLAMA_UNROLL
                    for (int r = 0; r < R; r++) {
                        const block_q8_K & a = ((const block_q8_K *) (rows + r * stride))[b];
                        ints bytes[4];
                        eights<V>(bytes, a.qs + 64 * part + 32 * half);
                        first_sum[r]  = V::plus_pairs(first_sum[r], dot<V>(first, bytes), first_scales);
                        second_sum[r] = V::plus_pairs(second_sum[r], dot<V>(second, bytes), second_scales);
                    }
                }
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    int32_t pair;
                    memcpy(&pair, sums + (r * nb + b) * 8 + 2 * part, sizeof(pair));
                    min_sum[r] = V::plus_pairs(min_sum[r], V::words(pair), mins);
                }
            }
            const typename V::floats d = V::halves(w[b].d, next[b].d), dmin = V::halves(w[b].dmin, next[b].dmin);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const typename V::floats scale = V::all(((const block_q8_K *) (rows + r * stride))[b].d);
                acc[r] = V::plus(acc[r], V::columns(first_sum[r], second_sum[r]), V::times(d, scale));
                acc_min[r] = V::plus(acc_min[r], min_sum[r], V::times(dmin, scale));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store(s + r * bs + x, V::less(acc[r], acc_min[r]));
        }
    }
    return x;
}

template <typename V, int R>  // columns are `pitch` bytes apart: Q6_K is not in groups on x86
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

template <typename V> static typename V::floats widen(const ggml_half * from) { return V::from_f16(from); }
template <typename V> static typename V::floats widen(const ggml_bf16_t * from) { return V::from_bf16(from); }

template <typename T>  // ggml_half or ggml_bf16_t
static const float * floats_of_16_bits(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
    float * of = scratch<float>(n_rows * n);
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n; i += widest::FLOATS) {
            widest::keep(of + r * n + i, widen<widest>((const T *) (rows + r * stride) + i));
        }
    }
    return of;
}

template <typename V, typename T, int R, int C>  // C columns at once
static int64_t rows_16_bits(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch, const float * of) {
    int64_t x = 0;
    for (; x + C <= nc; x += C) {
        const char * w = weights + x * pitch;
        typename V::floats acc[R][C];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                acc[r][c] = V::none();
            }
        }
        for (int64_t i = 0; i < n; i += V::FLOATS) {
            typename V::floats a[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                a[r] = V::load(of + r * n + i);
            }
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                const T * from = (const T *) (w + c * pitch) + i;
                const typename V::floats numbers = widen<V>(from);
                prefetch<R>((const char *) from + C * pitch);
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    acc[r][c] = V::plus(acc[r][c], numbers, a[r]);
                }
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                s[r * bs + x + c] = V::total(acc[r][c]);
            }
        }
    }
    return x;
}

#include "blocks.h"
#include "supers.h"

template <typename BLOCK>
constexpr bool is_16_bits = std::is_same_v<BLOCK, ggml_half> || std::is_same_v<BLOCK, ggml_bf16_t>;

template <typename BLOCK>
constexpr int most = is_16_bits<BLOCK> ? widest::MOST_F16 : MOST;

template <typename BLOCK, int R>
static void at_once(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                    size_t stride, const void * more) {
    int64_t x = 0;
    if constexpr (std::is_same_v<BLOCK, block_q6_K>) {
        rows_q6_k<widest, R>(n, nc, s, bs, w, pitch, rows, stride);
    } else if constexpr (is_16_bits<BLOCK>) {
        const float * of = (const float *) more;
        x = rows_16_bits<widest, BLOCK, R, R == 1 ? 6 : 4>(n, nc, s, bs, w, pitch, of);
        rows_16_bits<widest, BLOCK, R, 1>(n, nc - x, s + x, bs, w + x * pitch, pitch, of);
    } else if constexpr (std::is_same_v<BLOCK, block_q8_0>) {
        const more_q8_0 * of = (const more_q8_0 *) more;
        if (R > 1) {  // for one row, reading column after column is faster
            x = rows_q8_0<widest, R>(n, nc, s, bs, w, pitch, of);
        }
        rows_q8_0<narrow, R>(n, nc - x, s + x, bs, w + x * pitch, pitch, of);
    } else if constexpr (super<BLOCK>::known) {
        const more_super * of = (const more_super *) more;  // the weights are unpacked for more than FEW rows
        if (pitch > 1) {
            few_rows_super<widest, BLOCK, R <= FEW ? R : 1>(n, nc, s, bs, w, pitch, of);
        } else if (pitch == 1) {
            rows_super<narrow, BLOCK, R>(n, nc, s, bs, (const unpacked<narrow> *) w, of);
        } else {
            rows_super<widest, BLOCK, R>(n, nc, s, bs, (const unpacked<widest> *) w, of);
        }
    } else if constexpr (small<BLOCK>::known) {
        const more_small * of = (const more_small *) more;
        if (R > 1) {
            x = rows_small<widest, BLOCK, R>(n, nc, s, bs, w, pitch, of);
        }
        rows_small<narrow, BLOCK, R>(n, nc - x, s + x, bs, w + x * pitch, pitch, of);
    } else if constexpr (is_table<BLOCK>) {
        const of_q8_0 * of = (const of_q8_0 *) more;
        if (R > 1) {
            x = rows_table<widest, BLOCK, R>(n, nc, s, bs, (const BLOCK *) w, rows, stride, of);
        }
        rows_table<narrow, BLOCK, R>(n, nc - x, s + x, bs, (const BLOCK *) (w + x * pitch), rows, stride, of);
    } else if constexpr (std::is_same_v<BLOCK, block_q4_0>) {
        const of_q8_0 * of = (const of_q8_0 *) more;
        if (R > 1) {  // for one row, reading group after group is faster
            x = rows_q4_0<widest, R>(n, nc, s, bs, (const block_q4_0x8 *) w, rows, stride, of);
        }
        rows_q4_0<narrow, R>(n, nc - x, s + x, bs, (const block_q4_0x8 *) (w + x * pitch), rows, stride, of);
    } else {
        const int16_t * sums = (const int16_t *) more;
        if (R > 1) {
            x = rows_q4_k<widest, R>(n, nc, s, bs, (const block_q4_Kx8 *) w, rows, stride, sums);
        }
        rows_q4_k<narrow, R>(n, nc - x, s + x, bs, (const block_q4_Kx8 *) (w + x * pitch), rows, stride, sums);
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

// n_rows of a batch times nc columns of `pitch` bytes each (see above), in blocks of columns that stay in a cache while
// all rows are multiplied; the rows in as few and as equal parts as possible.
template <typename BLOCK>
static void batch(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                        size_t stride, int64_t n_rows) {
    if (n_rows > TOGETHER) {
        const int64_t rest = n_rows - TOGETHER;
        batch<BLOCK>(n, nc, s, bs, w, pitch, rows, stride, TOGETHER);
        batch<BLOCK>(n, nc, s + TOGETHER * bs, bs, w, pitch, rows + TOGETHER * stride, stride, rest);
        return;
    }
    using part = void (*)(int64_t, int64_t, float *, size_t, const char *, size_t, const char *, size_t, const void *);
    constexpr int M = most<BLOCK>;
    static constexpr part BY_ROWS[8] = { at_once<BLOCK, 1>, at_once<BLOCK, 2>, at_once<BLOCK, 3>,
                                         at_once<BLOCK, M < 4 ? M : 4>, at_once<BLOCK, M < 5 ? M : 5>,
                                         at_once<BLOCK, M < 6 ? M : 6>, at_once<BLOCK, M < 7 ? M : 7>,
                                         at_once<BLOCK, M < 8 ? M : 8> };
    const char * more  = nullptr;
    size_t       per_row = 0;  // bytes per row
    if constexpr (std::is_same_v<BLOCK, block_q4_0> || is_table<BLOCK>) {
        more    = (const char *) all_of_q8_0(n / QK8_0, rows, stride, n_rows);
        per_row = n / QK8_0 * sizeof(of_q8_0);
    } else if constexpr (std::is_same_v<BLOCK, block_q4_K>) {
        more    = (const char *) sums_of_q8_k(n / QK_K, rows, stride, n_rows);
        per_row = n / QK_K * 8 * sizeof(int16_t);
    } else if constexpr (std::is_same_v<BLOCK, block_q8_0>) {
        more    = (const char *) more_of_q8_0(n / QK8_0, rows, stride, n_rows);
        per_row = n / QK8_0 * sizeof(more_q8_0);
    } else if constexpr (super<BLOCK>::known) {
        more    = (const char *) more_of_super<BLOCK>(n / QK_K, rows, stride, n_rows);
        per_row = n / QK_K * sizeof(more_super);
    } else if constexpr (small<BLOCK>::known) {
        more    = (const char *) more_of_small<BLOCK>(n / QK8_0, rows, stride, n_rows);
        per_row = n / QK8_0 * sizeof(more_small);
    } else if constexpr (is_16_bits<BLOCK>) {
        more    = (const char *) floats_of_16_bits<BLOCK>(n, rows, stride, n_rows);
        per_row = n * sizeof(float);
    }
    int64_t fit = n_rows <= M ? nc : std::max<int64_t>(16, CACHED / (int64_t) pitch / 16 * 16);
    if (super<BLOCK>::known && n_rows > FEW) {
        fit = n_rows <= M ? widest::COLUMNS : 16;
    }
    for (int64_t x = 0; x < nc; x += fit) {
        int64_t      now  = std::min(fit, nc - x), of_w = pitch;
        const char * here = w + x * pitch;
        if (super<BLOCK>::known && n_rows > FEW) {
            if constexpr (super<BLOCK>::known) {
                here = unpacked_columns<BLOCK>(n / QK_K, here, &of_w, &now);
                fit  = now;
            }
        }
        for (int64_t done = 0, parts = (n_rows + M - 1) / M; parts > 0; parts--) {
            const int64_t count = (n_rows - done) / parts;
            BY_ROWS[count - 1](n, now, s + done * bs + x, bs, here, of_w, rows + done * stride, stride,
                               more + done * per_row);
            done += count;
        }
    }
}

#include "batch.h"
#include "dots.h"

template <typename BLOCK>
static void by_columns(const ggml_compute_params * params, ggml_tensor * dst, const char * rows, size_t stride) {
    const ggml_tensor * weights = dst->src[0];
    const int64_t n = weights->ne[0], nc = weights->ne[1], n_rows = rows_of(dst->src[1]);
    const int64_t size = columns_of_part(params, nc);
    for (int64_t at = params->ith; at * size < nc; at = specllama_ggml.chunk_add(params->threadpool, 1)) {
        batch<BLOCK>(n, std::min(size, nc - at * size), (float *) dst->data + at * size, dst->nb[1] / sizeof(float),
                           (const char *) weights->data + at * size * weights->nb[1], weights->nb[1], rows, stride,
                           n_rows);
    }
}


// Whether this file multiplies these weights with this batch.
inline bool multiplies(const ggml_tensor * dst, layout stored) {
    const ggml_tensor * w = dst->src[0], * a = dst->src[1];
    if (a->type != GGML_TYPE_F32 || a->nb[0] != sizeof(float) || w->ne[3] != 1 || w->view_src || !is_flat(dst)) {
        return false;
    }
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        return stored == layout::plain && a->ne[2] < PROMPT && a->ne[3] == 1 && has_dots(w, a);
    }
    if (w->ne[2] != 1) {
        return false;
    }
    if (stored == layout::groups) {
        return w->type == GGML_TYPE_Q4_0 || w->type == GGML_TYPE_Q4_K ||
               ((w->type == GGML_TYPE_IQ4_NL || w->type == GGML_TYPE_MXFP4) && rows_of(a) < PROMPT);
    }
    if (w->nb[1] != specllama_ggml.row_size(w->type, w->ne[0])) {
        return false;
    }
    switch (w->type) {
        case GGML_TYPE_F16:  // llama.cpp's kernel for prompts sums odd columns in another order
        case GGML_TYPE_BF16: return w->ne[0] % widest::FLOATS == 0 && rows_of(a) < PROMPT;
        case GGML_TYPE_Q6_K: return rows_of(a) < PROMPT;  // for prompts llama.cpp's kernel is faster
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1: return true;
        case GGML_TYPE_F32:  // of small matrices, such as routers, whose rows may be heads; Hadamard has its own kernel
            return dst->op_params[1] != GGML_HINT_SRC0_IS_HADAMARD && rows_of(a) < 64 * PROMPT && has_dots(w, a);
        default: return rows_of(a) < PROMPT && has_dots(w, a);
    }
}

static void multiply(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * a = dst->src[1];
    const ggml_type type = dst->src[0]->type, converted = specllama_ggml.cpu_traits(type)->vec_dot_type;
    const char * rows   = (const char *) params->wdata;
    size_t       stride = specllama_ggml.row_size(converted, a->ne[0]);
    if (converted == a->type) {
        rows   = (const char *) a->data;
        stride = a->nb[1];
    } else {
        convert(params, a, converted);
    }
    if (params->ith == 0) {
        specllama_ggml.chunk_set(params->threadpool, params->nth);
    }
    specllama_ggml.barrier(params->threadpool);
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        dots_of_experts(params, dst, rows, stride);
        return;
    }
    const bool single = rows_of(a) == 1;
    switch (type) {
        case GGML_TYPE_Q5_K:
            single ? dots(params, dst, rows, stride) : by_columns<block_q5_K>(params, dst, rows, stride);
            break;
        case GGML_TYPE_Q2_K:
            single ? dots(params, dst, rows, stride) : by_columns<block_q2_K>(params, dst, rows, stride);
            break;
        case GGML_TYPE_Q3_K:
            single ? dots(params, dst, rows, stride) : by_columns<block_q3_K>(params, dst, rows, stride);
            break;
        case GGML_TYPE_IQ4_XS:
            single ? dots(params, dst, rows, stride) : by_columns<block_iq4_xs>(params, dst, rows, stride);
            break;
        case GGML_TYPE_F16: by_columns<ggml_half>(params, dst, rows, stride); break;
        case GGML_TYPE_BF16: by_columns<ggml_bf16_t>(params, dst, rows, stride); break;
        case GGML_TYPE_IQ4_NL:
            dst->src[0]->extra ? by_columns<block_iq4_nlx8>(params, dst, rows, stride)
                               : by_columns<block_iq4_nl>(params, dst, rows, stride);
            break;
        case GGML_TYPE_MXFP4:
            dst->src[0]->extra ? by_columns<block_mxfp4x8>(params, dst, rows, stride)
                               : by_columns<block_mxfp4>(params, dst, rows, stride);
            break;
        case GGML_TYPE_Q4_0: // in groups, as Q4_K; else as the other types
            dst->src[0]->extra ? by_columns<block_q4_0>(params, dst, rows, stride) : dots(params, dst, rows, stride);
            break;
        case GGML_TYPE_Q4_K:
            dst->src[0]->extra ? by_columns<block_q4_K>(params, dst, rows, stride) : dots(params, dst, rows, stride);
            break;
        case GGML_TYPE_Q8_0: by_columns<block_q8_0>(params, dst, rows, stride); break;
        case GGML_TYPE_Q6_K: by_columns<block_q6_K>(params, dst, rows, stride); break;
        case GGML_TYPE_Q4_1: by_columns<block_q4_1>(params, dst, rows, stride); break;
        case GGML_TYPE_Q5_0: by_columns<block_q5_0>(params, dst, rows, stride); break;
        case GGML_TYPE_Q5_1: by_columns<block_q5_1>(params, dst, rows, stride); break;
        default: dots(params, dst, rows, stride); break;
    }
}

}  // namespace specllama
