// Included before each source of libmtmd: where it would end the process, because of a file that it does not understand,
// it throws. Its functions catch that and say what it was.
#pragma once

#include "ggml.h"

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

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
