/* Events between processes: each is a slot of two counters in a segment of the process that created it. A recording
 * raises `issued`, its completion raises `finished` and wakes every waiter through a futex. Slots are not used twice:
 * another process may still look at one.
 */
#include "event.h"
#include "fork.h"
#include "segment.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLOTS (1u << 18) /* 16 MiB, sparse */
#define BYTES (SLOTS * sizeof(fg_event_slot_t))
#define MAGIC 0x45435046u /* "FPCE" */

typedef struct wire_event {
    uint32_t magic, pid;
    int32_t fd;
    uint32_t index;
    uint64_t inode, reserved[5];
} wire_event_t;
_Static_assert(sizeof(wire_event_t) == 64, "size of an IPC event handle");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fg_event_slot_t *own;
static int own_fd = -1;
static uint64_t own_inode;
static uint32_t taken;

static int create_segment(void) {
    struct stat status;
    int fd = memfd_create("fakegpu-events", MFD_CLOEXEC);
    void *base = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, BYTES) && !fstat(fd, &status))
        base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return fg_rt_set_error(FG_SYSTEM, "a segment for interprocess events: %s", strerror(error));
    }
    own = base;
    own_fd = fd;
    own_inode = status.st_ino;
    return FG_OK;
}

int fg_event_slot_take(fg_event_slot_t **out) {
    pthread_mutex_lock(&lock);
    int status = own ? FG_OK : create_segment();
    if (!status && taken == SLOTS)
        status = fg_rt_set_error(FG_LIMIT, "interprocess events: more than %u in one process", SLOTS);
    if (!status)
        *out = &own[taken++];
    pthread_mutex_unlock(&lock);
    return status;
}

bool fg_event_slot_done(const fg_event_slot_t *slot, uint32_t ticket) {
    return (int32_t)(__atomic_load_n(&slot->finished, __ATOMIC_ACQUIRE) - ticket) >= 0;
}

void fg_event_slot_finish(fg_event_slot_t *slot, uint32_t ticket) {
    uint32_t seen = __atomic_load_n(&slot->finished, __ATOMIC_ACQUIRE);
    while ((int32_t)(ticket - seen) > 0 &&
           !__atomic_compare_exchange_n(&slot->finished, &seen, ticket, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
    syscall(SYS_futex, &slot->finished, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fg_event_slot_await(fg_event_slot_t *slot, uint32_t ticket) {
    while (!fg_event_slot_done(slot, ticket)) {
        uint32_t seen = __atomic_load_n(&slot->finished, __ATOMIC_ACQUIRE);
        if (!fg_event_slot_done(slot, ticket))
            syscall(SYS_futex, &slot->finished, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
}

int fg_event_slot_export(const fg_event_slot_t *slot, void *out) {
    if (slot < own || slot >= own + SLOTS)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC event handle: the event was imported itself");
    wire_event_t wire = {.magic = MAGIC, .pid = (uint32_t)getpid(), .fd = own_fd, .index = (uint32_t)(slot - own),
                         .inode = own_inode};
    memcpy(out, &wire, sizeof wire);
    return FG_OK;
}

/* The whole segment of a peer is mapped once and kept: it is sparse, and a process imports from few peers. */
int fg_event_slot_import(const void *in, fg_event_slot_t **out) {
    static struct { uint64_t inode; fg_event_slot_t *base; } peers[256];
    wire_event_t wire;
    memcpy(&wire, in, sizeof wire);
    if (wire.magic != MAGIC || wire.index >= SLOTS)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC event handle: not one of fakegpu's");
    if (wire.pid == (uint32_t)getpid())
        return fg_rt_set_error(FG_CUDA(201), "IPC event handle: opened by the process that made it");
    int status = FG_OK, fd, i = 0;
    pthread_mutex_lock(&lock);
    while (i < 256 && peers[i].base && peers[i].inode != wire.inode)
        i++;
    if (i == 256)
        status = fg_rt_set_error(FG_LIMIT, "IPC event handles of more than 256 processes");
    else if (!peers[i].base && !(status = fg_segment_reopen(wire.pid, wire.fd, wire.inode, &fd))) {
        void *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        close(fd);
        if (base == MAP_FAILED)
            status = fg_rt_set_error(FG_SYSTEM, "mapping a peer's events: %s", strerror(errno));
        else {
            peers[i].inode = wire.inode;
            peers[i].base = base;
        }
    }
    if (!status)
        *out = peers[i].base + wire.index;
    pthread_mutex_unlock(&lock);
    return status;
}
