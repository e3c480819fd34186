// Included by mul_mat.h and neon.cpp: the rows of a batch, and how they are converted and distributed over threads.

// Rows of the batch in all its planes.
inline int64_t nrows(const ggml_tensor * a) { return a->ne[1] * a->ne[2] * a->ne[3]; }

#ifdef __AVX2__
// As ggml's quantize_row_q8_K, which goes from value to value on x86-64; where that has negative scales, all signs are
// changed here, and products are the same.
inline void quantize_q8_K(const float * x, void * to, int64_t n) {
    for (block_q8_K * y = (block_q8_K *) to, *end = y + n / QK_K; y < end; y++, x += QK_K) {
        __m256 eight = _mm256_setzero_ps();
        for (int i = 0; i < QK_K; i += 8) {
            const __m256 magnitudes = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + i));
            eight = _mm256_max_ps(magnitudes, eight);  // ignores NaN
        }
        float most[8];
        _mm256_storeu_ps(most, eight);
        const float largest = *std::max_element(most, most + 8), scale = 127 / largest;
        if (largest == 0) {
            *y = {};
            continue;
        }
        for (int i = 0; i < QK_K; i += 32) {
            const auto rounded = [&](int from) {
                const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i + from), _mm256_set1_ps(scale));
                return _mm256_and_si256(_mm256_cvtps_epi32(scaled), _mm256_set1_epi32(0xff));
            };
            const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(rounded(0), rounded(8)),
                                                      _mm256_packus_epi32(rounded(16), rounded(24)));
            const __m256i values = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256((__m256i *) (y->qs + i), values);
            int64_t sums[4];  // of eight values, plus 128 for each
            _mm256_storeu_si256((__m256i *) sums, _mm256_sad_epu8(_mm256_xor_si256(values, _mm256_set1_epi8((char) 0x80)),
                                                                  _mm256_setzero_si256()));
            y->bsums[i / 16]     = (int16_t) (sums[0] + sums[1] - 16 * 128);
            y->bsums[i / 16 + 1] = (int16_t) (sums[2] + sums[3] - 16 * 128);
        }
        y->d = 1 / scale;
    }
}
#endif

// Converts the batch to the type that the weights are multiplied by (vec_dot_type), each thread a part of every row.
inline void convert(const ggml_compute_params * params, const ggml_tensor * a, ggml_type to) {
    const int64_t n = a->ne[0], size = specllama_ggml.block_size(to), blocks = n / size;
    const size_t  stride = specllama_ggml.row_size(to, n), block = specllama_ggml.row_size(to, size);
    const int64_t from = params->ith * blocks / params->nth, end = (params->ith + 1) * blocks / params->nth;
    if (from == end) {
        return;
    }
    ggml_from_float_t from_float = specllama_ggml.cpu_traits(to)->from_float;
#ifdef __AVX2__
    from_float = to == GGML_TYPE_Q8_K ? quantize_q8_K : from_float;
#endif
    for (int64_t r = 0; r < nrows(a); r++) {
        const char * row = (const char *) a->data + r % a->ne[1] * a->nb[1] + r / a->ne[1] % a->ne[2] * a->nb[2] +
                           r / a->ne[1] / a->ne[2] * a->nb[3];
        from_float((const float *) row + from * size, (char *) params->wdata + r * stride + from * block,
                   (end - from) * size);
    }
}

// Columns in one chunk of a product; there are several chunks per thread.
inline int64_t chunk_columns(const ggml_compute_params * params, int64_t nc) {
    return (nc / (4 * params->nth) + 16) / 16 * 16;
}

// Whether the rows of all planes are the same distance apart.
inline bool has_uniform_rows(const ggml_tensor * a) {
    return a->nb[2] == a->nb[1] * a->ne[1] && a->nb[3] == a->nb[2] * a->ne[2];
}

// Prefetches weights that are read next: the hardware does not cross pages.
inline void prefetch_ahead(const char * weights, size_t size) {
    constexpr size_t AHEAD = 8192;
    for (size_t at = AHEAD; at < AHEAD + size; at += 64) {
        __builtin_prefetch(weights + at, 0, 2);
    }
}

// Memory of this thread for `size` values, kept for the next product.
template <typename T> static T * scratch(size_t size) {
    static thread_local struct buffer {
        void * data = nullptr;
        size_t size = 0;
        ~buffer() { free(data); }
    } kept;
    if (kept.size < size * sizeof(T)) {
        free(kept.data);
        kept.size = (size * sizeof(T) + 63) / 64 * 64;
        kept.data = aligned_alloc(64, kept.size);
    }
    return (T *) kept.data;
}
