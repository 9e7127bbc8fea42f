/* Memory and events between processes. Both kinds of handle are 64 opaque bytes made by libfakegpu_rt. */
#include "cudart.h"

FG_EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    FG_ENTER();
    FG_REQUIRE(handle && pointer, "cudaIpcGetMemHandle: a pointer is NULL");
    return fg_cudart_answer(fg_rt_ipc_export(pointer, handle));
}

FG_EXPORT cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) {
    FG_ENTER();
    FG_REQUIRE(pointer && flags == 1, "cudaIpcOpenMemHandle: flags %u: expected cudaIpcMemLazyEnablePeerAccess (1)", flags);
    return fg_cudart_answer(fg_rt_ipc_open(&handle, pointer));
}

/* As CUDA does, waits for work that may still use the memory. */
FG_EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    FG_ENTER();
    int status = fg_rt_device_sync(fg_rt_device_get());
    return fg_cudart_answer(status ? status : fg_rt_ipc_close(pointer));
}

FG_EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    FG_ENTER();
    FG_REQUIRE(handle, "cudaIpcGetEventHandle: handle is NULL");
    int status = fg_rt_event_check(event);
    return fg_cudart_answer(status ? status : fg_rt_event_export(event, handle));
}

FG_EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    FG_ENTER();
    FG_REQUIRE(event, "cudaIpcOpenEventHandle: event is NULL");
    return fg_cudart_answer(fg_rt_event_import(&handle, (fg_event_t **)event));
}
