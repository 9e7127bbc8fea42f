/* Keeps the host alive: before a large allocation it compares what the process has handed out but not touched yet
 * with what the host, or the control group the process lives in, has left, and answers "out of memory" with the
 * reason before the kernel's out-of-memory killer ends a process without one. Small allocations are only summed up.
 */
#include "config.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK_EVERY (16ull << 20) /* bytes handed out between two looks at the host */
#define RESERVE (128ull << 20)    /* never given away: the program's own memory needs room too */

uint64_t fg_memory_untouched(void); /* memory.c */

static bool read_file(const char *path, char *text, size_t bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got;
    do
        got = read(fd, text, bytes - 1);
    while (got < 0 && errno == EINTR);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* Number after `key` in a file of "key number" lines; UINT64_MAX when there is none. */
static uint64_t field(const char *path, const char *key) {
    char text[8192];
    if (!read_file(path, text, sizeof text))
        return UINT64_MAX;
    const char *at = key ? strstr(text, key) : text;
    if (!at)
        return UINT64_MAX;
    at += key ? strlen(key) : 0;
    while (*at == ' ' || *at == ':')
        at++;
    char *end;
    uint64_t number = strtoull(at, &end, 10);
    return end == at ? UINT64_MAX : number; /* "max" */
}

static uint64_t group_left(void) {
    uint64_t limit = field("/sys/fs/cgroup/memory.max", NULL);
    uint64_t current = field("/sys/fs/cgroup/memory.current", NULL);
    uint64_t cache = field("/sys/fs/cgroup/memory.stat", "inactive_file");
    if (limit == UINT64_MAX || current == UINT64_MAX) {
        limit = field("/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL);
        current = field("/sys/fs/cgroup/memory/memory.usage_in_bytes", NULL);
        cache = field("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file");
    }
    if (limit == UINT64_MAX || current == UINT64_MAX)
        return UINT64_MAX;
    if (cache != UINT64_MAX)
        current = current > cache ? current - cache : 0;
    return limit > current ? limit - current : 0;
}

/* memory lock held */
int fg_rt_memory_host_guard(uint64_t bytes) {
    static uint64_t since_check;
    since_check += bytes;
    if (since_check < CHECK_EVERY || !fg_config_private()->guard)
        return FG_OK;
    uint64_t host = field("/proc/meminfo", "MemAvailable"), group = group_left();
    host = host == UINT64_MAX ? host : host * 1024u;
    uint64_t left = group < host ? group : host, untouched = fg_memory_untouched();
    if (left != UINT64_MAX && untouched + bytes + RESERVE > left)
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "%llu MiB wanted and %llu MiB promised before, but %s has only %llu MiB "
                               "left; FAKEGPU_OOM_POLICY=device asks the device's limit only",
                               (unsigned long long)(bytes >> 20), (unsigned long long)(untouched >> 20),
                               group < host ? "the control group" : "the host", (unsigned long long)(left >> 20));
    since_check = 0;
    return FG_OK;
}
