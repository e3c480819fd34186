// A few rows times weights that llama.cpp has packed for AMX (x86-64 with AMX and VNNI). rows.cmake makes llama.cpp's
// ggml-cpu/amx/mmq.cpp include this file.
//
// llama.cpp multiplies one row with AVX-512 and two or more with tiles, for which it unpacks weights to memory and
// reads sums from it: two rows take 1.3 to 1.8 times as long as one. Here weights are unpacked once into registers and
// multiplied by up to eight rows. All three sum integers exactly and floating-point numbers in the same order, so that
// they give bit-identical rows.
#pragma once

#include <cstring>
#include <vector>

#if defined(__clang__)
#define SPECLLAMA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SPECLLAMA_UNROLL _Pragma("GCC unroll 16")
#endif

namespace specllama_tiles {

constexpr int ROWS = 8;   // rows at once: more do not fit in registers
constexpr int CACHED = 24 << 10;  // bytes of rows that stay in the L1 cache
constexpr int AHEAD = 4 << 10;  // bytes of weights that are prefetched

// The layout of a tile, sixteen columns of one block: GROUPS with a scale each, of DEPTH times four products. OFFSET is
// added to unpacked weights to make them unsigned. With fewer rows than LEAST, or more than MOST, llama.cpp is as fast
// or faster.
template <typename TB> struct tile;

template <int OFF> struct floats_follow {
    static constexpr int GROUPS = 1, DEPTH = 8, OFFSET = OFF, LEAST = 2, MOST = 16;
    static constexpr bool MINS = false;
    static __m512i scale(const char *, int) { return _mm512_setzero_si512(); }
};

inline __m512i low(__m512i bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(0xF)); }
inline __m512i high(__m512i bytes) { return low(_mm512_srli_epi16(bytes, 4)); }
inline __m512i small_scales(const char * at) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) at)); }
inline __m512  halves(const char * at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) at)); }

template <> struct tile<block_q4_0> : floats_follow<8> {
    static constexpr int FLOATS = TILE_N * TILE_K / 2;
    static __m512i unpack(const char * at, int, int k) {
        const __m512i bytes = _mm512_loadu_si512(at + k / 2 * 64);
        return k % 2 == 0 ? low(bytes) : high(bytes);
    }
};

template <> struct tile<block_q8_0> : floats_follow<128> {
    static constexpr int FLOATS = TILE_N * TILE_K, MOST = 12;
    static __m512i unpack(const char * at, int, int k) {
        return _mm512_xor_si512(_mm512_loadu_si512(at + k * 64), _mm512_set1_epi8((char) 0x80));
    }
};

template <> struct tile<block_q4_K> {
    static constexpr int GROUPS = 8, DEPTH = 8, OFFSET = 0, LEAST = 1, MOST = 16;
    static constexpr int SCALES = QK_K / 2 * TILE_N, FLOATS = SCALES + 16 * TILE_N;
    static constexpr bool MINS = true;
    static __m512i unpack(const char * at, int group, int k) {
        const __m512i bytes = _mm512_loadu_si512(at + group * 256 + k / 2 * 64);
        return k % 2 == 0 ? low(bytes) : high(bytes);
    }
    static __m512i scale(const char * at, int group) { return small_scales(at + SCALES + group * TILE_N); }
};

template <> struct tile<block_q5_K> {
    static constexpr int GROUPS = 8, DEPTH = 8, OFFSET = 0, LEAST = 1, MOST = 16;
    static constexpr int FIFTHS = QK_K / 2 * TILE_N, SCALES = FIFTHS + QK_K / 8 * TILE_N;
    static constexpr int FLOATS = SCALES + 16 * TILE_N;
    static constexpr bool MINS = true;
    static __m512i unpack(const char * at, int group, int k) {
        const __m512i fifths = _mm512_loadu_si512(at + FIFTHS + group * 64), one = _mm512_set1_epi8(1);
        const __m512i fifth = _mm512_and_si512(_mm512_srli_epi16(fifths, k), one);
        return _mm512_add_epi8(tile<block_q4_K>::unpack(at, group, k), _mm512_slli_epi16(fifth, 4));
    }
    static __m512i scale(const char * at, int group) { return small_scales(at + SCALES + group * TILE_N); }
};

template <> struct tile<block_q6_K> {
    static constexpr int GROUPS = 16, DEPTH = 4, OFFSET = 32, LEAST = 1, MOST = 16;
    static constexpr int UPPER = QK_K / 2 * TILE_N, SCALES = UPPER + QK_K / 4 * TILE_N;
    static constexpr int FLOATS = SCALES + 16 * TILE_N;
    static constexpr bool MINS = false;
    static __m512i unpack(const char * at, int group, int k) {
        const __m512i bytes = _mm512_loadu_si512(at + group * 128 + k / 2 * 64);
        const __m512i upper = _mm512_srli_epi16(_mm512_loadu_si512(at + UPPER + group * 64), 2 * k);
        return _mm512_or_si512(k % 2 == 0 ? low(bytes) : high(bytes),
                               _mm512_slli_epi16(_mm512_and_si512(upper, _mm512_set1_epi8(3)), 4));
    }
    static __m512i scale(const char * at, int group) { return small_scales(at + SCALES + group * TILE_N); }
};

inline __m512i four(const char * bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof(word));
    return _mm512_set1_epi32(word);
}

inline float factor(const block_q8_0 & a) { return GGML_CPU_FP16_TO_FP32(a.d); }
inline float factor(const block_q8_K & a) { return a.d; }

// Values of a block of a row that do not depend on weights: the sums of its groups times OFFSET; or the sums of all
// groups of 32, two in a word, for mins.
template <typename TB, typename TA> struct known {
    static constexpr int WORDS = tile<TB>::MINS ? 4 : tile<TB>::GROUPS;
    static void of(const TA & a, int32_t * to) {
        if constexpr (tile<TB>::MINS) {
            const __m256i sums = _mm256_loadu_si256((const __m256i *) a.bsums);
            _mm_storeu_si128((__m128i *) to,
                             _mm_hadd_epi16(_mm256_extracti128_si256(sums, 0), _mm256_extracti128_si256(sums, 1)));
        } else if constexpr (tile<TB>::GROUPS > 1) {
            for (int group = 0; group < WORDS; group++) {
                to[group] = -tile<TB>::OFFSET * a.bsums[group];
            }
        } else {
            const __m256i ones = _mm256_set1_epi8(1), bytes = _mm256_loadu_si256((const __m256i *) a.qs);
            const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, bytes), _mm256_set1_epi16(1));
            __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
            four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
            to[0] = -tile<TB>::OFFSET * (_mm_extract_epi32(four, 0) + _mm_extract_epi32(four, 1));
        }
    }
};

// R rows times sixteen columns, for blocks `from` to `to`.
template <typename TB, typename TA, int R>
void rows(int KB, int from, int to, const TA * A, const int32_t * given, const char * B, float * C, int ldc) {
    using kind = tile<TB>;
    constexpr int WORDS = known<TB, TA>::WORDS;
    const int size = get_tile_size<TB>();
    __m512 sum[R];
    SPECLLAMA_UNROLL
    for (int r = 0; r < R; r++) {
        sum[r] = from == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(C + (size_t) r * ldc);
    }
    for (int i = from; i < to; i++) {
        const char * at = B + (size_t) i * size;
        for (int ahead = 0; ahead < size; ahead += 64) {
            _mm_prefetch(at + AHEAD + ahead, _MM_HINT_T0);
        }
        const __m512 d = halves(at + kind::FLOATS);
        __m512i scaled[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            scaled[r] = _mm512_setzero_si512();
        }
        for (int group = 0; group < kind::GROUPS; group++) {
            __m512i w[kind::DEPTH];
            SPECLLAMA_UNROLL
            for (int k = 0; k < kind::DEPTH; k++) {
                w[k] = kind::unpack(at, group, k);
            }
            const __m512i scale = kind::scale(at, group);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const char * a = (const char *) A[r * KB + i].qs + group * kind::DEPTH * 4;
                const int32_t start = kind::OFFSET == 0 ? 0 : given[(r * KB + i) * WORDS + group];
                __m512i even = _mm512_set1_epi32(start), odd = _mm512_setzero_si512();
                SPECLLAMA_UNROLL
                for (int k = 0; k < kind::DEPTH; k += 2) {
                    even = _mm512_dpbusd_epi32(even, w[k], four(a + 4 * k));
                    odd  = _mm512_dpbusd_epi32(odd, w[k + 1], four(a + 4 * k + 4));
                }
                even = _mm512_add_epi32(even, odd);
                scaled[r] = kind::GROUPS == 1 ? even : _mm512_add_epi32(scaled[r], _mm512_mullo_epi32(even, scale));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            const __m512 by = _mm512_mul_ps(d, _mm512_set1_ps(factor(A[r * KB + i])));
            sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(scaled[r]), by, sum[r]);
        }
        if constexpr (kind::MINS) {
            const __m512 dmin = halves(at + kind::FLOATS + TILE_N * sizeof(ggml_half));
            __m512i mins[4];
            SPECLLAMA_UNROLL
            for (int k = 0; k < 4; k++) {
                mins[k] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(
                    (const __m256i *) (at + kind::SCALES + 8 * TILE_N + k * 32)));
            }
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                __m512i less = _mm512_setzero_si512();
                SPECLLAMA_UNROLL
                for (int k = 0; k < 4; k++) {
                    less = _mm512_dpwssds_epi32(less, _mm512_set1_epi32(given[(r * KB + i) * WORDS + k]), mins[k]);
                }
                const __m512 by = _mm512_mul_ps(dmin, _mm512_set1_ps(factor(A[r * KB + i])));
                sum[r] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(less), by, sum[r]);
            }
        }
    }
    SPECLLAMA_UNROLL
    for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(C + (size_t) r * ldc, sum[r]);
    }
}

template <typename TB, typename TA, int R = ROWS, typename... Rest> void some_rows(int n, Rest... rest) {
    if constexpr (R > 0) {
        if (n == R) {
            rows<TB, TA, R>(rest...);
        } else {
            some_rows<TB, TA, R - 1>(n, rest...);
        }
    }
}

// Multiplies if it can, and returns whether it did; the rows are in params->wdata.
template <typename TB, typename TA>
bool multiply(const ggml_compute_params * params, ggml_tensor * dst) {
    if (dst->ne[1] < tile<TB>::LEAST || dst->ne[1] > tile<TB>::MOST || dst->ne[2] * dst->ne[3] != 1) {
        return false;
    }
    constexpr int WORDS = known<TB, TA>::WORDS;
    const int M = dst->ne[1], N = dst->ne[0], KB = dst->src[0]->ne[0] / (std::is_same_v<TA, block_q8_K> ? QK_K : QK8_0);
    const int ldc = dst->nb[1] / dst->nb[0], blocks = std::max<int>(1, CACHED / (sizeof(TA) * M));
    const TA * A = (const TA *) params->wdata;
    static thread_local std::vector<int32_t> given;
    given.resize((size_t) M * KB * WORDS);
    for (int i = 0; i < M * KB; i++) {
        known<TB, TA>::of(A[i], given.data() + (size_t) i * WORDS);
    }
    parallel_for_ggml(params, N / TILE_N, [&](int begin, int end) {
        for (int from = 0; from < KB; from += blocks) {
            for (int n = begin; n < end; n++) {
                for (int m = 0; m < M; m += ROWS) {
                    some_rows<TB, TA>(std::min(ROWS, M - m), KB, from, std::min(KB, from + blocks), A + (size_t) m * KB,
                                      given.data() + (size_t) m * KB * WORDS,
                                      (const char *) dst->src[0]->data + (size_t) n * KB * get_tile_size<TB>(),
                                      (float *) dst->data + (size_t) m * ldc + n * TILE_N, ldc);
                }
            }
        }
    });
    return true;
}

inline bool multiply(const ggml_compute_params * params, ggml_tensor * dst) {
    switch (dst->src[0]->type) {
        case GGML_TYPE_Q4_0: return multiply<block_q4_0, block_q8_0>(params, dst);
        case GGML_TYPE_Q8_0: return multiply<block_q8_0, block_q8_0>(params, dst);
        case GGML_TYPE_Q4_K: return multiply<block_q4_K, block_q8_K>(params, dst);
        case GGML_TYPE_Q5_K: return multiply<block_q5_K, block_q8_K>(params, dst);
        case GGML_TYPE_Q6_K: return multiply<block_q6_K, block_q8_K>(params, dst);
        default: return false;
    }
}

}  // namespace specllama_tiles
