/* The body of trisect_max for one storage type; macros as in aggregate_sum.h.
 *
 *   out[i,f] = max_k values[k] * x[c_k, f],  winner[i,f] = the k - starts[i] that gave it (the first one of equals)
 *
 * A row without entries gives 0 and the winner -1. NaN wins over everything, as in torch's amax.
 */
enum { NAME(MAX_BLOCK) = 256 };

static void NAME(max_row)(const int64_t *starts, const int64_t *ends, const int32_t *indices, const ACC *values,
                          const STORE *x, int64_t x_stride, STORE *restrict out, int32_t *restrict winner,
                          int64_t column_base, int64_t i, int64_t width) {
    ACC best[NAME(MAX_BLOCK)];
    int32_t first[NAME(MAX_BLOCK)];
    const int64_t start = starts[i], end = ends[i];
    for (int64_t f = 0; f < width; f++) best[f] = 0, first[f] = -1;
    for (int64_t k = start; k < end; k++) {
        const STORE *row = x + (indices[k] - column_base) * x_stride;
        if (k + 8 < end)
            for (int64_t b = 0; b < width; b += 64 / (int64_t)sizeof(STORE))
                __builtin_prefetch(x + (indices[k + 8] - column_base) * x_stride + b);
        const ACC weight = values ? values[k] : (ACC)1;
        const int32_t entry = (int32_t)(k - start);
        if (k == start) {
            for (int64_t f = 0; f < width; f++) best[f] = weight * TO_ACC(row[f]), first[f] = 0;
            continue;
        }
        for (int64_t f = 0; f < width; f++) {
            const ACC value = weight * TO_ACC(row[f]), held = best[f];
            const int wins = (value > held) | ((value != value) & (held == held));
            best[f] = wins ? value : held;
            first[f] = wins ? entry : first[f];
        }
    }
    for (int64_t f = 0; f < width; f++) out[f] = TO_STORE(best[f]), winner[f] = first[f];
}

void TRISECT(NAME(trisect_max))(const int64_t *starts, const int64_t *ends, const int32_t *indices, const ACC *values,
                                const STORE *x, STORE *out, int32_t *winner, int64_t rows, int64_t features,
                                int64_t column_base, int64_t x_stride, int64_t out_stride, int threads);
/* winner is [rows, features], contiguous. */
void TRISECT(NAME(trisect_max))(const int64_t *starts, const int64_t *ends, const int32_t *indices, const ACC *values,
                                const STORE *x, STORE *out, int32_t *winner, int64_t rows, int64_t features,
                                int64_t column_base, int64_t x_stride, int64_t out_stride, int threads) {
    const int64_t size = rows_per_task(starts, ends, rows, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, size)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t f = 0; f < features; f += NAME(MAX_BLOCK)) {
            const int64_t rest = features - f, width = rest < NAME(MAX_BLOCK) ? rest : NAME(MAX_BLOCK);
            NAME(max_row)(starts, ends, indices, values, x + f, x_stride, out + i * out_stride + f,
                          winner + i * features + f, column_base, i, width);
        }
}

void TRISECT(NAME(trisect_max_backward))(const int64_t *starts, const int64_t *ends, const int32_t *indices,
                                         const int64_t *positions, const int64_t *origins, const ACC *values,
                                         const STORE *grad, const int32_t *winner, STORE *out, int64_t rows,
                                         int64_t features, int64_t column_base, int64_t grad_stride,
                                         int64_t out_stride, int threads);
/* The matrix is the transposed one: `positions` are its entries' places in the original, `origins` the original's
 * `starts`. Each row of `out` collects the gradients that its entries won, in a fixed order and without atomics. */
void TRISECT(NAME(trisect_max_backward))(const int64_t *starts, const int64_t *ends, const int32_t *indices,
                                         const int64_t *positions, const int64_t *origins, const ACC *values,
                                         const STORE *grad, const int32_t *winner, STORE *out, int64_t rows,
                                         int64_t features, int64_t column_base, int64_t grad_stride,
                                         int64_t out_stride, int threads) {
    const int64_t size = rows_per_task(starts, ends, rows, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, size)
    for (int64_t j = 0; j < rows; j++)
        for (int64_t f0 = 0; f0 < features; f0 += NAME(MAX_BLOCK)) {
            const int64_t rest = features - f0, width = rest < NAME(MAX_BLOCK) ? rest : NAME(MAX_BLOCK);
            ACC sum[NAME(MAX_BLOCK)];
            for (int64_t f = 0; f < width; f++) sum[f] = 0;
            for (int64_t k = starts[j]; k < ends[j]; k++) {
                const int64_t i = indices[k] - column_base;
                const STORE *restrict g = grad + i * grad_stride + f0;
                const int32_t *restrict won = winner + i * features + f0;
                const int32_t entry = (int32_t)(positions[k] - origins[i]);
                const ACC weight = values ? values[k] : (ACC)1;
                for (int64_t f = 0; f < width; f++) sum[f] += won[f] == entry ? weight * TO_ACC(g[f]) : 0;
            }
            STORE *restrict to = out + j * out_stride + f0;
            for (int64_t f = 0; f < width; f++) to[f] = TO_STORE(sum[f]);
        }
}
