// Products of one instruction set (x86-64 with AVX2): which kernel multiplies which weights. Included by kernels.cpp.
#pragma once

namespace specllama {

#include "vectors.h"
#include "batch.h"
#include "kernel.h"
#include "repacked_32.h"
#include "repacked_q4_k.h"
#include "f16.h"
#include "blocks_32.h"
#include "blocks_256.h"
#include "k_quants.h"
#include "tiling.h"
#include "vec_dot.h"
#include "experts.h"
#include "amx_packed.h"
#include "amx_prompts.h"

// The kernel for these weights and one row, or several; null if each number is ggml's vec_dot.
static mul_mat_fn kernel_for(const ggml_tensor * weights, layout stored, bool single) {
    if (stored == layout::amx) {
        return amx_kernel_for(weights).function;
    }
    const bool repacked = stored == layout::repacked, whole_vectors = weights->ne[0] % widest::N_FLOATS == 0;
    switch (weights->type) {
        case GGML_TYPE_Q5_K: return single ? nullptr : mul_mat_tiled<block_q5_K>;
        case GGML_TYPE_Q2_K: return single ? nullptr : mul_mat_tiled<block_q2_K>;
        case GGML_TYPE_Q3_K: return single ? nullptr : mul_mat_tiled<block_q3_K>;
        case GGML_TYPE_IQ4_XS: return single ? nullptr : mul_mat_tiled<block_iq4_xs>;
        case GGML_TYPE_F16: return whole_vectors ? mul_mat_tiled<ggml_half> : nullptr;
        case GGML_TYPE_BF16:
            return !whole_vectors ? nullptr : has_bf16_pairs() ? mul_mat_tiled<bf16_pairs> : mul_mat_tiled<ggml_bf16_t>;
        case GGML_TYPE_IQ4_NL: return repacked ? mul_mat_tiled<block_iq4_nlx8> : mul_mat_tiled<block_iq4_nl>;
        case GGML_TYPE_MXFP4: return repacked ? mul_mat_tiled<block_mxfp4x8> : mul_mat_tiled<block_mxfp4>;
        case GGML_TYPE_Q4_0: return repacked ? mul_mat_tiled<block_q4_0x8> : nullptr;
        case GGML_TYPE_Q4_K: return repacked ? mul_mat_tiled<block_q4_Kx8> : nullptr;
        case GGML_TYPE_Q8_0: return mul_mat_tiled<block_q8_0>;
        case GGML_TYPE_Q6_K: return single ? nullptr : mul_mat_tiled<block_q6_K>;
        case GGML_TYPE_Q4_1: return mul_mat_tiled<block_q4_1>;
        case GGML_TYPE_Q5_0: return mul_mat_tiled<block_q5_0>;
        case GGML_TYPE_Q5_1: return mul_mat_tiled<block_q5_1>;
        default: return nullptr;
    }
}

// Bytes of the work buffer that mul_mat needs, 0 if llama.cpp's are enough.
inline size_t work_size(const ggml_tensor * dst, layout stored) {
    return stored == layout::amx && is_prompt_for_tiles(dst) ? prompt_work_size(dst) : 0;
}

static void mul_mat_columns(const ggml_compute_params * params, ggml_tensor * dst, const char * rows, size_t stride,
                            layout stored, mul_mat_fn kernel) {
    const ggml_tensor * weights = dst->src[0];
    const int64_t n = weights->ne[0], nc = weights->ne[1], n_rows = nrows(dst->src[1]);
    const int64_t pitch = stored == layout::amx ? amx_kernel_for(weights).pitch : weights->nb[1];
    const int64_t size = chunk_columns(params, nc);
    for (int64_t at = params->ith; at * size < nc; at = specllama_ggml.chunk_add(params->threadpool, 1)) {
        kernel(n, std::min(size, nc - at * size), (float *) dst->data + at * size, dst->nb[1] / sizeof(float),
               (const char *) weights->data + at * size * pitch, pitch, rows, stride, n_rows);
    }
}

inline bool has_repacked_kernel(ggml_type type) {
    return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
}

// Whether mul_mat multiplies these weights by this batch.
inline bool supports_mul_mat(const ggml_tensor * dst, layout stored) {
    const ggml_tensor * w = dst->src[0], * a = dst->src[1];
    if (a->type != GGML_TYPE_F32 || a->nb[0] != sizeof(float) || w->ne[3] != 1 || w->view_src || !has_uniform_rows(dst)) {
        return false;
    }
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        if (stored == layout::repacked) {
            return a->ne[3] == 1 && has_repacked_kernel(w->type);
        }
        return a->ne[3] == 1 && (a->ne[2] < PROMPT_ROWS || kernel_for(w, stored, false) != nullptr) && has_vec_dot(w, a);
    }
    if (w->ne[2] != 1) {
        return false;
    }
    if (stored == layout::amx) {
        return nrows(a) < PROMPT_ROWS ? has_fast_amx_kernel(w, nrows(a)) : is_prompt_for_tiles(dst);
    }
    if (stored == layout::repacked) {
        return has_repacked_kernel(w->type);
    }
    if (!has_vec_dot(w, a)) {
        return false;
    }
    switch (w->type) {
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16: return w->ne[0] % widest::N_FLOATS == 0;
        case GGML_TYPE_F32:  // small matrices such as routers, whose rows may be heads; ggml has a kernel for Hadamard's
            return dst->op_params[1] != GGML_HINT_SRC0_IS_HADAMARD && nrows(a) < 64 * PROMPT_ROWS;
        default: return nrows(a) < PROMPT_ROWS || kernel_for(w, stored, false) != nullptr;
    }
}

static void mul_mat(const ggml_compute_params * params, ggml_tensor * dst, layout stored) {
    if (stored == layout::amx && is_prompt_for_tiles(dst)) {
        mul_mat_prompt(params, dst);
        return;
    }
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
    const bool       is_mul_mat_id = dst->op == GGML_OP_MUL_MAT_ID;
    const mul_mat_fn one = kernel_for(weights, stored, true), several = kernel_for(weights, stored, false);
    const expert_rows routed(params, dst, rows == params->wdata ? stride * nrows(a) : 0);
    if (params->ith == 0) {
        if (is_mul_mat_id) {
            routed.sort();
        }
        specllama_ggml.chunk_set(params->threadpool, params->nth);
    }
    specllama_ggml.barrier(params->threadpool);
    const mul_mat_fn kernel = nrows(a) == 1 ? one : several;
    if (is_mul_mat_id) {
        routed.mul_mat(rows, stride, one, several);
    } else if (kernel == nullptr) {
        mul_mat_vec_dot(params, dst, rows, stride);
    } else {
        mul_mat_columns(params, dst, rows, stride, stored, kernel);
    }
}

}  // namespace specllama
