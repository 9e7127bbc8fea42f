/* Mappings of peers' segments, kept between operations: a device arena is mapped once, not once per operation.
 *
 * Operations enter before they use a mapping and leave afterwards; trimming happens only while nobody is inside.
 */
#include <stdlib.h>
#include "comm.h"

typedef struct fg_mapping {
    struct fg_mapping *next;
    uint32_t pid;
    int fd;
    fg_segment_t segment;
} fg_mapping_t;

static pthread_rwlock_t users = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static fg_mapping_t *mappings;

void fg_cache_enter(void) {
    pthread_rwlock_rdlock(&users);
}

void fg_cache_leave(void) {
    pthread_rwlock_unlock(&users);
}

static int open_mapping(const fg_core_api_t *core, const fg_buffer_ref_t *ref, fg_mapping_t **out) {
    char why[FG_TEXT_BYTES] = "";
    fg_mapping_t *mapping = calloc(1, sizeof *mapping);
    if (!mapping) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a mapping's record");
    }
    int status = core->segment_open(ref, &mapping->segment, why, sizeof why);
    if (status) {
        free(mapping);
        return fg_rt_set_error(status, "mapping memory of process %u: %s", ref->pid, why);
    }
    mapping->pid = ref->pid;
    mapping->fd = ref->fd;
    mapping->segment.inode = ref->inode;
    mapping->next = mappings;
    *out = mappings = mapping;
    return FG_OK;
}

int fg_cache_map(const fg_core_api_t *core, const fg_buffer_ref_t *ref, uint8_t **out) {
    int status = FG_OK;
    pthread_mutex_lock(&list_lock);
    fg_mapping_t *mapping = mappings;
    while (mapping && (mapping->pid != ref->pid || mapping->fd != ref->fd || mapping->segment.inode != ref->inode ||
                       mapping->segment.bytes < ref->offset + ref->bytes)) {
        mapping = mapping->next;
    }
    if (!mapping) {
        status = open_mapping(core, ref, &mapping);
    }
    pthread_mutex_unlock(&list_lock);
    if (!status && (status = core->segment_check(&mapping->segment, ref->offset, ref->bytes))) {
        fg_rt_set_error(status, "bytes %llu + %llu of process %u's segment lie outside its %llu bytes",
                        (unsigned long long)ref->offset, (unsigned long long)ref->bytes, ref->pid,
                        (unsigned long long)mapping->segment.bytes);
    }
    if (!status) {
        *out = mapping->segment.base + ref->offset;
    }
    return status;
}

void fg_cache_trim(const fg_core_api_t *core) {
    if (pthread_rwlock_trywrlock(&users)) {
        return;
    }
    pthread_mutex_lock(&list_lock);
    while (mappings) {
        fg_mapping_t *mapping = mappings;
        mappings = mapping->next;
        core->segment_close(&mapping->segment);
        free(mapping);
    }
    pthread_mutex_unlock(&list_lock);
    pthread_rwlock_unlock(&users);
}
