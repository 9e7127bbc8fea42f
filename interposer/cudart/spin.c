/* Host substitute for the kernel of torch.cuda._sleep: the stream is busy for so many cycles of the device's clock. */
#include "cudart.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static void spin(void *arg) {
    struct timespec *left = arg;
    while (nanosleep(left, left) && errno == EINTR)
        ;
    free(left);
}

static int launch_spin(const fg_launch_t *launch, void *context) {
    (void)context;
    int khz = 0;
    fg_rt_device_attribute(launch->device, 13 /* cudaDevAttrClockRate */, &khz);
    int64_t cycles = *(const int64_t *)launch->args[0];
    double seconds = cycles > 0 && khz > 0 ? (double)cycles / (1000.0 * khz) : 0.0;
    struct timespec *left = malloc(sizeof *left);
    if (!left)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a kernel");
    *left = (struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    int status = fg_rt_stream_enqueue(launch->stream, spin, left);
    if (status)
        free(left);
    return status;
}

__attribute__((constructor)) static void register_spin(void) {
    fg_rt_register_kernel("*_Sleep_cu_*spin_kernelEl", launch_spin, NULL);
}
