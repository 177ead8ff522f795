/* Scratch memory of kernels that sum gradients of weights over groups of rows. */
#ifndef TRISECT_SCRATCH_H
#define TRISECT_SCRATCH_H

#include <stdlib.h>

/* At most this many groups of rows have their own sums of the gradients of weights. */
enum { GROUPS = 64 };

/* Of wide weights fewer groups, so that their sums take about this many bytes; ops/_products.py counts with both. */
enum { SUMS = 64 << 20, FEWEST = 8 };

static void *allocate(int64_t bytes) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, bytes > 0 ? (size_t)bytes : 64) ? NULL : memory;
}

#endif
