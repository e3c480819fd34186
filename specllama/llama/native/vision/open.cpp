// Opens a projector and uses it; what is thrown meanwhile, as for a model without the tokens that libmtmd puts around an
// image, is logged and returned as a failure. ggml, too, ends the process where tensors do not fit together; while a graph
// is built, in this thread, that is an exception instead.
#include "mtmd.h"

thread_local bool specllama_calling = false;

namespace {

ggml_abort_callback_t before = nullptr;

void throw_if_calling(const char * message) {
    if (specllama_calling) {
        throw std::runtime_error(message);
    }
    if (before) {
        before(message);
    } else {
        fprintf(stderr, "%s\n", message);  // as ggml does without this function
    }
}

// Once for all calls: another thread may be in one when this one ends.
void set_callback() { static const bool set = (before = ggml_set_abort_callback(throw_if_calling), true); }

template <typename call> auto guarded(call && made, decltype(made()) failure) {
    set_callback();
    auto result       = failure;
    specllama_calling = true;
    try {
        result = made();
    } catch (const std::exception & error) {
        LOG_ERR("%s\n", error.what());
    }
    specllama_calling = false;
    return result;
}

}  // namespace

extern "C" {

MTMD_API extern const char specllama_sources[];
const char                 specllama_sources[] = SPECLLAMA_SOURCES;

MTMD_API mtmd_context * specllama_open(const char * path, const llama_model * model, const mtmd_context_params * params) {
    return guarded([&] { return mtmd_init_from_file(path, model, *params); }, nullptr);
}

MTMD_API int32_t specllama_tokenize(const mtmd_context * context, mtmd_input_chunks * chunks, const mtmd_input_text * text,
                                    const mtmd_bitmap * const * bitmaps, size_t n) {
    return guarded([&] { return mtmd_tokenize(context, chunks, text, bitmaps, n); }, 2);
}

MTMD_API int32_t specllama_encode(mtmd_context * context, const mtmd_input_chunk * chunk) {
    return guarded([&] { return mtmd_encode_chunk(context, chunk); }, 1);
}
}
