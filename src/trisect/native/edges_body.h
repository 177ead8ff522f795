/* Messages from source rows and edge features, for one element type (REAL, OF(name), LANES are set by edges.c).
 *
 * With z = b_i + x_j + sum_d e_d W_d for the entry (i, j), whose edge has the features e (W is [features of an edge, F]):
 *   GATv2: s = att . leaky_relu(z) in each head, a = softmax of s over the row's entries, out_i = sum_j a x_j;
 *   GINE:  out_i = sum_j relu(z), where b is the same for all rows.
 * z is made four entries at a time and never stored. Forward keeps of each entry a bit for each feature (z > 0) and, for
 * GATv2, a for each head. These are enough for backward, as leaky_relu is linear where the sign is known. For g_i the
 * gradient of out_i, let ds = a (g_i . x_j - g_i . out_i) and u = ds * (z > 0 ? 1 : slope). Then
 *   d_b_i = att * U_i,  d_x_j = sum_i a g_i + att * U_j,  d_W_d = att * V_d,
 *   d_att = sum_i b_i U_i + sum_j x_j U_j + sum_d W_d V_d,
 * where U_i and U_j are the sums of u over a row and over a column, and V_d that of e_d u over all entries. One pass over
 * rows makes U_i, V and, for each entry and head, a and ds; one over columns makes the rest from those.
 * GINE has u = z > 0 ? g_i : 0, d_x_j = U_j and d_W_d = V_d; d_b is the sum of d_x over all columns.
 *
 * Widths are padded to whole vectors in scratch memory; the last vector of a row in memory is read element by element.
 */

#define VEC OF(vec)
#define IVEC OF(ivec)

typedef struct {
    const int64_t *starts, *ends;
    const int32_t *indices;
    /* of a transposed matrix: where an entry stands in the original; one of both, or none */
    const int32_t *positions;
    const int64_t *long_positions;
    int64_t rows, column_base, entries;
    /* the position of the first entry for which arrays of entries have room; features are laid out like indices */
    int64_t first;
    int64_t heads, channels, edge_channels;
    double slope;
    const REAL *features, *weight;
    /* dropout: none where threshold is 0; keys belong to the targets, ids to the sources */
    const uint64_t *target_keys;
    const int64_t *source_ids;
    double keep_scale;
    uint32_t threshold;
} OF(edges);

/* How many bytes the signs of an entry take. */
int64_t TRISECT(OF(trisect_edges_sign_bytes))(int64_t width) { return (width + LANES - 1) / LANES; }

INLINE VEC OF(load_row)(const REAL *row, int64_t f, int64_t width) {
    if (f + LANES <= width) return OF(load)(row + f);
    VEC part = OF(fill)(0);
    for (int64_t i = 0; f + i < width; i++) part[i] = row[f + i];
    return part;
}

INLINE void OF(store_row)(REAL *row, int64_t f, int64_t width, VEC x) {
    if (f + LANES <= width) {
        OF(store)(row + f, x);
        return;
    }
    for (int64_t i = 0; f + i < width; i++) row[f + i] = x[i];
}

INLINE uint8_t OF(signs)(IVEC above) {
#if defined(__AVX2__)
    return (uint8_t)(sizeof(REAL) == 4 ? _mm256_movemask_ps((__m256)above) : _mm256_movemask_pd((__m256d)above));
#else
    uint8_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint8_t)((above[i] & 1) << i);
    return bits;
#endif
}

INLINE IVEC OF(above)(uint8_t bits) {
    IVEC lane;
    for (int i = 0; i < LANES; i++) lane[i] = 1 << i;
    return (((IVEC){0} + bits) & lane) == lane;
}

/* The sums of the elements of four vectors. */
INLINE void OF(sum_group)(const VEC *x, REAL *sums) {
#if defined(__AVX2__)
    if (sizeof(REAL) == 4) {
        __m256 low = _mm256_hadd_ps((__m256)x[0], (__m256)x[1]), high = _mm256_hadd_ps((__m256)x[2], (__m256)x[3]);
        __m256 all = _mm256_hadd_ps(low, high);
        __m128 total = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
        memcpy(sums, &total, 4 * sizeof(REAL));
    } else {
        __m256d low = _mm256_hadd_pd((__m256d)x[0], (__m256d)x[1]), high = _mm256_hadd_pd((__m256d)x[2], (__m256d)x[3]);
        __m256d total = _mm256_add_pd(_mm256_permute2f128_pd(low, high, 0x20), _mm256_permute2f128_pd(low, high, 0x31));
        memcpy(sums, &total, 4 * sizeof(REAL));
    }
#else
    for (int e = 0; e < GROUP; e++) {
        REAL total = 0;
        for (int i = 0; i < LANES; i++) total += x[e][i];
        sums[e] = total;
    }
#endif
}

/* Adds the products of four entries in one vector of features to their scores, head by head. Vectors of one head are
 * summed in `sums` until its last one. `packed` is `heads_a_vector`, here and below. */
INLINE void OF(add_scores)(const OF(edges) * p, const int packed, int64_t f, const VEC *product, VEC *sums, REAL *scores,
                           int64_t stride) {
    int64_t width = p->heads * p->channels;
    if (packed > 1) {
#pragma GCC unroll 4
        for (int e = 0; e < GROUP; e++)
            OF(sum_heads)(packed, product[e], scores + e * stride + f / SHARED(packed));
        return;
    }
    if (packed) {
        for (int e = 0; e < GROUP; e++) sums[e] += product[e];
        int64_t head = f / p->channels, last = f + LANES >= width;
        if (!last && (f + LANES) / p->channels == head) return;
        REAL total[GROUP];
        OF(sum_group)(sums, total);
        for (int e = 0; e < GROUP; e++) {
            scores[e * stride + head] = total[e];
            sums[e] = OF(fill)(0);
        }
        return;
    }
    for (int e = 0; e < GROUP; e++)
        for (int64_t i = 0; i < LANES && f + i < width; i++) scores[e * stride + (f + i) / p->channels] += product[e][i];
}

/* The coefficients of an entry's heads for one vector of features. */
INLINE VEC OF(coefficient)(const OF(edges) * p, const int packed, const REAL *heads, int64_t f) {
    if (packed > 1) return OF(spread_heads)(packed, heads + f / SHARED(packed));
    if (packed) return OF(fill)(heads[f / p->channels]);
    int64_t width = p->heads * p->channels;
    VEC result = OF(fill)(0);
    for (int64_t i = 0; i < LANES && f + i < width; i++) result[i] = heads[(f + i) / p->channels];
    return result;
}

/* z of four entries for `wide` vectors of features from f on. */
INLINE void OF(make_z)(const OF(edges) * p, const int wide, const REAL *const *rows, const REAL *const *edge,
                       const REAL *base, const REAL *weight, int64_t padded, int64_t f, VEC z[][GROUP]) {
    int64_t width = p->heads * p->channels, count = p->edge_channels;
#pragma GCC unroll 2
    for (int t = 0; t < wide; t++)
#pragma GCC unroll 4
        for (int e = 0; e < GROUP; e++)
            z[t][e] = OF(load)(base + f + t * LANES) + OF(load_row)(rows[e], f + t * LANES, width);
    for (int64_t d = 0; d < count; d++)
#pragma GCC unroll 2
        for (int t = 0; t < wide; t++) {
            VEC w = OF(load)(weight + d * padded + f + t * LANES);
#pragma GCC unroll 4
            for (int e = 0; e < GROUP; e++) z[t][e] += w * edge[e][d];
        }
}

/* Reads the rows and the features of up to four entries; the last one stands for those beyond. */
INLINE int64_t OF(group_of)(const OF(edges) * p, int64_t k, int64_t left, const REAL *x, int64_t width,
                            const REAL **rows, const REAL **edge) {
    int64_t count = left < GROUP ? left : GROUP;
    for (int64_t e = 0; e < GROUP; e++) {
        int64_t at = k + (e < count ? e : count - 1);
        rows[e] = x + (int64_t)(p->indices[at] - p->column_base) * width;
        edge[e] = p->features + at * p->edge_channels;
    }
    return count;
}

INLINE void OF(keep_signs)(int64_t count, int64_t bytes, int64_t vector, const VEC *z, uint8_t *signs) {
    uint8_t made[GROUP];
#pragma GCC unroll 4
    for (int e = 0; e < GROUP; e++) made[e] = OF(signs)(z[e] > OF(fill)(0));
    for (int64_t e = 0; e < count; e++) signs[e * bytes + vector] = made[e];
}

/* The scores of a chunk's entries; `signs` is NULL where no backward follows. */
INLINE void OF(score_tile)(const OF(edges) * p, const int packed, const int wide, int64_t count, const REAL *const *rows,
                           const REAL *const *edge, const REAL *base, const REAL *weight, const REAL *att, int64_t padded,
                           int64_t f, VEC *sums, REAL *scores, int64_t stride, uint8_t *signs) {
    VEC z[2][GROUP], slope = OF(fill)((REAL)p->slope), zero = OF(fill)(0);
    int64_t bytes = padded / LANES;
    OF(make_z)(p, wide, rows, edge, base, weight, padded, f, z);
#pragma GCC unroll 2
    for (int t = 0; t < wide; t++) {
        if (signs) OF(keep_signs)(count, bytes, f / LANES + t, z[t], signs);
        VEC a = OF(load)(att + f + t * LANES);
#pragma GCC unroll 4
        for (int e = 0; e < GROUP; e++) z[t][e] = OF(choose)(z[t][e] > zero, z[t][e], z[t][e] * slope) * a;
        OF(add_scores)(p, packed, f + t * LANES, z[t], sums, scores, stride);
    }
}

INLINE void OF(score_entries)(const OF(edges) * p, const int packed, int64_t k, int64_t count, const REAL *x,
                              const REAL *base, const REAL *weight, const REAL *att, int64_t padded, REAL *scores,
                              int64_t stride, uint8_t *signs) {
    int64_t width = p->heads * p->channels, bytes = padded / LANES;
    if (!packed) memset(scores, 0, (size_t)(CHUNK * stride) * sizeof(REAL));
    for (int64_t e = 0; e < count; e += GROUP) {
        const REAL *rows[GROUP], *edge[GROUP];
        int64_t here = OF(group_of)(p, k + e, count - e, x, width, rows, edge), f = 0;
        VEC sums[GROUP] = {{0}};
        REAL *to = scores + e * stride;
        uint8_t *marks = signs ? signs + e * bytes : 0;
        for (; f + 2 * LANES <= padded; f += 2 * LANES)
            OF(score_tile)(p, packed, 2, here, rows, edge, base, weight, att, padded, f, sums, to, stride, marks);
        if (f < padded)
            OF(score_tile)(p, packed, 1, here, rows, edge, base, weight, att, padded, f, sums, to, stride, marks);
    }
}

/* Out of line: inlined where they are called, they only lengthen the compilation. */
static __attribute__((noinline)) void OF(score_chunk)(const OF(edges) * p, int packed, int64_t k, int64_t count,
                                                      const REAL *x, const REAL *base, const REAL *weight,
                                                      const REAL *att, int64_t padded, REAL *scores, int64_t stride,
                                                      uint8_t *signs) {
#define CALL(n) OF(score_entries)(p, n, k, count, x, base, weight, att, padded, scores, stride, signs)
    BY_HEADS(packed, CALL)
#undef CALL
}

/* g_i . x_j of a chunk's entries, head by head. */
INLINE void OF(dot_entries)(const OF(edges) * p, const int packed, int64_t k, int64_t count, const REAL *x,
                            const REAL *g, int64_t padded, REAL *dots, int64_t stride) {
    int64_t width = p->heads * p->channels;
    if (!packed) memset(dots, 0, (size_t)(CHUNK * stride) * sizeof(REAL));
    for (int64_t e = 0; e < count; e += GROUP) {
        const REAL *rows[GROUP], *edge[GROUP];
        OF(group_of)(p, k + e, count - e, x, width, rows, edge);
        VEC sums[GROUP] = {{0}};
        for (int64_t f = 0; f < padded; f += LANES) {
            VEC product[GROUP], here = OF(load)(g + f);
#pragma GCC unroll 4
            for (int q = 0; q < GROUP; q++) product[q] = here * OF(load_row)(rows[q], f, width);
            OF(add_scores)(p, packed, f, product, sums, dots + e * stride, stride);
        }
    }
}

static __attribute__((noinline)) void OF(dot_chunk)(const OF(edges) * p, int packed, int64_t k, int64_t count,
                                                    const REAL *x, const REAL *g, int64_t padded, REAL *dots,
                                                    int64_t stride) {
#define CALL(n) OF(dot_entries)(p, n, k, count, x, g, padded, dots, stride)
    BY_HEADS(packed, CALL)
#undef CALL
}

/* What dropout multiplies a coefficient by. */
INLINE REAL OF(kept)(const OF(edges) * p, int64_t target, int64_t source, int64_t head) {
    uint64_t key = p->target_keys[target];
    if (p->source_ids) source = p->source_ids[source];
    uint32_t bits = noise_bits((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)(source * p->heads + head));
    return bits >= p->threshold ? (REAL)p->keep_scale : 0;
}

/* exp(score - top) * scale of a chunk's entries, all as patterns of `span` elements. */
INLINE void OF(weigh)(int64_t total, int64_t span, const REAL *top, const REAL *scale, REAL *a) {
    for (int64_t i = 0; i < total; i += LANES)
        OF(store)(a + i, OF(exp)(OF(load)(a + i) - OF(load)(top + i % span)) * OF(load)(scale + i % span));
}

INLINE void OF(attend_row)(const OF(edges) * p, const int packed, int64_t row, const REAL *x, const REAL *target,
                           const REAL *weight, const REAL *att, int64_t padded, REAL *out, REAL *alpha, uint8_t *signs,
                           REAL *scratch) {
    const int64_t heads = p->heads, stride = OF(stride_of)(heads), span = stride > LANES ? stride : LANES;
    int64_t channels = p->channels, width = heads * channels, bytes = padded / LANES;
    VEC zero = OF(fill)(0);
    REAL *a = scratch, *base = a + CHUNK * stride + LANES, *top = base + padded, *most = top + span, *sum = most + span;
    REAL *scale = sum + span, *sums = scale + span;
    int32_t index[CHUNK];
    memset(sum, 0, (size_t)span * sizeof(REAL));
    memset(sums, 0, (size_t)width * sizeof(REAL));
    memcpy(base, target + row * width, (size_t)width * sizeof(REAL));
    for (int64_t i = 0; i < span; i++) top[i] = -INFINITY;
    for (int64_t k = p->starts[row]; k < p->ends[row]; k += CHUNK) {
        int64_t count = p->ends[row] - k < CHUNK ? p->ends[row] - k : CHUNK, total = count * stride;
        for (int64_t e = 0; e < count; e++) {
            index[e] = (int32_t)(p->indices[k + e] - p->column_base);
            /* the entry may belong to another block: prefetching a wrong address does no harm */
            if (k + e + CHUNK < p->entries)
                OF(fetch)(x + (int64_t)(p->indices[k + e + CHUNK] - p->column_base) * width, width);
        }
        uint8_t *marks = signs ? signs + (k - p->first) * bytes : 0;
        OF(score_chunk)(p, packed, k, count, x, base, weight, att, padded, a, stride, marks);
        if (alpha)
            for (int64_t e = 0; e < count; e++) OF(copy_heads)(a + e * stride, heads, alpha + (k + e - p->first) * heads);
        OF(pad)(a, total, stride);
        memcpy(most, top, (size_t)span * sizeof(REAL));
        for (int64_t i = 0; i < total; i += LANES) {
            VEC score = OF(load)(a + i), high = OF(load)(most + i % span);
            OF(store)(most + i % span, OF(choose)(score > high, score, high));
        }
        for (int64_t wide = LANES / 2; wide >= stride; wide /= 2)
            for (int64_t i = 0; i < wide; i++) most[i] = most[i] > most[i + wide] ? most[i] : most[i + wide];
        for (int64_t i = stride; i < LANES; i++) most[i] = most[i % stride];
        if (k > p->starts[row]) {
            for (int64_t i = 0; i < span; i += LANES) {
                VEC shrink = OF(exp)(OF(load)(top + i) - OF(load)(most + i));
                OF(store)(sum + i, OF(load)(sum + i) * shrink);
                OF(store)(top + i, shrink);
            }
            for (int64_t h = 0; h < heads; h++)
                for (int64_t c = h * channels; c < (h + 1) * channels; c++) sums[c] *= top[h];
        }
        memcpy(top, most, (size_t)span * sizeof(REAL));
        for (int64_t i = 0; i < total; i += LANES) {
            VEC weighed = OF(exp)(OF(load)(a + i) - OF(load)(top + i % span));
            if (stride < LANES) weighed = OF(choose)(OF(valid)(i, total), weighed, zero);
            OF(store)(a + i, weighed);
            OF(store)(sum + i % span, OF(load)(sum + i % span) + weighed);
        }
        if (p->threshold)
            for (int64_t e = 0; e < count; e++)
                for (int64_t h = 0; h < heads; h++) a[e * stride + h] *= OF(kept)(p, row, index[e], h);
        OF(gather_one)(count, index, x, heads, channels, stride, a, sums);
    }
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = h + stride; i < LANES; i += stride) sum[h] += sum[i];
        /* no entries: 0; a sum that is not a number stays one */
        sum[h] = sum[h] == 0 ? 0 : 1 / sum[h];
        for (int64_t c = h * channels; c < (h + 1) * channels; c++) out[row * width + c] = sums[c] * sum[h];
    }
    if (!alpha) return;
    OF(spread)(sum, heads, stride, span, scale);
    for (int64_t k = p->starts[row]; k < p->ends[row]; k += CHUNK) {
        int64_t count = p->ends[row] - k < CHUNK ? p->ends[row] - k : CHUNK;
        REAL *kept = alpha + (k - p->first) * heads;
        for (int64_t e = 0; e < count; e++) OF(copy_heads)(kept + e * heads, heads, a + e * stride);
        OF(weigh)(count * stride, span, top, scale, a);
        for (int64_t e = 0; e < count; e++) OF(copy_heads)(a + e * stride, heads, kept + e * heads);
    }
}

/* A copy of `count` rows of `width` numbers, padded with zeros to whole vectors; NULL where memory ran out. */
static REAL *OF(padded_copy)(const REAL *rows, int64_t count, int64_t width, int64_t padded) {
    REAL *copy = calloc((size_t)(count * padded + LANES), sizeof(REAL));
    for (int64_t i = 0; copy && i < count; i++) memcpy(copy + i * padded, rows + i * width, (size_t)width * sizeof(REAL));
    return copy;
}

/* alpha [entries, heads] and signs [entries, sign bytes] are both NULL where no backward follows. 1: memory ran out. */
int TRISECT(OF(trisect_edges_attend))(const OF(edges) * p, const REAL *x, const REAL *target, const REAL *attention,
                                      REAL *out, REAL *alpha, uint8_t *signs, int threads) {
    int64_t width = p->heads * p->channels, padded = (width + LANES - 1) / LANES * LANES;
    int64_t stride = OF(stride_of)(p->heads);
    REAL *weight = OF(padded_copy)(p->weight, p->edge_channels, width, padded);
    REAL *att = OF(padded_copy)(attention, 1, width, padded);
    int failed = !weight || !att;
    int packed = OF(heads_a_vector)(p->heads, p->channels);
    if (!failed) {
#pragma omp parallel num_threads(threads) reduction(| : failed)
        {
            REAL *scratch = calloc((size_t)(CHUNK * stride + 4 * (stride + LANES) + 2 * padded + LANES), sizeof(REAL));
            failed |= !scratch;
#pragma omp for schedule(dynamic, 8)
            for (int64_t row = 0; row < p->rows; row++) {
                if (!scratch) continue;
#define CALL(n) OF(attend_row)(p, n, row, x, target, weight, att, padded, out, alpha, signs, scratch)
                BY_HEADS(packed, CALL)
#undef CALL
            }
            free(scratch);
        }
    }
    free(weight);
    free(att);
    return failed;
}

/* sums += u and, for `deep` features of an edge from `edge` on, totals[d] += e_d u, over a chunk's entries, where u is
 * value(entry) where the sign is set and slope times that elsewhere. For one vector of features. */
INLINE void OF(sum_deep)(const OF(edges) * p, const int packed, const int deep, int64_t count, const REAL *features,
                         const uint8_t *signs, int64_t bytes, const REAL *values, int64_t stride, VEC same,
                         const int shared, REAL slope, int64_t f, REAL *sums, REAL *totals, int64_t padded) {
    VEC u_sum = OF(fill)(0), total[8], slopes = OF(fill)(slope);
    if (sums) u_sum = OF(load)(sums);
#pragma GCC unroll 8
    for (int d = 0; d < deep; d++) total[d] = OF(load)(totals + d * padded);
    for (int64_t e = 0; e < count; e++) {
        VEC value = shared ? same : OF(coefficient)(p, packed, values + e * stride, f);
        VEC u = OF(choose)(OF(above)(signs[e * bytes]), value, value * slopes);
        u_sum += u;
        const REAL *edge = features + e * p->edge_channels;
#pragma GCC unroll 8
        for (int d = 0; d < deep; d++) total[d] += u * edge[d];
    }
    if (sums) OF(store)(sums, u_sum);
#pragma GCC unroll 8
    for (int d = 0; d < deep; d++) OF(store)(totals + d * padded, total[d]);
}

/* The same for all features of an edge and one vector of features of a row. */
INLINE void OF(sum_signed)(const OF(edges) * p, const int packed, int64_t count, int64_t k, const uint8_t *signs,
                           int64_t bytes, const REAL *values, int64_t stride, VEC same, const int shared, REAL slope,
                           int64_t f, REAL *sums, REAL *totals, int64_t padded) {
    const REAL *features = p->features + k * p->edge_channels;
    int64_t d = 0, deep = p->edge_channels;
#define SUM(n) \
    { \
        OF(sum_deep)(p, packed, n, count, features + d, signs, bytes, values, stride, same, shared, slope, f, sums, \
                     totals + d * padded, padded); \
        sums = 0; \
        d += n; \
    }
    while (d + 8 <= deep) SUM(8)
    if (d + 4 <= deep) SUM(4)
    if (d + 2 <= deep) SUM(2)
    if (d < deep) SUM(1)
    if (!deep) SUM(0)
#undef SUM
}

INLINE void OF(attend_row_back)(const OF(edges) * p, const int packed, int64_t row, const REAL *x, const REAL *target,
                                const REAL *att, int64_t padded, const REAL *out, const REAL *alpha,
                                const uint8_t *signs, const REAL *d_out, REAL *pairs, REAL *d_target, REAL *d_att,
                                REAL *totals, REAL *scratch) {
    const int64_t heads = p->heads, stride = OF(stride_of)(heads);
    int64_t channels = p->channels, width = heads * channels, bytes = padded / LANES;
    REAL *values = scratch, *g = values + CHUNK * stride + LANES, *dot = g + padded, *sums = dot + heads + LANES;
    memset(sums, 0, (size_t)padded * sizeof(REAL));
    memcpy(g, d_out + row * width, (size_t)width * sizeof(REAL));
    for (int64_t h = 0; h < heads; h++) {
        dot[h] = 0;
        for (int64_t c = h * channels; c < (h + 1) * channels; c++) dot[h] += g[c] * out[row * width + c];
    }
    for (int64_t k = p->starts[row]; k < p->ends[row]; k += CHUNK) {
        int64_t count = p->ends[row] - k < CHUNK ? p->ends[row] - k : CHUNK, at = k - p->first;
        for (int64_t e = 0; e < count; e++)
            if (k + e + CHUNK < p->entries)
                OF(fetch)(x + (int64_t)(p->indices[k + e + CHUNK] - p->column_base) * width, width);
        OF(dot_chunk)(p, packed, k, count, x, g, padded, values, stride);
        for (int64_t e = 0; e < count; e++) {
            const REAL *a = alpha + (at + e) * heads;
            REAL *pair = pairs + (at + e) * 2 * heads;
            for (int64_t h = 0; h < heads; h++) {
                REAL weight = a[h], product = values[e * stride + h];
                if (p->threshold) {
                    REAL kept = OF(kept)(p, row, p->indices[k + e] - p->column_base, h);
                    product *= kept;
                    weight *= kept;
                }
                pair[h] = weight;
                pair[heads + h] = values[e * stride + h] = a[h] * (product - dot[h]);
            }
        }
        for (int64_t f = 0; f < padded; f += LANES)
            OF(sum_signed)(p, packed, count, k, signs + at * bytes + f / LANES, bytes, values, stride, OF(fill)(0), 0,
                           (REAL)p->slope, f, sums + f, totals + f, padded);
    }
    for (int64_t f = 0; f < padded; f += LANES) {
        VEC u = OF(load)(sums + f);
        OF(store_row)(d_target + row * width, f, width, u * OF(load)(att + f));
        OF(store)(d_att + f, OF(load)(d_att + f) + u * OF(load_row)(target + row * width, f, width));
    }
}

INLINE int64_t OF(position)(const OF(edges) * p, int64_t k) {
    return (p->positions ? p->positions[k] : p->long_positions[k]) - p->first;
}

INLINE void OF(attend_column_back)(const OF(edges) * p, const int packed, int64_t column, const REAL *x, const REAL *att,
                                   int64_t padded, const uint8_t *signs, const REAL *pairs, const REAL *d_out, REAL *d_x,
                                   REAL *d_att) {
    int64_t heads = p->heads, width = heads * p->channels, bytes = padded / LANES;
    VEC slope = OF(fill)((REAL)p->slope);
    enum { TILE = 4 };
    for (int64_t f = 0; f < padded; f += TILE * LANES) {
        VEC sums[TILE], us[TILE];
        int wide = padded - f < TILE * LANES ? (int)((padded - f) / LANES) : TILE;
#pragma GCC unroll 4
        for (int t = 0; t < TILE; t++) sums[t] = us[t] = OF(fill)(0);
        for (int64_t k = p->starts[column]; k < p->ends[column]; k++) {
            int64_t at = OF(position)(p, k);
            /* entries of a column lie anywhere in the arrays of entries; those beyond its end are the next column's */
            if (f == 0 && k + CHUNK < p->entries) {
                int64_t later = OF(position)(p, k + CHUNK);
                OF(fetch)(d_out + (int64_t)(p->indices[k + CHUNK] - p->column_base) * width, width);
                OF(fetch)(pairs + later * 2 * heads, 2 * heads);
                __builtin_prefetch(signs + later * bytes);
            }
            const REAL *row = d_out + (int64_t)(p->indices[k] - p->column_base) * width, *pair = pairs + at * 2 * heads;
            const uint8_t *marks = signs + at * bytes + f / LANES;
#define PART(t) \
    { \
        int64_t place = f + (t) * LANES; \
        VEC value = OF(coefficient)(p, packed, pair + heads, place); \
        sums[t] += OF(coefficient)(p, packed, pair, place) * OF(load_row)(row, place, width); \
        us[t] += OF(choose)(OF(above)(marks[t]), value, value * slope); \
    }
            if (wide == TILE) {
#pragma GCC unroll 4
                for (int t = 0; t < TILE; t++) PART(t)
            } else {
                PART(0)
                if (wide > 1) PART(1)
                if (wide > 2) PART(2)
            }
#undef PART
        }
#pragma GCC unroll 4
        for (int t = 0; t < TILE; t++) {
            int64_t place = f + t * LANES;
            if (t >= wide) continue;
            OF(store_row)(d_x + column * width, place, width, sums[t] + us[t] * OF(load)(att + place));
            OF(store)(d_att + place, OF(load)(d_att + place) + us[t] * OF(load_row)(x + column * width, place, width));
        }
    }
}

/* Cuts the rows into the pieces in which sums over all rows are taken, of as much work each, and gives how many there are:
 * a function of the problem alone. Piece k has the rows bounds[k] .. bounds[k+1]-1. */
INLINE int64_t OF(cut_pieces)(const OF(edges) * p, int64_t *bounds) {
    int64_t pieces = p->rows < 64 ? 1 : p->rows / 64 < PIECES ? p->rows / 64 : PIECES, piece = 1, total = p->rows, done = 0;
    for (int64_t row = 0; row < p->rows; row++) total += p->ends[row] - p->starts[row];
    bounds[0] = 0;
    for (int64_t row = 0; row < p->rows; row++) {
        while (piece < pieces && done >= total / pieces * piece) bounds[piece++] = row;
        done += p->ends[row] - p->starts[row] + 1;
    }
    while (piece <= pieces) bounds[piece++] = p->rows;
    return pieces;
}

/* out += the sum of the pieces, one after the other, for each of `count` rows of `width` of `padded` numbers. */
INLINE void OF(add_pieces)(const REAL *parts, int64_t pieces, int64_t distance, int64_t count, int64_t width,
                           int64_t padded, REAL *out) {
    for (int64_t piece = 0; piece < pieces; piece++)
        for (int64_t d = 0; d < count; d++)
            for (int64_t f = 0; f < width; f++) out[d * width + f] += parts[piece * distance + d * padded + f];
}

/* d_target, and into d_weight and d_attention (zeros before) what rows give; pairs [entries, 2, heads] for the columns. */
int TRISECT(OF(trisect_edges_attend_rows))(const OF(edges) * p, const REAL *x, const REAL *target, const REAL *attention,
                                           const REAL *out, const REAL *alpha, const uint8_t *signs, const REAL *d_out,
                                           REAL *pairs, REAL *d_target, REAL *d_weight, REAL *d_attention, int threads) {
    int64_t width = p->heads * p->channels, padded = (width + LANES - 1) / LANES * LANES;
    int64_t stride = OF(stride_of)(p->heads), deep = p->edge_channels ? p->edge_channels : 1;
    int64_t bounds[PIECES + 1], pieces = OF(cut_pieces)(p, bounds), distance = (deep + 1) * padded;
    REAL *att = OF(padded_copy)(attention, 1, width, padded);
    REAL *parts = calloc((size_t)(pieces * distance), sizeof(REAL));
    int failed = !att || !parts, packed = OF(heads_a_vector)(p->heads, p->channels);
    if (!failed) {
#pragma omp parallel num_threads(threads) reduction(| : failed)
        {
            REAL *scratch = calloc((size_t)(CHUNK * stride + p->heads + 2 * padded + 3 * LANES), sizeof(REAL));
            failed |= !scratch;
#pragma omp for schedule(dynamic, 1)
            for (int64_t piece = 0; piece < pieces; piece++) {
                REAL *d_att = parts + piece * distance, *totals = d_att + padded;
                for (int64_t row = bounds[piece]; row < bounds[piece + 1]; row++) {
                    if (!scratch) continue;
#define CALL(n) \
    OF(attend_row_back)(p, n, row, x, target, att, padded, out, alpha, signs, d_out, pairs, d_target, d_att, totals, \
                        scratch)
                    BY_HEADS(packed, CALL)
#undef CALL
                }
            }
            free(scratch);
        }
        OF(add_pieces)(parts, pieces, distance, 1, width, padded, d_attention);
        OF(add_pieces)(parts + padded, pieces, distance, p->edge_channels, width, padded, d_weight);
        for (int64_t d = 0; d < p->edge_channels; d++)
            for (int64_t f = 0; f < width; f++) {
                d_attention[f] += p->weight[d * width + f] * d_weight[d * width + f];
                d_weight[d * width + f] *= attention[f];
            }
    }
    free(att);
    free(parts);
    return failed;
}

/* Over the transposed matrix: d_x, and into d_attention what columns give. */
int TRISECT(OF(trisect_edges_attend_columns))(const OF(edges) * p, const REAL *x, const REAL *attention,
                                              const uint8_t *signs, const REAL *pairs, const REAL *d_out, REAL *d_x,
                                              REAL *d_attention, int threads) {
    int64_t width = p->heads * p->channels, padded = (width + LANES - 1) / LANES * LANES;
    int64_t bounds[PIECES + 1], pieces = OF(cut_pieces)(p, bounds);
    REAL *att = OF(padded_copy)(attention, 1, width, padded);
    REAL *parts = calloc((size_t)(pieces * padded), sizeof(REAL));
    int failed = !att || !parts, packed = OF(heads_a_vector)(p->heads, p->channels);
    if (!failed) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t piece = 0; piece < pieces; piece++)
            for (int64_t column = bounds[piece]; column < bounds[piece + 1]; column++) {
                REAL *d_att = parts + piece * padded;
#define CALL(n) OF(attend_column_back)(p, n, column, x, att, padded, signs, pairs, d_out, d_x, d_att)
                BY_HEADS(packed, CALL)
#undef CALL
            }
        OF(add_pieces)(parts, pieces, padded, 1, width, padded, d_attention);
    }
    free(att);
    free(parts);
    return failed;
}

INLINE void OF(relu_tile)(const OF(edges) * p, const int wide, int64_t count, const REAL *const *rows,
                          const REAL *const *edge, const REAL *base, const REAL *weight, int64_t padded, int64_t f,
                          REAL *sums, uint8_t *signs) {
    VEC z[2][GROUP], zero = OF(fill)(0);
    OF(make_z)(p, wide, rows, edge, base, weight, padded, f, z);
#pragma GCC unroll 2
    for (int t = 0; t < wide; t++) {
        if (signs) OF(keep_signs)(count, padded / LANES, f / LANES + t, z[t], signs);
        VEC sum = OF(load)(sums + f + t * LANES);
        for (int64_t e = 0; e < count; e++) sum += OF(choose)(z[t][e] > zero, z[t][e], zero);
        OF(store)(sums + f + t * LANES, sum);
    }
}

/* GINE: out_i = sum_j relu(z); signs is NULL where no backward follows. 1: memory ran out. */
int TRISECT(OF(trisect_edges_relu))(const OF(edges) * p, const REAL *x, const REAL *bias, REAL *out, uint8_t *signs,
                                    int threads) {
    int64_t width = p->heads * p->channels, padded = (width + LANES - 1) / LANES * LANES, bytes = padded / LANES;
    REAL *weight = OF(padded_copy)(p->weight, p->edge_channels, width, padded);
    REAL *base = OF(padded_copy)(bias, 1, width, padded);
    int failed = !weight || !base;
    if (!failed) {
#pragma omp parallel num_threads(threads) reduction(| : failed)
        {
            REAL *sums = calloc((size_t)padded + LANES, sizeof(REAL));
            failed |= !sums;
#pragma omp for schedule(dynamic, 8)
            for (int64_t row = 0; row < p->rows; row++) {
                if (!sums) continue;
                memset(sums, 0, (size_t)padded * sizeof(REAL));
                for (int64_t k = p->starts[row]; k < p->ends[row]; k += GROUP) {
                    const REAL *rows[GROUP], *edge[GROUP];
                    int64_t count = OF(group_of)(p, k, p->ends[row] - k, x, width, rows, edge), f = 0;
                    uint8_t *marks = signs ? signs + (k - p->first) * bytes : 0;
                    for (int64_t e = k + CHUNK; e < k + CHUNK + GROUP && e < p->entries; e++)
                        OF(fetch)(x + (int64_t)(p->indices[e] - p->column_base) * width, width);
                    for (; f + 2 * LANES <= padded; f += 2 * LANES)
                        OF(relu_tile)(p, 2, count, rows, edge, base, weight, padded, f, sums, marks);
                    if (f < padded) OF(relu_tile)(p, 1, count, rows, edge, base, weight, padded, f, sums, marks);
                }
                memcpy(out + row * width, sums, (size_t)width * sizeof(REAL));
            }
            free(sums);
        }
    }
    free(weight);
    free(base);
    return failed;
}

/* GINE: into d_weight (zeros before) what all rows give. */
int TRISECT(OF(trisect_edges_relu_rows))(const OF(edges) * p, const uint8_t *signs, const REAL *d_out, REAL *d_weight,
                                         int threads) {
    int64_t width = p->heads * p->channels, padded = (width + LANES - 1) / LANES * LANES, bytes = padded / LANES;
    if (!p->edge_channels) return 0;
    int64_t bounds[PIECES + 1], pieces = OF(cut_pieces)(p, bounds), distance = p->edge_channels * padded;
    REAL *parts = calloc((size_t)(pieces * distance), sizeof(REAL));
    if (!parts) return 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t piece = 0; piece < pieces; piece++)
        for (int64_t row = bounds[piece]; row < bounds[piece + 1]; row++) {
            int64_t k = p->starts[row], count = p->ends[row] - k;
            for (int64_t f = 0; count && f < padded; f += LANES)
                OF(sum_signed)(p, 1, count, k, signs + (k - p->first) * bytes + f / LANES, bytes, 0, 0,
                               OF(load_row)(d_out + row * width, f, width), 1, 0, f, 0, parts + piece * distance + f,
                               padded);
        }
    OF(add_pieces)(parts, pieces, distance, p->edge_channels, width, padded, d_weight);
    free(parts);
    return 0;
}

/* GINE over the transposed matrix: d_x. */
void TRISECT(OF(trisect_edges_relu_columns))(const OF(edges) * p, const uint8_t *signs, const REAL *d_out, REAL *d_x,
                                             int threads) {
    int64_t width = p->heads * p->channels, padded = (width + LANES - 1) / LANES * LANES, bytes = padded / LANES;
    VEC zero = OF(fill)(0);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8)
    for (int64_t column = 0; column < p->rows; column++)
        for (int64_t f = 0; f < padded; f += LANES) {
            VEC sum = zero;
            for (int64_t k = p->starts[column]; k < p->ends[column]; k++) {
                const REAL *row = d_out + (int64_t)(p->indices[k] - p->column_base) * width;
                uint8_t mark = signs[OF(position)(p, k) * bytes + f / LANES];
                sum += OF(choose)(OF(above)(mark), OF(load_row)(row, f, width), zero);
            }
            OF(store_row)(d_x + column * width, f, width, sum);
        }
}

#undef VEC
#undef IVEC
