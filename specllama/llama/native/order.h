// In which order the cells of caches were written. plugin.cpp includes this file.
//
// llama.cpp writes the tokens of a text into any free cells, and the operation of attention has no positions. Cells of a
// text are written in the order of its tokens, though: SET_ROWS of caches of 16-bit floats is watched, and so is what
// is written into a cache from outside, as llama.cpp does when it restores a saved text.
#pragma once

#include "hook.h"

#include <map>
#include <mutex>
#include <vector>

namespace specllama_order {

struct cache {
    size_t                row;  // bytes
    ggml_backend_buffer_t buffer;
    uint32_t              n = 0;  // writes
    std::vector<uint32_t> written;  // for each cell, which write it was; compared by their difference, since n overflows

    void note(int64_t cell) {
        if (cell >= 0 && cell < (int64_t) written.size()) {
            written[cell] = ++n;
        }
    }
};

inline std::mutex                    guard;
inline std::map<const void *, cache> caches;  // by the address of the first cell
inline void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) = nullptr;
inline void (*free_buffer)(ggml_backend_buffer_t)                                             = nullptr;

inline const ggml_tensor * root_of(const ggml_tensor * tensor) {
    return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

// A buffer's functions are replaced by these, which note what happens.
inline void set_and_note(ggml_backend_buffer_t buffer, ggml_tensor * to, const void * data, size_t offset, size_t size) {
    {
        const std::lock_guard<std::mutex> lock(guard);
        const ggml_tensor * const         root  = root_of(to);
        const auto                        found = caches.find(root->data);
        if (found != caches.end()) {
            const size_t from = (const char *) to->data - (const char *) root->data + offset, row = found->second.row;
            for (size_t cell = from / row; cell < (from + size) / row; cell++) {
                found->second.note((int64_t) cell);
            }
        }
    }
    set_tensor(buffer, to, data, offset, size);
}

inline void free_and_forget(ggml_backend_buffer_t buffer) {
    {
        const std::lock_guard<std::mutex> lock(guard);
        for (auto at = caches.begin(); at != caches.end();) {
            at = at->second.buffer == buffer ? caches.erase(at) : std::next(at);
        }
    }
    free_buffer(buffer);
}

inline void watch(ggml_backend_buffer_t buffer) {
    if (buffer->iface.set_tensor == set_and_note) {
        return;
    }
    if (set_tensor == nullptr) {
        set_tensor  = buffer->iface.set_tensor;
        free_buffer = buffer->iface.free_buffer;
    }
    if (buffer->iface.set_tensor == set_tensor && buffer->iface.free_buffer == free_buffer) {
        buffer->iface.set_tensor  = set_and_note;
        buffer->iface.free_buffer = free_and_forget;
    }
}

// Whether the operation writes cells whose order is noted.
inline bool notes(const ggml_tensor * op) {
    return op->op == GGML_OP_SET_ROWS && op->type == GGML_TYPE_F16 && op->ne[0] >= 8 && op->ne[2] * op->ne[3] == 1 &&
           root_of(op)->buffer != nullptr;
}

inline void note(const ggml_tensor * op) {
    const std::lock_guard<std::mutex> lock(guard);
    auto                              found = caches.find(op->data);
    const ggml_backend_buffer_t       buffer = root_of(op)->buffer;
    if (found == caches.end() || found->second.row != op->nb[1] || (int64_t) found->second.written.size() != op->ne[1] ||
        found->second.buffer != buffer) {
        caches[op->data] = {op->nb[1], buffer, 0, std::vector<uint32_t>(op->ne[1])};
        watch(buffer);
        found = caches.find(op->data);
    }
    const ggml_tensor * const at = op->src[1];
    for (int64_t i = 0; i < at->ne[0]; i++) {
        const char * const one = (const char *) at->data + i * at->nb[0];
        found->second.note(at->type == GGML_TYPE_I64 ? *(const int64_t *) one : *(const int32_t *) one);
    }
}

}  // namespace specllama_order

const uint32_t * specllama_order_of(const ggml_tensor * cache) {
    using namespace specllama_order;
    const ggml_tensor * const         root = root_of(cache);
    const size_t                      from = (const char *) cache->data - (const char *) root->data;
    const std::lock_guard<std::mutex> lock(guard);
    const auto                        found = caches.find(root->data);
    if (found == caches.end() || found->second.row != cache->nb[1] || from % cache->nb[1] != 0 ||
        cache->nb[3] % cache->nb[1] != 0) {
        return nullptr;
    }
    const size_t first = from / cache->nb[1], last = first + (cache->ne[3] - 1) * cache->nb[3] / cache->nb[1];
    return last + cache->ne[1] <= found->second.written.size() ? found->second.written.data() + first : nullptr;
}
