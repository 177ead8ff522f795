/* Words in memory that processes of one host share: one process publishes a count, others wait until it changes.
 *
 * A word is followed by the number of processes that sleep on it, so that publishing costs a call of the system only when
 * somebody sleeps. */
#include "kernels.h"

#include <sched.h>
#include <time.h>

#ifdef __linux__
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

INLINE void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

INLINE int64_t nanoseconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

uint32_t TRISECT(trisect_load)(const uint32_t *word);
/* Reads a word; everything that its writer wrote before it is visible afterwards. */
uint32_t TRISECT(trisect_load)(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

void TRISECT(trisect_publish)(uint32_t *word, uint32_t value);
/* Writes a word after everything that this thread wrote before, and wakes whoever sleeps on it. */
void TRISECT(trisect_publish)(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
#ifdef __linux__
    if (__atomic_load_n(word + 1, __ATOMIC_SEQ_CST)) syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
#endif
}

uint32_t TRISECT(trisect_await)(uint32_t *word, uint32_t old, int64_t spin, int yields, int64_t patience);
/* Waits until a word is not `old`, and returns what it is; `old` if that took longer than `patience` nanoseconds.
 *
 * It looks for `spin` nanoseconds without a pause, then `yields` times with others let past, and then sleeps. */
uint32_t TRISECT(trisect_await)(uint32_t *word, uint32_t old, int64_t spin, int yields, int64_t patience) {
    uint32_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (value != old) return value;
    if (spin > 0) {
        const int64_t end = nanoseconds_now() + spin;
        do {
            for (int turn = 0; turn < 16; turn++) {
                pause_briefly();
                if ((value = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != old) return value;
            }
        } while (nanoseconds_now() < end);
    }
    for (int turn = 0; turn < yields; turn++) {
        sched_yield();
        if ((value = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != old) return value;
    }
#ifdef __linux__
    __atomic_fetch_add(word + 1, 1, __ATOMIC_SEQ_CST);
    if ((value = __atomic_load_n(word, __ATOMIC_SEQ_CST)) == old) {
        const struct timespec limit = {patience / 1000000000, patience % 1000000000};
        syscall(SYS_futex, word, FUTEX_WAIT, old, &limit, NULL, 0);
        value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    }
    __atomic_fetch_sub(word + 1, 1, __ATOMIC_SEQ_CST);
#else
    const int64_t end = nanoseconds_now() + patience;
    for (int64_t sleep = 20000; (value = __atomic_load_n(word, __ATOMIC_ACQUIRE)) == old; sleep *= 2) {
        const int64_t left = end - nanoseconds_now();
        if (left <= 0) break;
        const int64_t longest = sleep < 2000000 ? sleep : 2000000;
        const struct timespec nap = {0, left < longest ? left : longest};
        nanosleep(&nap, NULL);
    }
#endif
    return value;
}

void TRISECT(trisect_put)(char *record, const char *header, const char *from, int64_t bytes, uint32_t *word,
                          uint32_t value);
/* Writes a record, its 64 bytes of header and then `bytes` more, and publishes it. */
void TRISECT(trisect_put)(char *record, const char *header, const char *from, int64_t bytes, uint32_t *word,
                          uint32_t value) {
    memcpy(record, header, 64);
    if (bytes) memcpy(record + 64, from, (size_t)bytes);
    TRISECT(trisect_publish)(word, value);
}

void TRISECT(trisect_put_rows)(char *record, const char *header, const char *from, int64_t stride,
                               const int64_t *which, int64_t rows, int64_t bytes, uint32_t *word, uint32_t value);
/* The same with some rows of a matrix, of `bytes` bytes each and `stride` bytes apart. */
void TRISECT(trisect_put_rows)(char *record, const char *header, const char *from, int64_t stride,
                               const int64_t *which, int64_t rows, int64_t bytes, uint32_t *word, uint32_t value) {
    memcpy(record, header, 64);
    char *to = record + 64;
    for (int64_t row = 0; row < rows; row++, to += bytes) memcpy(to, from + which[row] * stride, (size_t)bytes);
    TRISECT(trisect_publish)(word, value);
}
