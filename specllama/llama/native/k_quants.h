// Included by mul_mat.h: how blocks of Q2_K, Q3_K, Q5_K, Q6_K and IQ4_XS are unpacked for the loops of blocks_256.h.

template <> struct block_256<block_q5_K> : format_256 {
    static constexpr mins MINS = mins::summed;
    static void unpack(const block_q5_K & w, unpacked_block & to) {
        const __m256i high = _mm256_loadu_si256((const __m256i *) w.qh);
        SPECLLAMA_UNROLL
        for (int j = 0; j < 8; j++) {
            const __m256i low   = _mm256_loadu_si256((const __m256i *) w.qs + j / 2);
            const __m256i four  = _mm256_and_si256(j % 2 ? _mm256_srli_epi16(low, 4) : low, _mm256_set1_epi8(15));
            const __m256i fifth = _mm256_and_si256(_mm256_srli_epi16(high, j), _mm256_set1_epi8(1));
            to.values[j] = _mm256_or_si256(four, _mm256_slli_epi16(fifth, 4));
        }
        uint32_t p[3];  // as scales_and_mins(), which is not inlined here
        memcpy(p, w.scales, sizeof(p));
        const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, high2 = 0x30303030;
        const __m128i both = _mm_setr_epi32((int) (p[0] & low6), (int) ((p[2] & low4) | ((p[0] >> 2) & high2)),
                                            (int) (p[1] & low6), (int) (((p[2] >> 4) & low4) | ((p[1] >> 2) & high2)));
        to.scales = _mm_unpacklo_epi8(both, both);
        to.mins   = _mm256_castsi128_si256(_mm_cvtepu8_epi16(_mm_srli_si128(both, 8)));
    }
    static float min(const block_q5_K & w) { return float_of(w.data.data.dmin); }
    static float scale(const block_q5_K & w) { return float_of(w.data.data.d); }
};

template <> struct block_256<block_q6_K> : format_256 {
    static constexpr mins MINS = mins::in_sums;  // weights of -32 to 31 are multiplied as 0 to 63
    static void unpack(const block_q6_K & w, unpacked_block & to) {
        SPECLLAMA_UNROLL
        for (int j = 0; j < 8; j++) {
            const __m256i low  = _mm256_loadu_si256((const __m256i *) w.ql + j / 4 * 2 + j % 2);
            const __m256i four = _mm256_and_si256(j % 4 < 2 ? low : _mm256_srli_epi16(low, 4), _mm256_set1_epi8(15));
            const __m256i high = _mm256_loadu_si256((const __m256i *) w.qh + j / 4);
            const __m256i two  = _mm256_and_si256(_mm256_srli_epi16(high, 2 * (j % 4)), _mm256_set1_epi8(3));
            to.values[j] = _mm256_or_si256(four, _mm256_slli_epi16(two, 4));
        }
        to.scales = _mm_loadu_si128((const __m128i *) w.scales);
        to.mins   = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(to.scales), _mm256_set1_epi16(-32));
    }
    static float min(const block_q6_K &) { return 0; }
    static float scale(const block_q6_K & w) { return float_of(w.d); }
};

template <> struct block_256<block_q2_K> : format_256 {
    static constexpr mins MINS = mins::in_lanes;
    static constexpr int  SCALED_BYTES = 1;
    static void unpack(const block_q2_K & w, unpacked_block & to) {
        SPECLLAMA_UNROLL
        for (int j = 0; j < 8; j++) {
            const __m256i four = _mm256_loadu_si256((const __m256i *) w.qs + j / 4);
            to.values[j] = _mm256_and_si256(_mm256_srli_epi16(four, 2 * (j % 4)), _mm256_set1_epi8(3));
        }
        const __m128i both = _mm_loadu_si128((const __m128i *) w.scales), low4 = _mm_set1_epi8(15);
        to.scales = _mm_and_si128(both, low4);
        to.mins   = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), low4));
    }
    static float min(const block_q2_K & w) { return float_of(w.data.data.dmin); }
    static float scale(const block_q2_K & w) { return float_of(w.data.data.d); }
};

template <> struct block_256<block_q3_K> : format_256 {
    static constexpr bool is_signed = true;
    static constexpr int  SCALED_BYTES = 1, SIGN = -1;  // -4 x -32 is no signed byte, its negative is
    static void unpack(const block_q3_K & w, unpacked_block & to) {
        const __m256i high = _mm256_loadu_si256((const __m256i *) w.hmask);
        SPECLLAMA_UNROLL
        for (int j = 0; j < 8; j++) {  // values of -4 to 3
            const __m256i four = _mm256_srli_epi16(_mm256_loadu_si256((const __m256i *) w.qs + j / 4), 2 * (j % 4));
            const __m256i unset = _mm256_andnot_si256(_mm256_srli_epi16(high, j), _mm256_set1_epi8(1));
            to.values[j] = _mm256_sub_epi8(_mm256_and_si256(four, _mm256_set1_epi8(3)), _mm256_slli_epi16(unset, 2));
        }
        uint32_t p[3];
        memcpy(p, w.scales, sizeof(p));
        const uint32_t low4 = 0x0f0f0f0f, low2 = 0x03030303;
        const __m128i all = _mm_setr_epi32((int) ((p[0] & low4) | (p[2] & low2) << 4),
                                           (int) ((p[1] & low4) | (p[2] >> 2 & low2) << 4),
                                           (int) ((p[0] >> 4 & low4) | (p[2] >> 4 & low2) << 4),
                                           (int) ((p[1] >> 4 & low4) | (p[2] >> 6 & low2) << 4));
        to.scales = _mm_sub_epi8(all, _mm_set1_epi8(32));
    }
    static float min(const block_q3_K &) { return 0; }
    static float scale(const block_q3_K & w) { return float_of(w.d); }
};

template <> struct block_256<block_iq4_xs> : format_256 {
    static constexpr bool is_signed = true, has_large_products = true;
    static constexpr int  FEW_ROWS = MAX_ROWS, SCALED_BYTES = 2;
    static void unpack(const block_iq4_xs & w, unpacked_block & to) {
        const __m256i values = _mm256_broadcastsi128_si256(iq4_values());
        SPECLLAMA_UNROLL
        for (int j = 0; j < 8; j++) {
            to.values[j] = _mm256_shuffle_epi8(values, nibbles(w.qs + 16 * j));
        }
        int32_t low;
        memcpy(&low, w.scales_l, sizeof(low));
        const __m128i low4 = _mm_cvtsi32_si128(low), mask = _mm_set1_epi8(15);
        const __m128i low8 = _mm_unpacklo_epi8(_mm_and_si128(low4, mask), _mm_and_si128(_mm_srli_epi16(low4, 4), mask));
        const __m256i high = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(w.scales_h),
                                                                _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                                              _mm256_set1_epi32(3));
        const __m128i high8 = _mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        const __m128i both  = _mm_or_si128(low8, _mm_slli_epi16(_mm_packs_epi16(high8, high8), 4));
        const __m128i all   = _mm_sub_epi8(both, _mm_set1_epi8(32));
        to.scales = _mm_unpacklo_epi8(all, all);
    }
    // 32 values times their scale, which are the integers 64 x to[0] + to[1], both of bytes: each of the 16 once.
    static void unpack_scaled(const block_iq4_xs & w, const unpacked_block & from, int j, __m256i * to) {
        const __m128i scale    = _mm_shuffle_epi8(from.scales, _mm_set1_epi8((char) (2 * j)));
        const __m256i products = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(iq4_values()), _mm256_cvtepi8_epi16(scale));
        const __m256i high     = _mm256_srai_epi16(_mm256_add_epi16(products, _mm256_set1_epi16(32)), 6);
        const __m256i low      = _mm256_sub_epi16(products, _mm256_slli_epi16(high, 6));
        const __m256i both     = _mm256_permute4x64_epi64(_mm256_packs_epi16(high, low), _MM_SHUFFLE(3, 1, 2, 0));
        const __m256i indices  = nibbles(w.qs + 16 * j);
        to[0] = _mm256_shuffle_epi8(_mm256_permute2x128_si256(both, both, 0x00), indices);
        to[1] = _mm256_shuffle_epi8(_mm256_permute2x128_si256(both, both, 0x11), indices);
    }
    static float min(const block_iq4_xs &) { return 0; }
    static float scale(const block_iq4_xs & w) { return float_of(w.d); }
};
