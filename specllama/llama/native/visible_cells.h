// Which cells of a cache the rows of a batch see, and in which order (x86-64 with AVX2). Included by attention.h.
//
// Several sequences share a cache: the cells of one are anywhere among those of others, and freed cells at the front are
// used again, so that later tokens may be stored before earlier ones. Here the cells that rows of the same sequence see
// become a list in the order in which they were written.
#pragma once

namespace specllama_attention {

constexpr int CELLS   = 16;  // cells that are computed at once
constexpr int QUERIES = 16;  // as are queries: rows, or heads of rows

// Up to sixteen cells of the list.
struct block {
    int      count;
    bool     contiguous;      // in the cache
    int32_t  cells[CELLS];
    unsigned seen[QUERIES];   // bit mask for each row
};

class visible_cells {
  public:
    // scratch: attention_scratch(n) bytes. n: number of cells. order: for each cell a number that grows as cells are
    // written; null for the order in the cache.
    visible_cells(char * scratch, int64_t n, const uint32_t * order)
        : n_cells(n), words(attention_words(n)), cell_order(order), bits((uint16_t *) scratch),
          any_row(bits + QUERIES * words), all_rows(any_row + words), list((int32_t *) (all_rows + words)),
          buffer(list + n) {}

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

    // Whether at least half of the cells that a row sees are visible to the row before it.
    bool continues(int row) const {
        int64_t shared = 0, own = 0;
        for (int64_t w = 0; w < words; w += 4) {
            const uint64_t mine = four(bits + row * words + w);
            shared += __builtin_popcountll(mine & four(bits + (row - 1) * words + w));
            own += __builtin_popcountll(mine);
        }
        return 2 * shared >= own;
    }

    // Makes the list of the cells that any of the rows `from` to `to` (exclusive) sees. Returns their number.
    int64_t gather(int from, int to) {
        begin = from;
        end   = to;
        memcpy(any_row, bits + from * words, words * sizeof(uint16_t));
        memcpy(all_rows, any_row, words * sizeof(uint16_t));
        for (int row = from + 1; row < to; row++) {
            const uint16_t * mine = bits + row * words;
            for (int64_t w = 0; w < words; w++) {
                any_row[w] |= mine[w];
                all_rows[w] &= mine[w];
            }
        }
        int64_t last = 0;
        n     = 0;
        first = -1;
        for (int64_t w = 0; w < words; w += 4) {
            const uint64_t these = four(any_row + w);
            if (these != 0) {
                first = first < 0 ? w * CELLS + __builtin_ctzll(these) : first;
                last  = w * CELLS + 63 - __builtin_clzll(these);
                n += __builtin_popcountll(these);
            }
        }
        is_list = n > 0 && (n != last - first + 1 || !ascends(first, last));
        if (is_list) {
            make_list();
        }
        return n;
    }

    // The block that begins with cell `at` of the list.
    void get(int64_t at, block & to) const {
        to.count             = (int) std::min<int64_t>(CELLS, n - at);
        const unsigned whole = (1u << to.count) - 1;
        if (!is_list) {
            to.contiguous = true;
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
        to.contiguous = to.count == CELLS;
        for (int j = 0; j < to.count; j++) {
            any |= list[at + j];
            to.cells[j] = list[at + j] & ~SEEN_BY_SOME;
            to.contiguous &= to.cells[j] == to.cells[0] + j;
        }
        for (int row = begin; row < end; row++) {
            unsigned seen = any & SEEN_BY_SOME ? 0 : whole;
            for (int j = 0; j < to.count && any & SEEN_BY_SOME; j++) {
                seen |= (bits[row * words + to.cells[j] / CELLS] >> to.cells[j] % CELLS & 1u) << j;
            }
            to.seen[row] = seen;
        }
    }

  private:
    static constexpr int32_t SEEN_BY_SOME = 1 << 30;  // marks a cell of the list that not all of the rows see

    int64_t          n_cells, words;
    const uint32_t * cell_order;
    uint16_t *       bits;                  // for each row, a bit for each cell
    uint16_t *       any_row, * all_rows;  // cells that any of the rows sees, and that all see
    int32_t *        list, * buffer;
    int64_t          n = 0, first = 0;
    int              begin = 0, end = 0;
    bool             is_list = false;  // otherwise all cells from `first` on, in order

    static uint64_t four(const uint16_t * from) {
        uint64_t all;
        memcpy(&all, from, sizeof(all));
        return all;
    }

    bool ascends(int64_t from, int64_t to) const {
        uint32_t wrong = 0;
        for (int64_t cell = from; cell < to && cell_order != nullptr; cell++) {
            wrong |= cell_order[cell + 1] - cell_order[cell];
        }
        return (wrong & 0x80000000u) == 0;
    }

    bool later(int32_t a, int32_t b) const {  // whether cell a was written after cell b
        return (int32_t) (cell_order[a & ~SEEN_BY_SOME] - cell_order[b & ~SEEN_BY_SOME]) > 0;
    }

    void make_list() {
        int64_t at = 0;
        for (int64_t w = first / CELLS; at < n; w++) {
            for (unsigned these = any_row[w]; these != 0; these &= these - 1) {
                const int j = __builtin_ctz(these);
                list[at++]  = (int32_t) (w * CELLS + j) | (all_rows[w] >> j & 1 ? 0 : SEEN_BY_SOME);
            }
        }
        while (cell_order != nullptr && !merge()) {
        }
    }

    int64_t run(int64_t from) const {  // the end of the cells from `from` on that are in order
        while (++from < n && !later(list[from - 1], list[from])) {
        }
        return std::min(from, n);
    }

    // Merges neighbouring runs of the list in pairs (natural merge sort). Returns whether there was only one.
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
                buffer[from++]     = list[second ? b++ : a++];
            }
            middle = from < n ? run(from) : n;
        }
        std::swap(list, buffer);
        return false;
    }
};

}  // namespace specllama_attention
