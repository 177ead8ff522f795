/* Several snapshots at once: the entries of any of them stand once, with a value for each (0 where a snapshot has none),
 * and the features of the snapshots lie side by side, so that one gather serves all.
 *
 * Side by side: row c of x is [steps][pitch], pitch the features rounded up to whole vectors of SEVERAL_BYTES.
 * For each step g and row i
 *
 *   t         = sum_k values[k][g] * x[c][g]  +  bias,   over the entries k = starts[i] .. ends[i]-1, in their order,
 *               with c = indices[k] - column_base
 *   out[g][i] = t, or with `leaky` t below 0 times slope
 *
 * values NULL means 1, bias NULL 0. An entry that a snapshot has not adds 0 to its sums, and each step's sums are added
 * up in the order of entries whatever stands beside them: the result for a step is the same to the bit in any group, and
 * with any number of threads, as long as x is finite.
 */
#ifndef TRISECT_SEVERAL_H
#define TRISECT_SEVERAL_H

#include "kernels.h"

/* Of a vector. Wider ones would pad narrow rows to twice their size. */
#if defined(TRISECT_LEVEL_AVX512) || defined(TRISECT_LEVEL_AVX2)
#define SEVERAL_BYTES 32
#else
#define SEVERAL_BYTES 16
#endif

struct several_arguments {
    const int64_t *starts, *ends;
    const int32_t *indices;
    const void *values;
    const void *x;
    const void *bias;
    void *const *out;
    int64_t rows, features, pitch, column_base, out_stride;
    double slope;
    int32_t leaky, steps, threads;
};

struct pack_arguments {
    const void *const *x;
    const void *const *sign; /* NULL: x as it is; otherwise x times slope where this is not above 0 */
    void *out;
    int64_t rows, features, pitch, x_stride, sign_stride;
    double slope;
    int32_t steps, threads;
};

/* Matrices of equal shape, to be laid over each other. */
struct overlay_arguments {
    const int64_t *const *starts, *const *ends;
    const int32_t *const *indices;
    const void *const *values;
    const int64_t *bases;
    int64_t rows;
    int32_t steps, threads;
};

#endif
