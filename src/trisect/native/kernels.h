/* What all native kernels share.
 *
 * Each source is compiled several times, once for each instruction set (base, avx2, avx512), with TRISECT_LEVEL set to
 * its name. An exported function is written TRISECT(name)(arguments), which becomes name_avx2 and so on; the loader
 * (library.py) resolves the plain name to the best one that the processor runs. Everything else must be `static`.
 *
 * OpenMP: use `#pragma omp parallel num_threads(threads)` with `threads` an argument of the kernel; no other call of
 * the runtime at load time, since the library is linked with none and finds torch's.
 */
#ifndef TRISECT_KERNELS_H
#define TRISECT_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TRISECT_PASTE2(name, level) name##_##level
#define TRISECT_PASTE(name, level) TRISECT_PASTE2(name, level)
#define TRISECT(name) TRISECT_PASTE(name, TRISECT_LEVEL)

#define INLINE static inline __attribute__((always_inline))

/* `bytes` of a narrow row of elements of `element` bytes, by vectors of `vector` bytes and halves, quarters … of one: a
 * call of memcpy costs more than such a row. Inlined with `vector` and `element` constants, so that none remains. */
INLINE void copy_narrow(void *restrict to, const void *restrict from, int64_t bytes, const int vector, const int element) {
    int64_t done = 0;
    for (; done + vector <= bytes; done += vector)
        memcpy((char *)to + done, (const char *)from + done, (size_t)vector);
    for (int part = vector / 2; part >= element; part /= 2)
        if (bytes & part) {
            memcpy((char *)to + done, (const char *)from + done, (size_t)part);
            done += part;
        }
}

/* bf16 storage: the upper half of a float32; rounded to nearest even as torch does. */
INLINE float bf16_to_float(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

INLINE uint16_t float_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = 0x7FC0u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

/* The counter hash of trisect/noise.py, bit for bit. */
INLINE uint64_t noise_row_key(uint64_t key, int64_t vertex) {
    uint64_t x = key + (uint64_t)vertex * 0x9E3779B97F4A7C15ull + 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

INLINE uint32_t noise_bits(uint32_t low, uint32_t high, uint32_t column) {
    uint32_t x = low + column * 0x9E3779B9u;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x ^= high;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

#endif
