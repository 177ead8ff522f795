/* A graph as the partitioner's kernels read it: neighbours from one CSR matrix, or from two of which one is the transpose
 * of the other, so that the direction of an edge does not matter. `partition/kernels.py` has the same structure. */
#ifndef TRISECT_NEIGHBOURS_H
#define TRISECT_NEIGHBOURS_H

#include "kernels.h"

typedef struct {
    int64_t n;
    int64_t sides;              /* 1: the matrix is its own transpose */
    const int64_t *starts[2];   /* [n] each */
    const int64_t *ends[2];
    const int32_t *indices[2];
    const float *values[2];     /* what an edge counts; NULL: 1 */
    const int64_t *weights;     /* [n], of the vertices */
} Graph;

/* For each neighbour u of v but itself, with `w` what the edge counts, where that is positive: kernels know by a sum of
 * zero what they have not met. */
#define FOR_NEIGHBOURS(g, v, u, w)                                                                                        \
    for (int side_ = 0; side_ < (int)(g)->sides; side_++)                                                                 \
        for (int64_t k_ = (g)->starts[side_][v], end_ = (g)->ends[side_][v]; k_ < end_; k_++)                             \
            for (int32_t u = (g)->indices[side_][k_], once_ = u != (int32_t)(v); once_; once_ = 0)                        \
                for (float w = (g)->values[side_] ? (g)->values[side_][k_] : 1.0f; once_ && w > 0.0f; once_ = 0)

INLINE int64_t degree_in(const Graph *g, int64_t v) {
    int64_t degree = 0;
    for (int side = 0; side < (int)g->sides; side++)
        degree += g->ends[side][v] - g->starts[side][v];
    return degree;
}

/* A number that depends on the seed and two others, to choose among equals. */
INLINE uint32_t chance(uint32_t seed, uint32_t a, uint32_t b) {
    uint32_t x = seed ^ (a * 0x9E3779B9u) ^ (b * 0x85EBCA6Bu);
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

#endif
