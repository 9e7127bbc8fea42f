/* Several devices of one process, as NCCL's examples use them: by one thread for all, or by one thread each.
 * usage: nccl_devices DEVICES CASE...; prints `ok CASE` for each, exit 0 when every value is right. The cases are at
 * the end.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <nccl_abi.h>

typedef int cudaError_t;
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
const char *cudaGetErrorString(cudaError_t error);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *exclude, int count, ncclComm_t *made, ncclConfig_t *config, int flags);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t t, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t t, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclMemAlloc(void **p, size_t bytes);
ncclResult_t ncclMemFree(void *p);

#define NCCL(call)                                                                         \
    do {                                                                                   \
        ncclResult_t result_ = (call);                                                     \
        if (result_) {                                                                     \
            fprintf(stderr, "%s: %d: %s\n", #call, (int)result_, ncclGetLastError(NULL));  \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)
#define CUDA(call)                                                                         \
    do {                                                                                   \
        cudaError_t error_ = (call);                                                       \
        if (error_) {                                                                      \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));                \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

enum { COUNT = 300000, MOST = 8 };

typedef struct device {
    int rank, nranks;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    float *in, *out, *host;
    ncclWindow_t window;
} device_t;

static device_t devices[MOST];
static int count_of_devices;

static void set_up(device_t *d, int rank) {
    d->rank = rank;
    d->nranks = count_of_devices;
    d->host = calloc(COUNT, sizeof *d->host);
    CUDA(cudaSetDevice(rank));
    CUDA(cudaStreamCreate(&d->stream));
    CUDA(cudaMalloc((void **)&d->in, COUNT * sizeof *d->in));
    CUDA(cudaMalloc((void **)&d->out, COUNT * sizeof *d->out));
    for (int i = 0; i < COUNT; i++) {
        d->host[i] = (float)(rank + i % 7);
    }
    CUDA(cudaMemcpy(d->in, d->host, COUNT * sizeof *d->in, 1));
}

static void tear_down(device_t *d) {
    CUDA(cudaSetDevice(d->rank));
    CUDA(cudaStreamDestroy(d->stream));
    CUDA(cudaFree(d->in));
    CUDA(cudaFree(d->out));
    free(d->host);
}

/* Waits, and wants what a sum over the first `ranks` devices makes. */
static void expect_sum(device_t *d, int ranks) {
    CUDA(cudaSetDevice(d->rank));
    CUDA(cudaStreamSynchronize(d->stream));
    CUDA(cudaMemcpy(d->host, d->out, COUNT * sizeof *d->out, 2));
    for (int i = 0; i < COUNT; i++) {
        float expected = (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7));
        if (d->host[i] != expected) {
            fprintf(stderr, "rank %d: out[%d] is %g, expected %g\n", d->rank, i, (double)d->host[i], (double)expected);
            exit(1);
        }
    }
}

static void sum_of(device_t *d, ncclComm_t comm) {
    NCCL(ncclAllReduce(d->in, d->out, COUNT, ncclFloat32, ncclSum, comm, d->stream));
}

static void for_all(void (*action)(device_t *)) {
    for (int i = 0; i < count_of_devices; i++) {
        action(&devices[i]);
    }
}

static void sum(device_t *d) {
    sum_of(d, d->comm);
}

static void expect_all(device_t *d) {
    expect_sum(d, d->nranks);
}

static void finalize(device_t *d) {
    NCCL(ncclCommFinalize(d->comm));
}

static void destroy(device_t *d) {
    NCCL(ncclCommDestroy(d->comm));
}

static void abort_one(device_t *d) {
    NCCL(ncclCommAbort(d->comm));
}

static void init_all(void) {
    ncclComm_t comms[MOST];
    for (int i = 0; i < count_of_devices; i++) {
        set_up(&devices[i], i);
    }
    NCCL(ncclCommInitAll(comms, count_of_devices, NULL));
    for (int i = 0; i < count_of_devices; i++) {
        devices[i].comm = comms[i];
    }
}

static void sum_in_a_group(void) {
    NCCL(ncclGroupStart());
    for_all(sum);
    NCCL(ncclGroupEnd());
    for_all(expect_all);
}

/* One thread, all devices: the ends come one after the other, before anything was waited for. */
static void one_thread(void) {
    init_all();
    NCCL(ncclGroupStart());
    for_all(sum);
    NCCL(ncclGroupEnd());
    for_all(destroy);
    for_all(expect_all);
}

/* The same without a group: each call only issues. */
static void ungrouped(void) {
    init_all();
    for_all(sum);
    for_all(expect_all);
    for_all(finalize);
    for_all(destroy);
}

/* Sends to the right while nobody receives yet; the ends are in turn, too. */
static void ring(void) {
    init_all();
    NCCL(ncclGroupStart());
    for (int i = 0; i < count_of_devices; i++) {
        device_t *d = &devices[i];
        NCCL(ncclSend(d->in, COUNT, ncclFloat32, (i + 1) % d->nranks, d->comm, d->stream));
        NCCL(ncclRecv(d->out, COUNT, ncclFloat32, (i + d->nranks - 1) % d->nranks, d->comm, d->stream));
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < count_of_devices; i++) {
        device_t *d = &devices[i];
        CUDA(cudaSetDevice(i));
        CUDA(cudaStreamSynchronize(d->stream));
        CUDA(cudaMemcpy(d->host, d->out, sizeof(float), 2));
        if (d->host[0] != (float)((i + d->nranks - 1) % d->nranks)) {
            fprintf(stderr, "rank %d got %g\n", i, (double)d->host[0]);
            exit(1);
        }
    }
    for_all(finalize);
    for_all(destroy);
}

/* Small sends of one device after the other, ungrouped; the receives come later, from the same thread. */
static void eager(void) {
    init_all();
    for (int i = 1; i < count_of_devices; i++) {
        NCCL(ncclSend(devices[i].in, 100, ncclFloat32, 0, devices[i].comm, devices[i].stream));
    }
    for (int i = 1; i < count_of_devices; i++) {
        NCCL(ncclRecv(devices[0].out + i, 1 + 99, ncclFloat32, i, devices[0].comm, devices[0].stream));
    }
    for_all(finalize);
    for_all(destroy);
}

static void aborted(void) {
    init_all();
    sum(&devices[0]); /* whose peers never come */
    for_all(abort_one);
}

static void aborted_in_reverse(void) {
    init_all();
    NCCL(ncclGroupStart());
    for_all(sum);
    NCCL(ncclGroupEnd());
    for (int i = count_of_devices; i-- > 0;) {
        abort_one(&devices[i]);
    }
}

/* Half of the devices each; keys turn the order around. */
static void split(void) {
    ncclComm_t made[MOST];
    init_all();
    NCCL(ncclGroupStart());
    for (int i = 0; i < count_of_devices; i++) {
        NCCL(ncclCommSplit(devices[i].comm, i < 2 ? 0 : NCCL_SPLIT_NOCOLOR, -i, &made[i], NULL));
    }
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    for (int i = 0; i < count_of_devices; i++) {
        if (i < 2) {
            sum_of(&devices[i], made[i]);
        } else if (made[i]) {
            exit(1);
        }
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        expect_sum(&devices[i], 2);
        NCCL(ncclCommDestroy(made[i]));
    }
    sum_in_a_group();
    for_all(destroy);
}

static void shrink(void) {
    ncclComm_t made[MOST];
    int last = count_of_devices - 1;
    init_all();
    NCCL(ncclGroupStart());
    for (int i = 0; i < last; i++) {
        NCCL(ncclCommShrink(devices[i].comm, &last, 1, &made[i], NULL, 0));
    }
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    for (int i = 0; i < last; i++) {
        sum_of(&devices[i], made[i]);
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < last; i++) {
        expect_sum(&devices[i], last);
        NCCL(ncclCommDestroy(made[i]));
    }
    for_all(destroy);
}

static void revoke(void) {
    init_all();
    for (int i = 0; i < count_of_devices; i++) {
        NCCL(ncclCommRevoke(devices[i].comm, 0));
    }
    for_all(destroy);
}

/* Registering waits for every rank, so one thread registers all windows in a group. */
static void windows(void) {
    void *memory[MOST];
    init_all();
    NCCL(ncclGroupStart());
    for (int i = 0; i < count_of_devices; i++) {
        CUDA(cudaSetDevice(i));
        NCCL(ncclMemAlloc(&memory[i], 4096));
        NCCL(ncclCommWindowRegister(devices[i].comm, memory[i], 4096, &devices[i].window, 0));
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < count_of_devices; i++) {
        NCCL(ncclCommWindowDeregister(devices[i].comm, devices[i].window));
        NCCL(ncclMemFree(memory[i]));
    }
    for_all(destroy);
}

static void nonblocking(void) {
    ncclUniqueId id;
    ncclConfig_t config = {.size = sizeof config, .magic = NCCL_API_MAGIC, .version = NCCL_VERSION_CODE};
    config.blocking = 0;
    NCCL(ncclGetUniqueId(&id));
    for (int i = 0; i < count_of_devices; i++) {
        set_up(&devices[i], i);
        ncclResult_t result = ncclCommInitRankConfig(&devices[i].comm, count_of_devices, id, i, &config);
        if (result != ncclSuccess && result != ncclInProgress) {
            exit(1);
        }
    }
    for (int i = 0; i < count_of_devices; i++) {
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress) {
            NCCL(ncclCommGetAsyncError(devices[i].comm, &state));
        }
        NCCL(state);
    }
    for_all(sum);
    for_all(expect_all);
    for (int i = 0; i < count_of_devices; i++) {
        ncclResult_t state = ncclCommFinalize(devices[i].comm);
        if (state != ncclSuccess && state != ncclInProgress) {
            exit(1);
        }
    }
    for (int i = 0; i < count_of_devices; i++) {
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress) {
            NCCL(ncclCommGetAsyncError(devices[i].comm, &state));
        }
    }
    for_all(destroy);
}

/* What a device asks for that the others do not: whoever waits for a stream is told. */
static void mismatch(void) {
    init_all();
    NCCL(ncclGroupStart());
    for (int i = 0; i < count_of_devices; i++) {
        device_t *d = &devices[i];
        NCCL(ncclAllReduce(d->in, d->out, i == 1 ? 90 : 100, ncclFloat32, ncclSum, d->comm, d->stream));
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < count_of_devices; i++) {
        ncclResult_t state = ncclSuccess;
        CUDA(cudaSetDevice(i));
        if (!cudaStreamSynchronize(devices[i].stream)) {
            fprintf(stderr, "rank %d: the stream passed\n", i);
            exit(1);
        }
        NCCL(ncclCommGetAsyncError(devices[i].comm, &state));
        printf("rank %d: %d: %s\n", i, (int)state, ncclGetLastError(devices[i].comm));
    }
    for_all(abort_one);
}

static void *own_device(void *given) {
    device_t *d = given;
    ncclComm_t half;
    set_up(d, d->rank);
    NCCL(ncclCommInitRank(&d->comm, d->nranks, d->id, d->rank));
    for (int i = 0; i < 20; i++) {
        sum(d);
    }
    expect_all(d);
    NCCL(ncclCommSplit(d->comm, 0, 0, &half, NULL));
    sum_of(d, half);
    expect_all(d);
    NCCL(ncclCommDestroy(half));
    finalize(d);
    destroy(d);
    return NULL;
}

static void thread_each(void) {
    pthread_t threads[MOST];
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    for (int i = 0; i < count_of_devices; i++) {
        devices[i] = (device_t){.rank = i, .nranks = count_of_devices, .id = id};
        if (pthread_create(&threads[i], NULL, own_device, &devices[i])) {
            exit(1);
        }
    }
    for (int i = 0; i < count_of_devices; i++) {
        pthread_join(threads[i], NULL);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"one_thread", one_thread}, {"ungrouped", ungrouped}, {"ring", ring}, {"eager", eager}, {"aborted", aborted},
    {"aborted_in_reverse", aborted_in_reverse}, {"split", split}, {"shrink", shrink}, {"revoke", revoke},
    {"windows", windows}, {"nonblocking", nonblocking}, {"thread_each", thread_each}, {"mismatch", mismatch},
};

static bool run(const char *name) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(cases[i].name, name)) {
            cases[i].run();
            for_all(tear_down);
            printf("ok %s\n", name);
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    count_of_devices = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 2; i < argc; i++) {
        if (count_of_devices < 3 || count_of_devices > MOST || !run(argv[i])) {
            fprintf(stderr, "usage: nccl_devices DEVICES(3 to %d) CASE...; found %s\n", MOST, argv[i]);
            return 2;
        }
    }
    return 0;
}
