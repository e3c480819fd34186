// Included by mul_mat.h: what the kernels of all types of weights share.

constexpr int     MAX_ROWS          = 8;        // multiplied at once: more do not fit in registers
constexpr int64_t CACHED_BYTES      = 1 << 17;  // of weights, which stay in the cache for the next rows
constexpr int64_t MAX_PREPARED_ROWS = 128;      // prepared together

template <typename V>
static typename V::ints dot_32(const typename V::ints * w, const typename V::ints * a) {
    return V::dot_u8i8(V::dot_u8i8(V::dot_u8i8(V::dot_u8i8(V::zero_si(), w[0], a[0]), w[1], a[1]), w[2], a[2]), w[3], a[3]);
}

// Values 0-7, 8-15, 16-23 and 24-31 of a row, each group of eight repeated for all columns.
template <typename V> static void broadcast_eights(typename V::ints * to, const int8_t * from) {
    SPECLLAMA_UNROLL
    for (int i = 0; i < 4; i++) {
        int64_t bytes;
        memcpy(&bytes, from + 8 * i, sizeof(bytes));
        to[i] = V::set1_epi64(bytes);
    }
}

// Prefetches weights of the next columns: into the L2 cache, or for MAX_ROWS rows, which take longer, into L1. The hardware
// does not predict them where several columns are read at once, and too late where they are read from memory.
template <int R> static void prefetch(const void * from) { __builtin_prefetch(from, 0, R < MAX_ROWS ? 2 : 3); }

template <int R> static void prefetch_bytes(const void * from, size_t size) {
    for (size_t at = 0; at < size; at += 64) {
        prefetch<R>((const char *) from + at);
    }
}

template <typename V, int R, typename GROUP> static void prefetch_groups(const GROUP * w, const GROUP * next, int64_t nb) {
    if (V::N_GROUPS == widest::N_GROUPS) {
        prefetch_bytes<R>(w + V::N_GROUPS * nb, sizeof(GROUP));
    }
    if (V::N_GROUPS > 1) {
        prefetch_bytes<R>(next + V::N_GROUPS * nb, sizeof(GROUP));
    }
}

// For each type of weights, kernel<BLOCK> has:
//   MAX_ROWS            rows at once
//   prepare             computes once what every column needs of the rows
//   prepared_bytes(n)   size of that for a row of n values
//   mul_mat<R>          multiplies R rows of `n` values each, `stride` bytes apart, by `nc` columns of weights, `pitch`
//                       bytes apart; row r of the result is at s + r x bs
// The loops that mul_mat calls compute several columns at once, leave out the rest, and return how many they have computed.
template <typename BLOCK, typename = void> struct kernel;
