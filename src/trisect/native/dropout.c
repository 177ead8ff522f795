/* Dropout by the counter hash: nothing is stored for backward, which draws the same mask again. */
#include "kernels.h"

#define TO_SAME(s) (s)

/* out[i,f] = 0 where the random bits of (vertices[i], f) are below `threshold`, else x[i,f] * scale. vertices NULL:
 * row numbers. Strides in elements; out may be x. */
#define DROPOUT(KIND, STORE, ACC, TO_ACC, TO_STORE)                                                                    \
    void TRISECT(trisect_dropout_##KIND)(const STORE *x, STORE *out, const int64_t *vertices, int64_t rows,            \
                                         int64_t features, int64_t x_stride, int64_t out_stride, uint64_t key,         \
                                         uint32_t threshold, double scale, int threads);                               \
    void TRISECT(trisect_dropout_##KIND)(const STORE *x, STORE *out, const int64_t *vertices, int64_t rows,            \
                                         int64_t features, int64_t x_stride, int64_t out_stride, uint64_t key,         \
                                         uint32_t threshold, double scale, int threads) {                              \
        const ACC factor = (ACC)scale;                                                                                 \
        _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int64_t i = 0; i < rows; i++) {         \
            const uint64_t row = noise_row_key(key, vertices ? vertices[i] : i);                                       \
            const uint32_t low = (uint32_t)row, high = (uint32_t)(row >> 32);                                          \
            const STORE *from = x + i * x_stride;                                                                      \
            STORE *to = out + i * out_stride;                                                                          \
            _Pragma("GCC ivdep") for (int64_t f = 0; f < features; f++) {                                              \
                const ACC kept = TO_ACC(from[f]) * factor;                                                             \
                to[f] = TO_STORE(noise_bits(low, high, (uint32_t)f) < threshold ? (ACC)0 : kept);                      \
            }                                                                                                          \
        }                                                                                                              \
    }

DROPOUT(f32, float, float, TO_SAME, TO_SAME)
DROPOUT(f64, double, double, TO_SAME, TO_SAME)
DROPOUT(bf16, uint16_t, float, bf16_to_float, float_to_bf16)
