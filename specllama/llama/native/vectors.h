// Included by mul_mat.h: vectors of 32 bytes, and of 64 with AVX-512, with the same functions, so that each loop is written
// once. `ints` holds integers of 8, 16 or 32 bits, `floats` 32-bit floats. Functions are named like the intrinsics that
// they call where there is one; a sum that something is added to comes first.

// Without it, compilers spill the accumulators to memory when there are many rows.
#if defined(__clang__)
#define SPECLLAMA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SPECLLAMA_UNROLL _Pragma("GCC unroll 16")
#else
#define SPECLLAMA_UNROLL
#endif

// Vectors of 32 bytes, each with half of a repacked group of eight columns. dot_u8i8 adds PRODUCTS_PER_SUM products of
// unsigned and signed bytes to each sum: four to sums of 32 bits with VNNI, otherwise two to sums of 16 bits, which neither
// sixteen products of 4-bit weights nor four of 6-bit weights overflow.
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
constexpr bool HAS_VNNI = true;
#else
constexpr bool HAS_VNNI = false;
#endif

template <bool VNNI> struct vec256_with {
    using ints   = __m256i;
    using floats = __m256;
    static constexpr int N_GROUPS = 1;  // repacked groups of columns at once
    static constexpr int PRODUCTS_PER_SUM = VNNI ? 4 : 2;
    static ints zero_si() { return _mm256_setzero_si256(); }
    static ints set1_epi8(int value) { return _mm256_set1_epi8((char) value); }
    static ints set1_epi32(int32_t value) { return _mm256_set1_epi32(value); }
    static ints set1_epi64(int64_t value) { return _mm256_set1_epi64x(value); }
    static ints bit_and(ints a, ints b) { return _mm256_and_si256(a, b); }
    static ints bit_xor(ints a, ints b) { return _mm256_xor_si256(a, b); }
    static ints add(ints a, ints b) { return _mm256_add_epi32(a, b); }
    static ints sub(ints a, ints b) { return _mm256_sub_epi32(a, b); }
    static ints times_64(ints a) { return _mm256_slli_epi32(a, 6); }
    static ints srli4(ints a) { return _mm256_srli_epi16(a, 4); }  // high nibbles of bytes, to be masked
    static ints dot_u8i8(ints sum, ints w, ints a) {
        if (!VNNI) {
            return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, a));
        }
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        return _mm256_dpbusd_epi32(sum, w, a);
#elif defined(__AVXVNNI__)
        return _mm256_dpbusd_avx_epi32(sum, w, a);
#else
        return sum;
#endif
    }
    static ints dot_i16(ints sum, ints a, ints b) {  // adds two 16-bit products to each 32-bit sum
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        return _mm256_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
        return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
        return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
    }
    static ints widen_sums(ints sums) {  // of dot_u8i8, to 32 bits
        return PRODUCTS_PER_SUM == 4 ? sums : _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    }
    static floats zero_ps() { return _mm256_setzero_ps(); }
    static floats set1_ps(float value) { return _mm256_set1_ps(value); }
    static floats mul(floats a, floats b) { return _mm256_mul_ps(a, b); }
    static floats accumulate(floats sum, ints a, floats b) { return _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), b, sum); }
    static floats sub(floats a, floats b) { return _mm256_sub_ps(a, b); }

    // 64 bytes of a group: columns 0-3, then 4-7, eight values of each. vec512 also reads those of the next group.
    static void load_columns(ints * first, ints * second, const void * group, const void *) {
        *first  = _mm256_loadu_si256((const __m256i *) group);
        *second = _mm256_loadu_si256((const __m256i *) group + 1);
    }
    // One sum per column, in the order 0 1 4 5 2 3 6 7, like the scales and u8_pairs; store_columns restores the order.
    static ints reduce_columns(ints first, ints second) { return _mm256_hadd_epi32(first, second); }
    static floats load_f16_scales(const ggml_half * group, const ggml_half *) {
        const __m128i d = _mm_loadu_si128((const __m128i *) group);
        return _mm256_cvtph_ps(_mm_shuffle_epi32(d, _MM_SHUFFLE(3, 1, 2, 0)));
    }
    static floats e8m0_scales(__m128i group, __m128i) {  // of 16-bit exponents (MXFP4)
        const ints exponents = _mm256_cvtepu16_epi32(_mm_shuffle_epi32(group, _MM_SHUFFLE(3, 1, 2, 0)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponents, 23));
    }
    static ints lookup(__m128i table, ints indices) {
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices);
    }
    static ints dot_i8i8(ints sum, ints w, ints a) {  // 32-bit sums of signed bytes
        return _mm256_add_epi32(sum, widen_sums(dot_u8i8(zero_si(), _mm256_abs_epi8(w), _mm256_sign_epi8(a, w))));
    }
    static ints u8_pairs(__m128i group, __m128i) {  // two bytes of each column, as 16-bit integers
        return _mm256_cvtepu8_epi16(_mm_shuffle_epi32(group, _MM_SHUFFLE(3, 1, 2, 0)));
    }
    static void store_columns(float * to, floats sums) {
        const __m256d in_order = _mm256_permute4x64_pd(_mm256_castps_pd(sums), _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_storeu_ps(to, _mm256_castpd_ps(in_order));
    }
    // Signed 8-bit scales from index `first` on, each for the sums of BYTES products, in the lanes of these sums.
    template <int BYTES> static ints spread_scales(__m128i from, int first) {
        constexpr int N = PRODUCTS_PER_SUM;
        const __m128i index = _mm_setr_epi8(0, N / BYTES, 2 * N / BYTES, 3 * N / BYTES, 4 * N / BYTES, 5 * N / BYTES,
                                            6 * N / BYTES, 7 * N / BYTES, 8 * N / BYTES, 9 * N / BYTES,
                                            10 * N / BYTES, 11 * N / BYTES, 12 * N / BYTES, 13 * N / BYTES,
                                            14 * N / BYTES, 15 * N / BYTES);
        const __m128i picked = _mm_shuffle_epi8(from, _mm_add_epi8(index, _mm_set1_epi8((char) first)));
        return N == 2 ? _mm256_cvtepi8_epi16(picked)
                      : _mm256_blend_epi16(_mm256_cvtepi8_epi32(picked), _mm256_setzero_si256(), 0xAA);
    }
    static void column_scales(ints * first, ints * second, __m128i group, __m128i) {
        *first  = spread_scales<8>(group, 0);
        *second = spread_scales<8>(group, 4);
    }

    static ints load_row(const int8_t * from) { return _mm256_loadu_si256((const __m256i *) from); }
    static ints of_steps(const __m256i * from, int step) { return from[step]; }  // vector `step` of those of 32 bytes
    // The scales of vector `step` of a block that has one for each 16 values.
    static ints scales_per_16(__m128i scales, int step) { return spread_scales<16>(scales, 2 * step); }
    static ints dot_with_offset(ints init, ints a, ints quants) {  // without widening the sums
        if (PRODUCTS_PER_SUM == 4) {
            return dot_u8i8(init, a, quants);
        }
        return dot_u8i8(init, _mm256_abs_epi8(quants), _mm256_sign_epi8(a, quants));
    }
    static ints add_scaled(ints sum, ints products, ints scales) {  // as dot_i16, where products may exceed 16 bits
        if (PRODUCTS_PER_SUM == 4) {
            const ints scale = _mm256_srai_epi32(_mm256_slli_epi32(scales, 16), 16);
            return _mm256_add_epi32(sum, _mm256_mullo_epi32(products, scale));
        }
        return dot_i16(sum, products, scales);
    }
    static __m256i fold_to_8(ints sums) { return sums; }

    // Weights of COLUMNS columns, one after another in memory, times a row of signed bytes. With VNNI the row must be
    // unsigned: ROW_OFFSET = 128 is added to it beforehand, and sums start at -128 x the sum of the weights
    // (offset_correction). Otherwise the weights become unsigned, and their signs go to the row.
    static constexpr int COLUMNS = 1;
    static constexpr int ROW_OFFSET = PRODUCTS_PER_SUM == 4 ? 0x80 : 0;
    static ints dot_q8_0(ints init, ints quants, const int8_t * from) {
        if (PRODUCTS_PER_SUM == 4) {
            return dot_u8i8(init, load_row(from), quants);
        }
        return widen_sums(dot_u8i8(init, _mm256_abs_epi8(quants), _mm256_sign_epi8(load_row(from), quants)));
    }
    static void store_totals(float * to, floats sums) { *to = hsum(sums); }
    // A value for each column: the second is computed only if there are two.
    template <typename F> static ints per_column(__m256i column, F) { return column; }
    template <typename F> static floats per_column(float column, F) { return set1_ps(column); }
    static ints broadcast_row(const int8_t * from) { return load_row(from); }  // the same values for each column
    static ints offset_correction(ints quants) {
        return PRODUCTS_PER_SUM == 4 ? sub(zero_si(), dot_u8i8(zero_si(), set1_epi8(ROW_OFFSET), quants)) : zero_si();
    }
    static float hsum(__m256 sums) {
        const __m128 four = _mm_add_ps(_mm256_extractf128_ps(sums, 1), _mm256_castps256_ps128(sums));
        const __m128 two  = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

    static constexpr int N_FLOATS = 8;
    static floats load_f16(const ggml_half * w) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) w)); }
    static floats load_bf16(const ggml_bf16_t * w) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) w)), 16));
    }
    static floats load_ps(const float * from) { return _mm256_loadu_ps(from); }
    static void   store_ps(float * to, floats values) { _mm256_storeu_ps(to, values); }
    static floats accumulate(floats sum, floats a, floats b) { return _mm256_fmadd_ps(a, b, sum); }
    static floats add_ps(floats a, floats b) { return _mm256_add_ps(a, b); }
};

using vec256 = vec256_with<HAS_VNNI>;

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define SPECLLAMA_VEC512
// Vectors of 64 bytes: two groups, or two columns, at once.
struct vec512 {
    using ints   = __m512i;
    using floats = __m512;
    static constexpr int N_GROUPS = 2;
    static constexpr int PRODUCTS_PER_SUM = 4;
    static ints zero_si() { return _mm512_setzero_si512(); }
    static ints set1_epi8(int value) { return _mm512_set1_epi8((char) value); }
    static ints set1_epi32(int32_t value) { return _mm512_set1_epi32(value); }
    static ints set1_epi64(int64_t value) { return _mm512_set1_epi64(value); }
    static ints bit_and(ints a, ints b) { return _mm512_and_si512(a, b); }
    static ints bit_xor(ints a, ints b) { return _mm512_xor_si512(a, b); }
    static ints add(ints a, ints b) { return _mm512_add_epi32(a, b); }
    static ints sub(ints a, ints b) { return _mm512_sub_epi32(a, b); }
    static ints times_64(ints a) { return _mm512_slli_epi32(a, 6); }
    static ints srli4(ints a) { return _mm512_srli_epi16(a, 4); }
    static ints dot_u8i8(ints sum, ints w, ints a) { return _mm512_dpbusd_epi32(sum, w, a); }
    static ints dot_i16(ints sum, ints a, ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
    static ints widen_sums(ints sums) { return sums; }
    static floats zero_ps() { return _mm512_setzero_ps(); }
    static floats set1_ps(float value) { return _mm512_set1_ps(value); }
    static floats mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
    static floats accumulate(floats sum, ints a, floats b) { return _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), b, sum); }
    static floats sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
    static void load_columns(ints * first, ints * second, const void * group, const void * next) {
        *first  = _mm512_loadu_si512(group);
        *second = _mm512_loadu_si512(next);
    }
    // The order: columns 0 1 of the first group, 0 1 of the second, 2 3 of the first, and so on.
    static ints reduce_columns(ints first, ints second) {
        const __m512 a = _mm512_castsi512_ps(first), b = _mm512_castsi512_ps(second);
        return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)));
    }
    static __m256i interleave(__m128i a, __m128i b) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi32(a, b)), _mm_unpackhi_epi32(a, b), 1);
    }
    static floats load_f16_scales(const ggml_half * group, const ggml_half * next) {
        return _mm512_cvtph_ps(interleave(_mm_loadu_si128((const __m128i *) group),
                                          _mm_loadu_si128((const __m128i *) next)));
    }
    static floats e8m0_scales(__m128i group, __m128i next) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(interleave(group, next)), 23));
    }
    static ints lookup(__m128i table, ints indices) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices); }
    static ints dot_i8i8(ints sum, ints, ints) { return sum; }  // not called: PRODUCTS_PER_SUM is 4
    static ints u8_pairs(__m128i group, __m128i next) { return _mm512_cvtepu8_epi16(interleave(group, next)); }
    static void store_columns(float * to, floats sums) {
        const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        _mm512_storeu_ps(to, _mm512_castsi512_ps(_mm512_permutexvar_epi64(order, _mm512_castps_si512(sums))));
    }
    static void column_scales(ints * first, ints * second, __m128i group, __m128i next) {
        const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        *first  = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(group, twice));
        *second = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(next, twice));
    }
    static ints load_row(const int8_t * from) { return _mm512_loadu_si512(from); }
    static ints of_steps(const __m256i * from, int step) { return concat(from[2 * step], from[2 * step + 1]); }
    static ints scales_per_16(__m128i scales, int step) {
        const __m128i first = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        const __m128i index = _mm_add_epi8(first, _mm_set1_epi8((char) (4 * step)));
        return _mm512_maskz_mov_epi16(0x55555555, _mm512_cvtepi8_epi32(_mm_shuffle_epi8(scales, index)));
    }
    static ints dot_with_offset(ints init, ints a, ints quants) { return dot_u8i8(init, a, quants); }
    static ints add_scaled(ints sum, ints products, ints scales) {
        const ints scale = _mm512_srai_epi32(_mm512_slli_epi32(scales, 16), 16);
        return _mm512_add_epi32(sum, _mm512_mullo_epi32(products, scale));
    }
    static __m256i fold_to_8(ints sums) {
        return _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
    }

    static constexpr int COLUMNS = 2;
    static constexpr int ROW_OFFSET = 0x80;
    static ints concat(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
    template <typename F> static ints per_column(__m256i column, F next) { return concat(column, next()); }
    template <typename F> static floats per_column(float column, F next) {
        return _mm512_castsi512_ps(concat(_mm256_castps_si256(vec256::set1_ps(column)),
                                          _mm256_castps_si256(vec256::set1_ps(next()))));
    }
    static ints broadcast_row(const int8_t * from) { return _mm512_broadcast_i64x4(vec256::load_row(from)); }
    static ints offset_correction(ints quants) { return sub(zero_si(), dot_u8i8(zero_si(), set1_epi8(ROW_OFFSET), quants)); }
    static ints dot_q8_0(ints init, ints quants, const int8_t * from) { return dot_u8i8(init, broadcast_row(from), quants); }
    static void store_totals(float * to, floats sums) {
        to[0] = vec256::hsum(_mm512_castps512_ps256(sums));
        to[1] = vec256::hsum(_mm512_extractf32x8_ps(sums, 1));
    }

    static constexpr int N_FLOATS = 16;
    static floats load_f16(const ggml_half * w) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) w)); }
    static floats load_bf16(const ggml_bf16_t * w) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) w)), 16));
    }
    static floats load_ps(const float * from) { return _mm512_loadu_ps(from); }
    static void   store_ps(float * to, floats values) { _mm512_storeu_ps(to, values); }
    static floats accumulate(floats sum, floats a, floats b) { return _mm512_fmadd_ps(a, b, sum); }
    static floats add_ps(floats a, floats b) { return _mm512_add_ps(a, b); }
    static float  hsum(floats sums) { return _mm512_reduce_add_ps(sums); }
};
using widest = vec512;
#else
using widest = vec256;
#endif
