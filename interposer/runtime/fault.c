/* Injected faults, on the rank's side: the FAKEGPU_NCCL_FAULT_ variables, what a GO frame orders, device allocations
 * that are to fail. Which operation a plan hits is the coordinator's decision (fakegpu/injection.py). Each fault says
 * so on stderr, since a crash without a word looks like a defect of the program.
 */
#include "fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "comm.h"
#include "fg_cuda.h"
#include "stream.h"

#define SAME_SIZE_ATTEMPTS 3 /* a caching allocator gives its cache back and asks again */

static const char *const kinds[FG_KIND_COUNT] = {
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
    "scatter", "send", "recv", "barrier", "put_signal", "signal", "wait_signal"};

/* "all_reduce", "AllReduce" and "ncclAllReduce" are one name */
static bool same_name(const char *asked, const char *kind) {
    asked += strncasecmp(asked, "nccl", 4) ? 0 : 4;
    while (*asked || *kind) {
        if (*asked == '_') {
            asked++;
        } else if (*kind == '_') {
            kind++;
        } else if (strncasecmp(asked++, kind++, 1)) {
            return false;
        }
    }
    return true;
}

int fg_fault_kind(const char *name) {
    for (int kind = 0; kind < FG_KIND_COUNT; kind++) {
        if (same_name(name, kinds[kind])) {
            return kind;
        }
    }
    return -1;
}

int fg_fault_check(const fg_comm_t *comm, const fg_task_t *task) {
    const fg_config_t *config = fg_rt_config();
    if (fg_device_failure()) {
        return fg_rt_set_error(FG_INJECTED, "%s #%llu: the device of rank %d failed (injected fault)",
                               kinds[task->call.kind], (unsigned long long)task->op.seq,
                               comm->members[comm->rank].global_rank);
    }
    if (config->fault_rank < 0 || comm->members[comm->rank].global_rank != config->fault_rank ||
        (config->fault_seqno >= 0 && task->op.seq != (uint64_t)config->fault_seqno) ||
        (config->fault_kind >= 0 && task->call.kind != config->fault_kind)) {
        return FG_OK;
    }
    return fg_rt_set_error(FG_INJECTED, "injected fault: %s #%llu of rank %d failed (FAKEGPU_NCCL_FAULT_RANK)",
                           kinds[task->call.kind], (unsigned long long)task->op.seq, config->fault_rank);
}

void fg_fault_obey(const fg_go_t *go) {
    if (go->flags & FG_OP_CRASH) {
        fg_rt_log(FG_LOG_ERROR, "injected fault: rank %d crashes", fg_rt_config()->rank);
        kill(getpid(), SIGKILL);
    }
    if (go->flags & FG_OP_DEVICE_ERROR) {
        fg_rt_log(FG_LOG_ERROR, "injected fault: the device of rank %d fails (uncorrectable ECC error)",
                  fg_rt_config()->rank);
        fg_device_fail();
    }
}

void fg_fault_corrupt(const fg_comm_t *comm, const fg_task_t *task) {
    uint64_t bytes = task->call.count * task->elem * fg_kind_out_blocks(task->call.kind, (uint32_t)comm->nranks);
    uint64_t bit = task->go.flags >> FG_OP_BIT_SHIFT;
    uint8_t *out = task->call.out;
    if ((task->go.flags & FG_OP_CORRUPT) && out && bytes && fg_task_has_output(comm, task)) {
        bit %= bytes * 8;
        out[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        fg_rt_log(FG_LOG_ERROR, "injected fault: bit %llu of rank %d's output of %s #%llu is flipped",
                  (unsigned long long)bit, comm->members[comm->rank].global_rank, kinds[task->call.kind],
                  (unsigned long long)task->op.seq);
    }
}

/* FAKEGPU_FAULT_ALLOCATIONS is RANK:NUMBER,...; true when this rank's allocation `number` is to fail. */
static bool listed(const fg_config_t *config, uint64_t number) {
    for (const char *item = config->fault_allocations; item && *item;) {
        char *end;
        long rank = strtol(item, &end, 10);
        uint64_t which = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
        if (rank == (config->rank < 0 ? 0 : config->rank) && which == number) {
            return true;
        }
        item = *end == ',' ? end + 1 : "";
    }
    return false;
}

bool fg_fault_allocation(int device, uint64_t bytes) {
    static uint64_t count, size; /* callers hold the memory lock */
    static int attempts;
    const fg_config_t *config = fg_rt_config();
    if (!config->fault_allocations) {
        return false;
    }
    if (attempts && bytes == size) {
        attempts--;
        return true;
    }
    attempts = 0;
    if (!listed(config, ++count)) {
        return false;
    }
    char text[128];
    snprintf(text, sizeof text, "injected fault: device allocation %llu of rank %d (%llu bytes) fails",
             (unsigned long long)count, config->rank < 0 ? 0 : config->rank, (unsigned long long)bytes);
    fg_rt_log(FG_LOG_ERROR, "%s", text);
    fg_client_note(FG_NOTE_FAULT, text);
    size = bytes;
    attempts = SAME_SIZE_ATTEMPTS - 1;
    (void)device;
    return true;
}
