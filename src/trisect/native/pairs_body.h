/* Scores of pairs (s, d) of rows, for one element type (REAL, OF(name), LANES and vec_t are set by pairs.c).
 *
 * With weights W [outputs, width]:  score_o = sum_f W_of relu(left_sf + right_df);
 * without them (W is NULL):         score   = sum_f left_sf right_df, one output.
 * What lies between is made for one pair at a time, forward and backward, and never stored. Backward goes over the pairs
 * of each source and then over those of each destination, in ascending order, so that no result depends on the number of
 * threads. With v_f = sum_o gradient_o W_of the gradients of a pair are v where left + right > 0, and gradient_o times
 * the relu for W_o; without weights, gradient * right and gradient * left.
 *
 * left, right [rows, width] are dense. Widths are padded to whole vectors in scratch memory. */

INLINE vec_t OF(load_part)(const REAL *row, int64_t f, int64_t width) {
    if (f + LANES <= width) return OF(load)(row + f);
    vec_t part = OF(fill)(0);
    for (int64_t i = 0; f + i < width; i++) part[i] = row[f + i];
    return part;
}

INLINE REAL OF(total)(vec_t x) {
    REAL sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

INLINE vec_t OF(above_zero)(vec_t x, vec_t yes) { return OF(choose)(x > OF(fill)(0), yes, OF(fill)(0)); }

INLINE int64_t OF(padded)(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

static REAL *OF(padded_weight)(const REAL *weight, int64_t outputs, int64_t width) {
    const int64_t padded = OF(padded)(width);
    REAL *copy = allocate(outputs * padded * (int64_t)sizeof(REAL));
    if (!copy) return NULL;
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t f = 0; f < padded; f++) copy[o * padded + f] = f < width ? weight[o * width + f] : 0;
    return copy;
}

/* scores [pairs, outputs] = as above + bias [outputs], which may be NULL. Returns 0; 1 without memory; 2 where a pair
 * names no row. */
int TRISECT(OF(trisect_pair_scores))(const REAL *left, const REAL *right, int64_t rows, int64_t width, const int64_t *src,
                                     const int64_t *dst, int64_t pairs, const REAL *weight, const REAL *bias,
                                     int64_t outputs, REAL *scores, int threads) {
    for (int64_t p = 0; p < pairs; p++)
        if (src[p] < 0 || src[p] >= rows || dst[p] < 0 || dst[p] >= rows) return 2;
    const int64_t padded = OF(padded)(width);
    REAL *weights = weight ? OF(padded_weight)(weight, outputs, width) : NULL;
    if (weight && !weights) return 1;
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        REAL *inner = allocate(padded * (int64_t)sizeof(REAL));
        if (!inner) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (int64_t p = 0; p < pairs; p++) {
            if (!inner) continue;
            const REAL *a = left + src[p] * width, *b = right + dst[p] * width;
            if (!weights) {
                vec_t sum = OF(fill)(0);
                for (int64_t f = 0; f < width; f += LANES) sum += OF(load_part)(a, f, width) * OF(load_part)(b, f, width);
                scores[p] = OF(total)(sum);
                continue;
            }
            for (int64_t f = 0; f < width; f += LANES) {
                const vec_t both = OF(load_part)(a, f, width) + OF(load_part)(b, f, width);
                OF(store)(inner + f, OF(above_zero)(both, both));
            }
            for (int64_t o = 0; o < outputs; o++) {
                vec_t sum = OF(fill)(0);
                for (int64_t f = 0; f < padded; f += LANES) sum += OF(load)(inner + f) * OF(load)(weights + o * padded + f);
                scores[p * outputs + o] = OF(total)(sum) + (bias ? bias[o] : 0);
            }
        }
        free(inner);
    }
    free(weights);
    return failed;
}

/* The gradient of one side, `own`, of which each row's pairs are listed; `other` are the rows at their other ends. */
typedef struct {
    const REAL *own, *other, *weights, *gradient;
    const int64_t *other_of, *starts, *order;
    int64_t width, padded, outputs;
} OF(side_t);

/* The row of `result` and, where not NULL, what the row's pairs add to the gradient of the weights. */
INLINE void OF(row_gradient)(const OF(side_t) * s, int64_t row, REAL *result, REAL *weight_sum, REAL *sum, REAL *v) {
    const REAL *own = s->own + row * s->width;
    for (int64_t f = 0; f < s->padded; f += LANES) OF(store)(sum + f, OF(fill)(0));
    for (int64_t at = s->starts[row]; at < s->starts[row + 1]; at++) {
        const int64_t pair = s->order[at];
        const REAL *other = s->other + s->other_of[pair] * s->width, *g = s->gradient + pair * s->outputs;
        if (!s->weights) {
            for (int64_t f = 0; f < s->width; f += LANES)
                OF(store)(sum + f, OF(load)(sum + f) + g[0] * OF(load_part)(other, f, s->width));
            continue;
        }
        for (int64_t f = 0; f < s->padded; f += LANES) {
            vec_t each = g[0] * OF(load)(s->weights + f);
            for (int64_t o = 1; o < s->outputs; o++) each += g[o] * OF(load)(s->weights + o * s->padded + f);
            const vec_t both = OF(load_part)(own, f, s->width) + OF(load_part)(other, f, s->width);
            OF(store)(sum + f, OF(load)(sum + f) + OF(above_zero)(both, each));
            if (weight_sum) OF(store)(v + f, OF(above_zero)(both, both));
        }
        for (int64_t o = 0; weight_sum && o < s->outputs; o++) {
            REAL *to = weight_sum + o * s->padded;
            for (int64_t f = 0; f < s->padded; f += LANES) OF(store)(to + f, OF(load)(to + f) + g[o] * OF(load)(v + f));
        }
    }
    memcpy(result + row * s->width, sum, (size_t)s->width * sizeof(REAL));
}

/* Gradients from that of the scores [pairs, outputs]: d_left and d_right [rows, width], and
 * d_weight [outputs, width], or NULL without weights. Returns 0, or 1 without memory. */
int TRISECT(OF(trisect_pair_gradients))(const REAL *left, const REAL *right, int64_t rows, int64_t width,
                                        const int64_t *src, const int64_t *dst, int64_t pairs, const REAL *weight,
                                        int64_t outputs, const REAL *gradient, REAL *d_left, REAL *d_right,
                                        REAL *d_weight, int threads) {
    const int64_t padded = OF(padded)(width), size = outputs * padded;
    int64_t *starts = allocate((rows + 1) * (int64_t)sizeof(int64_t)), *order = allocate(pairs * (int64_t)sizeof(int64_t));
    REAL *weights = weight ? OF(padded_weight)(weight, outputs, width) : NULL;
    REAL *sums = weight ? allocate(GROUPS * size * (int64_t)sizeof(REAL)) : NULL;
    int failed = !starts || !order || (weight && (!weights || !sums));
    if (!failed && sums) memset(sums, 0, (size_t)(GROUPS * size) * sizeof(REAL));
    for (int side = 0; side < 2 && !failed; side++) {
        const OF(side_t) s = {side ? right : left, side ? left : right, weights, gradient, side ? src : dst,
                              starts,              order,               width,   padded,   outputs};
        REAL *result = side ? d_right : d_left;
        sort_by_row(side ? dst : src, pairs, rows, starts, order);
#pragma omp parallel num_threads(threads)
        {
            REAL *sum = allocate(2 * padded * (int64_t)sizeof(REAL)), *v = sum + padded;
            if (!sum) {
#pragma omp atomic write
                failed = 1;
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t group = 0; group < GROUPS; group++) {
                if (!sum) continue;
                REAL *weight_sum = sums && side == 0 ? sums + group * size : NULL;
                for (int64_t row = rows * group / GROUPS; row < rows * (group + 1) / GROUPS; row++)
                    OF(row_gradient)(&s, row, result, weight_sum, sum, v);
            }
            free(sum);
        }
    }
    for (int64_t o = 0; o < outputs && d_weight && !failed; o++)
        for (int64_t f = 0; f < width; f++) {
            REAL total = 0;
            for (int64_t group = 0; group < GROUPS; group++) total += sums[group * size + o * padded + f];
            d_weight[o * width + f] = total;
        }
    free(starts);
    free(order);
    free(weights);
    free(sums);
    return failed;
}
