/* Linear maps with all that follows them, forward and backward: see dense_body.h and finish_body.h, compiled here for
 * float and for double. */
#include "kernels.h"

#include "scratch.h"
#include "vectors.h"

/* Rows of a block: with 100 to 128 float columns, two blocks and a panel fit the first-level cache. */
enum { BLOCK = 32 };

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#define IS_FLOAT 1
#define vec_t vec_f32
#include "finish_body.h"
#include "dense_body.h"
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
#include "dense_body.h"
