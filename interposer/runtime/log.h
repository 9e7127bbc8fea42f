/* Private to libfakegpu_rt: what log.c needs from the fork handler. */
#ifndef FG_LOG_H
#define FG_LOG_H
#include "fg_runtime.h"

void fg_log_after_fork(void); /* child: locks may have been held by a thread that is gone */
#endif
