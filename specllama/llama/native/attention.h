// Flash attention on a cache of 16-bit floats, for any number of rows (x86-64 with AVX2). kernels.cpp
// includes this file.
//
// llama.cpp reads keys and values once per row and head, one cell of the cache after the other, and sums values as
// 16-bit floats; from 64 rows on it uses tiles, which sum in another order. Here sixteen cells are read and converted
// once for up to sixteen queries (the rows of a batch, and the heads that share keys and values), and all sums are
// 32-bit floats.
//
// The result for a query depends only on the query and on the cells that it sees, in the order in which they were
// written: a row is bit-identical alone and in any batch, with any number of threads, and wherever its cells lie between
// those of other texts. So nothing may depend on which sixteen cells are computed together:
// - A score depends only on its cell. Values are added cell by cell.
// - Weights are powers of two of scores, relative to a running maximum ("Online normalizer calculation for softmax",
//   arXiv:1805.02867) that is a whole number: rescaling the sums is exact, whenever it happens.
// - Weights are added in sixteen lanes; a cell's lane is its place among the cells that the query sees.
#pragma once

#include "floats.h"
#include "visible.h"

namespace specllama_attention {

constexpr int FEW     = 4;    // up to so many queries it is faster not to write converted cells to memory
constexpr int WIDEST  = 256;  // largest head size; queries and cells then fit in the L1 cache
constexpr int STEP    = WIDEST + CELLS;  // of the sums: of the values, and from WIDEST on of the weights
constexpr float LOG2E = 1.44269504f;

constexpr int PARTS = CELLS / LANES;  // vectors of a query's scores
constexpr int COLUMNS = 4 * LANES;    // columns of values that are summed at once

// Whether `attend` can compute the operation.
inline bool attends(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2];
    return q->type == GGML_TYPE_F32 && k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 &&
           k->ne[0] % LANES == 0 && v->ne[0] % LANES == 0 && k->ne[0] <= WIDEST && v->ne[0] <= WIDEST &&
           k->nb[0] == sizeof(ggml_fp16_t) && v->nb[0] == sizeof(ggml_fp16_t) &&
           k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && q->ne[2] % k->ne[2] == 0 && q->ne[3] % k->ne[3] == 0;
}

// One query: one head of one row.
struct query {
    int64_t             row, head;
    int                 at;     // the row among those of `compute`
    const ggml_fp16_t * mask;   // null if it only hides
    float               slope;
    float               most;   // a whole number: no score so far is larger
    unsigned            cells;  // bit mask of the sixteen cells that it sees
    unsigned            lane;   // of the next cell's weight
};

struct numbers {  // of a thread
    float scores[QUERIES][CELLS], given[QUERIES][WIDEST], sums[QUERIES][STEP];
    float converted[CELLS * WIDEST];  // keys, then values
};
static_assert(sizeof(numbers) == ATTENTION_NUMBERS, "hook.h");

inline float power_of_two(float n) {  // n: a whole number up to 0; 0 below the normal floats
    const uint32_t bits  = n < -126.0f ? 0 : (uint32_t) ((int) n + 127) << 23;
    float          value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

class attention {
  public:
    // order: see `visible`, for the cell of the first batch; null if it is not known.
    attention(ggml_tensor * to, const uint32_t * written)
        : dst(to), q(to->src[0]), k(to->src[1]), v(to->src[2]), mask(to->src[3]), sinks(to->src[4]), order(written),
          dk(k->ne[0]), dv(v->ne[0]) {
        memcpy(&scale, (const float *) dst->op_params + 0, sizeof(float));
        memcpy(&bias, (const float *) dst->op_params + 1, sizeof(float));
        memcpy(&cap, (const float *) dst->op_params + 2, sizeof(float));
        scale = cap == 0 ? scale * LOG2E : scale / cap;
        cap *= LOG2E;
    }

    // Queries: `heads` from `head` on, which share keys and values, of `rows` from `row` on. scratch: `attention_scratch`
    // bytes.
    void compute(int64_t batch, int64_t head, int64_t heads, int64_t row, int64_t rows, char * scratch) const {
        const int64_t kv_batch = batch / (q->ne[3] / k->ne[3]);
        visible cells(scratch + sizeof(numbers), k->ne[1], order == nullptr ? nullptr : order + kv_batch * k->nb[3] / k->nb[1]);
        bool    added[QUERIES];
        for (int r = 0; r < rows; r++) {
            added[r] = cells.scan(r, mask_of(batch, head, row + r));
        }
        for (int from = 0, to = 1; from < rows; from = to++) {
            while (to < rows && cells.continues(to)) {
                to++;
            }
            compute(batch, head, heads, row, from, to, added, cells, *(numbers *) scratch);
        }
    }

  private:
    static constexpr unsigned ALL = (1u << CELLS) - 1;

    ggml_tensor *       dst;
    const ggml_tensor * q, * k, * v, * mask, * sinks;
    const uint32_t *    order;
    int64_t             dk, dv;
    float               scale, bias, cap;

    const ggml_fp16_t * mask_of(int64_t batch, int64_t head, int64_t row) const {
        return mask == nullptr ? nullptr : (const ggml_fp16_t *) ((const char *) mask->data + row * mask->nb[1] +
            head % mask->ne[2] * mask->nb[2] + batch % mask->ne[3] * mask->nb[3]);
    }

    query query_of(int64_t batch, int64_t head, int64_t row, int at, bool added) const {
        float slope = LOG2E;
        if (bias > 0.0f) {  // ALiBi
            const int64_t power = (int64_t) 1 << (int) std::floor(std::log2((double) q->ne[2]));
            slope *= head < power ? std::pow(std::pow(2.0f, -bias / power), (float) (head + 1))
                                  : std::pow(std::pow(2.0f, -bias / 2 / power), (float) (2 * (head - power) + 1));
        }
        return {row + at, head, at, added ? mask_of(batch, head, row + at) : nullptr, slope, -INFINITY, 0, 0};
    }

    // The rows from `from` to before `to`, counted from `row` on, which are of the same text.
    void compute(int64_t batch, int64_t head, int64_t heads, int64_t row, int from, int to, const bool * added,
                 visible & cells, numbers & numbers) const {
        const auto    scores    = numbers.scores;
        const auto    given     = numbers.given;
        const auto    sums      = numbers.sums;
        float * const converted = numbers.converted;
        query queries[QUERIES];
        const int n = (int) heads * (to - from);
        for (int x = 0; x < n; x++) {
            const int r = from + x / (int) heads;
            queries[x]  = query_of(batch, head + x % heads, row, r, added[r]);
            const float * its = (const float *) ((const char *) q->data + queries[x].row * q->nb[1] +
                                                 queries[x].head * q->nb[2] + batch * q->nb[3]);
            for (int64_t d = 0; d < dk; d += LANES) {
                write(given[x] + d, times(read(its + d), all(scale)));
            }
            memset(sums[x], 0, dv * sizeof(float));
            memset(sums[x] + WIDEST, 0, CELLS * sizeof(float));
        }
        const int64_t kv = head / (q->ne[2] / k->ne[2]), kv_batch = batch / (q->ne[3] / k->ne[3]);
        const char *  k_data = (const char *) k->data + kv * k->nb[2] + kv_batch * k->nb[3];
        const char *  v_data = (const char *) v->data + kv * v->nb[2] + kv_batch * v->nb[3];
        const int64_t n_cells = cells.gather(from, to);
        for (int64_t at = 0; at < n_cells; at += CELLS) {
            block    sixteen;
            unsigned any = 0;
            cells.get(at, sixteen);
            for (int x = 0; x < n; x++) {
                queries[x].cells = sixteen.seen[queries[x].at];
                any |= queries[x].cells;
                if (queries[x].mask != nullptr) {
                    for (int j = 0; j < sixteen.count; j++) {
                        scores[x][j] = queries[x].slope * float_of(queries[x].mask[sixteen.cells[j]]);
                    }
                }
            }
            if (any == 0) {
                continue;
            }
            if (n <= FEW && sixteen.adjoining && sixteen.cells[0] + CELLS <= k->ne[1]) {
                weigh_all(n, queries, given, (const ggml_fp16_t *) (k_data + sixteen.cells[0] * k->nb[1]),
                          k->nb[1] / sizeof(ggml_fp16_t), scores, sums);
                add_all(n, queries, (const ggml_fp16_t *) (v_data + sixteen.cells[0] * v->nb[1]),
                        v->nb[1] / sizeof(ggml_fp16_t), scores, sums);
                continue;
            }
            convert(k_data, k->nb[1], sixteen, any, converted, dk);
            weigh_all(n, queries, given, converted, dk, scores, sums);
            convert(v_data, v->nb[1], sixteen, any, converted, dv);
            add_all(n, queries, converted, dv, scores, sums);
        }
        for (int x = 0; x < n; x++) {
            finish(batch, queries[x], sums[x]);
        }
    }

    // Sixteen cells and n queries. T: floats, or 16-bit floats that are widened as they are read. Keys and values of two
    // cells are `step` numbers apart.
    template <typename T>
    void weigh_all(int n, query * queries, const float (*given)[WIDEST], const T * keys, int64_t step,
                   float (*scores)[CELLS], float (*sums)[STEP]) const {
        for (int x = 0; x < n; x++) {
            if (queries[x].cells != 0) {
                weigh(queries[x], given[x], keys, step, scores[x], sums[x]);
            }
        }
    }

    template <typename T>
    void add_all(int n, const query * queries, const T * values, int64_t step, float (*scores)[CELLS],
                 float (*sums)[STEP]) const {
        for (int x = 0; x < n; x += 2) {
            if (x + 1 < n && queries[x].cells == ALL && queries[x + 1].cells == ALL) {
                add<2>(scores[x], values, step, sums[x]);
                continue;
            }
            for (int y = x; y < std::min(n, x + 2); y++) {
                if (queries[y].cells == ALL) {
                    add<1>(scores[y], values, step, sums[y]);
                } else {
                    add_some(queries[y].cells, scores[y], values, step, sums[y]);
                }
            }
        }
    }

    static void convert(const char * from, size_t step, const block & sixteen, unsigned any, float * to, int64_t n) {
        for (int j = 0; j < sixteen.count; j++) {
            if (any >> j & 1) {
                const ggml_fp16_t * const cell = (const ggml_fp16_t *) (from + sixteen.cells[j] * step);
                for (int64_t d = 0; d < n; d += LANES) {
                    write(to + j * n + d, widen(cell + d));
                }
            }
        }
    }

    // Turns scores, and what the mask adds to them, into weights; rescales the sums if there is a new maximum.
    template <typename T>
    void weigh(query & query, const float * given, const T * keys, int64_t step, float * scores, float * sums) const {
        floats part[PARTS], most;
        for (int p = 0; p < PARTS; p++) {
            floats products[LANES];
            for (int j = 0; j < LANES; j++) {
                products[j] = zeros();
            }
            for (int64_t d = 0; d < dk; d += LANES) {
                const floats mine = read(given + d);
                for (int j = 0; j < LANES; j++) {
                    products[j] = more(mine, read(keys + (p * LANES + j) * step + d), products[j]);
                }
            }
            part[p] = totals(products);
            if (cap != 0) {
                alignas(64) float capped[LANES];
                write(capped, part[p]);
                for (float & one : capped) {
                    one = cap * std::tanh(one);
                }
                part[p] = read(capped);
            }
            if (query.mask != nullptr) {
                part[p] = plus(part[p], read(scores + p * LANES));
            }
            part[p] = only(part[p], query.cells >> (p * LANES));
            most    = p == 0 ? part[p] : larger(most, part[p]);
        }
        const float highest = largest(most);
        if (highest > query.most) {
            const float now  = std::ceil(highest);
            const float less = power_of_two(query.most - now);
            query.most       = now;
            for (int64_t d = 0; d < dv; d += LANES) {
                write(sums + d, times(read(sums + d), all(less)));
            }
            for (int64_t d = WIDEST; d < STEP; d += LANES) {
                write(sums + d, times(read(sums + d), all(less)));
            }
        }
        for (int p = 0; p < PARTS; p++) {
            part[p] = power(part[p], query.most, query.cells >> (p * LANES));
            write(scores + p * LANES, part[p]);
        }
        if (query.cells == ALL) {
            if (query.lane != 0) {
                rotate(part, query.lane);
            }
            for (int p = 0; p < PARTS; p++) {
                float * const to = sums + WIDEST + p * LANES;
                write(to, plus(read(to), part[p]));
            }
            return;
        }
        for (unsigned cells = query.cells; cells != 0; cells &= cells - 1) {
            sums[WIDEST + query.lane] += scores[__builtin_ctz(cells)];
            query.lane = (query.lane + 1) % CELLS;
        }
    }

    // Adds the values of all cells with their weights for N queries.
    template <int N, typename T>
    void add(const float * weights, const T * values, int64_t step, float * sums) const {
        int64_t d = 0;
        for (; d + COLUMNS <= dv; d += COLUMNS) {
            add_columns<N, 4>(weights, values + d, step, sums + d);
        }
        for (; d < dv; d += LANES) {
            add_columns<N, 1>(weights, values + d, step, sums + d);
        }
    }

    template <int N, int VECTORS, typename T>
    void add_columns(const float * weights, const T * values, int64_t step, float * sums) const {
        floats sum[N][VECTORS];
        for (int x = 0; x < N; x++) {
            for (int i = 0; i < VECTORS; i++) {
                sum[x][i] = read(sums + x * STEP + i * LANES);
            }
        }
        for (int j = 0; j < CELLS; j++) {
            for (int i = 0; i < VECTORS; i++) {
                const floats value = read(values + j * step + i * LANES);
                for (int x = 0; x < N; x++) {
                    sum[x][i] = more(all(weights[x * CELLS + j]), value, sum[x][i]);
                }
            }
        }
        for (int x = 0; x < N; x++) {
            for (int i = 0; i < VECTORS; i++) {
                write(sums + x * STEP + i * LANES, sum[x][i]);
            }
        }
    }

    // The same if some cells are hidden: their values may be anything, NaN included.
    template <typename T>
    void add_some(unsigned cells, const float * weights, const T * values, int64_t step, float * sums) const {
        for (int j = 0; j < CELLS; j++) {
            if (cells >> j & 1) {
                for (int64_t d = 0; d < dv; d += LANES) {
                    write(sums + d, more(all(weights[j]), read(values + j * step + d), read(sums + d)));
                }
            }
        }
    }

    void finish(int64_t batch, query & query, float * sums) const {
        float total = 0.0f, by = 1.0f;
        for (int lane = 0; lane < CELLS; lane++) {
            total += sums[WIDEST + lane];
        }
        if (sinks != nullptr) {
            const float sink = ((const float *) sinks->data)[query.head] * LOG2E;
            const float most = std::max(query.most, std::ceil(sink));
            by               = power_of_two(query.most - most);
            total            = total * by + std::exp2(sink - most);
        }
        by = total == 0.0f ? 0.0f : by / total;
        float * to = (float *) ((char *) dst->data +
                                (batch * dst->ne[2] * dst->ne[1] + query.head + query.row * dst->ne[1]) * dst->nb[1]);
        for (int64_t d = 0; d < dv; d += LANES) {
            write(to + d, times(read(sums + d), all(by)));
        }
    }
};

// The whole operation; each thread takes parts as long as there are any.
inline void attend(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1], * mask = dst->src[3];
    // Heads that share cells; not if each has a mask of its own.
    const int64_t sharing = mask == nullptr || mask->ne[2] == 1 ? q->ne[2] / k->ne[2] : 1;
    const auto    parts_of = [&](int64_t heads, int64_t rows) {
        return q->ne[3] * (q->ne[2] / heads) * ((q->ne[1] + rows - 1) / rows);
    };
    int64_t heads = 1;
    for (int64_t n = std::min<int64_t>(sharing, QUERIES); n > 1 && heads == 1; n--) {
        if (sharing % n == 0 && parts_of(n, std::max<int64_t>(1, QUERIES / n)) >= params->nth) {
            heads = n;
        }
    }
    const int64_t rows   = std::max<int64_t>(1, QUERIES / heads);
    const int64_t groups = (q->ne[1] + rows - 1) / rows, parts = parts_of(heads, rows);
    if (params->ith == 0) {
        specllama_ggml.chunk_set(params->threadpool, params->nth);
        *(const uint32_t **) params->wdata = specllama_order_of(k);
    }
    specllama_ggml.barrier(params->threadpool);
    const attention all_of_it(dst, *(const uint32_t * const *) params->wdata);
    char * const    shared = (char *) (((uintptr_t) params->wdata + 127) / 64 * 64);  // behind the address, aligned
    char * const    scratch = shared + params->ith * attention_scratch(k->ne[1]);
    for (int64_t part = params->ith; part < parts; part = specllama_ggml.chunk_add(params->threadpool, 1)) {
        const int64_t row = part % groups * rows, head = part / groups % (q->ne[2] / heads) * heads;
        all_of_it.compute(part / groups / (q->ne[2] / heads), head, heads, row, std::min(rows, q->ne[1] - row),
                          scratch);
    }
}

}  // namespace specllama_attention
