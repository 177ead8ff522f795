/* Cross entropy of rows of logits, and its gradient. Included once for float and once for double, with REAL, OF(name),
 * vec_t and LANES set. */

/* The numerators exp(x - max) of some rows, one row after the other, into `z`, which has room for a vector more;
 * x - max of each row's label into `own`, where not NULL. */
static void OF(numerators)(const REAL *x, int64_t stride, const int64_t *labels, int64_t rows, int64_t classes, REAL *z,
                           REAL *own) {
    for (int64_t r = 0; r < rows; r++) {
        const REAL *row = x + r * stride;
        REAL *shifted = z + r * classes, most = row[0];
        for (int64_t c = 1; c < classes; c++) most = row[c] > most ? row[c] : most;
        for (int64_t c = 0; c < classes; c++) shifted[c] = row[c] - most;
        if (own) own[r] = shifted[labels[r]];
    }
    for (int64_t at = 0; at < rows * classes; at += LANES) OF(store)(z + at, OF(exp)(OF(load)(z + at)));
}

INLINE REAL OF(row_sum)(const REAL *z, int64_t classes) {
    REAL sum = 0;
    for (int64_t c = 0; c < classes; c++) sum += z[c];
    return sum;
}

/* loss = the sum over rows of weights[label] * -log softmax(x)[label]; weights NULL: 1. Rows are summed in groups, the
 * groups in order: the result does not depend on the number of threads.
 *
 * x [rows, classes] with `stride` between rows. Returns 0, 1 without memory, 2 where a label is no class. */
int TRISECT(OF(trisect_cross_entropy))(const REAL *x, int64_t stride, const int64_t *labels, const REAL *weights,
                                       int64_t rows, int64_t classes, double *loss, int threads) {
    for (int64_t r = 0; r < rows; r++)
        if (labels[r] < 0 || labels[r] >= classes) return 2;
    const int64_t size = group_rows(classes), groups = (rows + size - 1) / size;
    double *sums = malloc((size_t)(groups > 0 ? groups : 1) * sizeof(double));
    if (!sums) return 1;
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        REAL *z = calloc((size_t)(size * (classes + 1) + 2 * LANES), sizeof(REAL)), *own = z + size * classes + 2 * LANES;
        if (!z) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (int64_t group = 0; group < groups; group++) {
            if (!z) continue;
            const int64_t first = group * size, count = rows - first < size ? rows - first : size;
            OF(numerators)(x + first * stride, stride, labels + first, count, classes, z, own);
            double sum = 0;
            for (int64_t r = 0; r < count; r++) {
                const REAL weight = weights ? weights[labels[first + r]] : 1;
                sum += weight * (OF(log)(OF(row_sum)(z + r * classes, classes)) - own[r]);
            }
            sums[group] = sum;
        }
        free(z);
    }
    *loss = 0;
    for (int64_t group = 0; group < groups; group++) *loss += sums[group];
    free(sums);
    return failed;
}

/* gradient [rows, classes], dense, = scale * weights[label] * (softmax(x) - onehot(label)). */
int TRISECT(OF(trisect_cross_entropy_gradient))(const REAL *x, int64_t stride, const int64_t *labels,
                                                const REAL *weights, int64_t rows, int64_t classes, double scale,
                                                REAL *gradient, int threads) {
    const int64_t size = group_rows(classes), groups = (rows + size - 1) / size;
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        REAL *z = calloc((size_t)(size * classes + 2 * LANES), sizeof(REAL));
        if (!z) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (int64_t group = 0; group < groups; group++) {
            if (!z) continue;
            const int64_t first = group * size, count = rows - first < size ? rows - first : size;
            OF(numerators)(x + first * stride, stride, NULL, count, classes, z, NULL);
            for (int64_t r = 0; r < count; r++) {
                const int64_t label = labels[first + r];
                const REAL factor = (REAL)scale * (weights ? weights[label] : 1);
                const REAL *row = z + r * classes, normaliser = factor / OF(row_sum)(row, classes);
                REAL *result = gradient + (first + r) * classes;
                for (int64_t c = 0; c < classes; c++) result[c] = row[c] * normaliser;
                result[label] -= factor;
            }
        }
        free(z);
    }
    return failed;
}
