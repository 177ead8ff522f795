/* Fresh rows take the place of those that readers see, and a running mean of both is kept. */
#include "kernels.h"

/* mean = seen + share * (fresh - seen); seen = fresh. [size] each. */
#define BLEND(KIND, REAL)                                                                                              \
    void TRISECT(trisect_blend_##KIND)(REAL *seen, const REAL *fresh, REAL *mean, int64_t size, double share,          \
                                       int threads);                                                                   \
    void TRISECT(trisect_blend_##KIND)(REAL *seen, const REAL *fresh, REAL *mean, int64_t size, double share,          \
                                       int threads) {                                                                  \
        const REAL part = (REAL)share;                                                                                 \
        _Pragma("omp parallel for simd num_threads(threads) schedule(static)") for (int64_t i = 0; i < size; i++) {    \
            const REAL now = fresh[i], before = seen[i];                                                               \
            mean[i] = before + part * (now - before);                                                                  \
            seen[i] = now;                                                                                             \
        }                                                                                                              \
    }

BLEND(f32, float)
BLEND(f64, double)
