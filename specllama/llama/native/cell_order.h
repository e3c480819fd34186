// The order in which the cells of KV caches were written. Included by plugin.cpp.
//
// llama.cpp writes the tokens of a sequence to any free cells, and its attention operation has no positions. But the cells
// of a sequence are written in the order of its tokens. So SET_ROWS on caches of 16-bit floats is recorded, and so are
// writes from outside (set_tensor), by which llama.cpp restores a saved sequence.
#pragma once

#include "hook.h"

#include <map>
#include <mutex>
#include <vector>

namespace specllama_cells {

struct cache {
    size_t                row;  // bytes
    ggml_backend_buffer_t buffer;
    uint32_t              n = 0;  // writes
    std::vector<uint32_t> written;  // for each cell, the number of its write; compared by difference, as n overflows

    void record(int64_t cell) {
        if (cell >= 0 && cell < (int64_t) written.size()) {
            written[cell] = ++n;
        }
    }
};

inline std::mutex                    mutex;
inline std::map<const void *, cache> caches;  // by the address of the first cell
inline void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) = nullptr;
inline void (*free_buffer)(ggml_backend_buffer_t)                                             = nullptr;

inline const ggml_tensor * root_of(const ggml_tensor * tensor) {
    return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

// These replace a buffer's functions and record what they do.
inline void set_and_record(ggml_backend_buffer_t buffer, ggml_tensor * to, const void * data, size_t offset, size_t size) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const ggml_tensor * const         root  = root_of(to);
        const auto                        found = caches.find(root->data);
        if (found != caches.end()) {
            const size_t from = (const char *) to->data - (const char *) root->data + offset, row = found->second.row;
            for (size_t cell = from / row; cell < (from + size) / row; cell++) {
                found->second.record((int64_t) cell);
            }
        }
    }
    set_tensor(buffer, to, data, offset, size);
}

inline void free_and_erase(ggml_backend_buffer_t buffer) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        for (auto at = caches.begin(); at != caches.end();) {
            at = at->second.buffer == buffer ? caches.erase(at) : std::next(at);
        }
    }
    free_buffer(buffer);
}

inline void replace_functions(ggml_backend_buffer_t buffer) {
    if (buffer->iface.set_tensor == set_and_record) {
        return;
    }
    if (set_tensor == nullptr) {
        set_tensor  = buffer->iface.set_tensor;
        free_buffer = buffer->iface.free_buffer;
    }
    if (buffer->iface.set_tensor == set_tensor && buffer->iface.free_buffer == free_buffer) {
        buffer->iface.set_tensor  = set_and_record;
        buffer->iface.free_buffer = free_and_erase;
    }
}

// Whether the operation writes to cells whose order is recorded.
inline bool is_recorded(const ggml_tensor * op) {
    return op->op == GGML_OP_SET_ROWS && op->type == GGML_TYPE_F16 && op->ne[0] >= 8 && op->ne[2] * op->ne[3] == 1 &&
           root_of(op)->buffer != nullptr;
}

inline void record(const ggml_tensor * op) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto                              found = caches.find(op->data);
    const ggml_backend_buffer_t       buffer = root_of(op)->buffer;
    if (found == caches.end() || found->second.row != op->nb[1] || (int64_t) found->second.written.size() != op->ne[1] ||
        found->second.buffer != buffer) {
        caches[op->data] = {op->nb[1], buffer, 0, std::vector<uint32_t>(op->ne[1])};
        replace_functions(buffer);
        found = caches.find(op->data);
    }
    const ggml_tensor * const cells = op->src[1];
    for (int64_t i = 0; i < cells->ne[0]; i++) {
        const char * const cell = (const char *) cells->data + i * cells->nb[0];
        found->second.record(cells->type == GGML_TYPE_I64 ? *(const int64_t *) cell : *(const int32_t *) cell);
    }
}

}  // namespace specllama_cells

const uint32_t * specllama_cell_order(const ggml_tensor * cache) {
    using namespace specllama_cells;
    const ggml_tensor * const         root = root_of(cache);
    const size_t                      from = (const char *) cache->data - (const char *) root->data;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto                        found = caches.find(root->data);
    if (found == caches.end() || found->second.row != cache->nb[1] || from % cache->nb[1] != 0 ||
        cache->nb[3] % cache->nb[1] != 0) {
        return nullptr;
    }
    const size_t first = from / cache->nb[1], last = first + (cache->ne[3] - 1) * cache->nb[3] / cache->nb[1];
    return last + cache->ne[1] <= found->second.written.size() ? found->second.written.data() + first : nullptr;
}
