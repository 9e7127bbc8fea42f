/* Makes a device's memory limit one for all processes that use the device. The ledger is a nameless segment of the
 * launcher (FAKEGPU_DEVICE_LEDGER, reached through /proc) with a slot per process: process id, its start time, bytes
 * per physical device. Nobody has to clean up: the slot of a process that ended is recognised and taken over, the
 * record lock around a booking is released by the kernel, the segment goes with the launcher. Without a ledger, or a
 * launcher, the limit is one per process.
 */
#include "ledger.h"
#include "config.h"
#include "device.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct slot {
    uint32_t pid; /* 0: free */
    uint32_t node;
    uint64_t start; /* of the process, in the kernel's ticks: a reused process id is told apart */
    uint64_t used[FG_MAX_DEVICES];
} slot_t;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static slot_t *slots, *mine; /* slots in use stand together at the front */
static size_t slot_count;
static int ledger = -1;

static void open_ledger(void) {
    const char *path = fg_config_private()->device_ledger;
    struct stat status;
    if (!path)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && !fstat(fd, &status) && status.st_size >= (off_t)sizeof(slot_t)) {
        void *base = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base != MAP_FAILED) {
            slots = base;
            slot_count = (size_t)status.st_size / sizeof(slot_t);
            ledger = fd;
            return;
        }
    }
    fg_rt_log(FG_LOG_WARN, "FAKEGPU_DEVICE_LEDGER=%s: not usable (%s): has the fgpu that set it ended? Memory limits count "
              "this process alone", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static bool present(void) {
    pthread_once(&opened, open_ledger);
    return slots && !fg_rt_forked();
}

static int lock_ledger(short type) {
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    while (fcntl(ledger, F_SETLKW, &whole))
        if (errno != EINTR)
            return fg_rt_set_error(FG_SYSTEM, "locking the ledger of device memory failed: %s", strerror(errno));
    return FG_OK;
}

/* Start time of a living process, 0 when it has ended (a zombie holds no memory). */
static uint64_t start_of(uint32_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *at = strrchr(text, ')'); /* the name before may hold anything */
    if (!at || strlen(at) < 3 || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; field < 22 && at; field++) /* field 22; the parenthesis ends field 2 */
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static bool alive(const slot_t *slot) {
    return slot->start && start_of(slot->pid) == slot->start;
}

static uint32_t node_of_process(void) {
    int node = fg_rt_config()->node;
    return node > 0 ? (uint32_t)node : 0;
}

/* ledger locked. This process's slot: a free one, or that of a process that ended (ours too, before an exec). */
static slot_t *claim(void) {
    uint32_t pid = (uint32_t)getpid();
    uint64_t start = start_of(pid);
    if (mine)
        return mine;
    for (size_t i = 0; i < slot_count && !mine; i++)
        if (!slots[i].pid || slots[i].pid == pid || !alive(&slots[i]))
            mine = &slots[i];
    if (mine) {
        memset(mine->used, 0, sizeof mine->used);
        mine->node = node_of_process();
        mine->start = start;
        __atomic_store_n(&mine->pid, pid, __ATOMIC_RELEASE);
    }
    return mine;
}

static uint64_t held(const slot_t *slot, int physical) {
    return slot->node == node_of_process() ? __atomic_load_n(&slot->used[physical], __ATOMIC_RELAXED) : 0;
}

static uint64_t others(int physical, bool check) {
    uint64_t sum = 0;
    for (size_t i = 0; i < slot_count && __atomic_load_n(&slots[i].pid, __ATOMIC_ACQUIRE); i++)
        if (&slots[i] != mine && held(&slots[i], physical) && (!check || alive(&slots[i])))
            sum += held(&slots[i], physical);
    return sum;
}

uint64_t fg_ledger_others(int physical) {
    return present() ? others(physical, true) : 0;
}

static int refuse(int physical, int64_t bytes, uint64_t own, uint64_t theirs, uint64_t limit) {
    if (!theirs)
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "device %d: %lld bytes wanted, %llu of %llu in use", physical,
                               (long long)bytes, (unsigned long long)own, (unsigned long long)limit);
    return fg_rt_set_error(FG_OUT_OF_MEMORY, "device %d: %lld bytes wanted, %llu of %llu in use, %llu of them by other "
                           "processes on the device", physical, (long long)bytes, (unsigned long long)(own + theirs),
                           (unsigned long long)limit, (unsigned long long)theirs);
}

int fg_ledger_charge(int physical, int64_t bytes, uint64_t own, uint64_t limit) {
    if (bytes > 0 && (uint64_t)bytes > limit - own)
        return refuse(physical, bytes, own, present() ? others(physical, true) : 0, limit);
    if (!present() || (bytes <= 0 && !mine))
        return FG_OK;
    if (bytes <= 0) { /* nobody else writes this slot */
        __atomic_fetch_add(&mine->used[physical], (uint64_t)bytes, __ATOMIC_RELAXED);
        return FG_OK;
    }
    int status = lock_ledger(F_WRLCK);
    if (status)
        return status;
    uint64_t room = limit - own - (uint64_t)bytes;
    if (!claim())
        status = fg_rt_set_error(FG_OUT_OF_MEMORY, "more than %zu processes use the fake devices", slot_count);
    else if (others(physical, false) > room && others(physical, true) > room)
        status = refuse(physical, bytes, own, others(physical, true), limit);
    else
        __atomic_fetch_add(&mine->used[physical], (uint64_t)bytes, __ATOMIC_RELAXED);
    int unlocked = lock_ledger(F_UNLCK);
    return status ? status : unlocked;
}

int fg_rt_memory_processes(int physical, fg_process_t *out, int room) {
    int found = 0, visible = fg_rt_physical_visible(physical);
    if (!present()) {
        uint64_t used = 0, total;
        if (visible >= 0 && !fg_rt_memory_usage(visible, &used, &total) && used && found++ < room)
            out[0] = (fg_process_t){(uint32_t)getpid(), used};
        return found;
    }
    for (size_t i = 0; i < slot_count && __atomic_load_n(&slots[i].pid, __ATOMIC_ACQUIRE); i++) {
        uint64_t used = held(&slots[i], physical);
        if (used && alive(&slots[i]) && found++ < room)
            out[found - 1] = (fg_process_t){slots[i].pid, used};
    }
    return found;
}

uint64_t fg_rt_physical_usage(int physical) {
    int visible = fg_rt_physical_visible(physical);
    uint64_t used = 0, total = fg_rt_physical_profile(physical)->memory_bytes;
    if (visible >= 0)
        return fg_rt_memory_usage(visible, &used, &total) ? 0 : used;
    used = present() ? others(physical, true) : 0; /* an invisible device holds nothing of ours */
    return used < total ? used : total;
}
