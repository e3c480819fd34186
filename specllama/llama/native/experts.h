// Included by mul_mat.h and neon.cpp: mixtures of experts (MUL_MAT_ID). The rows of a batch are sorted by expert, and all
// rows of an expert are multiplied by its weights together.

// Multiplies n_rows rows of `n` values, `stride` bytes apart, by `nc` columns of weights, `pitch` bytes apart.
using mul_mat_fn = void (*)(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                            size_t stride, int64_t n_rows);

class expert_rows {
  public:
    // The lists are in the work buffer, after the `used` bytes of converted rows.
    expert_rows(const ggml_compute_params * with, ggml_tensor * to, size_t used)
        : params(with), dst(to), n(to->src[0]->ne[2]), first((int32_t *) ((char *) with->wdata + GGML_PAD(used, 64))),
          active(first + n + 1), n_active(active + n), rows_by_expert(n_active + 1) {}

    void sort() const {  // by one thread
        const ggml_tensor * ids = dst->src[2];
        std::fill_n(first, n + 1, 0);
        for_each_row([&](int32_t expert, int32_t) { first[expert + 1]++; });
        *n_active = 0;
        for (int32_t expert = 0; expert < n; expert++) {
            if (first[expert + 1] > 0) {
                active[(*n_active)++] = expert;
            }
            first[expert + 1] += first[expert];
        }
        for_each_row([&](int32_t expert, int32_t row) { rows_by_expert[first[expert]++] = row; });
        // first[] has moved to the end of each list
        for (int64_t expert = n; expert > 0; expert--) {
            first[expert] = first[expert - 1];
        }
        first[0] = 0;
    }

    // one, several: the kernels for one row and for more, null for ggml's vec_dot.
    void mul_mat(const char * rows, size_t stride, mul_mat_fn one, mul_mat_fn several) const {
        const int64_t nc = dst->src[0]->ne[1], n_chunks = (4 * params->nth + *n_active - 1) / std::max(1, *n_active);
        const int64_t size = GGML_PAD((nc + n_chunks - 1) / n_chunks, 16), parts = (nc + size - 1) / size;
        for (int64_t at = params->ith; at < parts * *n_active; at = specllama_ggml.chunk_add(params->threadpool, 1)) {
            const int32_t expert = active[at / parts];
            const int64_t from = at % parts * size, count = first[expert + 1] - first[expert];
            const mul_mat_fn kernel = count == 1 ? one : several;
            for (int64_t done = 0; done < count; done += MAX_GATHERED_ROWS) {
                const int32_t * some = rows_by_expert + first[expert] + done;
                mul_mat_chunk(expert, from, std::min(size, nc - from), some, std::min(MAX_GATHERED_ROWS, count - done), rows,
                              stride, kernel);
            }
        }
    }

  private:
    static constexpr int64_t MAX_GATHERED_ROWS = 64;  // rows whose results stay in the cache

    const ggml_compute_params * params;
    ggml_tensor *               dst;
    int64_t                     n;
    int32_t * first;              // of each expert's rows in rows_by_expert, and the end of the last expert's
    int32_t * active, * n_active;  // experts that have rows
    int32_t * rows_by_expert;      // row = token x slots + slot

    template <typename F> void for_each_row(F call) const {
        const ggml_tensor * ids = dst->src[2];
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
                const int32_t id = *(const int32_t *) ((const char *) ids->data + token * ids->nb[1] + slot * ids->nb[0]);
                if (id >= 0 && id < n) {
                    call(id, (int32_t) (token * ids->ne[0] + slot));
                }
            }
        }
    }
    const char * row_data(int32_t row, const char * rows, size_t stride) const {
        const int64_t slots = dst->src[2]->ne[0], row_slots = dst->src[1]->ne[1];
        return rows + (row / slots * row_slots + row % slots % row_slots) * stride;
    }
    float * result_data(int32_t row) const {
        const int64_t slots = dst->src[2]->ne[0];
        return (float *) ((char *) dst->data + row % slots * dst->nb[1] + row / slots * dst->nb[2]);
    }

    // `nc` columns from `from` on of an expert's weights, times `count` of its rows.
    void mul_mat_chunk(int32_t expert, int64_t from, int64_t nc, const int32_t * some, int64_t count, const char * rows,
                       size_t stride, mul_mat_fn kernel) const {
        const ggml_tensor * w = dst->src[0];
        const char * weights = (const char *) w->data + expert * w->nb[2] + from * w->nb[1];
        if (kernel == nullptr) {
            const ggml_vec_dot_t dot = specllama_ggml.cpu_traits(w->type)->vec_dot;
            for (int64_t x = 0; x < nc; x++) {
                const char * column = weights + x * w->nb[1];
                prefetch_ahead(column, w->nb[1]);
                for (int64_t r = 0; r < count; r++) {
                    dot((int) w->ne[0], result_data(some[r]) + from + x, 0, column, 0, row_data(some[r], rows, stride), 0, 1);
                }
            }
        } else if (count == 1) {
            kernel(w->ne[0], nc, result_data(*some) + from, 0, weights, w->nb[1], row_data(*some, rows, stride), stride, 1);
        } else {
            struct row_byte { char value; };
            struct result { float value; };
            char *  gathered = (char *) scratch<row_byte>(count * stride);
            float * results  = (float *) scratch<result>(count * nc);
            for (int64_t r = 0; r < count; r++) {
                memcpy(gathered + r * stride, row_data(some[r], rows, stride), stride);
            }
            kernel(w->ne[0], nc, results, nc, weights, w->nb[1], gathered, stride, count);
            for (int64_t r = 0; r < count; r++) {
                memcpy(result_data(some[r]) + from, results + r * nc, nc * sizeof(float));
            }
        }
    }
};
