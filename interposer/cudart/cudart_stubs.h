/* What generate.py puts into stubs.c for every call that data/api/cudart.yaml lists as refused. */
#ifndef FG_CUDART_STUBS_H
#define FG_CUDART_STUBS_H
#include "cudart.h"

#define FG_REFUSED_CUDART(name, hint)                         \
    FG_EXPORT cudaError_t name(void);                         \
    FG_EXPORT cudaError_t name(void) {                        \
        FG_ENTER();                                           \
        return fg_cudart_answer(fg_rt_unsupported(#name, hint)); \
    }
#endif
