// Calls the kernels through ggml with odd sizes. Results are compared with sums of 64-bit floats, and rows computed
// alone with the same rows among others, bit for bit. Each tensor has memory of its own, exactly as large as it is, so
// that AddressSanitizer sees an access beyond its end.
//   checks LEVEL [products] [experts] [attention] [few]
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" {
const char * specllama_start(void * library, const char * level);
const char * specllama_level();
long         specllama_computed(int kind);
bool         specllama_uses_amx();
}

namespace {

using floats = std::vector<float>;

constexpr int64_t PROMPT = 64;  // rows, from which on not all are computed by the kernels

std::mt19937 random_bits(27);
int          n_failed = 0, n_compared = 0;
bool         few = false;  // sizes

void fail(const std::string & what, const char * how, double by) {
    if (n_failed++ < 40) {
        printf("FAILED %s: %s %g\n", what.c_str(), how, by);
    }
}

int threads_for(int64_t at) { return few ? (at % 8 == 5) + 1 : at % 8 == 3 ? 4 : at % 8 == 5 ? 3 : (int) (at % 2) + 1; }

floats numbers(int64_t n) {
    std::normal_distribution<float> normal;
    floats all(n);
    std::generate(all.begin(), all.end(), [&] { return normal(random_bits); });
    return all;
}

// Also rows that round in one way alone: of zeros, halves, and a largest magnitude with both signs.
floats rows_of_numbers(int64_t n, int64_t count) {
    floats all = numbers(n * count);
    std::fill_n(all.begin() + n, std::min<int64_t>(n, QK_K), 0.0f);
    for (int64_t i = 0; i < n; i++) {
        all[2 * n + i] = i % QK_K == 30 ? -9 : i % QK_K == 17 ? 9 : all[2 * n + i];
        all[3 * n + i] = i % QK_K == 30 ? 127 : (float) (i % 60) - 30.5f;
    }
    return all;
}

struct ended {
    void operator()(void * memory) const { free(memory); }
    void operator()(ggml_context * context) const { ggml_free(context); }
};

// Tensors that live as long as this object.
class room {
  public:
    room() : context(ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true})) {}
    ggml_tensor * put(ggml_type type, int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
        ggml_tensor * tensor = ggml_new_tensor_4d(context.get(), type, a, b, c, d);
        tensor->data = memory(ggml_nbytes(tensor));
        return tensor;
    }
    ggml_tensor * put(const floats & from, int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
        ggml_tensor * tensor = put(GGML_TYPE_F32, a, b, c, d);
        memcpy(tensor->data, from.data(), ggml_nbytes(tensor));
        return tensor;
    }
    floats compute(ggml_tensor * node, int n_threads) {
        node->data = memory(ggml_nbytes(node));
        ggml_cgraph * graph = ggml_new_graph(context.get());
        ggml_build_forward_expand(graph, node);
        ggml_cplan plan = ggml_graph_plan(graph, n_threads, nullptr);
        plan.work_data  = (uint8_t *) memory(plan.work_size);
        if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) {
            abort();
        }
        const float * from = (const float *) node->data;
        return floats(from, from + ggml_nelements(node));
    }
    ggml_context * get() { return context.get(); }

  private:
    std::unique_ptr<ggml_context, ended>       context;
    std::vector<std::unique_ptr<void, ended>> kept;

    void * memory(size_t size) {
        void * created = nullptr;
        if (posix_memalign(&created, 32, std::max<size_t>(size, 1)) != 0) {
            abort();
        }
        kept.emplace_back(created);
        return created;
    }
};

std::vector<char> quantised(ggml_type type, const floats & from, int64_t n) {
    std::vector<char> to(ggml_row_size(type, n) * (from.size() / n));
    ggml_quantize_chunk(type, from.data(), to.data(), 0, from.size() / n, n, nullptr);
    return to;
}

floats to_floats(ggml_type type, const char * from, int64_t n) {
    floats to(n);
    if (type == GGML_TYPE_F32) {
        memcpy(to.data(), from, n * sizeof(float));
    } else if (type == GGML_TYPE_Q8_1) {
        const auto * a = (const block_q8_1 *) from;
        for (int64_t i = 0; i < n; i++) {
            to[i] = ggml_fp16_to_fp32(a[i / QK8_1].data.data.d) * a[i / QK8_1].qs[i % QK8_1];
        }
    } else if (type == GGML_TYPE_Q8_K) {
        const auto * a = (const block_q8_K *) from;
        for (int64_t i = 0; i < n; i++) {
            to[i] = a[i / QK_K].d * a[i / QK_K].qs[i % QK_K];
        }
    } else {
        ggml_get_type_traits(type)->to_float(from, to.data(), n);
    }
    return to;
}

// A row as the product of these weights reads it.
floats as_multiplied(ggml_type weights, const float * row, int64_t n) {
    const ggml_type type = ggml_get_type_traits_cpu(weights)->vec_dot_type;
    if (type == GGML_TYPE_F32) {
        return floats(row, row + n);
    }
    std::vector<char> to(ggml_row_size(type, n));
    ggml_get_type_traits_cpu(type)->from_float(row, to.data(), n);
    return to_floats(type, to.data(), n);
}

ggml_backend_buffer_type_t buffer_type(const char * name) {  // one of ggml's own layouts, or null
    const ggml_backend_reg_t reg = ggml_backend_cpu_reg();
    const auto list = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        reg, "ggml_backend_dev_get_extra_bufts");
    for (auto * type = list == nullptr ? nullptr : list(ggml_backend_reg_dev_get(reg, 0)); type && *type; type++) {
        if (strcmp(ggml_backend_buft_name(*type), name) == 0) {
            return *type;
        }
    }
    return nullptr;
}

struct weights {
    ggml_type         type;
    int64_t           n, columns, experts;
    std::vector<char> data;
    floats            values;

    weights(ggml_type of, int64_t length, int64_t count, int64_t n_experts = 1)
        : type(of), n(length), columns(count), experts(n_experts),
          data(quantised(of, numbers(length * count * n_experts), length)), values(length * count * n_experts) {
        for (int64_t at = 0; at < (int64_t) values.size(); at += n) {
            const floats row = to_floats(type, data.data() + at / n * ggml_row_size(type, n), n);
            std::copy(row.begin(), row.end(), values.begin() + at);
        }
    }
    std::string name(const char * layout) const {
        return std::string(ggml_type_name(type)) + " " + (layout ? layout : "") + " " + std::to_string(n) + "x" +
               std::to_string(columns);
    }
    void compare(const std::string & what, const floats & row, int64_t expert, const float * found, bool bf16 = false) const {
        // ggml rounds sums of Q8_1 to 16 bits, and adds up 16-bit floats as such where the processor can.
        const ggml_type by = ggml_get_type_traits_cpu(type)->vec_dot_type;
        const double    allowed = bf16 ? 4e-3 : by == GGML_TYPE_Q8_1 || by == GGML_TYPE_F16 ? 3e-3 : 2e-5;
        for (int64_t x = 0; x < columns; x++) {
            double sum = 0, size = 1e-6;
            for (int64_t i = 0; i < n; i++) {
                const double product = (double) values[(expert * columns + x) * n + i] * row[i];
                sum += product;
                size += std::abs(product);
            }
            n_compared++;
            if (!(std::abs(found[x] - sum) <= allowed * size)) {
                fail(what, "wrong by", (found[x] - sum) / size);
                return;
            }
        }
    }
};

// Weights in a room, or in ggml's own layout.
class placed {
  public:
    placed(room & here, const weights & w, const char * layout) {
        if (layout == nullptr) {
            tensor = here.put(w.type, w.n, w.columns, w.experts);
            memcpy(tensor->data, w.data.data(), w.data.size());
            return;
        }
        tensor = ggml_new_tensor_3d(here.get(), w.type, w.n, w.columns, w.experts);
        const ggml_backend_buffer_type_t type = buffer_type(layout);
        buffer = ggml_backend_buft_alloc_buffer(type, std::max(w.data.size(), ggml_backend_buft_get_alloc_size(type, tensor)));
        ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer));
        is_there = tensor->extra != nullptr && (strcmp(layout, "AMX") != 0 || is_computed(here, w.n));
        if (is_there) {
            ggml_backend_tensor_set(tensor, w.data.data(), 0, w.data.size());
        }
    }
    ~placed() { ggml_backend_buffer_free(buffer); }
    placed(const placed &) = delete;
    bool there() const { return is_there; }
    ggml_tensor * tensor;

  private:
    ggml_backend_buffer_t buffer = nullptr;
    bool is_there = true;
    bool is_computed(room & here, int64_t n) const {
        const ggml_tensor * product = ggml_mul_mat(here.get(), tensor, here.put(floats(n), n, 1));
        return specllama_uses_amx() &&
               ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), product);
    }
};

bool compare_bits(const std::string & what, const float * alone, const float * among, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(alone + i, among + i, sizeof(float)) != 0) {
            most = std::max(most, (double) std::abs(alone[i] - among[i]));
        }
    }
    const bool same = memcmp(alone, among, n * sizeof(float)) == 0;
    if (!same) {
        fail(what, "another result among others, by", most);
    }
    return same;
}

// `rows` of `n` numbers, further apart than they are long if there is a gap, in planes.
ggml_tensor * batch(room & here, const floats & from, int64_t n, int64_t rows, int64_t gap, int64_t planes) {
    floats apart((n + gap) * rows - gap);
    for (int64_t r = 0; r < rows; r++) {
        std::copy(from.begin() + r * n, from.begin() + (r + 1) * n, apart.begin() + r * (n + gap));
    }
    ggml_tensor * tensor = here.put(apart, apart.size());
    tensor->ne[0] = n;
    tensor->ne[1] = rows / planes;
    tensor->ne[2] = planes;
    tensor->nb[1] = (n + gap) * sizeof(float);
    tensor->nb[2] = tensor->nb[1] * tensor->ne[1];
    tensor->nb[3] = tensor->nb[2] * planes;
    return tensor;
}

// Whether prompts are multiplied by the kernels with the results of single rows.
bool has_kernel_for_prompts(ggml_type type, const char * layout) {
#if defined(__aarch64__)
    return false;
#endif
    const bool plain_alone = type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_K;  // their kernels need groups of columns
    return layout == nullptr ? !plain_alone : strcmp(layout, "AMX") != 0;
}

bool check_products(ggml_type type, int64_t n, int64_t columns, const char * layout) {
    constexpr int64_t ROWS = 70;
    const weights     w(type, n, columns);
    const floats      rows  = rows_of_numbers(n, ROWS);
    const std::string shape = w.name(layout);
    const bool        for_amx = layout != nullptr && strcmp(layout, "AMX") == 0;  // prompts are multiplied as BF16
    const auto times = [&](int64_t from, int64_t count, int n_threads, int64_t gap, int64_t planes, floats & found) {
        room         here;
        const placed put(here, w, layout);
        const floats some(rows.begin() + from * n, rows.begin() + (from + count) * n);
        if (put.there()) {
            ggml_tensor * b = batch(here, some, n, count, gap, planes);
            found = here.compute(ggml_mul_mat(here.get(), put.tensor, b), n_threads);
        }
        return put.there();
    };
    floats alone, found;
    for (int64_t r = 0; r < ROWS; r++) {
        if (!times(r, 1, threads_for(r), 0, 1, found)) {
            return false;
        }
        w.compare(shape + " row " + std::to_string(r), as_multiplied(type, rows.data() + r * n, n), 0, found.data());
        alone.insert(alone.end(), found.begin(), found.end());
    }
    for (int64_t count = 2; count <= ROWS; count += few ? count / 3 + 1 : 1) {
        const int64_t     planes = type != GGML_TYPE_F32 && layout == nullptr && count % 6 == 0 ? 2 : 1;
        const std::string what   = shape + " rows " + std::to_string(count) + " planes " + std::to_string(planes);
        const int64_t gap = count % 5 == 0 && !for_amx ? 3 : 0;  // ggml's AMX code is not asked for rows with gaps
        times(0, count, threads_for(count), gap, planes, found);
        if (count < PROMPT || has_kernel_for_prompts(type, layout)) {
            compare_bits(what, alone.data(), found.data(), found.size());
        } else {
            const float * last = rows.data() + (count - 1) * n;
            const floats  row  = for_amx ? floats(last, last + n) : as_multiplied(type, last, n);
            w.compare(what, row, 0, &found[(count - 1) * columns], for_amx);
        }
    }
    return true;
}

void check_experts(ggml_type type, int64_t n, int64_t columns, int64_t used, bool shared, const char * layout) {
    constexpr int64_t TOKENS = 70, EXPERTS = 5;
    const weights     w(type, n, columns, EXPERTS);
    const int64_t     slots = shared ? 1 : used;
    const floats      rows  = numbers(n * slots * TOKENS);
    std::vector<int32_t> ids;
    for (int64_t token = 0; token < TOKENS; token++) {
        std::vector<int32_t> order = {0, 1, 2, 3, 4};
        std::shuffle(order.begin(), order.end(), random_bits);
        ids.insert(ids.end(), order.begin(), order.begin() + used);
    }
    const std::string shape = w.name(layout) + " experts used " + std::to_string(used) + (shared ? " shared" : "");
    const auto times = [&](int64_t token, int64_t count, int n_threads, floats & found) {
        room          here;
        const placed  put(here, w, layout);
        ggml_tensor * chosen = here.put(GGML_TYPE_I32, used, count);
        memcpy(chosen->data, ids.data() + token * used, ggml_nbytes(chosen));
        const floats some(rows.begin() + token * slots * n, rows.begin() + (token + count) * slots * n);
        if (put.there()) {
            found = here.compute(
                ggml_mul_mat_id(here.get(), put.tensor, here.put(some, n, slots, count), chosen), n_threads);
        }
        return put.there();
    };
    const auto compare = [&](int64_t token, const float * results) {
        for (int64_t slot = 0; slot < used; slot++) {
            const floats row = as_multiplied(type, rows.data() + (token * slots + slot % slots) * n, n);
            w.compare(shape, row, ids[token * used + slot], results + slot * columns);
        }
    };
    floats alone, found;
    for (int64_t token = 0; token < TOKENS; token++) {
        if (!times(token, 1, threads_for(token), found)) {
            return;
        }
        compare(token, found.data());
        alone.insert(alone.end(), found.begin(), found.end());
    }
    for (int64_t count : {2, 3, 7, 9, 16, 30, 47, 63, 64, 70}) {
        times(0, count, threads_for(count), found);
        if (count < PROMPT) {
            compare_bits(shape + " tokens " + std::to_string(count), alone.data(), found.data(), found.size());
        } else {
            for (int64_t token = 0; token < count; token++) {
                compare(token, found.data() + token * used * columns);
            }
        }
    }
}

struct attended {
    ggml_type k, v;
    int64_t   dk, dv, heads, kv_heads, cells;
    bool      masked, sinks;
    float     bias, cap;
    int64_t   streams = 1;

    std::string name() const {
        char text[200];
        snprintf(text, sizeof(text),
                 "attention %s %s heads %d/%d of %d/%d cells %d mask %d sinks %d bias %g cap %g streams %d",
                 ggml_type_name(k), ggml_type_name(v), (int) heads, (int) kv_heads, (int) dk, (int) dv, (int) cells,
                 masked, sinks, bias, cap, (int) streams);
        return text;
    }
};

float slope_of(const attended & a, int64_t head) {
    if (a.bias == 0) {
        return 1;
    }
    const int64_t power = 1 << (int) std::floor(std::log2((double) a.heads));
    return head < power ? std::pow(std::pow(2.0f, -a.bias / power), (float) (head + 1))
                        : std::pow(std::pow(2.0f, -a.bias / 2 / power), (float) (2 * (head - power) + 1));
}

void check_attention(const attended & a) {
    constexpr int64_t ROWS = 70;
    const float       scale = 1 / std::sqrt((float) a.dk);
    const floats      q = numbers(a.dk * a.heads * ROWS * a.streams), sinks = numbers(a.heads);  // head after head
    const auto        cache = [&](ggml_type type, int64_t d) {  // of a cell, head after head
        return quantised(type, numbers(d * a.kv_heads * a.cells * a.streams), d * a.kv_heads);
    };
    std::vector<char> k = cache(a.k, a.dk), v = cache(a.v, a.dv);
    std::vector<ggml_fp16_t> mask(a.cells * ROWS * a.streams);
    for (int64_t i = 0; i < (int64_t) mask.size(); i++) {
        const int64_t row = i / a.cells % ROWS, cell = i % a.cells;
        const bool    hidden = cell > 0 && (cell > a.cells / 2 + row || random_bits() % 7 == 0 || cell % 50 > 40);
        mask[i] = ggml_fp32_to_fp16(hidden ? -INFINITY : a.bias > 0 ? -0.25f * (float) (random_bits() % 9) : 0);
    }
    // Among cells of other texts: at these places of a larger cache, whose other cells are hidden and not numbers.
    std::vector<int64_t> together, apart;
    for (int64_t cell = 0; cell < a.cells; cell++) {
        together.push_back(cell);
        apart.push_back((cell == 0 ? 0 : apart.back() + 1) + (random_bits() % 3 == 0 ? random_bits() % 20 : 0));
    }
    const auto attention = [&](int64_t from, int64_t rows, int n_threads, const std::vector<int64_t> & places) {
        room          here;
        const int64_t n_cells = places.back() + 1;
        const bool    masked = a.masked || n_cells > a.cells;
        const auto put_cache = [&](ggml_type type, const std::vector<char> & data, int64_t d) {
            ggml_tensor * tensor = here.put(type, d * a.kv_heads, n_cells, a.streams);
            memset(tensor->data, 0xFF, ggml_nbytes(tensor));
            for (int64_t i = 0; i < a.cells * a.streams; i++) {
                memcpy((char *) tensor->data + i / a.cells * tensor->nb[2] + places[i % a.cells] * tensor->nb[1],
                       data.data() + i * tensor->nb[1], tensor->nb[1]);
            }
            const size_t cell = tensor->nb[1], stream = tensor->nb[2];
            tensor->ne[0] = d;
            tensor->ne[2] = a.kv_heads;
            tensor->ne[3] = a.streams;
            tensor->nb[1] = cell;
            tensor->nb[2] = ggml_row_size(type, d);
            tensor->nb[3] = stream;
            return tensor;
        };
        floats some;
        std::vector<ggml_fp16_t> its_mask;
        for (int64_t s = 0; s < a.streams; s++) {
            const auto at = q.begin() + (s * ROWS + from) * a.dk * a.heads;
            some.insert(some.end(), at, at + rows * a.dk * a.heads);
            for (int64_t i = 0; i < rows; i++) {
                std::vector<ggml_fp16_t> one(n_cells, ggml_fp32_to_fp16(-INFINITY));
                for (int64_t cell = 0; cell < a.cells; cell++) {
                    one[places[cell]] = a.masked ? mask[(s * ROWS + from + i) * a.cells + cell] : ggml_fp32_to_fp16(0);
                }
                its_mask.insert(its_mask.end(), one.begin(), one.end());
            }
        }
        ggml_tensor * queries = here.put(some, a.dk, a.heads, rows, a.streams);
        std::swap(queries->ne[1], queries->ne[2]);
        std::swap(queries->nb[1], queries->nb[2]);
        ggml_tensor * hidden = masked ? here.put(GGML_TYPE_F16, n_cells, rows, 1, a.streams) : nullptr;
        if (hidden != nullptr) {
            memcpy(hidden->data, its_mask.data(), ggml_nbytes(hidden));
        }
        ggml_tensor * node = ggml_flash_attn_ext(here.get(), queries, put_cache(a.k, k, a.dk), put_cache(a.v, v, a.dv),
                                                 hidden, scale, a.bias, a.cap);
        if (a.sinks) {
            ggml_flash_attn_ext_add_sinks(node, here.put(sinks, a.heads));
        }
        return here.compute(node, n_threads);
    };
    const int64_t size  = a.dv * a.heads;
    const long    before = specllama_computed(1);
    const int     n_threads = 3;  // llama.cpp's attention of a single row depends on it
    std::vector<floats> alone;
    for (int64_t r = 0; r < ROWS; r++) {
        alone.push_back(attention(r, 1, n_threads, together));
    }
    const bool ours = specllama_computed(1) > before && a.k == GGML_TYPE_F16 && a.v == GGML_TYPE_F16 &&
                      a.dk % 16 == 0 && a.dk <= 576 && strcmp(specllama_level(), "neon") != 0;
    const double allowed = ours ? 1e-4 : 5e-2;  // llama.cpp's rounds queries, and sums in 16 bits
    for (int64_t r : {0, 1, 34, 69}) {
        for (int64_t s = 0; s < a.streams; s++) {
            for (int64_t head = 0; head < a.heads; head++) {
                const int64_t kv = head / (a.heads / a.kv_heads);
                std::vector<double> sums(a.dv), scores(a.cells);
                double most = a.sinks ? sinks[head] : -INFINITY, total = 0;
                for (int64_t cell = 0; cell < a.cells; cell++) {
                    const char * at = k.data() + ggml_row_size(a.k, a.dk) * ((s * a.cells + cell) * a.kv_heads + kv);
                    const floats key = to_floats(a.k, at, a.dk);
                    double       score = 0;
                    for (int64_t i = 0; i < a.dk; i++) {
                        score += (double) key[i] * q[((s * ROWS + r) * a.heads + head) * a.dk + i] * scale;
                    }
                    score = a.cap == 0 ? score : a.cap * std::tanh(score / a.cap);
                    if (a.masked) {
                        score += slope_of(a, head) * ggml_fp16_to_fp32(mask[(s * ROWS + r) * a.cells + cell]);
                    }
                    scores[cell] = score;
                    most = std::max(most, score);
                }
                for (int64_t cell = 0; cell < a.cells; cell++) {
                    const char * at = v.data() + ggml_row_size(a.v, a.dv) * ((s * a.cells + cell) * a.kv_heads + kv);
                    const floats value = to_floats(a.v, at, a.dv);
                    const double weight = std::exp(scores[cell] - most);
                    total += weight;
                    for (int64_t i = 0; i < a.dv; i++) {
                        sums[i] += weight * value[i];
                    }
                }
                total += a.sinks ? std::exp(sinks[head] - most) : 0;
                for (int64_t i = 0; i < a.dv; i++) {
                    const double off = alone[r][s * size + head * a.dv + i] - sums[i] / total;
                    n_compared++;
                    if (!(std::abs(off) <= allowed)) {
                        fail(a.name() + " row " + std::to_string(r), "wrong by", off);
                        return;
                    }
                }
            }
        }
    }
    for (int64_t rows : {2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 18, 31, 33, 63, 70}) {
        const floats found = attention(0, rows, n_threads, together);
        const bool reference = !ours && (a.k == GGML_TYPE_F16 || a.k == GGML_TYPE_F32);  // llama.cpp's; not for prompts
        for (int64_t i = 0; i < a.streams * rows && (rows < PROMPT || !reference); i++) {
            if (!compare_bits(a.name() + " rows " + std::to_string(rows), alone[i % rows].data() + i / rows * size,
                              found.data() + i * size, size)) {
                return;
            }
        }
    }
    for (int64_t rows : {1, 2, 5, 17, 63}) {
        const floats found = ours ? attention(0, rows, n_threads, apart) : floats();
        for (int64_t i = 0; i < a.streams * rows && ours; i++) {
            if (!compare_bits(a.name() + " cells apart, rows " + std::to_string(rows),
                              alone[i % rows].data() + i / rows * size, found.data() + i * size, size)) {
                return;
            }
        }
    }
}

void products() {
    const ggml_type types[] = {
        GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,   GGML_TYPE_Q5_0,
        GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,   GGML_TYPE_Q5_K,
        GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_MXFP4};
    for (ggml_type type : types) {
        const int64_t block = std::max<int64_t>(ggml_blck_size(type), 8);
        for (int64_t blocks : {1, 2, 5}) {
#if defined(__aarch64__)
            if (type == GGML_TYPE_Q5_0 && blocks % 2 == 1) {
                continue;  // GCC 12 compiles ggml's product of an odd number of blocks for i8mm into a wrong one
            }
#endif
            for (int64_t columns : {1, 2, 7, 8, 13, 24, 37, 80, 160}) {  // the last one is a multiple of 32 for AMX
                if (few && (blocks == (type == GGML_TYPE_Q5_0 ? 5 : 1) || (columns != 7 && columns != 24 && columns != 160))) {
                    continue;
                }
                const int64_t n = block < 32 && blocks == 5 ? 528 : blocks * block;
                check_products(type, n, columns, nullptr);
                for (const char * layout : {"CPU_REPACK", "AMX"}) {
                    if (buffer_type(layout) != nullptr && ggml_is_quantized(type)) {
                        check_products(type, n, columns, layout);
                    }
                }
            }
        }
        printf("products of %s\n", ggml_type_name(type));
    }
}

void experts() {
    for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0,
                           GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
                           GGML_TYPE_MXFP4}) {
        for (const char * layout : {(const char *) nullptr, "CPU_REPACK"}) {
            if (layout != nullptr && (buffer_type(layout) == nullptr || !ggml_is_quantized(type))) {
                continue;
            }
            check_experts(type, 256, layout ? 40 : 37, 2, true, layout);
            check_experts(type, 512, layout ? 8 : 5, 3, false, layout);
        }
        printf("experts of %s\n", ggml_type_name(type));
    }
}

void attentions() {
    const ggml_type types[][2] = {{GGML_TYPE_F16, GGML_TYPE_F16}, {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0},
                                  {GGML_TYPE_Q4_0, GGML_TYPE_Q4_0}, {GGML_TYPE_Q8_0, GGML_TYPE_F16},
                                  {GGML_TYPE_F32, GGML_TYPE_F32}, {GGML_TYPE_BF16, GGML_TYPE_BF16}};
    const int64_t sizes[][2] = {{64, 64}, {80, 80}, {96, 96}, {128, 128}, {256, 256}, {192, 128}, {40, 40}, {512, 512}, {576, 512}, {640, 640}};
    const int64_t shared[][2] = {{4, 4}, {6, 2}, {8, 1}, {3, 1}};
    int at = 0;
    for (const auto & type : types) {
        for (const auto & size : sizes) {
            if (size[0] % ggml_blck_size(type[0]) != 0 || size[1] % ggml_blck_size(type[1]) != 0) {
                continue;
            }
            for (int64_t cells : {1, 31, 33, 257, 600}) {
                at++;
                if (few && at % 4 != 0) {
                    continue;
                }
                const auto &   heads = shared[at % 4];
                const bool     masked = at % 8 != 0;
                check_attention({type[0], type[1], size[0], size[1], heads[0], heads[1], cells, masked, at % 3 == 0,
                                 masked && at % 5 == 1 ? 8.0f : 0.0f, at % 7 == 0 ? 20.0f : 0.0f, at % 6 == 0 ? 2 : 1});
            }
        }
        printf("attention with caches of %s and %s\n", ggml_type_name(type[0]), ggml_type_name(type[1]));
    }
}

}  // namespace

int main(int n_args, char ** args) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    if (n_args < 2) {
        return 2;
    }
    ggml_cpu_init();
    buffer_type("");
    if (strcmp(args[1], "off") != 0) {
        const char * why = specllama_start(dlopen(nullptr, RTLD_NOW), args[1]);
        if (why != nullptr) {
            printf("%s: %s\n", args[1], why);
            return 3;
        }
        printf("%s\n", specllama_level());
    }
    const auto given = [&](const char * name) {
        return std::any_of(args + 2, args + n_args, [&](const char * one) { return strcmp(one, name) == 0; });
    };
    few = given("few");
    const std::pair<const char *, void (*)()> all[] = {
        {"products", products}, {"experts", experts}, {"attention", attentions}};
    for (const auto & one : all) {
        if (given(one.first)) {
            one.second();
        }
    }
    printf("%d results compared, %ld multiplications and %ld attentions by the kernels, %d failures\n", n_compared,
           specllama_computed(0), specllama_computed(1), n_failed);
    return n_failed == 0 ? 0 : 1;
}
