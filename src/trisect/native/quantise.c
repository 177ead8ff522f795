/* Rows as int8 with a scale each, for the wire: a row is its features and, behind them, the four bytes of its scale. */
#include "kernels.h"

#define LARGEST 127.0f
#define SMALLEST_SCALE 1.17549435e-38f /* the least normal float */

/* |x| ordered as integers, so that a NaN is the largest of all and is not lost. */
INLINE uint32_t largest_bits(const float *x, int64_t features) {
    uint32_t most = 0;
    for (int64_t f = 0; f < features; f++) {
        uint32_t bits;
        memcpy(&bits, x + f, 4);
        bits &= 0x7FFFFFFFu;
        most = bits > most ? bits : most;
    }
    return most;
}

/* message[i,f] = floor(x[which[i],f] / scale_i + chance), chance uniform in [0, 1] by (key, i, f). which NULL: row i. */
void TRISECT(trisect_quantise)(const float *x, int8_t *message, const int64_t *which, int64_t rows, int64_t features,
                               int64_t x_stride, uint64_t key, int threads);
void TRISECT(trisect_quantise)(const float *x, int8_t *message, const int64_t *which, int64_t rows, int64_t features,
                               int64_t x_stride, uint64_t key, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const uint64_t row = noise_row_key(key, i);
        const uint32_t low = (uint32_t)row, high = (uint32_t)(row >> 32);
        const float *from = x + (which ? which[i] : i) * x_stride;
        int8_t *to = message + i * (features + 4);
        const uint32_t most = largest_bits(from, features);
        float scale;
        memcpy(&scale, &most, 4);
        scale /= LARGEST;
        if (most < 0x7F800000u) {
            scale = scale < SMALLEST_SCALE ? SMALLEST_SCALE : scale;
#pragma GCC ivdep
            for (int64_t f = 0; f < features; f++) {
                const float chance = (float)noise_bits(low, high, (uint32_t)f) * 0x1p-32f;
                const float value = from[f] / scale + chance;
                int32_t floor = (int32_t)value;
                floor -= (float)floor > value;
                floor = floor < -127 ? -127 : floor;
                to[f] = (int8_t)(floor > 127 ? 127 : floor);
            }
        } else
            memset(to, 0, (size_t)features); /* times a scale that is not finite: NaN in the whole row */
        memcpy(to + features, &scale, 4);
    }
}

void TRISECT(trisect_dequantise)(const int8_t *message, float *out, int64_t rows, int64_t features, int64_t out_stride,
                                 int threads);
void TRISECT(trisect_dequantise)(const int8_t *message, float *out, int64_t rows, int64_t features, int64_t out_stride,
                                 int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const int8_t *from = message + i * (features + 4);
        float *to = out + i * out_stride;
        float scale;
        memcpy(&scale, from + features, 4);
#pragma GCC ivdep
        for (int64_t f = 0; f < features; f++)
            to[f] = (float)from[f] * scale;
    }
}
