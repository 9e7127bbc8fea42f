/* Private to libfakegpu_rt: registration for the child side of a fork. */
#ifndef FG_FORK_H
#define FG_FORK_H
#include "fg_runtime.h"

#define FG_FORK_HANDLERS 8

/* Call before creating state that a child must not use (threads, arenas, sockets). */
void fg_fork_arm(void);
/* fn runs in a forked child of an armed process, on its only thread: close descriptors, reset locks, nothing more. */
int fg_fork_on_child(void (*fn)(void));
/* FG_OK, or FG_FORKED with the error text set */
int fg_fork_check(void);
#endif
