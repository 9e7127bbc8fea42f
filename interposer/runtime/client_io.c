/* Bytes on the coordinator's socket: whole frames out, under the transmit lock; exact reads in, receiver thread only.
 *
 * A payload of a communicator that fails in the middle of a frame is replaced by filler, so that the stream stays in
 * step and the caller's memory is not touched after the communicator ended. EINTR and short transfers are handled here.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "comm.h"

#define PIECE (256u << 10) /* read under a communicator's lock at a time */
#define MAX_PARTS 34
#define HEADS 2 /* parts before the payload: the frame's header and the body's fixed head */

static const uint8_t filler[65536];

static int wait_for(int fd, short events, int timeout_ms) {
    struct pollfd p = {.fd = fd, .events = events};
    int ready = poll(&p, 1, timeout_ms);
    return ready < 0 && errno != EINTR ? -1 : ready;
}

/* Drops `sent` bytes from the front of the parts. */
static int advance(struct iovec *parts, int nparts, size_t sent) {
    int first = 0;
    while (first < nparts && sent >= parts[first].iov_len) {
        sent -= parts[first++].iov_len;
    }
    if (first < nparts) {
        parts[first].iov_base = (uint8_t *)parts[first].iov_base + sent;
        parts[first].iov_len -= sent;
    }
    return first;
}

/* Sends zeros in place of what is left of a frame. */
static int send_filler(int fd, size_t bytes) {
    while (bytes) {
        ssize_t sent = send(fd, filler, bytes < sizeof filler ? bytes : sizeof filler, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return FG_COORDINATOR_LOST;
        }
        bytes -= sent > 0 ? (size_t)sent : 0;
    }
    return FG_OK;
}

static int send_all(int fd, struct iovec *parts, int nparts, fg_comm_t *comm) {
    int first = 0;
    bool begun = false;
    for (;;) {
        while (first < nparts && parts[first].iov_len == 0) {
            first++;
        }
        if (first == nparts) {
            return FG_OK;
        }
        bool broken = comm && fg_comm_broken(comm);
        if (broken && !begun) {
            return FG_OK; /* nothing of the frame has left: nobody misses it */
        }
        if (broken && first >= HEADS) {
            size_t left = 0;
            for (int i = first; i < nparts; i++) {
                left += parts[i].iov_len;
            }
            return send_filler(fd, left);
        }
        int end = broken && nparts > HEADS ? HEADS : nparts; /* heads are never filler: they say how much follows */
        struct msghdr message = {.msg_iov = parts + first, .msg_iovlen = (size_t)(end - first)};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            if (wait_for(fd, POLLOUT, 100) < 0) {
                return FG_COORDINATOR_LOST;
            }
        } else if (sent < 0 && errno != EINTR) {
            return FG_COORDINATOR_LOST;
        } else if (sent > 0) {
            begun = true;
            first += advance(parts + first, nparts - first, (size_t)sent);
        }
    }
}

int fg_client_send(fg_client_t *client, uint16_t type, uint32_t request, uint64_t member, const struct iovec *parts,
                   int nparts, fg_comm_t *comm) {
    uint8_t head[sizeof(fg_frame_t)];
    struct iovec all[MAX_PARTS];
    uint64_t bytes = 0;
    if (nparts + 1 > MAX_PARTS) {
        return FG_INTERNAL;
    }
    all[0] = (struct iovec){head, sizeof head};
    for (int i = 0; i < nparts; i++) {
        all[i + 1] = parts[i];
        bytes += parts[i].iov_len;
    }
    int status = client->core->frame_write(head, type, request, member, bytes);
    if (status) {
        return fg_rt_set_error(status, "frame type %d with %llu bytes is over the protocol's limit", type,
                               (unsigned long long)bytes);
    }
    if (atomic_load(&client->lost)) {
        return fg_rt_set_error(FG_COORDINATOR_LOST, "the connection to the coordinator is gone");
    }
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += comm ? 3600 : 5; /* only control frames give up on a coordinator that has stopped reading */
    if (pthread_mutex_timedlock(&client->tx_lock, &limit)) {
        return fg_rt_set_error(FG_COORDINATOR_LOST, "the coordinator does not read from its connection");
    }
    status = send_all(client->fd, all, nparts + 1, comm);
    pthread_mutex_unlock(&client->tx_lock);
    return status ? fg_rt_set_error(status, "the connection to the coordinator broke: %s", strerror(errno)) : FG_OK;
}

/* Takes descriptors that travelled beside the bytes. */
static void take_descriptors(fg_client_t *client, struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (client->nfds < (int)(sizeof client->fds / sizeof client->fds[0])) {
                client->fds[client->nfds++] = fd;
            } else {
                close(fd);
            }
        }
    }
}

/* Fills the empty buffer with at least one byte. */
static int refill(fg_client_t *client) {
    union {
        char bytes[CMSG_SPACE(8 * sizeof(int))];
        struct cmsghdr align;
    } control;
    for (;;) {
        struct iovec part = {client->rx_buffer, FG_RX_BUFFER};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(client->fd, &message, MSG_CMSG_CLOEXEC);
        if (got > 0) {
            take_descriptors(client, &message);
            client->rx_begin = 0;
            client->rx_end = (size_t)got;
            return FG_OK;
        }
        if (got == 0 || errno != EINTR) {
            return FG_COORDINATOR_LOST;
        }
    }
}

static size_t take_buffered(fg_client_t *client, void *out, size_t bytes) {
    size_t have = client->rx_end - client->rx_begin, n = bytes < have ? bytes : have;
    if (n) {
        if (out) {
            memcpy(out, client->rx_buffer + client->rx_begin, n);
        }
        client->rx_begin += n;
    }
    return n;
}

int fg_client_read(fg_client_t *client, void *out, size_t bytes) {
    uint8_t *to = out;
    while (bytes) {
        size_t n = take_buffered(client, to, bytes);
        to += n;
        bytes -= n;
        if (bytes && refill(client)) {
            return FG_COORDINATOR_LOST;
        }
    }
    return FG_OK;
}

int fg_client_skip(fg_client_t *client, size_t bytes) {
    while (bytes) {
        bytes -= take_buffered(client, NULL, bytes);
        if (bytes && refill(client)) {
            return FG_COORDINATOR_LOST;
        }
    }
    return FG_OK;
}

/* Reads into the memory of a running task, only while it runs: past that the bytes are thrown away. */
int fg_client_read_task(fg_client_t *client, fg_comm_t *comm, uint64_t opid, void *out, size_t bytes) {
    uint8_t *to = out;
    while (bytes) {
        ssize_t got = 0;
        pthread_mutex_lock(&comm->lock);
        bool running = !fg_comm_broken(comm) && fg_job_task(comm, opid);
        if (running) {
            got = (ssize_t)take_buffered(client, to, bytes);
            if (!got) {
                got = recv(client->fd, to, bytes < PIECE ? bytes : PIECE, MSG_DONTWAIT);
            }
        }
        pthread_mutex_unlock(&comm->lock);
        if (!running) {
            return fg_client_skip(client, bytes);
        }
        if (got > 0) {
            to += got;
            bytes -= (size_t)got;
        } else if (got == 0 || (errno == EAGAIN && wait_for(client->fd, POLLIN, -1) < 0) ||
                   (errno != EAGAIN && errno != EINTR)) {
            return FG_COORDINATOR_LOST;
        }
    }
    return FG_OK;
}
