/* A banded matrix times frames: each frame of the result is a weighted sum of a few consecutive frames. */
#include "kernels.h"

/* Numbers of each frame that are worked on at once: a band of them stays in the first caches for all steps. */
#define STRIP 1024

/* out[o][i] = sum over f = first[o] .. last[o]-1 of weights[o * width + f - first[o]] * in[f][i]; every frame has `size`
   numbers. The order of a sum does not depend on strips or threads. */
#define BAND(KIND, REAL)                                                                                               \
    INLINE void sum_##KIND(REAL *restrict to, const REAL *const *in, const REAL *weights, int64_t count, int64_t begin,\
                           int64_t length) {                                                                           \
        if (count == 0)                                                                                                \
            memset(to, 0, (size_t)length * sizeof *to);                                                                \
        for (int64_t f = 0; f < count; f += 4) {                                                                       \
            const int64_t left = count - f;                                                                            \
            const REAL *w = weights + f, *a = in[f] + begin;                                                           \
            if (left < 4) {                                                                                            \
                if (f == 0)                                                                                            \
                    memset(to, 0, (size_t)length * sizeof *to);                                                        \
                for (int64_t k = 0; k < left; k++)                                                                     \
                    for (int64_t i = 0; i < length; i++)                                                               \
                        to[i] += w[k] * in[f + k][begin + i];                                                          \
                continue;                                                                                              \
            }                                                                                                          \
            const REAL *b = in[f + 1] + begin, *c = in[f + 2] + begin, *d = in[f + 3] + begin;                         \
            if (f == 0)                                                                                                \
                for (int64_t i = 0; i < length; i++)                                                                   \
                    to[i] = w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i];                                     \
            else                                                                                                       \
                for (int64_t i = 0; i < length; i++)                                                                   \
                    to[i] += w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i];                                    \
        }                                                                                                              \
    }                                                                                                                  \
    void TRISECT(trisect_band_##KIND)(const REAL *const *in, REAL *const *out, int64_t outs, const int64_t *first,     \
                                      const int64_t *last, const REAL *weights, int64_t width, int64_t size,           \
                                      int threads);                                                                    \
    void TRISECT(trisect_band_##KIND)(const REAL *const *in, REAL *const *out, int64_t outs, const int64_t *first,     \
                                      const int64_t *last, const REAL *weights, int64_t width, int64_t size,           \
                                      int threads) {                                                                   \
        const int64_t strips = (size + STRIP - 1) / STRIP;                                                             \
        _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int64_t s = 0; s < strips; s++) {       \
            const int64_t begin = s * STRIP, end = begin + STRIP < size ? begin + STRIP : size;                        \
            for (int64_t o = 0; o < outs; o++)                                                                         \
                sum_##KIND(out[o] + begin, in + first[o], weights + o * width, last[o] - first[o], begin,              \
                           end - begin);                                                                               \
        }                                                                                                              \
    }

BAND(f32, float)
BAND(f64, double)
