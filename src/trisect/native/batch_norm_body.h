/* y = dropout(relu((x - centre) * factor + bias)), the same for all rows, for one element type (REAL and OF(name) are
 * set by batch_norm.c). Sums over rows are double, of groups of rows whose number depends on the rows alone. Nothing but
 * x is kept: what relu saw is made again, by a function that is not inlined, so that it has the bits of forward. */

typedef struct {
    const REAL *centre, *factor, *bias; /* [width] */
} OF(affine_t);

static __attribute__((noinline)) void OF(made)(const OF(affine_t) * a, const REAL *x, REAL *y, int64_t width) {
    const REAL *centre = a->centre, *factor = a->factor, *bias = a->bias;
    for (int64_t c = 0; c < width; c++) y[c] = (x[c] - centre[c]) * factor[c] + bias[c];
}

/* The gradient before relu and dropout; `seen` [width] is scratch. */
INLINE void OF(before)(const OF(finish_t) * f, const OF(affine_t) * a, int64_t row, const REAL *x, const REAL *g, REAL *seen,
                       REAL *result, int relu, int64_t width) {
    OF(finish_row_gradient)(f, row, NULL, NULL, g, result, width);
    if (!relu) return;
    OF(made)(a, x, seen, width);
    for (int64_t c = 0; c < width; c++) result[c] = seen[c] > 0 ? result[c] : 0;
}

INLINE int64_t OF(groups_of)(int64_t rows) {
    return rows / 512 < 1 ? 1 : rows / 512 > GROUPS ? GROUPS : rows / 512;
}

INLINE void OF(total)(const double *sums, double *out, int64_t groups, int64_t count) {
    for (int64_t c = 0; c < count; c++) {
        double total = 0;
        for (int64_t group = 0; group < groups; group++) total += sums[group * count + c];
        out[c] = total;
    }
}

/* out [2, width] = the sums over rows of x - shift and of its square; shift [width] or NULL. Returns 0, or 1 without
 * memory. */
int TRISECT(OF(trisect_moments))(const REAL *x, int64_t stride, const double *shift, double *out, int64_t rows,
                                 int64_t width, int threads) {
    const int64_t groups = OF(groups_of)(rows);
    double *sums = allocate((groups * 2 + 1) * width * (int64_t)sizeof(double));
    if (!sums) return 1;
    memset(sums, 0, (size_t)((groups * 2 + 1) * width) * sizeof(double));
    double *from = sums + groups * 2 * width;
    if (shift) memcpy(from, shift, (size_t)width * sizeof(double));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t group = 0; group < groups; group++) {
        double *restrict first = sums + group * 2 * width, *restrict second = first + width;
        int64_t row = rows * group / groups;
        const int64_t end = rows * (group + 1) / groups;
        for (; row + 4 <= end; row += 4) {
            const REAL *a = x + row * stride, *b = a + stride, *d = b + stride, *e = d + stride;
            for (int64_t c = 0; c < width; c++) {
                const double va = (double)a[c] - from[c], vb = (double)b[c] - from[c];
                const double vd = (double)d[c] - from[c], ve = (double)e[c] - from[c];
                first[c] += (va + vb) + (vd + ve);
                second[c] += (va * va + vb * vb) + (vd * vd + ve * ve);
            }
        }
        for (; row < end; row++) {
            for (int64_t c = 0; c < width; c++) {
                const double v = (double)x[row * stride + c] - from[c];
                first[c] += v;
                second[c] += v * v;
            }
        }
    }
    OF(total)(sums, out, groups, 2 * width);
    free(sums);
    return 0;
}

/* out [rows, width], dense; x has `stride` between rows. */
void TRISECT(OF(trisect_standardise))(const REAL *x, int64_t stride, const REAL *centre, const REAL *factor,
                                      const REAL *bias, REAL *out, int64_t rows, int64_t width, int relu, int drop,
                                      uint32_t threshold, double scale, uint64_t key, const int64_t *vertices,
                                      int threads) {
    const OF(finish_t) f = {NULL, relu, drop, threshold, (REAL)scale, key, vertices};
    const OF(affine_t) a = {centre, factor, bias};
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        REAL *y = out + row * width;
        OF(made)(&a, x + row * stride, y, width);
        OF(finish_row)(&f, row, y, y, width);
    }
}

/* out [2, width] = the sums over rows of b * (x - centre) and of b, the gradient before relu and dropout, from g, that
 * of the result, which has `g_stride` between rows. Returns 0, or 1 without memory. */
int TRISECT(OF(trisect_standardise_sums))(const REAL *x, int64_t stride, const REAL *centre, const REAL *factor,
                                          const REAL *bias, const REAL *g, int64_t g_stride, double *out, int64_t rows,
                                          int64_t width, int relu, int drop, uint32_t threshold, double scale,
                                          uint64_t key, const int64_t *vertices, int threads) {
    const OF(finish_t) f = {NULL, 0, drop, threshold, (REAL)scale, key, vertices};
    const OF(affine_t) a = {centre, factor, bias};
    const int64_t groups = OF(groups_of)(rows);
    double *sums = allocate(groups * 2 * width * (int64_t)sizeof(double));
    int failed = !sums;
    if (!failed) {
        memset(sums, 0, (size_t)(groups * 2 * width) * sizeof(double));
#pragma omp parallel num_threads(threads)
        {
            REAL *before = allocate(2 * width * (int64_t)sizeof(REAL)), *seen = before + width;
            if (!before) {
#pragma omp atomic write
                failed = 1;
            }
#pragma omp for schedule(static)
            for (int64_t group = 0; group < groups; group++) {
                double *restrict first = sums + group * 2 * width, *restrict second = first + width;
                for (int64_t row = rows * group / groups; before && row < rows * (group + 1) / groups; row++) {
                    const REAL *from = x + row * stride;
                    OF(before)(&f, &a, row, from, g + row * g_stride, seen, before, relu, width);
                    for (int64_t c = 0; c < width; c++) {
                        first[c] += (double)before[c] * (double)(from[c] - centre[c]);
                        second[c] += (double)before[c];
                    }
                }
            }
            free(before);
        }
    }
    if (!failed) OF(total)(sums, out, groups, 2 * width);
    free(sums);
    return failed;
}

/* out [rows, width], dense, = b * factor + (x - centre) * slope + rest; b as above, 0 where g is NULL; slope and rest
 * [width]. Returns 0, or 1 without memory. */
int TRISECT(OF(trisect_standardise_gradient))(const REAL *x, int64_t stride, const REAL *centre, const REAL *factor,
                                              const REAL *bias, const REAL *g, int64_t g_stride, const REAL *slope,
                                              const REAL *rest, REAL *out, int64_t rows, int64_t width, int relu,
                                              int drop, uint32_t threshold, double scale, uint64_t key,
                                              const int64_t *vertices, int threads) {
    const OF(finish_t) f = {NULL, 0, drop, threshold, (REAL)scale, key, vertices};
    const OF(affine_t) a = {centre, factor, bias};
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        REAL *before = allocate(2 * width * (int64_t)sizeof(REAL)), *seen = before + width;
        if (!before) {
#pragma omp atomic write
            failed = 1;
        } else {
            memset(before, 0, (size_t)width * sizeof(REAL));
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            if (!before) continue;
            const REAL *from = x + row * stride;
            REAL *to = out + row * width;
            if (g) OF(before)(&f, &a, row, from, g + row * g_stride, seen, before, relu, width);
            for (int64_t c = 0; c < width; c++)
                to[c] = before[c] * factor[c] + ((from[c] - centre[c]) * slope[c] + rest[c]);
        }
        free(before);
    }
    return failed;
}
