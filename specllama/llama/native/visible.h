// Which cells of a cache the rows of a batch see, and in which order (x86-64 with AVX2). kernels.cpp includes this file.
//
// Several texts share a cache: cells of one lie anywhere between those of others, and freed cells at the front are used
// again, so that later tokens may lie before earlier ones. Here the visible cells of rows of the same text become a list
// in the order in which they were written.
#pragma once

namespace specllama_attention {

constexpr int CELLS   = 16;  // cells that are computed at once
constexpr int QUERIES = 16;  // and queries, which may be rows

// Up to sixteen cells of the list.
struct block {
    int      count;
    bool     adjoining;       // they follow each other in the cache
    int32_t  cells[CELLS];
    unsigned seen[QUERIES];   // by each row: bit mask
};

class visible {
  public:
    // scratch: `attention_scratch(of)` bytes. of: cells. order: numbers that grow as cells are written, or null for the
    // order in the cache.
    visible(char * scratch, int64_t of, const uint32_t * order)
        : n_cells(of), words(attention_words(of)), written(order), bits((uint16_t *) scratch),
          some(bits + QUERIES * words), every(some + words), list((int32_t *) (every + words)), spare(list + of) {}

    // Reads a row's mask (null: it sees all cells). Returns whether the mask of a visible cell is not 0.
    bool scan(int row, const ggml_fp16_t * mask) {
        uint16_t * to = bits + row * words;
        memset(to + n_cells / CELLS, 0, (words - n_cells / CELLS) * sizeof(uint16_t));
        if (mask == nullptr) {
            memset(to, -1, n_cells / CELLS * sizeof(uint16_t));
            to[n_cells / CELLS] = (uint16_t) ((1u << n_cells % CELLS) - 1);
            return false;
        }
        const __m256i minus_infinity = _mm256_set1_epi16((int16_t) 0xFC00);
        __m256i       others         = _mm256_setzero_si256();
        for (int64_t w = 0; w < n_cells / CELLS; w++) {
            const __m256i some_mask = _mm256_loadu_si256((const __m256i *) (mask + w * CELLS));
            const __m256i hidden    = _mm256_cmpeq_epi16(some_mask, minus_infinity);
            const __m128i bytes     = _mm_packs_epi16(_mm256_castsi256_si128(hidden), _mm256_extracti128_si256(hidden, 1));
            others                  = _mm256_or_si256(others, _mm256_andnot_si256(hidden, some_mask));
            to[w]                   = (uint16_t) ~_mm_movemask_epi8(bytes);
        }
        bool added = !_mm256_testz_si256(others, _mm256_set1_epi16(0x7FFF));
        for (int64_t cell = n_cells / CELLS * CELLS; cell < n_cells; cell++) {
            if (mask[cell] != 0xFC00) {
                to[cell / CELLS] |= (uint16_t) (1u << cell % CELLS);
                added |= (mask[cell] & 0x7FFF) != 0;
            }
        }
        return added;
    }

    // Whether a row sees mostly what the row before it sees.
    bool continues(int row) const {
        int64_t both = 0, own = 0;
        for (int64_t w = 0; w < words; w += 4) {
            const uint64_t mine = four(bits + row * words + w);
            both += __builtin_popcountll(mine & four(bits + (row - 1) * words + w));
            own += __builtin_popcountll(mine);
        }
        return 2 * both >= own;
    }

    // Makes the list of the cells that any of the rows from `from` to before `to` sees. Returns their number.
    int64_t gather(int from, int to) {
        begin = from;
        end   = to;
        memcpy(some, bits + from * words, words * sizeof(uint16_t));
        memcpy(every, some, words * sizeof(uint16_t));
        for (int row = from + 1; row < to; row++) {
            const uint16_t * mine = bits + row * words;
            for (int64_t w = 0; w < words; w++) {
                some[w] |= mine[w];
                every[w] &= mine[w];
            }
        }
        int64_t last = 0;
        n     = 0;
        first = -1;
        for (int64_t w = 0; w < words; w += 4) {
            const uint64_t these = four(some + w);
            if (these != 0) {
                first = first < 0 ? w * CELLS + __builtin_ctzll(these) : first;
                last  = w * CELLS + 63 - __builtin_clzll(these);
                n += __builtin_popcountll(these);
            }
        }
        listed = n > 0 && (n != last - first + 1 || !ascends(first, last));
        if (listed) {
            make_list();
        }
        return n;
    }

    // The block that begins with the list's cell `at`.
    void get(int64_t at, block & to) const {
        to.count             = (int) std::min<int64_t>(CELLS, n - at);
        const unsigned whole = (1u << to.count) - 1;
        if (!listed) {
            to.adjoining = true;
            for (int j = 0; j < CELLS; j++) {
                to.cells[j] = (int32_t) (first + at + j);
            }
            for (int row = begin; row < end; row++) {
                uint32_t two;
                memcpy(&two, bits + row * words + (first + at) / CELLS, sizeof(two));
                to.seen[row] = two >> (first + at) % CELLS & whole;
            }
            return;
        }
        int32_t any  = 0;
        to.adjoining = to.count == CELLS;
        for (int j = 0; j < to.count; j++) {
            any |= list[at + j];
            to.cells[j] = list[at + j] & ~PARTLY;
            to.adjoining &= to.cells[j] == to.cells[0] + j;
        }
        for (int row = begin; row < end; row++) {
            unsigned seen = any & PARTLY ? 0 : whole;
            for (int j = 0; j < to.count && any & PARTLY; j++) {
                seen |= (bits[row * words + to.cells[j] / CELLS] >> to.cells[j] % CELLS & 1u) << j;
            }
            to.seen[row] = seen;
        }
    }

  private:
    static constexpr int32_t PARTLY = 1 << 30;  // marks a cell of the list that some of the rows do not see

    int64_t          n_cells, words;
    const uint32_t * written;
    uint16_t *       bits;           // of each row: a bit for each cell
    uint16_t *       some, * every;  // cells that any of the rows sees, and that all of them see
    int32_t *        list, * spare;
    int64_t          n = 0, first = 0;
    int              begin = 0, end = 0;
    bool             listed = false;  // otherwise the cells from `first` on, which follow each other

    static uint64_t four(const uint16_t * from) {
        uint64_t all;
        memcpy(&all, from, sizeof(all));
        return all;
    }

    bool ascends(int64_t from, int64_t to) const {
        uint32_t wrong = 0;
        for (int64_t cell = from; cell < to && written != nullptr; cell++) {
            wrong |= written[cell + 1] - written[cell];
        }
        return (wrong & 0x80000000u) == 0;
    }

    bool later(int32_t a, int32_t b) const {  // whether cell a was written after cell b
        return (int32_t) (written[a & ~PARTLY] - written[b & ~PARTLY]) > 0;
    }

    void make_list() {
        int64_t at = 0;
        for (int64_t w = first / CELLS; at < n; w++) {
            for (unsigned these = some[w]; these != 0; these &= these - 1) {
                const int j = __builtin_ctz(these);
                list[at++]  = (int32_t) (w * CELLS + j) | (every[w] >> j & 1 ? 0 : PARTLY);
            }
        }
        while (written != nullptr && !merge()) {
        }
    }

    int64_t run(int64_t from) const {  // the end of the cells in order
        while (++from < n && !later(list[from - 1], list[from])) {
        }
        return std::min(from, n);
    }

    // Merges each two neighbouring runs of the list that are in order already. Returns whether there was only one.
    bool merge() {
        int64_t middle = run(0);
        if (middle == n) {
            return true;
        }
        for (int64_t from = 0; from < n;) {
            const int64_t to = middle < n ? run(middle) : n;
            int64_t       a = from, b = middle;
            while (from < to) {
                const bool second = a == middle || (b < to && later(list[a], list[b]));
                spare[from++]     = list[second ? b++ : a++];
            }
            middle = from < n ? run(from) : n;
        }
        int32_t * const merged = spare;
        spare                  = list;
        list                   = merged;
        return false;
    }
};

}  // namespace specllama_attention
