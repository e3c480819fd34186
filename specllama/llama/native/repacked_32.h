// Included by mul_mat.h: weights of Q4_0, IQ4_NL and MXFP4 as llama.cpp repacks them (CPU_REPACK), in groups of eight
// columns, each block with 32 values of each column.

struct row_sum {  // of a block of a row
    float   d;
    int32_t sum_x8;  // 8 x its sum: OFFSET, a multiple of 8, is added to the weights
};

static const row_sum * prepare_repacked(int64_t nb, const char * rows, size_t stride, int64_t n_rows) {
    row_sum * row_sums = scratch<row_sum>(n_rows * nb);
    for (int64_t r = 0; r < n_rows; r++) {
        const block_q8_0 * a = (const block_q8_0 *) (rows + r * stride);
        for (int64_t b = 0; b < nb; b++) {
            int32_t sum = 0;
            for (int i = 0; i < QK8_0; i++) {
                sum += a[b].qs[i];
            }
            row_sums[r * nb + b] = { float_of(a[b].d), 8 * sum };
        }
    }
    return row_sums;
}

struct block_iq4_nlx8 {  // as in repack.h: laid out like block_q4_0x8
    ggml_half d[8];
    uint8_t   qs[QK4_NL * 4];
};

struct block_mxfp4x8 {
    uint8_t e[8];
    uint8_t qs[QK_MXFP4 * 4];
};

inline __m128i iq4_values() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}
inline __m128i mxfp4_values() { return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }

template <typename V> static typename V::floats scales_of(const block_q4_0x8 & w, const block_q4_0x8 & next) {
    return V::load_f16_scales(w.d, next.d);
}
template <typename V> static typename V::floats scales_of(const block_iq4_nlx8 & w, const block_iq4_nlx8 & next) {
    return V::load_f16_scales(w.d, next.d);
}
inline __m128i exponents(const uint8_t * e) {  // mxfp4_values() are doubled; 2^-127 and less count as 0
    const __m128i all = _mm_loadl_epi64((const __m128i *) e);
    return _mm_cvtepu8_epi16(_mm_subs_epu8(all, _mm_set1_epi8(1)));
}
template <typename V> static typename V::floats scales_of(const block_mxfp4x8 & w, const block_mxfp4x8 & next) {
    return V::e8m0_scales(exponents(w.e), exponents(next.e));
}

// How 4-bit codes are decoded. OFFSET makes the values unsigned, unless 16-bit sums would overflow: then they are SIGNED.
template <typename V, typename BLOCK> struct codes {
    static constexpr bool IQ4 = std::is_same_v<BLOCK, block_iq4_nlx8>, SIGNED = IQ4 && V::PRODUCTS_PER_SUM == 2;
    static constexpr int  OFFSET = SIGNED ? 0 : IQ4 ? 128 : 16;
    const __m128i table = _mm_add_epi8(IQ4 ? iq4_values() : mxfp4_values(), _mm_set1_epi8((char) OFFSET));
    typename V::ints prepare_bytes(typename V::ints bytes) const { return bytes; }  // of two codes each
    typename V::ints decode(typename V::ints nibbles) const { return V::lookup(table, nibbles); }
};

template <typename V> struct codes<V, block_q4_0x8> {  // two's complement, -8 to 7
    static constexpr bool SIGNED = false;
    static constexpr int  OFFSET = 8;
    typename V::ints prepare_bytes(typename V::ints bytes) const { return V::bit_xor(bytes, V::set1_epi8(0x88)); }
    typename V::ints decode(typename V::ints nibbles) const { return nibbles; }
};

template <typename V, typename BLOCK, int R>
static int64_t mul_mat_repacked(int64_t n, int64_t nc, float * s, size_t bs, const BLOCK * weights, const char * rows,
                                size_t stride, const row_sum * row_sums) {
    using ints      = typename V::ints;
    using decoder_t = codes<V, BLOCK>;
    constexpr bool  SIGNED = decoder_t::SIGNED;
    const decoder_t decoder;
    const int64_t   nb = n / QK8_0;
    int64_t x = 0;
    for (; x + 8 * V::N_GROUPS <= nc; x += 8 * V::N_GROUPS) {
        const BLOCK * w    = weights + x / 8 * nb;
        const BLOCK * next = w + (V::N_GROUPS - 1) * nb;
        typename V::floats acc[R];
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = V::zero_ps();
        }
        for (int64_t b = 0; b < nb; b++) {
            prefetch_groups<V, R>(w + b, next + b, nb);
            ints first[4], second[4];  // in the order of broadcast_eights
            SPECLLAMA_UNROLL
            for (int i = 0; i < 2; i++) {
                ints one, two;
                V::load_columns(&one, &two, w[b].qs + 64 * i, next[b].qs + 64 * i);
                one = decoder.prepare_bytes(one);
                two = decoder.prepare_bytes(two);
                first[i]      = decoder.decode(V::bit_and(one, V::set1_epi8(15)));
                second[i]     = decoder.decode(V::bit_and(two, V::set1_epi8(15)));
                first[i + 2]  = decoder.decode(V::bit_and(V::srli4(one), V::set1_epi8(15)));
                second[i + 2] = decoder.decode(V::bit_and(V::srli4(two), V::set1_epi8(15)));
            }
            const typename V::floats d = scales_of<V>(w[b], next[b]);
            SPECLLAMA_UNROLL
            for (int r = 0; r < R; r++) {
                const row_sum & a = row_sums[r * nb + b];
                ints bytes[4], one = V::zero_si(), two = V::zero_si();
                broadcast_eights<V>(bytes, ((const block_q8_0 *) (rows + r * stride))[b].qs);
                SPECLLAMA_UNROLL
                for (int i = 0; i < 4; i++) {
                    one = SIGNED ? V::dot_i8i8(one, first[i], bytes[i]) : V::dot_u8i8(one, first[i], bytes[i]);
                    two = SIGNED ? V::dot_i8i8(two, second[i], bytes[i]) : V::dot_u8i8(two, second[i], bytes[i]);
                }
                const ints sums = SIGNED ? V::reduce_columns(one, two)
                                         : V::reduce_columns(V::widen_sums(one), V::widen_sums(two));
                acc[r] = V::accumulate(acc[r], V::sub(sums, V::set1_epi32(a.sum_x8 * (decoder_t::OFFSET / 8))),
                                       V::mul(d, V::set1_ps(a.d)));
            }
        }
        SPECLLAMA_UNROLL
        for (int r = 0; r < R; r++) {
            V::store_columns(s + r * bs + x, acc[r]);
        }
    }
    return x;
}

template <typename GROUP> struct repacked_kernel {
    static constexpr int MAX_ROWS = specllama::MAX_ROWS;
    static size_t prepared_bytes(int64_t n) { return n / QK8_0 * sizeof(row_sum); }
    static const void * prepare(int64_t n, const char * rows, size_t stride, int64_t n_rows) {
        return prepare_repacked(n / QK8_0, rows, stride, n_rows);
    }
    template <int R>
    static void mul_mat(int64_t n, int64_t nc, float * s, size_t bs, const char * w, size_t pitch, const char * rows,
                        size_t stride, const void * prepared) {
        const row_sum * row_sums = (const row_sum *) prepared;
        int64_t x = 0;
        if (R > 1) {  // a single row is faster with one group after another
            x = mul_mat_repacked<widest, GROUP, R>(n, nc, s, bs, (const GROUP *) w, rows, stride, row_sums);
        }
        mul_mat_repacked<vec256, GROUP, R>(n, nc - x, s + x, bs, (const GROUP *) (w + x * pitch), rows, stride, row_sums);
    }
};
template <> struct kernel<block_q4_0x8> : repacked_kernel<block_q4_0x8> {};
template <> struct kernel<block_iq4_nlx8> : repacked_kernel<block_iq4_nlx8> {};
template <> struct kernel<block_mxfp4x8> : repacked_kernel<block_mxfp4x8> {};
