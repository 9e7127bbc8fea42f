/* Inside of libnccl.so.2: the communicator's handle, the request that every operation becomes, groups.
 *
 * Exports are thin: they fill a request and call fg_nccl_submit, or check their handle and call one function of
 * libfakegpu_rt.so. State of the process lives there; here is only what NCCL's API adds to it.
 */
#ifndef FG_NCCL_INTERNAL_H
#define FG_NCCL_INTERNAL_H
#include <pthread.h>
#include <stdatomic.h>
#include "fg_comm.h"
#include "nccl_abi.h"

/* Defines an exported call and its profiling name. */
#define FG_EXPORT __attribute__((visibility("default")))
#define FG_NCCL_ALSO(name) extern __typeof__(name) p##name __attribute__((alias(#name), visibility("default")))

#define FG_COMM_MAGIC_BEGIN 0x4d4d4f434c43434eull
#define FG_COMM_MAGIC_END 0x444e454d4d4f4321ull

typedef struct fg_user_op { /* a pre-multiplied sum made by the user */
    bool used;
    ncclDataType_t dtype;
    uint64_t scalar;
    const void *scalar_from; /* on the device: read when the operation runs */
} fg_user_op_t;

typedef struct ncclWindow_vidmem fg_window_t;

typedef enum fg_comm_phase { FG_PHASE_LIVE, FG_PHASE_FINALIZED, FG_PHASE_REVOKED, FG_PHASE_SUSPENDED } fg_comm_phase_t;

struct ncclComm {
    _Atomic uint64_t magic;
    _Atomic(fg_comm_t *) rt; /* NULL: not asked for yet, a group is open; or aborted */
    int rank, nranks, device;
    int compute_capability;
    bool blocking;
    bool announced; /* fg_nccl_made ran */
    fg_comm_phase_t phase;
    int refusal; /* a non-blocking init that could not even be sent */
    char refusal_text[512];
    uint64_t op_count;
    pthread_mutex_t lock; /* of what follows */
    fg_user_op_t *redops;
    int nredops;
    fg_window_t *windows;
    void **registered;
    size_t nregistered;
    bool grow_id_open;
    _Atomic uint64_t magic_end;
};

typedef struct fg_nccl_request { /* one operation as the caller asked for it */
    const char *call; /* "ncclAllReduce" */
    fg_kind_t kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t dtype;
    ncclRedOp_t op;
    int root; /* root or peer */
    ncclComm_t comm;
    cudaStream_t stream;
    ncclWindow_t window; /* puts */
    const char *send_name, *recv_name; /* of the arguments, for messages */
    fg_call_t call_out; /* what the runtime gets, filled by the checks */
} fg_nccl_request_t;

/* errors.c: keeps the text for ncclGetLastError, prints it at NCCL_DEBUG=WARN, answers NCCL's number */
ncclResult_t fg_nccl_error(int status, const char *format, ...) FG_PRINTF(2, 3);
ncclResult_t fg_nccl_result(int status); /* of a runtime function that has set its error text */
void fg_nccl_remember(ncclComm_t comm); /* its error's text is this thread's last error */
ncclResult_t fg_nccl_code(int status);

/* debug.c */
typedef enum fg_debug { FG_DEBUG_NONE, FG_DEBUG_VERSION, FG_DEBUG_WARN, FG_DEBUG_INFO, FG_DEBUG_TRACE } fg_debug_t;
bool fg_nccl_debug(fg_debug_t level);
void fg_nccl_print(fg_debug_t level, int device, const char *format, ...) FG_PRINTF(3, 4);
void fg_nccl_debug_reload(void);

/* check.c */
ncclResult_t fg_nccl_check_comm(ncclComm_t comm, const char *call); /* a handle of ours */
ncclResult_t fg_nccl_check_ready(ncclComm_t comm, const char *call); /* ... that can take operations */
ncclResult_t fg_nccl_check_parent(ncclComm_t comm, const char *call); /* ... or a revoked one: split and shrink */
ncclResult_t fg_nccl_check_request(fg_nccl_request_t *request);
ncclResult_t fg_nccl_check_pointer(const void *pointer, const char *call, const char *name);

/* submit.c */
ncclResult_t fg_nccl_submit(fg_nccl_request_t *request);
typedef struct fg_queued { /* a checked operation that waits for its group's end */
    ncclComm_t comm;
    cudaStream_t stream;
    fg_call_t call;
} fg_queued_t;
ncclResult_t fg_nccl_issue(const fg_queued_t *queued, size_t count);
ncclResult_t fg_nccl_run_now(const fg_queued_t *queued, size_t count); /* on this thread, done when it returns */

/* group.c: the calling thread's open group */
bool fg_group_open(void);
ncclResult_t fg_group_append(const fg_queued_t *queued);
ncclResult_t fg_group_append_now(const fg_queued_t *queued); /* run by GroupEnd itself: registration of windows */
ncclResult_t fg_group_error(ncclResult_t result); /* remembers it for GroupEnd; answers it */
ncclResult_t fg_group_take(const char *call, fg_queued_t **queued, size_t *count); /* ends it without issuing */
typedef struct fg_pending { /* a communicator to be made at the group's end */
    ncclComm_t comm;
    ncclComm_t *out;
    ncclResult_t (*begin)(struct fg_pending *pending);
    ncclComm_t parent;
    fg_comm_args_t args;
    char name[FG_NAME_BYTES];
    int color, key, flags, *exclude, nexclude;
    bool with_id;
} fg_pending_t;
ncclResult_t fg_nccl_make(fg_pending_t *pending); /* now, or at the end of the open group */

/* init.c */
ncclResult_t fg_nccl_new(const char *call, const ncclConfig_t *config, ncclComm_t parent, fg_pending_t *pending);
void fg_nccl_free(ncclComm_t comm);
ncclResult_t fg_nccl_made(ncclComm_t comm); /* the coordinator has answered: take over what it said */

/* redop.c */
ncclResult_t fg_redop_resolve(fg_nccl_request_t *request);

/* window.c */
ncclResult_t fg_window_target(const char *call, ncclComm_t comm, ncclWindow_t win, int peer, size_t offset,
                              uint64_t bytes, fg_buffer_ref_t *out);
void fg_window_free_all(ncclComm_t comm);

/* exports that other files of the library call */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);

#endif
