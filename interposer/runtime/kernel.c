/* Owns the map from a kernel's host function to its mangled name, and the registry of host substitutes. Registration
 * happens in constructors of the program's libraries, for a hundred thousand kernels in torch: it only appends; the
 * index is built at the first look-up. A launch nobody registered for is refused with the kernel's name.
 */
#include "fg_cuda.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const void *host;
    const char *name;
} entry_t;

typedef struct substitute {
    struct substitute *next;
    fg_kernel_fn fn;
    void *context;
    char pattern[];
} substitute_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry_t *entries;
static size_t count, room;
static uint32_t *slots; /* open addressing: entry number + 1 */
static size_t slot_count, indexed;
static substitute_t *substitutes;

int fg_rt_kernel_add(const void *host_function, const char *name) {
    pthread_mutex_lock(&lock);
    if (count == room) {
        size_t more = room ? 2 * room : 1024;
        entry_t *grown = realloc(entries, more * sizeof *entries);
        if (!grown) {
            pthread_mutex_unlock(&lock);
            return fg_rt_set_error(FG_SYSTEM, "out of host memory for kernel names");
        }
        entries = grown;
        room = more;
    }
    entries[count++] = (entry_t){host_function, name};
    pthread_mutex_unlock(&lock);
    return FG_OK;
}

static size_t slot_of(const void *host) {
    return (size_t)(((uintptr_t)host >> 4) * 0x9e3779b97f4a7c15u >> 20) & (slot_count - 1);
}

/* lock held */
static bool build_index(void) {
    if (indexed == count)
        return true;
    size_t wanted = 1024;
    while (wanted < 2 * count)
        wanted *= 2;
    if (wanted != slot_count) {
        uint32_t *grown = calloc(wanted, sizeof *grown);
        if (!grown)
            return false;
        free(slots);
        slots = grown;
        slot_count = wanted;
        indexed = 0;
    }
    for (; indexed < count; indexed++) {
        size_t at = slot_of(entries[indexed].host);
        while (slots[at])
            at = (at + 1) & (slot_count - 1);
        slots[at] = (uint32_t)indexed + 1;
    }
    return true;
}

const char *fg_rt_kernel_name(const void *host_function) {
    const char *name = NULL;
    pthread_mutex_lock(&lock);
    if (count && build_index())
        for (size_t at = slot_of(host_function); slots[at]; at = (at + 1) & (slot_count - 1))
            if (entries[slots[at] - 1].host == host_function)
                name = entries[slots[at] - 1].name;
    pthread_mutex_unlock(&lock);
    return name;
}

int fg_rt_register_kernel(const char *pattern, fg_kernel_fn fn, void *context) {
    size_t bytes = strlen(pattern) + 1;
    substitute_t *made = malloc(sizeof *made + bytes);
    if (!made)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a kernel substitute");
    memcpy(made->pattern, pattern, bytes);
    made->fn = fn;
    made->context = context;
    pthread_mutex_lock(&lock);
    made->next = substitutes;
    substitutes = made;
    pthread_mutex_unlock(&lock);
    return FG_OK;
}

static int refuse(const char *name) {
    char *(*demangle)(const char *, char *, size_t *, int *) = NULL;
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD); /* there in every program with such kernels */
    if (library)
        *(void **)&demangle = dlsym(library, "__cxa_demangle");
    int failed = 1;
    char *readable = demangle ? demangle(name, NULL, NULL, &failed) : NULL;
    int status = fg_rt_set_error(FG_CUDA(98), "kernel %.600s%s%.600s cannot run without a GPU; register a host substitute "
                                 "for it (fakegpu.register_kernel) or use an operator of the framework instead", name, readable ? " = " : "",
                                 readable ? readable : "");
    fg_rt_log(FG_LOG_INFO, "launch refused: %s", fg_rt_last_error());
    free(readable);
    if (library)
        dlclose(library);
    return status;
}

int fg_rt_kernel_launch(const fg_launch_t *launch) {
    pthread_mutex_lock(&lock);
    const substitute_t *found = substitutes; /* entries are never removed */
    pthread_mutex_unlock(&lock);
    while (found && fnmatch(found->pattern, launch->kernel, 0))
        found = found->next;
    return found ? found->fn(launch, found->context) : refuse(launch->kernel);
}
