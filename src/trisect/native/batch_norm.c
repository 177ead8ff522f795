/* Batch norm by rows: sums over all rows, and rows made of them with relu and dropout behind: see batch_norm_body.h,
 * compiled here for float and for double. */
#include "kernels.h"

#include "scratch.h"
#include "vectors.h"

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#define IS_FLOAT 1
#define vec_t vec_f32
#include "finish_body.h"
#include "batch_norm_body.h"
#undef REAL
#undef OF
#undef LANES
#undef IS_FLOAT
#undef vec_t

#define REAL double
#define OF(name) name##_f64
#define LANES (VECTOR_BYTES / 8)
#define IS_FLOAT 0
#define vec_t vec_f64
#include "finish_body.h"
#include "batch_norm_body.h"
