/* What libfakegpu_rt offers to libcudart, libcuda and libnvidia-ml beyond fg_runtime.h: streams, events, memory of
 * every kind, kernels. Private to interposer/; libnccl and the torch host kernels use fg_runtime.h.
 * Functions return an fg_status_t, or FG_CUDA(code) where CUDA has a code of its own for the failure.
 */
#ifndef FG_CUDA_H
#define FG_CUDA_H
#include "fg_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif
#define FG_CUDA_BASE 1000
#define FG_CUDA(code) (FG_CUDA_BASE + (code)) /* a cudaError_t / CUresult number (the two agree) as a status */
FG_RT_API int fg_rt_cuda_code(int status); /* any status as a cudaError_t / CUresult number */
/* what every call checks first: fork, configuration; marks CUDA as used */
FG_RT_API int fg_rt_cuda_enter(void);
FG_RT_API int fg_rt_fork_check(void);
/* FAKEGPU_UNSUPPORTED_API: reports the refused call once, or ends the process (error); always FG_CUDA(801) */
FG_RT_API int fg_rt_unsupported(const char *api, const char *hint);

/* ---- device.c ---- */
FG_RT_API int fg_rt_device_check(int device); /* FG_OK or FG_CUDA(invalid device) with the text set */
FG_RT_API void fg_rt_device_pci(int device, char out[16]); /* "0000:07:00.0" */
FG_RT_API int fg_rt_device_pci_bus(int device);
FG_RT_API bool fg_rt_device_current_set(void); /* this thread called fg_rt_device_set */
FG_RT_API unsigned fg_rt_device_epoch(void);   /* how often this thread called fg_rt_device_set */
FG_RT_API void fg_rt_device_activate(int device); /* the device's primary context came into being */
FG_RT_API bool fg_rt_device_active(int device);
/* NVML's view: every device of the machine, before CUDA_VISIBLE_DEVICES */
FG_RT_API int fg_rt_physical_count(void);
FG_RT_API const fg_profile_t *fg_rt_physical_profile(int index); /* NULL = no such device */
FG_RT_API void fg_rt_physical_uuid(int index, char out[48]);     /* "GPU-...": "" = no such device */
FG_RT_API int fg_rt_physical_visible(int index);                 /* the visible device it is, or -1 */
#define FG_ATTRIBUTES 160
FG_RT_API int fg_rt_device_attribute(int device, int attribute, int *out); /* numbers of cudaDeviceAttr/CUdevice_attribute */

/* ---- memory.c ---- */
#define FG_MEM_PORTABLE 1u
typedef struct fg_block_info {
    fg_memory_info_t memory;
    uint64_t id;        /* unique over the life of the process */
    uint32_t flags;     /* as given at allocation */
    bool mapped_handle; /* from cuMemMap */
    bool imported;      /* another process's */
    void *pool;         /* memory pool it came from, or NULL */
} fg_block_info_t;
FG_RT_API int fg_rt_block_info(const void *pointer, fg_block_info_t *out);
FG_RT_API int fg_rt_host_alloc(uint64_t bytes, uint32_t flags, void **out);
FG_RT_API int fg_rt_managed_alloc(int device, uint64_t bytes, uint32_t flags, void **out);
FG_RT_API int fg_rt_host_register(void *pointer, uint64_t bytes, uint32_t flags);
FG_RT_API int fg_rt_memory_release(void *pointer, fg_memory_kind_t kind); /* frees only what is of that kind */
FG_RT_API int fg_rt_memory_account(int device, int64_t bytes); /* FG_OUT_OF_MEMORY past the limit */
FG_RT_API int fg_rt_memory_host_guard(uint64_t bytes); /* FG_OUT_OF_MEMORY: the host has not that much left */
FG_RT_API int fg_rt_memory_set_pool(void *pointer, void *pool);
FG_RT_API void fg_rt_memory_free_device(int device); /* cudaDeviceReset: every block allocated there */

/* ---- vmm.c: memory apart from addresses (cuMemCreate, cuMemMap): a shared segment per handle ---- */
#define FG_VMM_GRANULARITY (2ull << 20)
typedef struct fg_vmm fg_vmm_t;
FG_RT_API int fg_rt_vmm_create(int device, uint64_t bytes, uint32_t handle_types, fg_vmm_t **out);
FG_RT_API int fg_rt_vmm_release(fg_vmm_t *handle);
FG_RT_API int fg_rt_vmm_info(const fg_vmm_t *handle, int *device, uint64_t *bytes, uint32_t *handle_types);
FG_RT_API int fg_rt_vmm_reserve(uint64_t bytes, uint64_t align, void **out);
FG_RT_API int fg_rt_vmm_unreserve(void *address, uint64_t bytes);
FG_RT_API int fg_rt_vmm_map(void *address, uint64_t bytes, uint64_t offset, fg_vmm_t *handle); /* not yet accessible */
FG_RT_API int fg_rt_vmm_unmap(void *address, uint64_t bytes);
FG_RT_API int fg_rt_vmm_protect(void *address, uint64_t bytes, int flags); /* CUmemAccess_flags: 0, 1 read, 3 both */
FG_RT_API int fg_rt_vmm_protection(const void *address, int *flags);
FG_RT_API int fg_rt_vmm_export(fg_vmm_t *handle, int *fd); /* a new descriptor, the caller's */
FG_RT_API int fg_rt_vmm_import(int fd, fg_vmm_t **out);    /* the descriptor stays the caller's */
FG_RT_API int fg_rt_vmm_retain(const void *address, fg_vmm_t **out);

/* ---- stream.c ---- */
#define FG_STREAM_NON_BLOCKING 1u
FG_RT_API int fg_rt_stream_create(int device, uint32_t flags, int priority, fg_stream_t **out);
FG_RT_API int fg_rt_stream_destroy(fg_stream_t *stream);
FG_RT_API uint32_t fg_rt_stream_flags(const fg_stream_t *stream);
FG_RT_API int fg_rt_stream_priority(const fg_stream_t *stream);
FG_RT_API uint64_t fg_rt_stream_id(const fg_stream_t *stream);
FG_RT_API int fg_rt_device_sync(int device); /* every stream of the device */
/* at once, or FG_IN_PROGRESS and nothing done when it would have to queue */
FG_RT_API int fg_rt_stream_try(fg_stream_t *stream, fg_job_fn fn, void *arg);
FG_RT_API bool fg_rt_in_job(void); /* the calling thread runs a stream's item */

/* ---- event.c ---- */
typedef struct fg_event fg_event_t;
#define FG_EVENT_BLOCKING_SYNC 1u
#define FG_EVENT_DISABLE_TIMING 2u
#define FG_EVENT_INTERPROCESS 4u
FG_RT_API int fg_rt_event_create(int device, uint32_t flags, fg_event_t **out);
FG_RT_API int fg_rt_event_destroy(fg_event_t *event);
FG_RT_API int fg_rt_event_check(const void *handle); /* FG_OK or FG_CUDA(invalid resource handle) */
FG_RT_API int fg_rt_event_record(fg_event_t *event, fg_stream_t *stream);
FG_RT_API int fg_rt_event_wait(fg_stream_t *stream, fg_event_t *event);
FG_RT_API int fg_rt_event_query(fg_event_t *event);
FG_RT_API int fg_rt_event_sync(fg_event_t *event);
FG_RT_API int fg_rt_event_elapsed(fg_event_t *start, fg_event_t *end, float *milliseconds);
FG_RT_API int fg_rt_event_device(const fg_event_t *event);
FG_RT_API int fg_rt_event_export(const fg_event_t *event, void *handle); /* 64 bytes, as CUDA's IPC handles */
FG_RT_API int fg_rt_event_import(const void *handle, fg_event_t **out);

/* ---- ipc.c ---- */
FG_RT_API int fg_rt_ipc_export(const void *pointer, void *handle); /* 64 bytes; of the allocation that holds pointer */
FG_RT_API int fg_rt_ipc_open(const void *handle, void **out);
FG_RT_API int fg_rt_ipc_close(void *pointer);

/* ---- copy.c: copies and fills in stream order; pitches are ignored where height and depth are 1 ---- */
typedef struct fg_copy {
    void *dst;
    const void *src;
    uint64_t width, height, depth; /* bytes, rows, slices */
    uint64_t dst_pitch, src_pitch, dst_slice, src_slice;
} fg_copy_t;
typedef struct fg_fill {
    void *dst;
    uint64_t width, height, depth; /* elements, rows, slices */
    uint64_t pitch, slice;         /* bytes */
    uint32_t value, element_bytes; /* 1, 2 or 4 */
} fg_fill_t;
/* kind: cudaMemcpyKind; async: return as soon as CUDA may (a pageable source has been read by then) */
FG_RT_API int fg_rt_copy(const char *api, fg_stream_t *stream, const fg_copy_t *copy, int kind, bool async);
FG_RT_API int fg_rt_fill(const char *api, fg_stream_t *stream, const fg_fill_t *fill, bool async);

/* ---- graph.c: CUDA graphs ---- */
FG_RT_API bool fg_rt_stream_capturing(const fg_stream_t *stream);
FG_RT_API int fg_rt_capture_begin(fg_stream_t *stream);
FG_RT_API int fg_rt_capture_end(fg_stream_t *stream, fg_graph_t **out); /* *out: a handle with one reference */
/* cudaStreamCaptureStatus: 0 none, 1 active, 2 invalid; graph may be NULL */
FG_RT_API int fg_rt_capture_state(const fg_stream_t *stream, uint64_t *id, fg_graph_t **graph);
FG_RT_API int fg_rt_graph_launch(fg_graph_t *graph, fg_stream_t *stream);
FG_RT_API int fg_rt_graph_check(const void *handle);
FG_RT_API int fg_rt_graph_destroy(fg_graph_t *graph);
typedef struct fg_exec fg_exec_t; /* an instantiated graph */
FG_RT_API int fg_rt_exec_create(fg_graph_t *graph, fg_exec_t **out);
FG_RT_API int fg_rt_exec_check(const void *handle);
FG_RT_API int fg_rt_exec_destroy(fg_exec_t *exec);
FG_RT_API fg_graph_t *fg_rt_exec_graph(const fg_exec_t *exec);
FG_RT_API size_t fg_rt_graph_size(const fg_graph_t *graph);
FG_RT_API const char *fg_rt_graph_node_name(const fg_graph_t *graph, size_t index); /* NULL = no such node */

/* ---- kernel.c ---- */
FG_RT_API int fg_rt_kernel_add(const void *host_function, const char *name); /* name stays valid */
FG_RT_API const char *fg_rt_kernel_name(const void *host_function); /* NULL = not registered */
FG_RT_API int fg_rt_kernel_launch(const fg_launch_t *launch); /* FG_CUDA(98) and its name when nobody registered for it */

/* ---- ledger.c ---- */
typedef struct fg_process { uint32_t pid; uint64_t used; } fg_process_t;
/* processes of the job that hold memory of a physical device: how many; the first `room` of them are written */
FG_RT_API int fg_rt_memory_processes(int physical, fg_process_t *out, int room);
FG_RT_API uint64_t fg_rt_physical_usage(int physical); /* bytes in use, all processes together */

/* ---- pool.c ---- */
typedef struct fg_pool fg_pool_t;
#define FG_POOL_ATTRIBUTES 9
FG_RT_API int fg_rt_pool_create(int device, fg_pool_t **out);
FG_RT_API int fg_rt_pool_destroy(fg_pool_t *pool);
FG_RT_API int fg_rt_pool_check(const void *handle);
FG_RT_API int fg_rt_pool_default(int device, fg_pool_t **out);
FG_RT_API int fg_rt_pool_get(int device, fg_pool_t **out);
FG_RT_API int fg_rt_pool_set(int device, fg_pool_t *pool);
FG_RT_API int fg_rt_pool_device(const fg_pool_t *pool);
FG_RT_API int fg_rt_pool_alloc(fg_pool_t *pool, uint64_t bytes, void **out);
FG_RT_API int fg_rt_pool_free(void *pointer, fg_stream_t *stream); /* in stream order; any device allocation */
FG_RT_API int fg_rt_pool_attribute(fg_pool_t *pool, int attribute, bool set, void *value);

#ifdef __cplusplus
}
#endif
#endif
