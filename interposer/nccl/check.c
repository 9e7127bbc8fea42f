/* Argument checks: each names the call, the argument, what was found and what is expected. */
#include <string.h>
#include "internal.h"

static const char *const dtype_names[ncclNumTypes] = {
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3",
    "float8e5m2",
};
static const uint8_t dtype_bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

ncclResult_t fg_nccl_check_pointer(const void *pointer, const char *call, const char *name) {
    return pointer ? ncclSuccess : fg_nccl_error(FG_INVALID_ARGUMENT, "%s: %s is NULL", call, name);
}

ncclResult_t fg_nccl_check_comm(ncclComm_t comm, const char *call) {
    if (fg_rt_forked()) {
        return fg_nccl_error(FG_FORKED, "%s: NCCL was initialised before this process was forked and cannot be used in "
                             "the child; start workers with the spawn method", call);
    }
    if (!comm) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: comm is NULL", call);
    }
    if (comm->magic != FG_COMM_MAGIC_BEGIN || comm->magic_end != FG_COMM_MAGIC_END) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: comm %p is no communicator: it was destroyed, or its memory "
                             "was overwritten", call, (void *)comm);
    }
    return ncclSuccess;
}

ncclResult_t fg_nccl_check_ready(ncclComm_t comm, const char *call) {
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (result) {
        return result;
    }
    int status = comm->refusal ? comm->refusal : comm->rt ? fg_rt_comm_state(comm->rt) : FG_IN_PROGRESS;
    if (status == FG_IN_PROGRESS) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: Attempt to use communicator before the previous operation "
                             "returned ncclSuccess", call);
    }
    if (comm->phase == FG_PHASE_REVOKED) {
        return fg_nccl_error(FG_INVALID_USAGE, "%s: the communicator was revoked; only destroy, abort, split and "
                             "shrink are allowed", call);
    }
    if (status) {
        char text[1500];
        fg_rt_comm_text(comm->rt, text, sizeof text);
        return fg_nccl_error(status, "%s: the communicator failed before: %s", call,
                             comm->refusal ? comm->refusal_text : text);
    }
    if (comm->phase == FG_PHASE_FINALIZED) {
        return fg_nccl_error(FG_INVALID_USAGE, "%s: the communicator was finalized", call);
    }
    if (comm->phase == FG_PHASE_SUSPENDED) {
        return fg_nccl_error(FG_INVALID_USAGE, "%s: the communicator is suspended; call ncclCommResume first", call);
    }
    return ncclSuccess;
}

ncclResult_t fg_nccl_check_parent(ncclComm_t comm, const char *call) {
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    return result || comm->phase == FG_PHASE_REVOKED ? result : fg_nccl_check_ready(comm, call);
}

static ncclResult_t check_types(const fg_nccl_request_t *r) {
    if ((int)r->dtype < 0 || r->dtype >= ncclNumTypes) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: datatype %d, expected 0 to %d", r->call, (int)r->dtype,
                             ncclNumTypes - 1);
    }
    bool fp8 = r->dtype == ncclFloat8e4m3 || r->dtype == ncclFloat8e5m2;
    if (fg_kind_reduces(r->kind) && fp8 && r->comm->compute_capability < 90) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: FP8 reduction support begins with sm90 capable devices, this "
                             "one is sm%d (%s)", r->call, r->comm->compute_capability, dtype_names[r->dtype]);
    }
    bool pair = r->kind == FG_SEND || r->kind == FG_RECV || r->kind >= FG_PUT_SIGNAL;
    if ((pair || fg_kind_rooted(r->kind)) && (r->root < 0 || r->root >= r->comm->nranks)) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: %s %d, expected 0 to %d", r->call, pair ? "peer" : "root",
                             r->root, r->comm->nranks - 1);
    }
    return ncclSuccess;
}

/* Two ranges of one rank may be equal where the collective allows in place, or apart; never anything between. */
static ncclResult_t check_overlap(const fg_nccl_request_t *r, uint64_t in_bytes, uint64_t out_bytes, uint64_t block) {
    uintptr_t in = (uintptr_t)r->send, out = (uintptr_t)r->recv, rank = (uintptr_t)r->comm->rank;
    if (in + in_bytes <= out || out + out_bytes <= in) {
        return ncclSuccess;
    }
    uintptr_t in_at = in, out_at = out;
    if (r->kind == FG_ALL_GATHER || r->kind == FG_GATHER) {
        out_at = out + rank * block;
    } else if (r->kind == FG_REDUCE_SCATTER || r->kind == FG_SCATTER) {
        in_at = in + rank * block;
    }
    if (in_at == out_at) {
        return ncclSuccess;
    }
    return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: %s %p (%llu bytes) and %s %p (%llu bytes) overlap without being in "
                         "place, expected separate buffers or %s == %p", r->call, r->send_name, r->send,
                         (unsigned long long)in_bytes, r->recv_name, r->recv, (unsigned long long)out_bytes,
                         r->recv_name, (void *)(out + (in_at - out_at)));
}

static ncclResult_t check_buffers(const fg_nccl_request_t *r) {
    uint32_t n = (uint32_t)r->comm->nranks;
    uint64_t block, in_bytes, out_bytes;
    bool at_root = r->root == r->comm->rank;
    bool has_in = fg_kind_in_blocks((int)r->kind, n) && (at_root || (r->kind != FG_BROADCAST && r->kind != FG_SCATTER));
    bool has_out = fg_kind_out_blocks((int)r->kind, n) && (at_root || (r->kind != FG_REDUCE && r->kind != FG_GATHER));
    if (!r->count) {
        return ncclSuccess;
    }
    if (__builtin_mul_overflow((uint64_t)r->count, dtype_bytes[r->dtype], &block) ||
        __builtin_mul_overflow(block, fg_kind_in_blocks((int)r->kind, n), &in_bytes) ||
        __builtin_mul_overflow(block, fg_kind_out_blocks((int)r->kind, n), &out_bytes) || in_bytes >> 48 ||
        out_bytes >> 48) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: count %zu of %s on %u ranks is beyond any memory", r->call,
                             r->count, dtype_names[r->dtype], n);
    }
    if (has_in && !r->send) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: %s is NULL, expected a buffer of %llu bytes", r->call,
                             r->send_name, (unsigned long long)in_bytes);
    }
    if (has_out && !r->recv) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: %s is NULL, expected a buffer of %llu bytes", r->call,
                             r->recv_name, (unsigned long long)out_bytes);
    }
    return has_in && has_out ? check_overlap(r, in_bytes, out_bytes, block) : ncclSuccess;
}

ncclResult_t fg_nccl_check_request(fg_nccl_request_t *r) {
    ncclResult_t result = check_types(r);
    if (result || (result = fg_redop_resolve(r)) || (result = check_buffers(r))) {
        return result;
    }
    if (r->kind == FG_PUT_SIGNAL &&
        (result = fg_window_target(r->call, r->comm, r->window, r->root, r->call_out.peer_offset,
                                   r->count * dtype_bytes[r->dtype], &r->call_out.target))) {
        return result;
    }
    r->call_out.kind = (uint8_t)r->kind;
    r->call_out.dtype = (uint8_t)r->dtype;
    r->call_out.root = fg_kind_rooted(r->kind) || !fg_kind_out_blocks((int)r->kind, 1) || r->kind == FG_RECV ? r->root
                                                                                                            : -1;
    r->call_out.count = r->count;
    r->call_out.in = r->send;
    r->call_out.out = r->recv;
    r->call_out.stream = (uint64_t)(uintptr_t)r->stream;
    return ncclSuccess;
}
