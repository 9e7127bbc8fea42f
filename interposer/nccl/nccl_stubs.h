/* What generate.py puts into stubs.c for every call that data/api/nccl.yaml lists as refused. Arguments are not looked
 * at, so one shape serves them all.
 */
#ifndef FG_NCCL_STUBS_H
#define FG_NCCL_STUBS_H
#include "internal.h"

#define FG_REFUSED_NCCL(name, hint)                                                             \
    FG_EXPORT ncclResult_t name(void);                                                          \
    FG_EXPORT ncclResult_t name(void) {                                                         \
        return fg_nccl_error(FG_NOT_SUPPORTED, "%s is not supported by fakegpu: %s", #name, hint); \
    }                                                                                           \
    FG_NCCL_ALSO(name);
#endif
