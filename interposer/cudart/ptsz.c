/* The variants a program gets when it is compiled with --default-stream per-thread: the same calls, with the NULL stream
 * meaning the thread's own. Synchronous forms (_ptds) are the asynchronous ones followed by a wait.
 */
#include "cudart.h"
#include "cudart_calls.h"

#define PER_THREAD ((cudaStream_t)2)
#define OWN(stream) ((stream) ? (stream) : PER_THREAD)

/* NAME(parameters..., stream) -> NAME_ptsz; the stream's place among the arguments is written out */
#define PTSZ(name, parameters, arguments)                \
    FG_EXPORT cudaError_t name##_ptsz parameters {       \
        return name arguments;                           \
    }
#define PTDS(name, parameters, call)                     \
    FG_EXPORT cudaError_t name##_ptds parameters {       \
        cudaError_t error = call;                        \
        return error ? error : cudaStreamSynchronize(PER_THREAD); \
    }

PTSZ(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (e, OWN(s)))
PTSZ(cudaEventRecordWithFlags, (cudaEvent_t e, cudaStream_t s, unsigned f), (e, OWN(s), f))
PTSZ(cudaLaunchHostFunc, (cudaStream_t s, cudaHostFn_t f, void *d), (OWN(s), f, d))
PTSZ(cudaLaunchKernel, (const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s), (f, g, b, a, m, OWN(s)))
PTSZ(__cudaLaunchKernel, (cudaKernel_t f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s), (f, g, b, a, m, OWN(s)))
PTSZ(cudaLaunchCooperativeKernel, (const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s),
     (f, g, b, a, m, OWN(s)))
PTSZ(cudaMemPrefetchAsync, (const void *p, size_t n, struct cudaMemLocation l, unsigned f, cudaStream_t s),
     (p, n, l, f, OWN(s)))
PTSZ(cudaMemcpyAsync, (void *d, const void *p, size_t n, int k, cudaStream_t s), (d, p, n, k, OWN(s)))
PTSZ(cudaMemcpy2DAsync, (void *d, size_t dp, const void *p, size_t sp, size_t w, size_t h, int k, cudaStream_t s),
     (d, dp, p, sp, w, h, k, OWN(s)))
PTSZ(cudaMemcpy3DAsync, (const struct cudaMemcpy3DParms *p, cudaStream_t s), (p, OWN(s)))
PTSZ(cudaMemcpy3DPeerAsync, (const struct cudaMemcpy3DPeerParms *p, cudaStream_t s), (p, OWN(s)))
PTSZ(cudaMemcpyBatchAsync, (void *const *d, const void *const *p, const size_t *n, size_t c, struct cudaMemcpyAttributes *a,
     size_t *i, size_t m, cudaStream_t s), (d, p, n, c, a, i, m, OWN(s)))
PTSZ(cudaMemcpyFromSymbolAsync, (void *d, const void *y, size_t n, size_t o, int k, cudaStream_t s), (d, y, n, o, k, OWN(s)))
PTSZ(cudaMemcpyToSymbolAsync, (const void *y, const void *p, size_t n, size_t o, int k, cudaStream_t s),
     (y, p, n, o, k, OWN(s)))
PTSZ(cudaMemsetAsync, (void *p, int v, size_t n, cudaStream_t s), (p, v, n, OWN(s)))
PTSZ(cudaMemset2DAsync, (void *p, size_t q, int v, size_t w, size_t h, cudaStream_t s), (p, q, v, w, h, OWN(s)))
PTSZ(cudaMemset3DAsync, (struct cudaPitchedPtr p, int v, struct cudaExtent e, cudaStream_t s), (p, v, e, OWN(s)))
PTSZ(cudaStreamAddCallback, (cudaStream_t s, cudaStreamCallback_t c, void *d, unsigned f), (OWN(s), c, d, f))
PTSZ(cudaStreamAttachMemAsync, (cudaStream_t s, void *p, size_t n, unsigned f), (OWN(s), p, n, f))
PTSZ(cudaStreamCopyAttributes, (cudaStream_t a, cudaStream_t b), (OWN(a), OWN(b)))
PTSZ(cudaStreamGetAttribute, (cudaStream_t s, int a, cudaLaunchAttributeValue *v), (OWN(s), a, v))
PTSZ(cudaStreamSetAttribute, (cudaStream_t s, int a, const cudaLaunchAttributeValue *v), (OWN(s), a, v))
PTSZ(cudaStreamGetDevice, (cudaStream_t s, int *d), (OWN(s), d))
PTSZ(cudaStreamGetFlags, (cudaStream_t s, unsigned *f), (OWN(s), f))
PTSZ(cudaStreamGetId, (cudaStream_t s, unsigned long long *i), (OWN(s), i))
PTSZ(cudaStreamGetPriority, (cudaStream_t s, int *p), (OWN(s), p))
PTSZ(cudaStreamQuery, (cudaStream_t s), (OWN(s)))
PTSZ(cudaStreamSynchronize, (cudaStream_t s), (OWN(s)))
PTSZ(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned f), (OWN(s), e, f))
PTSZ(cudaMallocAsync, (void **p, size_t n, cudaStream_t s), (p, n, OWN(s)))
PTSZ(cudaMallocFromPoolAsync, (void **p, size_t n, cudaMemPool_t m, cudaStream_t s), (p, n, m, OWN(s)))
PTSZ(cudaFreeAsync, (void *p, cudaStream_t s), (p, OWN(s)))

FG_EXPORT cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function, void **args) {
    FG_REQUIRE(config, "cudaLaunchKernelExC: config is NULL");
    cudaLaunchConfig_t own = *config;
    own.stream = OWN(own.stream);
    return cudaLaunchKernelExC(&own, function, args);
}

PTDS(cudaMemcpy, (void *d, const void *p, size_t n, int k), cudaMemcpyAsync(d, p, n, k, PER_THREAD))
PTDS(cudaMemcpy2D, (void *d, size_t dp, const void *p, size_t sp, size_t w, size_t h, int k),
     cudaMemcpy2DAsync(d, dp, p, sp, w, h, k, PER_THREAD))
PTDS(cudaMemcpy3D, (const struct cudaMemcpy3DParms *p), cudaMemcpy3DAsync(p, PER_THREAD))
PTDS(cudaMemcpy3DPeer, (const struct cudaMemcpy3DPeerParms *p), cudaMemcpy3DPeerAsync(p, PER_THREAD))
PTDS(cudaMemcpyFromSymbol, (void *d, const void *y, size_t n, size_t o, int k),
     cudaMemcpyFromSymbolAsync(d, y, n, o, k, PER_THREAD))
PTDS(cudaMemcpyToSymbol, (const void *y, const void *p, size_t n, size_t o, int k),
     cudaMemcpyToSymbolAsync(y, p, n, o, k, PER_THREAD))
PTDS(cudaMemset, (void *p, int v, size_t n), cudaMemsetAsync(p, v, n, PER_THREAD))
PTDS(cudaMemset2D, (void *p, size_t q, int v, size_t w, size_t h), cudaMemset2DAsync(p, q, v, w, h, PER_THREAD))
PTDS(cudaMemset3D, (struct cudaPitchedPtr p, int v, struct cudaExtent e), cudaMemset3DAsync(p, v, e, PER_THREAD))
