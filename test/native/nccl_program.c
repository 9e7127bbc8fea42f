/* A program that is not Python: two processes, one communicator, through libnccl.so.2 as any C program links it.
 * usage: nccl_program rank nranks file [keep]; rank 0 writes the unique id to the file. Prints the sum; exit 0 when right.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <nccl_abi.h>

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
const char *ncclGetLastError(ncclComm_t comm);

#define CHECK(call)                                                         \
    if (call) {                                                             \
        fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));         \
        return 1;                                                           \
    }

static int exchange_id(int rank, const char *path, ncclUniqueId *id) {
    char part[4096];
    snprintf(part, sizeof part, "%s.part", path);
    if (rank == 0) {
        CHECK(ncclGetUniqueId(id));
        FILE *file = fopen(part, "w");
        return !file || fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) || rename(part, path);
    }
    for (int i = 0; i < 3000; i++) {
        FILE *file = fopen(path, "r");
        if (file) {
            size_t got = fread(id, sizeof *id, 1, file);
            fclose(file);
            return got != 1;
        }
        usleep(10000);
    }
    return 1;
}

/* Runs after the library's own exit handler: a long exit, as Python's, in which the end of the connection is noticed. */
static void await_receiver(void) {
    bool there = true;
    for (int i = 0; there && i < 1000; i++) {
        DIR *tasks = opendir("/proc/self/task");
        there = false;
        for (struct dirent *task; tasks && (task = readdir(tasks));) {
            char path[300], name[32] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
            FILE *file = fopen(path, "r");
            there |= file && fgets(name, sizeof name, file) && !strcmp(name, "fakegpu-rx\n");
            if (file) {
                fclose(file);
            }
        }
        if (tasks) {
            closedir(tasks);
        }
        usleep(10000);
    }
}

int main(int argc, char **argv) {
    atexit(await_receiver);
    int rank = atoi(argv[1]), nranks = argc > 3 ? atoi(argv[2]) : 0;
    float values[1000], sums[1000];
    ncclUniqueId id;
    ncclComm_t comm;
    if (exchange_id(rank, argv[3], &id)) {
        return 2;
    }
    for (int i = 0; i < 1000; i++) {
        values[i] = (float)(i + rank);
    }
    CHECK(ncclCommInitRank(&comm, nranks, id, rank));
    CHECK(ncclAllReduce(values, sums, 1000, ncclFloat32, ncclSum, comm, NULL));
    if (argc < 5) { /* "keep": many programs leave their communicators to the end of the process */
        CHECK(ncclCommDestroy(comm));
    }
    for (int i = 0; i < 1000; i++) {
        if (sums[i] != (float)(nranks * i + nranks * (nranks - 1) / 2)) {
            return 3;
        }
    }
    printf("%.0f\n", (double)sums[999]);
    return 0;
}
