// A plug-in for an unmodified llama.cpp: multiplications and attention are computed by our kernels (kernels.cpp).
//
// Before ggml's CPU backend plans or computes an operation, it asks each extra buffer type for traits that do so instead.
// The list of these types is a variable of the library that an exported function returns; the plug-in puts a type of its
// own first. It stores no weights (supports_op is false): only the question for traits matters.
//
// Classes of ggml are declared here again, with the same virtual functions in the same order, so that the plug-in needs
// neither ggml's objects nor its symbols when it is linked.
#include "hook.h"
#include "order.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

ggml_functions specllama_ggml;

namespace {

const ggml_functions & ggml = specllama_ggml;
const kernels *        chosen = nullptr;
const void * q4_0_groups = nullptr, * q4_K_groups = nullptr;  // virtual tables of repack.cpp's traits
const void * iq4_nl_groups = nullptr, * mxfp4_groups = nullptr;
std::vector<ggml_backend_buffer_type_t> * types = nullptr;              // ggml's list
std::vector<ggml_backend_buffer_type_t>   without;                      // what it was before
long computed[2] = {0, 0};  // multiplications and attentions, counted by the first thread of each

struct tensor_traits {  // ggml::cpu::tensor_traits
    virtual ~tensor_traits() {}
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size)   = 0;
    virtual bool compute_forward(ggml_compute_params * params, ggml_tensor * op) = 0;
};

struct extra_buffer_type {  // ggml::cpu::extra_buffer_type
    virtual ~extra_buffer_type() {}
    virtual bool            supports_op(ggml_backend_dev_t, const ggml_tensor * op) = 0;
    virtual tensor_traits * get_tensor_traits(const ggml_tensor * op)             = 0;
};

// Traits that ggml itself would use for these weights: null if they are stored as in the file.
tensor_traits * own_traits(const ggml_tensor * op) {
    const ggml_backend_buffer_t buffer = op->src[0]->buffer;
    const bool extra = buffer != nullptr && std::find(types->begin(), types->end(), buffer->buft) != types->end();
    return extra ? (tensor_traits *) op->src[0]->extra : nullptr;
}

bool in_groups(const tensor_traits * traits) {
    const void * table = *(const void * const *) traits;
    return table == q4_0_groups || table == q4_K_groups || table == iq4_nl_groups || table == mxfp4_groups;
}

constexpr int64_t PROMPT = 64;  // rows

struct multiplication : tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {  // llama.cpp's, which is not less
        const ggml_type type = ggml.cpu_traits(op->src[0]->type)->vec_dot_type;
        int64_t         n    = 1;
        for (int i = 0; i < GGML_MAX_DIMS; i++) {
            n *= op->src[1]->ne[i];
        }
        size = GGML_PAD(ggml.row_size(type, n), 64) + ggml.tiled_size(n_threads, (ggml_tensor *) op);
        if (op->op == GGML_OP_MUL_MAT_ID) {  // its lists of rows by expert
            const int64_t experts = op->src[0]->ne[2], rows = op->src[2]->ne[0] * op->src[2]->ne[1];
            size += 64 + experts * (2 * sizeof(int64_t) + rows * 2 * sizeof(int32_t) + 2 * 64);
        }
        return true;
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->use_ref) {
            return false;
        }
        computed[0] += params->ith == 0;
        chosen->multiply(params, op);
        return true;
    }
};

// Weights in a layout that only ggml knows are multiplied by ggml, row by row, since it has other kernels for several.
struct row_by_row : tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        return own_traits(op)->work_size(n_threads, op, size);
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        ggml_tensor a = *op->src[1], part = *op;
        part.src[1] = &a;
        part.ne[1] = a.ne[1] = 1;
        for (int64_t r = 0; r < op->ne[1]; r++) {
            a.data    = (char *) op->src[1]->data + r * a.nb[1];
            part.data = (char *) op->data + r * part.nb[1];
            if (r > 0) {  // the last row is still being read from the work buffer
                ggml.barrier(params->threadpool);
            }
            if (!own_traits(op)->compute_forward(params, &part)) {
                return false;
            }
        }
        return true;
    }
};

struct attention : tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {  // llama.cpp's or ours
        const int64_t heads = op->src[0]->ne[2], dk = op->src[1]->ne[0], dv = op->src[2]->ne[0], tile = 64;
        const int64_t prompt = (tile * dk + 2 * tile * tile + tile * dv + tile * dv + tile * dk) * n_threads;
        const int64_t row    = heads * n_threads * (2 + dv) + n_threads * (dk + 2 * dv);
        const size_t ours    = ATTENTION_SHARED + n_threads * attention_scratch(op->src[1]->ne[1]);
        size = std::max(sizeof(float) * std::max(prompt, row), ours);
        return true;
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->use_ref) {
            return false;
        }
        computed[1] += params->ith == 0;
        chosen->attend(params, op);
        return true;
    }
};

// llama.cpp's own attention, without its faster ways for one row and for many, which sum in another order.
struct reference : attention {
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        ggml_compute_params own = *params;
        own.use_ref = true;
        computed[1] += params->ith == 0;
        ggml.attention(&own, op);
        return true;
    }
    static bool is_needed(const ggml_tensor * op) {
        const ggml_type k = op->src[1]->type;
        return op->src[0]->ne[1] < PROMPT && k == op->src[2]->type && (k == GGML_TYPE_F32 || k == GGML_TYPE_F16);
    }
};

// Writes to a cache are ggml's; their order is noted.
struct writing : tensor_traits {
    bool work_size(int, const ggml_tensor *, size_t &) override { return false; }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->ith == 0) {
            specllama_order::note(op);
        }
        return false;
    }
};

struct hook : extra_buffer_type {
    multiplication multiply;
    row_by_row     by_row;
    attention      attend;
    reference      by_reference;
    writing        write;
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }
    tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == GGML_OP_FLASH_ATTN_EXT) {
            return chosen->attends(op) ? &attend : reference::is_needed(op) ? &by_reference : nullptr;
        }
        if (op->op == GGML_OP_SET_ROWS) {
            return specllama_order::notes(op) ? &write : nullptr;
        }
        if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) {
            return nullptr;
        }
        const tensor_traits * own = own_traits(op);
        if (own == nullptr) {
            return chosen->multiplies(op, layout::plain) ? &multiply : nullptr;
        }
        if (in_groups(own) && chosen->multiplies(op, layout::groups)) {
            return &multiply;
        }
        if (op->op == GGML_OP_MUL_MAT_ID) {  // ggml itself multiplies row by row
            return nullptr;
        }
        const bool several = op->ne[1] > 1 && op->ne[1] < PROMPT && op->ne[2] * op->ne[3] == 1;
        return several ? (tensor_traits *) &by_row : nullptr;
    }
};

const char * name_of(ggml_backend_buffer_type_t) { return "SPECLLAMA"; }
size_t alignment_of(ggml_backend_buffer_type_t) { return 64; }
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t, size_t size) { return ggml.allocate(ggml.cpu_buffer(), size); }

ggml_backend_buffer_type our_type;

#if defined(__x86_64__)
bool has_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

const kernels * best(const std::string & wanted) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
        return nullptr;
    }
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
    const struct { const kernels * table; bool there; } levels[] = {
        {&specllama_avx512, wide}, {&specllama_avxvnni, has_avxvnni()}, {&specllama_avx2, true}};
    for (const auto & level : levels) {
        if (level.there && (wanted.empty() || wanted == level.table->name)) {
            return level.table;
        }
    }
    return nullptr;
}
#else
const kernels * best(const std::string & wanted) {
    return wanted.empty() || wanted == specllama_neon.name ? &specllama_neon : nullptr;
}
#endif

std::string reason;

template <typename F> bool find(void * library, F & function, const char * name) {
    function = (F) dlsym(library, name);
    if (function == nullptr && reason.empty()) {
        reason = std::string("this llama.cpp does not export ") + name;
    }
    return function != nullptr;
}

}  // namespace

// Registers the kernels with the ggml that `library` (a handle of dlopen) is linked to. `level`: the instruction set, or
// an empty text for the best one. Returns why it was not possible, or null.
extern "C" __attribute__((visibility("default"))) const char * specllama_start(void * library, const char * level) {
    if (chosen != nullptr) {
        return nullptr;
    }
    const kernels * const found = best(level);
    if (found == nullptr) {
        return *level ? "this processor lacks the instruction set that was asked for" : "this processor lacks AVX2";
    }
    ggml_functions & all = specllama_ggml;
    std::vector<ggml_backend_buffer_type_t> & (*list)() = nullptr;
    reason.clear();
    find(library, list, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
    find(library, all.barrier, "ggml_barrier");
    find(library, all.chunk_set, "ggml_threadpool_chunk_set");
    find(library, all.chunk_add, "ggml_threadpool_chunk_add");
    find(library, all.traits, "ggml_get_type_traits");
    find(library, all.cpu_traits, "ggml_get_type_traits_cpu");
    find(library, all.row_size, "ggml_row_size");
    find(library, all.block_size, "ggml_blck_size");
    find(library, all.tiled_size, "ggml_tiled_wdata_size");
    find(library, all.cpu_reg, "ggml_backend_cpu_reg");
    find(library, all.device, "ggml_backend_reg_dev_get");
    find(library, all.cpu_buffer, "ggml_backend_cpu_buffer_type");
    find(library, all.allocate, "ggml_backend_buft_alloc_buffer");
    find(library, all.attention, "ggml_compute_forward_flash_attn_ext");
    if (!reason.empty()) {
        return reason.c_str();
    }
    // An object's first word points behind two others of its virtual table.
    const auto table = [&](const char * name) {
        const void ** at = (const void **) dlsym(library, name);
        return at == nullptr ? nullptr : (const void *) (at + 2);
    };
    q4_0_groups = table("_ZTVN4ggml3cpu6repack13tensor_traitsI10block_q4_0Ll8ELl8EL9ggml_type8EEE");
    q4_K_groups = table("_ZTVN4ggml3cpu6repack13tensor_traitsI10block_q4_KLl8ELl8EL9ggml_type15EEE");
    iq4_nl_groups = table("_ZTVN4ggml3cpu6repack13tensor_traitsI12block_iq4_nlLl8ELl8EL9ggml_type8EEE");
    mxfp4_groups = table("_ZTVN4ggml3cpu6repack13tensor_traitsI11block_mxfp4Ll8ELl8EL9ggml_type8EEE");
    types   = &list();
    without = *types;
    // Weights packed for AMX have a layout of their own, and GCC 12 compiles ggml's use of AMX into code that crashes
    // (ggml-org/llama.cpp, pull request 26954): those types are left to the kernels of AVX-512.
    types->erase(std::remove_if(types->begin(), types->end(), [](ggml_backend_buffer_type_t type) {
                     return type != nullptr && strcmp(type->iface.get_name(type), "AMX") == 0;
                 }), types->end());
    our_type.iface.get_name      = name_of;
    our_type.iface.alloc_buffer  = allocate;
    our_type.iface.get_alignment = alignment_of;
    our_type.device              = all.device(all.cpu_reg(), 0);
    our_type.context             = new hook;
    chosen                       = found;
    types->insert(types->begin(), &our_type);
    return nullptr;
}

// Makes ggml's list what it was.
extern "C" __attribute__((visibility("default"))) void specllama_stop() {
    if (chosen != nullptr) {
        *types = without;
    }
    chosen = nullptr;
}

// How many multiplications (0) or attentions (1) the kernels have computed.
extern "C" __attribute__((visibility("default"))) long specllama_computed(int kind) { return computed[kind]; }

// The checksum of the sources that this object was compiled from.
extern "C" __attribute__((visibility("default"))) const char * specllama_sources() { return SPECLLAMA_SOURCES; }

// The instruction set in use, or null before `specllama_start` has succeeded.
extern "C" __attribute__((visibility("default"))) const char * specllama_level() {
    return chosen == nullptr ? nullptr : chosen->name;
}
