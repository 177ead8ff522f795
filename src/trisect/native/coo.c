/* Lists of edges to rows of a sparse matrix, and the transpose of one.

   Edges are dealt to buckets of neighbouring rows (one pass over memory), then each bucket is sorted in cache by
   (row, column) and equal pairs are added up. Both steps are stable: sums are taken in the order of the edge list,
   whatever the number of threads. */

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

static int bits_of(int64_t n) /* to write 0 .. n-1 */
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

int TRISECT(trisect_coo_shift)(int64_t rows, int64_t records) { return bucket_shift(rows, records); }

/* The first position whose index is not in 0 .. bound-1, or -1. */
int64_t TRISECT(trisect_first_outside)(const void *array, int wide, int64_t count, int64_t bound)
{
    const int64_t block = 4096;
    for (int64_t base = 0; base < count; base += block) {
        int64_t stop = base + block < count ? base + block : count;
        int bad = 0;
        if (wide) {
            const int64_t *a = array;
            for (int64_t i = base; i < stop; i++)
                bad |= (uint64_t)a[i] >= (uint64_t)bound;
        } else {
            const int32_t *a = array;
            for (int64_t i = base; i < stop; i++)
                bad |= (uint64_t)(int64_t)a[i] >= (uint64_t)bound;
        }
        if (bad)
            for (int64_t i = base; i < stop; i++)
                if ((uint64_t)at(array, wide, i) >= (uint64_t)bound)
                    return i;
    }
    return -1;
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

/* Adds up equal (row, column) of a sorted bucket in place. A record becomes value << 32 | column; the value is a count
   or, with a load, the bits of a float. Returns how many are left; lengths[row] is set for the rows that occur. */
static int64_t merge_bucket(uint64_t *key, const float *load, int64_t n, int column_bits, int64_t *lengths, int *ones)
{
    uint64_t column_mask = ((uint64_t)1 << column_bits) - 1;
    int64_t out = 0;
    int all_one = 1;
    for (int64_t i = 0; i < n;) {
        uint64_t k = key[i];
        uint64_t value;
        if (load) {
            double sum = load[i];
            int64_t j = i + 1;
            for (; j < n && key[j] == k; j++)
                sum += load[j];
            float f = (float)sum;
            uint32_t image;
            memcpy(&image, &f, sizeof image);
            value = image;
            all_one &= f == 1.0f;
            i = j;
        } else {
            int64_t j = i + 1;
            while (j < n && key[j] == k)
                j++;
            value = (uint64_t)(j - i);
            all_one &= value == 1;
            i = j;
        }
        lengths[k >> column_bits]++;
        key[out++] = value << 32 | (k & column_mask);
    }
    if (!all_one)
        *ones = 0;
    return out;
}

/* First half of edges → rows. Row = dst, column = src; `both` adds the reverse of every edge but loops.
   Indices must be valid. Positions in `segment` and first, last are absolute; coefficient[s] multiplies the edges
   segment[s] .. segment[s+1]-1.
   keys: room for every record (last - first, twice that if both); load: same room, or NULL if nothing is weighted.
   bucket_starts: [buckets + 1]; lengths: [rows], overwritten; ones: 1 if every value is 1.
   Returns the number of merged entries, or -1 without memory. */
int64_t TRISECT(trisect_coo_sort)(const void *src, const void *dst, int wide, const float *weight, const int64_t *segment,
                         const double *coefficient, int64_t segments, int64_t first, int64_t last, int both,
                         int64_t rows, int64_t columns, int shift, uint64_t *keys, float *load, int64_t *bucket_starts,
                         int64_t *lengths, int *ones, int threads)
{
    Edges e = {src, dst, wide, weight, segment, coefficient, segments, both};
    int column_bits = bits_of(columns), row_bits = bits_of(rows);
    if (both && row_bits > column_bits)
        column_bits = row_bits;
    int64_t buckets = ((rows - 1) >> shift) + 1;
    if (threads < 1)
        threads = 1;
    int64_t *position = calloc((size_t)(threads * buckets), sizeof *position);
    if (!position)
        return -1;
    int64_t count = last - first, share = (count + threads - 1) / threads;

#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int64_t a = first + t * share, b = a + share < last ? a + share : last;
        if (a < b)
            deal_edges(&e, a, b, column_bits, shift, position + t * buckets, NULL, NULL);
    }
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
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int64_t a = first + t * share, b = a + share < last ? a + share : last;
        if (a < b)
            deal_edges(&e, a, b, column_bits, shift, position + t * buckets, keys, load);
    }
    free(position);

    int64_t total = 0;
    int failed = 0, all_one = 1;
#pragma omp parallel num_threads(threads) reduction(+ : total) reduction(| : failed) reduction(& : all_one)
    {
        uint64_t *key2 = malloc((size_t)(largest + 1) * sizeof *key2);
        uint32_t *load2 = load ? malloc((size_t)(largest + 1) * sizeof *load2) : NULL;
        failed |= !key2 || (load && !load2);
        int mine = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < buckets; b++) {
            int64_t begin = bucket_starts[b], n = bucket_starts[b + 1] - begin;
            int64_t row = b << shift, row_end = (b + 1) << shift < rows ? (b + 1) << shift : rows;
            memset(lengths + row, 0, (size_t)(row_end - row) * sizeof *lengths);
            if (failed)
                continue;
            uint32_t *part = load ? (uint32_t *)load + begin : NULL;
            sort_bucket(keys + begin, part, key2, load2, n, 0, column_bits + shift);
            total += merge_bucket(keys + begin, load ? load + begin : NULL, n, column_bits, lengths, &mine);
        }
        all_one &= mine;
        free(key2);
        free(load2);
    }
    *ones = all_one;
    return failed ? -1 : total;
}

/* Second half: the merged records to arrays of exactly the right size. values may be NULL (all one). */
void TRISECT(trisect_coo_write)(const uint64_t *keys, const int64_t *bucket_starts, const int64_t *pointers, int64_t rows,
                       int shift, int floats, int32_t *indices, float *values, int threads)
{
    int64_t buckets = ((rows - 1) >> shift) + 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t b = 0; b < buckets; b++) {
        int64_t row_end = (b + 1) << shift < rows ? (b + 1) << shift : rows;
        int64_t out = pointers[b << shift], n = pointers[row_end] - out;
        const uint64_t *key = keys + bucket_starts[b];
        for (int64_t i = 0; i < n; i++)
            indices[out + i] = (int32_t)(uint32_t)key[i];
        if (!values)
            continue;
        for (int64_t i = 0; i < n; i++) {
            uint32_t image = (uint32_t)(key[i] >> 32);
            if (floats)
                memcpy(values + out + i, &image, sizeof image);
            else
                values[out + i] = (float)image;
        }
    }
}

/* The transpose of a block (fewer than 2^31 stored entries). pointers: [columns + 1], overwritten; indices, positions:
   room for the block's entries; keys, load: scratch of the same room. Returns 0, or -1 without memory. */
int TRISECT(trisect_transpose)(const int64_t *starts, const int64_t *ends, const int32_t *columns_of, int64_t base, int64_t rows,
                      int64_t columns, int64_t entries, uint64_t *keys, uint32_t *load, int64_t *pointers,
                      int32_t *indices, int32_t *positions, int threads)
{
    int shift = bucket_shift(columns, entries), row_bits = bits_of(rows);
    int64_t buckets = ((columns - 1) >> shift) + 1;
    if (threads < 1)
        threads = 1;
    int64_t *position = calloc((size_t)(threads * buckets), sizeof *position);
    int64_t *bucket_starts = malloc((size_t)(buckets + 1) * sizeof *bucket_starts);
    int64_t *cut = malloc((size_t)(threads + 1) * sizeof *cut); /* rows dealt to threads by entries */
    if (!position || !bucket_starts || !cut) {
        free(position);
        free(bucket_starts);
        free(cut);
        return -1;
    }
    int64_t seen = 0, next = 1;
    cut[0] = 0;
    for (int64_t r = 0; r < rows; r++) {
        while (next < threads && seen >= entries / threads * next)
            cut[next++] = r;
        seen += ends[r] - starts[r];
    }
    while (next <= threads)
        cut[next++] = rows;

#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (int64_t r = cut[t]; r < cut[t + 1]; r++)
            for (int64_t k = starts[r]; k < ends[r]; k++)
                position[t * buckets + ((columns_of[k] - base) >> shift)]++;
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
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (int64_t r = cut[t]; r < cut[t + 1]; r++)
            for (int64_t k = starts[r]; k < ends[r]; k++) {
                uint64_t column = (uint64_t)(columns_of[k] - base);
                int64_t p = position[t * buckets + (int64_t)(column >> shift)]++;
                keys[p] = column << row_bits | (uint64_t)r;
                load[p] = (uint32_t)k;
            }

    /* Rows already ascend, so that a counting sort by column alone finishes a bucket. */
    pointers[columns] = sum;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t b = 0; b < buckets; b++) {
        int64_t first = b << shift, last = (b + 1) << shift < columns ? (b + 1) << shift : columns;
        int64_t begin = bucket_starts[b], end = bucket_starts[b + 1], running = begin;
        uint64_t mask = ((uint64_t)1 << row_bits) - 1;
        memset(pointers + first, 0, (size_t)(last - first) * sizeof *pointers);
        for (int64_t i = begin; i < end; i++)
            pointers[keys[i] >> row_bits]++;
        for (int64_t c = first; c < last; c++) {
            int64_t n = pointers[c];
            pointers[c] = running;
            running += n;
        }
        for (int64_t i = begin; i < end; i++) {
            int64_t p = pointers[keys[i] >> row_bits]++;
            indices[p] = (int32_t)(keys[i] & mask);
            positions[p] = (int32_t)load[i];
        }
        for (int64_t c = last - 1; c > first; c--) /* cursors back to starts */
            pointers[c] = pointers[c - 1];
        if (last > first)
            pointers[first] = begin;
    }
    free(position);
    free(bucket_starts);
    free(cut);
    return 0;
}

/* For each row the first position whose index is not below `bound`. */
void TRISECT(trisect_lower_bound)(const int32_t *indices, const int64_t *starts, const int64_t *ends, int64_t rows,
                         int64_t bound, int64_t *out, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t low = starts[r], high = ends[r];
        while (low < high) {
            int64_t middle = (low + high) >> 1;
            if (indices[middle] < bound)
                low = middle + 1;
            else
                high = middle;
        }
        out[r] = low;
    }
}

/* How many entries each row has once it holds its own column (self_start + row). */
void TRISECT(trisect_loop_lengths)(const int64_t *starts, const int64_t *ends, const int32_t *indices, int64_t rows,
                          int64_t self_column, int64_t *lengths, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t own = self_column + r;
        int found = 0;
        for (int64_t k = starts[r]; k < ends[r]; k++)
            found |= indices[k] == own;
        lengths[r] = ends[r] - starts[r] + !found;
    }
}

/* Copies the block with a loop of weight `fill` in each row that lacks one. values, out_values may be NULL (ones). */
void TRISECT(trisect_loop_write)(const int64_t *starts, const int64_t *ends, const int32_t *indices, const float *values,
                        int64_t rows, int64_t base, int64_t self_column, float fill, const int64_t *pointers,
                        int32_t *out_indices, float *out_values, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1024)
    for (int64_t r = 0; r < rows; r++) {
        int64_t own = self_column + r, out = pointers[r], k = starts[r];
        int missing = pointers[r + 1] - out > ends[r] - starts[r];
        for (; k < ends[r]; k++, out++) {
            if (missing && indices[k] > own) {
                out_indices[out] = (int32_t)(own - base);
                if (out_values)
                    out_values[out] = fill;
                out++;
                missing = 0;
            }
            out_indices[out] = (int32_t)(indices[k] - base);
            if (out_values)
                out_values[out] = values ? values[k] : 1.0f;
        }
        if (missing) {
            out_indices[out] = (int32_t)(own - base);
            if (out_values)
                out_values[out] = fill;
        }
    }
}

/* Sum of the weights of each row, in double. */
void TRISECT(trisect_row_sums)(const int64_t *starts, const int64_t *ends, const float *values, int64_t rows, double *out,
                      int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4096)
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        if (values)
            for (int64_t k = starts[r]; k < ends[r]; k++)
                sum += values[k];
        else
            sum = (double)(ends[r] - starts[r]);
        out[r] = sum;
    }
}

/* out[k] = left[row] * values[k] * right[column]; right may be NULL. out is laid out like indices. */
void TRISECT(trisect_scale)(const int64_t *starts, const int64_t *ends, const int32_t *indices, const float *values,
                   int64_t rows, int64_t base, const double *left, const double *right, float *out, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1024)
    for (int64_t r = 0; r < rows; r++) {
        double scale = left[r];
        for (int64_t k = starts[r]; k < ends[r]; k++) {
            double v = values ? scale * values[k] : scale;
            out[k] = (float)(right ? v * right[indices[k] - base] : v);
        }
    }
}
