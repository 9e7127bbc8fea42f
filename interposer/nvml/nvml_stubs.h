/* What generate.py puts into stubs.c for every call that data/api/nvml.yaml lists as refused. */
#ifndef FG_NVML_STUBS_H
#define FG_NVML_STUBS_H
#include "nvml.h"

#define FG_REFUSED_NVML(name, hint)              \
    FG_EXPORT nvmlReturn_t name(void);           \
    FG_EXPORT nvmlReturn_t name(void) {          \
        (void)fg_rt_unsupported(#name, hint);    \
        return NVML_ERROR_NOT_SUPPORTED;         \
    }
#endif
