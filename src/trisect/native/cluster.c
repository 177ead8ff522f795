/* Coarsening: clusters of bounded weight by label propagation, and the graph of the clusters. Memory is linear in the
   vertices. All results are functions of the input and the seed. */

#include "neighbours.h"

#include <stdlib.h>

/* Vertices that stayed alone since the cluster that they would join is full are put together by that cluster (those of
   one hub, mostly), and those without a neighbour with each other. size: weights of clusters. */
static void join_lonely(const Graph *g, int64_t limit, const int32_t *wish, const int32_t *within, int32_t *label,
                        int64_t *size, int32_t *host)
{
    for (int64_t c = 0; c < g->n; c++)
        host[c] = -1;
    for (int64_t v = 0; v < g->n; v++) {
        if (label[v] != v || size[v] != g->weights[v] || wish[v] == (int32_t)v)
            continue;
        int32_t *slot = host + wish[v], l = *slot;
        if (l < 0 || size[l] + g->weights[v] > limit || (within && within[l] != within[v])) {
            *slot = (int32_t)v;
        } else {
            size[l] += g->weights[v];
            size[v] = 0;
            label[v] = l;
        }
    }
}

/* Each vertex, in the order of `sequence` (NULL: as they stand), takes the label whose members weigh most among its
   neighbours, unless that cluster would grow beyond `limit`; ties go to the own label, then by chance. `rounds` sweeps,
   or until fewer than n/200 vertices move. Where `within` is there, only vertices with the same number in it join.
   label: in and out, [n], each the number of a member of its cluster. Returns how many clusters, or -1 without memory. */
int64_t TRISECT(trisect_cluster_labels)(const Graph *g, const int32_t *sequence, int64_t limit, int rounds, uint32_t seed,
                                        const int32_t *within, int32_t *label)
{
    size_t n = (size_t)g->n;
    float *votes = calloc(n, sizeof *votes);
    int64_t *size = calloc(n, sizeof *size);
    int32_t *met = malloc(n * sizeof *met), *wish = malloc(n * sizeof *wish);
    int64_t clusters = -1;
    if (votes && size && met && wish) {
        for (int64_t v = 0; v < g->n; v++)
            size[label[v]] += g->weights[v];
        for (int round = 0; round < rounds; round++) {
            int64_t moved = 0;
            for (int64_t i = 0; i < g->n; i++) {
                int64_t v = sequence ? sequence[i] : i, count = 0;
                FOR_NEIGHBOURS(g, v, u, w) {
                    if (within && within[u] != within[v])
                        continue;
                    int32_t l = label[u];
                    if (votes[l] == 0.0f)
                        met[count++] = l;
                    votes[l] += w;
                }
                int32_t own = label[v], best = own, liked = own;
                float most = votes[own], wished = -1.0f;
                uint32_t luck = 0;
                for (int64_t j = 0; j < count; j++) {
                    int32_t l = met[j];
                    float got = votes[l];
                    votes[l] = 0.0f;
                    if (got > wished && l != own) {
                        wished = got;
                        liked = l;
                    }
                    if (l == own || got < most || size[l] + g->weights[v] > limit)
                        continue;
                    uint32_t drawn = got == most && best == own ? 0 : chance(seed + (uint32_t)round, (uint32_t)v, (uint32_t)l);
                    if (got > most || (best != own && drawn > luck)) {
                        most = got;
                        best = l;
                        luck = drawn;
                    }
                }
                wish[v] = count ? liked : -1;
                if (best != own) {
                    size[own] -= g->weights[v];
                    size[best] += g->weights[v];
                    label[v] = best;
                    moved++;
                }
            }
            if (moved * 200 < g->n)
                break;
        }
        /* a label is the number of a vertex that may have left: name each cluster by a member */
        for (int64_t v = 0; v < g->n; v++)
            met[v] = -1;
        for (int64_t v = 0; v < g->n; v++)
            if (met[label[v]] < 0)
                met[label[v]] = (int32_t)v;
        int32_t first = g->n ? met[label[0]] : 0; /* stands for those that met nobody */
        for (int64_t v = 0; v < g->n; v++) {
            int32_t wished = wish[v] < 0 ? first : met[wish[v]];
            wish[v] = wished < 0 ? (int32_t)v : wished;
            label[v] = met[label[v]];
            size[v] = 0;
        }
        for (int64_t v = 0; v < g->n; v++)
            size[label[v]] += g->weights[v];
        join_lonely(g, limit, wish, within, label, size, met);
        clusters = 0;
        for (int64_t v = 0; v < g->n; v++)
            clusters += label[v] == v;
    }
    free(votes);
    free(size);
    free(met);
    free(wish);
    return clusters;
}

/* The graph of `clusters` clusters: label [n] numbers them from 0, members [n] are the vertices by cluster and first
   [clusters + 1] where each begins. With indices NULL only pointers [clusters + 1] is written, and the count of entries
   returned; counting ends with -2 beyond `most`. Returns -1 without memory. */
int64_t TRISECT(trisect_cluster_contract)(const Graph *g, const int32_t *label, const int32_t *members,
                                          const int64_t *first, int64_t clusters, int64_t most, int64_t *pointers,
                                          int32_t *indices, float *values)
{
    int64_t *slot = malloc((size_t)clusters * sizeof *slot), entries = 0;
    if (!slot)
        return -1;
    for (int64_t c = 0; c < clusters; c++)
        slot[c] = -1;
    pointers[0] = 0;
    for (int64_t c = 0; c < clusters; c++) {
        int64_t begin = entries;
        for (int64_t i = first[c]; i < first[c + 1]; i++) {
            int64_t v = members[i];
            FOR_NEIGHBOURS(g, v, u, w) {
                int32_t l = label[u];
                if (l == c)
                    continue;
                if (slot[l] < begin) {
                    slot[l] = entries++;
                    if (indices) {
                        indices[slot[l]] = l;
                        values[slot[l]] = 0.0f;
                    }
                }
                if (indices)
                    values[slot[l]] += w;
            }
        }
        pointers[c + 1] = entries;
        if (!indices && entries > most) {
            entries = -2;
            break;
        }
    }
    free(slot);
    return entries;
}
