/* The one way to another process's memory: /proc/PID/fd/N, checked against the inode the peer named. */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int fg_segment_reopen(uint32_t pid, int fd, uint64_t inode, int *out) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%u/fd/%d", pid, fd);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC handle: %s: %s; has process %u ended, or does it belong to another "
                               "user?", path, strerror(errno), pid);
    if (fstat(opened, &status) || status.st_ino != inode) {
        close(opened);
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC handle: %s is another segment now: the exporter has ended", path);
    }
    *out = opened;
    return FG_OK;
}
