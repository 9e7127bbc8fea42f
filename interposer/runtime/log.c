/* Owns the messages of the C side: one line on stderr ("fakegpu: ..."), the once-per-key filter and the text of a
 * thread's last failure. It reads its verbosity from the configuration and allocates nothing but the once-keys.
 * Called by every file of interposer/; must not call back into the other parts of the runtime.
 */
#include "log.h"
#include "config.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 2048
#define ONCE_BUCKETS 256u

typedef struct once_key {
    struct once_key *next;
    char text[];
} once_key_t;

static pthread_mutex_t once_lock = PTHREAD_MUTEX_INITIALIZER;
static once_key_t *once_keys[ONCE_BUCKETS];
static __thread char last_error[LINE_BYTES];

void fg_log_after_fork(void) {
    pthread_mutex_init(&once_lock, NULL);
}

/* One write() per line, so that the lines of several ranks do not mix. */
static void write_line(const char *format, va_list args) {
    char line[LINE_BYTES];
    int used = snprintf(line, sizeof line, "fakegpu: ");
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    size_t length = (size_t)used + (more > 0 ? (size_t)more : 0);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
}

static bool wanted(fg_log_level_t level) {
    return (int)level <= 1 + fg_config_verbose();
}

void fg_rt_log(fg_log_level_t level, const char *format, ...) {
    if (!wanted(level))
        return;
    va_list args;
    va_start(args, format);
    write_line(format, args);
    va_end(args);
}

static bool first_time(const char *key) {
    uint32_t hash = 2166136261u;
    for (const char *p = key; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619u;
    once_key_t **bucket = &once_keys[hash % ONCE_BUCKETS];
    pthread_mutex_lock(&once_lock);
    bool first = true;
    for (once_key_t *k = *bucket; k; k = k->next)
        if (!strcmp(k->text, key))
            first = false;
    size_t bytes = strlen(key) + 1;
    once_key_t *made = first ? malloc(sizeof *made + bytes) : NULL;
    if (made) {
        memcpy(made->text, key, bytes);
        made->next = *bucket;
        *bucket = made;
    }
    pthread_mutex_unlock(&once_lock);
    return first;
}

void fg_rt_log_once(fg_log_level_t level, const char *key, const char *format, ...) {
    if (!wanted(level) || !first_time(key))
        return;
    va_list args;
    va_start(args, format);
    write_line(format, args);
    va_end(args);
}

const char *fg_rt_last_error(void) {
    return last_error;
}

int fg_rt_set_error(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}
