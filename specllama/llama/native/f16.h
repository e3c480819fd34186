// Included by mul_mat.h: weights of F16 and BF16.

template <typename V> static typename V::floats widen(const ggml_half * from) { return V::load_f16(from); }
template <typename V> static typename V::floats widen(const ggml_bf16_t * from) { return V::load_bf16(from); }

template <typename T>  // ggml_half or ggml_bf16_t
static const float * prepare_f16(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
    float * row_floats = scratch<float>(n_rows * n);
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n; i += widest::N_FLOATS) {
            widest::store_ps(row_floats + r * n + i, widen<widest>((const T *) (rows + r * stride) + i));
        }
    }
    return row_floats;
}

// Of as many columns before the next values, so that this part of the rows stays in the L1 cache.
constexpr int64_t VALUES_AT_ONCE = 1024, COLUMNS_AT_ONCE = 16;

inline int64_t values_at_once(int64_t n, int64_t nc) { return nc <= COLUMNS_AT_ONCE ? VALUES_AT_ONCE : n; }

template <typename V, typename T, int R, int C>  // C columns at once
static int64_t mul_mat_f16(int64_t n, int64_t nc, float * s, size_t bs, const char * weights, size_t pitch,
                           const float * row_floats) {
    typename V::floats acc_so_far[COLUMNS_AT_ONCE / C][R][C];
    const int64_t size = values_at_once(n, nc);
    for (int64_t at = 0; at < n; at += size)
    for (int64_t x = 0; x + C <= nc; x += C) {
        const char * w = weights + x * pitch;
        const int64_t end = std::min(n, at + size);
        typename V::floats acc[R][C];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                acc[r][c] = at == 0 ? V::zero_ps() : acc_so_far[x / C][r][c];
            }
        }
        for (int64_t i = at; i < end; i += V::N_FLOATS) {
            typename V::floats a[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                typename V::floats loaded = V::load_ps(row_floats + r * n + i);
                __asm__("" : "+v"(loaded));  // once, not in each multiplication
                a[r] = loaded;
            }
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                const T * from = (const T *) (w + c * pitch) + i;
                const typename V::floats values = widen<V>(from);
                if (V::N_FLOATS == 16) {  // with AVX2 it takes longer than it saves
                    prefetch<specllama::MAX_ROWS>((const char *) from + C * pitch);
                }
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    acc[r][c] = V::accumulate(acc[r][c], values, a[r]);
                }
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                if (end < n) {
                    acc_so_far[x / C][r][c] = acc[r][c];
                } else {
                    s[r * bs + x + c] = V::hsum(acc[r][c]);
                }
            }
        }
    }
    return nc / C * C;
}

template <typename T> struct f16_kernel {
    static constexpr int MAX_ROWS = widest::N_FLOATS == 16 ? 6 : 3;  // that fit in registers
    static size_t prepared_bytes(int64_t n) { return n * sizeof(float); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return prepare_f16<T>(n, rows, stride, n_rows);
    }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char *, size_t,
                        const void * prepared) {
        const float * row_floats = (const float *) prepared;
        int64_t x = 0;
        if (R == 1 || (R == 2 && widest::N_FLOATS == 8)) {
            x = mul_mat_f16<widest, T, R, 6>(n, nc, s, bs, w, pitch, row_floats);
        }
        if (R > 1) {
            x += mul_mat_f16<widest, T, R, 4>(n, nc - x, s + x, bs, w + x * pitch, pitch, row_floats);
        }
        mul_mat_f16<widest, T, R, 1>(n, nc - x, s + x, bs, w + x * pitch, pitch, row_floats);
    }
};
template <> struct kernel<ggml_half> : f16_kernel<ggml_half> {};
template <> struct kernel<ggml_bf16_t> : f16_kernel<ggml_bf16_t> {};

#if defined(__AVX512BW__) && (defined(__clang__) || __GNUC__ >= 10)  // older compilers do not know the instruction
// BF16 on processors with AVX512_BF16, which multiply pairs of values. Their sums are rounded differently than those of
// floats.
struct bf16_pairs {};

inline bool has_bf16_pairs() { return __builtin_cpu_supports("avx512bf16"); }

#define SPECLLAMA_BF16 __attribute__((target("avx512bf16")))

template <int R, int C>  // C columns at once
SPECLLAMA_BF16 static int64_t mul_mat_bf16_pairs(int64_t n, int64_t nc, float * s, size_t bs, const char * weights,
                                                 size_t pitch, const char * rows, size_t stride) {
    __m512 acc_so_far[COLUMNS_AT_ONCE / C][R][C];
    const int64_t size = values_at_once(n, nc);
    for (int64_t at = 0; at < n; at += size)
    for (int64_t x = 0; x + C <= nc; x += C) {
        const char * w = weights + x * pitch;
        const int64_t end = std::min(n, at + size);
        __m512 acc[R][C];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                acc[r][c] = at == 0 ? _mm512_setzero_ps() : acc_so_far[x / C][r][c];
            }
        }
        const auto multiply = [&](int64_t i, auto load) __attribute__((always_inline)) SPECLLAMA_BF16 {
            __m512bh values[C];
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                const char * from = w + c * pitch + 2 * i;
                values[c] = (__m512bh) load(from);
                prefetch<specllama::MAX_ROWS>(from + C * pitch);
            }
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const __m512bh a = (__m512bh) load(rows + r * stride + 2 * i);
                SPECLLAMA_UNROLL
                for (int c = 0; c < C; c++) {
                    acc[r][c] = _mm512_dpbf16_ps(acc[r][c], values[c], a);
                }
            }
        };
        int64_t i = at;
        for (; i + 32 <= end; i += 32) {
            multiply(i, [](const char * from) __attribute__((always_inline)) { return _mm512_loadu_si512(from); });
        }
        if (i < end) {  // the last 16
            multiply(i, [](const char * from) __attribute__((always_inline)) {
                return _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) from));
            });
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            SPECLLAMA_UNROLL
            for (int c = 0; c < C; c++) {
                if (end < n) {
                    acc_so_far[x / C][r][c] = acc[r][c];
                } else {
                    s[r * bs + x + c] = _mm512_reduce_add_ps(acc[r][c]);
                }
            }
        }
    }
    return nc / C * C;
}

template <> struct kernel<bf16_pairs> {
    static constexpr int MAX_ROWS = 6;
    static size_t prepared_bytes(int64_t) { return 0; }
    static const void * prepare(int64_t, const char *, size_t, int64_t) { return nullptr; }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                        size_t stride, const void *) {
        const int64_t x = mul_mat_bf16_pairs<R, R < 4 ? 6 : 4>(n, nc, s, bs, w, pitch, rows, stride);
        mul_mat_bf16_pairs<R, 1>(n, nc - x, s + x, bs, w + x * pitch, pitch, rows, stride);
    }
};
#else
using bf16_pairs = ggml_bf16_t;
inline bool has_bf16_pairs() { return false; }
#endif
