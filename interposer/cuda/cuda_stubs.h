/* What generate.py puts into stubs.c for every call that data/api/cuda.yaml lists as refused. */
#ifndef FG_CUDA_STUBS_H
#define FG_CUDA_STUBS_H
#include "driver.h"

#define FG_REFUSED_CUDA(name, hint)                              \
    FG_EXPORT CUresult name(void);                               \
    FG_EXPORT CUresult name(void) {                              \
        FG_ENTER();                                              \
        return fg_driver_answer(fg_rt_unsupported(#name, hint)); \
    }
#endif
