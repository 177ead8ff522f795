/* Weighted sums, means and maxima of gathered rows: see aggregate.h. */
#include "aggregate.h"

#include <stdlib.h>

#if defined(TRISECT_LEVEL_AVX512)
#define VECTOR_BYTES 64
#elif defined(TRISECT_LEVEL_AVX2)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* Vectors of accumulators kept in registers, and in one pass over a row's entries. */
#define SMALL 8
#define WIDE 64

/* What an entry weighs: its value times the scale of its column, either of which may be missing; its value; one. */
enum { GENERAL, VALUES, ONES };

typedef float vec_f32 __attribute__((vector_size(VECTOR_BYTES)));
typedef float unaligned_f32 __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef double vec_f64 __attribute__((vector_size(VECTOR_BYTES)));
typedef double unaligned_f64 __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
typedef uint32_t vec_u32 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t unaligned_u16 __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));

INLINE vec_f32 load_bf16(const uint16_t *p) {
    return (vec_f32)(__builtin_convertvector(*(const unaligned_u16 *)p, vec_u32) << 16);
}

#define STORE float
#define ACC float
#define VEC vec_f32
#define LANES (VECTOR_BYTES / 4)
#define NAME(f) f##_f32
#define LOAD(p) (*(const unaligned_f32 *)(p))
#define TO_ACC(s) (s)
#define TO_STORE(a) (a)
#include "aggregate_sum.h"
#include "aggregate_max.h"
#undef STORE
#undef ACC
#undef VEC
#undef LANES
#undef NAME
#undef LOAD
#undef TO_ACC
#undef TO_STORE

#define STORE double
#define ACC double
#define VEC vec_f64
#define LANES (VECTOR_BYTES / 8)
#define NAME(f) f##_f64
#define LOAD(p) (*(const unaligned_f64 *)(p))
#define TO_ACC(s) (s)
#define TO_STORE(a) (a)
#include "aggregate_sum.h"
#include "aggregate_max.h"
#undef STORE
#undef ACC
#undef VEC
#undef LANES
#undef NAME
#undef LOAD
#undef TO_ACC
#undef TO_STORE

#define STORE uint16_t
#define ACC float
#define VEC vec_f32
#define LANES (VECTOR_BYTES / 4)
#define NAME(f) f##_bf16
#define LOAD(p) load_bf16(p)
#define TO_ACC(s) bf16_to_float(s)
#define TO_STORE(a) float_to_bf16(a)
#include "aggregate_sum.h"
#include "aggregate_max.h"
