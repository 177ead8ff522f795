/* Products of a tall matrix with a small one, and their gradients. Included once for float and once for double, with
 * REAL, OF(name), LANES and IS_FLOAT set, after finish_body.h.
 *
 * Rows are worked on in blocks that stay in the first-level cache together with a panel of the small matrix; all that
 * is done to a row before or after the product is done there, so that each large matrix is read or written once. */

/* How many vectors wide the next panel is, if `left` are left: threes, and twos rather than a single one. */
INLINE int OF(panel_width)(int64_t left) { return left == 3 || left >= 5 ? 3 : left >= 2 ? 2 : 1; }

/* out [M, V vectors] = x [M, depth] · panel [depth, V vectors], sums in registers. */
INLINE void OF(tile)(const REAL *x, int64_t x_stride, int64_t depth, const REAL *panel, REAL *out, int64_t out_stride,
                     const int M, const int V) {
    vec_t sum[4][3];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) sum[m][v] = (vec_t){0};
    for (int64_t k = 0; k < depth; k++) {
        vec_t b[3];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) b[v] = OF(load)(panel + (k * V + v) * LANES);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            vec_t a = OF(fill)(x[m * x_stride + k]);
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) sum[m][v] += a * b[v];
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) OF(store)(out + m * out_stride + v * LANES, sum[m][v]);
}

/* out [M, V vectors] += g [rows, M]ᵀ · x [rows, V vectors]. */
INLINE void OF(tile_transposed)(const REAL *g, int64_t g_stride, const REAL *x, int64_t x_stride, int64_t rows,
                                REAL *out, int64_t out_stride, const int M, const int V) {
    vec_t sum[4][3];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) sum[m][v] = OF(load)(out + m * out_stride + v * LANES);
    for (int64_t r = 0; r < rows; r++) {
        vec_t b[3];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) b[v] = OF(load)(x + r * x_stride + v * LANES);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            vec_t a = OF(fill)(g[r * g_stride + m]);
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) sum[m][v] += a * b[v];
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) OF(store)(out + m * out_stride + v * LANES, sum[m][v]);
}

#define FOR_TILE(CALL, M, V) \
    switch ((M) * 4 + (V)) { \
        case 19: CALL(4, 3); break; \
        case 18: CALL(4, 2); break; \
        case 17: CALL(4, 1); break; \
        case 15: CALL(3, 3); break; \
        case 14: CALL(3, 2); break; \
        case 13: CALL(3, 1); break; \
        case 11: CALL(2, 3); break; \
        case 10: CALL(2, 2); break; \
        case 9: CALL(2, 1); break; \
        case 7: CALL(1, 3); break; \
        case 6: CALL(1, 2); break; \
        default: CALL(1, 1); break; \
    }

/* The small matrix share · b + identity · I, with element (k, n) of b [depth, width] at b[k * k_stride + n * n_stride],
 * as panels one after the other, padded with zeros to whole vectors. */
static void OF(pack)(const REAL *b, int64_t k_stride, int64_t n_stride, int64_t depth, int64_t width, REAL share,
                     REAL identity, REAL *packed) {
    int64_t vectors = (width + LANES - 1) / LANES;
    for (int64_t at = 0; at < vectors;) {
        int V = OF(panel_width)(vectors - at);
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < V * LANES; j++) {
                int64_t n = at * LANES + j;
                *packed++ = n < width ? share * b[k * k_stride + n * n_stride] + (k == n ? identity : 0) : 0;
            }
        at += V;
    }
}

/* out [rows, vectors] = x [rows, depth] · packed. */
static void OF(block_product)(const REAL *x, int64_t x_stride, int64_t rows, int64_t depth, const REAL *packed,
                              int64_t vectors, REAL *out, int64_t out_stride) {
    for (int64_t at = 0; at < vectors;) {
        int V = OF(panel_width)(vectors - at);
        for (int64_t r = 0; r < rows; r += 4) {
            int M = rows - r < 4 ? (int)(rows - r) : 4;
#define CALL(M, V) \
    OF(tile)(x + r * x_stride, x_stride, depth, packed, out + r * out_stride + at * LANES, out_stride, M, V)
            FOR_TILE(CALL, M, V)
#undef CALL
        }
        packed += depth * V * LANES;
        at += V;
    }
}

/* sum [outputs, vectors] += g [rows, outputs]ᵀ · x [rows, vectors]. */
static void OF(block_product_transposed)(const REAL *g, int64_t g_stride, const REAL *x, int64_t x_stride,
                                         int64_t rows, int64_t outputs, int64_t vectors, REAL *sum,
                                         int64_t sum_stride) {
    for (int64_t at = 0; at < vectors;) {
        int V = OF(panel_width)(vectors - at);
        for (int64_t o = 0; o < outputs; o += 4) {
            int M = outputs - o < 4 ? (int)(outputs - o) : 4;
#define CALL(M, V) \
    OF(tile_transposed)(g + o, g_stride, x + at * LANES, x_stride, rows, sum + o * sum_stride + at * LANES, sum_stride, M, V)
            FOR_TILE(CALL, M, V)
#undef CALL
        }
        at += V;
    }
}

/* y = dropout(relu(x·(share·w + identity·I)ᵀ + add + bias)).
 *
 * x [rows, inputs]; w [outputs, inputs] with element (o, i) at w[o * w_stride + i * w_step]; y, add [rows, outputs]; add may be NULL
 * or y itself. bits [rows, (outputs + 7) / 8], where not NULL, get mark_row of y. Returns 0, or 1 without memory. */
int TRISECT(OF(trisect_dense))(const REAL *x, int64_t x_stride, const REAL *w, int64_t w_stride, int64_t w_step,
                               double share, double identity, const REAL *add, int64_t add_stride, REAL *y, int64_t y_stride, uint8_t *bits,
                               int64_t rows, int64_t inputs, int64_t outputs, const REAL *bias, int relu, int drop,
                               uint32_t threshold, double scale, uint64_t key, const int64_t *vertices, int threads) {
    OF(finish_t) f = {bias, relu, drop, threshold, (REAL)scale, key, vertices};
    int64_t vectors = (outputs + LANES - 1) / LANES, width = vectors * LANES;
    REAL *packed = allocate((inputs + 1) * width * sizeof(REAL)), *padded = packed + inputs * width;
    if (!packed) return 1;
    int failed = 0;
    const int simple = !drop && !add;
    OF(pack)(w, w_step, w_stride, inputs, outputs, (REAL)share, (REAL)identity, packed);
    memset(padded, 0, width * sizeof(REAL));
    if (bias) memcpy(padded, bias, outputs * sizeof(REAL));
#pragma omp parallel num_threads(threads)
    {
        REAL *scratch = allocate(BLOCK * width * sizeof(REAL));
        if (!scratch) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 32)
        for (int64_t block = 0; block < (rows + BLOCK - 1) / BLOCK; block++) {
            if (!scratch) continue;
            int64_t first = block * BLOCK, count = rows - first < BLOCK ? rows - first : BLOCK;
            OF(block_product)(x + first * x_stride, x_stride, count, inputs, packed, vectors, scratch, width);
            for (int64_t i = 0; i < count; i++) {
                int64_t row = first + i;
                REAL *result = y + row * y_stride, *sums = scratch + i * width;
                if (simple) {
                    OF(finish_padded)(&f, bias ? padded : NULL, sums, width);
                    OF(copy_row)(result, sums, outputs);
                    if (bits) OF(mark_row)(result, bits + row * ((outputs + 7) / 8), outputs);
                    continue;
                }
                if (add) {
                    const REAL *more = add + row * add_stride;
                    for (int64_t c = 0; c < outputs; c++) sums[c] += more[c];
                }
                OF(finish_row)(&f, row, sums, result, outputs);
                if (bits) OF(mark_row)(result, bits + row * ((outputs + 7) / 8), outputs);
            }
        }
        free(scratch);
    }
    free(packed);
    return failed;
}

/* The gradients of trisect_dense from that of y: factor · gx [rows, inputs] (added to what is there if `accumulate`), gw [outputs, inputs]
 * and gbias [outputs], dense; each may be NULL. more [rows, inputs], dense, where not NULL, gets more_factor · gx. masked [rows, outputs], where not NULL, gets the gradient before relu and dropout.
 *
 * Weight gradients are summed in at most GROUPS groups of rows, the groups in order: the result does not depend on
 * the number of threads. */
int TRISECT(OF(trisect_dense_gradient))(const REAL *g, int64_t g_stride, const uint8_t *bits, const REAL *x,
                                        int64_t x_stride, const REAL *w, int64_t w_stride, int64_t w_step, double share,
                                        double identity, REAL *gx, int64_t gx_stride, double factor, int accumulate,
                                        REAL *more, double more_factor, REAL *gw, REAL *gbias, REAL *masked,
                                        int64_t masked_stride, int64_t rows, int64_t inputs, int64_t outputs, int relu,
                                        int drop, uint32_t threshold, double scale, uint64_t key,
                                        const int64_t *vertices, int threads) {
    OF(finish_t) f = {NULL, relu, drop, threshold, (REAL)scale, key, vertices};
    int64_t in_vectors = (inputs + LANES - 1) / LANES, in_width = in_vectors * LANES;
    int64_t blocks = (rows + BLOCK - 1) / BLOCK, groups = blocks / 16 < 1 ? 1 : blocks / 16 > GROUPS ? GROUPS : blocks / 16;
    /* a group's sums: outputs rows of gw, and one row of gbias as wide as either */
    int64_t stride = in_width, size = gw ? outputs * stride : 0, total = size + outputs;
    int64_t most = SUMS / (total * (int64_t)sizeof(REAL)) < FEWEST ? FEWEST : SUMS / (total * (int64_t)sizeof(REAL));
    if (groups > most) groups = most;
    REAL *packed = gx ? allocate(outputs * in_width * sizeof(REAL)) : NULL;
    REAL *sums = allocate(groups * total * sizeof(REAL));
    int failed = (gx && !packed) || !sums;
    if (!failed) {
        if (gx) OF(pack)(w, w_stride, w_step, outputs, inputs, (REAL)share, (REAL)identity, packed);
#pragma omp parallel num_threads(threads)
        {
            REAL *scratch = allocate(BLOCK * (2 * in_width + outputs) * sizeof(REAL));
            REAL *xs = scratch, *gxs = scratch + BLOCK * in_width, *gs = gxs + BLOCK * in_width;
            if (!scratch) {
#pragma omp atomic write
                failed = 1;
            } else {
                memset(xs, 0, BLOCK * in_width * sizeof(REAL));
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t group = 0; group < groups; group++) {
                if (!scratch) continue;
                REAL *sum = sums + group * total, *bias_sum = sum + size;
                memset(sum, 0, total * sizeof(REAL));
                for (int64_t block = blocks * group / groups; block < blocks * (group + 1) / groups; block++) {
                    int64_t first = block * BLOCK, count = rows - first < BLOCK ? rows - first : BLOCK;
                    for (int64_t i = 0; i < count; i++) {
                        int64_t row = first + i;
                        REAL *gradient = gs + i * outputs;
                        OF(finish_row_gradient)(&f, row, NULL, bits ? bits + row * ((outputs + 7) / 8) : NULL,
                                                g + row * g_stride, gradient, outputs);
                        if (gbias)
                            for (int64_t c = 0; c < outputs; c++) bias_sum[c] += gradient[c];
                        if (masked) OF(copy_row)(masked + row * masked_stride, gradient, outputs);
                        if (gw) OF(copy_row)(xs + i * in_width, x + row * x_stride, inputs);
                    }
                    if (gw) OF(block_product_transposed)(gs, outputs, xs, in_width, count, outputs, in_vectors, sum, stride);
                    if (!gx) continue;
                    OF(block_product)(gs, outputs, count, outputs, packed, in_vectors, gxs, in_width);
                    for (int64_t i = 0; i < count; i++) {
                        REAL *result = gx + (first + i) * gx_stride, *source = gxs + i * in_width;
                        if (more)
                            for (int64_t c = 0; c < inputs; c++)
                                more[(first + i) * inputs + c] = (REAL)more_factor * source[c];
                        if (accumulate)
                            for (int64_t c = 0; c < inputs; c++) result[c] += (REAL)factor * source[c];
                        else if (factor != 1)
                            for (int64_t c = 0; c < inputs; c++) result[c] = (REAL)factor * source[c];
                        else
                            OF(copy_row)(result, source, inputs);
                    }
                }
            }
            free(scratch);
        }
    }
    if (!failed && gw)
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < inputs; i++) {
                REAL value = 0;
                for (int64_t group = 0; group < groups; group++) value += sums[group * total + o * stride + i];
                gw[o * inputs + i] = (REAL)share * value;
            }
    if (!failed && gbias)
        for (int64_t o = 0; o < outputs; o++) {
            REAL value = 0;
            for (int64_t group = 0; group < groups; group++) value += sums[group * total + size + o];
            gbias[o] = value;
        }
    free(packed);
    free(sums);
    return failed;
}

/* result [rows, width] = the gradient before relu and dropout, told by the result `out`; gbias [width], where not NULL, the
 * sum of its rows. result may be g itself. Returns 0, or 1 without memory. */
int TRISECT(OF(trisect_finish_gradient))(const REAL *g, int64_t g_stride, const REAL *out, int64_t out_stride,
                                         REAL *result, int64_t result_stride, REAL *gbias, int64_t rows, int64_t width,
                                         int relu, int drop, uint32_t threshold, double scale, uint64_t key,
                                         const int64_t *vertices, int threads) {
    OF(finish_t) f = {NULL, relu, drop, threshold, (REAL)scale, key, vertices};
    if (relu && !drop && !gbias && g_stride == width && out_stride == width && result_stride == width) {
        /* one long row: narrow ones would cost more to begin than to do */
        const int64_t size = rows * width, block = 1 << 14;
        const REAL slope = relu == 2 ? (REAL)scale : 0;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t first = 0; first < size; first += block) {
            const int64_t last = first + block < size ? first + block : size;
            if (relu == 2)
                for (int64_t i = first; i < last; i++) result[i] = out[i] > 0 ? g[i] : g[i] * slope;
            else
                for (int64_t i = first; i < last; i++) result[i] = out[i] > 0 ? g[i] : 0;
        }
        return 0;
    }
    int64_t groups = rows / 512 < 1 ? 1 : rows / 512 > GROUPS ? GROUPS : rows / 512;
    REAL *sums = allocate(groups * width * sizeof(REAL));
    if (!sums) return 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t group = 0; group < groups; group++) {
        REAL *sum = sums + group * width;
        memset(sum, 0, width * sizeof(REAL));
        for (int64_t row = rows * group / groups; row < rows * (group + 1) / groups; row++) {
            REAL *gradient = result + row * result_stride;
            OF(finish_row_gradient)(&f, row, out ? out + row * out_stride : NULL, NULL, g + row * g_stride, gradient, width);
            if (gbias)
                for (int64_t c = 0; c < width; c++) sum[c] += gradient[c];
        }
    }
    if (gbias)
        for (int64_t c = 0; c < width; c++) {
            REAL value = 0;
            for (int64_t group = 0; group < groups; group++) value += sums[group * width + c];
            gbias[c] = value;
        }
    free(sums);
    return 0;
}

#undef FOR_TILE
