// The most usual choice of a token, and a token's probability: core/sampling/sampler.py's and proposal.py's rules in one
// pass of compiled code each. After a decode little of what numpy would execute for them is left in the processor's caches.
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

typedef float   floats __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(32)));

constexpr int LANES = 8, BLOCK = 32 * LANES;
constexpr int MOST_MAXIMA = 1 << 14, MOST_KEPT = 256, MOST_CANDIDATES = 4 * MOST_KEPT, MOST_BIASES = 64;
constexpr int UNKNOWN = -1;  // numpy decides, or says what is wrong

struct sampling_params {  // core/sampling/native.py has the same
    double   top_p, log_min_p, temperature;
    uint64_t seed;
    int32_t  top_k, n_biases;
    int32_t  bias_ids[MOST_BIASES];
    float    biases[MOST_BIASES];
};

bool are_in_row(const sampling_params & params, int n) {
    return std::all_of(params.bias_ids, params.bias_ids + params.n_biases, [n](int32_t id) { return id < n; });
}

struct biased {  // a row while its tokens have their biases
    float *                 row;
    const sampling_params & params;
    float                   before[MOST_BIASES];

    biased(float * row, const sampling_params & params) : row(row), params(params) {
        for (int i = 0; i < params.n_biases; i++) {
            before[i] = row[params.bias_ids[i]];
            row[params.bias_ids[i]] += params.biases[i];
        }
    }
    ~biased() {
        for (int i = 0; i < params.n_biases; i++) {
            row[params.bias_ids[i]] = before[i];
        }
    }
};

struct candidate {
    float   logit;
    int32_t id;
    bool operator<(const candidate & other) const {  // the best first, lower ids first among equals
        return logit > other.logit || (logit == other.logit && id < other.id);
    }
};

// Eight numbers of a row from `at` on, -inf after its end.
inline floats eight(const float * row, int n, int at) {
    if (at + LANES <= n) {
        return *(const floats *) (row + at);
    }
    floats rest = floats{} - INFINITY;
    for (int lane = 0; at + lane < n; lane++) {
        rest[lane] = row[at + lane];
    }
    return rest;
}

// The maxima of parts of a row: part 8 b + l has the numbers 256 b + l, 256 b + l + 8, ... up to 256 (b + 1).
struct row_maxima {
    float values[MOST_MAXIMA];
    int   n = 0;
    float top = -INFINITY;  // NaN where the row has one

    row_maxima(const float * row, int size) {
        ints is_nan = {};
        for (int begin = 0; begin < size; begin += BLOCK, n += LANES) {
            floats largest = floats{} - INFINITY;
            for (int at = begin, end = std::min(begin + BLOCK, size); at < end; at += LANES) {
                const floats a = eight(row, size, at);
                is_nan |= a != a;
                largest = a > largest ? a : largest;
            }
            *(floats *) (values + n) = largest;
        }
        for (int i = 0; i < n; i++) {
            top = values[i] > top ? values[i] : top;
        }
        for (int lane = 0; lane < LANES; lane++) {
            top = is_nan[lane] ? NAN : top;
        }
    }

    // The tokens with a logit of at least `least` in the order of their parts, -1 if they are more than `most`.
    int from(const float * row, int size, float least, candidate * into, int most) const {
        int count = 0;
        for (int part = 0; part < n; part++) {
            if (values[part] < least) {
                continue;
            }
            const int begin = part / LANES * BLOCK, end = std::min(begin + BLOCK, size);
            for (int id = begin + part % LANES; id < end; id += LANES) {
                if (row[id] >= least) {
                    if (count == most) {
                        return -1;
                    }
                    into[count++] = {row[id], id};
                }
            }
        }
        return count;
    }
};

uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

double gumbel(uint64_t key, uint64_t id) {  // rows.py
    return -std::log(-std::log((double) (mixed(id * GOLDEN + key) >> 12) * 0x1p-52 + 0x1p-53));
}

// How many of the n best candidates truncation keeps (KeyedSampler._truncate).
int truncated(const candidate * best, int n, const sampling_params & params, float top, float floor) {
    int n_kept = n;
    if (params.top_p < 1) {
        double sums[MOST_KEPT], sum = 0;
        for (int i = 0; i < n; i++) {
            sums[i] = sum += std::exp((double) best[i].logit - top);
        }
        n_kept = std::min<int>(n, std::lower_bound(sums, sums + n, params.top_p * sum) - sums + 1);
    }
    while (n_kept > 1 && best[n_kept - 1].logit < floor) {
        n_kept--;
    }
    return n_kept;
}

inline floats exponential(floats a) {  // relative error 1e-7; 0 for less than 2^-126, no more than 2^127
    const floats  scaled = a * 0x1.715476p+0f, not_small = scaled < -126.0f ? floats{} - 127.0f : scaled;
    const floats  exponent = not_small > 127.0f ? floats{} + 127.0f : not_small;
    const floats  shifted = exponent + 0x1.8p23f, whole = shifted - 0x1.8p23f, part = exponent - whole;
    floats        sum = part * 0x1.41d332p-13f + 0x1.5f456ap-10f;  // 2^part (attention_vectors.h)
    sum = sum * part + 0x1.3b2dbcp-7f;
    sum = sum * part + 0x1.c6aed4p-5f;
    sum = sum * part + 0x1.ebfbdap-3f;
    sum = sum * part + 0x1.62e430p-1f;
    sum = sum * part + 1.0f;
    return sum * (floats) ((__builtin_convertvector(whole, ints) + 127) << 23);
}

}  // namespace

// The token that is chosen from a row of n logits by biases, top-k, top-p, min-p and temperature, UNKNOWN where that is for
// numpy.
extern "C" __attribute__((visibility("default"))) int specllama_choose(
    float * row, int n, const sampling_params * params, uint64_t position) {
    const int top_k = params->top_k;
    if (top_k < 1 || top_k > MOST_KEPT || top_k >= n || (n + BLOCK - 1) / BLOCK * LANES > MOST_MAXIMA ||
        !are_in_row(*params, n)) {
        return UNKNOWN;
    }
    const biased     changed(row, *params);
    const row_maxima maxima(row, n);
    if (!std::isfinite(maxima.top) || maxima.n < top_k) {
        return UNKNOWN;
    }
    candidate   candidates[MOST_CANDIDATES];
    const float floor = (float) (maxima.top + params->log_min_p);
    if (maxima.from(row, n, floor, candidates, 1) == 1) {
        return candidates[0].id;
    }
    float sorted[MOST_MAXIMA];
    std::copy(maxima.values, maxima.values + maxima.n, sorted);
    std::nth_element(sorted, sorted + top_k - 1, sorted + maxima.n, [](float a, float b) { return a > b; });
    const float least = sorted[top_k - 1];  // no larger than the logit at rank top_k
    const int   count = least == -INFINITY ? -1 : maxima.from(row, n, least, candidates, MOST_CANDIDATES);
    if (count < 0) {
        return UNKNOWN;
    }
    std::partial_sort(candidates, candidates + top_k, candidates + count);
    const int      n_kept = truncated(candidates, top_k, *params, maxima.top, floor);
    const uint64_t key = mixed((params->seed ^ mixed(position + GOLDEN)) + GOLDEN);
    int            best = 0;
    double         most = -INFINITY;
    for (int i = 0; i < n_kept; i++) {
        const double logit = ((double) candidates[i].logit - maxima.top) / params->temperature;
        const double score = n_kept > 1 ? logit + gumbel(key, candidates[i].id) : logit;
        if (score > most) {
            best = i;
            most = score;
        }
    }
    return candidates[best].id;
}

// A token's probability in the softmax of a row of n logits; NaN where one is NaN.
extern "C" __attribute__((visibility("default"))) double specllama_probability(const float * row, int n, int token) {
    if (row[token] == -INFINITY) {
        return 0;
    }
    floats sums[4] = {};  // of all tokens' weights relative to its own; several, so that none waits for the one before
    for (int at = 0; at < n; at += LANES) {
        sums[at / LANES % 4] += exponential(eight(row, n, at) - row[token]);
    }
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++) {
        sum += (double) sums[0][lane] + sums[1][lane] + sums[2][lane] + sums[3][lane];
    }
    return 1 / sum;
}
