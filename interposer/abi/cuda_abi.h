/* The CUDA 13.0 driver ABI as libcuda.so.1 needs it: our own minimal declarations. Handles are opaque pointers,
 * enumerations are int, device pointers 64-bit integers. A test compiles the layouts against the real header.
 */
#ifndef FG_CUDA_ABI_H
#define FG_CUDA_ABI_H
#include <stddef.h>
#include <stdint.h>

#define FG_CUDA_VERSION 13000

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct fg_context *CUcontext;
typedef void *CUstream;
typedef void *CUevent;
typedef void *CUfunction;
typedef void *CUkernel;
typedef void *CUmemoryPool;
typedef void *CUgraph;
typedef void *CUgraphNode;
typedef void *CUarray;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { char reserved[64]; } CUipcEventHandle;
typedef void (*CUhostFn)(void *userData);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *userData);

enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_ARRAY = 3, CU_MEMORY_UNIFIED = 4 };
enum { CU_LOCATION_DEVICE = 1 };
enum { CU_HANDLE_POSIX_FD = 1 };

typedef struct {
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock, totalConstantMemory, SIMDWidth, memPitch;
    int regsPerBlock, clockRate, textureAlign;
} CUdevprop;

typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* also CUDA_MEMCPY3D_PEER, which has the contexts where this one has reserved pointers */
typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *srcContext;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *dstContext;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct { int type, id; } CUmemLocation;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags;
} CUmemAllocationProp;
typedef struct {
    int allocType, handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;
typedef struct {
    int srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;

typedef union {
    int operation;
    struct {
        int operation;
        CUdeviceptr address;
        union { uint32_t value; uint64_t value64; };
        unsigned flags;
        CUdeviceptr alias;
    } value; /* waits and writes */
    uint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef union { char pad[64]; int number; } CUlaunchAttributeValue;
typedef struct { int id; char pad[4]; CUlaunchAttributeValue value; } CUlaunchAttribute;
typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;
typedef struct { void *execAffinityParams; int numExecAffinityParams; void *cigParams; } CUctxCreateParams;
#endif
