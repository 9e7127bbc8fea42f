/* NCCL_DEBUG: lines in NCCL's shape, "host:pid:tid [device] NCCL INFO text", on stdout as NCCL does or in NCCL_DEBUG_FILE.
 *
 * The only reader of NCCL's debugging variables; read at first use and again on ncclResetDebugInit.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int level = -1;
static FILE *out;
static char host[256];

static fg_debug_t parse_level(const char *text) {
    static const char *names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};
    for (int i = 0; text && i < 5; i++) {
        if (strcasecmp(text, names[i]) == 0) {
            return (fg_debug_t)i;
        }
    }
    return text && strcasecmp(text, "ABORT") == 0 ? FG_DEBUG_INFO : FG_DEBUG_NONE;
}

/* NCCL_DEBUG_FILE may hold %h (host) and %p (pid); a file that cannot be opened leaves stdout. */
static FILE *open_file(const char *pattern) {
    char path[4096];
    size_t at = 0;
    for (const char *p = pattern; *p && at + 300 < sizeof path; p++) {
        if (p[0] == '%' && (p[1] == 'h' || p[1] == 'p')) {
            at += (size_t)(p[1] == 'h' ? snprintf(path + at, sizeof path - at, "%s", host)
                                       : snprintf(path + at, sizeof path - at, "%d", (int)getpid()));
            p++;
        } else if (p[0] == '%' && p[1] == '%') {
            path[at++] = *p++;
        } else {
            path[at++] = *p;
        }
    }
    path[at] = 0;
    FILE *file = fopen(path, "we");
    return file ? file : stdout;
}

static void load(void) {
    pthread_mutex_lock(&lock);
    if (atomic_load(&level) < 0) {
        const char *file = getenv("NCCL_DEBUG_FILE");
        if (gethostname(host, sizeof host - 1)) {
            memcpy(host, "localhost", 10);
        }
        host[strcspn(host, ".")] = 0;
        fg_debug_t found = parse_level(getenv("NCCL_DEBUG"));
        out = file && *file && found > FG_DEBUG_VERSION ? open_file(file) : stdout;
        atomic_store(&level, (int)found);
        if (found >= FG_DEBUG_VERSION) {
            int version = fg_rt_config()->nccl_version;
            fprintf(out, "NCCL version %d.%d.%d+fakegpu\n", version / 10000, version / 100 % 100, version % 100);
            fflush(out);
        }
    }
    pthread_mutex_unlock(&lock);
}

bool fg_nccl_debug(fg_debug_t wanted) {
    if (atomic_load_explicit(&level, memory_order_acquire) < 0) {
        load();
    }
    return atomic_load_explicit(&level, memory_order_relaxed) >= (int)wanted;
}

void fg_nccl_debug_reload(void) {
    atomic_store(&level, -1);
    load();
}

void fg_nccl_print(fg_debug_t wanted, int device, const char *format, ...) {
    char text[2048];
    if (!fg_nccl_debug(wanted)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    fprintf(out, "%s:%d:%ld [%d] NCCL %s %s\n", host, (int)getpid(), syscall(SYS_gettid), device,
            wanted == FG_DEBUG_WARN ? "WARN" : "INFO", text);
    fflush(out);
    pthread_mutex_unlock(&lock);
}
