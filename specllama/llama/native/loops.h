// Included by multiply.h: what the loops for all types of weights share.

constexpr int     MOST = 8;          // rows at once: more do not fit in registers
constexpr int64_t CACHED = 1 << 17;  // bytes of weights that stay in the cache for the next rows
constexpr int64_t TOGETHER = 128;    // rows that are prepared together

template <typename V>
static typename V::ints dot(const typename V::ints * w, const typename V::ints * a) {
    return V::plus(V::plus(V::plus(V::plus(V::zero(), w[0], a[0]), w[1], a[1]), w[2], a[2]), w[3], a[3]);
}

// Values 0-7, 8-15, 16-23 and 24-31 of a row, each group of eight for all columns.
template <typename V> static void eights(typename V::ints * to, const int8_t * from) {
    SPECLLAMA_UNROLL
    for (int i = 0; i < 4; i++) {
        int64_t bytes;
        memcpy(&bytes, from + 8 * i, sizeof(bytes));
        to[i] = V::eight(bytes);
    }
}

// Prefetches what the next columns need, if several columns are read at once, which the hardware does not predict: into
// the L2 cache, or for MOST rows, which take longer, into L1.
template <int R> static void prefetch(const void * from) { __builtin_prefetch(from, 0, R < MOST ? 2 : 3); }

template <typename V, int R, typename GROUP> static void ahead(const GROUP * w, const GROUP * next, int64_t nb) {
    if (V::GROUPS > 1) {
        for (size_t at = 0; at < sizeof(GROUP); at += 64) {
            prefetch<R>((const char *) (w + V::GROUPS * nb) + at);
            prefetch<R>((const char *) (next + V::GROUPS * nb) + at);
        }
    }
}

// For each type of weights, kernel<BLOCK> has:
//   MOST          rows at once
//   per_row(n)    bytes of what is prepared for a row of n values
//   prepare       what every column needs of the rows, computed once
//   times<R>      R rows of `n` values each, `stride` bytes apart, times `nc` columns of weights, `pitch` bytes apart; row
//                 r of the result is at s + r x bs
// The loops that these call compute several columns at once, leave out the remaining ones, and return how many they have
// computed.
template <typename BLOCK, typename = void> struct kernel;
