/* The collectives and point-to-point calls: each fills a request; fg_nccl_submit decides everything. */
#include "internal.h"

FG_EXPORT ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclAllReduce", .kind = FG_ALL_REDUCE, .send = sendbuff, .recv = recvbuff,
                                 .count = count, .dtype = datatype, .op = op, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclAllReduce);

FG_EXPORT ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclReduce", .kind = FG_REDUCE, .send = sendbuff, .recv = recvbuff,
                                 .count = count, .dtype = datatype, .op = op, .root = root, .comm = comm,
                                 .stream = stream, .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclReduce);

FG_EXPORT ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                     int root, ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclBroadcast", .kind = FG_BROADCAST, .send = sendbuff, .recv = recvbuff,
                                 .count = count, .dtype = datatype, .root = root, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclBroadcast);

FG_EXPORT ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                                 cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclBcast", .kind = FG_BROADCAST, .send = buff, .recv = buff,
                                 .count = count, .dtype = datatype, .root = root, .comm = comm, .stream = stream,
                                 .send_name = "buff", .recv_name = "buff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclBcast);

FG_EXPORT ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                     ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclAllGather", .kind = FG_ALL_GATHER, .send = sendbuff, .recv = recvbuff,
                                 .count = sendcount, .dtype = datatype, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclAllGather);

FG_EXPORT ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                         ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclReduceScatter", .kind = FG_REDUCE_SCATTER, .send = sendbuff,
                                 .recv = recvbuff, .count = recvcount, .dtype = datatype, .op = op, .comm = comm,
                                 .stream = stream, .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclReduceScatter);

FG_EXPORT ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                    ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclAlltoAll", .kind = FG_ALL_TO_ALL, .send = sendbuff, .recv = recvbuff,
                                 .count = count, .dtype = datatype, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclAlltoAll);

FG_EXPORT ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                  int root, ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclGather", .kind = FG_GATHER, .send = sendbuff, .recv = recvbuff,
                                 .count = count, .dtype = datatype, .root = root, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclGather);

FG_EXPORT ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                   int root, ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclScatter", .kind = FG_SCATTER, .send = sendbuff, .recv = recvbuff,
                                 .count = count, .dtype = datatype, .root = root, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclScatter);

FG_EXPORT ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclSend", .kind = FG_SEND, .send = sendbuff, .count = count,
                                 .dtype = datatype, .root = peer, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclSend);

FG_EXPORT ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclRecv", .kind = FG_RECV, .recv = recvbuff, .count = count,
                                 .dtype = datatype, .root = peer, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    return fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclRecv);
