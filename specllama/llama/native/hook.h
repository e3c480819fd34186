// Shared by the plug-in (plugin.cpp) and its kernels (kernels.cpp, compiled once per instruction set): the functions of
// ggml that they call, and declarations from ggml's private headers.
#pragma once

#include "ggml/ggml-backend-impl.h"
#include "ggml/ggml-backend.h"
#include "ggml/ggml-cpu.h"
#include "ggml/ggml.h"
#define GGML_COMMON_DECL_CPP
#include "ggml/ggml-common.h"

#include <cstddef>
#include <cstdint>

constexpr int64_t PROMPT_ROWS = 64;  // a batch of so many rows is a prompt: types without a kernel, and AMX, are multiplied otherwise

struct ggml_compute_params {  // as in ggml-cpu-impl.h
    int    ith, nth;
    size_t wsize;
    void * wdata;
    struct ggml_threadpool * threadpool;
    bool   use_ref;
};

struct block_q4_0x8 {  // as in repack.h: eight columns of Q4_0, interleaved by eight values
    ggml_half d[8];
    int8_t    qs[QK4_0 * 4];
};

struct block_q4_Kx8 {
    ggml_half d[8];
    ggml_half dmin[8];
    uint8_t   scales[96];
    uint8_t   qs[1024];
};

// Functions of ggml, found by name when the plug-in starts: it is not linked to ggml.
struct ggml_functions {
    void (*barrier)(struct ggml_threadpool *);
    void (*chunk_set)(struct ggml_threadpool *, int);
    int (*chunk_add)(struct ggml_threadpool *, int);
    const ggml_type_traits * (*traits)(ggml_type);
    const ggml_type_traits_cpu * (*cpu_traits)(ggml_type);
    size_t (*row_size)(ggml_type, int64_t);
    int64_t (*block_size)(ggml_type);
    size_t (*tiled_size)(int, ggml_tensor *);
    ggml_backend_reg_t (*cpu_reg)();
    ggml_backend_dev_t (*device)(ggml_backend_reg_t, size_t);
    ggml_backend_buffer_type_t (*cpu_buffer)();
    ggml_backend_buffer_t (*allocate)(ggml_backend_buffer_type_t, size_t);
    void (*attention)(const ggml_compute_params *, ggml_tensor *);
};
extern ggml_functions specllama_ggml;

// The order in which the cells of this cache were written, a number for each from the tensor's first cell on; null if
// unknown (cell_order.h).
const uint32_t * specllama_cell_order(const ggml_tensor * cache);

// The work buffer of flash_attn in bytes: shared by all threads, and for each thread, which depends on the number of cells.
// It holds attention.h's `workspace`, and visible_cells.h's masks of 16 rows and two more, with a bit for each cell, and two
// lists of cells.
constexpr size_t ATTENTION_SHARED = 2 * 64, ATTENTION_WORKSPACE = (16 * (16 + 576 + 592) + 16 * 576) * sizeof(float);
inline int64_t attention_words(int64_t cells) { return GGML_PAD(cells / 16 + 2, 4); }
inline size_t attention_scratch(int64_t cells) {
    const size_t lists = 18 * attention_words(cells) * sizeof(uint16_t) + 2 * cells * sizeof(int32_t);
    return ATTENTION_WORKSPACE + GGML_PAD(lists, 64);
}

// How weights are stored: as in the file, repacked in groups of eight columns (CPU_REPACK), or packed for AMX.
enum class layout { plain, repacked, amx };

// The kernels of one instruction set.
struct kernels {
    const char * name;
    bool supports_q2_k;  // as in the file
    bool (*supports_mul_mat)(const ggml_tensor * dst, layout weights);
    void (*mul_mat)(const ggml_compute_params * params, ggml_tensor * dst, layout weights);
    size_t (*work_size)(const ggml_tensor * dst, layout weights);  // in bytes; 0: llama.cpp's is enough
    bool (*supports_flash_attn)(const ggml_tensor * dst);
    void (*flash_attn)(const ggml_compute_params * params, ggml_tensor * dst);
};
extern "C" const kernels specllama_avx2, specllama_avxvnni, specllama_avx512, specllama_neon;
