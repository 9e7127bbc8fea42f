/* What generate.py puts into stubs.c for every call that data/api/nvml.yaml lists as refused. NVML itself answers so on
 * many GPUs, so this is told at FAKEGPU_VERBOSE=1 only.
 */
#ifndef FG_NVML_STUBS_H
#define FG_NVML_STUBS_H
#include "nvml.h"

#define FG_REFUSED_NVML(name, hint)                                                      \
    FG_EXPORT nvmlReturn_t name(void);                                                   \
    FG_EXPORT nvmlReturn_t name(void) {                                                  \
        fg_rt_log_once(FG_LOG_INFO, #name, #name " is not supported by fakegpu: " hint); \
        nvmlReturn_t ready = fg_nvml_ready();                                            \
        return ready ? ready : NVML_ERROR_NOT_SUPPORTED;                                 \
    }
#endif
