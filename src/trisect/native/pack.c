/* Matrices that are mostly zero (after relu and dropout) without their zeros: a bit an element, and the others in a row.
 *
 * Bit patterns are compared, so that unpacking gives back every bit. Rows know where their values begin, so that threads
 * can share the work. */
#include "kernels.h"

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { LANES = 8 };

/* starts[i] = number of elements before row i that are not zero; returns that of all rows, or -1 as soon as it is known
 * to be above `most`. bits: [rows, (width + 7) / 8]. */
#define MARK(KIND, WORD, BYTE)                                                                                         \
    int64_t TRISECT(trisect_pack_mark_##KIND)(const WORD *x, int64_t stride, int64_t rows, int64_t width, int64_t most, \
                                              uint8_t *bits, int32_t *starts);                                         \
    int64_t TRISECT(trisect_pack_mark_##KIND)(const WORD *x, int64_t stride, int64_t rows, int64_t width, int64_t most, \
                                              uint8_t *bits, int32_t *starts) {                                        \
        const int64_t bytes = (width + LANES - 1) / LANES;                                                             \
        int64_t total = 0;                                                                                             \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            const WORD *row = x + i * stride;                                                                          \
            uint8_t *mark = bits + i * bytes;                                                                          \
            starts[i] = (int32_t)total;                                                                                \
            for (int64_t b = 0; b < width / LANES; b++) {                                                              \
                mark[b] = BYTE(row + b * LANES);                                                                       \
                total += __builtin_popcount(mark[b]);                                                                  \
            }                                                                                                          \
            if (width % LANES) {                                                                                       \
                unsigned flags = 0;                                                                                    \
                for (int64_t j = 0; j < width % LANES; j++)                                                            \
                    flags |= (unsigned)(row[width - width % LANES + j] != 0) << j;                                     \
                mark[bytes - 1] = (uint8_t)flags;                                                                      \
                total += __builtin_popcount(flags);                                                                    \
            }                                                                                                          \
            if (total > most)                                                                                          \
                return -1;                                                                                             \
        }                                                                                                              \
        starts[rows] = (int32_t)total;                                                                                 \
        return total;                                                                                                  \
    }

static inline uint8_t byte_u64(const uint64_t *x) {
    unsigned flags = 0;
    for (int j = 0; j < LANES; j++)
        flags |= (unsigned)(x[j] != 0) << j;
    return (uint8_t)flags;
}

#ifdef __AVX2__
static inline uint8_t byte_u32(const uint32_t *x) {
    const __m256i zero = _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)x), _mm256_setzero_si256());
    return (uint8_t)~_mm256_movemask_ps(_mm256_castsi256_ps(zero));
}
#else
static inline uint8_t byte_u32(const uint32_t *x) {
    unsigned flags = 0;
    for (int j = 0; j < LANES; j++)
        flags |= (unsigned)(x[j] != 0) << j;
    return (uint8_t)flags;
}
#endif

MARK(f32, uint32_t, byte_u32)
MARK(f64, uint64_t, byte_u64)

/* The marked elements of `count` from x, one after the other. */
#define SQUEEZE(WORD)                                                                                                  \
    static inline WORD *squeeze_##WORD(const WORD *x, unsigned marked, WORD *to) {                                     \
        for (; marked; marked &= marked - 1)                                                                           \
            *to++ = x[__builtin_ctz(marked)];                                                                          \
        return to;                                                                                                     \
    }                                                                                                                  \
    static inline const WORD *spread_##WORD(const WORD *from, unsigned marked, WORD *x, int count) {                   \
        for (int j = 0; j < count; j++)                                                                                \
            x[j] = (marked >> j & 1) ? *from++ : 0;                                                                    \
        return from;                                                                                                   \
    }
SQUEEZE(uint32_t)
SQUEEZE(uint64_t)

#ifdef __AVX2__
/* For each byte of marks, the lanes that are marked, in order; and for each lane, how many marked ones come before. */
static uint64_t order_of(unsigned marked) {
    uint64_t lanes = 0;
    for (int j = 0, k = 0; j < LANES; j++)
        if (marked >> j & 1)
            lanes |= (uint64_t)j << (8 * k++);
    return lanes;
}

static uint64_t rank_of(unsigned marked) {
    uint64_t lanes = 0;
    for (int j = 0, k = 0; j < LANES; j++) {
        lanes |= (uint64_t)k << (8 * j);
        k += marked >> j & 1;
    }
    return lanes;
}

static inline __m256i lanes_of(uint64_t packed) { return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)packed)); }
#endif

/* values: room for LANES elements more than there are. */
#define PACK(KIND, WORD, WIDE)                                                                                         \
    void TRISECT(trisect_pack_##KIND)(const WORD *x, int64_t stride, int64_t rows, int64_t width, const uint8_t *bits, \
                                      const int32_t *starts, WORD *values, int threads);                               \
    void TRISECT(trisect_pack_##KIND)(const WORD *x, int64_t stride, int64_t rows, int64_t width, const uint8_t *bits, \
                                      const int32_t *starts, WORD *values, int threads) {                              \
        const int64_t bytes = (width + LANES - 1) / LANES;                                                             \
        WIDE##_TABLE(order_of);                                                                                        \
        _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int64_t block = 0; block < rows;        \
                                                                               block += BLOCK) {                       \
            const int64_t end = block + BLOCK < rows ? block + BLOCK : rows;                                           \
            WORD *to = values + starts[block];                                                                         \
            /* whole vectors write beyond their end, which what follows puts right, but not the next thread's block */ \
            const WORD *limit = values + starts[end];                                                                  \
            for (int64_t i = block; i < end; i++) {                                                                    \
                const WORD *row = x + i * stride;                                                                      \
                const uint8_t *mark = bits + i * bytes;                                                                \
                for (int64_t b = 0; b < bytes; b++) {                                                                  \
                    if (WIDE && (b + 1) * LANES <= width && to + LANES <= limit)                                       \
                        to = WIDE##_SQUEEZE(row + b * LANES, mark[b], to);                                             \
                    else                                                                                               \
                        to = squeeze_##WORD(row + b * LANES, mark[b], to);                                             \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    void TRISECT(trisect_unpack_##KIND)(const WORD *values, const uint8_t *bits, const int32_t *starts, int64_t rows,  \
                                        int64_t width, WORD *x, int threads);                                          \
    void TRISECT(trisect_unpack_##KIND)(const WORD *values, const uint8_t *bits, const int32_t *starts, int64_t rows,  \
                                        int64_t width, WORD *x, int threads) {                                         \
        const int64_t bytes = (width + LANES - 1) / LANES;                                                             \
        WIDE##_TABLE(rank_of);                                                                                         \
        _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int64_t block = 0; block < rows;        \
                                                                               block += BLOCK) {                       \
            const int64_t end = block + BLOCK < rows ? block + BLOCK : rows;                                           \
            const WORD *from = values + starts[block];                                                                 \
            for (int64_t i = block; i < end; i++) {                                                                    \
                const uint8_t *mark = bits + i * bytes;                                                                \
                WORD *row = x + i * width;                                                                             \
                for (int64_t b = 0; b < bytes; b++) {                                                                  \
                    const int64_t left = width - b * LANES;                                                            \
                    if (WIDE && left >= LANES)                                                                         \
                        from = WIDE##_SPREAD(from, mark[b], row + b * LANES);                                          \
                    else                                                                                               \
                        from = spread_##WORD(from, mark[b], row + b * LANES, left < LANES ? (int)left : LANES);        \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

enum { BLOCK = 64 };

#define PLAIN 0
#define PLAIN_TABLE(function)
#define PLAIN_SQUEEZE(x, marked, to) (to)
#define PLAIN_SPREAD(from, marked, x) (from)

#ifdef __AVX2__
#define VECTOR 1
#define VECTOR_TABLE(function)                                                                                         \
    uint64_t table[256];                                                                                               \
    for (unsigned marked = 0; marked < 256; marked++)                                                                  \
    table[marked] = function(marked)
#define VECTOR_SQUEEZE(x, marked, to) squeeze_vector(x, marked, to, table)
#define VECTOR_SPREAD(from, marked, x) spread_vector(from, marked, x, table)

static inline uint32_t *squeeze_vector(const uint32_t *x, unsigned marked, uint32_t *to, const uint64_t *table) {
    const __m256i eight = _mm256_loadu_si256((const __m256i *)x);
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(eight, lanes_of(table[marked])));
    return to + __builtin_popcount(marked);
}

static inline const uint32_t *spread_vector(const uint32_t *from, unsigned marked, uint32_t *x, const uint64_t *table) {
    const __m256i eight = _mm256_loadu_si256((const __m256i *)from), lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i is = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)marked), lane), lane);
    const __m256i spread = _mm256_permutevar8x32_epi32(eight, lanes_of(table[marked]));
    _mm256_storeu_si256((__m256i *)x, _mm256_and_si256(spread, is));
    return from + __builtin_popcount(marked);
}

PACK(f32, uint32_t, VECTOR)
#else
PACK(f32, uint32_t, PLAIN)
#endif
PACK(f64, uint64_t, PLAIN)
