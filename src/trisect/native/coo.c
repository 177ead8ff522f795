/* Lists of edges to rows of a sparse matrix, and the transpose of one.

   Edges are dealt to buckets of neighbouring rows (one pass over memory), then each bucket is sorted in cache by
   (row, column) and equal pairs are added up. Both steps are stable: sums are taken in the order of the edge list,
   whatever the number of threads. */

#include "records.h"

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

/* The first row of a CSR block that must not be read, or -1. `flaw` says why: 1, its entries lie outside the arrays of
   `count` entries; 2, an index is outside column_base .. column_base + columns - 1; 3, its indices descend. */
int64_t TRISECT(trisect_first_unsound)(const int64_t *starts, const int64_t *ends, const int32_t *indices, int64_t rows,
                                       int64_t count, int64_t column_base, int64_t columns, int *flaw)
{
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = starts[row], end = ends[row];
        if (start < 0 || end < start || end > count) {
            *flaw = 1;
            return row;
        }
        int outside = 0, descends = 0;
        for (int64_t k = start; k < end; k++)
            outside |= (uint64_t)((int64_t)indices[k] - column_base) >= (uint64_t)columns;
        for (int64_t k = start + 1; k < end; k++)
            descends |= indices[k] < indices[k - 1];
        if (outside || descends) {
            *flaw = outside ? 2 : 3;
            return row;
        }
    }
    return -1;
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
    int64_t largest = deal_to_buckets(&e, first, last, column_bits, shift, buckets, keys, load, bucket_starts, threads);
    if (largest < 0)
        return -1;

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
    place_buckets(position, buckets, threads, bucket_starts);
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
    pointers[columns] = bucket_starts[buckets];
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
        int has_loop = 0;
        for (int64_t k = starts[r]; k < ends[r]; k++)
            has_loop |= indices[k] == own;
        lengths[r] = ends[r] - starts[r] + !has_loop;
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

/* out[k] = left[row] * right[column] * values[k]; right may be NULL. In this order the result is exactly symmetric
   where the matrix is and left = right. out is laid out like indices. */
void TRISECT(trisect_scale)(const int64_t *starts, const int64_t *ends, const int32_t *indices, const float *values,
                   int64_t rows, int64_t base, const double *left, const double *right, float *out, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1024)
    for (int64_t r = 0; r < rows; r++) {
        double scale = left[r];
        for (int64_t k = starts[r]; k < ends[r]; k++) {
            double v = right ? scale * right[indices[k] - base] : scale;
            out[k] = (float)(values ? v * values[k] : v);
        }
    }
}
