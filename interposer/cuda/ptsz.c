/* The variants a program gets when it is compiled for per-thread default streams: the same calls, with the NULL stream
 * meaning the thread's own. Synchronous forms (_ptds) are the asynchronous ones followed by a wait.
 */
#include "calls.h"

#define PER_THREAD ((CUstream)2)
#define OWN(stream) ((stream) ? (stream) : PER_THREAD)

#define PTSZ(name, parameters, arguments)               \
    FG_EXPORT CUresult name##_ptsz parameters;          \
    FG_EXPORT CUresult name##_ptsz parameters {         \
        return name arguments;                          \
    }
#define PTDS(name, parameters, call)                    \
    FG_EXPORT CUresult name##_ptds parameters;          \
    FG_EXPORT CUresult name##_ptds parameters {         \
        CUresult error = call;                          \
        return error ? error : cuStreamSynchronize(PER_THREAD); \
    }

PTSZ(cuEventRecord, (CUevent e, CUstream s), (e, OWN(s)))
PTSZ(cuEventRecordWithFlags, (CUevent e, CUstream s, unsigned f), (e, OWN(s), f))
PTSZ(cuLaunchCooperativeKernel, (CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
     unsigned m, CUstream s, void **p), (f, a, b, c, d, e, g, m, OWN(s), p))
PTSZ(cuLaunchHostFunc, (CUstream s, CUhostFn f, void *d), (OWN(s), f, d))
PTSZ(cuLaunchKernel, (CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned m,
     CUstream s, void **p, void **x), (f, a, b, c, d, e, g, m, OWN(s), p, x))
PTSZ(cuMemAllocAsync, (CUdeviceptr *p, size_t n, CUstream s), (p, n, OWN(s)))
PTSZ(cuMemAllocFromPoolAsync, (CUdeviceptr *p, size_t n, CUmemoryPool m, CUstream s), (p, n, m, OWN(s)))
PTSZ(cuMemFreeAsync, (CUdeviceptr p, CUstream s), (p, OWN(s)))
PTSZ(cuMemPrefetchAsync, (CUdeviceptr p, size_t n, CUdevice d, CUstream s), (p, n, d, OWN(s)))
PTSZ(cuMemPrefetchAsync_v2, (CUdeviceptr p, size_t n, CUmemLocation l, unsigned f, CUstream s), (p, n, l, f, OWN(s)))
PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *p, CUstream s), (p, OWN(s)))
PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *p, CUstream s), (p, OWN(s)))
PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D *p, CUstream s), (p, OWN(s)))
PTSZ(cuMemcpyAsync, (CUdeviceptr d, CUdeviceptr p, size_t n, CUstream s), (d, p, n, OWN(s)))
PTSZ(cuMemcpyBatchAsync_v2, (const CUdeviceptr *d, const CUdeviceptr *p, const size_t *n, size_t c,
     const CUmemcpyAttributes *a, const size_t *i, size_t m, CUstream s), (d, p, n, c, a, i, m, OWN(s)))
PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr d, CUdeviceptr p, size_t n, CUstream s), (d, p, n, OWN(s)))
PTSZ(cuMemcpyDtoHAsync_v2, (void *d, CUdeviceptr p, size_t n, CUstream s), (d, p, n, OWN(s)))
PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr d, const void *p, size_t n, CUstream s), (d, p, n, OWN(s)))
PTSZ(cuMemcpyPeerAsync, (CUdeviceptr d, CUcontext x, CUdeviceptr p, CUcontext y, size_t n, CUstream s),
     (d, x, p, y, n, OWN(s)))
PTSZ(cuStreamAddCallback, (CUstream s, CUstreamCallback c, void *d, unsigned f), (OWN(s), c, d, f))
PTSZ(cuStreamAttachMemAsync, (CUstream s, CUdeviceptr p, size_t n, unsigned f), (OWN(s), p, n, f))
PTSZ(cuStreamBatchMemOp, (CUstream s, unsigned n, const CUstreamBatchMemOpParams *p, unsigned f), (OWN(s), n, p, f))
PTSZ(cuStreamBatchMemOp_v2, (CUstream s, unsigned n, const CUstreamBatchMemOpParams *p, unsigned f), (OWN(s), n, p, f))
PTSZ(cuStreamCopyAttributes, (CUstream a, CUstream b), (OWN(a), OWN(b)))
PTSZ(cuStreamGetAttribute, (CUstream s, int a, CUlaunchAttributeValue *v), (OWN(s), a, v))
PTSZ(cuStreamSetAttribute, (CUstream s, int a, const CUlaunchAttributeValue *v), (OWN(s), a, v))
PTSZ(cuStreamGetCtx, (CUstream s, CUcontext *c), (OWN(s), c))
PTSZ(cuStreamGetCtx_v2, (CUstream s, CUcontext *c, void **g), (OWN(s), c, g))
PTSZ(cuStreamGetDevice, (CUstream s, CUdevice *d), (OWN(s), d))
PTSZ(cuStreamGetFlags, (CUstream s, unsigned *f), (OWN(s), f))
PTSZ(cuStreamGetId, (CUstream s, unsigned long long *i), (OWN(s), i))
PTSZ(cuStreamGetPriority, (CUstream s, int *p), (OWN(s), p))
PTSZ(cuStreamIsCapturing, (CUstream s, int *c), (OWN(s), c))
PTSZ(cuStreamQuery, (CUstream s), (OWN(s)))
PTSZ(cuStreamSynchronize, (CUstream s), (OWN(s)))
PTSZ(cuStreamWaitEvent, (CUstream s, CUevent e, unsigned f), (OWN(s), e, f))

FG_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **args, void **extra);
FG_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **args, void **extra) {
    FG_REQUIRE(config, "cuLaunchKernelEx: config is NULL");
    CUlaunchConfig own = *config;
    own.hStream = OWN(own.hStream);
    return cuLaunchKernelEx(&own, function, args, extra);
}

#define WORDS(name, type)                                                                        \
    PTSZ(name, (CUstream s, CUdeviceptr p, type v, unsigned f), (OWN(s), p, v, f))               \
    PTSZ(name##_v2, (CUstream s, CUdeviceptr p, type v, unsigned f), (OWN(s), p, v, f))

WORDS(cuStreamWriteValue32, uint32_t)
WORDS(cuStreamWriteValue64, uint64_t)
WORDS(cuStreamWaitValue32, uint32_t)
WORDS(cuStreamWaitValue64, uint64_t)

#define FILLS(bits, type)                                                                                               \
    PTSZ(cuMemsetD##bits##Async, (CUdeviceptr p, type v, size_t n, CUstream s), (p, v, n, OWN(s)))                       \
    PTSZ(cuMemsetD2D##bits##Async, (CUdeviceptr p, size_t q, type v, size_t w, size_t h, CUstream s),                    \
         (p, q, v, w, h, OWN(s)))                                                                                       \
    PTDS(cuMemsetD##bits##_v2, (CUdeviceptr p, type v, size_t n), cuMemsetD##bits##Async(p, v, n, PER_THREAD))           \
    PTDS(cuMemsetD2D##bits##_v2, (CUdeviceptr p, size_t q, type v, size_t w, size_t h),                                  \
         cuMemsetD2D##bits##Async(p, q, v, w, h, PER_THREAD))

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

PTDS(cuMemcpy, (CUdeviceptr d, CUdeviceptr p, size_t n), cuMemcpyAsync(d, p, n, PER_THREAD))
PTDS(cuMemcpyHtoD_v2, (CUdeviceptr d, const void *p, size_t n), cuMemcpyHtoDAsync_v2(d, p, n, PER_THREAD))
PTDS(cuMemcpyDtoH_v2, (void *d, CUdeviceptr p, size_t n), cuMemcpyDtoHAsync_v2(d, p, n, PER_THREAD))
PTDS(cuMemcpyDtoD_v2, (CUdeviceptr d, CUdeviceptr p, size_t n), cuMemcpyDtoDAsync_v2(d, p, n, PER_THREAD))
PTDS(cuMemcpyPeer, (CUdeviceptr d, CUcontext x, CUdeviceptr p, CUcontext y, size_t n),
     cuMemcpyPeerAsync(d, x, p, y, n, PER_THREAD))
PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *p), cuMemcpy2DAsync_v2(p, PER_THREAD))
PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *p), cuMemcpy2DAsync_v2(p, PER_THREAD))
PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *p), cuMemcpy3DAsync_v2(p, PER_THREAD))
PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D *p), cuMemcpy3DPeerAsync(p, PER_THREAD))
