/* Attention over the entries of a sparse matrix (GAT): see attention_body.h, compiled here for float and for double. */
#include "kernels.h"

#include <stdlib.h>

/* Heads of 8 channels are the usual ones: wider vectors than that would have to be split. */
#if defined(__AVX2__)
#define VECTOR_BYTES 32
#endif
#include "vectors.h"

/* Entries whose coefficients are made together, before their rows are read. */
enum { CHUNK = 32 };

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#include "attention_parts.h"
#include "attention_body.h"
#undef REAL
#undef OF
#undef LANES

#define REAL double
#define OF(name) name##_f64
#define LANES (VECTOR_BYTES / 8)
#include "attention_parts.h"
#include "attention_body.h"
