/* What the attention kernels share, for one element type (REAL, OF(name), LANES are set by the file that includes it):
 * weighted sums of gathered rows, and the layout of coefficients of several heads. */

#ifndef BY_HEADS
#define BY_HEADS(packed, call) \
    switch (packed) { \
    case 1: call(1); break; \
    case 2: call(2); break; \
    case 4: call(4); break; \
    case 8: call(8); break; \
    default: call(0); break; \
    }

/* The channels of each of `packed` heads that share a vector; more than it has lanes never do. */
#define SHARED(packed) ((packed) > 1 && (packed) <= LANES ? LANES / (packed) : 1)
#endif

#define VEC OF(vec)

/* sums[f] += sum_e a[e][head of f] * x[index[e]][f], and the same with the coefficients b, for one tile of vectors. */
INLINE void OF(gather_tile)(const int wide, int64_t count, const int32_t *index, const REAL *x, int64_t width,
                            int64_t channels, int64_t offset, const REAL *a, const REAL *b, int64_t stride, const int both,
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
            s[i] += z * a[e * stride + head[i]];
            if (both) t[i] += z * b[e * stride + head[i]];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < wide; i++) {
        OF(store)(sums_a + offset + i * LANES, s[i]);
        if (both) OF(store)(sums_b + offset + i * LANES, t[i]);
    }
}

/* How the heads of a row lie in vectors of features: so many whole ones in each; 1: none shares a vector with another; 0:
 * a vector may hold parts of several. */
INLINE int OF(heads_a_vector)(int64_t heads, int64_t channels) {
    if (heads == 1 || channels % LANES == 0) return 1;
    return LANES % channels == 0 && heads % (LANES / channels) == 0 ? (int)(LANES / channels) : 0;
}

/* A number of each of `packed` heads, in all lanes of the head. */
INLINE VEC OF(spread_heads)(const int packed, const REAL *heads) {
    VEC few = OF(fill)(0), result;
    memcpy(&few, heads, (size_t)(packed <= LANES ? packed : LANES) * sizeof(REAL));
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) result[i] = few[i / SHARED(packed)];
    return result;
}

/* The sums over the lanes of each of `packed` heads. */
INLINE void OF(sum_heads)(const int packed, VEC x, REAL *sums) {
    VEC other, few;
#pragma GCC unroll 4
    for (int bit = 0; bit < 4; bit++) {
        if (1 << bit >= SHARED(packed)) continue;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) other[i] = x[i ^ (1 << bit)];
        x += other;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) few[i] = x[i * SHARED(packed) % LANES];
    memcpy(sums, &few, (size_t)(packed <= LANES ? packed : LANES) * sizeof(REAL));
}

INLINE void OF(gather_packed)(const int packed, int64_t count, const int32_t *index, const REAL *x, int64_t width,
                              int64_t stride, const REAL *a, const REAL *b, const int both, REAL *sums_a, REAL *sums_b) {
    for (int64_t f = 0; f < width; f += LANES) {
        VEC s = OF(load)(sums_a + f), t = both ? OF(load)(sums_b + f) : OF(fill)(0);
        for (int64_t e = 0; e < count; e++) {
            VEC z = OF(load)(x + index[e] * width + f);
            s += z * OF(spread_heads)(packed, a + e * stride + f / SHARED(packed));
            if (both) t += z * OF(spread_heads)(packed, b + e * stride + f / SHARED(packed));
        }
        OF(store)(sums_a + f, s);
        if (both) OF(store)(sums_b + f, t);
    }
}

INLINE void OF(gather_chunk)(int64_t count, const int32_t *index, const REAL *x, int64_t heads, int64_t channels,
                             int64_t stride, const REAL *a, const REAL *b, const int both, REAL *sums_a, REAL *sums_b) {
    int64_t width = heads * channels, f = 0;
    int packed = OF(heads_a_vector)(heads, channels);
    if (packed == 1) {
        for (; f + 4 * LANES <= width; f += 4 * LANES)
            OF(gather_tile)(4, count, index, x, width, channels, f, a, b, stride, both, sums_a, sums_b);
        if (f + 2 * LANES <= width) {
            OF(gather_tile)(2, count, index, x, width, channels, f, a, b, stride, both, sums_a, sums_b);
            f += 2 * LANES;
        }
        if (f + LANES <= width) {
            OF(gather_tile)(1, count, index, x, width, channels, f, a, b, stride, both, sums_a, sums_b);
            f += LANES;
        }
        for (int64_t e = 0; e < count; e++)
            for (int64_t k = f; k < width; k++) {
                sums_a[k] += a[e * stride] * x[index[e] * width + k];
                if (both) sums_b[k] += b[e * stride] * x[index[e] * width + k];
            }
        return;
    }
#define GATHER(n) \
    case n: OF(gather_packed)(n, count, index, x, width, stride, a, b, both, sums_a, sums_b); return
    switch (packed) {
        GATHER(2);
        GATHER(4);
        GATHER(8);
    }
#undef GATHER
    for (int64_t e = 0; e < count; e++)
        for (int64_t head = 0; head < heads; head++) {
            const REAL *row = x + index[e] * width + head * channels;
            REAL p = a[e * stride + head], q = both ? b[e * stride + head] : 0;
            for (int64_t k = 0; k < channels; k++) {
                sums_a[head * channels + k] += p * row[k];
                if (both) sums_b[head * channels + k] += q * row[k];
            }
        }
}

/* Out of line: inlined into every number of heads it only lengthens the compilation. */
static __attribute__((noinline)) void OF(gather_one)(int64_t count, const int32_t *index, const REAL *x, int64_t heads,
                                                     int64_t channels, int64_t stride, const REAL *a, REAL *sums_a) {
    OF(gather_chunk)(count, index, x, heads, channels, stride, a, 0, 0, sums_a, 0);
}

INLINE void OF(fetch)(const REAL *row, int64_t width) {
    for (int64_t k = 0; k < width; k += 64 / (int64_t)sizeof(REAL)) __builtin_prefetch(row + k);
}

/* Coefficients of a chunk stand one entry after the other, `stride` apart: the heads, padded so that either a vector holds
 * whole entries or an entry whole vectors. A number for each head is then kept as a pattern of `span` elements. */
INLINE int64_t OF(stride_of)(int64_t heads) {
    if (heads >= LANES) return (heads + LANES - 1) / LANES * LANES;
    int64_t stride = 1;
    while (stride < heads) stride *= 2;
    return stride;
}

INLINE void OF(spread)(const REAL *heads_values, int64_t heads, int64_t stride, int64_t span, REAL *pattern) {
    for (int64_t i = 0; i < span; i++) pattern[i] = i % stride < heads ? heads_values[i % stride] : 0;
}

/* The lanes of a vector that belong to entries of the chunk; the last vector may have others. */
INLINE OF(ivec) OF(valid)(int64_t at, int64_t total) {
    OF(ivec) lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    return lane < (OF(ivec)){0} + (int)(total - at > LANES ? LANES : total - at);
}

/* Copies the `heads` numbers of an entry into the chunk. */
INLINE void OF(copy_heads)(const REAL *from, int64_t heads, REAL *to) {
    for (int64_t h = 0; h < heads; h++) to[h] = from[h];
}

/* Fills what the last vector has beyond the chunk with its first entry, which changes no maximum. */
INLINE void OF(pad)(REAL *values, int64_t total, int64_t stride) {
    if (stride < LANES)
        for (int64_t i = total; i % LANES; i++) values[i] = values[i % stride];
}

#undef VEC
