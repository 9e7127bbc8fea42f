/* Shared by the files of libnvidia-ml: the door every exported call passes. Private. */
#ifndef FG_NVML_H
#define FG_NVML_H
#include "fg_cuda.h"
#include "nvml_abi.h"

#define MOST_PROCESSES 256 /* listed for one device */
#define FG_EXPORT __attribute__((visibility("default")))

nvmlReturn_t fg_nvml_ready(void);                     /* NVML_SUCCESS between nvmlInit and the last nvmlShutdown */
const fg_profile_t *fg_nvml_profile(nvmlDevice_t device); /* NULL = not a handle of ours */
int fg_nvml_index(nvmlDevice_t device);
nvmlReturn_t fg_nvml_text(const char *text, char *out, unsigned length); /* copies, or NVML_ERROR_INSUFFICIENT_SIZE */

/* First lines of a call about a device: `profile` and the place for the answer are valid afterwards. */
#define FG_DEVICE(device, out)                                 \
    nvmlReturn_t ready = fg_nvml_ready();                      \
    if (ready)                                                 \
        return ready;                                          \
    const fg_profile_t *profile = fg_nvml_profile(device);     \
    if (!profile || !(out))                                    \
        return NVML_ERROR_INVALID_ARGUMENT
#endif
