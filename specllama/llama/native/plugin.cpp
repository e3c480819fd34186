// A plug-in for an unmodified llama.cpp: products and attention are computed by specllama's kernels (kernels.cpp).
//
// Before ggml's CPU backend plans or computes an operation, it asks each extra buffer type for tensor traits, which then do
// so instead. The list of these types is a variable that an exported function of the library returns; the plug-in inserts
// its own type at the front. That type stores no weights (supports_op is false); it only provides tensor traits.
//
// Classes of ggml are declared here again, with the same virtual functions in the same order, so that the plug-in can be
// linked without ggml's objects and symbols.
#include "cell_order.h"
#include "hook.h"

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
const void * q4_0_repacked = nullptr, * q4_K_repacked = nullptr;  // virtual tables of repack.cpp's traits
const void * iq4_nl_repacked = nullptr, * mxfp4_repacked = nullptr;
std::vector<ggml_backend_buffer_type_t> * types = nullptr;  // ggml's list
std::vector<ggml_backend_buffer_type_t>   original_types;   // a copy of it from before
bool uses_amx = false;
long computed[2] = {0, 0};  // products and attentions, counted by the first thread of each

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

// ggml's tensor traits for these weights: null if they are stored as in the file.
tensor_traits * ggml_traits(const ggml_tensor * op) {
    const ggml_backend_buffer_t buffer = op->src[0]->buffer;
    const bool extra = buffer != nullptr && std::find(types->begin(), types->end(), buffer->buft) != types->end();
    return extra ? (tensor_traits *) op->src[0]->extra : nullptr;
}

bool is_repacked(const tensor_traits * traits) {
    const void * table = *(const void * const *) traits;
    return table == q4_0_repacked || table == q4_K_repacked || table == iq4_nl_repacked || table == mxfp4_repacked;
}

bool is_named(ggml_backend_buffer_type_t type, const char * name) {
    return type != nullptr && strcmp(type->iface.get_name(type), name) == 0;
}
bool is_for_amx(ggml_backend_buffer_type_t type) { return is_named(type, "AMX"); }

struct mul_mat_traits : tensor_traits {
    const layout stored;
    explicit mul_mat_traits(layout weights) : stored(weights) {}
    // llama.cpp's, which is never smaller than what the other kernels need.
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
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
        size = std::max(size, chosen->work_size(op, stored));
        return true;
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->use_ref) {
            return false;
        }
        computed[0] += params->ith == 0;
        chosen->mul_mat(params, op, stored);
        return true;
    }
};

// Weights in a layout that only ggml knows are multiplied by ggml, one row at a time: for several rows it has other kernels.
struct row_by_row_traits : tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        return ggml_traits(op)->work_size(n_threads, op, size);
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        ggml_tensor a = *op->src[1], part = *op;
        part.src[1] = &a;
        part.ne[1] = a.ne[1] = 1;
        for (int64_t r = 0; r < op->ne[1]; r++) {
            a.data    = (char *) op->src[1]->data + r * a.nb[1];
            part.data = (char *) op->data + r * part.nb[1];
            if (r > 0) {  // other threads may still read the row before from the work buffer
                ggml.barrier(params->threadpool);
            }
            if (!ggml_traits(op)->compute_forward(params, &part)) {
                return false;
            }
        }
        return true;
    }
};

struct flash_attn_traits : tensor_traits {
    // The larger one of llama.cpp's and the kernels'.
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
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
        chosen->flash_attn(params, op);
        return true;
    }
};

// llama.cpp's attention without its faster variants for one row and for many, which sum in another order.
struct reference_traits : flash_attn_traits {
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        ggml_compute_params own = *params;
        own.use_ref = true;
        computed[1] += params->ith == 0;
        ggml.attention(&own, op);
        return true;
    }
    static bool is_needed(const ggml_tensor * op) {
        const ggml_type k = op->src[1]->type;
        return op->src[0]->ne[1] < PROMPT_ROWS && k == op->src[2]->type && (k == GGML_TYPE_F32 || k == GGML_TYPE_F16);
    }
};

// Writes to a cache: computed by ggml, in an order that is recorded.
struct set_rows_traits : tensor_traits {
    bool work_size(int, const ggml_tensor *, size_t &) override { return false; }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->ith == 0) {
            specllama_cells::record(op);
        }
        return false;
    }
};

struct kernel_buffer_type : extra_buffer_type {
    mul_mat_traits    plain{layout::plain}, repacked{layout::repacked}, amx{layout::amx};
    row_by_row_traits row_by_row;
    flash_attn_traits flash_attn;
    reference_traits  reference;
    set_rows_traits   set_rows;
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }
    tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == GGML_OP_FLASH_ATTN_EXT) {
            return chosen->supports_flash_attn(op) ? &flash_attn : reference_traits::is_needed(op) ? &reference : nullptr;
        }
        if (op->op == GGML_OP_SET_ROWS) {
            return specllama_cells::is_recorded(op) ? &set_rows : nullptr;
        }
        if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) {
            return nullptr;
        }
        const tensor_traits * own = ggml_traits(op);
        if (own == nullptr) {
            return chosen->supports_mul_mat(op, layout::plain) ? &plain : nullptr;
        }
        if (is_for_amx(op->src[0]->buffer->buft)) {  // ggml's own code has the same results
            return chosen->supports_mul_mat(op, layout::amx) ? &amx : nullptr;
        }
        if (is_repacked(own) && chosen->supports_mul_mat(op, layout::repacked)) {
            return &repacked;
        }
        if (op->op == GGML_OP_MUL_MAT_ID) {  // ggml itself multiplies row by row
            return nullptr;
        }
        const bool several = op->ne[1] > 1 && op->ne[1] < PROMPT_ROWS && op->ne[2] * op->ne[3] == 1;
        return several ? (tensor_traits *) &row_by_row : nullptr;
    }
};

// ggml's groups of columns without weights of Q2_K, which the kernels multiply faster as they are in the file.
struct groups_without_q2_k : extra_buffer_type {
    extra_buffer_type * original;
    explicit groups_without_q2_k(void * context) : original((extra_buffer_type *) context) {}
    bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) override {
        return op->src[0] != nullptr && op->src[0]->type != GGML_TYPE_Q2_K && original->supports_op(device, op);
    }
    tensor_traits * get_tensor_traits(const ggml_tensor * op) override { return original->get_tensor_traits(op); }
};

ggml_backend_buffer_type_t groups = nullptr;  // ggml's, changed

const char * name_of(ggml_backend_buffer_type_t) { return "SPECLLAMA"; }
size_t alignment_of(ggml_backend_buffer_type_t) { return 64; }
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t, size_t size) { return ggml.allocate(ggml.cpu_buffer(), size); }

ggml_backend_buffer_type our_type;  // as ggml sees it

#if defined(__x86_64__)
bool has_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

const kernels * best_kernels(const std::string & level) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
        return nullptr;
    }
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    const struct { const kernels * table; bool supported; } levels[] = {
        {&specllama_avx512, has_avx512}, {&specllama_avxvnni, has_avxvnni()}, {&specllama_avx2, true}};
    for (const auto & one : levels) {
        if (one.supported && (level.empty() || level == one.table->name)) {
            return one.table;
        }
    }
    return nullptr;
}
#else
const kernels * best_kernels(const std::string & level) {
    return level.empty() || level == specllama_neon.name ? &specllama_neon : nullptr;
}
#endif

std::string reason;

template <typename F> bool find_symbol(void * library, F & function, const char * name) {
    function = (F) dlsym(library, name);
    if (function == nullptr && reason.empty()) {
        reason = std::string("this llama.cpp does not export ") + name;
    }
    return function != nullptr;
}

}  // namespace

// Registers the kernels with the ggml that `library` (a handle of dlopen) is linked to. level: the instruction set, or an
// empty string for the best one. Returns null, or the reason why this is not possible.
extern "C" __attribute__((visibility("default"))) const char * specllama_start(void * library, const char * level) {
    if (chosen != nullptr) {
        return nullptr;
    }
    const kernels * const best = best_kernels(level);
    if (best == nullptr) {
        return *level ? "this processor lacks the instruction set that was asked for" : "this processor lacks AVX2";
    }
    ggml_functions & all = specllama_ggml;
    std::vector<ggml_backend_buffer_type_t> & (*list)() = nullptr;
    reason.clear();
    find_symbol(library, list, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
    find_symbol(library, all.barrier, "ggml_barrier");
    find_symbol(library, all.chunk_set, "ggml_threadpool_chunk_set");
    find_symbol(library, all.chunk_add, "ggml_threadpool_chunk_add");
    find_symbol(library, all.traits, "ggml_get_type_traits");
    find_symbol(library, all.cpu_traits, "ggml_get_type_traits_cpu");
    find_symbol(library, all.row_size, "ggml_row_size");
    find_symbol(library, all.block_size, "ggml_blck_size");
    find_symbol(library, all.tiled_size, "ggml_tiled_wdata_size");
    find_symbol(library, all.cpu_reg, "ggml_backend_cpu_reg");
    find_symbol(library, all.device, "ggml_backend_reg_dev_get");
    find_symbol(library, all.cpu_buffer, "ggml_backend_cpu_buffer_type");
    find_symbol(library, all.allocate, "ggml_backend_buft_alloc_buffer");
    find_symbol(library, all.attention, "ggml_compute_forward_flash_attn_ext");
    if (!reason.empty()) {
        return reason.c_str();
    }
    // An object's first word points to the third word of its virtual table.
    const auto table = [&](const char * name) {
        const void ** at = (const void **) dlsym(library, name);
        return at == nullptr ? nullptr : (const void *) (at + 2);
    };
    q4_0_repacked = table("_ZTVN4ggml3cpu6repack13tensor_traitsI10block_q4_0Ll8ELl8EL9ggml_type8EEE");
    q4_K_repacked = table("_ZTVN4ggml3cpu6repack13tensor_traitsI10block_q4_KLl8ELl8EL9ggml_type15EEE");
    iq4_nl_repacked = table("_ZTVN4ggml3cpu6repack13tensor_traitsI12block_iq4_nlLl8ELl8EL9ggml_type8EEE");
    mxfp4_repacked = table("_ZTVN4ggml3cpu6repack13tensor_traitsI11block_mxfp4Ll8ELl8EL9ggml_type8EEE");
    types = &list();
    original_types = *types;
    // GCC 12 compiles ggml's AMX code so that it crashes, unless amx.h is included. Without it, and with kernels for other
    // layouts only, weights are not packed for AMX.
    uses_amx = best == &specllama_avx512 && dlsym(library, "specllama_has_amx_h") != nullptr &&
               std::any_of(types->begin(), types->end(), is_for_amx);
    if (!uses_amx) {
        types->erase(std::remove_if(types->begin(), types->end(), is_for_amx), types->end());
    }
    for (ggml_backend_buffer_type_t type : *types) {
        if (is_named(type, "CPU_REPACK") && best->supports_q2_k) {
            groups          = type;
            groups->context = new groups_without_q2_k(groups->context);
        }
    }
    our_type.iface.get_name      = name_of;
    our_type.iface.alloc_buffer  = allocate;
    our_type.iface.get_alignment = alignment_of;
    our_type.device              = all.device(all.cpu_reg(), 0);
    our_type.context             = new kernel_buffer_type;
    chosen                       = best;
    types->insert(types->begin(), &our_type);
    return nullptr;
}

// Restores ggml's list of buffer types.
extern "C" __attribute__((visibility("default"))) void specllama_stop() {
    if (chosen != nullptr) {
        *types = original_types;
        if (groups != nullptr) {
            groups->context = ((groups_without_q2_k *) groups->context)->original;
            groups = nullptr;
        }
    }
    chosen = nullptr;
}

// How many products (0) or attentions (1) the kernels have computed.
extern "C" __attribute__((visibility("default"))) long specllama_computed(int kind) { return computed[kind]; }

// Whether llama.cpp packs weights for AMX, and computes prompts with it.
extern "C" __attribute__((visibility("default"))) bool specllama_uses_amx() { return chosen != nullptr && uses_amx; }

// The checksum of the sources that this object was compiled from.
extern "C" __attribute__((visibility("default"))) const char * specllama_sources() { return SPECLLAMA_SOURCES; }

// The instruction set in use, or null before `specllama_start` has succeeded.
extern "C" __attribute__((visibility("default"))) const char * specllama_level() {
    return chosen == nullptr ? nullptr : chosen->name;
}
