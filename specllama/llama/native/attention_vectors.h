// Vectors of 32-bit floats for attention.h: sixteen lanes with AVX-512, eight with AVX2.
//
//   mask_lanes(a, lanes)            a with -inf in all lanes but these (bits)
//   sum_each(a)                     the sum of each of LANES vectors, all computed in the same order
//   exp2_minus(a, max_score, lanes) 2^(a - max_score) in these lanes, 0 in the others. max_score: an integer, which no such
//                                   lane exceeds. With another max_score a lane differs by exactly that power of two.
//   rotate(a, by)                   sixteen lanes: lane l becomes lane (l - by) % 16
#pragma once

namespace specllama_attention {

#if defined(__AVX512F__) && defined(__AVX512DQ__)
using floats                = __m512;
constexpr int     LANES     = 16;
inline floats zero() { return _mm512_setzero_ps(); }
inline floats set1(float value) { return _mm512_set1_ps(value); }
inline floats load(const float * from) { return _mm512_loadu_ps(from); }
inline void   store(float * to, floats a) { _mm512_storeu_ps(to, a); }
inline floats widen(const ggml_fp16_t * from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from));
}
inline floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
inline floats sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
inline floats mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
inline floats fmadd(floats a, floats b, floats sum) { return _mm512_fmadd_ps(a, b, sum); }
inline floats max(floats a, floats b) { return _mm512_max_ps(a, b); }
inline float  reduce_max(floats a) { return _mm512_reduce_max_ps(a); }
inline floats mask_lanes(floats a, unsigned lanes) {
    return _mm512_mask_blend_ps((__mmask16) lanes, _mm512_set1_ps(-INFINITY), a);
}
inline floats sum_each(const floats * a) {
    floats four[4];
    for (int i = 0; i < 4; i++) {
        const floats * p = a + 4 * i;
        const floats two[2] = {add(_mm512_unpacklo_ps(p[0], p[1]), _mm512_unpackhi_ps(p[0], p[1])),
                               add(_mm512_unpacklo_ps(p[2], p[3]), _mm512_unpackhi_ps(p[2], p[3]))};
        four[i] = add(_mm512_shuffle_ps(two[0], two[1], 0x44), _mm512_shuffle_ps(two[0], two[1], 0xEE));
    }
    for (int i = 0; i < 4; i += 2) {
        four[i / 2] = add(_mm512_shuffle_f32x4(four[i], four[i + 1], 0x88),
                          _mm512_shuffle_f32x4(four[i], four[i + 1], 0xDD));
    }
    return add(_mm512_shuffle_f32x4(four[0], four[1], 0x88), _mm512_shuffle_f32x4(four[0], four[1], 0xDD));
}
#else
using floats                = __m256;
constexpr int     LANES     = 8;
inline floats zero() { return _mm256_setzero_ps(); }
inline floats set1(float value) { return _mm256_set1_ps(value); }
inline floats load(const float * from) { return _mm256_loadu_ps(from); }
inline void   store(float * to, floats a) { _mm256_storeu_ps(to, a); }
inline floats mask_of(unsigned lanes) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int) lanes), bits), bits));
}
inline floats widen(const ggml_fp16_t * from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)); }
inline floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
inline floats sub(floats a, floats b) { return _mm256_sub_ps(a, b); }
inline floats mul(floats a, floats b) { return _mm256_mul_ps(a, b); }
inline floats fmadd(floats a, floats b, floats sum) { return _mm256_fmadd_ps(a, b, sum); }
inline floats max(floats a, floats b) { return _mm256_max_ps(a, b); }
inline float  reduce_max(floats a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two  = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline floats mask_lanes(floats a, unsigned lanes) {
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), a, mask_of(lanes));
}
inline floats sum_each(const floats * a) {
    floats two[2];
    for (int i = 0; i < 2; i++) {
        const floats * p = a + 4 * i;
        two[i] = _mm256_hadd_ps(_mm256_hadd_ps(p[0], p[1]), _mm256_hadd_ps(p[2], p[3]));
    }
    return add(_mm256_permute2f128_ps(two[0], two[1], 0x20), _mm256_permute2f128_ps(two[0], two[1], 0x31));
}
#endif

inline floats exp2_fraction(floats a) {  // 2^a for a in [-0.5, 0.5]; relative error 2e-9 before rounding
    floats sum = fmadd(set1(0x1.41d332p-13f), a, set1(0x1.5f456ap-10f));
    sum        = fmadd(sum, a, set1(0x1.3b2dbcp-7f));
    sum        = fmadd(sum, a, set1(0x1.c6aed4p-5f));
    sum        = fmadd(sum, a, set1(0x1.ebfbdap-3f));
    sum        = fmadd(sum, a, set1(0x1.62e430p-1f));
    return fmadd(sum, a, set1(1.0f));
}

#if defined(__AVX512F__) && defined(__AVX512DQ__)
inline floats exp2_minus(floats a, float max_score, unsigned lanes) {
    const floats integer = _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_maskz_scalef_ps((__mmask16) lanes, exp2_fraction(sub(a, integer)), sub(integer, set1(max_score)));
}
inline void rotate(floats * a, unsigned by) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    a[0] = _mm512_permutexvar_ps(_mm512_sub_epi32(lanes, _mm512_set1_epi32((int) by)), a[0]);
}
#else
inline floats exp2_minus(floats a, float max_score, unsigned lanes) {
    const floats  integer  = _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const floats  exponent = _mm256_max_ps(sub(integer, set1(max_score)), set1(-127.0f));  // 2^-127 becomes 0
    const __m256i biased   = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
    const __m256i scale    = _mm256_slli_epi32(biased, 23);
    return _mm256_and_ps(mul(exp2_fraction(sub(a, integer)), _mm256_castsi256_ps(scale)), mask_of(lanes));
}
inline void rotate(floats * a, unsigned by) {
    const __m256i first      = _mm256_sub_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int) by));
    const floats  rotated[2] = {_mm256_permutevar8x32_ps(a[0], first), _mm256_permutevar8x32_ps(a[1], first)};
    const floats  second     = _mm256_castsi256_ps(_mm256_slli_epi32(first, 28));  // bit 3, as the sign
    a[0] = _mm256_blendv_ps(rotated[0], rotated[1], second);
    a[1] = _mm256_blendv_ps(rotated[1], rotated[0], second);
}
#endif

inline floats load(const ggml_fp16_t * from) { return widen(from); }

}  // namespace specllama_attention
