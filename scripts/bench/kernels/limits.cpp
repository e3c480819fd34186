// What this processor can do at most: bytes read from memory, and multiply-add operations of 8-bit integers and of 32-bit
// floats, each a second, by all threads together. Compiled by __main__.py with -march=native, called by ctypes.
#include <immintrin.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using steady = std::chrono::steady_clock;
constexpr int CHAINS = 12;  // independent sums, more than an instruction's latency needs

double seconds_since(steady::time_point start) { return std::chrono::duration<double>(steady::now() - start).count(); }

template <typename F> double timed(int n_threads, F part) {  // seconds until part(0) ... part(n_threads - 1) are done
    std::vector<std::thread> threads;
    const auto start = steady::now();
    for (int i = 1; i < n_threads; i++) {
        threads.emplace_back(part, i);
    }
    part(0);
    for (std::thread & thread : threads) {
        thread.join();
    }
    return seconds_since(start);
}

volatile int64_t kept;  // so that no loop is left out

#if defined(__AVX512VNNI__)
using ints = __m512i;
constexpr int INT_OPERATIONS = 128;  // multiplications and additions of one step
ints step(ints sum, ints a, ints b) { return _mm512_dpbusd_epi32(sum, a, b); }
ints set(int value) { return _mm512_set1_epi32(value); }
#elif defined(__AVXVNNI__)
using ints = __m256i;
constexpr int INT_OPERATIONS = 64;
ints step(ints sum, ints a, ints b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
ints set(int value) { return _mm256_set1_epi32(value); }
#else
using ints = __m256i;
constexpr int INT_OPERATIONS = 64;
ints step(ints sum, ints a, ints b) {  // what a product of 8-bit integers takes on AVX2
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
ints set(int value) { return _mm256_set1_epi32(value); }
#endif
#if defined(__AVX512F__)
using floats = __m512;
constexpr int FLOAT_OPERATIONS = 32;
floats step(floats sum, floats a, floats b) { return _mm512_fmadd_ps(a, b, sum); }
floats set(float value) { return _mm512_set1_ps(value); }
#else
using floats = __m256;
constexpr int FLOAT_OPERATIONS = 16;
floats step(floats sum, floats a, floats b) { return _mm256_fmadd_ps(a, b, sum); }
floats set(float value) { return _mm256_set1_ps(value); }
#endif

template <typename V> int64_t first(const V & value) {
    int64_t found;
    __builtin_memcpy(&found, &value, sizeof found);
    return found;
}

template <typename V, typename T> double steps(int n_threads, int64_t n, T one) {  // seconds for n * CHAINS steps a thread
    return timed(n_threads, [=](int) {
        V sums[CHAINS], a[2] = {set(one), set((T) (one + one))};
        for (V & sum : sums) {
            sum = set((T) 0);
        }
        for (int64_t i = 0; i < n; i++) {
            __asm__ volatile("" : "+v"(a[0]), "+v"(a[1]));  // the factors may have changed
#pragma GCC unroll 12
            for (int c = 0; c < CHAINS; c++) {
                sums[c] = step(sums[c], a[0], a[1]);
            }
        }
        for (const V & sum : sums) {
            kept = kept + first(sum);
        }
    });
}

}  // namespace

// Bytes a second that n_threads read from `bytes` bytes at `data`, each its part, in order.
extern "C" double read_bandwidth(int n_threads, const char * data, size_t bytes) {
    const size_t part = bytes / n_threads / 256 * 256;
    const double seconds = timed(n_threads, [=](int thread) {
        const __m256i * at = (const __m256i *) (data + thread * part);
        __m256i sums[8] = {};
        for (size_t i = 0; i < part / 32; i += 8) {
#pragma GCC unroll 8
            for (int c = 0; c < 8; c++) {
                sums[c] = _mm256_xor_si256(sums[c], _mm256_loadu_si256(at + i + c));
            }
        }
        for (const __m256i & sum : sums) {
            kept = kept + first(sum);
        }
    });
    return (double) part * n_threads / seconds;
}

// Operations a second, a multiplication and an addition being two, of n * CHAINS steps in each thread.
extern "C" double int8_peak(int n_threads, int64_t n) {
    return (double) INT_OPERATIONS * CHAINS * n * n_threads / steps<ints>(n_threads, n, 0x01010101);
}

extern "C" double float_peak(int n_threads, int64_t n) {
    return (double) FLOAT_OPERATIONS * CHAINS * n * n_threads / steps<floats>(n_threads, n, 1.0f);
}
