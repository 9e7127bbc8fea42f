/* ABI of libfakegpu_rt.so: the only owner of process state, shared by libcudart, libcuda, libnvidia-ml, libnccl and
 * the torch host kernels. No constructor does work; the first call that needs state initialises it once.
 * Functions return an fg_status_t unless said otherwise; all are thread-safe.
 */
#ifndef FG_RUNTIME_H
#define FG_RUNTIME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fg_core.h"

#ifdef __cplusplus
extern "C" {
#endif
#define FG_RT_API __attribute__((visibility("default")))
#define FG_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* ---- log.c: one line on stderr, "fakegpu: ..." ---- */
typedef enum fg_log_level { FG_LOG_ERROR = 0, FG_LOG_WARN = 1, FG_LOG_INFO = 2, FG_LOG_TRACE = 3 } fg_log_level_t;
FG_RT_API void fg_rt_log(fg_log_level_t level, const char *format, ...) FG_PRINTF(2, 3);
/* once per (process, key): used for "cudaFoo is not supported by fakegpu" */
FG_RT_API void fg_rt_log_once(fg_log_level_t level, const char *key, const char *format, ...) FG_PRINTF(3, 4);
/* text of the calling thread's last failure; never NULL */
FG_RT_API const char *fg_rt_last_error(void);
FG_RT_API int fg_rt_set_error(int status, const char *format, ...) FG_PRINTF(2, 3); /* returns status */

/* ---- config.c: the only reader of the environment on the C side ---- */
typedef enum fg_mode { FG_MODE_SIMULATE = 0, FG_MODE_HYBRID = 1, FG_MODE_PASSTHROUGH = 2 } fg_mode_t;
typedef enum fg_dist_mode { FG_DIST_DISABLED = 0, FG_DIST_SIMULATE = 1, FG_DIST_PROXY = 2, FG_DIST_PASSTHROUGH = 3 } fg_dist_mode_t;
typedef struct fg_config {
    fg_mode_t mode;
    fg_dist_mode_t dist_mode;
    int device_count;             /* physical fake devices, default 8; before CUDA_VISIBLE_DEVICES */
    int verbose;
    uint32_t timeout_ms;          /* FAKEGPU_COORDINATOR_TIMEOUT_MS, 1000 */
    bool tcp;                     /* FAKEGPU_COORDINATOR_TRANSPORT */
    const char *coordinator_addr; /* NULL = not set */
    const char *session, *token;  /* "" = none */
    const char *tls_ca;           /* NULL = none; set: refused, this side does not speak TLS */
    uint64_t staging_chunk_bytes; /* 0 = coordinator's value */
    bool shares_memory; /* with ranks of this host; never when payloads are forced through sockets */
    uint64_t eager_bytes;
    bool duplicate_gpu_error;
    int nccl_version;             /* 23007 */
    int rank, world_size, local_rank, node, generation; /* launcher's variables; -1 = not known */
    const char *libpython, *python_program; /* FAKEGPU_LIBPYTHON, FAKEGPU_PYTHON: for programs that are not Python */
    const char *unsupported_api;  /* warn | error | allow */
    int fault_kind, fault_rank; int64_t fault_seqno; /* injected: fg_kind_t or -1 for any, rank or -1 for none */
    const char *fault_allocations; /* RANK:NUMBER,... or NULL */
} fg_config_t;
FG_RT_API const fg_config_t *fg_rt_config(void); /* parsed once; bad values are reported once and refused at first use */
FG_RT_API int fg_rt_config_check(void); /* FG_OK, or FG_INVALID_ARGUMENT when a variable holds a bad value (error set) */

/* ---- device.c: fake devices from the profile table generated out of data/gpus ---- */
typedef struct fg_profile {
    const char *id, *name;
    int cc_major, cc_minor, sms;
    uint64_t memory_bytes;
    int core_clock_khz, memory_clock_khz, memory_bus_bits;
    int l2_cache_bytes;
    int nvlink_version, nvlink_links;
    int pcie_generation, pcie_lanes;
    int power_watts;
} fg_profile_t;
FG_RT_API int fg_rt_device_count(void); /* visible devices */
FG_RT_API const fg_profile_t *fg_rt_device_profile(int device); /* NULL = no such visible device */
FG_RT_API int fg_rt_device_physical(int device); /* index before CUDA_VISIBLE_DEVICES, or -1 */
FG_RT_API void fg_rt_device_uuid(int device, uint8_t uuid[16]);
FG_RT_API int fg_rt_device_get(void); /* calling thread's current device */
FG_RT_API int fg_rt_device_set(int device);

/* ---- memory.c: one sparse memfd arena per device; host and managed blocks ---- */
typedef enum fg_memory_kind { FG_MEMORY_UNKNOWN = 0, FG_MEMORY_HOST = 1, FG_MEMORY_DEVICE = 2, FG_MEMORY_MANAGED = 3,
                              FG_MEMORY_REGISTERED = 4 } fg_memory_kind_t;
typedef struct fg_memory_info {
    fg_memory_kind_t kind;
    int device;
    void *base;     /* start of the allocation */
    uint64_t bytes; /* its size */
    int fd;         /* shared segment behind it, or -1 */
    uint64_t inode, offset; /* of base within the segment */
} fg_memory_info_t;
FG_RT_API int fg_rt_memory_alloc(int device, uint64_t bytes, void **out); /* FG_OUT_OF_MEMORY past the device's limit */
FG_RT_API int fg_rt_memory_free(void *pointer);
FG_RT_API int fg_rt_memory_lookup(const void *pointer, fg_memory_info_t *out); /* FG_INVALID_ARGUMENT: not ours */
/* [pointer, pointer+bytes) as one mappable piece of a shared segment; pid 0 in *out when it is not one */
FG_RT_API void fg_rt_memory_ref(const void *pointer, uint64_t bytes, fg_buffer_ref_t *out);
FG_RT_API int fg_rt_memory_kind(const void *pointer); /* fg_memory_kind_t, cheap */
FG_RT_API int fg_rt_memory_usage(int device, uint64_t *used, uint64_t *total);

/* ---- stream.c, event.c: FIFOs with lazily started workers ---- */
typedef struct fg_stream fg_stream_t;
typedef void (*fg_job_fn)(void *arg);
/* number of unfinished asynchronous items in the process: one load tells that nothing needs draining */
FG_RT_API extern volatile int fg_rt_pending;
/* handle: a cudaStream_t (NULL, cudaStreamLegacy 1, cudaStreamPerThread 2, or ours); the NULL stream is `device`'s own */
FG_RT_API fg_stream_t *fg_rt_stream_resolve(const void *handle, int device); /* NULL = unknown handle, error set */
FG_RT_API int fg_rt_stream_enqueue(fg_stream_t *stream, fg_job_fn fn, void *arg); /* always asynchronous, in order */
FG_RT_API int fg_rt_stream_run(fg_stream_t *stream, fg_job_fn fn, void *arg); /* at once if idle, else enqueued */
FG_RT_API int fg_rt_stream_join(fg_stream_t *waiter, fg_stream_t *other); /* later items of waiter follow other's current ones */
FG_RT_API int fg_rt_stream_query(fg_stream_t *stream); /* FG_OK or FG_IN_PROGRESS */
FG_RT_API int fg_rt_stream_sync(fg_stream_t *stream);  /* releases a held GIL while it waits */
FG_RT_API int fg_rt_stream_device(const fg_stream_t *stream);
/* ---- graph.c: what others put into a graph that is being captured ---- */
typedef struct fg_graph fg_graph_t;
typedef struct fg_graph_node {
    int (*run)(void *arg); /* at every launch; a status, with the text set */
    void (*drop)(void *arg); /* once, when the graph goes */
    const char *name;
    bool waits; /* may wait for other processes: never on the launching thread */
} fg_graph_node_t;
FG_RT_API extern volatile int fg_rt_captures; /* captures going on: one load tells that nothing captures */
FG_RT_API fg_graph_t *fg_rt_capture_of(int device, const void *handle); /* handle: a cudaStream_t; NULL = it does not capture */
FG_RT_API fg_graph_t *fg_rt_capture_graph(const fg_stream_t *stream); /* NULL = it does not capture */
FG_RT_API int fg_rt_capture_add(fg_graph_t *graph, fg_stream_t *stream, const fg_graph_node_t *node, void *arg); /* stream may be NULL */
FG_RT_API int fg_rt_capture_at_end(fg_graph_t *graph, void (*fn)(void *arg), void *arg); /* before the capturing call returns */
FG_RT_API void fg_rt_capture_invalidate(fg_graph_t *graph);
/* called by a running item that failed for good: until it says fg_rt_stream_mend, waits for its stream answer
 * FG_CUDA(719) with `why` (kept, not copied); false when the calling thread is no stream's worker */
FG_RT_API bool fg_rt_stream_fail(const char *why);
FG_RT_API void fg_rt_stream_mend(void);
/* for compute kernels: waits until everything before them on the stream has finished */
FG_RT_API int fg_rt_stream_drain(int device, const void *handle);
/* true once a CUDA runtime or driver of ours was used here: without one nobody can wait for a stream, so libnccl
 * finishes an operation before it returns */
FG_RT_API bool fg_rt_cuda_in_use(void);
FG_RT_API void fg_rt_cuda_mark_used(void);
/* name of the operator the host thread runs or waits in, for time-out texts; nests, NULL ends */
FG_RT_API void fg_rt_host_operator(const char *name);
FG_RT_API const char *fg_rt_host_operator_current(void); /* most recent of any thread that blocks in a drain; "" = none */

/* ---- kernel.c: what runs in place of a kernel nobody can execute here ---- */
typedef struct fg_launch {
    const char *kernel; /* mangled name */
    unsigned grid[3], block[3];
    size_t shared_bytes;
    void **args; /* valid during the call only */
    fg_stream_t *stream;
    int device;
} fg_launch_t;
/* Called on the launching thread; puts its work on launch->stream (fg_rt_stream_run or _enqueue) itself. */
typedef int (*fg_kernel_fn)(const fg_launch_t *launch, void *context);
/* pattern: a mangled name, * and ? as in file names; a later registration wins */
FG_RT_API int fg_rt_register_kernel(const char *pattern, fg_kernel_fn fn, void *context);

/* ---- fork.c ---- */
FG_RT_API bool fg_rt_forked(void); /* this process is a child of one that had initialised: everything is refused */

/* ---- bridge.c: the interpreter that is there, or libpython loaded once; no GIL on the data path ---- */
FG_RT_API int fg_rt_core(const fg_core_api_t **out); /* imports fakegpu._core.capi on first use; error text set */
/* a blocking wait must not hold the GIL: wrap it. unlock returns a token for relock (NULL: nothing was held) */
FG_RT_API void *fg_rt_gil_unlock(void);
FG_RT_API void fg_rt_gil_relock(void *token);

#ifdef __cplusplus
}
#endif
#endif
