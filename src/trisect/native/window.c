/* A sliding window over raw snapshots: a sparse matrix of counts that takes one sorted list of edges in and another out.

   An edge is the key row << bits | column; a list of them ascends, equal keys are occurrences of the same edge. Only the
   changes are looked at one by one; what lies between two of them is copied as it is, and one pass makes the values.
   With loops each row holds its own column always, with the count 0 where no event is a loop; such an entry counts 1. */

#include "records.h"

#define ROWS_AT_ONCE 2048
#define AHEAD 48

/* The ascending keys of the edges first .. last-1; `both` adds the reverse of every edge but loops. keys: room for
   last - first, twice that if both. Returns how many, or -1 without memory. */
int64_t TRISECT(trisect_window_keys)(const void *src, const void *dst, int wide, int64_t first, int64_t last, int both,
                                     int64_t rows, int bits, uint64_t *keys, int threads)
{
    Edges e = {src, dst, wide, NULL, NULL, NULL, 0, both};
    if (threads < 1)
        threads = 1;
    int shift = bucket_shift(rows, both ? 2 * (last - first) : last - first);
    int64_t buckets = ((rows - 1) >> shift) + 1;
    int64_t *starts = malloc((size_t)(buckets + 1) * sizeof *starts);
    if (!starts)
        return -1;
    int64_t largest = deal_to_buckets(&e, first, last, bits, shift, buckets, keys, NULL, starts, threads);
    int64_t total = largest < 0 ? -1 : starts[buckets];
    int failed = largest < 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        uint64_t *scratch = failed ? NULL : malloc((size_t)(largest + 1) * sizeof *scratch);
        failed |= !scratch;
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < buckets; b++)
            if (!failed)
                sort_bucket(keys + starts[b], NULL, scratch, NULL, starts[b + 1] - starts[b], 0, bits + shift);
        free(scratch);
    }
    free(starts);
    return failed ? -1 : total;
}

typedef struct {
    const uint64_t *enter, *leave;
    int64_t entering, leaving;
    int64_t at_enter, at_leave; /* where each list is read next */
} Lists;

/* An edge that enters or leaves, as the counting pass found it. */
typedef struct {
    int64_t entry; /* in the old window, doubled; odd where the edge is there */
    int32_t column;
    int32_t after; /* its new count; -1: no entry is left */
} Change;

static int64_t first_not_below(const uint64_t *keys, int64_t count, uint64_t bound)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (keys[middle] < bound)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static Lists lists_from(const uint64_t *enter, int64_t entering, const uint64_t *leave, int64_t leaving, uint64_t bound)
{
    Lists l = {enter, leave, entering, leaving, first_not_below(enter, entering, bound),
               first_not_below(leave, leaving, bound)};
    return l;
}

/* The next edge below `limit` that enters or leaves, and by how much its count changes; 0 where there is none.
   Which of the lists it comes from is as good as random: no branch depends on it. */
INLINE int next_edge(Lists *l, uint64_t limit, uint64_t *edge, int32_t *delta)
{
    uint64_t enter = l->at_enter < l->entering ? l->enter[l->at_enter] : UINT64_MAX;
    uint64_t leave = l->at_leave < l->leaving ? l->leave[l->at_leave] : UINT64_MAX;
    uint64_t key = enter < leave ? enter : leave;
    if (key >= limit)
        return 0;
    int comes = enter == key, goes = leave == key;
    int32_t change = comes - goes;
    l->at_enter += comes;
    l->at_leave += goes;
    for (; l->at_enter < l->entering && l->enter[l->at_enter] == key; l->at_enter++)
        change++;
    for (; l->at_leave < l->leaving && l->leave[l->at_leave] == key; l->at_leave++)
        change--;
    *edge = key;
    *delta = change;
    return 1;
}

/* The first position from low on whose index is not below `column`; `entries` is the length of indices. */
INLINE int64_t seek(const int32_t *indices, int64_t low, int64_t end, int32_t column, int64_t entries)
{
    if (low + 16 <= entries) {
        int below = 0;
        int32_t left = end - low < 16 ? (int32_t)(end - low) : 16;
        for (int32_t k = 0; k < 16; k++)
            below += (indices[low + k] < column) & (k < left);
        if (below < 16)
            return low + below;
        low += 16;
    }
    while (low < end) {
        int64_t middle = (low + end) / 2;
        if (indices[middle] < column)
            low = middle + 1;
        else
            end = middle;
    }
    return low;
}

/* What the next window looks like: lengths[r], and degrees[r] (the sum of each row) and *repeated (how many entries have
   a count above 1) brought up to date. changes: room for all keys; made[c]: how many of the chunk c of rows, from the
   position on that is the number of keys before the chunk. Returns -1 where an edge leaves that is not there. */
int TRISECT(trisect_window_count)(const int64_t *pointers, const int32_t *indices, const int32_t *counts, int64_t rows,
                                  const uint64_t *enter, int64_t entering, const uint64_t *leave, int64_t leaving,
                                  int bits, int loops, int64_t own, int64_t *lengths, double *degrees,
                                  int64_t *repeated, void *found_changes, int64_t *made, int threads)
{
    int64_t above = 0, entries = pointers[rows];
    int wrong = 0;
    uint64_t mask = ((uint64_t)1 << bits) - 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) reduction(+ : above) reduction(| : wrong)
    for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE) {
        int64_t last = first + ROWS_AT_ONCE < rows ? first + ROWS_AT_ONCE : rows;
        for (int64_t r = first; r < last; r++)
            lengths[r] = pointers[r + 1] - pointers[r];
        Lists l = lists_from(enter, entering, leave, leaving, (uint64_t)first << bits);
        Change *change = (Change *)found_changes + l.at_enter + l.at_leave, *begin = change;
        int64_t entry = pointers[first];
        uint64_t key;
        int32_t delta;
        while (next_edge(&l, (uint64_t)last << bits, &key, &delta)) {
            int64_t r = (int64_t)(key >> bits), start = pointers[r], end = pointers[r + 1];
            int32_t column = (int32_t)(key & mask);
            entry = seek(indices, entry > start ? entry : start, end, column, entries);
            int64_t safe = entry < entries ? entry : entries - 1;
            int exists = entries && (entry < end) & (indices[safe] == column);
            int32_t before = exists ? counts[safe] : 0, after = before + delta;
            wrong |= after < 0;
            above += (after > 1) - (before > 1);
            int virtual = loops && column == own + r;
            degrees[r] += (double)(delta + (virtual ? (after == 0) - (before == 0) : 0));
            lengths[r] += virtual ? 0 : (after > 0) - exists;
            change->entry = 2 * entry + exists;
            change->column = column;
            change->after = after > 0 || virtual ? after : -1;
            change++;
        }
        made[first / ROWS_AT_ONCE] = change - begin;
    }
    *repeated += above;
    return wrong ? -1 : 0;
}

/* out[r] = 1 / sqrt(degree) or, with `plain`, 1 / degree; 0 where the degree is 0. */
void TRISECT(trisect_window_scale)(const double *degrees, int64_t rows, int plain, double *out, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        double d = plain ? degrees[r] : sqrt(degrees[r]);
        out[r] = d > 0.0 ? 1.0 / d : 0.0;
    }
}

/* Values of the rows first .. last-1: left[row] * right[column] * count (right may be NULL), or without left
   count * unit. Where a loop stands in for none its count is 1, whatever the unit. */
static void write_values(const int64_t *pointers, const int32_t *indices, const int32_t *counts, int64_t first,
                         int64_t last, const double *left, const double *right, double unit, void *values, int wide)
{
    int64_t stop = pointers[last];
    for (int64_t r = first; r < last; r++) {
        int64_t begin = pointers[r], end = pointers[r + 1];
        if (!left) {
            for (int64_t k = begin; k < end; k++) {
                double v = counts[k] ? counts[k] * unit : 1.0;
                if (wide)
                    ((double *)values)[k] = v;
                else
                    ((float *)values)[k] = (float)v;
            }
            continue;
        }
        double scale = left[r];
        for (int64_t k = begin; k < end; k++) {
            double v = scale * (counts[k] + (counts[k] == 0));
            if (right) { /* the factors of columns lie anywhere: ask for them before they are needed */
                __builtin_prefetch(right + indices[k + AHEAD < stop ? k + AHEAD : k]);
                v = scale * right[indices[k]] * (counts[k] + (counts[k] == 0));
            }
            if (wide)
                ((double *)values)[k] = v;
            else
                ((float *)values)[k] = (float)v;
        }
    }
}

/* Values alone, of a window that stays. */
void TRISECT(trisect_window_values)(const int64_t *pointers, const int32_t *indices, const int32_t *counts, int64_t rows,
                                    const double *left, const double *right, double unit, void *values, int wide,
                                    int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE) {
        int64_t last = first + ROWS_AT_ONCE < rows ? first + ROWS_AT_ONCE : rows;
        write_values(pointers, indices, counts, first, last, left, right, unit, values, wide);
    }
}

/* Few entries as a fixed number of them where neither array ends before: a copy of a length known at compile time. */
INLINE void copy_entries(int32_t *to, const int32_t *from, int64_t count, int room)
{
    if (room && count <= 16)
        memcpy(to, from, 16 * sizeof *to);
    else if (count > 0) /* a matrix without entries has no arrays */
        memcpy(to, from, (size_t)count * sizeof *to);
}

/* The next window from the changes that the counting pass found, where new_pointers are known; with `values` also
   those. */
void TRISECT(trisect_window_write)(const int64_t *pointers, const int32_t *indices, const int32_t *counts, int64_t rows,
                                   const uint64_t *enter, int64_t entering, const uint64_t *leave, int64_t leaving,
                                   int bits, const void *found_changes, const int64_t *made, const int64_t *new_pointers,
                                   int32_t *new_indices, int32_t *new_counts, const double *left, const double *right,
                                   double unit, void *values, int wide, int threads)
{
    int64_t entries = pointers[rows];
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE) {
        int64_t last = first + ROWS_AT_ONCE < rows ? first + ROWS_AT_ONCE : rows;
        int64_t from = pointers[first], to = new_pointers[first], limit = new_pointers[last];
        Lists l = lists_from(enter, entering, leave, leaving, (uint64_t)first << bits);
        const Change *change = (const Change *)found_changes + l.at_enter + l.at_leave;
        for (int64_t c = 0; c < made[first / ROWS_AT_ONCE]; c++, change++) {
            int64_t n = (change->entry >> 1) - from;
            int room = from + 16 <= entries && to + 16 <= limit;
            copy_entries(new_indices + to, indices + from, n, room);
            copy_entries(new_counts + to, counts + from, n, room);
            from += n + (change->entry & 1);
            to += n;
            if (change->after >= 0) {
                new_indices[to] = change->column;
                new_counts[to++] = change->after;
            }
        }
        int64_t n = pointers[last] - from;
        copy_entries(new_indices + to, indices + from, n, 0);
        copy_entries(new_counts + to, counts + from, n, 0);
        if (values)
            write_values(new_pointers, new_indices, new_counts, first, last, left, right, unit, values, wide);
    }
}
