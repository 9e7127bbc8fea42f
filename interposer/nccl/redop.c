/* Reduction operators: NCCL's five, and the user's pre-multiplied sums, which are numbers of one communicator. */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static bool known_dtype(ncclDataType_t dtype) {
    return (int)dtype >= 0 && dtype < ncclNumTypes;
}

static size_t dtype_size(ncclDataType_t dtype) {
    static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return bytes[dtype];
}

/* Puts the operator's number and scalar into the runtime's call. */
ncclResult_t fg_redop_resolve(fg_nccl_request_t *r) {
    int op = (int)r->op;
    if (!fg_kind_reduces(r->kind)) {
        return ncclSuccess;
    }
    if (op >= 0 && op < ncclNumOps) {
        r->call_out.redop = (uint8_t)op;
        return ncclSuccess;
    }
    ncclResult_t result = ncclSuccess;
    pthread_mutex_lock(&r->comm->lock);
    const fg_user_op_t *found = op >= ncclNumOps && op - ncclNumOps < r->comm->nredops
                                  ? &r->comm->redops[op - ncclNumOps] : NULL;
    if (!found || !found->used) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: op %d, expected 0 to %d or one that ncclRedOpCreatePreMulSum "
                               "made on this communicator", r->call, op, ncclNumOps - 1);
    } else if (found->dtype != r->dtype) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: op %d was made for datatype %d, the call's is %d", r->call, op,
                               (int)found->dtype, (int)r->dtype);
    } else {
        r->call_out.redop = FG_PREMULSUM;
        r->call_out.scalar = found->scalar;
        r->call_out.scalar_from = found->scalar_from;
    }
    pthread_mutex_unlock(&r->comm->lock);
    return result;
}

static ncclResult_t add_redop(ncclComm_t comm, const fg_user_op_t *made, ncclRedOp_t *out) {
    ncclResult_t result = ncclSuccess;
    pthread_mutex_lock(&comm->lock);
    int at = 0;
    while (at < comm->nredops && comm->redops[at].used) {
        at++;
    }
    if (at == comm->nredops) {
        int more = comm->nredops ? 2 * comm->nredops : 8;
        fg_user_op_t *grown = realloc(comm->redops, (size_t)more * sizeof *grown);
        if (grown) {
            memset(grown + comm->nredops, 0, (size_t)(more - comm->nredops) * sizeof *grown);
            comm->redops = grown;
            comm->nredops = more;
        } else {
            result = fg_nccl_error(FG_OUT_OF_MEMORY, "ncclRedOpCreatePreMulSum: no memory for an operator");
        }
    }
    if (!result) {
        comm->redops[at] = *made;
        *out = (ncclRedOp_t)(ncclNumOps + at);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

FG_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                                ncclScalarResidence_t residence, ncclComm_t comm) {
    const char *call = "ncclRedOpCreatePreMulSum";
    ncclResult_t result = fg_nccl_check_ready(comm, call);
    if (result || (result = fg_nccl_check_pointer(op, call, "op")) ||
        (result = fg_nccl_check_pointer(scalar, call, "scalar"))) {
        return result;
    }
    if (!known_dtype(datatype)) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: datatype %d, expected 0 to %d", call, (int)datatype,
                             ncclNumTypes - 1);
    }
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: residence %d, expected 0 (device) or 1 (host)", call,
                             (int)residence);
    }
    fg_user_op_t made = {.used = true, .dtype = datatype};
    if (residence == ncclScalarDevice) {
        made.scalar_from = scalar;
    } else {
        memcpy(&made.scalar, scalar, dtype_size(datatype));
    }
    return add_redop(comm, &made, op);
}
FG_NCCL_ALSO(ncclRedOpCreatePreMulSum);

FG_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    ncclResult_t result = fg_nccl_check_comm(comm, "ncclRedOpDestroy");
    if (result) {
        return result;
    }
    int at = (int)op - ncclNumOps;
    pthread_mutex_lock(&comm->lock);
    if (at < 0) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "ncclRedOpDestroy: op %d is built in", (int)op);
    } else if (at >= comm->nredops || !comm->redops[at].used) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "ncclRedOpDestroy: op %d does not belong to this communicator",
                               (int)op);
    } else {
        comm->redops[at].used = false;
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}
FG_NCCL_ALSO(ncclRedOpDestroy);
