/* A socket to the coordinator's address: an absolute path, host:port or [v6]:port. Errors name FAKEGPU_COORDINATOR_ADDR. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "comm.h"

static int refuse_connect(const char *address, int error) {
    return fg_rt_set_error(FG_NO_COORDINATOR, "no coordinator answers at FAKEGPU_COORDINATOR_ADDR=%s (%s); start one "
                           "with `python3 -m fakegpu coordinator`, or run the program under ./fgpu", address,
                           strerror(error));
}

/* connect() with the rank's time-out; the socket is blocking again afterwards. */
static int connect_in_time(int fd, const struct sockaddr *to, socklen_t size, uint32_t timeout_ms) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        return errno;
    }
    int error = connect(fd, to, size) ? errno : 0;
    if (error == EINPROGRESS || error == EINTR) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t n = sizeof error;
        int ready;
        do {
            ready = poll(&p, 1, (int)(timeout_ms < 1000 ? 1000 : timeout_ms));
        } while (ready < 0 && errno == EINTR);
        if (ready <= 0) {
            return ready ? errno : ETIMEDOUT;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n)) {
            return errno;
        }
    }
    if (!error && fcntl(fd, F_SETFL, flags) < 0) {
        return errno;
    }
    return error;
}

static int connect_unix(const char *address, uint32_t timeout_ms, int *out) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (address[0] != '/') {
        return fg_rt_set_error(FG_INVALID_USAGE, "FAKEGPU_COORDINATOR_ADDR=%s: a Unix address must be an absolute path "
                               "(for host:port set FAKEGPU_COORDINATOR_TRANSPORT=tcp)", address);
    }
    if (strlen(address) >= sizeof to.sun_path) {
        return fg_rt_set_error(FG_INVALID_USAGE, "FAKEGPU_COORDINATOR_ADDR has %zu bytes, expected fewer than %zu; use "
                               "a shorter path", strlen(address), sizeof to.sun_path);
    }
    memcpy(to.sun_path, address, strlen(address) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return fg_rt_set_error(FG_SYSTEM, "socket: %s", strerror(errno));
    }
    int error = connect_in_time(fd, (struct sockaddr *)&to, sizeof to, timeout_ms);
    if (error) {
        close(fd);
        return refuse_connect(address, error);
    }
    *out = fd;
    return FG_OK;
}

/* Splits host:port or [v6]:port into two strings. */
static int split_address(const char *address, char host[256], char port[16]) {
    const char *colon = strrchr(address, ':');
    size_t hosts = colon ? (size_t)(colon - address) : 0;
    const char *from = address;
    if (hosts >= 2 && address[0] == '[' && address[hosts - 1] == ']') {
        from++;
        hosts -= 2;
    }
    if (!colon || !hosts || hosts >= 256 || !colon[1] || strlen(colon + 1) >= 16) {
        return fg_rt_set_error(FG_INVALID_USAGE, "FAKEGPU_COORDINATOR_ADDR=%s: expected host:port or [v6]:port (for a "
                               "socket path set FAKEGPU_COORDINATOR_TRANSPORT=unix)", address);
    }
    memcpy(host, from, hosts);
    host[hosts] = 0;
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return FG_OK;
}

static int connect_tcp(const char *address, uint32_t timeout_ms, int *out) {
    char host[256], port[16];
    int status = split_address(address, host, port);
    if (status) {
        return status;
    }
    struct addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int failed = getaddrinfo(host, port, &want, &found);
    if (failed) {
        return fg_rt_set_error(FG_NO_COORDINATOR, "FAKEGPU_COORDINATOR_ADDR=%s: %s", address, gai_strerror(failed));
    }
    int error = ENOENT, fd = -1, one = 1;
    for (struct addrinfo *a = found; a && error; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        error = fd < 0 ? errno : connect_in_time(fd, a->ai_addr, a->ai_addrlen, timeout_ms);
        if (error && fd >= 0) {
            close(fd);
        }
    }
    freeaddrinfo(found);
    if (error) {
        return refuse_connect(address, error);
    }
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ||
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one)) {
        status = fg_rt_set_error(FG_SYSTEM, "setsockopt: %s", strerror(errno));
        close(fd);
        return status;
    }
    *out = fd;
    return FG_OK;
}

int fg_client_connect(const char *address, bool tcp, uint32_t timeout_ms, int *out) {
    return tcp ? connect_tcp(address, timeout_ms, out) : connect_unix(address, timeout_ms, out);
}
