/* Device variables (__device__, __constant__): each registered symbol gets memory on each device at its first use, zero
 * as fresh memory is. Initialisers of a variable live in device code and cannot be read: cudaGetSymbolAddress and the
 * copies work on what the program itself has written.
 */
#include "cudart.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEVICES 64

typedef struct symbol {
    struct symbol *next;
    const void *host;
    const char *name;
    size_t bytes;
    void *memory[MAX_DEVICES];
} symbol_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static symbol_t *symbols;

void fg_cudart_symbol_add(const void *host, const char *name, size_t bytes) {
    symbol_t *made = calloc(1, sizeof *made);
    if (!made)
        return;
    made->host = host;
    made->name = name;
    made->bytes = bytes;
    pthread_mutex_lock(&lock);
    made->next = symbols;
    symbols = made;
    pthread_mutex_unlock(&lock);
}

static int find(const char *api, const void *host, symbol_t **out, void **memory) {
    int device = fg_rt_device_get(), status = FG_OK;
    pthread_mutex_lock(&lock);
    symbol_t *s = symbols;
    while (s && s->host != host)
        s = s->next;
    if (!s)
        status = fg_rt_set_error(FG_CUDA(13), "%s: %p is not a device variable", api, host);
    else if (!s->memory[device])
        status = fg_rt_memory_alloc(device, s->bytes ? s->bytes : 1, &s->memory[device]);
    *memory = s ? s->memory[device] : NULL;
    pthread_mutex_unlock(&lock);
    *out = s;
    return status;
}

FG_EXPORT cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    FG_ENTER();
    symbol_t *s;
    FG_REQUIRE(address, "cudaGetSymbolAddress: devPtr is NULL");
    return fg_cudart_answer(find("cudaGetSymbolAddress", symbol, &s, address));
}

FG_EXPORT cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
    FG_ENTER();
    symbol_t *s;
    void *memory;
    FG_REQUIRE(bytes, "cudaGetSymbolSize: size is NULL");
    int status = find("cudaGetSymbolSize", symbol, &s, &memory);
    if (!status)
        *bytes = s->bytes;
    return fg_cudart_answer(status);
}

static cudaError_t move(const char *api, const void *symbol, void *out, const void *in, size_t count, size_t offset,
                        int kind, cudaStream_t handle, bool async) {
    FG_ENTER();
    symbol_t *s;
    void *memory;
    int status = find(api, symbol, &s, &memory);
    if (status)
        return fg_cudart_answer(status);
    FG_REQUIRE(offset <= s->bytes && count <= s->bytes - offset, "%s: offset %zu + %zu bytes: %s has %zu", api, offset, count,
               s->name, s->bytes);
    fg_stream_t *stream = fg_cudart_stream(handle, &status);
    if (!stream)
        return fg_cudart_answer(status);
    fg_copy_t copy = {.dst = out ? out : (char *)memory + offset, .src = in ? in : (char *)memory + offset, .width = count,
                      .height = 1, .depth = 1};
    return fg_cudart_answer(fg_rt_copy(api, stream, &copy, kind, async));
}

FG_EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *src, size_t count, size_t offset, int kind) {
    return move("cudaMemcpyToSymbol", symbol, NULL, src, count, offset, kind, NULL, false);
}

FG_EXPORT cudaError_t cudaMemcpyFromSymbol(void *dst, const void *symbol, size_t count, size_t offset, int kind) {
    return move("cudaMemcpyFromSymbol", symbol, dst, NULL, count, offset, kind, NULL, false);
}

FG_EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *src, size_t count, size_t offset, int kind,
                                              cudaStream_t stream) {
    return move("cudaMemcpyToSymbolAsync", symbol, NULL, src, count, offset, kind, stream, true);
}

FG_EXPORT cudaError_t cudaMemcpyFromSymbolAsync(void *dst, const void *symbol, size_t count, size_t offset, int kind,
                                                cudaStream_t stream) {
    return move("cudaMemcpyFromSymbolAsync", symbol, dst, NULL, count, offset, kind, stream, true);
}
