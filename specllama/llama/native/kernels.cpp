// The kernels for one instruction set: compiled once for each, with its name as SPECLLAMA_LEVEL. Everything but the table
// is local to the object file, so that no function compiled for one instruction set is linked into the kernels of another;
// templates of the standard library that may not be inlined are avoided for the same reason.
#include "hook.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace {

inline float float_of(ggml_half a) { return _cvtsh_ss(a); }

#include "attention.h"
#include "mul_mat.h"

}  // namespace

#define SPECLLAMA_TEXT(name) #name
#define SPECLLAMA_NAME(name) SPECLLAMA_TEXT(name)
#define SPECLLAMA_JOINED(a, b) a##b
#define SPECLLAMA_TABLE(level) SPECLLAMA_JOINED(specllama_, level)
extern "C" const kernels SPECLLAMA_TABLE(SPECLLAMA_LEVEL) = {
    SPECLLAMA_NAME(SPECLLAMA_LEVEL), true, specllama::supports_mul_mat, specllama::mul_mat, specllama::work_size,
    specllama_attention::supports_flash_attn, specllama_attention::flash_attn,
};
