// Included by multiply.h: vectors of 32 bytes, and of 64 where there is AVX-512, with the same functions, so that each loop
// is written once.

// Otherwise the compiler keeps sums in memory from some number of rows on.
#if defined(__clang__)
#define SPECLLAMA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SPECLLAMA_UNROLL _Pragma("GCC unroll 8")
#else
#define SPECLLAMA_UNROLL
#endif

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
