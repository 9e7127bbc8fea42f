/* Shared by the files of libcuda: the door every exported call passes, contexts, and how a call answers. Private. */
#ifndef FG_DRIVER_H
#define FG_DRIVER_H
#include "cuda_abi.h"
#include "fg_cuda.h"

#define FG_EXPORT __attribute__((visibility("default")))

/* A status as CUDA's number; the text of a failure is kept for cuGetErrorString. */
CUresult fg_driver_answer(int status);
int fg_driver_enter(void); /* FG_OK once cuInit, or any call of the runtime API, has run here */
int fg_driver_context(void); /* FG_OK when the thread has a current context: fg_rt_device_get() is its device */
bool fg_driver_context_alive(const struct fg_context *context);
struct fg_context *fg_driver_primary(int device);
fg_stream_t *fg_driver_stream(CUstream handle, int *status); /* NULL with *status set to what to answer */
int fg_driver_attribute(int number); /* of the current device; 0 when there is none */

/* First line of a call: leaves the function when the driver cannot be used. */
#define FG_ENTER()                             \
    do {                                       \
        int entered = fg_driver_enter();       \
        if (__builtin_expect(entered != 0, 0)) \
            return fg_driver_answer(entered);  \
    } while (0)
/* The same for calls that need a current context. */
#define FG_ENTER_CONTEXT()                     \
    do {                                       \
        int entered = fg_driver_context();     \
        if (__builtin_expect(entered != 0, 0)) \
            return fg_driver_answer(entered);  \
    } while (0)
/* Leaves the function with `invalid value` and a text when the condition does not hold. */
#define FG_REQUIRE(condition, ...)                                                      \
    do {                                                                                \
        if (__builtin_expect(!(condition), 0))                                          \
            return fg_driver_answer(fg_rt_set_error(FG_INVALID_ARGUMENT, __VA_ARGS__)); \
    } while (0)
#endif
