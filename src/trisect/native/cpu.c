/* Which compilations of the kernels this library has, and which of them the processor runs. */
#include "kernels.h"

int TRISECT(trisect_built)(void);
int TRISECT(trisect_built)(void) { return 1; }

#ifdef TRISECT_LEVEL_BASE
int trisect_cpu_level(void);

/* 0: base, 1: avx2, 2: avx512. */
int trisect_cpu_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) return 1;
    return 2;
#else
    return 0;
#endif
}
#endif
