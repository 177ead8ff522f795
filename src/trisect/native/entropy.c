/* Cross entropy: see entropy_body.h, compiled here for float and for double. */
#include "kernels.h"

#include <stdlib.h>

#include "vectors.h"

/* Rows whose numerators stay in the first-level cache together. */
INLINE int64_t group_rows(int64_t classes) { return classes < 2048 ? 2048 / (classes > 0 ? classes : 1) : 1; }

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#define log_f32 logf
#include "entropy_body.h"
#undef REAL
#undef OF
#undef LANES

#define REAL double
#define OF(name) name##_f64
#define LANES (VECTOR_BYTES / 8)
#define log_f64 log
#include "entropy_body.h"
