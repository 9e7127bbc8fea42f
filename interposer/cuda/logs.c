/* The driver's log callbacks. There is no driver that logs, so a callback is kept by its handle and never called. */
#include "driver.h"

#include <stdatomic.h>

static atomic_uintptr_t next_handle = 1;

FG_EXPORT CUresult cuLogsRegisterCallback(void *callback, void *data, void **handle) {
    (void)data;
    FG_ENTER();
    FG_REQUIRE(callback && handle, "cuLogsRegisterCallback: callbackFunc or callback_out is NULL");
    *handle = (void *)atomic_fetch_add(&next_handle, 1);
    return FG_OK;
}

FG_EXPORT CUresult cuLogsUnregisterCallback(void *handle) {
    FG_ENTER();
    FG_REQUIRE((uintptr_t)handle && (uintptr_t)handle < atomic_load(&next_handle),
               "cuLogsUnregisterCallback: not a handle of cuLogsRegisterCallback");
    return FG_OK;
}
