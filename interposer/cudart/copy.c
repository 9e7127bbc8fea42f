/* The copy and fill family: every form becomes one fg_copy_t or fg_fill_t and one call into libfakegpu_rt. Arrays are
 * refused by name (see data/api/cudart.yaml).
 */
#include "cudart.h"

static cudaError_t copy_on(const char *api, cudaStream_t handle, const fg_copy_t *copy, int kind, bool async) {
    int status;
    fg_stream_t *stream = fg_cudart_stream(handle, &status);
    return fg_cudart_answer(stream ? fg_rt_copy(api, stream, copy, kind, async) : status);
}

static fg_copy_t flat(void *dst, const void *src, size_t bytes) {
    return (fg_copy_t){.dst = dst, .src = src, .width = bytes, .height = 1, .depth = 1};
}

FG_EXPORT cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, int kind) {
    FG_ENTER();
    fg_copy_t copy = flat(dst, src, count);
    return copy_on("cudaMemcpy", NULL, &copy, kind, false);
}

FG_EXPORT cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, int kind, cudaStream_t stream) {
    FG_ENTER();
    fg_copy_t copy = flat(dst, src, count);
    return copy_on("cudaMemcpyAsync", stream, &copy, kind, true);
}

FG_EXPORT cudaError_t cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t count) {
    FG_ENTER();
    fg_copy_t copy = flat(dst, src, count);
    if (fg_rt_device_check(dstDevice) || fg_rt_device_check(srcDevice))
        return fg_cudart_answer(FG_CUDA(101));
    return copy_on("cudaMemcpyPeer", NULL, &copy, 4, false);
}

FG_EXPORT cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count,
                                          cudaStream_t stream) {
    FG_ENTER();
    fg_copy_t copy = flat(dst, src, count);
    if (fg_rt_device_check(dstDevice) || fg_rt_device_check(srcDevice))
        return fg_cudart_answer(FG_CUDA(101));
    return copy_on("cudaMemcpyPeerAsync", stream, &copy, 4, true);
}

static cudaError_t copy_2d(const char *api, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                           size_t height, int kind, cudaStream_t stream, bool async) {
    if (height > 1 && (width > dpitch || width > spitch))
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(12), "%s: width %zu exceeds a pitch (%zu, %zu)", api, width, dpitch,
                                                spitch));
    fg_copy_t copy = {.dst = dst, .src = src, .width = width, .height = height, .depth = 1, .dst_pitch = dpitch,
                      .src_pitch = spitch};
    return copy_on(api, stream, &copy, kind, async);
}

FG_EXPORT cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                                   int kind) {
    FG_ENTER();
    return copy_2d("cudaMemcpy2D", dst, dpitch, src, spitch, width, height, kind, NULL, false);
}

FG_EXPORT cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                                        size_t height, int kind, cudaStream_t stream) {
    FG_ENTER();
    return copy_2d("cudaMemcpy2DAsync", dst, dpitch, src, spitch, width, height, kind, stream, true);
}

/* positions are in bytes along x: arrays, whose elements have a size, are refused */
static int volume(const char *api, const struct cudaMemcpy3DParms *p, fg_copy_t *out) {
    if (!p)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: p is NULL", api);
    if (p->srcArray || p->dstArray)
        return fg_rt_unsupported(api, "CUDA arrays are not available; use linear memory");
    const struct cudaPitchedPtr *s = &p->srcPtr, *d = &p->dstPtr;
    size_t rows = p->extent.height;
    if (rows > 1 && (p->extent.width > s->pitch || p->extent.width > d->pitch))
        return fg_rt_set_error(FG_CUDA(12), "%s: width %zu exceeds a pitch (%zu, %zu)", api, p->extent.width, s->pitch,
                               d->pitch);
    *out = (fg_copy_t){.width = p->extent.width, .height = rows, .depth = p->extent.depth, .dst_pitch = d->pitch,
                       .src_pitch = s->pitch, .dst_slice = d->pitch * d->ysize, .src_slice = s->pitch * s->ysize};
    out->src = (char *)s->ptr + p->srcPos.x + p->srcPos.y * out->src_pitch + p->srcPos.z * out->src_slice;
    out->dst = (char *)d->ptr + p->dstPos.x + p->dstPos.y * out->dst_pitch + p->dstPos.z * out->dst_slice;
    return FG_OK;
}

FG_EXPORT cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *p) {
    FG_ENTER();
    fg_copy_t copy;
    int status = volume("cudaMemcpy3D", p, &copy);
    return status ? fg_cudart_answer(status) : copy_on("cudaMemcpy3D", NULL, &copy, p->kind, false);
}

FG_EXPORT cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, cudaStream_t stream) {
    FG_ENTER();
    fg_copy_t copy;
    int status = volume("cudaMemcpy3DAsync", p, &copy);
    return status ? fg_cudart_answer(status) : copy_on("cudaMemcpy3DAsync", stream, &copy, p->kind, true);
}

static struct cudaMemcpy3DParms peer_volume(const struct cudaMemcpy3DPeerParms *p) {
    return (struct cudaMemcpy3DParms){p->srcArray, p->srcPos, p->srcPtr, p->dstArray, p->dstPos, p->dstPtr, p->extent, 4};
}

FG_EXPORT cudaError_t cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *p) {
    FG_REQUIRE(p, "cudaMemcpy3DPeer: p is NULL");
    struct cudaMemcpy3DParms plain = peer_volume(p);
    return cudaMemcpy3D(&plain);
}

FG_EXPORT cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *p, cudaStream_t stream) {
    FG_REQUIRE(p, "cudaMemcpy3DPeerAsync: p is NULL");
    struct cudaMemcpy3DParms plain = peer_volume(p);
    return cudaMemcpy3DAsync(&plain, stream);
}

FG_EXPORT cudaError_t cudaMemcpyBatchAsync(void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count,
                                           struct cudaMemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                           cudaStream_t stream) {
    FG_ENTER();
    FG_REQUIRE(dsts && srcs && sizes && attrs && attrsIdxs && count && numAttrs && numAttrs <= count,
               "cudaMemcpyBatchAsync: a pointer is NULL or a count is 0");
    FG_REQUIRE(stream, "cudaMemcpyBatchAsync: the legacy NULL stream is not permitted");
    for (size_t i = 0; i < count; i++) {
        fg_copy_t copy = flat(dsts[i], srcs[i], sizes[i]);
        cudaError_t error = copy_on("cudaMemcpyBatchAsync", stream, &copy, 4, true);
        if (error)
            return error;
    }
    return 0;
}

/* ---- fills ---- */

static cudaError_t fill_on(const char *api, cudaStream_t handle, const fg_fill_t *fill, bool async) {
    int status;
    fg_stream_t *stream = fg_cudart_stream(handle, &status);
    return fg_cudart_answer(stream ? fg_rt_fill(api, stream, fill, async) : status);
}

static fg_fill_t fill_of(void *dst, size_t pitch, int value, size_t width, size_t height, size_t depth, size_t slice) {
    return (fg_fill_t){.dst = dst, .width = width, .height = height, .depth = depth, .pitch = pitch, .slice = slice,
                       .value = (unsigned char)value, .element_bytes = 1};
}

FG_EXPORT cudaError_t cudaMemset(void *dst, int value, size_t count) {
    FG_ENTER();
    fg_fill_t fill = fill_of(dst, 0, value, count, 1, 1, 0);
    return fill_on("cudaMemset", NULL, &fill, false);
}

FG_EXPORT cudaError_t cudaMemsetAsync(void *dst, int value, size_t count, cudaStream_t stream) {
    FG_ENTER();
    fg_fill_t fill = fill_of(dst, 0, value, count, 1, 1, 0);
    return fill_on("cudaMemsetAsync", stream, &fill, true);
}

FG_EXPORT cudaError_t cudaMemset2D(void *dst, size_t pitch, int value, size_t width, size_t height) {
    FG_ENTER();
    fg_fill_t fill = fill_of(dst, pitch, value, width, height, 1, 0);
    return fill_on("cudaMemset2D", NULL, &fill, false);
}

FG_EXPORT cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t height,
                                        cudaStream_t stream) {
    FG_ENTER();
    fg_fill_t fill = fill_of(dst, pitch, value, width, height, 1, 0);
    return fill_on("cudaMemset2DAsync", stream, &fill, true);
}

FG_EXPORT cudaError_t cudaMemset3D(struct cudaPitchedPtr p, int value, struct cudaExtent extent) {
    FG_ENTER();
    fg_fill_t fill = fill_of(p.ptr, p.pitch, value, extent.width, extent.height, extent.depth, p.pitch * p.ysize);
    return fill_on("cudaMemset3D", NULL, &fill, false);
}

FG_EXPORT cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr p, int value, struct cudaExtent extent,
                                        cudaStream_t stream) {
    FG_ENTER();
    fg_fill_t fill = fill_of(p.ptr, p.pitch, value, extent.width, extent.height, extent.depth, p.pitch * p.ysize);
    return fill_on("cudaMemset3DAsync", stream, &fill, true);
}
