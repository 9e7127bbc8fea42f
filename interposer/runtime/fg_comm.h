/* Communicators of libfakegpu_rt.so, as libnccl uses them: making and ending, jobs of operations, errors.
 *
 * A communicator is one rank's handle. Making is asynchronous: the call sends the request, fg_rt_comm_state tells
 * FG_IN_PROGRESS until the coordinator has answered. Operations come in jobs; a communicator's jobs run one after the
 * other in the order in which fg_rt_job_new made them, on whatever threads run them. No function needs the GIL; those
 * marked "blocks" must not be called with it held (see fg_rt_gil_unlock).
 */
#ifndef FG_COMM_H
#define FG_COMM_H
#include "fg_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fg_comm fg_comm_t;
typedef struct fg_job fg_job_t;

typedef struct fg_comm_args {
    uint8_t unique_id[FG_UNIQUE_ID_BYTES];
    int nranks, rank;
    int device;           /* physical index, for the coordinator */
    int compute_capability; /* 10 * major + minor */
    bool nonblocking;
    const char *name; /* NULL = none */
} fg_comm_args_t;

typedef struct fg_comm_info {
    uint64_t comm; /* the same number on every member */
    int rank, nranks;
    bool shm;
    const char *name;
    const fg_member_t *members; /* nranks records; valid as long as the communicator */
    uint64_t stage_bytes;       /* memory this communicator holds for staging */
} fg_comm_info_t;

typedef struct fg_call { /* one operation, as its API call gave it */
    uint8_t kind, dtype, redop;
    int32_t root; /* root or peer; -1 = none */
    uint64_t count;
    const void *in;
    void *out;
    uint64_t scalar;         /* premulsum: raw bits in dtype */
    const void *scalar_from; /* premulsum: read the scalar here when the operation runs; NULL = use scalar */
    uint64_t stream;         /* opaque, for texts */
    uint64_t peer_offset;    /* put: bytes from the window's start; wait: number of signals */
    fg_buffer_ref_t target;  /* put: the peer's window */
} fg_call_t;

/* ---- making; *out is set even while the answer is pending ---- */
FG_RT_API int fg_rt_comm_unique_id(uint8_t out[FG_UNIQUE_ID_BYTES]); /* blocks */
FG_RT_API int fg_rt_comm_init(const fg_comm_args_t *args, fg_comm_t **out); /* blocks for the connection only */
FG_RT_API int fg_rt_comm_split(fg_comm_t *parent, int color, int key, bool nonblocking, const char *name,
                               fg_comm_t **out);
FG_RT_API int fg_rt_comm_shrink(fg_comm_t *parent, const int *exclude, int nexclude, uint32_t flags, const char *name,
                                fg_comm_t **out);
FG_RT_API int fg_rt_comm_grow(fg_comm_t *parent, const fg_comm_args_t *args, bool with_id, fg_comm_t **out);
FG_RT_API int fg_rt_comm_wait(fg_comm_t *comm); /* blocks until made; error text set */

/* ---- state ---- */
FG_RT_API int fg_rt_comm_state(fg_comm_t *comm); /* FG_IN_PROGRESS, FG_OK, or the first permanent error */
FG_RT_API bool fg_rt_comm_cut(fg_comm_t *comm); /* an operation of this rank ended in that error */
FG_RT_API bool fg_rt_comm_unheard(fg_comm_t *comm); /* and the caller was not told yet; from now on it counts as told */
FG_RT_API void fg_rt_comm_text(fg_comm_t *comm, char *out, size_t bytes);
FG_RT_API bool fg_rt_comm_shared(const fg_comm_t *comm); /* its ranks share memory */
FG_RT_API void fg_rt_comm_info(fg_comm_t *comm, fg_comm_info_t *out); /* only when made */

/* ---- operations ---- */
FG_RT_API int fg_rt_job_new(fg_comm_t *comm, const fg_call_t *calls, size_t count, fg_job_t **out);
/* blocks; frees the job; error text set; *cut: its communicator, counted, when the job did not run to its end */
FG_RT_API int fg_rt_job_run(fg_job_t *job, fg_comm_t **cut);
/* on a stream's worker, after its job was cut: keeps the stream where it is until the caller has aborted, destroyed or
 * revoked the communicator; gives the reference back */
FG_RT_API void fg_rt_comm_hold_stream(fg_comm_t *comm);
FG_RT_API void fg_rt_comm_drop(fg_comm_t *comm); /* the caller is told instead; gives the reference back */
FG_RT_API int fg_rt_comm_query(const char *json, char *out, size_t bytes); /* blocks; QUERY to the coordinator */

/* ---- ending; destroy and abort give the handle up ---- */
FG_RT_API int fg_rt_comm_finalize(fg_comm_t *comm); /* blocks until all jobs ran and every member finalised */
FG_RT_API int fg_rt_comm_finalize_begin(fg_comm_t *comm); /* the same without waiting: state tells */
FG_RT_API void fg_rt_comm_destroy(fg_comm_t *comm); /* blocks until this member's jobs ran */
FG_RT_API void fg_rt_comm_abort(fg_comm_t *comm, const char *why); /* returns when no peer touches our memory */
FG_RT_API void fg_rt_comm_stop(fg_comm_t *comm, const char *why); /* this rank's operations end; the handle stays */
FG_RT_API int fg_rt_comm_revoke(fg_comm_t *comm); /* ends the operations, keeps the member for shrink and split */
FG_RT_API int fg_rt_comm_drain(fg_comm_t *comm, uint32_t timeout_ms); /* blocks until all issued jobs ended */

#ifdef __cplusplus
}
#endif
#endif
