/* The copy and fill family: every form becomes one fg_copy_t or fg_fill_t and one call into libfakegpu_rt. Arrays are
 * refused by name (see data/api/cuda.yaml).
 */
#include "driver.h"

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3, ANY = 4 }; /* as in cudaMemcpyKind */

static void *address(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

static CUresult copy_on(const char *api, CUstream handle, const fg_copy_t *copy, int kind, bool async) {
    int status;
    FG_ENTER_CONTEXT();
    fg_stream_t *stream = fg_driver_stream(handle, &status);
    return fg_driver_answer(stream ? fg_rt_copy(api, stream, copy, kind, async) : status);
}

static CUresult flat(const char *api, void *dst, const void *src, size_t bytes, int kind, CUstream stream, bool async) {
    fg_copy_t copy = {.dst = dst, .src = src, .width = bytes, .height = 1, .depth = 1};
    return copy_on(api, stream, &copy, kind, async);
}

FG_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
    return flat("cuMemcpy", address(dst), address(src), bytes, ANY, NULL, false);
}

FG_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    return flat("cuMemcpyAsync", address(dst), address(src), bytes, ANY, stream, true);
}

FG_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes) {
    return flat("cuMemcpyHtoD", address(dst), src, bytes, HOST_TO_DEVICE, NULL, false);
}

FG_EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes) {
    return flat("cuMemcpyDtoH", dst, address(src), bytes, DEVICE_TO_HOST, NULL, false);
}

FG_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
    return flat("cuMemcpyDtoD", address(dst), address(src), bytes, DEVICE_TO_DEVICE, NULL, false);
}

FG_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
    return flat("cuMemcpyHtoDAsync", address(dst), src, bytes, HOST_TO_DEVICE, stream, true);
}

FG_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    return flat("cuMemcpyDtoHAsync", dst, address(src), bytes, DEVICE_TO_HOST, stream, true);
}

FG_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    return flat("cuMemcpyDtoDAsync", address(dst), address(src), bytes, DEVICE_TO_DEVICE, stream, true);
}

static int check_contexts(CUcontext a, CUcontext b) {
    if (a && b && fg_driver_context_alive(a) && fg_driver_context_alive(b))
        return FG_OK;
    return fg_rt_set_error(FG_CUDA(201), "a copy between peers: a context is not alive");
}

FG_EXPORT CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes) {
    int status = check_contexts(to, from);
    return status ? fg_driver_answer(status) : flat("cuMemcpyPeer", address(dst), address(src), bytes, ANY, NULL, false);
}

FG_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes,
                                     CUstream stream) {
    int status = check_contexts(to, from);
    return status ? fg_driver_answer(status) : flat("cuMemcpyPeerAsync", address(dst), address(src), bytes, ANY, stream, true);
}

/* ---- rows and slices ---- */

/* start of one side of a volume, or NULL with the error set */
static char *side(const char *api, int type, const void *host, CUdeviceptr device, size_t offset) {
    if (type == CU_MEMORY_ARRAY) {
        fg_rt_unsupported(api, "CUDA arrays are not available; use linear memory");
        return NULL;
    }
    if (type < CU_MEMORY_HOST || type > CU_MEMORY_UNIFIED) {
        fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: memory type %d: expected 1 to 4", api, type);
        return NULL;
    }
    char *base = type == CU_MEMORY_HOST ? (char *)(uintptr_t)host : address(device);
    if (!base)
        fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: a pointer is NULL", api);
    return base ? base + offset : NULL;
}

static int kind_of(int from, int to) {
    if (from == CU_MEMORY_UNIFIED || to == CU_MEMORY_UNIFIED)
        return ANY;
    return (from == CU_MEMORY_DEVICE) * 2 + (to == CU_MEMORY_DEVICE);
}

static CUresult volume(const char *api, const CUDA_MEMCPY3D *p, CUstream stream, bool async) {
    size_t spitch = p->srcPitch ? p->srcPitch : p->WidthInBytes, dpitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
    size_t srows = p->srcHeight ? p->srcHeight : p->Height, drows = p->dstHeight ? p->dstHeight : p->Height;
    FG_REQUIRE(p->Height <= 1 || (p->WidthInBytes <= spitch && p->WidthInBytes <= dpitch),
               "%s: width %zu exceeds a pitch (%zu, %zu)", api, p->WidthInBytes, spitch, dpitch);
    FG_REQUIRE(p->Depth <= 1 || (p->Height <= srows && p->Height <= drows), "%s: height %zu exceeds a slice (%zu, %zu)", api,
               p->Height, srows, drows);
    fg_copy_t copy = {.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth, .src_pitch = spitch,
                      .dst_pitch = dpitch, .src_slice = spitch * srows, .dst_slice = dpitch * drows};
    copy.src = side(api, p->srcMemoryType, p->srcHost, p->srcDevice,
                    p->srcXInBytes + p->srcY * spitch + p->srcZ * copy.src_slice);
    copy.dst = side(api, p->dstMemoryType, p->dstHost, p->dstDevice,
                    p->dstXInBytes + p->dstY * dpitch + p->dstZ * copy.dst_slice);
    bool array = p->srcMemoryType == CU_MEMORY_ARRAY || p->dstMemoryType == CU_MEMORY_ARRAY;
    if (!copy.src || !copy.dst)
        return fg_driver_answer(array ? FG_NOT_SUPPORTED : FG_INVALID_ARGUMENT);
    return copy_on(api, stream, &copy, kind_of(p->srcMemoryType, p->dstMemoryType), async);
}

static CUresult plane(const char *api, const CUDA_MEMCPY2D *p, CUstream stream, bool async) {
    FG_REQUIRE(p, "%s: pCopy is NULL", api);
    CUDA_MEMCPY3D wide = {
        .srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
        .srcDevice = p->srcDevice, .srcArray = p->srcArray, .srcPitch = p->srcPitch, .dstXInBytes = p->dstXInBytes,
        .dstY = p->dstY, .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice,
        .dstArray = p->dstArray, .dstPitch = p->dstPitch, .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1};
    return volume(api, &wide, stream, async);
}

FG_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p) { return plane("cuMemcpy2D", p, NULL, false); }
FG_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p) { return plane("cuMemcpy2DUnaligned", p, NULL, false); }
FG_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream) {
    return plane("cuMemcpy2DAsync", p, stream, true);
}

FG_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p) {
    FG_REQUIRE(p, "cuMemcpy3D: pCopy is NULL");
    return volume("cuMemcpy3D", p, NULL, false);
}

FG_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream) {
    FG_REQUIRE(p, "cuMemcpy3DAsync: pCopy is NULL");
    return volume("cuMemcpy3DAsync", p, stream, true);
}

FG_EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *p) {
    FG_REQUIRE(p, "cuMemcpy3DPeer: pCopy is NULL");
    return volume("cuMemcpy3DPeer", p, NULL, false);
}

FG_EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *p, CUstream stream) {
    FG_REQUIRE(p, "cuMemcpy3DPeerAsync: pCopy is NULL");
    return volume("cuMemcpy3DPeerAsync", p, stream, true);
}

FG_EXPORT CUresult cuMemcpyBatchAsync_v2(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes, size_t count,
                                         const CUmemcpyAttributes *attrs, const size_t *indices, size_t attr_count,
                                         CUstream stream) {
    FG_REQUIRE(dsts && srcs && sizes && attrs && indices && count && attr_count && attr_count <= count,
               "cuMemcpyBatchAsync: a pointer is NULL or a count is 0");
    FG_REQUIRE(stream, "cuMemcpyBatchAsync: the legacy NULL stream is not permitted");
    CUresult failed = 0;
    for (size_t i = 0; i < count && !failed; i++)
        failed = flat("cuMemcpyBatchAsync", address(dsts[i]), address(srcs[i]), sizes[i], ANY, stream, true);
    return failed;
}

/* ---- fills: in elements of 1, 2 or 4 bytes ---- */

static CUresult fill_on(const char *api, CUdeviceptr dst, size_t pitch, unsigned value, unsigned element, size_t width,
                        size_t height, CUstream handle, bool async) {
    int status;
    FG_ENTER_CONTEXT();
    FG_REQUIRE(!(dst % element) && !(pitch % element), "%s: 0x%llx: expected an address and pitch of whole elements", api,
               dst);
    fg_fill_t fill = {.dst = address(dst), .width = width, .height = height, .depth = 1, .pitch = pitch, .value = value,
                      .element_bytes = element};
    fg_stream_t *stream = fg_driver_stream(handle, &status);
    return fg_driver_answer(stream ? fg_rt_fill(api, stream, &fill, async) : status);
}

#define FILLS(bits, type)                                                                                     \
    FG_EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t n) {                           \
        return fill_on("cuMemsetD" #bits, dst, 0, value, bits / 8, n, 1, NULL, false);                         \
    }                                                                                                          \
    FG_EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t n, CUstream stream) {        \
        return fill_on("cuMemsetD" #bits "Async", dst, 0, value, bits / 8, n, 1, stream, true);                \
    }                                                                                                          \
    FG_EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t w, size_t h) { \
        return fill_on("cuMemsetD2D" #bits, dst, pitch, value, bits / 8, w, h, NULL, false);                   \
    }                                                                                                          \
    FG_EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t w, size_t h, \
                                                CUstream stream) {                                             \
        return fill_on("cuMemsetD2D" #bits "Async", dst, pitch, value, bits / 8, w, h, stream, true);          \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
