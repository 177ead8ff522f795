/* LSTM and GRU over all vertices and steps: see recurrent_body.h, compiled here for float and for double. */
#include "kernels.h"

#include <stdlib.h>

#include "vectors.h"

enum { LSTM = 0, GRU = 1 };

/* At most this many groups of vertices have their own sum of weight gradients; added up in order afterwards, so that
 * the result does not depend on the number of threads. */
enum { GROUPS = 128 };

/* One input or gradient of it: element (step, row, k) at data[step * step_stride + row * row_stride + k]. */
#define FRAME(REAL) \
    struct { \
        REAL *data; \
        int64_t step_stride, row_stride, width; \
    }

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#include "recurrent_body.h"
#undef REAL
#undef OF
#undef LANES

#define REAL double
#define OF(name) name##_f64
#define LANES (VECTOR_BYTES / 8)
#include "recurrent_body.h"
