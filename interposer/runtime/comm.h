/* Inside of the communicator part of libfakegpu_rt.so (client*.c, comm*.c, data*.c); nobody else includes this.
 *
 * Locks, outermost first: client lock (tables of requests and communicators), communicator lock (state, tasks),
 * transmit lock (one frame at a time on the socket). Nothing blocks while it holds the first two.
 */
#ifndef FG_COMM_INTERNAL_H
#define FG_COMM_INTERNAL_H
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include "fg_comm.h"

#define FG_TEXT_MAX 4096 /* of an error text kept by a communicator */
#define FG_RX_BUFFER 65536

typedef struct fg_request { /* one request the coordinator has not answered yet; lives on the waiter's stack or heap */
    struct fg_request *next;
    uint32_t id;
    fg_comm_t *comm; /* held: made by COMM_READY, or being finalised; NULL for others */
    bool done;
    int status;
    uint8_t *body; /* malloc'd reply body of UNIQUE_ID and QUERY; owned by the waiter */
    uint32_t body_bytes;
    char text[FG_TEXT_MAX];
} fg_request_t;

typedef struct fg_client {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    pthread_mutex_t tx_lock;
    int fd;
    atomic_int lost; /* 0, or FG_COORDINATOR_LOST */
    atomic_bool leaving; /* the process ends and said so: the end of the connection is no news */
    uint32_t next_request;
    fg_request_t *requests;
    fg_comm_t *comms;
    const fg_core_api_t *core;
    fg_welcome_t welcome;
    /* who reads: one thread at a time */
    pthread_mutex_t rx_lock;
    pthread_cond_t rx_turn;
    bool reading;
    bool handed_over;     /* a job was told to go: its thread will read the next frames itself */
    int waiters;          /* threads that wait for frames that others read */
    uint64_t last_led_ns; /* when a job's thread read last */
    /* of the thread that reads */
    uint8_t *rx_buffer;
    size_t rx_begin, rx_end;
    int fds[8]; /* descriptors that arrived, oldest first */
    int nfds;
} fg_client_t;

typedef struct fg_block { /* shared memory that holds a copy of a send's payload */
    struct fg_block *next;
    fg_segment_t segment;
    uint64_t opid; /* eager sends: freed when this operation is complete */
} fg_block_t;

typedef enum fg_task_state { FG_TASK_NEW, FG_TASK_SUBMITTED, FG_TASK_GO, FG_TASK_ENDED } fg_task_state_t;

typedef struct fg_task { /* an operation on its way */
    fg_call_t call;
    fg_op_t op;
    fg_go_t go;
    fg_task_state_t state; /* communicator lock */
    bool over;             /* the same as FG_TASK_ENDED, for the job's own thread */
    bool completed;    /* send: COMPLETE came */
    uint64_t elem;     /* bytes of an element */
    uint64_t rounds;   /* sockets */
    uint64_t tx_round; /* rounds sent */
    uint64_t rx_round; /* rounds received */
    uint64_t go_ns;
    fg_block_t *block;
} fg_task_t;

struct fg_job {
    fg_comm_t *comm;
    uint64_t ticket;
    size_t ntasks, submitted, ended, first_open;
    size_t open_collectives; /* submitted and not ended */
    fg_task_t tasks[];
};

struct fg_comm {
    struct fg_comm *next; /* client's table */
    fg_client_t *client;
    atomic_int references;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_int status; /* FG_IN_PROGRESS, FG_OK, or the first permanent error */
    atomic_bool cut; /* an operation of this rank ended in that error */
    atomic_bool heard; /* the caller was told of that */
    int holding;     /* streams that wait for `left` */
    bool left;       /* aborted, destroyed or revoked: streams need not wait for it any more */
    char *text;
    fg_request_t *making, *ending; /* init's and finalize's; freed with the record */
    bool finalizing;
    uint64_t member, comm_id;
    int rank, nranks;
    bool shm, no_color;
    char name[FG_NAME_BYTES + 1];
    fg_member_t *members;
    fg_segment_t control_segment;
    fg_control_t *control;
    uint32_t barrier_target[FG_CONTROL_SLOTS];
    atomic_uint waiting_slot; /* index + 1 of the barrier that this rank's job waits at, for waking it */
    fg_segment_t stage;
    uint64_t stage_bytes;
    /* issue order and numbering */
    uint64_t next_ticket, turn;
    uint64_t next_opid, next_collective;
    uint64_t *send_seq, *recv_seq;
    fg_job_t *current; /* the job whose turn it is */
    uint64_t events;   /* counts what the receiver changed in the current job */
    bool waiting;      /* the job's thread counts as one of the client's waiters */
    fg_block_t *eager; /* blocks of eager sends not yet received */
    uint64_t eager_bytes;
};

/* client.c */
int fg_client_get(fg_client_t **out); /* connected, or an error text */

uint64_t fg_now_ns(void);
/* client_connect.c */
int fg_client_connect(const char *address, bool tcp, uint32_t timeout_ms, int *out);
/* client_io.c: sends one frame; `comm` lets a failed communicator's payload be replaced by filler */
int fg_client_send(fg_client_t *client, uint16_t type, uint32_t request, uint64_t member, const struct iovec *parts,
                   int nparts, fg_comm_t *comm);
int fg_client_read(fg_client_t *client, void *out, size_t bytes); /* receiver thread: exactly, or FG_COORDINATOR_LOST */
void fg_client_note(uint32_t kind, const char *text); /* for the report; kept until there is a connection, if there is none */
int fg_client_skip(fg_client_t *client, size_t bytes);
int fg_client_read_task(fg_client_t *client, fg_comm_t *comm, uint64_t opid, void *out, size_t bytes);
/* client_rx.c */
void *fg_client_receive(void *client);
bool fg_client_lead(fg_client_t *client, fg_comm_t *comm, uint64_t seen); /* reads until comm has news */
void fg_client_wait_begin(fg_client_t *client); /* around waits for what another thread reads */
void fg_client_wait_end(fg_client_t *client);
void fg_client_lose(fg_client_t *client, const char *why);
/* client_request.c */
int fg_request_send(fg_client_t *client, fg_request_t *request, uint16_t type, uint64_t member, const void *body,
                    size_t bytes, const void *tail, size_t tail_bytes);
int fg_request_wait(fg_client_t *client, fg_request_t *request, uint32_t timeout_ms); /* 0 = until answered */
void fg_request_finish(fg_client_t *client, fg_request_t *request, int status, const char *text); /* lets comm go */
fg_request_t *fg_request_take(fg_client_t *client, uint32_t id); /* client lock held; NULL = unknown */

/* comm.c */
fg_comm_t *fg_comm_new(fg_client_t *client);
void fg_comm_hold(fg_comm_t *comm);
void fg_comm_release(fg_comm_t *comm);
void fg_comm_fail(fg_comm_t *comm, int status, const char *text); /* first error wins; wakes everybody */
void fg_comm_tell(fg_comm_t *comm); /* communicator lock held: the current job has news */
void fg_comm_give_up(fg_comm_t *comm, int status, const char *text); /* fails it here and tells the coordinator */
int fg_comm_made(fg_comm_t *comm, const fg_comm_ready_t *ready, const fg_member_t *members, int control_fd);
fg_comm_t *fg_comm_find(fg_client_t *client, uint64_t member); /* holds it */
void fg_comm_unlink(fg_comm_t *comm);
static inline bool fg_comm_broken(fg_comm_t *comm) {
    return atomic_load_explicit(&comm->status, memory_order_acquire) != FG_OK;
}

/* comm_job.c */
fg_task_t *fg_job_task(fg_comm_t *comm, uint64_t opid); /* communicator lock held; NULL = not in the current job */

/* data_*.c: what moves the bytes of one task; each returns FG_OK or the communicator's error */
bool fg_task_has_input(const fg_comm_t *comm, const fg_task_t *task);
bool fg_task_has_output(const fg_comm_t *comm, const fg_task_t *task);
static inline bool fg_kind_one_sided(int kind) { return kind >= FG_PUT_SIGNAL; }
static inline bool fg_kind_collective(int kind) { return kind <= FG_SCATTER || kind == FG_BARRIER; }
void fg_shm_enter(fg_comm_t *comm); /* around every touch of peers' memory; then ask fg_shm_stopped */
int fg_shm_leave(fg_comm_t *comm, int status); /* answers status, or the communicator's error if it stopped */
int fg_shm_prepare(fg_comm_t *comm, fg_task_t *task);    /* slot, staging, payload block */
int fg_shm_collective(fg_comm_t *comm, fg_task_t *task); /* after GO */
int fg_shm_receive(fg_comm_t *comm, fg_task_t *task);    /* after GO */
int fg_shm_put(fg_comm_t *comm, fg_task_t *task); /* before SUBMIT: into the peer's window */
int fg_p2p_prepare(fg_comm_t *comm, fg_task_t *task);
void fg_p2p_complete(fg_comm_t *comm, uint64_t opid); /* communicator lock held: an eager block is free again */
void fg_p2p_drop(fg_comm_t *comm, fg_block_t *block);
void fg_shm_settle(fg_comm_t *comm, uint32_t timeout_ms); /* after a failure: until no live peer is busy */
int fg_barrier(fg_comm_t *comm, uint64_t seq);                 /* arrive and wait for the others */
void fg_barrier_arrive(fg_comm_t *comm, uint64_t seq);
int fg_barrier_wait(fg_comm_t *comm, uint64_t seq);            /* for what was arrived at before */
bool fg_inline_fits(const fg_comm_t *comm, const fg_task_t *task); /* data_inline.c */
int fg_inline_prepare(fg_comm_t *comm, fg_task_t *task);
int fg_inline_collective(fg_comm_t *comm, fg_task_t *task);
void fg_barrier_wake(fg_comm_t *comm);
bool fg_shm_stopped(fg_comm_t *comm); /* the communicator failed, here or elsewhere */
int fg_socket_advance(fg_comm_t *comm, fg_task_t *task); /* sends what the window allows */
void fg_socket_prepare(fg_comm_t *comm, fg_task_t *task);
int fg_socket_receive(fg_client_t *client, fg_comm_t *comm, const fg_data_t *data, size_t bytes);
int fg_cache_map(const fg_core_api_t *core, const fg_buffer_ref_t *ref, uint8_t **out); /* between enter and leave */
void fg_cache_enter(void);
void fg_cache_leave(void);
void fg_cache_trim(const fg_core_api_t *core); /* forgets mappings when nobody moves data */

/* data_move.c: one rank's share of a collective over views of everybody's buffers */
typedef struct fg_view {
    uint8_t *in, *out;
    uint64_t in_stride, out_stride; /* bytes from block to block */
    uint64_t scalar;
} fg_view_t;
typedef struct fg_move {
    const fg_core_api_t *core;
    fg_comm_t *comm;
    int kind, dtype, redop, root;
    uint64_t elem, elems; /* bytes of an element, elements of each block */
    const fg_view_t *views;
    fg_view_t *scratch; /* nranks views for the rounds of a staged operation */
} fg_move_t;
#define FG_PIECE_BYTES (1u << 20) /* moved between two looks at whether the communicator stopped */
int fg_move_share(const fg_move_t *move);

#endif
