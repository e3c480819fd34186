// Included by mul_mat.h: prompts times weights that are packed for AMX, in tiles of 16-bit floats (BF16).
//
// llama.cpp multiplies 8-bit integers there and adds the scaled sum of each block of 32 values, which takes longer than the
// products. BF16 needs no scales in the sums, and its rounding is less than that of rows of 8-bit integers: weights are decoded
// once for all rows.

#if defined(SPECLLAMA_VEC512) && (defined(__clang__) || __GNUC__ >= 11)  // older compilers do not know the instructions
#define SPECLLAMA_AMX __attribute__((target("amx-tile,amx-bf16,avx512bf16")))

constexpr int     TILE_ROWS = 16, TILE_VALUES = 32, TILE_SIZE = 1024;  // of 64 bytes each
constexpr int64_t SQUARE = 32;          // rows and columns that are multiplied at once, in four tiles of sums
constexpr int64_t DECODED = 512;        // values of a column, decoded at once: 32 KB with those of the other columns
constexpr int64_t GROUP_COLUMNS = 128;  // whose sums stay in the cache

inline int64_t padded_rows(int64_t n_rows) { return GGML_PAD(n_rows, SQUARE); }

// The converted rows, in the work buffer.
inline char * tiles_of(const ggml_compute_params * params) {
    return (char *) GGML_PAD((uintptr_t) params->wdata, 64);
}

// Rows as tiles: 32 values of every row, then the next 32.
SPECLLAMA_AMX static void convert_to_tiles(const ggml_compute_params * params, const ggml_tensor * a) {
    const int64_t n_rows = nrows(a), n_padded = padded_rows(n_rows);
    for (int64_t r = params->ith; r < n_padded; r += params->nth) {
        char * to = tiles_of(params) + 64 * r;
        const float * from = (const float *) ((const char *) a->data + r % a->ne[1] * a->nb[1] +
                                              r / a->ne[1] % a->ne[2] * a->nb[2] + r / a->ne[1] / a->ne[2] * a->nb[3]);
        for (int64_t i = 0; i < a->ne[0]; i += TILE_VALUES, to += 64 * n_padded) {
            __m512i values = _mm512_setzero_si512();
            if (r < n_rows) {
                values = (__m512i) _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
            }
            _mm512_store_si512(to, values);
        }
    }
}

// Four values of each of sixteen columns, one per byte, times scales plus minimums: pairs of BF16 for each column.
SPECLLAMA_AMX static void store_pairs(char * to, __m512i bytes, __m512 d, __m512 m) {
    const __m512i low8 = _mm512_set1_epi32(255);
    const __m512i in_turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                             20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i values[4] = {_mm512_and_si512(bytes, low8), _mm512_and_si512(_mm512_srli_epi32(bytes, 8), low8),
                               _mm512_and_si512(_mm512_srli_epi32(bytes, 16), low8), _mm512_srli_epi32(bytes, 24)};
    SPECLLAMA_UNROLL
    for (int i = 0; i < 4; i += 2) {
        const __m512 first  = _mm512_fmadd_ps(_mm512_cvtepi32_ps(values[i]), d, m);
        const __m512 second = _mm512_fmadd_ps(_mm512_cvtepi32_ps(values[i + 1]), d, m);
        const __m512i pairs = _mm512_permutexvar_epi16(in_turn, (__m512i) _mm512_cvtne2ps_pbh(second, first));
        _mm512_store_si512(to + 32 * i, pairs);
    }
}

// Decodes `n` values of sixteen columns from value `from` on: a tile for each 32, `step` bytes apart.
template <typename TYPE>
SPECLLAMA_AMX static void decode_columns(const uint8_t * w, int64_t from, int64_t n, char * to, int64_t step) {
    using format = amx_block<TYPE>;
    const __m512 offset = _mm512_set1_ps(-format::OFFSET);
    for (int64_t i = from; i < from + n; i += TILE_VALUES, to += step) {
        const uint8_t * block = w + i / format::VALUES * format::TILE_BYTES;
        if constexpr (format::VALUES == 32) {
            __m512i values[8];
            format::decode(block, values);
            const __m512 d = amx_scales(block + format::SCALES);
            const __m512 m = format::has_mins ? amx_scales(block + format::SCALES + 2 * AMX_COLUMNS) : _mm512_mul_ps(d, offset);
            for (int j = 0; j < 8; j++) {
                store_pairs(to + 128 * j, values[j], d, m);
            }
        } else {
            constexpr int PARTS = QK_K / format::PART, VECTORS = format::PART / 4;
            const uint8_t * scales = block + format::SCALES, * mins = scales + PARTS * AMX_COLUMNS;
            const uint8_t * after  = mins + (format::has_mins ? PARTS * AMX_COLUMNS : 0);
            const __m512 d_block = amx_scales(after);
            for (int j = 0; j < TILE_VALUES / format::PART; j++) {
                const int part = i % QK_K / format::PART + j;
                __m512i values[VECTORS];
                format::decode(block, part, values);
                const __m128i bytes = _mm_loadu_si128((const __m128i *) (scales + AMX_COLUMNS * part));
                const __m512  d = _mm512_mul_ps(d_block, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
                __m512 m = _mm512_mul_ps(d, offset);
                if (format::has_mins) {  // in pairs: of this part, and of the one before or after
                    const __m512i two = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) (mins + 32 * (part / 2))));
                    const __m512i one = part % 2 ? _mm512_srli_epi32(two, 8) : _mm512_and_si512(two, _mm512_set1_epi32(255));
                    const __m512 dmin = _mm512_sub_ps(_mm512_setzero_ps(), amx_scales(after + 2 * AMX_COLUMNS));
                    m = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(one));
                }
                for (int v = 0; v < VECTORS; v++) {
                    store_pairs(to + 128 * (VECTORS * j + v), values[v], d, m);
                }
            }
        }
    }
}

using decode_fn = void (*)(const uint8_t * w, int64_t from, int64_t n, char * to, int64_t step);

inline decode_fn decode_columns_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0: return decode_columns<block_q8_0>;
        case GGML_TYPE_Q4_0: return decode_columns<block_q4_0>;
        case GGML_TYPE_Q4_1: return decode_columns<block_q4_1>;
        case GGML_TYPE_Q4_K: return decode_columns<block_q4_K>;
        case GGML_TYPE_Q5_K: return decode_columns<block_q5_K>;
        case GGML_TYPE_Q6_K: return decode_columns<block_q6_K>;
        case GGML_TYPE_IQ4_XS: return decode_columns<block_iq4_xs>;
        default: return nullptr;
    }
}

// Adds the products of 32 rows and `n` values of 32 columns to their sums, which are 32 x 32 floats, or sets them.
SPECLLAMA_AMX static void multiply_tiles(const char * rows, int64_t step, const char * w, int64_t n, float * sums, bool first) {
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, 128);
        _tile_loadd(1, sums + 16, 128);
        _tile_loadd(2, sums + 512, 128);
        _tile_loadd(3, sums + 512 + 16, 128);
    }
    for (int64_t i = 0; i < n; i += TILE_VALUES, rows += step, w += 2 * TILE_SIZE) {
        _tile_loadd(4, rows, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + TILE_SIZE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, rows + TILE_SIZE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    _tile_stored(2, sums + 512, 128);
    _tile_stored(3, sums + 512 + 16, 128);
}

// Eight tiles of sixteen rows of 64 bytes; ggml has its own configuration, which is kept for each thread.
class tile_configuration {
  public:
    SPECLLAMA_AMX tile_configuration() {
        alignas(64) uint8_t ours[64] = {1};
        for (int i = 0; i < 8; i++) {
            ours[16 + 2 * i] = 64;
            ours[48 + i]     = TILE_ROWS;
        }
        __asm__ volatile("sttilecfg %0" : "=m"(*(char(*)[64]) before));
        load(ours);
    }
    SPECLLAMA_AMX ~tile_configuration() { load(before); }

  private:
    alignas(64) uint8_t before[64];
    SPECLLAMA_AMX static void load(const uint8_t * from) { __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64]) from)); }
};

// All rows times `nc` columns, a multiple of 32, whose sums are at s.
SPECLLAMA_AMX static void mul_mat_tiles(int64_t n, int64_t nc, float * s, size_t bs, const uint8_t * w, int64_t pitch,
                                        const char * rows, int64_t n_rows, decode_fn decode) {
    const int64_t n_padded = padded_rows(n_rows), step = 64 * n_padded;
    char *  decoded = scratch<char>(SQUARE * DECODED * sizeof(ggml_bf16_t));
    float * sums    = scratch<float>(GROUP_COLUMNS * n_padded);
    for (int64_t x = 0; x < nc; x += GROUP_COLUMNS) {
        const int64_t n_blocks = std::min(GROUP_COLUMNS, nc - x) / SQUARE;
        for (int64_t k = 0; k < n; k += DECODED) {
            const int64_t n_values = std::min(DECODED, n - k);
            for (int64_t b = 0; b < n_blocks; b++) {
                for (int half = 0; half < 2; half++) {
                    decode(w + (x + SQUARE * b + AMX_COLUMNS * half) * pitch, k, n_values, decoded + half * TILE_SIZE,
                           2 * TILE_SIZE);
                }
                for (int64_t r = 0; r < n_padded; r += SQUARE) {
                    multiply_tiles(rows + k / TILE_VALUES * step + 64 * r, step, decoded, n_values,
                                   sums + b * n_padded * SQUARE + r * SQUARE, k == 0);
                }
            }
        }
        for (int64_t r = 0; r < n_rows; r++) {
            for (int64_t b = 0; b < n_blocks; b++) {
                memcpy(s + r * bs + x + SQUARE * b, sums + b * n_padded * SQUARE + r * SQUARE, SQUARE * sizeof(float));
            }
        }
    }
}

static void mul_mat_prompt(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const int64_t n = weights->ne[0], nc = weights->ne[1], pitch = amx_kernel_for(weights).pitch;
    const int64_t size = GGML_PAD(chunk_columns(params, nc), SQUARE);
    convert_to_tiles(params, dst->src[1]);
    if (params->ith == 0) {
        specllama_ggml.chunk_set(params->threadpool, params->nth);
    }
    specllama_ggml.barrier(params->threadpool);
    const tile_configuration configured;
    for (int64_t at = params->ith; at * size < nc; at = specllama_ggml.chunk_add(params->threadpool, 1)) {
        mul_mat_tiles(n, std::min(size, nc - at * size), (float *) dst->data + at * size, dst->nb[1] / sizeof(float),
                      (const uint8_t *) weights->data + at * size * pitch, pitch, tiles_of(params),
                      nrows(dst->src[1]), decode_columns_of(weights->type));
    }
}

// Bytes of the work buffer for this product.
inline size_t prompt_work_size(const ggml_tensor * dst) {
    return padded_rows(nrows(dst->src[1])) * dst->src[0]->ne[0] * sizeof(ggml_bf16_t) + 64;
}

inline bool has_tiles() {  // the operating system has allowed them if llama.cpp packs weights for AMX
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
}

inline bool is_prompt_for_tiles(const ggml_tensor * dst) {
    static const bool possible = has_tiles();
    return possible && nrows(dst->src[1]) >= PROMPT_ROWS && decode_columns_of(dst->src[0]->type) != nullptr;
}
#else
inline bool is_prompt_for_tiles(const ggml_tensor *) { return false; }
inline size_t prompt_work_size(const ggml_tensor *) { return 0; }
static void mul_mat_prompt(const ggml_compute_params *, ggml_tensor *) {}
#endif
