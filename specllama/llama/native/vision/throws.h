// Included before each source of libmtmd: where it would end the process, because of a file that it does not understand,
// it throws. Its functions catch that and say what it was. A tensor that the file lacks is null in the operations of ggml
// that are below; where libmtmd itself reads one, gguf/projector.toml names it. While the processor computes, in several
// threads, nothing can be thrown: what ggml would notice only there is checked before.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

extern thread_local bool specllama_calling;  // what ends the process, in this thread, is thrown

[[noreturn]] inline void specllama_throw(const char * format, ...) {
    char    text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    throw std::runtime_error(text);
}

#undef GGML_ABORT
#define GGML_ABORT(...) specllama_throw(__VA_ARGS__)

template <typename type> struct specllama_same { using as = type; };

template <typename type> bool specllama_lacks(type) { return false; }

inline bool specllama_lacks(ggml_tensor * tensor) { return tensor == nullptr; }

template <typename result, typename... parameters>
result specllama_checked(const char * name, result (*function)(parameters...),
                         typename specllama_same<parameters>::as... arguments) {
    if ((specllama_lacks(arguments) || ...)) {
        specllama_throw("it lacks a tensor (%s)", name);
    }
    return function(arguments...);
}

// An encoder of sound is not used: as if the file had none, whatever is wrong with it, and it takes no memory.
inline int64_t specllama_find_key(const gguf_context * file, const char * key) {
    const bool sound = !strcmp(key, "clip.has_audio_encoder") || !strcmp(key, "clip.has_gen_audio_encoder");
    return sound ? -1 : gguf_find_key(file, key);
}

inline void specllama_check_types(const ggml_tensor * node) {
    const ggml_tensor *a = node->src[0], *b = node->src[1];
    bool               fits = true;
    switch (node->op) {
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
            fits = !ggml_is_quantized(a->type) && (b->type == GGML_TYPE_F32 || b->type == a->type);
            break;
        case GGML_OP_IM2COL:
            fits = node->type == GGML_TYPE_F32 || node->type == GGML_TYPE_F16;
            break;
        default:
            break;
    }
    if (!fits) {
        specllama_throw("a tensor is of the wrong type (%s: %s, %s: %s)", a->name, ggml_type_name(a->type), b->name,
                        ggml_type_name(b->type));
    }
}

inline void specllama_check_rows(const ggml_tensor * node) {
    const ggml_tensor *table = node->src[0], *wanted = node->src[1];
    if (node->op != GGML_OP_GET_ROWS || wanted->op != GGML_OP_NONE || wanted->type != GGML_TYPE_I32) {
        return;
    }
    std::vector<int32_t> rows(ggml_nelements(wanted));
    ggml_backend_tensor_get(wanted, rows.data(), 0, ggml_nbytes(wanted));
    for (const int32_t row : rows) {
        if (row < 0 || row >= table->ne[1]) {
            specllama_throw("%s has %d rows, none for place %d", table->name, (int) table->ne[1], row);
        }
    }
}

inline bool specllama_on_cpu(ggml_backend_sched_t scheduler) { return ggml_backend_sched_get_n_backends(scheduler) == 1; }

inline bool specllama_reserve(ggml_backend_sched_t scheduler, ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph) && specllama_on_cpu(scheduler); i++) {
        specllama_check_types(ggml_graph_node(graph, i));
    }
    return ggml_backend_sched_reserve(scheduler, graph);
}

inline ggml_status specllama_compute(ggml_backend_sched_t scheduler, ggml_cgraph * graph) {
    if (!specllama_on_cpu(scheduler)) {
        return ggml_backend_sched_graph_compute(scheduler, graph);
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        specllama_check_rows(ggml_graph_node(graph, i));
    }
    specllama_calling = false;
    const auto status = ggml_backend_sched_graph_compute(scheduler, graph);
    specllama_calling = true;
    return status;
}

#define gguf_find_key specllama_find_key
#define ggml_backend_sched_reserve specllama_reserve
#define ggml_backend_sched_graph_compute specllama_compute
#define SPECLLAMA_CHECKED(function, ...) specllama_checked(#function, function, __VA_ARGS__)
#define ggml_add(...) SPECLLAMA_CHECKED(ggml_add, __VA_ARGS__)
#define ggml_sub(...) SPECLLAMA_CHECKED(ggml_sub, __VA_ARGS__)
#define ggml_mul(...) SPECLLAMA_CHECKED(ggml_mul, __VA_ARGS__)
#define ggml_mul_mat(...) SPECLLAMA_CHECKED(ggml_mul_mat, __VA_ARGS__)
#define ggml_mul_mat_id(...) SPECLLAMA_CHECKED(ggml_mul_mat_id, __VA_ARGS__)
#define ggml_concat(...) SPECLLAMA_CHECKED(ggml_concat, __VA_ARGS__)
#define ggml_conv_1d(...) SPECLLAMA_CHECKED(ggml_conv_1d, __VA_ARGS__)
#define ggml_conv_1d_dw(...) SPECLLAMA_CHECKED(ggml_conv_1d_dw, __VA_ARGS__)
#define ggml_conv_1d_ph(...) SPECLLAMA_CHECKED(ggml_conv_1d_ph, __VA_ARGS__)
#define ggml_conv_2d(...) SPECLLAMA_CHECKED(ggml_conv_2d, __VA_ARGS__)
#define ggml_conv_2d_direct(...) SPECLLAMA_CHECKED(ggml_conv_2d_direct, __VA_ARGS__)
#define ggml_conv_2d_dw(...) SPECLLAMA_CHECKED(ggml_conv_2d_dw, __VA_ARGS__)
#define ggml_conv_2d_dw_direct(...) SPECLLAMA_CHECKED(ggml_conv_2d_dw_direct, __VA_ARGS__)
#define ggml_ssm_conv(...) SPECLLAMA_CHECKED(ggml_ssm_conv, __VA_ARGS__)
#define ggml_get_rows(...) SPECLLAMA_CHECKED(ggml_get_rows, __VA_ARGS__)
#define ggml_repeat(...) SPECLLAMA_CHECKED(ggml_repeat, __VA_ARGS__)
#define ggml_repeat_4d(...) SPECLLAMA_CHECKED(ggml_repeat_4d, __VA_ARGS__)
#define ggml_interpolate(...) SPECLLAMA_CHECKED(ggml_interpolate, __VA_ARGS__)
#define ggml_cont(...) SPECLLAMA_CHECKED(ggml_cont, __VA_ARGS__)
#define ggml_cast(...) SPECLLAMA_CHECKED(ggml_cast, __VA_ARGS__)
#define ggml_permute(...) SPECLLAMA_CHECKED(ggml_permute, __VA_ARGS__)
#define ggml_transpose(...) SPECLLAMA_CHECKED(ggml_transpose, __VA_ARGS__)
#define ggml_reshape_1d(...) SPECLLAMA_CHECKED(ggml_reshape_1d, __VA_ARGS__)
#define ggml_reshape_2d(...) SPECLLAMA_CHECKED(ggml_reshape_2d, __VA_ARGS__)
#define ggml_reshape_3d(...) SPECLLAMA_CHECKED(ggml_reshape_3d, __VA_ARGS__)
#define ggml_reshape_4d(...) SPECLLAMA_CHECKED(ggml_reshape_4d, __VA_ARGS__)
#define ggml_view_1d(...) SPECLLAMA_CHECKED(ggml_view_1d, __VA_ARGS__)
#define ggml_view_2d(...) SPECLLAMA_CHECKED(ggml_view_2d, __VA_ARGS__)
#define ggml_view_3d(...) SPECLLAMA_CHECKED(ggml_view_3d, __VA_ARGS__)
#define ggml_view_4d(...) SPECLLAMA_CHECKED(ggml_view_4d, __VA_ARGS__)
#define ggml_sqrt(...) SPECLLAMA_CHECKED(ggml_sqrt, __VA_ARGS__)
