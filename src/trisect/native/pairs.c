/* Scores of pairs of rows and their gradients: see pairs_body.h, compiled here for float and for double. */
#include "kernels.h"

#include "scratch.h"
#include "vectors.h"

/* The pairs of each row in ascending order: those of row r are order[starts[r]] up to order[starts[r + 1]]. */
static void sort_by_row(const int64_t *row_of, int64_t pairs, int64_t rows, int64_t *starts, int64_t *order) {
    memset(starts, 0, (size_t)(rows + 1) * sizeof *starts);
    for (int64_t p = 0; p < pairs; p++) starts[row_of[p] + 1]++;
    for (int64_t r = 0; r < rows; r++) starts[r + 1] += starts[r];
    for (int64_t p = 0; p < pairs; p++) order[starts[row_of[p]]++] = p;
    for (int64_t r = rows; r > 0; r--) starts[r] = starts[r - 1];
    starts[0] = 0;
}

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#define vec_t vec_f32
#include "pairs_body.h"
#undef REAL
#undef OF
#undef LANES
#undef vec_t

#define REAL double
#define OF(name) name##_f64
#define LANES (VECTOR_BYTES / 8)
#define vec_t vec_f64
#include "pairs_body.h"
