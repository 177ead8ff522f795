/* Vertex orders. Neighbours are read from two CSR matrices, one the transpose of the other (or the same twice), so that
   the direction of an edge does not matter. All results are functions of the input alone. */

#include "kernels.h"

#include <stdlib.h>

typedef struct {
    const int64_t *starts, *ends;
    const int32_t *indices;
} Lists;

static int64_t degree_of(const Lists *in, const Lists *out, int64_t v)
{
    int64_t degree = in->ends[v] - in->starts[v];
    return out->indices == in->indices ? degree : degree + out->ends[v] - out->starts[v];
}

/* Counting sort of vertices by degree, ascending, ties by number. */
static int by_degree(const Lists *in, const Lists *out, int64_t n, int32_t *order)
{
    int64_t most = 0;
    for (int64_t v = 0; v < n; v++) {
        int64_t d = degree_of(in, out, v);
        most = d > most ? d : most;
    }
    int64_t *offset = calloc((size_t)(most + 2), sizeof *offset);
    if (!offset)
        return -1;
    for (int64_t v = 0; v < n; v++)
        offset[degree_of(in, out, v) + 1]++;
    for (int64_t d = 0; d <= most; d++)
        offset[d + 1] += offset[d];
    for (int64_t v = 0; v < n; v++)
        order[offset[degree_of(in, out, v)]++] = (int32_t)v;
    free(offset);
    return 0;
}

/* Reverse Cuthill-McKee: breadth first from a vertex of least degree of each component, a vertex's new neighbours by
   ascending degree, all of it reversed. Returns 0, or -1 without memory. */
int TRISECT(trisect_order_rcm)(const int64_t *in_starts, const int64_t *in_ends, const int32_t *in_indices,
                               const int64_t *out_starts, const int64_t *out_ends, const int32_t *out_indices,
                               int64_t n, int32_t *order)
{
    Lists in = {in_starts, in_ends, in_indices}, out = {out_starts, out_ends, out_indices};
    int32_t *seeds = malloc((size_t)n * sizeof *seeds), *rank = malloc((size_t)n * sizeof *rank);
    uint8_t *seen = calloc((size_t)n, 1);
    int failed = !seeds || !rank || !seen || by_degree(&in, &out, n, seeds);
    if (!failed) {
        for (int64_t i = 0; i < n; i++)
            rank[seeds[i]] = (int32_t)i; /* compares like (degree, number) */
        int64_t tail = 0;
        for (int64_t s = 0; s < n; s++) {
            if (seen[seeds[s]])
                continue;
            int64_t head = tail;
            order[tail++] = seeds[s];
            seen[seeds[s]] = 1;
            while (head < tail) {
                int64_t v = order[head++], first = tail;
                for (int side = 0; side < 2; side++) {
                    const Lists *list = side ? &out : &in;
                    if (side && out.indices == in.indices)
                        break;
                    for (int64_t k = list->starts[v]; k < list->ends[v]; k++) {
                        int32_t u = list->indices[k];
                        if (!seen[u]) {
                            seen[u] = 1;
                            order[tail++] = rank[u];
                        }
                    }
                }
                /* ranks of the new ones, sorted: shell sort, short lists mostly */
                int64_t count = tail - first;
                int32_t *fresh = order + first;
                int64_t gap = 1;
                while (gap < count / 3)
                    gap = 3 * gap + 1;
                for (; gap > 0; gap /= 3)
                    for (int64_t i = gap; i < count; i++) {
                        int32_t x = fresh[i];
                        int64_t j = i;
                        for (; j >= gap && fresh[j - gap] > x; j -= gap)
                            fresh[j] = fresh[j - gap];
                        fresh[j] = x;
                    }
                for (int64_t i = 0; i < count; i++)
                    fresh[i] = seeds[fresh[i]];
            }
        }
        for (int64_t i = 0, j = n - 1; i < j; i++, j--) {
            int32_t x = order[i];
            order[i] = order[j];
            order[j] = x;
        }
    }
    free(seeds);
    free(rank);
    free(seen);
    return failed ? -1 : 0;
}

/* Label propagation with a bound on the size of a community. Each vertex, in the order of `vertices`, takes the label that
   most of its neighbours have, unless that community is full; ties go to the own label, then to the smallest. `rounds`
   sweeps, or until fewer than n/1000 vertices move. label: in and out, [n]. Returns 0, or -1 without memory. */
int TRISECT(trisect_order_labels)(const int64_t *in_starts, const int64_t *in_ends, const int32_t *in_indices,
                                  const int64_t *out_starts, const int64_t *out_ends, const int32_t *out_indices,
                                  int64_t n, const int32_t *vertices, int64_t largest, int rounds, int32_t *label)
{
    Lists in = {in_starts, in_ends, in_indices}, out = {out_starts, out_ends, out_indices};
    int32_t *votes = calloc((size_t)n, sizeof *votes), *size = calloc((size_t)n, sizeof *size);
    int32_t *met = malloc((size_t)n * sizeof *met);
    int failed = !votes || !size || !met;
    if (!failed) {
        for (int64_t v = 0; v < n; v++)
            size[label[v]]++;
        for (int round = 0; round < rounds; round++) {
            int64_t moved = 0;
            for (int64_t i = 0; i < n; i++) {
                int64_t v = vertices[i], count = 0;
                for (int side = 0; side < 2; side++) {
                    const Lists *list = side ? &out : &in;
                    if (side && out.indices == in.indices)
                        break;
                    for (int64_t k = list->starts[v]; k < list->ends[v]; k++) {
                        int32_t u = list->indices[k];
                        if (u == v)
                            continue;
                        int32_t l = label[u];
                        if (!votes[l]++)
                            met[count++] = l;
                    }
                }
                int32_t own = label[v], best = own, most = votes[own];
                for (int64_t j = 0; j < count; j++) {
                    int32_t l = met[j], got = votes[l];
                    votes[l] = 0;
                    if (l == own || size[l] >= largest)
                        continue;
                    if (got > most || (got == most && best != own && l < best)) {
                        most = got;
                        best = l;
                    }
                }
                if (best != own) {
                    size[own]--;
                    size[best]++;
                    label[v] = best;
                    moved++;
                }
            }
            if (moved * 1000 < n)
                break;
        }
    }
    free(votes);
    free(size);
    free(met);
    return failed ? -1 : 0;
}

/* How many reads of an aggregation would miss a cache that keeps what the last `window` entries read: entries whose
   column was last read longer ago, or never. Returns -1 without memory. */
int64_t TRISECT(trisect_order_misses)(const int64_t *starts, const int64_t *ends, const int32_t *indices, int64_t rows,
                                      int64_t columns, int64_t base, int64_t window)
{
    int64_t *last = malloc((size_t)columns * sizeof *last);
    if (!last)
        return -1;
    for (int64_t c = 0; c < columns; c++)
        last[c] = -1;
    int64_t now = 0, misses = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = starts[r]; k < ends[r]; k++, now++) {
            int64_t c = indices[k] - base;
            misses += last[c] < 0 || now - last[c] > window;
            last[c] = now;
        }
    free(last);
    return misses;
}
