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

static __attribute__((noinline)) void OF(gather_two)(int64_t count, const int32_t *index, const REAL *x, int64_t heads,
                                                     int64_t channels, int64_t stride, const REAL *a, const REAL *b,
                                                     REAL *sums_a, REAL *sums_b) {
    OF(gather_chunk)(count, index, x, heads, channels, stride, a, b, 1, sums_a, sums_b);
}

/* a and b of all entries of a chunk, times the mask of dropout. */
static __attribute__((noinline)) void OF(drop)(const OF(attention) * p, int64_t count, int64_t stride,
                                               const int32_t *index, const int by_target, int64_t self, REAL *a,
                                               REAL *b) {
    for (int64_t e = 0; e < count; e++) {
        int64_t target = by_target ? self : index[e], source = by_target ? index[e] : self;
        uint64_t key = p->target_keys[target];
        if (p->source_ids) source = p->source_ids[source];
        for (int64_t h = 0; h < p->heads; h++) {
            uint32_t bits = noise_bits((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)(source * p->heads + h));
            REAL factor = bits >= p->threshold ? (REAL)p->keep_scale : 0;
            a[e * stride + h] *= factor;
            b[e * stride + h] *= factor;
        }
    }
}

INLINE void OF(forward_row)(const OF(attention) * p, const int64_t heads, int64_t row, const REAL *x, const REAL *source,
                            const REAL *target, REAL *out, REAL *stats, REAL *positive, REAL *scratch) {
    const int64_t stride = OF(stride_of)(heads), span = stride > LANES ? stride : LANES;
    int64_t channels = p->channels, width = heads * channels;
    VEC slope = OF(fill)((REAL)p->slope), zero = OF(fill)(0);
    REAL *a = scratch, *b = a + CHUNK * stride + LANES;
    REAL *t = b + CHUNK * stride + LANES, *top = t + span, *most = top + span, *sum = most + span;
    REAL *sum_positive = sum + span, *sums_a = sum_positive + span, *sums_b = sums_a + width;
    int32_t index[CHUNK];
    memset(sum, 0, (size_t)(2 * span + 2 * width) * sizeof(REAL));
    OF(spread)(target + row * heads, heads, stride, span, t);
    for (int64_t i = 0; i < span; i++) top[i] = -INFINITY;
    for (int64_t k = p->starts[row]; k < p->ends[row]; k += CHUNK) {
        int64_t count = p->ends[row] - k < CHUNK ? p->ends[row] - k : CHUNK, total = count * stride;
        for (int64_t e = 0; e < count; e++) {
            int64_t j = p->indices[k + e] - p->column_base;
            index[e] = (int32_t)j;
            OF(fetch)(x + j * width, width);
            /* the entry may belong to another block: prefetching a wrong address does no harm */
            if (k + e + CHUNK < p->entries)
                OF(fetch)(source + (p->indices[k + e + CHUNK] - p->column_base) * heads, heads);
            OF(copy_heads)(source + j * heads, heads, a + e * stride);
        }
        OF(pad)(a, total, stride);
        memcpy(most, top, (size_t)span * sizeof(REAL));
        for (int64_t i = 0; i < total; i += LANES) {
            VEC pre = OF(load)(a + i) + OF(load)(t + i % span), high = OF(load)(most + i % span);
            OF(ivec) above = pre > zero;
            OF(store)(b + i, OF(choose)(above, OF(fill)(1), zero));
            pre = OF(choose)(above, pre, pre * slope);
            OF(store)(a + i, pre);
            OF(store)(most + i % span, OF(choose)(pre > high, pre, high));
        }
        for (int64_t wide = LANES / 2; wide >= stride; wide /= 2)
            for (int64_t i = 0; i < wide; i++) most[i] = most[i] > most[i + wide] ? most[i] : most[i + wide];
        for (int64_t i = stride; i < LANES; i++) most[i] = most[i % stride];
        if (k > p->starts[row]) {
            int raised = 0;
            for (int64_t i = 0; i < stride; i++) raised |= most[i] > top[i];
            if (raised) {
                for (int64_t i = 0; i < span; i += LANES) {
                    VEC shrink = OF(exp)(OF(load)(top + i) - OF(load)(most + i));
                    OF(store)(sum + i, OF(load)(sum + i) * shrink);
                    OF(store)(sum_positive + i, OF(load)(sum_positive + i) * shrink);
                    OF(store)(top + i, shrink);
                }
                for (int64_t h = 0; h < heads; h++)
                    for (int64_t c = h * channels; c < (h + 1) * channels; c++) {
                        sums_a[c] *= top[h];
                        sums_b[c] *= top[h];
                    }
            }
        }
        memcpy(top, most, (size_t)span * sizeof(REAL));
        for (int64_t i = 0; i < total; i += LANES) {
            VEC weight = OF(exp)(OF(load)(a + i) - OF(load)(top + i % span));
            if (stride < LANES) weight = OF(choose)(OF(valid)(i, total), weight, zero);
            VEC part = weight * OF(load)(b + i);
            OF(store)(a + i, weight);
            OF(store)(b + i, part);
            OF(store)(sum + i % span, OF(load)(sum + i % span) + weight);
            OF(store)(sum_positive + i % span, OF(load)(sum_positive + i % span) + part);
        }
        if (p->threshold) OF(drop)(p, count, stride, index, 1, row, a, b);
        if (positive)
            OF(gather_two)(count, index, x, heads, channels, stride, a, b, sums_a, sums_b);
        else
            OF(gather_one)(count, index, x, heads, channels, stride, a, sums_a);
    }
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = h + stride; i < LANES; i += stride) {
            sum[h] += sum[i];
            sum_positive[h] += sum_positive[i];
        }
        /* no entries: 0; a sum that is not a number stays one */
        REAL scale = sum[h] == 0 ? 0 : 1 / sum[h];
        REAL *to = out + row * width + h * channels;
        for (int64_t c = 0; c < channels; c++) to[c] = sums_a[h * channels + c] * scale;
        if (positive) {
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
    const int64_t stride = OF(stride_of)(heads), span = stride > LANES ? stride : LANES;
    int64_t channels = p->channels, width = heads * channels, room = CHUNK * stride + LANES;
    REAL slope = (REAL)p->slope;
    VEC slopes = OF(fill)(slope), zero = OF(fill)(0), one = OF(fill)(1);
    REAL *a = scratch, *b = a + room, *top = b + room, *scale = top + room, *dot = scale + room;
    REAL *s = dot + room, *sum = s + span, *sums_a = sum + span, *sums_b = sums_a + width;
    int32_t index[CHUNK];
    memset(sum, 0, (size_t)(span + 2 * width) * sizeof(REAL));
    OF(spread)(source + column * heads, heads, stride, span, s);
    for (int64_t k = p->starts[column]; k < p->ends[column]; k += CHUNK) {
        int64_t count = p->ends[column] - k < CHUNK ? p->ends[column] - k : CHUNK, total = count * stride;
        for (int64_t e = 0; e < count; e++) {
            int64_t i = p->indices[k + e] - p->column_base;
            const REAL *of = stats + i * 4 * heads;
            index[e] = (int32_t)i;
            OF(fetch)(d_out + i * width, width);
            if (k + e + CHUNK < p->entries)
                OF(fetch)(stats + (p->indices[k + e + CHUNK] - p->column_base) * 4 * heads, 4 * heads);
            OF(copy_heads)(of, heads, a + e * stride);
            OF(copy_heads)(of + heads, heads, top + e * stride);
            OF(copy_heads)(of + 2 * heads, heads, scale + e * stride);
            OF(copy_heads)(of + 3 * heads, heads, dot + e * stride);
        }
        OF(pad)(a, total, stride);
        OF(pad)(top, total, stride);
        for (int64_t i = 0; i < total; i += LANES) {
            VEC pre = OF(load)(a + i) + OF(load)(s + i % span);
            OF(ivec) above = pre > zero;
            VEC weight = OF(exp)(OF(choose)(above, pre, pre * slopes) - OF(load)(top + i)) * OF(load)(scale + i);
            VEC term = weight * OF(load)(dot + i) * OF(choose)(above, one, slopes);
            if (stride < LANES) term = OF(choose)(OF(valid)(i, total), term, zero);
            OF(store)(sum + i % span, OF(load)(sum + i % span) + term);
            OF(store)(a + i, weight);
            OF(store)(b + i, OF(choose)(above, weight, zero));
        }
        if (p->threshold) OF(drop)(p, count, stride, index, 0, column, a, b);
        OF(gather_two)(count, index, d_out, heads, channels, stride, a, b, sums_a, sums_b);
    }
    memcpy(d_x + column * width, sums_a, (size_t)width * sizeof(REAL));
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = h + stride; i < LANES; i += stride) sum[h] += sum[i];
        REAL all = 0, above = 0;
        for (int64_t c = h * channels; c < (h + 1) * channels; c++) {
            all += x[column * width + c] * sums_a[c];
            above += x[column * width + c] * sums_b[c];
        }
        d_source[column * heads + h] = slope * all + (1 - slope) * above - sum[h];
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
    int64_t stride = OF(stride_of)(heads);
    size_t reals = (size_t)(2 * (CHUNK * stride + LANES) + 5 * (stride + LANES) + 2 * heads * p->channels);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL *scratch = calloc(reals, sizeof(REAL));
        failed = !scratch;
#pragma omp for schedule(dynamic, 8)
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
    int64_t stride = OF(stride_of)(heads);
    size_t reals = (size_t)(5 * (CHUNK * stride + LANES) + 2 * (stride + LANES) + 2 * heads * p->channels);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL *scratch = calloc(reals, sizeof(REAL));
        failed = !scratch;
#pragma omp for schedule(dynamic, 8)
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
