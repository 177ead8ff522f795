/* Edges as records (row, column) in 64 bits: dealing them to buckets of neighbouring rows, and sorting a bucket.

   Both steps are stable, whatever the number of threads. */
#ifndef TRISECT_RECORDS_H
#define TRISECT_RECORDS_H

#include "kernels.h"

#include <stdlib.h>

#define DIGIT 8
#define BINS (1 << DIGIT)
#define MAX_BUCKETS 4096
#define BUCKET_RECORDS 16384

static inline int64_t at(const void *array, int wide, int64_t i)
{
    return wide ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static inline int bits_of(int64_t n) /* to write 0 .. n-1 */
{
    int bits = 0;
    while (bits < 62 && ((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

/* Rows r with equal r >> shift share a bucket. */
static int bucket_shift(int64_t rows, int64_t records)
{
    int64_t want = records / BUCKET_RECORDS + 1;
    if (want > MAX_BUCKETS)
        want = MAX_BUCKETS;
    int shift = 0;
    while (((rows - 1) >> shift) + 1 > want)
        shift++;
    return shift;
}

/* Stable sort of records by the key bits low .. high-1; `key2`, `load2` are scratch. The result is in key, load. */
static void sort_bucket(uint64_t *key, uint32_t *load, uint64_t *key2, uint32_t *load2, int64_t n, int low, int high)
{
    if (n < 2 || high <= low)
        return;
    uint64_t mask = (((uint64_t)1 << (high - low)) - 1) << low;
    if (n <= 32) {
        for (int64_t i = 1; i < n; i++) {
            uint64_t k = key[i];
            uint32_t w = load ? load[i] : 0;
            int64_t j = i;
            for (; j > 0 && (key[j - 1] & mask) > (k & mask); j--) {
                key[j] = key[j - 1];
                if (load)
                    load[j] = load[j - 1];
            }
            key[j] = k;
            if (load)
                load[j] = w;
        }
        return;
    }
    uint64_t *from = key, *to = key2;
    uint32_t *load_from = load, *load_to = load2;
    for (int base = low; base < high; base += DIGIT) {
        int64_t position[BINS] = {0};
        int width = high - base < DIGIT ? high - base : DIGIT;
        uint64_t digit = ((uint64_t)1 << width) - 1;
        for (int64_t i = 0; i < n; i++)
            position[(from[i] >> base) & digit]++;
        int64_t sum = 0;
        int single = 0;
        for (int b = 0; b < BINS; b++) {
            int64_t count = position[b];
            single |= count == n;
            position[b] = sum;
            sum += count;
        }
        if (single)
            continue;
        if (load) {
            for (int64_t i = 0; i < n; i++) {
                int64_t p = position[(from[i] >> base) & digit]++;
                to[p] = from[i];
                load_to[p] = load_from[i];
            }
        } else {
            for (int64_t i = 0; i < n; i++)
                to[position[(from[i] >> base) & digit]++] = from[i];
        }
        uint64_t *k = from;
        from = to;
        to = k;
        uint32_t *w = load_from;
        load_from = load_to;
        load_to = w;
    }
    if (from != key) {
        memcpy(key, from, (size_t)n * sizeof *key);
        if (load)
            memcpy(load, load_from, (size_t)n * sizeof *load);
    }
}

typedef struct {
    const void *src, *dst;
    int wide;
    const float *weight;
    const int64_t *segment;
    const double *coefficient;
    int64_t segments;
    int both;
} Edges;

/* Histogram (keys == NULL) or placement of the edges first .. last-1; `position` has one slot a bucket. */
static inline __attribute__((always_inline)) void deal(const Edges *e, int wide, int64_t first, int64_t last,
                                                        int column_bits, int shift, int64_t *position, uint64_t *keys,
                                                        float *load)
{
    int64_t part = 0, part_end = last;
    float scale = 1.0f;
    if (e->coefficient) {
        int64_t low = 0, high = e->segments; /* the segment that holds `first` */
        while (high - low > 1) {
            int64_t middle = (low + high) / 2;
            if (e->segment[middle] <= first)
                low = middle;
            else
                high = middle;
        }
        part = low;
        part_end = e->segment[part + 1];
        scale = (float)e->coefficient[part];
    }
    for (int64_t i = first; i < last; i++) {
        uint64_t column = (uint64_t)at(e->src, wide, i), row = (uint64_t)at(e->dst, wide, i);
        int again = e->both && row != column;
        if (!keys) {
            position[row >> shift]++;
            if (again)
                position[column >> shift]++;
            continue;
        }
        int64_t p = position[row >> shift]++;
        keys[p] = row << column_bits | column;
        int64_t q = -1;
        if (again) {
            q = position[column >> shift]++;
            keys[q] = column << column_bits | row;
        }
        if (load) {
            while (e->coefficient && i >= part_end) {
                part++;
                part_end = e->segment[part + 1];
                scale = (float)e->coefficient[part];
            }
            float value = e->weight ? e->weight[i] * scale : scale;
            load[p] = value;
            if (q >= 0)
                load[q] = value;
        }
    }
}

static void deal_edges(const Edges *e, int64_t first, int64_t last, int column_bits, int shift, int64_t *position,
                       uint64_t *keys, float *load)
{
    if (e->wide)
        deal(e, 1, first, last, column_bits, shift, position, keys, load);
    else
        deal(e, 0, first, last, column_bits, shift, position, keys, load);
}

/* position[thread * buckets + bucket]: how many records a thread has for a bucket → where its first goes. bucket_starts:
   [buckets + 1]. Returns the size of the largest bucket. */
static int64_t place_buckets(int64_t *position, int64_t buckets, int threads, int64_t *bucket_starts)
{
    int64_t sum = 0, largest = 0;
    for (int64_t b = 0; b < buckets; b++) {
        bucket_starts[b] = sum;
        for (int t = 0; t < threads; t++) {
            int64_t n = position[t * buckets + b];
            position[t * buckets + b] = sum;
            sum += n;
        }
        if (sum - bucket_starts[b] > largest)
            largest = sum - bucket_starts[b];
    }
    bucket_starts[buckets] = sum;
    return largest;
}

/* All records, dealt to buckets in the order of the edges. bucket_starts: [buckets + 1]. Returns the size of the largest
   bucket, or -1 without memory. */
static int64_t deal_to_buckets(const Edges *e, int64_t first, int64_t last, int column_bits, int shift, int64_t buckets,
                               uint64_t *keys, float *load, int64_t *bucket_starts, int threads)
{
    int64_t *position = calloc((size_t)(threads * buckets) + 1, sizeof *position);
    if (!position)
        return -1;
    int64_t count = last - first, each = (count + threads - 1) / threads;

#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int64_t a = first + t * each, b = a + each < last ? a + each : last;
        if (a < b)
            deal_edges(e, a, b, column_bits, shift, position + t * buckets, NULL, NULL);
    }
    const int64_t largest = place_buckets(position, buckets, threads, bucket_starts);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int64_t a = first + t * each, b = a + each < last ? a + each : last;
        if (a < b)
            deal_edges(e, a, b, column_bits, shift, position + t * buckets, keys, load);
    }
    free(position);
    return largest;
}

#endif
