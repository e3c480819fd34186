// Flash attention on a cache of 16-bit floats, for any number of rows (x86-64 with AVX2). kernels.cpp
// includes this file.
//
// llama.cpp reads keys and values once per row and head, one cell of the cache after the other, and sums values as
// 16-bit floats; from 64 rows on it uses tiles, which sum in another order. Here sixteen cells are read and converted
// once for up to sixteen queries (the rows of a batch, and the heads that share keys and values), and all sums are
// 32-bit floats. The result for a query depends only on the query, the cells and its mask: a row is bit-identical
// alone and in any batch, however heads are distributed over threads.
// The running maximum and sum are those of "Online normalizer calculation for softmax", arXiv:1805.02867.
#pragma once

namespace specllama_attention {

constexpr int CELLS   = 16;   // cells of the cache converted at once
constexpr int QUERIES = 16;   // queries that share one conversion
constexpr int FEW     = 4;    // up to so many queries it is faster not to write converted cells to memory
constexpr int WIDEST  = 256;  // largest head size; queries and cells then fit in the L1 cache

#if defined(__AVX512F__) && defined(__AVX512DQ__)
using floats                = __m512;
constexpr int     LANES     = 16;
inline floats zeros() { return _mm512_setzero_ps(); }
inline floats all(float value) { return _mm512_set1_ps(value); }
inline floats read(const float * from) { return _mm512_loadu_ps(from); }
inline void   write(float * to, floats a) { _mm512_storeu_ps(to, a); }
inline floats widen(const ggml_fp16_t * from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from));
}
inline floats plus(floats a, floats b) { return _mm512_add_ps(a, b); }
inline floats minus(floats a, floats b) { return _mm512_sub_ps(a, b); }
inline floats times(floats a, floats b) { return _mm512_mul_ps(a, b); }
inline floats more(floats a, floats b, floats sum) { return _mm512_fmadd_ps(a, b, sum); }
inline floats larger(floats a, floats b) { return _mm512_max_ps(a, b); }
inline float  largest(floats a) { return _mm512_reduce_max_ps(a); }
inline float  total(floats a) { return _mm512_reduce_add_ps(a); }
inline floats only(floats a, unsigned lanes) {  // other lanes become -inf
    return _mm512_mask_blend_ps((__mmask16) lanes, _mm512_set1_ps(-INFINITY), a);
}
inline unsigned seen(floats mask) {
    return _mm512_cmp_ps_mask(mask, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
}
inline floats totals(const floats * a) {  // the sum of each of LANES vectors
    floats four[4];
    for (int i = 0; i < 4; i++) {
        const floats * p = a + 4 * i;
        const floats two[2] = {plus(_mm512_unpacklo_ps(p[0], p[1]), _mm512_unpackhi_ps(p[0], p[1])),
                               plus(_mm512_unpacklo_ps(p[2], p[3]), _mm512_unpackhi_ps(p[2], p[3]))};
        four[i] = plus(_mm512_shuffle_ps(two[0], two[1], 0x44), _mm512_shuffle_ps(two[0], two[1], 0xEE));
    }
    for (int i = 0; i < 4; i += 2) {
        four[i / 2] = plus(_mm512_shuffle_f32x4(four[i], four[i + 1], 0x88),
                           _mm512_shuffle_f32x4(four[i], four[i + 1], 0xDD));
    }
    return plus(_mm512_shuffle_f32x4(four[0], four[1], 0x88), _mm512_shuffle_f32x4(four[0], four[1], 0xDD));
}

// From ggml's vec.h (ggml/LICENSE), as the one below.
// adapted from arm limited optimized routine
// the maximum error is 1.45358 plus 0.5 ulps
// numbers above 88.38 will flush to infinity
// numbers beneath -103.97 will flush to zero
inline __m512 ggml_v_expf(__m512 x) {
  const __m512 r = _mm512_set1_ps(0x1.8p23f);
  const __m512 z = _mm512_fmadd_ps(x, _mm512_set1_ps(0x1.715476p+0f), r);
  const __m512 n = _mm512_sub_ps(z, r);
  const __m512 b =
      _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f),
                       _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x));
  const __mmask16 d =
      _mm512_cmp_ps_mask(_mm512_abs_ps(n), _mm512_set1_ps(192), _CMP_GT_OQ);
  const __m512 u = _mm512_mul_ps(b, b);
  const __m512 j = _mm512_fmadd_ps(
      _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_set1_ps(0x1.0e4020p-7f), b,
                                      _mm512_set1_ps(0x1.573e2ep-5f)),
                      u,
                      _mm512_fmadd_ps(_mm512_set1_ps(0x1.555e66p-3f), b,
                                      _mm512_set1_ps(0x1.fffdb6p-2f))),
      u,
      _mm512_fmadd_ps(_mm512_set1_ps(0x1.ffffecp-1f), b, _mm512_set1_ps(1.0F)));
  const __m512 res = _mm512_scalef_ps(j, n);
  if (_mm512_kortestz(d, d))
    return res;
  const __m512 zero = _mm512_setzero_ps();
  const __m512 alt = _mm512_mask_blend_ps(
      _mm512_cmp_ps_mask(n, zero, _CMP_LE_OQ), _mm512_set1_ps(INFINITY), zero);
  return _mm512_mask_blend_ps(d, res, alt);
}
#else
using floats                = __m256;
constexpr int     LANES     = 8;
inline floats zeros() { return _mm256_setzero_ps(); }
inline floats all(float value) { return _mm256_set1_ps(value); }
inline floats read(const float * from) { return _mm256_loadu_ps(from); }
inline void   write(float * to, floats a) { _mm256_storeu_ps(to, a); }
inline floats widen(const ggml_fp16_t * from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)); }
inline floats plus(floats a, floats b) { return _mm256_add_ps(a, b); }
inline floats minus(floats a, floats b) { return _mm256_sub_ps(a, b); }
inline floats times(floats a, floats b) { return _mm256_mul_ps(a, b); }
inline floats more(floats a, floats b, floats sum) { return _mm256_fmadd_ps(a, b, sum); }
inline floats larger(floats a, floats b) { return _mm256_max_ps(a, b); }
inline float  largest(floats a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two  = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float total(floats a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two  = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline floats only(floats a, unsigned lanes) {  // other lanes become -inf
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i mine = _mm256_and_si256(_mm256_set1_epi32((int) lanes), bits);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(mine, bits)));
}
inline unsigned seen(floats mask) {
    return (unsigned) _mm256_movemask_ps(_mm256_cmp_ps(mask, _mm256_set1_ps(-INFINITY), _CMP_NEQ_UQ));
}
inline floats totals(const floats * a) {  // the sum of each of LANES vectors
    floats two[2];
    for (int i = 0; i < 2; i++) {
        const floats * p = a + 4 * i;
        two[i] = _mm256_hadd_ps(_mm256_hadd_ps(p[0], p[1]), _mm256_hadd_ps(p[2], p[3]));
    }
    return plus(_mm256_permute2f128_ps(two[0], two[1], 0x20), _mm256_permute2f128_ps(two[0], two[1], 0x31));
}

// adapted from arm limited optimized routine
// the maximum error is 1.45358 plus 0.5 ulps
// numbers above 88.38 will flush to infinity
// numbers beneath -103.97 will flush to zero
inline __m256 ggml_v_expf(__m256 x) {
  const __m256 r = _mm256_set1_ps(0x1.8p23f);
  const __m256 z = _mm256_fmadd_ps(x, _mm256_set1_ps(0x1.715476p+0f), r);
  const __m256 n = _mm256_sub_ps(z, r);
  const __m256 b = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f),
                                    _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), x));
  const __m256i e = _mm256_slli_epi32(_mm256_castps_si256(z), 23);
  const __m256 k = _mm256_castsi256_ps(
      _mm256_add_epi32(e, _mm256_castps_si256(_mm256_set1_ps(1))));
  const __m256i c = _mm256_castps_si256(
      _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.f), n),
                    _mm256_set1_ps(126), _CMP_GT_OQ));
  const __m256 u = _mm256_mul_ps(b, b);
  const __m256 j = _mm256_fmadd_ps(_mm256_fmadd_ps(_mm256_fmadd_ps(_mm256_set1_ps(0x1.0e4020p-7f), b,
                                                                   _mm256_set1_ps(0x1.573e2ep-5f)), u,
                                                   _mm256_fmadd_ps(_mm256_set1_ps(0x1.555e66p-3f), b,
                                                                   _mm256_set1_ps(0x1.fffdb6p-2f))),
                                   u, _mm256_mul_ps(_mm256_set1_ps(0x1.ffffecp-1f), b));
  if (!_mm256_movemask_ps(_mm256_castsi256_ps(c)))
    return _mm256_fmadd_ps(j, k, k);
  const __m256i g = _mm256_and_si256(
      _mm256_castps_si256(_mm256_cmp_ps(n, _mm256_setzero_ps(), _CMP_LE_OQ)),
      _mm256_set1_epi32(0x82000000u));
  const __m256 s1 =
      _mm256_castsi256_ps(_mm256_add_epi32(g, _mm256_set1_epi32(0x7f000000u)));
  const __m256 s2 = _mm256_castsi256_ps(_mm256_sub_epi32(e, g));
  const __m256i d = _mm256_castps_si256(
      _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.f), n),
                    _mm256_set1_ps(192), _CMP_GT_OQ));
  return _mm256_or_ps(
      _mm256_and_ps(_mm256_castsi256_ps(d), _mm256_mul_ps(s1, s1)),
      _mm256_andnot_ps(
          _mm256_castsi256_ps(d),
          _mm256_or_ps(
              _mm256_and_ps(_mm256_castsi256_ps(c),
                            _mm256_mul_ps(_mm256_fmadd_ps(s2, j, s2), s1)),
              _mm256_andnot_ps(_mm256_castsi256_ps(c), _mm256_fmadd_ps(k, j, k)))));
}
#endif

inline floats read(const ggml_fp16_t * from) { return widen(from); }

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
    const ggml_fp16_t * mask;
    float               slope;
    float               most, sum;  // maximum of the scores so far, and sum of their weights
    unsigned            cells;      // bit mask of the sixteen cells that it sees
};

class attention {
  public:
    explicit attention(ggml_tensor * to) : dst(to), q(to->src[0]), k(to->src[1]), v(to->src[2]), mask(to->src[3]),
                                           sinks(to->src[4]), dk(k->ne[0]), dv(v->ne[0]) {
        memcpy(&scale, (const float *) dst->op_params + 0, sizeof(float));
        memcpy(&bias, (const float *) dst->op_params + 1, sizeof(float));
        memcpy(&cap, (const float *) dst->op_params + 2, sizeof(float));
        scale = cap == 0 ? scale : scale / cap;
    }

    // Queries: `heads` from `head` on, which share keys and values, of `rows` from `row` on.
    void compute(int64_t batch, int64_t head, int64_t heads, int64_t row, int64_t rows) const {
        alignas(64) static thread_local float scores[QUERIES][CELLS], given[QUERIES][WIDEST], sums[QUERIES][WIDEST];
        alignas(64) static thread_local float keys[CELLS * WIDEST], values[CELLS * WIDEST];
        query queries[QUERIES];
        const int n = (int) (heads * rows);
        for (int x = 0; x < n; x++) {
            queries[x] = query_of(batch, head + x % heads, row + x / heads);
            const float * from = (const float *) ((const char *) q->data + queries[x].row * q->nb[1] +
                                                  queries[x].head * q->nb[2] + batch * q->nb[3]);
            for (int64_t d = 0; d < dk; d += LANES) {
                write(given[x] + d, times(read(from + d), all(scale)));
            }
            memset(sums[x], 0, dv * sizeof(float));
        }
        const int64_t kv = head / (q->ne[2] / k->ne[2]), kv_batch = batch / (q->ne[3] / k->ne[3]);
        const char *  k_data = (const char *) k->data + kv * k->nb[2] + kv_batch * k->nb[3];
        const char *  v_data = (const char *) v->data + kv * v->nb[2] + kv_batch * v->nb[3];
        for (int64_t cell = 0; cell < k->ne[1]; cell += CELLS) {
            const int count = (int) std::min<int64_t>(CELLS, k->ne[1] - cell);
            unsigned  any   = 0;
            for (int x = 0; x < n; x++) {
                any |= look(queries[x], cell, count, scores[x]);
            }
            if (any == 0) {
                continue;
            }
            const char * k_cell = k_data + cell * k->nb[1], * v_cell = v_data + cell * v->nb[1];
            if (n <= FEW && count == CELLS) {
                combine(n, queries, given, (const ggml_fp16_t *) k_cell, k->nb[1] / sizeof(ggml_fp16_t),
                        (const ggml_fp16_t *) v_cell, v->nb[1] / sizeof(ggml_fp16_t), scores, sums);
                continue;
            }
            for (int j = 0; j < CELLS; j++) {
                if (any >> j & 1) {
                    convert(k_cell + j * k->nb[1], keys + j * dk, dk);
                    convert(v_cell + j * v->nb[1], values + j * dv, dv);
                }
            }
            combine(n, queries, given, keys, dk, values, dv, scores, sums);
        }
        for (int x = 0; x < n; x++) {
            finish(batch, queries[x], sums[x]);
        }
    }

  private:
    static constexpr unsigned ALL = (1u << CELLS) - 1;

    ggml_tensor *       dst;
    const ggml_tensor * q, * k, * v, * mask, * sinks;
    int64_t             dk, dv;
    float               scale, bias, cap;

    query query_of(int64_t batch, int64_t head, int64_t row) const {
        const ggml_fp16_t * at = nullptr;
        if (mask != nullptr) {
            at = (const ggml_fp16_t *) ((const char *) mask->data + row * mask->nb[1] +
                                        head % mask->ne[2] * mask->nb[2] + batch % mask->ne[3] * mask->nb[3]);
        }
        float slope = 1.0f;
        if (bias > 0.0f) {  // ALiBi
            const int64_t power = (int64_t) 1 << (int) std::floor(std::log2((double) q->ne[2]));
            slope = head < power ? std::pow(std::pow(2.0f, -bias / power), (float) (head + 1))
                                 : std::pow(std::pow(2.0f, -bias / 2 / power), (float) (2 * (head - power) + 1));
        }
        return {row, head, at, slope, -INFINITY, 0.0f, 0};
    }

    // Adds sixteen cells to the sums of n queries; T: floats, or 16-bit floats that are widened as they are read. Keys and
    // values of two cells are k_step and v_step numbers apart.
    template <typename T>
    void combine(int n, query * queries, const float (*given)[WIDEST], const T * keys, int64_t k_step, const T * values,
                 int64_t v_step, float (*scores)[CELLS], float (*sums)[WIDEST]) const {
        for (int x = 0; x < n; x++) {
            if (queries[x].cells != 0) {
                weigh(queries[x], given[x], keys, k_step, scores[x], sums[x]);
            }
        }
        for (int x = 0; x < n; x += 2) {
            if (x + 1 < n && queries[x].cells == ALL && queries[x + 1].cells == ALL) {
                add<2>(scores[x], values, v_step, sums[x]);
                continue;
            }
            for (int y = x; y < std::min(n, x + 2); y++) {
                if (queries[y].cells == ALL) {
                    add<1>(scores[y], values, v_step, sums[y]);
                } else {
                    add_some(queries[y].cells, scores[y], values, v_step, sums[y]);
                }
            }
        }
    }

    // Which of `count` cells are visible, and the bias added to their scores.
    static unsigned look(query & query, int64_t cell, int count, float * added) {
        if (query.mask == nullptr || count < CELLS) {
            query.cells = 0;
            for (int j = 0; j < CELLS; j++) {
                const float value = j >= count ? -INFINITY : query.mask == nullptr ? 0.0f :
                    query.slope * float_of(query.mask[cell + j]);
                added[j] = value;
                query.cells |= (value == -INFINITY ? 0u : 1u) << j;
            }
            return query.cells;
        }
        unsigned cells = 0;
        for (int part = 0; part < PARTS; part++) {
            const floats value = times(widen(query.mask + cell + part * LANES), all(query.slope));
            write(added + part * LANES, value);
            cells |= seen(value) << (part * LANES);
        }
        return query.cells = cells;
    }

    static void convert(const char * from, float * to, int64_t n) {
        for (int64_t d = 0; d < n; d += LANES) {
            write(to + d, widen((const ggml_fp16_t *) from + d));
        }
    }

    // Turns scores and biases into weights; rescales the sums if there is a new maximum.
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
            part[p] = only(plus(part[p], read(scores + p * LANES)), query.cells >> (p * LANES));
            most    = p == 0 ? part[p] : larger(most, part[p]);
        }
        const float highest = largest(most);
        if (highest > query.most) {
            const float less = std::exp(query.most - highest);
            query.most       = highest;
            query.sum *= less;
            for (int64_t d = 0; d < dv; d += LANES) {
                write(sums + d, times(read(sums + d), all(less)));
            }
        }
        floats sum = zeros();
        for (int p = 0; p < PARTS; p++) {  // e^-200 is 0, as for hidden cells
            part[p] = ggml_v_expf(larger(minus(part[p], all(query.most)), all(-200.0f)));
            write(scores + p * LANES, part[p]);
            sum = plus(sum, part[p]);
        }
        query.sum += total(sum);
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
                sum[x][i] = read(sums + x * WIDEST + i * LANES);
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
                write(sums + x * WIDEST + i * LANES, sum[x][i]);
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
        float by = 1.0f;
        if (sinks != nullptr) {
            const float sink = ((const float *) sinks->data)[query.head];
            const float most = std::max(query.most, sink);
            by               = std::exp(query.most - most);
            query.sum        = query.sum * by + std::exp(sink - most);
        }
        by = query.sum == 0.0f ? 0.0f : by / query.sum;
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
    const int64_t sharing = q->ne[2] / dst->src[1]->ne[2];  // heads
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
    }
    specllama_ggml.barrier(params->threadpool);
    const attention all_of_it(dst);
    for (int64_t part = params->ith; part < parts; part = specllama_ggml.chunk_add(params->threadpool, 1)) {
        const int64_t row = part % groups * rows, head = part / groups % (q->ne[2] / heads) * heads;
        all_of_it.compute(part / groups / (q->ne[2] / heads), head, heads, row, std::min(rows, q->ne[1] - row));
    }
}

}  // namespace specllama_attention
