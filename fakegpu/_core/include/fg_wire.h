/* Frame layout between a rank (C interposer or Python client) and the coordinator.
 *
 * Every frame is a fg_frame_t header followed by body_bytes of body. Bodies are fixed-layout structs, some
 * followed by an array of fixed records or by raw bytes, as the comment at each type says. Integers are little
 * endian; hosts of the other byte order are refused at compile time. Strings are NUL padded, not necessarily
 * NUL terminated. Unknown feature bits are ignored, unknown frame types and wrong body lengths are FG_PROTOCOL.
 * Only fakegpu/_core/wire.pyx reads and writes these structs; everybody else goes through it.
 */
#ifndef FG_WIRE_H
#define FG_WIRE_H
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fakegpu supports little-endian hosts only"
#endif

#define FG_WIRE_MAGIC 0x31504746u /* "FGP1" */
#define FG_WIRE_VERSION_MAJOR 2   /* a different major is refused */
#define FG_WIRE_VERSION_MINOR 0   /* a newer minor is accepted */
#define FG_UNIQUE_ID_BYTES 128
#define FG_NAME_BYTES 64
#define FG_TEXT_BYTES 256
#define FG_MAX_CONTROL_BYTES (16u << 20) /* body limit of every type but DATA */
#define FG_MAX_DATA_BYTES (64u << 20)    /* body limit of DATA: one chunk of one rank */
#define FG_MAX_RANKS 65536u
#define FG_MAX_OPS_PER_FRAME 65536u

/* feature bits, HELLO and WELCOME */
#define FG_FEATURE_SHM 1u   /* can map other ranks' memory through /proc/PID/fd (same host; over TCP with FAKEGPU_SAME_HOST_SHM) */
#define FG_FEATURE_TOKEN 2u /* WELCOME: coordinator wants an AUTH frame before anything else */

typedef enum fg_frame_type {
    FG_T_HELLO = 1,      /* c->s fg_hello_t; first frame of a connection */
    FG_T_WELCOME = 2,    /* s->c fg_welcome_t */
    FG_T_ERROR = 3,      /* s->c fg_error_t + text. request!=0: that request failed; request==0, member!=0:
                            asynchronous and permanent error of that member's communicator */
    FG_T_ACK = 4,        /* s->c no body: the request succeeded */
    FG_T_UNIQUE_ID = 5,  /* c->s no body; s->c fg_unique_id_t */
    FG_T_COMM_INIT = 6,  /* c->s fg_comm_init_t */
    FG_T_COMM_READY = 7, /* s->c fg_comm_ready_t + fg_member_t[nranks]; with FG_COMM_SHM over a Unix socket one
                            descriptor (the control segment) travels beside it as SCM_RIGHTS */
    FG_T_COMM_SPLIT = 8, /* c->s fg_comm_split_t; header.member = parent's; answered by COMM_READY (nranks 0: no colour) */
    FG_T_COMM_SHRINK = 9,   /* c->s fg_comm_shrink_t + int32[nexclude]; answered by COMM_READY */
    FG_T_COMM_GROW = 10,    /* c->s fg_comm_grow_t; answered by COMM_READY */
    FG_T_COMM_FINALIZE = 11, /* c->s fg_comm_end_t; ACK when every member did so or died */
    FG_T_COMM_DESTROY = 12, /* c->s fg_comm_end_t; ACK at once; peers still waiting for this member are told */
    FG_T_COMM_ABORT = 13,   /* c->s fg_comm_end_t + text; ACK at once; every other member gets ERROR(ABORTED) */
    FG_T_SUBMIT = 14,       /* c->s fg_submit_t + fg_op_t[nops]; no reply but GO / COMPLETE / ERROR */
    FG_T_GO = 15,           /* s->c fg_go_t[n], n = body_bytes / sizeof: these operations matched; start moving */
    FG_T_DONE = 16,         /* c->s fg_done_t[n]: this member's part of the operation ended */
    FG_T_COMPLETE = 17,     /* s->c fg_complete_t[n]: a send was received: its buffer is free */
    FG_T_DATA = 18,         /* both, fg_data_t + raw bytes: one round of a socket-payload operation */
    FG_T_PING = 19,         /* c->s no body; answered by ACK; allowed before HELLO */
    FG_T_STATUS = 20,       /* c->s no body; s->c JSON text */
    FG_T_SHUTDOWN = 21,     /* c->s no body; ACK, then the coordinator stops */
    FG_T_BYE = 22,          /* c->s no body: orderly end of the process; a connection that ends without is a death */
    FG_T_AUTH = 23,         /* c->s fg_auth_t (answer to WELCOME's challenge); ACK or ERROR(AUTH) */
    FG_T_NOTE = 24,         /* c->s fg_note_t + text: something for the report (timeout text, injected fault, ...) */
    FG_T_COMM_REVOKE = 25,  /* c->s fg_comm_end_t: as ABORT, but the members stay alive for SHRINK */
    FG_T_QUERY = 26         /* c->s JSON text, s->c JSON text (modelled time of a group, ...) */
} fg_frame_type_t;

typedef struct fg_frame { /* 32 bytes */
    uint32_t magic;
    uint16_t type;
    uint16_t flags;
    uint32_t body_bytes;
    uint32_t request; /* chosen by the client, echoed in the reply; 0 = unsolicited */
    uint64_t member;  /* a rank's handle in one communicator, given by COMM_READY; 0 = none */
    uint64_t reserved; /* 0 */
} fg_frame_t;

#define FG_ROLE_RANK 1
#define FG_ROLE_TOOL 2

typedef struct fg_hello {
    uint16_t version_major, version_minor;
    uint32_t features;
    uint32_t pid;
    uint32_t role;       /* FG_ROLE_* */
    uint32_t timeout_ms; /* the rank's rendezvous and operation time-out */
    int32_t rank, world_size, local_rank, node; /* from the launcher's environment; -1 = not known */
    int32_t generation;  /* elastic restart count; -1 = not known */
    uint32_t compute_capability; /* 10*major+minor of the rank's device 0; 0 = not known */
    uint32_t reserved;
    char host[FG_NAME_BYTES];
    char boot_id[FG_NAME_BYTES]; /* boot id and pid-namespace inode: equal means memory can be shared */
    char session[FG_NAME_BYTES]; /* ranks of different sessions never meet; "" = any */
    char program[FG_NAME_BYTES];
} fg_hello_t;

typedef struct fg_welcome {
    uint16_t version_major, version_minor;
    uint32_t features;
    uint64_t job;              /* random identity of this coordinator's life */
    uint32_t chunk_bytes;      /* size of a round, the same for all ranks */
    uint32_t window;           /* rounds a rank may be ahead of the results it has seen */
    uint32_t max_payload_frame; /* largest DATA body accepted */
    uint32_t eager_bytes;      /* sends up to this complete without their receive */
    uint32_t world_size;       /* of the cluster file; 0 = first world defines it */
    uint32_t reserved;
    uint8_t challenge[32];     /* FG_FEATURE_TOKEN */
} fg_welcome_t;

typedef struct fg_auth { uint8_t digest[32]; } fg_auth_t; /* HMAC-SHA256(token, challenge) */
typedef struct fg_error { int32_t status; uint32_t text_bytes; uint64_t opid; } fg_error_t; /* opid 0: whole communicator */
typedef struct fg_unique_id { uint8_t bytes[FG_UNIQUE_ID_BYTES]; } fg_unique_id_t;

#define FG_COMM_SHM 1u      /* init: member can use shared memory; ready: the communicator does */
#define FG_COMM_NONBLOCKING 2u
#define FG_COMM_SHRINK_ABORT 4u
#define FG_COMM_GROW_NEW 8u /* grow: this rank joins from outside */

typedef struct fg_comm_init {
    uint8_t unique_id[FG_UNIQUE_ID_BYTES];
    int32_t nranks, rank, device;
    uint32_t flags, timeout_ms, compute_capability;
    char name[FG_NAME_BYTES];
} fg_comm_init_t;

typedef struct fg_comm_split { int32_t color, key; uint32_t flags, timeout_ms; char name[FG_NAME_BYTES]; } fg_comm_split_t;
typedef struct fg_comm_shrink { uint32_t nexclude, flags, timeout_ms, reserved; char name[FG_NAME_BYTES]; } fg_comm_shrink_t;
typedef struct fg_comm_grow {
    uint8_t unique_id[FG_UNIQUE_ID_BYTES];
    int32_t nranks, rank, device;
    uint32_t flags, timeout_ms, reserved;
    char name[FG_NAME_BYTES];
} fg_comm_grow_t;
typedef struct fg_comm_end { int32_t status; uint32_t text_bytes; } fg_comm_end_t;

/* Where a buffer lies, for ranks that can map it: /proc/<pid>/fd/<fd>, checked against inode. */
typedef struct fg_buffer_ref {
    uint32_t pid;   /* 0 = not mappable: stage it */
    int32_t fd;
    uint64_t inode;
    uint64_t offset;
    uint64_t bytes; /* from offset on; nobody touches memory beyond */
} fg_buffer_ref_t;

typedef struct fg_comm_ready {
    uint64_t comm;   /* the communicator, the same number on every member */
    uint64_t member; /* this rank's handle in it */
    uint32_t flags;  /* FG_COMM_SHM */
    int32_t nranks, rank;
    uint32_t control_slots; /* operations that may be outstanding per member (see fg_core.h) */
    char name[FG_NAME_BYTES];
    fg_buffer_ref_t control; /* with FG_COMM_SHM over TCP: the control segment in the coordinator's process */
} fg_comm_ready_t;
typedef struct fg_member { int32_t global_rank, node, device; uint32_t pid; } fg_member_t;

typedef enum fg_kind { /* what an operation is; the order is part of the protocol */
    FG_ALL_REDUCE = 0, FG_REDUCE = 1, FG_BROADCAST = 2, FG_ALL_GATHER = 3, FG_REDUCE_SCATTER = 4,
    FG_ALL_TO_ALL = 5, FG_GATHER = 6, FG_SCATTER = 7, FG_SEND = 8, FG_RECV = 9, FG_BARRIER = 10,
    FG_PUT_SIGNAL = 11, FG_SIGNAL = 12, FG_WAIT_SIGNAL = 13, FG_KIND_COUNT = 14
} fg_kind_t;

typedef enum fg_dtype { /* ncclDataType_t's numbers */
    FG_INT8 = 0, FG_UINT8 = 1, FG_INT32 = 2, FG_UINT32 = 3, FG_INT64 = 4, FG_UINT64 = 5, FG_FLOAT16 = 6,
    FG_FLOAT32 = 7, FG_FLOAT64 = 8, FG_BFLOAT16 = 9, FG_FLOAT8_E4M3 = 10, FG_FLOAT8_E5M2 = 11, FG_DTYPE_COUNT = 12
} fg_dtype_t;

typedef enum fg_redop { /* ncclRedOp_t's numbers; a user's pre-multiplied sum is FG_PREMULSUM + a scalar */
    FG_SUM = 0, FG_PROD = 1, FG_MAX = 2, FG_MIN = 3, FG_AVG = 4, FG_PREMULSUM = 5, FG_REDOP_COUNT = 6
} fg_redop_t;

#define FG_OP_IN_PLACE 1u
#define FG_OP_STAGED 2u  /* submit: this member's buffers cannot be mapped; go: some member's cannot, use staging rounds */
#define FG_OP_EAGER 4u   /* send: payload is already in a buffer of its own; the sender does not wait */
#define FG_OP_SOCKET 8u  /* go: payload moves as DATA frames */
#define FG_OP_GROUPED 16u
/* go, injected faults: this rank ends itself; flips bit number (flags >> FG_OP_BIT_SHIFT) of its output; its device fails */
#define FG_OP_CRASH 32u
#define FG_OP_CORRUPT 64u
#define FG_OP_DEVICE_ERROR 128u
#define FG_OP_BIT_SHIFT 8

typedef struct fg_op { /* 96 bytes */
    uint64_t opid; /* this member's own operation number, from 1 */
    uint64_t seq;  /* collectives: the member's collective number in the communicator, from 0;
                      send/recv: number among this member's sends/receives with that peer, from 0 */
    uint64_t count; /* elements, as the NCCL call of that kind defines it */
    uint64_t stream; /* opaque, for texts and traces */
    uint8_t kind, dtype, redop, reserved0;
    int32_t root; /* root or peer; -1 = none */
    uint32_t flags;
    uint32_t reserved1;
    uint64_t scalar;     /* premulsum: the multiplier as raw bits in the operation's dtype */
    uint64_t peer_offset; /* one-sided: byte offset in the peer's window; wait: number of signals */
    fg_buffer_ref_t buffer; /* send: where the payload is (shared memory); otherwise zero */
} fg_op_t;

typedef struct fg_submit { uint32_t nops, timeout_ms; uint64_t issue_ns; } fg_submit_t; /* issue_ns: CLOCK_MONOTONIC */

typedef struct fg_go { /* 64 bytes */
    uint64_t opid;
    uint32_t flags; /* FG_OP_STAGED, FG_OP_SOCKET */
    int32_t peer;   /* receive: the sender's rank */
    uint64_t count; /* receive: elements that come (equal to the posted count) */
    uint64_t peer_opid;
    fg_buffer_ref_t buffer; /* receive over shared memory: the sender's payload */
} fg_go_t;

typedef struct fg_done { uint64_t opid; int32_t status; uint32_t reserved; uint64_t exec_ns, bytes; } fg_done_t;
typedef struct fg_complete { uint64_t opid; int32_t status; uint32_t reserved; } fg_complete_t;

/* DATA: one round. A collective's round r covers elements [r*c, min((r+1)*c, count)) of every block, where
 * c = fg_round_elems(chunk_bytes, element size, nranks or 1, ...) as defined in fg_core.h; a rank's payload
 * holds in_blocks blocks of that range back to back, the result out_blocks of them. A member without input
 * sends nothing; a member without output still gets one empty DATA per round (flow control). */
typedef struct fg_data { uint64_t opid; uint64_t round; } fg_data_t;

#define FG_NOTE_TEXT 1
#define FG_NOTE_FAULT 2
#define FG_NOTE_RECOVERY 3
typedef struct fg_note { uint32_t kind, text_bytes; int32_t status; uint32_t reserved; uint64_t opid; } fg_note_t;

#define FG_ASSERT_SIZE(t, n) _Static_assert(sizeof(t) == (n), "layout of " #t)
#ifndef __cplusplus
FG_ASSERT_SIZE(fg_frame_t, 32);
FG_ASSERT_SIZE(fg_hello_t, 304);
FG_ASSERT_SIZE(fg_welcome_t, 72);
FG_ASSERT_SIZE(fg_comm_init_t, 216);
FG_ASSERT_SIZE(fg_comm_ready_t, 128);
FG_ASSERT_SIZE(fg_buffer_ref_t, 32);
FG_ASSERT_SIZE(fg_op_t, 96);
FG_ASSERT_SIZE(fg_go_t, 64);
FG_ASSERT_SIZE(fg_done_t, 32);
FG_ASSERT_SIZE(fg_data_t, 16);
#endif
#endif
