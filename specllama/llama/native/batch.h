// Included by mul_mat.h and neon.cpp: the rows of a batch, and how they are converted and distributed over threads.

// Rows of the batch in all its planes.
inline int64_t nrows(const ggml_tensor * a) { return a->ne[1] * a->ne[2] * a->ne[3]; }

// Converts the batch to the type that the weights are multiplied by (vec_dot_type), each thread a part of every row.
inline void convert(const ggml_compute_params * params, const ggml_tensor * a, ggml_type to) {
    const int64_t n = a->ne[0], size = specllama_ggml.block_size(to), blocks = n / size;
    const size_t  stride = specllama_ggml.row_size(to, n), block = specllama_ggml.row_size(to, size);
    const int64_t from = params->ith * blocks / params->nth, end = (params->ith + 1) * blocks / params->nth;
    if (from == end) {
        return;
    }
    for (int64_t r = 0; r < nrows(a); r++) {
        const char * row = (const char *) a->data + r % a->ne[1] * a->nb[1] + r / a->ne[1] % a->ne[2] * a->nb[2] +
                           r / a->ne[1] / a->ne[2] * a->nb[3];
        specllama_ggml.cpu_traits(to)->from_float((const float *) row + from * size,
                                                  (char *) params->wdata + r * stride + from * block,
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
