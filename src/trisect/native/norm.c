/* Layer norm with relu and dropout behind it, forward and backward: see norm_body.h, compiled here for float and for
 * double. */
#include "kernels.h"

#include "scratch.h"
#include "vectors.h"

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#define IS_FLOAT 1
#define vec_t vec_f32
#define root_f32 sqrtf
#include "finish_body.h"
#include "norm_body.h"
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
#define root_f64 sqrt
#include "finish_body.h"
#include "norm_body.h"
