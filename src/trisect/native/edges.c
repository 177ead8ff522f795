/* Messages that read the features of edges (GATv2, GINE): see edges_body.h, compiled here for float and for double. */
#include "kernels.h"

#include <stdlib.h>

/* A vector's signs must fit a byte, and heads of 8 channels are the usual ones. */
#if defined(__AVX2__)
#define VECTOR_BYTES 32
#endif
#include "vectors.h"

/* Entries that are worked on together, a multiple of GROUP: four share every load of the edges' weights. */
enum { CHUNK = 32, GROUP = 4 };

/* Sums over many edges are taken in so many pieces, whatever the number of threads. */
enum { PIECES = 64 };

#define REAL float
#define OF(name) name##_f32
#define LANES (VECTOR_BYTES / 4)
#include "attention_parts.h"
#include "edges_body.h"
#undef REAL
#undef OF
#undef LANES

#define REAL double
#define OF(name) name##_f64
#define LANES (VECTOR_BYTES / 8)
#include "attention_parts.h"
#include "edges_body.h"
