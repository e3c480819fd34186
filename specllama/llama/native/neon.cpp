// Products for processors without kernels (aarch64): each number is ggml's product of two rows (vec_dot), where llama.cpp
// computes several rows at once in another order. Attention is llama.cpp's (plugin.cpp).
#include "hook.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace {
namespace specllama {

#include "batch.h"
#include "vec_dot.h"
#include "experts.h"

inline bool supports_mul_mat(const ggml_tensor * dst, layout stored) {
    const ggml_tensor * w = dst->src[0], * a = dst->src[1];
    if (stored != layout::plain || a->type != GGML_TYPE_F32 || a->nb[0] != sizeof(float) || w->ne[3] != 1 ||
        w->view_src || !has_uniform_rows(dst) || !has_vec_dot(w, a)) {
        return false;
    }
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        return a->ne[2] < PROMPT_ROWS && a->ne[3] == 1;
    }
    if (w->ne[2] != 1 || w->nb[1] != specllama_ggml.row_size(w->type, w->ne[0])) {
        return false;
    }
    return w->type == GGML_TYPE_F32 ? dst->op_params[1] != GGML_HINT_SRC0_IS_HADAMARD && nrows(a) < 64 * PROMPT_ROWS
                                    : nrows(a) < PROMPT_ROWS;
}

static void mul_mat(const ggml_compute_params * params, ggml_tensor * dst, layout) {
    const ggml_tensor * a = dst->src[1];
    const ggml_type converted = specllama_ggml.cpu_traits(dst->src[0]->type)->vec_dot_type;
    const char * rows   = (const char *) a->data;
    size_t       stride = a->nb[1];
    if (converted != a->type) {
        convert(params, a, converted);
        rows   = (const char *) params->wdata;
        stride = specllama_ggml.row_size(converted, a->ne[0]);
    }
    const bool    is_mul_mat_id = dst->op == GGML_OP_MUL_MAT_ID;
    const expert_rows routed(params, dst, rows == params->wdata ? stride * nrows(a) : 0);
    if (params->ith == 0) {
        if (is_mul_mat_id) {
            routed.sort();
        }
        specllama_ggml.chunk_set(params->threadpool, params->nth);
    }
    specllama_ggml.barrier(params->threadpool);
    is_mul_mat_id ? routed.mul_mat(rows, stride, nullptr, nullptr) : mul_mat_vec_dot(params, dst, rows, stride);
}

inline size_t work_size(const ggml_tensor *, layout) { return 0; }
inline bool supports_flash_attn(const ggml_tensor *) { return false; }
static void flash_attn(const ggml_compute_params *, ggml_tensor *) {}

}  // namespace specllama
}  // namespace

extern "C" const kernels specllama_neon = {"neon", false, specllama::supports_mul_mat, specllama::mul_mat,
                                           specllama::work_size, specllama::supports_flash_attn, specllama::flash_attn};
