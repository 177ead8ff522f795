/* Short vectors of float or double through the compiler's vector extension, and exp, sigmoid, tanh on them.
 *
 * The vector is as wide as the registers of the instruction set that the file is compiled for.
 */
#ifndef TRISECT_VECTORS_H
#define TRISECT_VECTORS_H

/* A source that wants narrower vectors defines VECTOR_BYTES first. */
#if defined(VECTOR_BYTES)
#elif defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

typedef float vec_f32 __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t ivec_f32 __attribute__((vector_size(VECTOR_BYTES)));
typedef double vec_f64 __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t ivec_f64 __attribute__((vector_size(VECTOR_BYTES)));

/* Without alignment, and allowed to alias the scalars it is read from. */
typedef float loose_f32 __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef double loose_f64 __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));

INLINE vec_f32 load_f32(const float *p) { return *(const loose_f32 *)p; }
INLINE vec_f64 load_f64(const double *p) { return *(const loose_f64 *)p; }
INLINE void store_f32(float *p, vec_f32 x) { *(loose_f32 *)p = x; }
INLINE void store_f64(double *p, vec_f64 x) { *(loose_f64 *)p = x; }
INLINE vec_f32 fill_f32(float x) { return x - (vec_f32){0}; }
INLINE vec_f64 fill_f64(double x) { return x - (vec_f64){0}; }

INLINE vec_f32 choose_f32(ivec_f32 mask, vec_f32 yes, vec_f32 no) {
    return (vec_f32)((mask & (ivec_f32)yes) | (~mask & (ivec_f32)no));
}
INLINE vec_f64 choose_f64(ivec_f64 mask, vec_f64 yes, vec_f64 no) {
    return (vec_f64)((mask & (ivec_f64)yes) | (~mask & (ivec_f64)no));
}

/* A NaN passes through: the comparison is false for it and keeps x. */
INLINE vec_f32 clamp_f32(vec_f32 x, float low, float high) {
    vec_f32 lows = fill_f32(low), highs = fill_f32(high);
    x = choose_f32(x < lows, lows, x);
    return choose_f32(x > highs, highs, x);
}
INLINE vec_f64 clamp_f64(vec_f64 x, double low, double high) {
    vec_f64 lows = fill_f64(low), highs = fill_f64(high);
    x = choose_f64(x < lows, lows, x);
    return choose_f64(x > highs, highs, x);
}

/* exp within 2 units of the last place on [-87, 88]; smaller arguments give exp(-87), about 1.6e-38.
 * Adding 1.5 * 2^23 rounds to an integer, whose bits then shift straight into the exponent. */
INLINE vec_f32 exp_f32(vec_f32 x) {
    x = clamp_f32(x, -87.0f, 88.0f);
    vec_f32 shifted = x * 1.44269504f + 12582912.0f;
    vec_f32 n = shifted - 12582912.0f;
    vec_f32 r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec_f32 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (vec_f32)((ivec_f32)p + ((ivec_f32)shifted << 23));
}

/* The same for double: the Taylor series to the 13th power is below half a unit for |r| <= ln 2 / 2. */
INLINE vec_f64 exp_f64(vec_f64 x) {
    x = clamp_f64(x, -708.0, 709.0);
    vec_f64 shifted = x * 1.4426950408889634 + 6755399441055744.0;
    vec_f64 n = shifted - 6755399441055744.0;
    vec_f64 r = x - n * 6.93145751953125e-1;
    r = r - n * 1.42860682030941723212e-6;
    vec_f64 p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    return (vec_f64)((ivec_f64)p + ((ivec_f64)shifted << 52));
}

INLINE vec_f32 sigmoid_f32(vec_f32 x) { return 1.0f / (1.0f + exp_f32(-x)); }
INLINE vec_f64 sigmoid_f64(vec_f64 x) { return 1.0 / (1.0 + exp_f64(-x)); }

/* tanh: near zero an odd series, elsewhere by exp; the first keeps the relative error small where exp cancels. */
INLINE vec_f32 tanh_f32(vec_f32 x) {
    vec_f32 z = x * x;
    vec_f32 p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    vec_f32 small = p * (z * x) + x;
    ivec_f32 sign = (ivec_f32)x & (int32_t)0x80000000;
    vec_f32 size = (vec_f32)((ivec_f32)x ^ sign);
    vec_f32 large = 1.0f - 2.0f / (exp_f32(size + size) + 1.0f);
    return choose_f32(z < fill_f32(0.390625f), small, (vec_f32)((ivec_f32)large | sign));
}

INLINE vec_f64 tanh_f64(vec_f64 x) {
    vec_f64 z = x * x;
    vec_f64 p = (z * -9.64399179425052238628e-1 - 9.92877231001918586564e1) * z - 1.61468768441708447952e3;
    vec_f64 q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3;
    vec_f64 small = x + x * z * (p / q);
    ivec_f64 sign = (ivec_f64)x & (int64_t)0x8000000000000000;
    vec_f64 size = (vec_f64)((ivec_f64)x ^ sign);
    vec_f64 large = 1.0 - 2.0 / (exp_f64(size + size) + 1.0);
    return choose_f64(z < fill_f64(0.390625), small, (vec_f64)((ivec_f64)large | sign));
}

/* Transpose of a square tile: element (i, j) of the source goes to (j, i) of the target. */
#if defined(__AVX2__)
#include <immintrin.h>
#define TILE_f32 8
#define TILE_f64 4

INLINE void transpose_tile_f32(const float *source, int64_t source_stride, float *target, int64_t target_stride) {
    __m256 r[8], s[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        /* rows i and i + 4 share a register, so that all later shuffles stay within 128 bits */
        const float *low = source + i * source_stride, *high = low + 4 * source_stride;
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)), _mm_loadu_ps(high + 4), 1);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        s[i + 2] = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
        s[i + 3] = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        _mm256_storeu_ps(target + i * target_stride, _mm256_shuffle_ps(s[i], s[i + 2], 0x44));
        _mm256_storeu_ps(target + (i + 1) * target_stride, _mm256_shuffle_ps(s[i], s[i + 2], 0xEE));
        _mm256_storeu_ps(target + (i + 2) * target_stride, _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44));
        _mm256_storeu_ps(target + (i + 3) * target_stride, _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xEE));
    }
}

INLINE void transpose_tile_f64(const double *source, int64_t source_stride, double *target, int64_t target_stride) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) target[j * target_stride + i] = source[i * source_stride + j];
}
#endif

#endif
