/* What the memory gives, as the limit beside the measured kernels (trisect bench spmm). */
#include "kernels.h"

uint64_t TRISECT(trisect_read_rows)(const uint64_t *x, const int32_t *indices, int64_t count, int64_t words,
                                    int threads);
/* Reads the rows `indices` of x, each `words` 8-byte words long, in this order, and does nothing with them but a sum. */
uint64_t TRISECT(trisect_read_rows)(const uint64_t *x, const int32_t *indices, int64_t count, int64_t words,
                                    int threads) {
    uint64_t total = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 2048) reduction(+ : total)
    for (int64_t k = 0; k < count; k++) {
        const uint64_t *ahead = x + indices[k + 16 < count ? k + 16 : count - 1] * words;
        for (int64_t w = 0; w < words; w += 8) __builtin_prefetch(ahead + w, 0, 3);
        const uint64_t *row = x + indices[k] * words;
        uint64_t sum = 0;
        for (int64_t w = 0; w < words; w++) sum += row[w];
        total += sum;
    }
    return total;
}
