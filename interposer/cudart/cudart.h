/* Shared by the files of libcudart: the door every exported call passes, and how it answers. Private. */
#ifndef FG_CUDART_H
#define FG_CUDART_H
#include "cudart_abi.h"
#include "fg_cuda.h"

#define FG_EXPORT __attribute__((visibility("default")))

/* Maps a status to CUDA's number and keeps it as the thread's last error. */
cudaError_t fg_cudart_answer(int status);
/* FG_OK when the runtime may be used here: not a forked child, configuration valid, at least one device */
int fg_cudart_enter(void);
/* The stream behind a handle; NULL with *status set to what to answer. */
fg_stream_t *fg_cudart_stream(cudaStream_t handle, int *status);
void fg_cudart_symbol_add(const void *host, const char *name, size_t bytes); /* symbol.c */

/* First line of a call: leaves the function when the runtime cannot be used. */
#define FG_ENTER()                              \
    do {                                        \
        int entered = fg_cudart_enter();        \
        if (__builtin_expect(entered != 0, 0))  \
            return fg_cudart_answer(entered);   \
    } while (0)
/* A call that takes a stream: declares `status` and the stream, or answers what is wrong with the handle */
#define WITH_STREAM(handle, name)                          \
    int status;                                            \
    FG_ENTER();                                            \
    fg_stream_t *name = fg_cudart_stream(handle, &status); \
    if (!name)                                             \
    return fg_cudart_answer(status)
/* Leaves the function with `invalid value` and a text when the condition does not hold. */
#define FG_REQUIRE(condition, ...)                                                   \
    do {                                                                             \
        if (__builtin_expect(!(condition), 0))                                       \
            return fg_cudart_answer(fg_rt_set_error(FG_INVALID_ARGUMENT, __VA_ARGS__)); \
    } while (0)
#endif
