// Multiplications for processors without kernels of our own (aarch64): each number is ggml's own product of two rows,
// where llama.cpp computes several rows at once in another order. Attention is llama.cpp's own (plugin.cpp).
#include "hook.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace {
namespace specllama {

#include "batch.h"
#include "dots.h"
#include "experts.h"

inline bool multiplies(const ggml_tensor * dst, layout stored) {
    const ggml_tensor * w = dst->src[0], * a = dst->src[1];
    if (stored != layout::plain || a->type != GGML_TYPE_F32 || a->nb[0] != sizeof(float) || w->ne[3] != 1 ||
        w->view_src || !is_flat(dst) || !has_dots(w, a)) {
        return false;
    }
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        return a->ne[2] < PROMPT && a->ne[3] == 1;
    }
    if (w->ne[2] != 1 || w->nb[1] != specllama_ggml.row_size(w->type, w->ne[0])) {
        return false;
    }
    return w->type == GGML_TYPE_F32 ? dst->op_params[1] != GGML_HINT_SRC0_IS_HADAMARD && rows_of(a) < 64 * PROMPT
                                    : rows_of(a) < PROMPT;
}

static void multiply(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * a = dst->src[1];
    const ggml_type converted = specllama_ggml.cpu_traits(dst->src[0]->type)->vec_dot_type;
    const char * rows   = (const char *) a->data;
    size_t       stride = a->nb[1];
    if (converted != a->type) {
        convert(params, a, converted);
        rows   = (const char *) params->wdata;
        stride = specllama_ggml.row_size(converted, a->ne[0]);
    }
    const bool    of_experts = dst->op == GGML_OP_MUL_MAT_ID;
    const experts routed(params, dst, rows == params->wdata ? stride * rows_of(a) : 0);
    if (params->ith == 0) {
        if (of_experts) {
            routed.sort();
        }
        specllama_ggml.chunk_set(params->threadpool, params->nth);
    }
    specllama_ggml.barrier(params->threadpool);
    of_experts ? routed.multiply(rows, stride, nullptr, nullptr) : dots(params, dst, rows, stride);
}

inline bool attends(const ggml_tensor *) { return false; }
static void attend(const ggml_compute_params *, ggml_tensor *) {}

}  // namespace specllama
}  // namespace

extern "C" const kernels specllama_neon = {"neon", specllama::multiplies, specllama::multiply, specllama::attends,
                                           specllama::attend};
