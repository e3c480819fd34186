/* Included before every C++ source of llama.cpp on machines with AMX (installer,
   scripts/bench/peers/build.py).

   GCC's _tile_loadconfig names 8 of the 64 bytes that ldtilecfg reads (amxtileintrin.h of GCC 12.2), so the
   optimiser drops what llama.cpp writes into the rest, and the first multiplication crashes with SIGSEGV. Known to
   llama.cpp: ggml-org/llama.cpp, pull request 26954, open in November 2026. By specllama_has_amx_h the plug-in
   knows that llama.cpp was compiled with this. */
#if defined(__AMX_TILE__)
#include <immintrin.h>
extern "C" {
__attribute__((weak, visibility("default"))) int specllama_has_amx_h = 1;
}
static inline __attribute__((always_inline)) void specllama_tile_loadconfig(const void *config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])config));
}
#define _tile_loadconfig specllama_tile_loadconfig
#endif
