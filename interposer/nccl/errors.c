/* Results and texts: every error leaves one line for ncclGetLastError and one at NCCL_DEBUG=WARN. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "internal.h"

static _Thread_local char last[2048];   /* of this thread */
static char process_last[2048];         /* of any thread: what ncclGetLastError answers a thread without one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

ncclResult_t fg_nccl_code(int status) {
    switch (status) {
#define CASE(name, code, result, text) case FG_##name: return (ncclResult_t)(result);
        FG_STATUS_TABLE(CASE)
#undef CASE
    default: return ncclInternalError;
    }
}

static void remember(const char *text) {
    snprintf(last, sizeof last, "%s", text);
    pthread_mutex_lock(&lock);
    snprintf(process_last, sizeof process_last, "%s", text);
    pthread_mutex_unlock(&lock);
}

/* A watchdog polls ncclCommGetAsyncError and then asks ncclGetLastError(NULL), as torch's does. */
void fg_nccl_remember(ncclComm_t comm) {
    char text[2048] = "";
    fg_rt_comm_text(comm->rt, text, sizeof text);
    if (text[0]) {
        remember(text);
    }
}

static void keep(const char *text) {
    remember(text);
    fg_nccl_print(FG_DEBUG_WARN, fg_rt_device_get(), "%s", text);
}

ncclResult_t fg_nccl_error(int status, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    keep(text);
    return fg_nccl_code(status);
}

ncclResult_t fg_nccl_result(int status) {
    if (status != FG_OK && status != FG_IN_PROGRESS) {
        keep(fg_rt_last_error());
    }
    return fg_nccl_code(status);
}

FG_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the fakegpu developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    case ncclTimeout: return "NCCL operation timed out";
    default: return "unknown result code";
    }
}
FG_NCCL_ALSO(ncclGetErrorString);

/* The communicator's own error first: it is what a watchdog asks for. */
FG_EXPORT const char *ncclGetLastError(ncclComm_t comm) {
    static _Thread_local char text[2048];
    text[0] = 0;
    if (comm && comm->magic == FG_COMM_MAGIC_BEGIN && comm->rt) {
        fg_rt_comm_text(comm->rt, text, sizeof text);
    }
    if (!text[0] && comm && comm->magic == FG_COMM_MAGIC_BEGIN && comm->refusal) {
        snprintf(text, sizeof text, "%s", comm->refusal_text);
    }
    if (!text[0] && last[0]) {
        return last;
    }
    if (!text[0]) {
        pthread_mutex_lock(&lock);
        memcpy(text, process_last, sizeof text);
        pthread_mutex_unlock(&lock);
    }
    return text;
}
FG_NCCL_ALSO(ncclGetLastError);

FG_EXPORT void ncclResetDebugInit(void) {
    fg_nccl_debug_reload();
}
FG_NCCL_ALSO(ncclResetDebugInit);

FG_EXPORT void ncclResetDebugInitInternal(void) {
    fg_nccl_debug_reload();
}
