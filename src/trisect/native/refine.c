/* Parts of vertices by a stream, and their refinement. Beside the graph, memory is linear in the vertices and the parts.
   Every kernel keeps a part at `limit` or below, where it was; all results are functions of the input and the seed. */

#include "neighbours.h"

#include <stdlib.h>

typedef struct {
    const Graph *g;
    int32_t *part;      /* [n] */
    int64_t *load;      /* [parts], the weight of each */
    double *links;      /* [parts], of one vertex at a time; zero between */
    int32_t *met;       /* [parts] */
    int64_t parts, limit;
} Parts;

static int open_parts(Parts *p, const Graph *g, int64_t parts, int64_t limit, int32_t *part)
{
    size_t count = (size_t)parts;
    *p = (Parts){g, part, calloc(count, sizeof *p->load), calloc(count, sizeof *p->links),
                 malloc(count * sizeof *p->met), parts, limit};
    if (!p->load || !p->links || !p->met)
        return -1;
    for (int64_t v = 0; v < g->n; v++)
        if (part[v] >= 0)
            p->load[part[v]] += g->weights[v];
    return 0;
}

static void close_parts(Parts *p)
{
    free(p->load);
    free(p->links);
    free(p->met);
}

/* What v is joined to each part by; the parts met, and how many. */
INLINE int64_t gather_links(Parts *p, int64_t v)
{
    int64_t count = 0;
    FOR_NEIGHBOURS(p->g, v, u, w) {
        int32_t q = p->part[u];
        if (q < 0)
            continue;
        if (p->links[q] == 0.0)
            p->met[count++] = q;
        p->links[q] += w;
    }
    return count;
}

static int32_t lightest(const Parts *p)
{
    int32_t best = 0;
    for (int32_t q = 1; q < p->parts; q++)
        if (p->load[q] < p->load[best])
            best = q;
    return best;
}

INLINE void move(Parts *p, int64_t v, int32_t to)
{
    if (p->part[v] >= 0)
        p->load[p->part[v]] -= p->g->weights[v];
    p->load[to] += p->g->weights[v];
    p->part[v] = to;
}

/* The part that v would best move to, or -1, and what the cut gains. Only where there is room, and among equals the
   lighter. With `anywhere` the lightest part is one to move to, too. */
INLINE int32_t best_move(Parts *p, int64_t v, int anywhere, double *gain)
{
    int64_t count = gather_links(p, v), weight = p->g->weights[v];
    int32_t own = p->part[v], best = -1;
    double kept = p->links[own], most = 0.0;
    for (int64_t j = 0; j < count; j++) {
        int32_t q = p->met[j];
        double got = p->links[q];
        p->links[q] = 0.0;
        if (q == own || p->load[q] + weight > p->limit)
            continue;
        if (best < 0 || got > most || (got == most && p->load[q] < p->load[best])) {
            best = q;
            most = got;
        }
    }
    if (best < 0 && anywhere) {
        int32_t q = lightest(p);
        if (q != own && p->load[q] + weight <= p->limit)
            best = q;
    }
    *gain = most - kept;
    return best;
}

/* Linear deterministic greedy: each vertex of `sequence` (NULL: as they stand) goes to the part with the most of its
   neighbours, times the room that is left there; without neighbours, to the lightest. One pass of the stream; a vertex
   that has a part (part >= 0) leaves it first, so that further passes improve the first one. Returns -1 without memory. */
int TRISECT(trisect_refine_stream)(const Graph *g, const int32_t *sequence, int64_t parts, int64_t limit, int32_t *part)
{
    Parts p;
    int failed = open_parts(&p, g, parts, limit, part);
    for (int64_t i = 0; !failed && i < g->n; i++) {
        int64_t v = sequence ? sequence[i] : i, weight = g->weights[v];
        if (part[v] >= 0)
            p.load[part[v]] -= weight;
        part[v] = -1;
        int64_t count = gather_links(&p, v);
        int32_t best = -1;
        double most = 0.0;
        for (int64_t j = 0; j < count; j++) {
            int32_t q = p.met[j];
            double score = p.links[q] * (double)(limit - p.load[q]);
            p.links[q] = 0.0;
            if (p.load[q] + weight <= limit && (score > most || (score == most && best >= 0 && q < best))) {
                best = q;
                most = score;
            }
        }
        move(&p, v, best < 0 ? lightest(&p) : best);
    }
    close_parts(&p);
    return failed;
}

/* Sweeps over all vertices of `sequence`: each moves where the cut gains most, or where it loses nothing and the lighter
   of the two parts becomes heavier. `rounds` of them, or until fewer than n/1000 vertices move. Returns how often a vertex
   moved, or -1 without memory. */
int64_t TRISECT(trisect_refine_sweep)(const Graph *g, const int32_t *sequence, int64_t parts, int64_t limit, int rounds,
                                      int32_t *part)
{
    Parts p;
    int64_t total = open_parts(&p, g, parts, limit, part);
    for (int round = 0; total >= 0 && round < rounds; round++) {
        int64_t moved = 0;
        for (int64_t i = 0; i < g->n; i++) {
            int64_t v = sequence ? sequence[i] : i;
            double gain;
            int32_t to = best_move(&p, v, 0, &gain);
            if (to >= 0 && (gain > 0.0 || (gain == 0.0 && p.load[to] + g->weights[v] < p.load[part[v]]))) {
                move(&p, v, to);
                moved++;
            }
        }
        total += moved;
        if (moved * 1000 < g->n)
            break;
    }
    close_parts(&p);
    return total;
}

/* A heap of vertices by what their move gains, with the position of each: -1 where it is not in it, -2 where it has
   moved and stays. Ties go by number. */
typedef struct {
    float *key;        /* [n] */
    int32_t *heap;     /* [n] */
    int32_t *position; /* [n] */
    int64_t count;
} Heap;

INLINE int above(const Heap *h, int32_t a, int32_t b) { return h->key[a] > h->key[b] || (h->key[a] == h->key[b] && a < b); }

static void settle(Heap *h, int64_t i, int32_t v)
{
    while (i > 0 && above(h, v, h->heap[(i - 1) / 2])) {
        h->heap[i] = h->heap[(i - 1) / 2];
        h->position[h->heap[i]] = (int32_t)i;
        i = (i - 1) / 2;
    }
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= h->count)
            break;
        child += child + 1 < h->count && above(h, h->heap[child + 1], h->heap[child]);
        if (!above(h, h->heap[child], v))
            break;
        h->heap[i] = h->heap[child];
        h->position[h->heap[i]] = (int32_t)i;
        i = child;
    }
    h->heap[i] = v;
    h->position[v] = (int32_t)i;
}

static void put(Heap *h, int32_t v, float key)
{
    h->key[v] = key;
    settle(h, h->position[v] < 0 ? h->count++ : h->position[v], v);
}

static void take(Heap *h, int32_t v)
{
    int64_t i = h->position[v];
    int32_t last = h->heap[--h->count];
    h->position[v] = -1;
    if (last != v)
        settle(h, i, last);
}

static int open_heap(Heap *h, int64_t n)
{
    *h = (Heap){malloc((size_t)n * sizeof *h->key), malloc((size_t)n * sizeof *h->heap),
                malloc((size_t)n * sizeof *h->position), 0};
    return h->key && h->heap && h->position ? 0 : -1;
}

static void close_heap(Heap *h)
{
    free(h->key);
    free(h->heap);
    free(h->position);
}

/* Vertices leave parts that are heavier than `limit`, those first whose move costs the cut least for its weight, until
   none is or no part has room. Returns how many moved, or -1 without memory. */
int64_t TRISECT(trisect_refine_balance)(const Graph *g, int64_t parts, int64_t limit, int32_t *part)
{
    Parts p;
    Heap h;
    int64_t moved = open_parts(&p, g, parts, limit, part);
    if (open_heap(&h, g->n))
        moved = -1;
    if (moved >= 0) {
        double gain;
        for (int64_t v = 0; v < g->n; v++) {
            h.position[v] = -1;
            if (p.load[part[v]] > limit && best_move(&p, v, 1, &gain) >= 0)
                put(&h, (int32_t)v, (float)(gain / (double)g->weights[v]));
        }
        while (h.count) {
            int32_t v = h.heap[0], to = -1;
            if (p.load[part[v]] > limit)
                to = best_move(&p, v, 1, &gain);
            if (to < 0) {
                take(&h, v);
                continue;
            }
            float key = (float)(gain / (double)g->weights[v]);
            if (key < h.key[v]) {
                put(&h, v, key);
                continue;
            }
            take(&h, v);
            move(&p, v, to);
            moved++;
        }
    }
    close_parts(&p);
    close_heap(&h);
    return moved;
}

/* The refinement of Fiduccia and Mattheyses for many parts: the vertex whose move gains most moves, even at a loss, and
   stays; its neighbours' gains are found anew; what came after the best moment is taken back. On the way a part may be
   `slack` heavier than `limit`; at the best moment none is that was not before. A pass ends `patience` moves after its best
   moment. Of neighbours with more than `widest` edges gains are not found anew. Returns what the cut
   gained in `passes` passes, or -1 without memory. */
double TRISECT(trisect_refine_moves)(const Graph *g, int64_t parts, int64_t limit, int64_t slack, int64_t patience,
                                     int64_t widest, int passes, int32_t *part)
{
    Parts p;
    Heap h;
    int32_t *log = malloc((size_t)g->n * sizeof *log), *from = malloc((size_t)g->n * sizeof *from);
    int failed = open_parts(&p, g, parts, limit + slack, part);
    failed |= open_heap(&h, g->n) | !log | !from;
    double total = failed ? -1.0 : 0.0;
    for (int pass = 0; !failed && pass < passes; pass++) {
        double gain, sum = 0.0, best = 0.0;
        int64_t moved = 0, kept = 0, heavy = 0, allowed;
        for (int64_t q = 0; q < parts; q++)
            heavy += p.load[q] > limit;
        allowed = heavy;
        h.count = 0;
        for (int64_t v = 0; v < g->n; v++) {
            h.position[v] = -1;
            if (best_move(&p, v, 0, &gain) >= 0)
                put(&h, (int32_t)v, (float)gain);
        }
        while (h.count && moved - kept < patience) {
            int32_t v = h.heap[0], to = best_move(&p, v, 0, &gain);
            if (to < 0) {
                take(&h, v);
                continue;
            }
            if ((float)gain < h.key[v]) {
                put(&h, v, (float)gain);
                continue;
            }
            take(&h, v);
            h.position[v] = -2;
            log[moved] = v;
            from[moved++] = part[v];
            heavy -= (p.load[to] > limit) + (p.load[part[v]] > limit);
            move(&p, v, to);
            heavy += (p.load[to] > limit) + (p.load[from[moved - 1]] > limit);
            sum += gain;
            if (sum > best && heavy <= allowed) {
                best = sum;
                kept = moved;
            }
            FOR_NEIGHBOURS(g, v, u, w) {
                (void)w;
                if (h.position[u] == -2 || degree_in(g, u) > widest)
                    continue;
                double other;
                if (best_move(&p, u, 0, &other) >= 0)
                    put(&h, u, (float)other);
                else if (h.position[u] >= 0)
                    take(&h, u);
            }
        }
        while (moved > kept) {
            moved--;
            move(&p, log[moved], from[moved]);
        }
        total += best;
        if (best <= 0.0)
            break;
    }
    close_parts(&p);
    close_heap(&h);
    free(log);
    free(from);
    return total;
}
