// Included by mul_mat.h and neon.cpp: types without a kernel. Each number is ggml's product of two rows (vec_dot), and so
// the same in any batch; a column of weights stays in the cache for all rows.

inline bool has_vec_dot(const ggml_tensor * w, const ggml_tensor * a) {
    const ggml_type_traits_cpu * traits = specllama_ggml.cpu_traits(w->type);
    return traits->vec_dot != nullptr && w->nb[1] == specllama_ggml.row_size(w->type, w->ne[0]) &&
           (traits->vec_dot_type == a->type
                ? has_uniform_rows(a)
                : specllama_ggml.cpu_traits(traits->vec_dot_type)->from_float != nullptr);
}

static void mul_mat_vec_dot(const ggml_compute_params * params, ggml_tensor * dst, const char * rows, size_t stride) {
    const ggml_tensor * w   = dst->src[0];
    const ggml_vec_dot_t dot = specllama_ggml.cpu_traits(w->type)->vec_dot;
    const int64_t n = w->ne[0], nc = w->ne[1], n_rows = nrows(dst->src[1]), size = chunk_columns(params, nc);
    for (int64_t chunk = params->ith; chunk * size < nc; chunk = specllama_ggml.chunk_add(params->threadpool, 1)) {
        for (int64_t x = chunk * size; x < std::min(nc, (chunk + 1) * size); x++) {
            const char * column = (const char *) w->data + x * w->nb[1];
            prefetch_ahead(column, w->nb[1]);
            for (int64_t r = 0; r < n_rows; r++) {
                dot((int) n, (float *) ((char *) dst->data + r * dst->nb[1]) + x, 0, column, 0, rows + r * stride, 0, 1);
            }
        }
    }
}
