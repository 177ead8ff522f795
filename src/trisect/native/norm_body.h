/* y = dropout(relu(weight * h + bias)) with h = (x - mean(x)) / sqrt(variance(x) + eps), each row for itself, and its
 * gradients, for one element type (REAL, OF(name), LANES and vec_t are set by norm.c). Nothing but x is kept: backward
 * makes h and what relu saw of it again, by functions that are not inlined, so that it finds the bits of forward. */

INLINE REAL OF(sum_of)(vec_t sum, const REAL *rest, int64_t count) {
    REAL total = 0;
    for (int i = 0; i < LANES; i++) total += sum[i];
    for (int64_t i = 0; i < count; i++) total += rest[i];
    return total;
}

/* The sum of x[i] * y[i]. */
INLINE REAL OF(dot)(const REAL *x, const REAL *y, int64_t width) {
    vec_t sum = OF(fill)(0);
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) sum += OF(load)(x + c) * OF(load)(y + c);
    REAL total = OF(sum_of)(sum, NULL, 0);
    for (; c < width; c++) total += x[c] * y[c];
    return total;
}

/* h of a row; gives 1 / sqrt(variance + eps). */
static __attribute__((noinline)) REAL OF(standardise)(const REAL *x, REAL *h, int64_t width, REAL eps) {
    vec_t sum = OF(fill)(0);
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) sum += OF(load)(x + c);
    const REAL mean = OF(sum_of)(sum, x + c, width - c) / (REAL)width;
    for (c = 0; c < width; c++) h[c] = x[c] - mean;
    const REAL factor = 1 / OF(root)(OF(dot)(h, h, width) / (REAL)width + eps);
    for (c = 0; c < width; c++) h[c] *= factor;
    return factor;
}

/* y = weight * h + bias; y may be h. */
static __attribute__((noinline)) void OF(affine)(const REAL *h, const REAL *weight, const REAL *bias, REAL *y, int64_t width) {
    for (int64_t c = 0; c < width; c++) y[c] = h[c] * weight[c] + bias[c];
}

/* out [rows, width], dense; x has `stride` between rows. */
void TRISECT(OF(trisect_normalise))(const REAL *x, int64_t stride, const REAL *weight, const REAL *bias, double eps,
                                    REAL *out, int64_t rows, int64_t width, int relu, int drop, uint32_t threshold,
                                    double scale, uint64_t key, const int64_t *vertices, int threads) {
    const OF(finish_t) f = {NULL, relu, drop, threshold, (REAL)scale, key, vertices};
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        REAL *y = out + row * width;
        OF(standardise)(x + row * stride, y, width, (REAL)eps);
        OF(affine)(y, weight, bias, y, width);
        OF(finish_row)(&f, row, y, y, width);
    }
}

/* result [rows, width], dense, = the gradient of x from g, that of out, which has `g_stride` between rows; d_weight and
 * d_bias [width]. Returns 0, or 1 without memory. */
int TRISECT(OF(trisect_normalise_gradient))(const REAL *x, int64_t stride, const REAL *weight,
                                            const REAL *bias, double eps, const REAL *g, int64_t g_stride, REAL *result,
                                            REAL *d_weight, REAL *d_bias, int64_t rows, int64_t width, int relu,
                                            int drop, uint32_t threshold, double scale, uint64_t key,
                                            const int64_t *vertices, int threads) {
    const OF(finish_t) f = {NULL, 0, drop, threshold, (REAL)scale, key, vertices};
    const int64_t groups = rows / 512 < 1 ? 1 : rows / 512 > GROUPS ? GROUPS : rows / 512;
    REAL *sums = allocate(groups * 2 * width * (int64_t)sizeof(REAL));
    int failed = !sums;
    if (!failed) {
        memset(sums, 0, (size_t)(groups * 2 * width) * sizeof(REAL));
#pragma omp parallel num_threads(threads)
        {
            REAL *h = allocate(3 * width * (int64_t)sizeof(REAL)), *before = h + width, *seen = before + width;
            if (!h) {
#pragma omp atomic write
                failed = 1;
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t group = 0; group < groups; group++) {
                REAL *weight_sum = sums + group * 2 * width, *bias_sum = weight_sum + width;
                for (int64_t row = rows * group / groups; h && row < rows * (group + 1) / groups; row++) {
                    const REAL factor = OF(standardise)(x + row * stride, h, width, (REAL)eps);
                    OF(finish_row_gradient)(&f, row, NULL, NULL, g + row * g_stride, before, width);
                    if (relu) {
                        OF(affine)(h, weight, bias, seen, width);
                        for (int64_t c = 0; c < width; c++) before[c] = seen[c] > 0 ? before[c] : 0;
                    }
                    for (int64_t c = 0; c < width; c++) {
                        weight_sum[c] += before[c] * h[c];
                        bias_sum[c] += before[c];
                    }
                    const REAL mean = OF(dot)(before, weight, width) / (REAL)width;
                    for (int64_t c = 0; c < width; c++) before[c] *= weight[c];
                    const REAL along = OF(dot)(before, h, width) / (REAL)width;
                    REAL *to = result + row * width;
                    for (int64_t c = 0; c < width; c++) to[c] = factor * (before[c] - mean - h[c] * along);
                }
            }
            free(h);
        }
    }
    for (int64_t c = 0; c < width && !failed; c++) {
        d_weight[c] = d_bias[c] = 0;
        for (int64_t group = 0; group < groups; group++) {
            d_weight[c] += sums[group * 2 * width + c];
            d_bias[c] += sums[(group * 2 + 1) * width + c];
        }
    }
    free(sums);
    return failed;
}
