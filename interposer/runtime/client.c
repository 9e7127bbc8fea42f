/* The process's one connection to the coordinator: HELLO / WELCOME, authentication, the end of the process.
 *
 * Made at the first communicator, never in a constructor. When it breaks every communicator fails at once; a later
 * communicator may connect anew if none of the old ones is left.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "bridge.h"
#include "comm.h"
#include "fork.h"

static pthread_mutex_t connect_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(fg_client_t *) the_client;

uint64_t fg_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* In a forked child: the parent's death must not be hidden by our copy of its socket. */
static void close_in_child(void) {
    fg_client_t *client = atomic_load(&the_client);
    if (client) {
        close(client->fd);
    }
}

static void say_bye(void) {
    fg_client_t *client = atomic_load(&the_client);
    if (client && !fg_rt_forked() && !atomic_load(&client->lost)) {
        atomic_store(&client->leaving, true);
        fg_client_send(client, FG_T_BYE, 0, 0, NULL, 0, NULL);
        shutdown(client->fd, SHUT_WR);
    }
}

static pthread_mutex_t note_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint32_t kind; /* 0 = none */
    char text[FG_TEXT_BYTES];
} kept_note;

static void send_note(fg_client_t *client, uint32_t kind, const char *text) {
    fg_note_t head = {.kind = kind, .text_bytes = (uint32_t)strlen(text)};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)(uintptr_t)text, strlen(text)}};
    fg_client_send(client, FG_T_NOTE, 0, 0, parts, 2, NULL);
}

void fg_client_note(uint32_t kind, const char *text) {
    fg_client_t *client = atomic_load(&the_client);
    pthread_mutex_lock(&note_lock);
    if (client) {
        send_note(client, kind, text);
    } else {
        kept_note.kind = kind;
        snprintf(kept_note.text, sizeof kept_note.text, "%s", text);
    }
    pthread_mutex_unlock(&note_lock);
}

static void send_kept_note(fg_client_t *client) {
    pthread_mutex_lock(&note_lock);
    if (kept_note.kind) {
        send_note(client, kept_note.kind, kept_note.text);
        kept_note.kind = 0;
    }
    pthread_mutex_unlock(&note_lock);
}

/* What tells whether two ranks can share memory: this boot of the machine and the pid namespace. */
static void boot_identity(char out[FG_NAME_BYTES]) {
    char boot[40] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, boot, 36);
    struct stat namespace;
    unsigned long inode = stat("/proc/self/ns/pid", &namespace) ? 0 : (unsigned long)namespace.st_ino;
    if (fd >= 0) {
        close(fd);
    }
    snprintf(out, FG_NAME_BYTES, "%.*s/%lu", got > 0 ? (int)got : 0, boot, inode);
}

static void fill_hello(fg_hello_t *hello) {
    const fg_config_t *config = fg_rt_config();
    const fg_profile_t *profile = fg_rt_device_profile(0);
    *hello = (fg_hello_t){
        .version_major = FG_WIRE_VERSION_MAJOR, .version_minor = FG_WIRE_VERSION_MINOR,
        .features = config->shares_memory ? FG_FEATURE_SHM : 0, .pid = (uint32_t)getpid(),
        .role = FG_ROLE_RANK, .timeout_ms = config->timeout_ms, .rank = config->rank,
        .world_size = config->world_size, .local_rank = config->local_rank, .node = config->node,
        .generation = config->generation,
        .compute_capability = profile ? (uint32_t)(10 * profile->cc_major + profile->cc_minor) : 0,
    };
    if (gethostname(hello->host, sizeof hello->host)) {
        hello->host[0] = 0;
    }
    hello->host[sizeof hello->host - 1] = 0;
    boot_identity(hello->boot_id);
    snprintf(hello->session, sizeof hello->session, "%s", config->session ? config->session : "");
    snprintf(hello->program, sizeof hello->program, "%s", program_invocation_short_name);
}

/* Reads one frame of the handshake. An ERROR frame becomes this call's error. */
static int read_frame(fg_client_t *client, fg_frame_t *head, uint8_t *body, size_t room) {
    uint8_t raw[sizeof *head];
    char why[FG_TEXT_BYTES] = "";
    if (fg_client_read(client, raw, sizeof raw)) {
        return fg_rt_set_error(FG_COORDINATOR_LOST, "the coordinator ended the connection or stayed silent in the handshake");
    }
    if (client->core->frame_check(raw, head, why, sizeof why) || head->body_bytes > room) {
        return fg_rt_set_error(FG_PROTOCOL, "what answers at FAKEGPU_COORDINATOR_ADDR is no fakegpu coordinator: %s",
                               why[0] ? why : "frame too long");
    }
    if (fg_client_read(client, body, head->body_bytes)) {
        return fg_rt_set_error(FG_COORDINATOR_LOST, "the coordinator ended the connection or stayed silent in the handshake");
    }
    int status = client->core->body_check(head, body, why, sizeof why);
    if (status) {
        return fg_rt_set_error(status, "the coordinator sent a malformed frame: %s", why);
    }
    if (head->type == FG_T_ERROR) {
        fg_error_t error;
        memcpy(&error, body, sizeof error);
        return fg_rt_set_error(error.status, "%.*s", (int)error.text_bytes, (const char *)body + sizeof error);
    }
    return FG_OK;
}

static int handshake(fg_client_t *client) {
    const char *token = fg_rt_config()->token;
    fg_hello_t hello;
    fg_auth_t auth;
    fg_frame_t head;
    uint8_t body[FG_TEXT_MAX];
    fill_hello(&hello);
    struct iovec part = {&hello, sizeof hello};
    struct timeval patience = {.tv_sec = 10}, none = {0};
    setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int status = fg_client_send(client, FG_T_HELLO, 0, 0, &part, 1, NULL);
    if (status || (status = read_frame(client, &head, body, sizeof body))) {
        return status;
    }
    if (head.type != FG_T_WELCOME) {
        return fg_rt_set_error(FG_PROTOCOL, "the coordinator answered HELLO with frame type %d, expected WELCOME",
                               head.type);
    }
    memcpy(&client->welcome, body, sizeof client->welcome);
    setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    if (!(client->welcome.features & FG_FEATURE_TOKEN)) {
        return FG_OK;
    }
    if (!token || !*token) {
        return fg_rt_set_error(FG_AUTH, "the coordinator wants a shared secret; set FAKEGPU_TOKEN to the coordinator's");
    }
    if ((status = fg_bridge_hmac_sha256(token, client->welcome.challenge, auth.digest))) {
        return status;
    }
    part = (struct iovec){&auth, sizeof auth};
    status = fg_client_send(client, FG_T_AUTH, 1, 0, &part, 1, NULL);
    return status ? status : read_frame(client, &head, body, sizeof body);
}

/* The receiver runs for the connection's life, with all signals left to the program's own threads. */
static int start_receiver(fg_client_t *client) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &detached, fg_client_receive, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (error) {
        return fg_rt_set_error(FG_SYSTEM, "pthread_create: %s", strerror(error));
    }
    return FG_OK;
}

/* Modes and faults that have a name but nothing behind them yet are refused here, however the program was started. */
static int refuse_unbuilt(const fg_config_t *config) {
    if (config->mode != FG_MODE_SIMULATE) {
        return fg_rt_set_error(FG_NOT_SUPPORTED, "FAKEGPU_MODE asks for hybrid or passthrough: this libnccl works on fake "
                               "devices only; set FAKEGPU_MODE=simulate");
    }
    if (config->dist_mode != FG_DIST_SIMULATE) {
        return fg_rt_set_error(FG_NOT_SUPPORTED, "FAKEGPU_DIST_MODE asks for disabled, proxy or passthrough: this libnccl "
                               "communicates through the coordinator only; set FAKEGPU_DIST_MODE=simulate");
    }
    if (config->tls_ca) {
        return fg_rt_set_error(FG_NOT_SUPPORTED, "FAKEGPU_TLS_CA is set: this libnccl does not speak TLS, only the Python "
                               "client and the tools do; unset it, and use a token on a network that you trust");
    }
    return FG_OK;
}

static int open_client(fg_client_t **out) {
    const fg_config_t *config = fg_rt_config();
    const char *address = config->coordinator_addr;
    int refused = fg_rt_config_check();
    if (!refused) {
        refused = refuse_unbuilt(config);
    }
    if (refused) {
        return refused;
    }
    if (!address || !*address) {
        return fg_rt_set_error(FG_NO_COORDINATOR, "FAKEGPU_COORDINATOR_ADDR is not set: run the program under ./fgpu, "
                               "or set it to a coordinator's absolute socket path or host:port");
    }
    fg_client_t *client = calloc(1, sizeof *client);
    if (!client || !(client->rx_buffer = malloc(FG_RX_BUFFER))) {
        free(client);
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for the connection to the coordinator");
    }
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->answered, NULL);
    pthread_mutex_init(&client->tx_lock, NULL);
    pthread_mutex_init(&client->rx_lock, NULL);
    pthread_cond_init(&client->rx_turn, NULL);
    client->next_request = 1;
    int status = fg_rt_core(&client->core);
    if (!status) {
        status = fg_client_connect(address, config->tcp, config->timeout_ms, &client->fd);
        if (!status && ((status = handshake(client)) || (status = start_receiver(client)))) {
            close(client->fd);
        }
    }
    if (status) {
        free(client->rx_buffer);
        free(client);
        return status;
    }
    *out = client;
    return FG_OK;
}

int fg_client_get(fg_client_t **out) {
    static bool prepared;
    int status = fg_fork_check();
    if (status) {
        return status;
    }
    pthread_mutex_lock(&connect_lock);
    fg_client_t *client = atomic_load(&the_client);
    if (client && atomic_load(&client->lost)) {
        pthread_mutex_lock(&client->lock);
        bool used = client->comms != NULL;
        pthread_mutex_unlock(&client->lock);
        if (used) {
            status = fg_rt_set_error(FG_COORDINATOR_LOST, "the connection to the coordinator is gone; destroy or abort "
                                     "the communicators it carried before making new ones");
        } else {
            client = NULL; /* the old one is never freed: late references cost nothing and cannot dangle */
        }
    }
    if (!status && !client) {
        fg_fork_arm();
        status = open_client(&client);
        if (!status) {
            atomic_store(&the_client, client);
            send_kept_note(client);
            if (!prepared) {
                prepared = true;
                fg_fork_on_child(close_in_child);
                atexit(say_bye);
            }
        }
    }
    pthread_mutex_unlock(&connect_lock);
    *out = client;
    return status;
}
