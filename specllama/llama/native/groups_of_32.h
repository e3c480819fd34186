// Included by multiply.h: weights of Q4_0, IQ4_NL and MXFP4 as llama.cpp stores them, in groups of eight columns, each
// block with 32 values of each column.

struct of_q8_0 {  // a block of a row, as every column needs it
    float   d;
    int32_t eightfold;  // 8 x its sum: weights are computed with a multiple of 8 added
};

static const of_q8_0 * all_of_q8_0(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    of_q8_0 * of = scratch<of_q8_0>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_0 * a = (const block_q8_0 *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            int32_t sum = 0;
            for (int i = 0; i < QK8_0; i++) {
                sum += a[b].qs[i];
            }
            of[r * nb + b] = { float_of(a[b].d), 8 * sum };
        }
    }
    return of;
}

struct block_iq4_nlx8 {  // as in repack.h: laid out like block_q4_0x8
    ggml_half d[8];
    uint8_t   qs[QK4_NL * 4];
};

struct block_mxfp4x8 {
    uint8_t e[8];
    uint8_t qs[QK_MXFP4 * 4];
};

inline __m128i numbers_of_iq4() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}
inline __m128i numbers_of_mxfp4() { return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }

template <typename V> static typename V::floats scales_of(const block_q4_0x8 & w, const block_q4_0x8 & next) {
    return V::halves(w.d, next.d);
}
template <typename V> static typename V::floats scales_of(const block_iq4_nlx8 & w, const block_iq4_nlx8 & next) {
    return V::halves(w.d, next.d);
}
inline __m128i exponents(const uint8_t * e) {  // 2^-127, and less, is taken for 0
    const __m128i all = _mm_loadl_epi64((const __m128i *) e);
    return _mm_cvtepu8_epi16(_mm_subs_epu8(all, _mm_set1_epi8(1)));
}
template <typename V> static typename V::floats scales_of(const block_mxfp4x8 & w, const block_mxfp4x8 & next) {
    return V::powers(exponents(w.e), exponents(next.e));
}

// The numbers that four bits stand for. They become unsigned by adding MORE, unless they are SIGNED, where sums of 16 bits
// would overflow.
template <typename V, typename BLOCK> struct four_bits {
    static constexpr bool IQ4 = std::is_same_v<BLOCK, block_iq4_nlx8>, SIGNED = IQ4 && V::SUMMED == 2;
    static constexpr int  MORE = SIGNED ? 0 : IQ4 ? 128 : 16;
    const __m128i table = _mm_add_epi8(IQ4 ? numbers_of_iq4() : numbers_of_mxfp4(), _mm_set1_epi8((char) MORE));
    typename V::ints both(typename V::ints bytes) const { return bytes; }  // of a byte
    typename V::ints number(typename V::ints bits) const { return V::looked_up(table, bits); }
};

template <typename V> struct four_bits<V, block_q4_0x8> {  // of -8 to 7, two's complement
    static constexpr bool SIGNED = false;
    static constexpr int  MORE = 8;
    typename V::ints both(typename V::ints bytes) const { return V::other(bytes, V::bytes(0x88)); }
    typename V::ints number(typename V::ints bits) const { return bits; }
};

template <typename V, typename BLOCK, int R>
static int64_t rows_of_groups(int64_t n, int64_t nc, float * s, size_t bs, const BLOCK * weights, const char * rows,
                          size_t stride, const of_q8_0 * of) {
    using ints = typename V::ints;
    using bits = four_bits<V, BLOCK>;
    constexpr bool SIGNED = bits::SIGNED;
    const bits     of_bits;
    const int64_t  nb = n / QK8_0;
    int64_t x = 0;
    for (; x + 8 * V::GROUPS <= nc; x += 8 * V::GROUPS) {
        const BLOCK * w    = weights + x / 8 * nb;
        const BLOCK * next = w + (V::GROUPS - 1) * nb;
        typename V::floats acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = V::none();
        }
        for (int64_t b = 0; b < nb; b++) {
            ahead<V, R>(w + b, next + b, nb);
            ints first[4], second[4];  // as in eights()
            SPECLLAMA_UNROLL
            for (int i = 0; i < 2; i++) {
                ints one, two;
                V::load(&one, &two, w[b].qs + 64 * i, next[b].qs + 64 * i);
                one = of_bits.both(one);
                two = of_bits.both(two);
                first[i]      = of_bits.number(V::both(one, V::bytes(15)));
                second[i]     = of_bits.number(V::both(two, V::bytes(15)));
                first[i + 2]  = of_bits.number(V::both(V::high(one), V::bytes(15)));
                second[i + 2] = of_bits.number(V::both(V::high(two), V::bytes(15)));
            }
            const typename V::floats d = scales_of<V>(w[b], next[b]);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const of_q8_0 & more = of[r * nb + b];
                ints bytes[4], one = V::zero(), two = V::zero();
                eights<V>(bytes, ((const block_q8_0 *) (rows + r * stride))[b].qs);
                SPECLLAMA_UNROLL
                for (int i = 0; i < 4; i++) {
                    one = SIGNED ? V::plus_signed(one, first[i], bytes[i]) : V::plus(one, first[i], bytes[i]);
                    two = SIGNED ? V::plus_signed(two, second[i], bytes[i]) : V::plus(two, second[i], bytes[i]);
                }
                const ints sums = SIGNED ? V::columns(one, two) : V::columns(V::whole(one), V::whole(two));
                acc[r] = V::plus(acc[r], V::less(sums, V::words(more.eightfold * (bits::MORE / 8))), V::times(d, V::all(more.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store(s + r * bs + x, acc[r]);
        }
    }
    return x;
}

template <typename GROUP> struct kernel_of_groups {
    static constexpr int MOST = specllama::MOST;
    static size_t per_row(int64_t n) { return n / QK8_0 * sizeof(of_q8_0); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return all_of_q8_0(n / QK8_0, rows, stride, n_rows);
    }
    template <int R>
    static void times(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                      size_t stride, const void * prepared) {
        const of_q8_0 * of = (const of_q8_0 *) prepared;
        int64_t x = 0;
        if (R > 1) {  // for one row, reading group after group is faster
            x = rows_of_groups<widest, GROUP, R>(n, nc, s, bs, (const GROUP *) w, rows, stride, of);
        }
        rows_of_groups<narrow, GROUP, R>(n, nc - x, s + x, bs, (const GROUP *) (w + x * pitch), rows, stride, of);
    }
};
template <> struct kernel<block_q4_0x8> : kernel_of_groups<block_q4_0x8> {};
template <> struct kernel<block_iq4_nlx8> : kernel_of_groups<block_iq4_nlx8> {};
template <> struct kernel<block_mxfp4x8> : kernel_of_groups<block_mxfp4x8> {};
