// Flash attention on a cache of 16-bit floats, for any number of rows (x86-64 with AVX2). kernels.cpp
// includes this file.
//
// llama.cpp reads keys and values once per row and head, cell by cell, and sums values as 16-bit floats; from 64 rows on it
// uses tiles, which sum in another order. Here sixteen cells are read and converted once for up to sixteen queries (the rows
// of a batch, and the heads that share keys and values), and all sums are 32-bit floats.
//
// The result for a query depends only on the query and on the cells that it sees, in the order in which they were written:
// a row is bit-identical alone and in any batch, with any number of threads, and wherever its cells are among those of
// other sequences. So nothing may depend on which sixteen cells are computed together:
// - A score depends only on its cell. Values are added cell by cell.
// - Weights are powers of two of scores, relative to a running maximum ("Online normalizer calculation for softmax",
//   arXiv:1805.02867) that is an integer: rescaling the sums is exact, whenever it happens.
// - Weights are added in sixteen lanes; a cell's lane is its index among the cells that the query sees, modulo sixteen.
#pragma once

#include "attention_vectors.h"
#include "visible_cells.h"

namespace specllama_attention {

constexpr int   FEW_QUERIES   = 4;    // up to so many queries, cells are converted as they are read
constexpr int   USUAL_SIZE    = 256;  // queries and cells of heads up to this size fit in the L1 cache
constexpr int   MAX_HEAD_SIZE = 576;
constexpr float LOG2E         = 1.44269504f;

constexpr int VECTORS_PER_BLOCK = CELLS / LANES;  // vectors of a query's scores
constexpr int COLUMNS           = 4 * LANES;      // of values that are summed at once

// Whether flash_attn can compute the operation.
inline bool supports_flash_attn(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2];
    return q->type == GGML_TYPE_F32 && k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 &&
           k->ne[0] % LANES == 0 && v->ne[0] % LANES == 0 && k->ne[0] <= MAX_HEAD_SIZE && v->ne[0] <= MAX_HEAD_SIZE &&
           k->nb[0] == sizeof(ggml_fp16_t) && v->nb[0] == sizeof(ggml_fp16_t) &&
           k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && q->ne[2] % k->ne[2] == 0 && q->ne[3] % k->ne[3] == 0;
}

// One query: one head of one row.
struct query {
    int64_t             row, head;
    int                 at;         // index of the row among those of `compute`
    const ggml_fp16_t * mask;       // null if it only hides cells
    float               slope;
    float               max_score;  // an integer: no score so far is larger
    unsigned            cells;      // bit mask of the sixteen cells that it sees
    unsigned            lane;       // of the next cell's weight
};

template <int SIZE> struct workspace {  // of a thread, for heads up to this size
    static constexpr int SUMS_STEP = SIZE + CELLS;  // a query's sums of values, and after SIZE of weights
    float scores[QUERIES][CELLS], queries_f32[QUERIES][SIZE], sums[QUERIES][SUMS_STEP];
    float widened[CELLS * SIZE];  // keys, then values
};
static_assert(sizeof(workspace<MAX_HEAD_SIZE>) == ATTENTION_WORKSPACE, "hook.h");

inline float power_of_two(float n) {  // n: an integer up to 0; the result is 0 where it would be subnormal
    const uint32_t bits  = n < -126.0f ? 0 : (uint32_t) ((int) n + 127) << 23;
    float          value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

template <int SIZE> class attention {
  public:
    // cell_order: as of visible_cells, from the first cell of the first batch on; null if unknown.
    attention(ggml_tensor * to, const uint32_t * cell_order)
        : dst(to), q(to->src[0]), k(to->src[1]), v(to->src[2]), mask(to->src[3]), sinks(to->src[4]), cell_order_(cell_order),
          dk(k->ne[0]), dv(v->ne[0]) {
        memcpy(&scale, (const float *) dst->op_params + 0, sizeof(float));
        memcpy(&bias, (const float *) dst->op_params + 1, sizeof(float));
        memcpy(&cap, (const float *) dst->op_params + 2, sizeof(float));
        scale = cap == 0 ? scale * LOG2E : scale / cap;
        cap *= LOG2E;
    }

    // Computes `heads` heads from `head` on, which share keys and values, of `rows` rows from `row` on. scratch:
    // attention_scratch() bytes.
    void compute(int64_t batch, int64_t head, int64_t heads, int64_t row, int64_t rows, char * scratch) const {
        const int64_t kv_batch = batch / (q->ne[3] / k->ne[3]);
        const uint32_t * batch_order = cell_order_ == nullptr ? nullptr : cell_order_ + kv_batch * k->nb[3] / k->nb[1];
        visible_cells cells(scratch + sizeof(workspace<SIZE>), k->ne[1], batch_order);
        bool    added[QUERIES];
        for (int r = 0; r < rows; r++) {
            added[r] = cells.scan(r, mask_of(batch, head, row + r));
        }
        for (int from = 0, to = 1; from < rows; from = to++) {
            while (to < rows && cells.continues(to)) {
                to++;
            }
            compute(batch, head, heads, row, from, to, added, cells, *(workspace<SIZE> *) scratch);
        }
    }

  private:
    static constexpr unsigned ALL_CELLS = (1u << CELLS) - 1;
    static constexpr int SUMS_STEP = workspace<SIZE>::SUMS_STEP;

    ggml_tensor *       dst;
    const ggml_tensor * q, * k, * v, * mask, * sinks;
    const uint32_t *    cell_order_;
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

    // The rows `from` to `to` (exclusive), counted from `row` on, which belong to the same sequence.
    void compute(int64_t batch, int64_t head, int64_t heads, int64_t row, int from, int to, const bool * added,
                 visible_cells & cells, workspace<SIZE> & workspace) const {
        const auto    scores      = workspace.scores;
        const auto    queries_f32 = workspace.queries_f32;
        const auto    sums        = workspace.sums;
        float * const widened     = workspace.widened;
        query queries[QUERIES];
        const int n = (int) heads * (to - from);
        for (int x = 0; x < n; x++) {
            const int r = from + x / (int) heads;
            queries[x]  = query_of(batch, head + x % heads, row, r, added[r]);
            const float * src = (const float *) ((const char *) q->data + queries[x].row * q->nb[1] +
                                                 queries[x].head * q->nb[2] + batch * q->nb[3]);
            for (int64_t d = 0; d < dk; d += LANES) {
                store(queries_f32[x] + d, mul(load(src + d), set1(scale)));
            }
            memset(sums[x], 0, dv * sizeof(float));
            memset(sums[x] + SIZE, 0, CELLS * sizeof(float));
        }
        const int64_t kv = head / (q->ne[2] / k->ne[2]), kv_batch = batch / (q->ne[3] / k->ne[3]);
        const char *  k_data = (const char *) k->data + kv * k->nb[2] + kv_batch * k->nb[3];
        const char *  v_data = (const char *) v->data + kv * v->nb[2] + kv_batch * v->nb[3];
        const int64_t n_cells = cells.gather(from, to);
        for (int64_t at = 0; at < n_cells; at += CELLS) {
            block    block_cells;
            unsigned any = 0;
            cells.get(at, block_cells);
            for (int x = 0; x < n; x++) {
                queries[x].cells = block_cells.seen[queries[x].at];
                any |= queries[x].cells;
                if (queries[x].mask != nullptr) {
                    for (int j = 0; j < block_cells.count; j++) {
                        scores[x][j] = queries[x].slope * float_of(queries[x].mask[block_cells.cells[j]]);
                    }
                }
            }
            if (any == 0) {
                continue;
            }
            if (n <= FEW_QUERIES && block_cells.contiguous && block_cells.cells[0] + CELLS <= k->ne[1]) {
                update_all_weights(n, queries, queries_f32, (const ggml_fp16_t *) (k_data + block_cells.cells[0] * k->nb[1]),
                                   k->nb[1] / sizeof(ggml_fp16_t), scores, sums);
                add_all_values(n, queries, (const ggml_fp16_t *) (v_data + block_cells.cells[0] * v->nb[1]),
                               v->nb[1] / sizeof(ggml_fp16_t), scores, sums);
                continue;
            }
            convert(k_data, k->nb[1], block_cells, any, widened, dk);
            update_all_weights(n, queries, queries_f32, widened, dk, scores, sums);
            convert(v_data, v->nb[1], block_cells, any, widened, dv);
            add_all_values(n, queries, widened, dv, scores, sums);
        }
        for (int x = 0; x < n; x++) {
            finish(batch, queries[x], sums[x]);
        }
    }

    // Sixteen cells and n queries. T: floats, or 16-bit floats that are converted as they are read. The keys and values of
    // two cells are `step` numbers apart.
    template <typename T>
    void update_all_weights(int n, query * queries, const float (*queries_f32)[SIZE], const T * keys, int64_t step,
                            float (*scores)[CELLS], float (*sums)[SUMS_STEP]) const {
        for (int x = 0; x < n; x++) {
            if (queries[x].cells != 0) {
                update_weights(queries[x], queries_f32[x], keys, step, scores[x], sums[x]);
            }
        }
    }

    template <typename T>
    void add_all_values(int n, const query * queries, const T * values, int64_t step, float (*scores)[CELLS],
                        float (*sums)[SUMS_STEP]) const {
        for (int x = 0; x < n; x += 2) {
            if (x + 1 < n && queries[x].cells == ALL_CELLS && queries[x + 1].cells == ALL_CELLS) {
                add_values<2>(scores[x], values, step, sums[x]);
                continue;
            }
            for (int y = x; y < std::min(n, x + 2); y++) {
                if (queries[y].cells == ALL_CELLS) {
                    add_values<1>(scores[y], values, step, sums[y]);
                } else {
                    add_visible_values(queries[y].cells, scores[y], values, step, sums[y]);
                }
            }
        }
    }

    static void convert(const char * from, size_t step, const block & block_cells, unsigned any, float * to, int64_t n) {
        for (int j = 0; j < block_cells.count; j++) {
            if (any >> j & 1) {
                const ggml_fp16_t * const cell = (const ggml_fp16_t *) (from + block_cells.cells[j] * step);
                for (int64_t d = 0; d < n; d += LANES) {
                    store(to + j * n + d, widen(cell + d));
                }
            }
        }
    }

    // Turns scores (and what the mask adds to them, in `scores`) into weights; rescales the sums at a new maximum.
    template <typename T>
    void update_weights(query & query, const float * query_f32, const T * keys, int64_t step, float * scores,
                        float * sums) const {
        floats scored[VECTORS_PER_BLOCK], lane_max;
        for (int p = 0; p < VECTORS_PER_BLOCK; p++) {
            floats products[LANES];
            for (int j = 0; j < LANES; j++) {
                products[j] = zero();
            }
            for (int64_t d = 0; d < dk; d += LANES) {
                const floats q_part = load(query_f32 + d);
                for (int j = 0; j < LANES; j++) {
                    products[j] = fmadd(q_part, load(keys + (p * LANES + j) * step + d), products[j]);
                }
            }
            scored[p] = sum_each(products);
            if (cap != 0) {
                alignas(64) float capped[LANES];
                store(capped, scored[p]);
                for (float & one : capped) {
                    one = cap * std::tanh(one);
                }
                scored[p] = load(capped);
            }
            if (query.mask != nullptr) {
                scored[p] = add(scored[p], load(scores + p * LANES));
            }
            scored[p] = mask_lanes(scored[p], query.cells >> (p * LANES));
            lane_max  = p == 0 ? scored[p] : max(lane_max, scored[p]);
        }
        const float highest = reduce_max(lane_max);
        if (highest > query.max_score) {
            const float new_max = std::ceil(highest);
            const float factor  = power_of_two(query.max_score - new_max);
            query.max_score     = new_max;
            for (int64_t d = 0; d < dv; d += LANES) {
                store(sums + d, mul(load(sums + d), set1(factor)));
            }
            for (int64_t d = SIZE; d < SUMS_STEP; d += LANES) {
                store(sums + d, mul(load(sums + d), set1(factor)));
            }
        }
        for (int p = 0; p < VECTORS_PER_BLOCK; p++) {
            scored[p] = exp2_minus(scored[p], query.max_score, query.cells >> (p * LANES));
            store(scores + p * LANES, scored[p]);
        }
        if (query.cells == ALL_CELLS) {
            if (query.lane != 0) {
                rotate(scored, query.lane);
            }
            for (int p = 0; p < VECTORS_PER_BLOCK; p++) {
                float * const to = sums + SIZE + p * LANES;
                store(to, add(load(to), scored[p]));
            }
            return;
        }
        for (unsigned cells = query.cells; cells != 0; cells &= cells - 1) {
            sums[SIZE + query.lane] += scores[__builtin_ctz(cells)];
            query.lane = (query.lane + 1) % CELLS;
        }
    }

    // Adds the values of all cells with their weights for N queries.
    template <int N, typename T>
    void add_values(const float * weights, const T * values, int64_t step, float * sums) const {
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
                sum[x][i] = load(sums + x * SUMS_STEP + i * LANES);
            }
        }
        for (int j = 0; j < CELLS; j++) {
            for (int i = 0; i < VECTORS; i++) {
                const floats value = load(values + j * step + i * LANES);
                for (int x = 0; x < N; x++) {
                    sum[x][i] = fmadd(set1(weights[x * CELLS + j]), value, sum[x][i]);
                }
            }
        }
        for (int x = 0; x < N; x++) {
            for (int i = 0; i < VECTORS; i++) {
                store(sums + x * SUMS_STEP + i * LANES, sum[x][i]);
            }
        }
    }

    // The same if some cells are hidden, whose values may be anything, NaN included.
    template <typename T>
    void add_visible_values(unsigned cells, const float * weights, const T * values, int64_t step, float * sums) const {
        for (int j = 0; j < CELLS; j++) {
            if (cells >> j & 1) {
                for (int64_t d = 0; d < dv; d += LANES) {
                    store(sums + d, fmadd(set1(weights[j]), load(values + j * step + d), load(sums + d)));
                }
            }
        }
    }

    void finish(int64_t batch, query & query, float * sums) const {
        float total = 0.0f, factor = 1.0f;
        for (int lane = 0; lane < CELLS; lane++) {
            total += sums[SIZE + lane];
        }
        if (sinks != nullptr) {
            const float sink = ((const float *) sinks->data)[query.head] * LOG2E;
            const float max_score = std::max(query.max_score, std::ceil(sink));
            factor           = power_of_two(query.max_score - max_score);
            total            = total * factor + std::exp2(sink - max_score);
        }
        factor = total == 0.0f ? 0.0f : factor / total;
        float * to = (float *) ((char *) dst->data +
                                (batch * dst->ne[2] * dst->ne[1] + query.head + query.row * dst->ne[1]) * dst->nb[1]);
        for (int64_t d = 0; d < dv; d += LANES) {
            store(to + d, mul(load(sums + d), set1(factor)));
        }
    }
};

// The whole operation, divided into parts; each thread computes one part after another until none is left.
template <int SIZE> static void flash_attn_of_size(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1], * mask = dst->src[3];
    // Heads that share keys and values; none if each head has its own mask.
    const int64_t shared_heads = mask == nullptr || mask->ne[2] == 1 ? q->ne[2] / k->ne[2] : 1;
    const auto    parts_of = [&](int64_t heads, int64_t rows) {
        return q->ne[3] * (q->ne[2] / heads) * ((q->ne[1] + rows - 1) / rows);
    };
    int64_t heads = 1;
    for (int64_t n = std::min<int64_t>(shared_heads, QUERIES); n > 1 && heads == 1; n--) {
        if (shared_heads % n == 0 && parts_of(n, std::max<int64_t>(1, QUERIES / n)) >= params->nth) {
            heads = n;
        }
    }
    const int64_t rows   = std::max<int64_t>(1, QUERIES / heads);
    const int64_t groups = (q->ne[1] + rows - 1) / rows, parts = parts_of(heads, rows);
    if (params->ith == 0) {
        specllama_ggml.chunk_set(params->threadpool, params->nth);
        *(const uint32_t **) params->wdata = specllama_cell_order(k);
    }
    specllama_ggml.barrier(params->threadpool);
    const attention<SIZE> operation(dst, *(const uint32_t * const *) params->wdata);
    char * const    shared = (char *) (((uintptr_t) params->wdata + 127) / 64 * 64);  // after that address, aligned
    char * const    scratch = shared + params->ith * attention_scratch(k->ne[1]);
    for (int64_t part = params->ith; part < parts; part = specllama_ggml.chunk_add(params->threadpool, 1)) {
        const int64_t row = part % groups * rows, head = part / groups % (q->ne[2] / heads) * heads;
        operation.compute(part / groups / (q->ne[2] / heads), head, heads, row, std::min(rows, q->ne[1] - row),
                          scratch);
    }
}

inline void flash_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    const bool usual = dst->src[1]->ne[0] <= USUAL_SIZE && dst->src[2]->ne[0] <= USUAL_SIZE;
    (usual ? flash_attn_of_size<USUAL_SIZE> : flash_attn_of_size<MAX_HEAD_SIZE>)(params, dst);
}

}  // namespace specllama_attention
