// Opens a projector. ggml, too, ends the process where tensors do not fit together; while a projector's graph is built for
// the first time, in this thread and without computing, that is an exception instead.
#include "mtmd.h"

namespace {

thread_local bool opening = false;

void throw_if_opening(const char * message) {
    if (opening) {
        throw std::runtime_error(message);
    }
    fprintf(stderr, "%s\n", message);  // as ggml does without this function
}

}  // namespace

extern "C" {

MTMD_API extern const char specllama_sources[];
const char                 specllama_sources[] = SPECLLAMA_SOURCES;

MTMD_API mtmd_context * specllama_open(const char * path, const llama_model * model, const mtmd_context_params * params) {
    const auto before = ggml_set_abort_callback(throw_if_opening);
    opening           = true;
    mtmd_context * context = mtmd_init_from_file(path, model, *params);
    opening                = false;
    ggml_set_abort_callback(before);
    return context;
}
}
