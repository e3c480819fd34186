// Included by multiply.h and dots.cpp: mixture of experts (MUL_MAT_ID). The rows of a batch are sorted by the expert that
// they are routed to, and each expert's weights are multiplied by its rows together.

// n_rows of `n` values, `stride` bytes apart, times `nc` columns of weights, `pitch` bytes apart.
using product = void (*)(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                         size_t stride, int64_t n_rows);

class experts {
  public:
    // The lists are kept in the work buffer, behind the `used` bytes of converted rows.
    experts(const ggml_compute_params * with, ggml_tensor * to, size_t used)
        : params(with), dst(to), n(to->src[0]->ne[2]), first((int32_t *) ((char *) with->wdata + GGML_PAD(used, 64))),
          active(first + n + 1), n_active(active + n), order(n_active + 1) {}

    void sort() const {  // by one thread
        const ggml_tensor * ids = dst->src[2];
        std::fill_n(first, n + 1, 0);
        each([&](int32_t expert, int32_t) { first[expert + 1]++; });
        *n_active = 0;
        for (int32_t expert = 0; expert < n; expert++) {
            if (first[expert + 1] > 0) {
                active[(*n_active)++] = expert;
            }
            first[expert + 1] += first[expert];
        }
        each([&](int32_t expert, int32_t row) { order[first[expert]++] = row; });  // moves each list's begin to its end
        for (int64_t expert = n; expert > 0; expert--) {
            first[expert] = first[expert - 1];
        }
        first[0] = 0;
    }

    // `one` and `several`: the loops for one row and for more, null where there is none.
    void multiply(const char * rows, size_t stride, product one, product several) const {
        const int64_t nc = dst->src[0]->ne[1], wanted = (4 * params->nth + *n_active - 1) / std::max(1, *n_active);
        const int64_t size = GGML_PAD((nc + wanted - 1) / wanted, 16), parts = (nc + size - 1) / size;
        for (int64_t at = params->ith; at < parts * *n_active; at = specllama_ggml.chunk_add(params->threadpool, 1)) {
            const int32_t expert = active[at / parts];
            const int64_t from = at % parts * size, count = first[expert + 1] - first[expert];
            const product times = count == 1 ? one : several;
            for (int64_t done = 0; done < count; done += TOGETHER) {
                const int32_t * some = order + first[expert] + done;
                part(expert, from, std::min(size, nc - from), some, std::min(TOGETHER, count - done), rows, stride, times);
            }
        }
    }

  private:
    static constexpr int64_t TOGETHER = 64;  // rows whose results stay in the cache

    const ggml_compute_params * params;
    ggml_tensor *               dst;
    int64_t                     n;
    int32_t * first;                      // where each expert's rows begin in `order`, and where the last one's end
    int32_t * active, * n_active, * order;  // experts that have rows; rows, counted over tokens and their slots

    template <typename F> void each(F call) const {
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
    const char * row_of(int32_t at, const char * rows, size_t stride) const {
        const int64_t slots = dst->src[2]->ne[0], given = dst->src[1]->ne[1];
        return rows + (at / slots * given + at % slots % given) * stride;
    }
    float * result_of(int32_t at) const {
        const int64_t slots = dst->src[2]->ne[0];
        return (float *) ((char *) dst->data + at % slots * dst->nb[1] + at / slots * dst->nb[2]);
    }

    void part(int32_t expert, int64_t from, int64_t nc, const int32_t * some, int64_t count, const char * rows, size_t stride,
              product times) const {
        const ggml_tensor * w = dst->src[0];
        const char * weights = (const char *) w->data + expert * w->nb[2] + from * w->nb[1];
        if (times == nullptr) {
            const ggml_vec_dot_t dot = specllama_ggml.cpu_traits(w->type)->vec_dot;
            for (int64_t x = 0; x < nc; x++) {
                for (int64_t r = 0; r < count; r++) {
                    dot((int) w->ne[0], result_of(some[r]) + from + x, 0, weights + x * w->nb[1], 0,
                        row_of(some[r], rows, stride), 0, 1);
                }
            }
        } else if (count == 1) {
            times(w->ne[0], nc, result_of(*some) + from, 0, weights, w->nb[1], row_of(*some, rows, stride), stride, 1);
        } else {
            struct of_row { char byte; };
            struct result { float number; };
            char *  together = (char *) scratch<of_row>(count * stride);
            float * results  = (float *) scratch<result>(count * nc);
            for (int64_t r = 0; r < count; r++) {
                memcpy(together + r * stride, row_of(some[r], rows, stride), stride);
            }
            times(w->ne[0], nc, results, nc, weights, w->nb[1], together, stride, count);
            for (int64_t r = 0; r < count; r++) {
                memcpy(result_of(some[r]) + from, results + r * nc, nc * sizeof(float));
            }
        }
    }
};
