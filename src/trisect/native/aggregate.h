/* Sums of gathered rows with an epilogue: the argument of trisect_sum_{f32,f64,bf16}.
 *
 *   t      = alpha * row_scale[i] * sum_k  values[k] * column_scale[c] * x[c]  +  beta * add[i]  +  bias
 *            over the entries k = starts[i] .. ends[i]-1, with c = indices[k] - column_base
 *   out[i] = post(t)
 *
 * NULL means: values, row_scale and column_scale 1, add and bias 0, vertices row numbers. A row without entries has the
 * sum 0. With post bit 2, row i of the matrix is row targets[i] of out and of add (each at most once): with add = out
 * the sums are added to some rows of a larger array.
 * post: bit 0 relu (keeps NaN), bit 3 instead: negative elements are multiplied by `scale` (then nothing is dropped),
 * bit 1 dropout, in this order; dropout zeroes an element whose
 * noise_bits(vertices[i], column) are below `threshold` and multiplies the others by `scale`.
 *
 * x, add and out have the storage type (bf16 as uint16_t); values, scales and bias the accumulator's (float32 for bf16).
 * Strides are in elements, between rows; elements of a row are adjacent. add may be out itself; x may not.
 * Where `last_rows` is not NULL, it holds the rows of x from `split` on, at the same stride, and x has memory for all columns.
 * Each row is summed in the order of its entries by one thread, so that the result does not depend on `threads`.
 */
#ifndef TRISECT_AGGREGATE_H
#define TRISECT_AGGREGATE_H

#include "kernels.h"

enum { POST_RELU = 1, POST_DROPOUT = 2, POST_TARGETS = 4, POST_LEAKY = 8 };

struct sum_arguments {
    const int64_t *starts, *ends;
    const int32_t *indices;
    const void *values;
    const void *row_scale;
    const void *column_scale;
    const void *x;
    const void *add;
    const void *bias;
    void *out;
    const int64_t *vertices;
    int64_t rows, columns, features, column_base;
    int64_t x_stride, add_stride, out_stride;
    double alpha, beta, scale;
    uint64_t key;
    uint32_t threshold;
    int32_t post, threads;
    const int64_t *targets;
    const void *last_rows;
    int64_t split;
};

/* Rows of one task: about 2048 entries, so that hubs are spread and handing out tasks costs nothing. */
INLINE int64_t rows_per_task(const int64_t *starts, const int64_t *ends, int64_t rows, int threads) {
    if (rows < 1) return 1;
    int64_t span = ends[rows - 1] - starts[0];
    int64_t count = span > 0 ? 2048 * rows / span : 4096;
    if (count < 16) count = 16;
    if (count > 4096) count = 4096;
    int64_t fair = rows / ((int64_t)threads * 8) + 1;
    return count < fair ? count : fair;
}

#endif
