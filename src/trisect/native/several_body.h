/* Kernels of several.c for one type; included with REAL, VEC, MASK (VEC's lanes as integers), LOAD(p) and
 * NAME(f) set. */

#define LANES ((int)(SEVERAL_BYTES / sizeof(REAL)))

/* `width` elements, at most `room`, of whole vectors at `from`. */
INLINE void NAME(put)(REAL *restrict out, const REAL *restrict from, int64_t width, const int64_t room) {
    if (width == room) {
        memcpy(out, from, (size_t)room * sizeof(REAL));
        return;
    }
    copy_narrow(out, from, width * (int64_t)sizeof(REAL), sizeof(VEC), sizeof(REAL));
}

/* Rows first .. last-1, the vectors offset .. offset+vectors-1 of each step. With `steps` and `vectors` constants the
 * sums stay in registers: at most eight of them. `full_rows`: these are all vectors of a step, so that rows lie at a
 * constant distance. */
INLINE void NAME(rows)(const struct several_arguments *a, int64_t first, int64_t last, int64_t offset, const int steps,
                       const int vectors, const int full_rows, const int valued) {
    const int64_t pitch = full_rows ? vectors * LANES : a->pitch, stride = steps * pitch, limit = a->ends[last - 1];
    const REAL *x = (const REAL *)a->x - a->column_base * stride + offset * LANES, *values = a->values;
    const REAL *bias = a->bias;
    const int32_t *indices = a->indices;
    const int64_t *starts = a->starts, *ends = a->ends;
    const int bytes = (int)((stride - (full_rows ? 0 : offset) * LANES) * (int64_t)sizeof(REAL)), ahead = bytes > 128 ? 8 : 16;
    const int64_t rest = a->features - offset * LANES, room = vectors * LANES, width = rest < room ? rest : room;
    const REAL slope = (REAL)a->slope;
    const int leaky = a->leaky;
    for (int64_t i = first; i < last; i++) {
        VEC sum[8];
#pragma GCC unroll 8
        for (int v = 0; v < steps * vectors; v++) sum[v] = (VEC){0};
        const int64_t end = ends[i];
        for (int64_t k = starts[i]; k < end; k++) {
            const REAL *row = x + indices[k] * stride;
            if (k + ahead < limit) {
                const char *next = (const char *)(x + indices[k + ahead] * stride);
                for (int b = 0; b < bytes; b += 64) __builtin_prefetch(next + b, 0, 3);
            }
#pragma GCC unroll 8
            for (int g = 0; g < steps; g++) {
                const REAL weight = valued ? values[k * steps + g] : (REAL)1;
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) sum[g * vectors + v] += weight * LOAD(row + g * pitch + v * LANES);
            }
        }
#pragma GCC unroll 8
        for (int g = 0; g < steps; g++) {
            REAL done[8 * LANES];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) memcpy(done + v * LANES, &sum[g * vectors + v], sizeof(VEC));
            if (bias)
                for (int64_t f = 0; f < width; f++) done[f] += bias[offset * LANES + f];
            if (leaky)
                for (int64_t f = 0; f < room; f++) done[f] = done[f] < 0 ? slope * done[f] : done[f];
            NAME(put)((REAL *)a->out[g] + i * a->out_stride + offset * LANES, done, width, room);
        }
    }
}

#define SHAPE(g, v)                                                                                                \
    static __attribute__((noinline)) void NAME(rows_##g##_##v)(const struct several_arguments *a, int64_t first,  \
                                                               int64_t last, int64_t offset) {                    \
        if (a->pitch == v * LANES && a->values) NAME(rows)(a, first, last, offset, g, v, 1, 1);                   \
        else if (a->values) NAME(rows)(a, first, last, offset, g, v, 0, 1);                                       \
        else NAME(rows)(a, first, last, offset, g, v, 0, 0);                                                      \
    }
SHAPE(1, 1)
SHAPE(1, 2)
SHAPE(1, 4)
SHAPE(2, 1)
SHAPE(2, 2)
SHAPE(2, 4)
SHAPE(4, 1)
SHAPE(4, 2)
SHAPE(8, 1)
#undef SHAPE

/* As many vectors as are left and fit beside each other; returns how many. */
static int NAME(shape)(const struct several_arguments *a, int64_t first, int64_t last, int64_t offset, int64_t left) {
    const int most = a->steps <= 2 ? 4 : 8 / a->steps, vectors = left >= 4 && most >= 4 ? 4 : left >= 2 && most >= 2 ? 2 : 1;
    switch (a->steps * 8 + vectors) {
        case 9: NAME(rows_1_1)(a, first, last, offset); break;
        case 10: NAME(rows_1_2)(a, first, last, offset); break;
        case 12: NAME(rows_1_4)(a, first, last, offset); break;
        case 17: NAME(rows_2_1)(a, first, last, offset); break;
        case 18: NAME(rows_2_2)(a, first, last, offset); break;
        case 20: NAME(rows_2_4)(a, first, last, offset); break;
        case 33: NAME(rows_4_1)(a, first, last, offset); break;
        case 34: NAME(rows_4_2)(a, first, last, offset); break;
        default: NAME(rows_8_1)(a, first, last, offset); break;
    }
    return vectors;
}

void TRISECT(NAME(trisect_several))(const struct several_arguments *a);
void TRISECT(NAME(trisect_several))(const struct several_arguments *a) {
    if (a->rows < 1 || a->features < 1) return;
    const int64_t size = piece_rows(a->ends[a->rows - 1] - a->starts[0], a->rows, a->threads), rows = a->rows;
    const int64_t ranges = (rows + size - 1) / size, vectors = (a->features + LANES - 1) / LANES;
#pragma omp parallel for num_threads(a->threads) schedule(dynamic, 1)
    for (int64_t p = 0; p < ranges; p++) {
        const int64_t first = p * size, last = first + size < rows ? first + size : rows;
        for (int64_t done = 0; done < vectors;) done += NAME(shape)(a, first, last, done, vectors - done);
    }
}

/* One row, whose `beyond` elements after the last may be read where whole vectors end there. */
INLINE void NAME(pack_row)(const REAL *restrict x, const REAL *restrict sign, REAL *restrict out, int64_t features,
                           int64_t pitch, const REAL slope, const MASK keep, const int room) {
    if (!room) {
        for (int64_t f = 0; f < pitch; f++) {
            const REAL value = f < features ? x[f] : 0;
            out[f] = f < features && sign && sign[f] <= 0 ? (slope == 0 ? (REAL)0 : slope * value) : value;
        }
        return;
    }
    for (int64_t f = 0; f < pitch; f += LANES) {
        VEC value = LOAD(x + f);
        if (sign) {
            /* chosen, not multiplied by 0: a gradient that is not finite stays where it is */
            const MASK below = LOAD(sign + f) <= 0;
            const VEC less = slope == 0 ? (VEC){0} : slope * value;
            value = (VEC)(((MASK)value & ~below) | ((MASK)less & below));
        }
        if (f + LANES > features) value = (VEC)((MASK)value & keep);
        memcpy(out + f, &value, sizeof value);
    }
}

void TRISECT(NAME(trisect_several_pack))(const struct pack_arguments *a);
/* Rows of several matrices side by side; what pads a row is 0. */
void TRISECT(NAME(trisect_several_pack))(const struct pack_arguments *a) {
    const int64_t features = a->features, pitch = a->pitch, beyond = pitch - features;
    const int64_t x_stride = a->x_stride, sign_stride = a->sign_stride, rows = a->rows;
    const REAL slope = (REAL)a->slope;
    MASK keep = {0};
    for (int lane = 0; lane < LANES; lane++) keep[lane] = pitch - LANES + lane < features ? -1 : 0;
    /* rows after which there is enough left to read */
    int64_t safe = rows;
    const int64_t least = a->sign && sign_stride < x_stride ? sign_stride : x_stride;
    if (beyond > 0) safe = least > 0 ? rows - (beyond + least - 1) / least : 0;
#pragma omp parallel for num_threads(a->threads) schedule(static)
    for (int64_t i = 0; i < rows; i++)
        for (int g = 0; g < a->steps; g++) {
            const REAL *x = (const REAL *)a->x[g] + i * x_stride;
            const REAL *sign = a->sign ? (const REAL *)a->sign[g] + i * sign_stride : NULL;
            REAL *out = (REAL *)a->out + (i * a->steps + g) * pitch;
            if (i < safe) NAME(pack_row)(x, sign, out, features, pitch, slope, keep, 1);
            else NAME(pack_row)(x, sign, out, features, pitch, slope, keep, 0);
        }
}

INLINE void NAME(overlay_row)(const struct overlay_arguments *a, int64_t row, int64_t k, const int64_t last,
                              int32_t *restrict indices, REAL *restrict values, const int steps) {
    struct cursor at[8];
    const REAL *from[8];
    begin(a, row, at, steps);
    for (int g = 0; g < steps; g++) from[g] = a->values[g];
    for (; k < last; k++) {
        const int64_t column = lowest(at, steps);
        indices[k] = (int32_t)column;
#pragma GCC unroll 8
        for (int g = 0; g < steps; g++) {
            REAL value = 0;
            if (at[g].column == column) {
                value = from[g] ? from[g][at[g].entry] : (REAL)1;
                advance(at + g);
            }
            values[k * steps + g] = value;
        }
    }
}

void TRISECT(NAME(trisect_overlay_write))(const struct overlay_arguments *a, const int64_t *pointers, int32_t *indices,
                                          REAL *values);
/* The union of the matrices' entries by rows, from pointers that trisect_overlay_count has prepared. */
void TRISECT(NAME(trisect_overlay_write))(const struct overlay_arguments *a, const int64_t *pointers, int32_t *indices,
                                          REAL *values) {
#pragma omp parallel for num_threads(a->threads) schedule(dynamic, 256)
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t first = pointers[i], last = pointers[i + 1];
        if (a->steps == 2) NAME(overlay_row)(a, i, first, last, indices, values, 2);
        else if (a->steps == 4) NAME(overlay_row)(a, i, first, last, indices, values, 4);
        else NAME(overlay_row)(a, i, first, last, indices, values, a->steps);
    }
}
#undef LANES
