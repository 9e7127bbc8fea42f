/* cudaCreateChannelDesc answers by value, so it cannot refuse; it describes a format and needs no GPU. */
#include "cudart.h"

typedef struct { int x, y, z, w, f; } channel_t;

FG_EXPORT channel_t cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return (channel_t){x, y, z, w, kind};
}
