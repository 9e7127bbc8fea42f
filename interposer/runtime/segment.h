/* Private to libfakegpu_rt: opening another process's shared segment. */
#ifndef FG_SEGMENT_H
#define FG_SEGMENT_H
#include "fg_runtime.h"

/* A new descriptor of the segment behind process pid's descriptor fd; refused when its inode differs. */
int fg_segment_reopen(uint32_t pid, int fd, uint64_t inode, int *out);
#endif
