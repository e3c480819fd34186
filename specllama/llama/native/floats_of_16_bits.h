// Included by multiply.h: weights of F16 and BF16.

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

template <typename T> struct kernel_of_floats {
    static constexpr int MOST = widest::MOST_F16;
    static size_t per_row(int64_t n) { return n * sizeof(float); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return floats_of_16_bits<T>(n, rows, stride, n_rows);
    }
    template <int R>
    static void times(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                      const void * prepared) {
        const float * of = (const float *) prepared;
        const int64_t x = rows_16_bits<widest, T, R, R == 1 ? 6 : 4>(n, nc, s, bs, w, pitch, of);
        rows_16_bits<widest, T, R, 1>(n, nc - x, s + x, bs, w + x * pitch, pitch, of);
    }
};
template <> struct kernel<ggml_half> : kernel_of_floats<ggml_half> {};
template <> struct kernel<ggml_bf16_t> : kernel_of_floats<ggml_bf16_t> {};

#if defined(__AVX512BW__) && (defined(__clang__) || __GNUC__ >= 10)  // earlier ones do not know the instruction
// BF16 on processors that multiply its pairs (AVX512_BF16), whose sums are rounded otherwise than those of floats.
struct bf16_pairs {};

inline bool has_bf16_pairs() { return __builtin_cpu_supports("avx512bf16"); }

#define SPECLLAMA_BF16 __attribute__((target("avx512bf16")))

template <int R, int C>  // C columns at once
SPECLLAMA_BF16 static int64_t rows_bf16(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                                        const char * rows, size_t stride) {
    int64_t x = 0;
    for (; x + C <= nc; x += C) {
        const char * w = weights + x * pitch;
        __m512 acc[R][C];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                acc[r][c] = _mm512_setzero_ps();
            }
        }
        const auto more = [&](int64_t i, auto load) __attribute__((always_inline)) SPECLLAMA_BF16 {
            __m512bh numbers[C];
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                const char * from = w + c * pitch + 2 * i;
                numbers[c] = (__m512bh) load(from);
                if (R < 4) {
                    prefetch<R>(from + C * pitch);
                }
            }
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const __m512bh a = (__m512bh) load(rows + r * stride + 2 * i);
                SPECLLAMA_UNROLL
                for (int c = 0; c < C; c++) {
                    acc[r][c] = _mm512_dpbf16_ps(acc[r][c], numbers[c], a);
                }
            }
        };
        int64_t i = 0;
        for (; i + 32 <= n; i += 32) {
            more(i, [](const char * from) __attribute__((always_inline)) { return _mm512_loadu_si512(from); });
        }
        if (i < n) {  // the last 16
            more(i, [](const char * from) __attribute__((always_inline)) {
                return _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) from));
            });
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                s[r * bs + x + c] = _mm512_reduce_add_ps(acc[r][c]);
            }
        }
    }
    return x;
}

template <> struct kernel<bf16_pairs> {
    static constexpr int MOST = 6;
    static size_t per_row(int64_t) { return 0; }
    static const void * prepare(int64_t, const char *, size_t, int64_t) { return nullptr; }
    template <int R>
    static void times(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                      size_t stride, const void *) {
        const int64_t x = rows_bf16<R, R < 4 ? 6 : 4>(n, nc, s, bs, w, pitch, rows, stride);
        rows_bf16<R, 1>(n, nc - x, s + x, bs, w + x * pitch, pitch, rows, stride);
    }
};
#else
using bf16_pairs = ggml_bf16_t;
inline bool has_bf16_pairs() { return false; }
#endif
