/* What the CUDA libraries share beside objects: the check at the door of every call, the translation of a status to
 * CUDA's numbers, and the answer to a call that fakegpu does not have.
 */
#include "fault.h"
#include "config.h"
#include "fg_cuda.h"
#include "fork.h"

#include <stdlib.h>
#include <string.h>

static volatile bool in_use;

bool fg_rt_cuda_in_use(void) {
    return in_use;
}

void fg_rt_cuda_mark_used(void) {
    if (in_use)
        return;
    fg_fork_arm();
    in_use = true;
}

int fg_rt_cuda_enter(void) {
    if (__builtin_expect(fg_rt_forked(), 0))
        return fg_fork_check();
    fg_rt_cuda_mark_used();
    return fg_device_failure();
}

int fg_rt_fork_check(void) {
    return fg_fork_check();
}

int fg_rt_cuda_code(int status) {
    if (status >= FG_CUDA_BASE)
        return status - FG_CUDA_BASE;
    switch (status) {
    case FG_OK: return 0;
    case FG_INVALID_ARGUMENT: return 1;
    case FG_OUT_OF_MEMORY: return 2;
    case FG_FORKED: return 3;
    case FG_SYSTEM: return 304;
    case FG_INVALID_USAGE: return 400;
    case FG_IN_PROGRESS: return 600;
    case FG_NOT_SUPPORTED: return 801;
    default: return 999;
    }
}

int fg_rt_unsupported(const char *api, const char *hint) {
    const char *policy = fg_rt_config()->unsupported_api;
    fg_rt_set_error(FG_NOT_SUPPORTED, "%s is not supported by fakegpu%s%s", api, *hint ? ": " : "", hint);
    if (!strcmp(policy, "error")) {
        fg_rt_log(FG_LOG_ERROR, "%s; FAKEGPU_UNSUPPORTED_API=error ends the program here", fg_rt_last_error());
        abort();
    }
    if (!strcmp(policy, "warn"))
        fg_rt_log_once(FG_LOG_WARN, api, "%s; it answers \"not supported\"", fg_rt_last_error());
    return FG_CUDA(801);
}
