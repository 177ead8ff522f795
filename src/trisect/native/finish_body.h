/* What follows a product or an aggregation, row by row: bias, relu, dropout; and its gradient.
 *
 * Included once for float and once for double, with REAL and OF(name) set. */

typedef struct {
    const REAL *bias;        /* [width], or NULL */
    int relu;                /* negative numbers: 0 stay, 1 become 0, 2 are multiplied by `scale` (then drop is 0) */
    int drop;                /* whether elements are dropped */
    uint32_t threshold;      /* an element is dropped where its random bits are below */
    REAL scale;              /* what a kept element is multiplied by */
    uint64_t key;            /* of the noise */
    const int64_t *vertices; /* [rows] ids for the noise; NULL: the row's number */
} OF(finish_t);

INLINE void OF(copy_row)(REAL *restrict to, const REAL *restrict from, int64_t width) {
    copy_narrow(to, from, width * (int64_t)sizeof(REAL), sizeof(vec_t), sizeof(REAL));
}

INLINE uint64_t OF(finish_key)(const OF(finish_t) * f, int64_t row) {
    return noise_row_key(f->key, f->vertices ? f->vertices[row] : row);
}

/* y [width] = dropout(relu(x + bias)); x and y may be the same. A NaN stays one. */
INLINE void OF(finish_row)(const OF(finish_t) * f, int64_t row, const REAL *x, REAL *y, int64_t width) {
    const REAL *bias = f->bias;
    if (bias)
        for (int64_t c = 0; c < width; c++) y[c] = x[c] + bias[c];
    else if (x != y)
        OF(copy_row)(y, x, width);
    if (f->drop) {
        uint64_t bits = OF(finish_key)(f, row);
        uint32_t low = (uint32_t)bits, high = (uint32_t)(bits >> 32), threshold = f->threshold;
        REAL scale = f->scale, least = f->relu ? 0 : -(REAL)INFINITY;
        for (int64_t c = 0; c < width; c++) {
            REAL v = y[c] < least ? least : y[c];
            y[c] = noise_bits(low, high, (uint32_t)c) < threshold ? 0 : v * scale;
        }
    } else if (f->relu == 1) {
        for (int64_t c = 0; c < width; c++) y[c] = y[c] < 0 ? 0 : y[c];
    } else if (f->relu == 2) {
        REAL slope = f->scale;
        for (int64_t c = 0; c < width; c++) y[c] = y[c] < 0 ? y[c] * slope : y[c];
    }
}

/* The same without dropout on a row that is padded to whole vectors, in place, with a bias that is padded too. */
INLINE void OF(finish_padded)(const OF(finish_t) * f, const REAL *bias, REAL *y, int64_t width) {
    const vec_t slope = OF(fill)(f->relu == 2 ? f->scale : 0), zero = OF(fill)(0);
    for (int64_t c = 0; c < width; c += LANES) {
        vec_t v = OF(load)(y + c);
        if (bias) v += OF(load)(bias + c);
        if (f->relu == 1) v = OF(choose)(v < zero, zero, v);
        if (f->relu == 2) v = OF(choose)(v < zero, v * slope, v);
        OF(store)(y + c, v);
    }
}

/* Bit c of the row is whether y[c] > 0: all that the gradient of relu and dropout needs. */
INLINE void OF(mark_row)(const REAL *y, uint8_t *bits, int64_t width) {
    int64_t c = 0;
#if IS_FLOAT && defined(__AVX2__)
    for (; c + 8 <= width; c += 8)
        bits[c >> 3] = (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(y + c), _mm256_setzero_ps(), _CMP_GT_OQ));
#endif
    for (; c < width; c += 8) {
        unsigned byte = 0;
        for (int64_t j = 0; j < 8 && c + j < width; j++) byte |= (unsigned)(y[c + j] > 0) << j;
        bits[c >> 3] = (uint8_t)byte;
    }
}

/* The gradient before relu and dropout from the one after. What was kept is told by the result `out` of the row, or by
 * `bits` from mark_row, or, without relu, by the noise. */
INLINE void OF(finish_row_gradient)(const OF(finish_t) * f, int64_t row, const REAL *out, const uint8_t *bits,
                                    const REAL *gradient, REAL *result, int64_t width) {
    REAL scale = f->drop ? f->scale : 1;
    if (f->relu == 2) {
        REAL slope = f->scale;
        for (int64_t c = 0; c < width; c++) result[c] = out[c] > 0 ? gradient[c] : gradient[c] * slope;
    } else if (f->relu && bits) {
        int64_t c = 0;
#if IS_FLOAT && defined(__AVX2__)
        const __m256i select = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256 scales = _mm256_set1_ps(scale);
        for (; c + 8 <= width; c += 8) {
            __m256i byte = _mm256_and_si256(_mm256_set1_epi32(bits[c >> 3]), select);
            __m256 keep = _mm256_castsi256_ps(_mm256_cmpeq_epi32(byte, select));
            _mm256_storeu_ps(result + c, _mm256_and_ps(keep, _mm256_mul_ps(scales, _mm256_loadu_ps(gradient + c))));
        }
#endif
        for (; c < width; c++) result[c] = (bits[c >> 3] >> (c & 7)) & 1 ? gradient[c] * scale : 0;
    } else if (f->relu) {
        for (int64_t c = 0; c < width; c++) {
            REAL scaled = gradient[c] * scale;
            result[c] = out[c] > 0 ? scaled : 0;
        }
    } else if (f->drop) {
        uint64_t key = OF(finish_key)(f, row);
        uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32), threshold = f->threshold;
        for (int64_t c = 0; c < width; c++) {
            REAL scaled = gradient[c] * scale;
            result[c] = noise_bits(low, high, (uint32_t)c) < threshold ? 0 : scaled;
        }
    } else {
        OF(copy_row)(result, gradient, width);
    }
}
