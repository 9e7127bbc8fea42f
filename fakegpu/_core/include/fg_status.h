/* Status codes of fakegpu: the C truth for fakegpu/errors.py (a test compares the two tables).
 *
 * 0..99 are NCCL's own result codes, 100.. are ours. Every status maps to exactly one ncclResult_t, so that
 * the interposer can answer a caller that only knows NCCL's numbers while texts and reports keep the reason.
 */
#ifndef FG_STATUS_H
#define FG_STATUS_H

/* X(name, code, ncclResult_t value, one-line text) */
#define FG_STATUS_TABLE(X)                                                                          \
    X(OK, 0, 0, "success")                                                                          \
    X(UNHANDLED_CUDA, 1, 1, "a CUDA call failed")                                                   \
    X(SYSTEM, 2, 2, "a system call failed")                                                         \
    X(INTERNAL, 3, 3, "internal error of fakegpu, please report it")                                \
    X(INVALID_ARGUMENT, 4, 4, "invalid argument")                                                   \
    X(INVALID_USAGE, 5, 5, "invalid usage")                                                         \
    X(REMOTE, 6, 6, "a remote process exited or its connection broke")                              \
    X(IN_PROGRESS, 7, 7, "operation in progress")                                                   \
    X(TIMEOUT, 8, 8, "timed out")                                                                   \
    X(MISMATCH, 100, 5, "the ranks of a communicator submitted different operations")               \
    X(MISSING_RANK, 101, 8, "a rank never joined the operation")                                    \
    X(DEADLOCK, 102, 8, "the ranks wait for each other in a circle")                                \
    X(DEAD_RANK, 103, 6, "a rank of the communicator died")                                         \
    X(ABORTED, 104, 5, "the communicator was aborted")                                              \
    X(STALE_ID, 105, 5, "the unique id belongs to another job generation or was used before")       \
    X(PROTOCOL, 106, 3, "malformed frame")                                                          \
    X(VERSION, 107, 3, "protocol versions differ")                                                  \
    X(AUTH, 108, 2, "not authorised")                                                               \
    X(LIMIT, 109, 2, "a configured limit was exceeded")                                             \
    X(COORDINATOR_LOST, 110, 6, "the connection to the coordinator is gone")                        \
    X(WORLD, 111, 4, "rank or world size does not fit the cluster")                                 \
    X(NOT_SUPPORTED, 112, 5, "not supported by fakegpu")                                            \
    X(NO_COORDINATOR, 113, 2, "no coordinator at the given address")                                \
    X(OUT_OF_MEMORY, 114, 2, "out of memory")                                                       \
    X(FORKED, 115, 1, "the runtime was initialised before a fork and cannot be used in the child")  \
    X(PYTHON, 116, 2, "the Python interpreter that fakegpu needs could not be used")                \
    X(INJECTED, 117, 6, "an injected fault")

typedef enum fg_status {
#define FG_STATUS_ENUM(name, code, nccl, text) FG_##name = (code),
    FG_STATUS_TABLE(FG_STATUS_ENUM)
#undef FG_STATUS_ENUM
} fg_status_t;

#endif
