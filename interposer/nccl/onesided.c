/* One-sided communication: a put writes into the peer's window and signals; a wait takes signals. The coordinator counts
 * signals per (from, to, index, context), so that a wait for one that never comes ends with the time-out's text.
 */
#include <stdlib.h>
#include "internal.h"

/* Index and context travel in the scalar. */
static ncclResult_t signal_key(const char *call, int sigIdx, int ctx, unsigned int flags, uint64_t *key) {
    if (sigIdx < 0 || ctx < 0 || flags) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: sigIdx %d, ctx %d and flags 0x%x, expected 0 or more, 0 or more "
                             "and 0", call, sigIdx, ctx, flags);
    }
    *key = (uint64_t)(uint32_t)ctx << 32 | (uint32_t)sigIdx;
    return ncclSuccess;
}

FG_EXPORT ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                                     ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                                     unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclPutSignal", .kind = FG_PUT_SIGNAL, .send = localbuff, .count = count,
                                 .dtype = datatype, .root = peer, .comm = comm, .stream = stream, .window = peerWin,
                                 .send_name = "localbuff", .recv_name = "peerWin"};
    request.call_out.peer_offset = peerWinOffset;
    ncclResult_t result = signal_key(request.call, sigIdx, ctx, flags, &request.call_out.scalar);
    return result ? fg_group_error(result) : fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclPutSignal);

FG_EXPORT ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                                  cudaStream_t stream) {
    fg_nccl_request_t request = {.call = "ncclSignal", .kind = FG_SIGNAL, .root = peer, .comm = comm, .stream = stream,
                                 .send_name = "sendbuff", .recv_name = "recvbuff"};
    ncclResult_t result = signal_key(request.call, sigIdx, ctx, flags, &request.call_out.scalar);
    return result ? fg_group_error(result) : fg_nccl_submit(&request);
}
FG_NCCL_ALSO(ncclSignal);

FG_EXPORT ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                                      cudaStream_t stream) {
    const char *call = "ncclWaitSignal";
    ncclResult_t result = nDesc < 0 ? fg_nccl_error(FG_INVALID_ARGUMENT, "%s: nDesc %d, expected 0 or more", call, nDesc)
                          : nDesc ? fg_nccl_check_pointer(signalDescs, call, "signalDescs") : ncclSuccess;
    ncclGroupStart(); /* all descriptors are one job */
    for (int i = 0; i < nDesc && !result; i++) {
        const ncclWaitSignalDesc_t *wanted = &signalDescs[i];
        fg_nccl_request_t request = {.call = call, .kind = FG_WAIT_SIGNAL, .root = wanted->peer, .comm = comm,
                                     .stream = stream, .send_name = "sendbuff", .recv_name = "recvbuff"};
        result = signal_key(call, wanted->sigIdx, wanted->ctx, 0, &request.call_out.scalar);
        if (!result && wanted->opCnt < 0) {
            result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: signalDescs[%d].opCnt %d, expected 0 or more", call, i,
                                   wanted->opCnt);
        }
        request.call_out.peer_offset = (uint64_t)wanted->opCnt;
        result = result ? fg_group_error(result) : fg_nccl_submit(&request);
    }
    fg_group_error(result);
    ncclResult_t ended = ncclGroupEnd();
    return result ? result : ended;
}
FG_NCCL_ALSO(ncclWaitSignal);
