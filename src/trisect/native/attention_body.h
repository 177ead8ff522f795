/* Edge softmax and weighted sum for one element type (REAL, OF(name), LANES are set by attention.c).
 *
 * With pre = s_j + t_i, e = pre > 0 ? pre : slope * pre and a = softmax of e over the entries of row i:
 *     out_i = sum_j a x_j.
 * Forward reads each neighbour's row once (the running maximum is raised chunk by chunk, as in flash attention).
 * Backward needs, for g_i the gradient of out_i and D_i = g_i . out_i,
 *     d_pre = (pre > 0 ? 1 : slope) * a * (g_i . x_j - D_i),
 * summed over rows for t and over columns for s. Neither sum is done edge by edge. As sum_j a (g_i . x_j - D_i) is 0,
 *     d_t_i = (1 - slope) * (g_i . P_i - D_i A_i),   P_i = sum of a x_j, A_i = sum of a, both where pre > 0,
 *     d_s_j = slope * x_j . d_x_j + (1 - slope) * x_j . Q_j - sum_i (pre > 0 ? 1 : slope) * a * D_i,
 *     d_x_j = sum_i a g_i,  Q_j = the same where pre > 0.
 * P and A are second accumulators of forward, Q one of backward, so each direction gathers every row once and nothing is
 * stored for an edge. Dropout multiplies a by its mask in out, P, d_x and Q, and leaves A and the sum with D as they are.
 *
 * What backward needs of a row is kept together as stats[row][4][heads]: t, the maximum of e, 1 / sum, A (then D).
 */

#define VEC OF(vec)

typedef struct {
    const int64_t *starts, *ends;
    const int32_t *indices;
    int64_t rows, column_base, entries;
    int64_t heads, channels;
    double slope;
    /* dropout: none where threshold is 0; keys belong to the targets, ids to the sources */
    const uint64_t *target_keys;
    const int64_t *source_ids;
    double keep_scale;
    uint32_t threshold;
} OF(attention);

/* sums[f] += sum_e a[e][head of f] * x[index[e]][f], and the same with the coefficients b, for one tile of vectors. */
INLINE void OF(gather_tile)(const int wide, int64_t count, const int32_t *index, const REAL *x, int64_t width,
                            int64_t channels, int64_t offset, const REAL *a, const REAL *b, int64_t heads, const int both,
                            REAL *sums_a, REAL *sums_b) {
    VEC s[4], t[4];
    int64_t head[4];
#pragma GCC unroll 4
    for (int i = 0; i < wide; i++) {
        head[i] = (offset + i * LANES) / channels;
        s[i] = OF(load)(sums_a + offset + i * LANES);
        if (both) t[i] = OF(load)(sums_b + offset + i * LANES);
    }
    for (int64_t e = 0; e < count; e++) {
        const REAL *row = x + index[e] * width + offset;
#pragma GCC unroll 4
        for (int i = 0; i < wide; i++) {
            VEC z = OF(load)(row + i * LANES);
            s[i] += z * a[e * heads + head[i]];
            if (both) t[i] += z * b[e * heads + head[i]];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < wide; i++) {
        OF(store)(sums_a + offset + i * LANES, s[i]);
        if (both) OF(store)(sums_b + offset + i * LANES, t[i]);
    }
}

INLINE void OF(gather_chunk)(int64_t count, const int32_t *index, const REAL *x, int64_t heads, int64_t channels,
                             const REAL *a, const REAL *b, const int both, REAL *sums_a, REAL *sums_b) {
    int64_t width = heads * channels, f = 0;
    if (heads == 1 || channels % LANES == 0) {
        for (; f + 4 * LANES <= width; f += 4 * LANES)
            OF(gather_tile)(4, count, index, x, width, channels, f, a, b, heads, both, sums_a, sums_b);
        if (f + 2 * LANES <= width) {
            OF(gather_tile)(2, count, index, x, width, channels, f, a, b, heads, both, sums_a, sums_b);
            f += 2 * LANES;
        }
        if (f + LANES <= width) {
            OF(gather_tile)(1, count, index, x, width, channels, f, a, b, heads, both, sums_a, sums_b);
            f += LANES;
        }
        for (int64_t e = 0; e < count; e++)
            for (int64_t k = f; k < width; k++) {
                sums_a[k] += a[e * heads] * x[index[e] * width + k];
                if (both) sums_b[k] += b[e * heads] * x[index[e] * width + k];
            }
        return;
    }
    for (int64_t e = 0; e < count; e++)
        for (int64_t head = 0; head < heads; head++) {
            const REAL *row = x + index[e] * width + head * channels;
            REAL p = a[e * heads + head], q = both ? b[e * heads + head] : 0;
            for (int64_t k = 0; k < channels; k++) {
                sums_a[head * channels + k] += p * row[k];
                if (both) sums_b[head * channels + k] += q * row[k];
            }
        }
}

/* Both stay out of line: inlined into every number of heads they only lengthen the compilation. */
static __attribute__((noinline)) void OF(gather_one)(int64_t count, const int32_t *index, const REAL *x, int64_t heads,
                                                     int64_t channels, const REAL *a, REAL *sums_a) {
    OF(gather_chunk)(count, index, x, heads, channels, a, 0, 0, sums_a, 0);
}

static __attribute__((noinline)) void OF(gather_two)(int64_t count, const int32_t *index, const REAL *x, int64_t heads,
                                                     int64_t channels, const REAL *a, const REAL *b, REAL *sums_a,
                                                     REAL *sums_b) {
    OF(gather_chunk)(count, index, x, heads, channels, a, b, 1, sums_a, sums_b);
}

static __attribute__((noinline)) void OF(exp_all)(REAL *values, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) OF(store)(values + i, OF(exp)(OF(load)(values + i)));
}

INLINE void OF(fetch)(const REAL *row, int64_t width) {
    for (int64_t k = 0; k < width; k += 64 / (int64_t)sizeof(REAL)) __builtin_prefetch(row + k);
}

/* The factor of one coefficient: 0 where it is dropped, else 1 / (1 - p). */
INLINE REAL OF(kept)(const OF(attention) * p, uint64_t key, int64_t source, int64_t head) {
    uint32_t bits = noise_bits((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)(source * p->heads + head));
    return bits >= p->threshold ? (REAL)p->keep_scale : 0;
}

INLINE void OF(forward_row)(const OF(attention) * p, const int64_t heads, int64_t row, const REAL *x, const REAL *source,
                            const REAL *target, REAL *out, REAL *stats, REAL *positive, REAL *scratch) {
    const int both = positive != 0;
    int64_t channels = p->channels, width = heads * channels;
    REAL slope = (REAL)p->slope;
    REAL *a = scratch, *b = a + CHUNK * heads + LANES, *top = b + CHUNK * heads + LANES;
    REAL *sum = top + heads, *sum_positive = sum + heads, *sums_a = sum_positive + heads, *sums_b = sums_a + width;
    const REAL *t = target + row * heads;
    int32_t index[CHUNK];
    memset(sum, 0, (size_t)(2 * heads + 2 * width) * sizeof(REAL));
    for (int64_t h = 0; h < heads; h++) top[h] = -INFINITY;
    for (int64_t k = p->starts[row]; k < p->ends[row]; k += CHUNK) {
        int64_t count = p->ends[row] - k < CHUNK ? p->ends[row] - k : CHUNK;
        for (int64_t e = 0; e < count; e++) {
            int64_t j = p->indices[k + e] - p->column_base;
            index[e] = (int32_t)j;
            OF(fetch)(x + j * width, width);
            if (k + e + CHUNK < p->entries)
                /* the entry may belong to another block: prefetching a wrong address does no harm */
                __builtin_prefetch(source + (p->indices[k + e + CHUNK] - p->column_base) * heads);
            for (int64_t h = 0; h < heads; h++) {
                REAL pre = source[j * heads + h] + t[h];
                b[e * heads + h] = pre > 0 ? 1 : 0;
                pre = pre > 0 ? pre : pre * slope;
                a[e * heads + h] = pre;
            }
        }
        for (int64_t h = 0; h < heads; h++) {
            REAL most = top[h];
            for (int64_t e = 0; e < count; e++) most = a[e * heads + h] > most ? a[e * heads + h] : most;
            if (most > top[h]) {
                if (k > p->starts[row]) {
                    REAL shrink = (REAL)exp((double)(top[h] - most));
                    sum[h] *= shrink;
                    sum_positive[h] *= shrink;
                    for (int64_t c = 0; c < channels; c++) {
                        sums_a[h * channels + c] *= shrink;
                        sums_b[h * channels + c] *= shrink;
                    }
                }
                top[h] = most;
            }
        }
        for (int64_t e = 0; e < count; e++)
            for (int64_t h = 0; h < heads; h++) a[e * heads + h] -= top[h];
        OF(exp_all)(a, count * heads);
        for (int64_t e = 0; e < count; e++)
            for (int64_t h = 0; h < heads; h++) {
                REAL weight = a[e * heads + h], part = b[e * heads + h] * weight;
                sum[h] += weight;
                sum_positive[h] += part;
                b[e * heads + h] = part;
            }
        if (p->threshold) {
            for (int64_t e = 0; e < count; e++) {
                int64_t id = p->source_ids ? p->source_ids[index[e]] : index[e];
                for (int64_t h = 0; h < heads; h++) {
                    REAL factor = OF(kept)(p, p->target_keys[row], id, h);
                    a[e * heads + h] *= factor;
                    b[e * heads + h] *= factor;
                }
            }
        }
        if (both)
            OF(gather_two)(count, index, x, heads, channels, a, b, sums_a, sums_b);
        else
            OF(gather_one)(count, index, x, heads, channels, a, sums_a);
    }
    for (int64_t h = 0; h < heads; h++) {
        REAL scale = sum[h] > 0 ? 1 / sum[h] : (sum[h] == 0 ? 0 : sum[h]);
        REAL *to = out + row * width + h * channels;
        for (int64_t c = 0; c < channels; c++) to[c] = sums_a[h * channels + c] * scale;
        if (both) {
            to = positive + row * width + h * channels;
            for (int64_t c = 0; c < channels; c++) to[c] = sums_b[h * channels + c] * scale;
            REAL *keep = stats + row * 4 * heads + h;
            keep[0] = t[h];
            keep[heads] = top[h];
            keep[2 * heads] = scale;
            keep[3 * heads] = sum_positive[h] * scale;
        }
    }
}

INLINE void OF(backward_column)(const OF(attention) * p, const int64_t heads, int64_t column, const REAL *x,
                                const REAL *source, const REAL *stats, const REAL *d_out, REAL *d_x, REAL *d_source,
                                REAL *scratch) {
    int64_t channels = p->channels, width = heads * channels;
    REAL slope = (REAL)p->slope;
    REAL *a = scratch, *b = a + CHUNK * heads + LANES, *sum = b + CHUNK * heads + LANES;
    REAL *sums_a = sum + heads, *sums_b = sums_a + width;
    const REAL *s = source + column * heads;
    int64_t id = p->source_ids ? p->source_ids[column] : column;
    int32_t index[CHUNK];
    memset(sum, 0, (size_t)(heads + 2 * width) * sizeof(REAL));
    for (int64_t k = p->starts[column]; k < p->ends[column]; k += CHUNK) {
        int64_t count = p->ends[column] - k < CHUNK ? p->ends[column] - k : CHUNK;
        for (int64_t e = 0; e < count; e++) {
            int64_t i = p->indices[k + e] - p->column_base;
            const REAL *of = stats + i * 4 * heads;
            index[e] = (int32_t)i;
            OF(fetch)(d_out + i * width, width);
            if (k + e + CHUNK < p->entries)
                OF(fetch)(stats + (p->indices[k + e + CHUNK] - p->column_base) * 4 * heads, 4 * heads);
            for (int64_t h = 0; h < heads; h++) {
                REAL pre = s[h] + of[h];
                b[e * heads + h] = pre > 0 ? 1 : 0;
                pre = pre > 0 ? pre : pre * slope;
                a[e * heads + h] = pre - of[heads + h];
            }
        }
        OF(exp_all)(a, count * heads);
        for (int64_t e = 0; e < count; e++) {
            const REAL *of = stats + (int64_t)index[e] * 4 * heads;
            for (int64_t h = 0; h < heads; h++) {
                REAL weight = a[e * heads + h] * of[2 * heads + h], mark = b[e * heads + h];
                sum[h] += weight * of[3 * heads + h] * (mark > 0 ? 1 : slope);
                a[e * heads + h] = weight;
                b[e * heads + h] = mark * weight;
            }
        }
        if (p->threshold)
            for (int64_t e = 0; e < count; e++)
                for (int64_t h = 0; h < heads; h++) {
                    REAL factor = OF(kept)(p, p->target_keys[index[e]], id, h);
                    a[e * heads + h] *= factor;
                    b[e * heads + h] *= factor;
                }
        OF(gather_two)(count, index, d_out, heads, channels, a, b, sums_a, sums_b);
    }
    memcpy(d_x + column * width, sums_a, (size_t)width * sizeof(REAL));
    for (int64_t h = 0; h < heads; h++) {
        REAL dot = 0, dot_positive = 0;
        for (int64_t c = h * channels; c < (h + 1) * channels; c++) {
            dot += x[column * width + c] * sums_a[c];
            dot_positive += x[column * width + c] * sums_b[c];
        }
        d_source[column * heads + h] = slope * dot + (1 - slope) * dot_positive - sum[h];
    }
}

#define DISPATCH(heads, call) \
    switch (heads) { \
    case 1: call(1); break; \
    case 8: call(8); break; \
    default: call(heads); break; \
    }

/* stats and positive are both NULL where no backward will follow. 0, or 1 where memory ran out. */
int TRISECT(OF(trisect_attend_forward))(const OF(attention) * p, const REAL *x, const REAL *source, const REAL *target,
                                        REAL *out, REAL *stats, REAL *positive, int threads) {
    int64_t heads = p->heads;
    size_t reals = (size_t)(2 * (CHUNK * heads + LANES) + 3 * heads + 2 * heads * p->channels);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL *scratch = calloc(reals, sizeof(REAL));
        failed = !scratch;
#pragma omp for schedule(dynamic, 64)
        for (int64_t row = 0; row < p->rows; row++) {
            if (!scratch) continue;
#define CALL(n) OF(forward_row)(p, n, row, x, source, target, out, stats, positive, scratch)
            DISPATCH(heads, CALL)
#undef CALL
        }
        free(scratch);
    }
    return failed;
}

/* d_target, and D in the place of A in stats. */
void TRISECT(OF(trisect_attend_prepare))(const OF(attention) * p, const REAL *out, const REAL *positive,
                                         const REAL *d_out, REAL *stats, REAL *d_target, int threads) {
    int64_t heads = p->heads, channels = p->channels;
    REAL rest = (REAL)(1 - p->slope);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t h = 0; h < heads; h++) {
            REAL dot = 0, dot_positive = 0;
            for (int64_t c = (row * heads + h) * channels; c < (row * heads + h + 1) * channels; c++) {
                dot += d_out[c] * out[c];
                dot_positive += d_out[c] * positive[c];
            }
            REAL *keep = stats + (row * 4 + 3) * heads + h;
            d_target[row * heads + h] = rest * (dot_positive - dot * *keep);
            *keep = dot;
        }
}

/* Over the transposed matrix: its rows are the columns. 0, or 1 where memory ran out. */
int TRISECT(OF(trisect_attend_backward))(const OF(attention) * p, const REAL *x, const REAL *source, const REAL *stats,
                                         const REAL *d_out, REAL *d_x, REAL *d_source, int threads) {
    int64_t heads = p->heads;
    size_t reals = (size_t)(2 * (CHUNK * heads + LANES) + heads + 2 * heads * p->channels);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL *scratch = calloc(reals, sizeof(REAL));
        failed = !scratch;
#pragma omp for schedule(dynamic, 64)
        for (int64_t column = 0; column < p->rows; column++) {
            if (!scratch) continue;
#define CALL(n) OF(backward_column)(p, n, column, x, source, stats, d_out, d_x, d_source, scratch)
            DISPATCH(heads, CALL)
#undef CALL
        }
        free(scratch);
    }
    return failed;
}

#undef DISPATCH
#undef VEC
