/* Pairs of vertices that are drawn by the counter hash, and are neither loops nor among those that exist. */
#include "kernels.h"

/* Whether a code is among `codes`, which ascend: those from b << shift on begin at starts[b]. */
INLINE int is_among(const int64_t *codes, const int64_t *starts, int shift, int64_t code) {
    int64_t first = starts[code >> shift], last = starts[(code >> shift) + 1];
    while (first < last) {
        int64_t middle = first + (last - first) / 2;
        if (codes[middle] < code)
            first = middle + 1;
        else
            last = middle;
    }
    return first < starts[(code >> shift) + 1] && codes[first] == code;
}

/* src[i], dst[i] = the pair number i of the first of the streams `keys` whose pair is wanted, or else of the last. */
void TRISECT(trisect_draw_pairs)(const uint64_t *keys, int64_t tries, const int64_t *rows, int64_t size, int64_t vertices,
                                 const int64_t *codes, const int64_t *starts, int shift, int64_t count, int64_t *src,
                                 int64_t *dst, int threads);
void TRISECT(trisect_draw_pairs)(const uint64_t *keys, int64_t tries, const int64_t *rows, int64_t size, int64_t vertices,
                                 const int64_t *codes, const int64_t *starts, int shift, int64_t count, int64_t *src,
                                 int64_t *dst, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        int64_t from = 0, to = 0;
        for (int64_t t = 0; t < tries; t++) {
            uint64_t row = noise_row_key(keys[t], i);
            from = rows[((uint64_t)noise_bits((uint32_t)row, (uint32_t)(row >> 32), 0) * (uint64_t)size) >> 32];
            to = rows[((uint64_t)noise_bits((uint32_t)row, (uint32_t)(row >> 32), 1) * (uint64_t)size) >> 32];
            if (from != to && !is_among(codes, starts, shift, from * vertices + to)) break;
        }
        src[i] = from;
        dst[i] = to;
    }
}
