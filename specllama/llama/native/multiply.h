// The multiplications of one instruction set (x86-64 with AVX2). kernels.cpp includes this file.
#pragma once

namespace specllama {

#include "vectors.h"
#include "batch.h"
#include "loops.h"
#include "groups_of_32.h"
#include "groups_of_256.h"
#include "q6_k.h"
#include "q8_0.h"
#include "floats_of_16_bits.h"
#include "blocks_of_32.h"
#include "blocks_of_256.h"
#include "rows.h"
#include "dots.h"
#include "experts.h"

// The loop for these weights, or null if each number is ggml's own product of two rows.
static product product_of(const ggml_tensor * weights, bool single) {
    const bool in_groups = weights->extra != nullptr, whole = weights->ne[0] % widest::FLOATS == 0;
    switch (weights->type) {
        case GGML_TYPE_Q5_K: return single ? nullptr : batch<block_q5_K>;
        case GGML_TYPE_Q2_K: return single ? nullptr : batch<block_q2_K>;
        case GGML_TYPE_Q3_K: return single ? nullptr : batch<block_q3_K>;
        case GGML_TYPE_IQ4_XS: return single ? nullptr : batch<block_iq4_xs>;
        case GGML_TYPE_F16: return whole ? batch<ggml_half> : nullptr;
        case GGML_TYPE_BF16: return !whole ? nullptr : has_bf16_pairs() ? batch<bf16_pairs> : batch<ggml_bf16_t>;
        case GGML_TYPE_IQ4_NL: return in_groups ? batch<block_iq4_nlx8> : batch<block_iq4_nl>;
        case GGML_TYPE_MXFP4: return in_groups ? batch<block_mxfp4x8> : batch<block_mxfp4>;
        case GGML_TYPE_Q4_0: return in_groups ? batch<block_q4_0x8> : nullptr;
        case GGML_TYPE_Q4_K: return in_groups ? batch<block_q4_Kx8> : nullptr;
        case GGML_TYPE_Q8_0: return batch<block_q8_0>;
        case GGML_TYPE_Q6_K: return batch<block_q6_K>;
        case GGML_TYPE_Q4_1: return batch<block_q4_1>;
        case GGML_TYPE_Q5_0: return batch<block_q5_0>;
        case GGML_TYPE_Q5_1: return batch<block_q5_1>;
        default: return nullptr;
    }
}

static void by_columns(const ggml_compute_params * params, ggml_tensor * dst, const char * rows, size_t stride,
                       product times) {
    const ggml_tensor * weights = dst->src[0];
    const int64_t n = weights->ne[0], nc = weights->ne[1], n_rows = rows_of(dst->src[1]);
    const int64_t size = columns_of_part(params, nc);
    for (int64_t at = params->ith; at * size < nc; at = specllama_ggml.chunk_add(params->threadpool, 1)) {
        times(n, std::min(size, nc - at * size), (float *) dst->data + at * size, dst->nb[1] / sizeof(float),
              (const char *) weights->data + at * size * weights->nb[1], weights->nb[1], rows, stride, n_rows);
    }
}

inline bool has_groups(ggml_type type) {
    return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
}

// Whether this file multiplies these weights with this batch.
inline bool multiplies(const ggml_tensor * dst, layout stored) {
    const ggml_tensor * w = dst->src[0], * a = dst->src[1];
    if (a->type != GGML_TYPE_F32 || a->nb[0] != sizeof(float) || w->ne[3] != 1 || w->view_src || !is_flat(dst)) {
        return false;
    }
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        if (stored == layout::groups) {
            return a->ne[3] == 1 && has_groups(w->type);
        }
        const int64_t rows_of_one = a->ne[2] * dst->src[2]->ne[0] / w->ne[2];  // in the mean
        const bool    fast = product_of(w, true) != nullptr || (product_of(w, false) != nullptr && rows_of_one < 16);
        return a->ne[3] == 1 && (a->ne[2] < PROMPT || fast) && has_dots(w, a);
    }
    if (w->ne[2] != 1) {
        return false;
    }
    if (stored == layout::groups) {
        return w->type == GGML_TYPE_Q4_0 || w->type == GGML_TYPE_Q4_K || (has_groups(w->type) && rows_of(a) < PROMPT);
    }
    if (w->nb[1] != specllama_ggml.row_size(w->type, w->ne[0])) {
        return false;
    }
    switch (w->type) {
        case GGML_TYPE_F16:  // llama.cpp's kernel for prompts sums odd columns in another order
        case GGML_TYPE_BF16: return w->ne[0] % widest::FLOATS == 0 && rows_of(a) < PROMPT;
        case GGML_TYPE_Q6_K: return rows_of(a) < PROMPT;  // for prompts llama.cpp's kernel is faster
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1: return true;
        case GGML_TYPE_F32:  // of small matrices, such as routers, whose rows may be heads; Hadamard has its own kernel
            return dst->op_params[1] != GGML_HINT_SRC0_IS_HADAMARD && rows_of(a) < 64 * PROMPT && has_dots(w, a);
        default: return rows_of(a) < PROMPT && has_dots(w, a);
    }
}

static void multiply(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0], * a = dst->src[1];
    const ggml_type converted = specllama_ggml.cpu_traits(weights->type)->vec_dot_type;
    const char * rows   = (const char *) params->wdata;
    size_t       stride = specllama_ggml.row_size(converted, a->ne[0]);
    if (converted == a->type) {
        rows   = (const char *) a->data;
        stride = a->nb[1];
    } else {
        convert(params, a, converted);
    }
    const bool    of_experts = dst->op == GGML_OP_MUL_MAT_ID;
    const product one = product_of(weights, true), several = product_of(weights, false);
    const experts routed(params, dst, rows == params->wdata ? stride * rows_of(a) : 0);
    if (params->ith == 0) {
        if (of_experts) {
            routed.sort();
        }
        specllama_ggml.chunk_set(params->threadpool, params->nth);
    }
    specllama_ggml.barrier(params->threadpool);
    const product times = rows_of(a) == 1 ? one : several;
    if (of_experts) {
        routed.multiply(rows, stride, one, several);
    } else if (times == nullptr) {
        dots(params, dst, rows, stride);
    } else {
        by_columns(params, dst, rows, stride, times);
    }
}

}  // namespace specllama
