// Included by mul_mat.h: weights as llama.cpp packs them for AMX, in groups of sixteen columns, multiplied by up to eight rows
// at once with VNNI. Each lane holds the sum of one column.
//
// Integer sums are exact, and floating-point numbers are added in the order of llama.cpp's AMX code (amx/mmq.cpp), block after
// block: the results are the same, so that llama.cpp computes the products for which it is faster.

// The kernel for weights that are packed for AMX, null if there is none, and the bytes of a column.
struct amx_kernel {
    mul_mat_fn function;
    int64_t    pitch;
};

#ifdef SPECLLAMA_VEC512

constexpr int AMX_COLUMNS = 16, AMX_AHEAD = 16384;  // bytes that are prefetched: the hardware does not cross pages

// For each type: `decode` gets the values of a part of PART rows of weights, four of each column in a vector, plus OFFSET, so
// that they are unsigned; tile_bytes is the size of a block of sixteen columns.
template <typename BLOCK> struct amx_block;

inline __m512i low_nibbles(__m512i bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
inline __m512i high_nibbles(__m512i bytes) { return low_nibbles(_mm512_srli_epi16(bytes, 4)); }

// Vectors 2 x i and 2 x i + 1 are the low and the high halves of the bytes of vector i.
template <int N> static void decode_nibbles(const uint8_t * from, __m512i * to) {
    SPECLLAMA_UNROLL
    for (int i = 0; i < N; i++) {
        const __m512i bytes = _mm512_loadu_si512(from + 64 * i);
        to[2 * i]     = low_nibbles(bytes);
        to[2 * i + 1] = high_nibbles(bytes);
    }
}

inline __m512 amx_scales(const uint8_t * from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from)); }

template <> struct amx_block<block_q8_0> {  // values, scales, and sums that are not needed here
    static constexpr bool has_mins = false;
    static constexpr int  VALUES = 32, OFFSET = 128, SCALES = 32 * AMX_COLUMNS, TILE_BYTES = (34 + 4) * AMX_COLUMNS;
    using row = block_q8_0;
    static void decode(const uint8_t * from, __m512i * to) {
        SPECLLAMA_UNROLL
        for (int i = 0; i < 8; i++) {
            to[i] = _mm512_xor_si512(_mm512_loadu_si512(from + 64 * i), _mm512_set1_epi8((char) 128));
        }
    }
};

template <> struct amx_block<block_q4_0> {
    static constexpr bool has_mins = false;
    static constexpr int  VALUES = 32, OFFSET = 8, SCALES = 16 * AMX_COLUMNS, TILE_BYTES = 18 * AMX_COLUMNS;
    using row = block_q8_0;
    static void decode(const uint8_t * from, __m512i * to) { decode_nibbles<4>(from, to); }
};

template <> struct amx_block<block_q4_1> {  // the minimums come after the scales
    static constexpr bool has_mins = true;
    static constexpr int  VALUES = 32, OFFSET = 0, SCALES = 16 * AMX_COLUMNS, TILE_BYTES = 20 * AMX_COLUMNS;
    using row = block_q8_1;
    static void decode(const uint8_t * from, __m512i * to) { decode_nibbles<4>(from, to); }
};

struct amx_row_32 {  // a block of a row
    float   d, sum;
    int32_t init;  // of the sums of products: -OFFSET x the sum of its values
};

template <typename BLOCK>
static const amx_row_32 * prepare_amx_32(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    amx_row_32 * to = scratch<amx_row_32>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const auto * a = (const typename amx_block<BLOCK>::row *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            int32_t sum = 0;
            for (int i = 0; i < 32; i++) {
                sum += a[b].qs[i];
            }
            to[r * nb + b] = {scale_of(a[b]), sum_of(a[b]), -amx_block<BLOCK>::OFFSET * sum};
        }
    }
    return to;
}

template <int N> static __m512i dot_amx(__m512i sum, const __m512i * w, const int8_t * row) {
    SPECLLAMA_UNROLL
    for (int i = 0; i < N; i++) {
        int32_t four;
        memcpy(&four, row + 4 * i, sizeof(four));
        sum = _mm512_dpbusd_epi32(sum, w[i], _mm512_set1_epi32(four));
    }
    return sum;
}

template <typename BLOCK, int R>
static void mul_mat_amx_32(int64_t n, int64_t nc, float * s, size_t bs, const uint8_t * w, const char * rows, size_t stride,
                           const amx_row_32 * row_blocks) {
    using format = amx_block<BLOCK>;
    const int64_t nb = n / 32;
    for (int64_t x = 0; x < nc; x += AMX_COLUMNS) {
        __m512 acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = _mm512_setzero_ps();
        }
        for (int64_t b = 0; b < nb; b++, w += format::TILE_BYTES) {
            __m512i values[8];
            prefetch_bytes<1>(w + AMX_AHEAD, format::TILE_BYTES);
            format::decode(w, values);
            const __m512 d = amx_scales(w + format::SCALES);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const amx_row_32 & a  = row_blocks[r * nb + b];
                const int8_t *     qs = ((const typename format::row *) (rows + r * stride))[b].qs;
                const __m512i sum = dot_amx<8>(_mm512_set1_epi32(a.init), values, qs);
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, _mm512_set1_ps(a.d)), acc[r]);
                if (format::has_mins) {
                    acc[r] = _mm512_fmadd_ps(amx_scales(w + format::SCALES + 2 * AMX_COLUMNS), _mm512_set1_ps(a.sum), acc[r]);
                }
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            _mm512_storeu_ps(s + r * bs + x, acc[r]);
        }
    }
}

// Blocks of 256: the values of all parts, a byte for each column's scale of each part, minimums in pairs, and the scales of
// the whole block.
constexpr int AMX_NIBBLES = QK_K / 2 * AMX_COLUMNS;

template <> struct amx_block<block_q4_K> {
    static constexpr bool has_mins = true;
    static constexpr int  VALUES = QK_K, OFFSET = 0, PART = 32, SCALES = AMX_NIBBLES, TILE_BYTES = (144 + 4) * AMX_COLUMNS;
    static void decode(const uint8_t * from, int part, __m512i * to) { decode_nibbles<4>(from + 256 * part, to); }
};

template <> struct amx_block<block_q5_K> {
    static constexpr bool has_mins = true;
    static constexpr int  VALUES = QK_K, OFFSET = 0, PART = 32, SCALES = AMX_NIBBLES + QK_K / 8 * AMX_COLUMNS;
    static constexpr int  TILE_BYTES = (176 + 4) * AMX_COLUMNS;
    static void decode(const uint8_t * from, int part, __m512i * to) {
        decode_nibbles<4>(from + 256 * part, to);
        const __m512i fifth = _mm512_loadu_si512(from + AMX_NIBBLES + 64 * part);  // bit i of each byte: of vector i
        SPECLLAMA_UNROLL
        for (int i = 0; i < 8; i++) {
            const __m512i moved = i < 4 ? _mm512_slli_epi16(fifth, 4 - i) : _mm512_srli_epi16(fifth, i - 4);
            to[i] = _mm512_or_si512(to[i], _mm512_and_si512(moved, _mm512_set1_epi8(16)));
        }
    }
};

template <> struct amx_block<block_q6_K> {
    static constexpr bool has_mins = false;
    static constexpr int  VALUES = QK_K, OFFSET = 32, PART = 16, SCALES = AMX_NIBBLES + QK_K / 4 * AMX_COLUMNS;
    static constexpr int  TILE_BYTES = 210 * AMX_COLUMNS;
    static void decode(const uint8_t * from, int part, __m512i * to) {
        decode_nibbles<2>(from + 128 * part, to);
        const __m512i high = _mm512_loadu_si512(from + AMX_NIBBLES + 64 * part);  // two bits for each of four vectors
        SPECLLAMA_UNROLL
        for (int i = 0; i < 4; i++) {
            const __m512i moved = i < 2 ? _mm512_slli_epi16(high, 4 - 2 * i) : _mm512_srli_epi16(high, 2 * i - 4);
            to[i] = _mm512_or_si512(to[i], _mm512_and_si512(moved, _mm512_set1_epi8(48)));
        }
    }
};

template <> struct amx_block<block_iq4_xs> {
    static constexpr bool has_mins = false;
    static constexpr int  VALUES = QK_K, OFFSET = 128, PART = 32, SCALES = AMX_NIBBLES, TILE_BYTES = (136 + 2) * AMX_COLUMNS;
    static void decode(const uint8_t * from, int part, __m512i * to) {
        decode_nibbles<4>(from + 256 * part, to);
        const __m128i table = _mm_add_epi8(iq4_values(), _mm_set1_epi8((char) OFFSET));
        SPECLLAMA_UNROLL
        for (int i = 0; i < 8; i++) {
            to[i] = vec512::lookup(table, to[i]);
        }
    }
};

struct amx_row_256 {  // a block of a row
    int32_t init[QK_K / 16];  // of the sums of products of each part: -OFFSET x the sum of its values
    int16_t sums[QK_K / 32];
    float   d;
};

template <typename BLOCK>
static const amx_row_256 * prepare_amx_256(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    using format = amx_block<BLOCK>;
    amx_row_256 * row_blocks = scratch<amx_row_256>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_K * a = (const block_q8_K *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            amx_row_256 & to = row_blocks[r * nb + b];
            to.d = a[b].d;
            for (int i = 0; i < QK_K / 32; i++) {
                to.sums[i] = (int16_t) (a[b].bsums[2 * i] + a[b].bsums[2 * i + 1]);
            }
            for (int i = 0; i < QK_K / format::PART; i++) {
                to.init[i] = -format::OFFSET * (format::PART == 16 ? a[b].bsums[i] : to.sums[i]);
            }
        }
    }
    return row_blocks;
}

template <typename BLOCK, int R>
static void mul_mat_amx_256(int64_t n, int64_t nc, float * s, size_t bs, const uint8_t * w, const char * rows, size_t stride,
                            const amx_row_256 * row_blocks) {
    using format = amx_block<BLOCK>;
    constexpr int PARTS = QK_K / format::PART, VECTORS = format::PART / 4;
    constexpr int MINS  = format::SCALES + PARTS * AMX_COLUMNS, PREFETCHED = (format::TILE_BYTES / PARTS + 63) / 64 * 64;
    const int64_t nb = n / QK_K;
    for (int64_t x = 0; x < nc; x += AMX_COLUMNS) {
        __m512 acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = _mm512_setzero_ps();
        }
        for (int64_t b = 0; b < nb; b++, w += format::TILE_BYTES) {
            __m512i sum[R];
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                sum[r] = _mm512_setzero_si512();
            }
            for (int part = 0; part < PARTS; part++) {
                __m512i values[VECTORS];
                prefetch_bytes<1>(w + AMX_AHEAD + part * PREFETCHED, PREFETCHED);
                format::decode(w, part, values);
                const __m128i bytes = _mm_loadu_si128((const __m128i *) (w + format::SCALES + AMX_COLUMNS * part));
                const __m512i scale = _mm512_cvtepi8_epi32(bytes);
                SPECLLAMA_UNROLL
                for (int r = 0; r < R; r++) {
                    const int8_t * qs = ((const block_q8_K *) (rows + r * stride))[b].qs + format::PART * part;
                    const __m512i init = _mm512_set1_epi32(row_blocks[r * nb + b].init[part]);
                    const __m512i products = dot_amx<VECTORS>(init, values, qs);
                    sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(products, scale));
                }
            }
            const uint8_t * after = w + MINS + (format::has_mins ? PARTS * AMX_COLUMNS : 0);
            const __m512 d = amx_scales(after), dmin = format::has_mins ? amx_scales(after + 2 * AMX_COLUMNS) : d;
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const amx_row_256 & a = row_blocks[r * nb + b];
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), _mm512_mul_ps(_mm512_set1_ps(a.d), d), acc[r]);
                if (format::has_mins) {
                    __m512i mins = _mm512_setzero_si512();
                    SPECLLAMA_UNROLL
                    for (int i = 0; i < 4; i++) {
                        int32_t two;
                        memcpy(&two, a.sums + 2 * i, sizeof(two));
                        const __m256i pairs = _mm256_loadu_si256((const __m256i *) (w + MINS + 2 * AMX_COLUMNS * i));
                        mins = _mm512_dpwssd_epi32(mins, _mm512_set1_epi32(two), _mm512_cvtepi8_epi16(pairs));
                    }
                    acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(mins), _mm512_mul_ps(_mm512_set1_ps(-a.d), dmin), acc[r]);
                }
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            _mm512_storeu_ps(s + r * bs + x, acc[r]);
        }
    }
}

template <typename BLOCK> struct amx_packed {};

template <typename BLOCK> struct kernel<amx_packed<BLOCK>> {
    using format = amx_block<BLOCK>;
    static constexpr int MAX_ROWS = specllama::MAX_ROWS;
    static size_t prepared_bytes(int64_t n) {
        return format::VALUES == 32 ? n / 32 * sizeof(amx_row_32) : n / QK_K * sizeof(amx_row_256);
    }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        if constexpr (format::VALUES == 32) {
            return prepare_amx_32<BLOCK>(n / 32, rows, stride, n_rows);
        } else {
            return prepare_amx_256<BLOCK>(n / QK_K, rows, stride, n_rows);
        }
    }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t, const char * rows, size_t stride,
                        const void * prepared) {
        if constexpr (format::VALUES == 32) {
            mul_mat_amx_32<BLOCK, R>(n, nc, s, bs, (const uint8_t *) w, rows, stride, (const amx_row_32 *) prepared);
        } else {
            mul_mat_amx_256<BLOCK, R>(n, nc, s, bs, (const uint8_t *) w, rows, stride, (const amx_row_256 *) prepared);
        }
    }
};

template <typename BLOCK> static amx_kernel amx_kernel_of(int64_t n) {
    using format = amx_block<BLOCK>;
    return {mul_mat_tiled<amx_packed<BLOCK>>, n / format::VALUES * format::TILE_BYTES / AMX_COLUMNS};
}

inline amx_kernel amx_kernel_for(const ggml_tensor * weights) {
    const int64_t n = weights->ne[0];
    switch (weights->type) {
        case GGML_TYPE_Q8_0: return amx_kernel_of<block_q8_0>(n);
        case GGML_TYPE_Q4_0: return amx_kernel_of<block_q4_0>(n);
        case GGML_TYPE_Q4_1: return amx_kernel_of<block_q4_1>(n);
        case GGML_TYPE_Q4_K: return amx_kernel_of<block_q4_K>(n);
        case GGML_TYPE_Q5_K: return amx_kernel_of<block_q5_K>(n);
        case GGML_TYPE_Q6_K: return amx_kernel_of<block_q6_K>(n);
        case GGML_TYPE_IQ4_XS: return amx_kernel_of<block_iq4_xs>(n);
        default: return {nullptr, 0};
    }
}

// Whether these kernels are faster than llama.cpp's own AMX code.
inline bool has_fast_amx_kernel(const ggml_tensor * weights, int64_t n_rows) {
    switch (weights->type) {
        case GGML_TYPE_Q8_0: return n_rows > 1;
        case GGML_TYPE_Q5_K: return n_rows <= 12;
        case GGML_TYPE_IQ4_XS: return n_rows <= 32;
        default: return amx_kernel_for(weights).function != nullptr;
    }
}

#else
inline amx_kernel amx_kernel_for(const ggml_tensor *) { return {nullptr, 0}; }
inline bool has_fast_amx_kernel(const ggml_tensor *, int64_t) { return false; }
#endif
