/* The body of trisect_sum for one storage type; included by aggregate.c with these macros set:
 * STORE (element in memory), ACC (accumulator), NAME(f) (f with the type's suffix), LOAD(p) (one vector as VEC),
 * TO_STORE(a), TO_ACC(s). VEC has LANES lanes of ACC.
 *
 * Four neighbours are taken at a time, so that an accumulator is loaded and stored once for four rows of x; up to
 * SMALL vectors the accumulators stay in registers, beyond that in a buffer in the first-level cache. Rows of x that
 * will be needed some entries later are prefetched.
 */

/* `x` is where the row of index 0 would be, so that `indices` need no subtraction. Vectors reach beyond the last feature;
 * rows at the end of x, after which there may be no memory, are read from a padded copy instead: those of an index above
 * `safe`, of which `padded` holds the first. Rows from `split` on are read from `last_rows`, shifted likewise. */
struct NAME(source) {
    const STORE *x, *last_rows, *padded;
    int64_t stride, padded_stride, safe, split;
    const int32_t *indices;
    const ACC *values, *column_scale;
};

/* Feature `offset` of a row, whose end may be beyond all memory. */
INLINE const STORE *NAME(place_of)(const struct NAME(source) *from, int64_t index, int64_t offset, const int two) {
    const STORE *x = two && index >= from->split ? from->last_rows : from->x;
    return x + offset + index * from->stride;
}

INLINE const STORE *NAME(row_at)(const struct NAME(source) *from, int64_t index, int64_t offset, const int two) {
    if (__builtin_expect(index > from->safe, 0))
        return from->padded + (index - from->safe - 1) * from->padded_stride + offset;
    return NAME(place_of)(from, index, offset, two);
}

INLINE ACC NAME(weight)(const struct NAME(source) *from, int64_t k, int64_t index, const int kind) {
    if (kind == ONES) return 1;
    if (kind == VALUES) return from->values[k];
    ACC weight = from->values ? from->values[k] : (ACC)1;
    return from->column_scale ? weight * from->column_scale[index] : weight;
}

INLINE void NAME(prefetch)(const struct NAME(source) *from, int64_t k, int64_t offset, int bytes, const int two) {
    const char *row = (const char *)NAME(place_of)(from, from->indices[k], offset, two);
    if (bytes <= 64) {
        __builtin_prefetch(row, 0, 3);
        return;
    }
    for (int b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 3);
}

/* sum[0 .. vectors-1] = the weighted rows of the entries start .. end-1. Inlined with `vectors` a constant for narrow
 * rows, whose sums then stay in registers: `held` never has its address taken. */
INLINE void NAME(gather)(const struct NAME(source) *from, int64_t start, int64_t end, int64_t limit, int64_t offset,
                         int ahead, int bytes, const int kind, VEC *sum, const int vectors, const int two) {
    const int32_t *indices = from->indices;
    const int narrow = __builtin_constant_p(vectors);
    VEC held[SMALL];
    if (narrow) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) held[v] = (VEC){0};
    } else {
        for (int v = 0; v < vectors; v++) sum[v] = (VEC){0};
    }
    int64_t k = start;
    for (; k + 4 <= end; k += 4) {
        const int64_t c0 = indices[k], c1 = indices[k + 1], c2 = indices[k + 2], c3 = indices[k + 3];
        if (k + ahead + 4 <= limit)
            for (int n = 0; n < 4; n++) NAME(prefetch)(from, k + ahead + n, offset, bytes, two);
        const STORE *x0 = NAME(row_at)(from, c0, offset, two), *x1 = NAME(row_at)(from, c1, offset, two);
        const STORE *x2 = NAME(row_at)(from, c2, offset, two), *x3 = NAME(row_at)(from, c3, offset, two);
        const ACC w0 = NAME(weight)(from, k, c0, kind), w1 = NAME(weight)(from, k + 1, c1, kind);
        const ACC w2 = NAME(weight)(from, k + 2, c2, kind), w3 = NAME(weight)(from, k + 3, c3, kind);
#define FOUR(t, v)                    \
    t += w0 * LOAD(x0 + (v) * LANES); \
    t += w1 * LOAD(x1 + (v) * LANES); \
    t += w2 * LOAD(x2 + (v) * LANES); \
    t += w3 * LOAD(x3 + (v) * LANES);
        if (vectors == 1) {
            /* A tree, since a chain of four additions would wait for each of them. Both sums begin with 0: of two
             * products that are added, the compiler may fuse either one, and copies of this loop would differ. */
            VEC t = {0}, u = {0};
            t += w0 * LOAD(x0);
            u += w2 * LOAD(x2);
            t += w1 * LOAD(x1);
            u += w3 * LOAD(x3);
            if (narrow)
                held[0] += t + u;
            else
                sum[0] += t + u;
        } else if (narrow) {
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                FOUR(held[v], v)
            }
        } else {
            for (int v = 0; v < vectors; v++) {
                VEC t = sum[v];
                FOUR(t, v)
                sum[v] = t;
            }
        }
#undef FOUR
    }
#pragma GCC unroll 1
    for (; k < end; k++) {
        const int64_t c = indices[k];
        if (k + ahead < limit) NAME(prefetch)(from, k + ahead, offset, bytes, two);
        const STORE *row = NAME(row_at)(from, c, offset, two);
        const ACC w = NAME(weight)(from, k, c, kind);
        if (narrow) {
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) held[v] += w * LOAD(row + v * LANES);
        } else {
            for (int v = 0; v < vectors; v++) sum[v] += w * LOAD(row + v * LANES);
        }
    }
    if (narrow) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[v] = held[v];
    }
}

/* The epilogue on `width` elements from feature `offset` of row i, which is row `target` of the result; sum is in the
 * first-level cache. */
static void NAME(finish)(const struct sum_arguments *a, int64_t i, int64_t target, int64_t offset, int64_t width,
                         ACC *restrict sum) {
    const ACC *row_scale = a->row_scale;
    const ACC alpha = row_scale ? (ACC)a->alpha * row_scale[i] : (ACC)a->alpha, beta = (ACC)a->beta;
    if (alpha != 1)
        for (int64_t f = 0; f < width; f++) sum[f] *= alpha;
    if (a->add) {
        const STORE *add = (const STORE *)a->add + target * a->add_stride + offset;
        for (int64_t f = 0; f < width; f++) sum[f] += beta * TO_ACC(add[f]);
    }
    if (a->bias) {
        const ACC *bias = (const ACC *)a->bias + offset;
        for (int64_t f = 0; f < width; f++) sum[f] += bias[f];
    }
    if (a->post & POST_RELU)
        for (int64_t f = 0; f < width; f++) sum[f] = sum[f] < 0 ? 0 : sum[f];
    if (a->post & POST_LEAKY) {
        const ACC slope = (ACC)a->scale;
        for (int64_t f = 0; f < width; f++) sum[f] = sum[f] < 0 ? sum[f] * slope : sum[f];
    }
    if (a->post & POST_DROPOUT) {
        const uint64_t key = noise_row_key(a->key, a->vertices ? a->vertices[i] : i);
        const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32), threshold = a->threshold;
        const ACC scale = (ACC)a->scale;
        for (int64_t f = 0; f < width; f++)
            sum[f] = noise_bits(low, high, (uint32_t)(offset + f)) < threshold ? 0 : sum[f] * scale;
    }
}

/* Most rows of a sparse graph are short, so that storing a narrow row costs as much as a few entries. */
INLINE void NAME(put)(STORE *restrict out, const ACC *restrict sum, int64_t width) {
    if (sizeof(STORE) != sizeof(ACC)) {
        for (int64_t f = 0; f < width; f++) out[f] = TO_STORE(sum[f]);
        return;
    }
    copy_narrow(out, sum, width * (int64_t)sizeof(ACC), sizeof(VEC), sizeof(ACC));
}

/* Rows first .. last-1, features offset .. offset+width-1. */
INLINE void NAME(rows)(const struct sum_arguments *a, const struct NAME(source) *from, int64_t first, int64_t last,
                       int64_t offset, int64_t width, int contiguous, const int kind, const int vectors,
                       const int two) {
    /* one line is prefetched of a row of at most 64 bytes, known when compiled where the width is */
    const int bytes = __builtin_constant_p(vectors) && vectors * (int)sizeof(VEC) <= 64 ? 64 : (int)(width * (int64_t)sizeof(STORE));
    const int ahead = bytes > 128 ? 16 : 32;
    const int epilogue = a->alpha != 1 || a->row_scale || a->add || a->bias || a->post;
    const int64_t piece_end = a->ends[last - 1];
    const int64_t *targets = a->post & POST_TARGETS ? a->targets : NULL;
    for (int64_t i = first; i < last; i++) {
        const int64_t start = a->starts[i], end = a->ends[i];
        if (!contiguous && i + 1 < last) {
            const int64_t next = a->starts[i + 1], stop = a->ends[i + 1];
            for (int64_t k = next; k < stop && k < next + ahead; k++)
                NAME(prefetch)(from, k, offset, bytes, two);
        }
        const int64_t target = targets ? targets[i] : i;
        VEC sum[WIDE];
        NAME(gather)(from, start, end, contiguous ? piece_end : end, offset, ahead, bytes, kind, sum, vectors, two);
        if (epilogue) NAME(finish)(a, i, target, offset, width, (ACC *)sum);
        NAME(put)((STORE *)a->out + target * a->out_stride + offset, (const ACC *)sum, width);
    }
}

/* A function for each narrow width, so that each has the registers for itself; float32 with edge values alone, or with
 * none, are the cases that matter most, and have their own copies of the loops. */
#define WIDTH(name, n, two)                                                                                          \
    static __attribute__((noinline)) void NAME(name)(const struct sum_arguments *a, const struct NAME(source) *from, \
                                                     int64_t first, int64_t last, int64_t offset, int64_t width,    \
                                                     int contiguous) {                                              \
        const struct NAME(source) own = *from;                                                                      \
        if (sizeof(STORE) == 4 && !own.column_scale && own.values)                                                  \
            NAME(rows)(a, &own, first, last, offset, width, contiguous, VALUES, n, two);                            \
        else if (sizeof(STORE) == 4 && !own.column_scale)                                                           \
            NAME(rows)(a, &own, first, last, offset, width, contiguous, ONES, n, two);                              \
        else                                                                                                        \
            NAME(rows)(a, &own, first, last, offset, width, contiguous, GENERAL, n, two);                           \
    }
WIDTH(width_1, 1, 0)
WIDTH(width_2, 2, 0)
WIDTH(width_3, 3, 0)
WIDTH(width_4, 4, 0)
WIDTH(width_5, 5, 0)
WIDTH(width_6, 6, 0)
WIDTH(width_7, 7, 0)
WIDTH(width_8, 8, 0)
WIDTH(width_any, (int)((width + LANES - 1) / LANES), 0)
WIDTH(width_of_two, (int)((width + LANES - 1) / LANES), 1)
#undef WIDTH

static void NAME(row_range)(const struct sum_arguments *a, const struct NAME(source) *from, int64_t first, int64_t last) {
    static void (*const narrow[])(const struct sum_arguments *, const struct NAME(source) *, int64_t, int64_t, int64_t,
                                  int64_t, int) = {
        NAME(width_any), NAME(width_1), NAME(width_2), NAME(width_3), NAME(width_4),
        NAME(width_5),   NAME(width_6), NAME(width_7), NAME(width_8)};
    int contiguous = 1;
    for (int64_t i = first; i + 1 < last; i++) contiguous &= a->ends[i] == a->starts[i + 1];
    for (int64_t offset = 0; offset < a->features; offset += WIDE * LANES) {
        const int64_t rest = a->features - offset, width = rest < WIDE * LANES ? rest : WIDE * LANES;
        const int64_t vectors = (width + LANES - 1) / LANES;
        if (a->last_rows)
            NAME(width_of_two)(a, from, first, last, offset, width, contiguous);
        else
            narrow[vectors <= SMALL ? vectors : 0](a, from, first, last, offset, width, contiguous);
    }
}

int TRISECT(NAME(trisect_sum))(const struct sum_arguments *a);
/* Returns 0, or 1 where there is no memory. */
int TRISECT(NAME(trisect_sum))(const struct sum_arguments *a) {
    if (a->rows < 1 || a->features < 1) return 0;
    const int64_t padded = (a->features + LANES - 1) / LANES * LANES;
    /* the array that ends the rows, and the first row in it */
    const int64_t split = a->last_rows ? a->split : 0, ending = a->columns - split;
    const STORE *x = a->last_rows ? a->last_rows : a->x;
    int64_t safe = ending - 1;
    STORE *copy = NULL;
    if (padded != a->features && ending > 0) {
        const int64_t last_element = (ending - 1) * a->x_stride + a->features;
        safe = last_element >= padded ? (last_element - padded) / a->x_stride : -1;
        const int64_t copied = ending - 1 - safe;
        copy = calloc((size_t)(copied * padded), sizeof(STORE));
        if (!copy) return 1;
        for (int64_t r = 0; r < copied; r++)
            memcpy(copy + r * padded, x + (safe + 1 + r) * a->x_stride, (size_t)a->features * sizeof(STORE));
    }
    const ACC *column_scale = a->column_scale;
    const struct NAME(source) from = {
        // as numbers: where there are no columns the pointers are null, and C leaves arithmetic with those undefined
        .x = (const STORE *)((uintptr_t)a->x - (uintptr_t)(a->column_base * a->x_stride) * sizeof(STORE)),
        .last_rows = (const STORE *)((uintptr_t)x - (uintptr_t)((split + a->column_base) * a->x_stride) * sizeof(STORE)),
        .padded = copy,
        .stride = a->x_stride,
        .padded_stride = padded,
        .safe = safe + split + a->column_base,
        .split = split + a->column_base,
        .indices = a->indices,
        .values = a->values,
        .column_scale = column_scale ? column_scale - a->column_base : NULL,
    };
    const int64_t size = rows_per_task(a->starts, a->ends, a->rows, a->threads), rows = a->rows;
    const int64_t ranges = (rows + size - 1) / size;
#pragma omp parallel for num_threads(a->threads) schedule(dynamic, 1)
    for (int64_t p = 0; p < ranges; p++) {
        const int64_t first = p * size, last = first + size < rows ? first + size : rows;
        NAME(row_range)(a, &from, first, last);
    }
    free(copy);
    return 0;
}
