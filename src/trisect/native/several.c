/* Several snapshots at once: see several.h. */
#include "several.h"

/* Rows in one piece of work: about 2048 entries. */
static int64_t piece_rows(int64_t entries, int64_t rows, int threads) {
    int64_t size = entries > 0 ? 2048 * rows / entries : 4096;
    if (size < 16) size = 16;
    if (size > 4096) size = 4096;
    const int64_t fair = rows / ((int64_t)threads * 8) + 1;
    return size < fair ? size : fair;
}

/* Where one matrix stands in a row that is merged: its entries, the number of the next one, and that one's column. */
struct cursor {
    const int32_t *indices;
    int64_t entry, end, base, column;
};

#define NOWHERE INT64_MAX

INLINE void advance_to(struct cursor *at, int64_t entry) {
    at->entry = entry;
    at->column = entry < at->end ? at->indices[entry] - at->base : NOWHERE;
}

INLINE void advance(struct cursor *at) { advance_to(at, at->entry + 1); }

INLINE void begin(const struct overlay_arguments *a, int64_t row, struct cursor *at, const int steps) {
    for (int g = 0; g < steps; g++) {
        at[g].indices = a->indices[g];
        at[g].base = a->bases[g];
        at[g].end = a->ends[g][row];
        advance_to(at + g, a->starts[g][row]);
    }
}

INLINE int64_t lowest(const struct cursor *at, const int steps) {
    int64_t column = at[0].column;
    for (int g = 1; g < steps; g++) column = at[g].column < column ? at[g].column : column;
    return column;
}

void TRISECT(trisect_overlay_count)(const struct overlay_arguments *a, int64_t *lengths);
/* How many different columns each row of the matrices has together. */
void TRISECT(trisect_overlay_count)(const struct overlay_arguments *a, int64_t *lengths) {
    const int steps = a->steps;
#pragma omp parallel for num_threads(a->threads) schedule(dynamic, 256)
    for (int64_t i = 0; i < a->rows; i++) {
        struct cursor at[8];
        at[0].column = NOWHERE;
        begin(a, i, at, steps);
        int64_t length = 0;
        for (int64_t column = lowest(at, steps); column != NOWHERE; column = lowest(at, steps)) {
            for (int g = 0; g < steps; g++)
                if (at[g].column == column) advance(at + g);
            length++;
        }
        lengths[i] = length;
    }
}

typedef float several_f32 __attribute__((vector_size(SEVERAL_BYTES)));
typedef float loose_f32 __attribute__((vector_size(SEVERAL_BYTES), aligned(4), may_alias));
typedef int32_t mask_f32 __attribute__((vector_size(SEVERAL_BYTES)));
typedef double several_f64 __attribute__((vector_size(SEVERAL_BYTES)));
typedef double loose_f64 __attribute__((vector_size(SEVERAL_BYTES), aligned(8), may_alias));
typedef int64_t mask_f64 __attribute__((vector_size(SEVERAL_BYTES)));

#define REAL float
#define VEC several_f32
#define MASK mask_f32
#define LOAD(p) (*(const loose_f32 *)(p))
#define NAME(f) f##_f32
#include "several_body.h"
#undef REAL
#undef VEC
#undef MASK
#undef LOAD
#undef NAME

#define REAL double
#define VEC several_f64
#define MASK mask_f64
#define LOAD(p) (*(const loose_f64 *)(p))
#define NAME(f) f##_f64
#include "several_body.h"
