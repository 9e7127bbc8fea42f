/* NCCL's parameters by key: the documented ones, with the values that NCCL_<KEY> in the environment gives them.
 *
 * Most have no effect here (there are no channels or protocols to tune); they are read so that programs which inspect
 * them see what the user set.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

struct ncclParamHandle {
    const char *key;
    const char *preset; /* value when the environment has none; "" = unset text */
};

static struct ncclParamHandle params[] = {
    {"NCCL_ALGO", ""}, {"NCCL_BUFFSIZE", "4194304"}, {"NCCL_COLLNET_ENABLE", "0"}, {"NCCL_COMM_BLOCKING", "-1"},
    {"NCCL_CROSS_NIC", "2"}, {"NCCL_CTA_POLICY", "0"}, {"NCCL_DEBUG", ""}, {"NCCL_DEBUG_FILE", ""},
    {"NCCL_DEBUG_SUBSYS", ""}, {"NCCL_GRAPH_REGISTER", "1"}, {"NCCL_IB_DISABLE", "0"}, {"NCCL_IB_HCA", ""},
    {"NCCL_IB_TIMEOUT", "20"}, {"NCCL_LAUNCH_MODE", "PARALLEL"}, {"NCCL_LOCAL_REGISTER", "1"},
    {"NCCL_MAX_CTAS", "-1"}, {"NCCL_MAX_NCHANNELS", "-1"}, {"NCCL_MIN_CTAS", "-1"}, {"NCCL_MIN_NCHANNELS", "-1"},
    {"NCCL_NET", ""}, {"NCCL_NET_GDR_LEVEL", ""}, {"NCCL_NTHREADS", "-1"}, {"NCCL_NVLS_ENABLE", "2"},
    {"NCCL_P2P_DISABLE", "0"}, {"NCCL_P2P_LEVEL", ""}, {"NCCL_PROTO", ""}, {"NCCL_SHM_DISABLE", "0"},
    {"NCCL_SOCKET_IFNAME", ""}, {"NCCL_TOPO_FILE", ""}, {"NCCL_WIN_ENABLE", "1"},
};
#define NPARAMS (sizeof params / sizeof params[0])

static const char *value_of(const struct ncclParamHandle *param) {
    const char *set = getenv(param->key);
    return set ? set : param->preset;
}

/* Keys are accepted with and without NCCL_. */
static struct ncclParamHandle *find(const char *key) {
    const char *name = strncmp(key, "NCCL_", 5) == 0 ? key + 5 : key;
    for (size_t i = 0; i < NPARAMS; i++) {
        if (strcmp(params[i].key + 5, name) == 0) {
            return &params[i];
        }
    }
    return NULL;
}

static ncclResult_t check_handle(ncclParamHandle_t h, const void *out, const char *call) {
    if (h < params || h >= params + NPARAMS) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: h %p is no parameter handle, expected one of ncclParamBind", call,
                             (void *)h);
    }
    return fg_nccl_check_pointer(out, call, "out");
}

FG_EXPORT ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key) {
    ncclResult_t result = fg_nccl_check_pointer(out, "ncclParamBind", "out");
    if (result || (result = fg_nccl_check_pointer(key, "ncclParamBind", "key"))) {
        return result;
    }
    *out = find(key);
    return *out ? ncclSuccess : fg_nccl_error(FG_INVALID_ARGUMENT, "ncclParamBind: key %s is not known", key);
}
FG_NCCL_ALSO(ncclParamBind);

/* A number within [low, high]; text parameters have none. */
static ncclResult_t read_number(ncclParamHandle_t h, const void *out, const char *call, int64_t low, uint64_t high,
                                uint64_t *value) {
    ncclResult_t result = check_handle(h, out, call);
    if (result) {
        return result;
    }
    const char *text = value_of(h);
    char *end = NULL;
    errno = 0;
    bool negative = text[0] == '-';
    *value = negative ? (uint64_t)strtoll(text, &end, 0) : strtoull(text, &end, 0);
    bool fits = negative ? low < 0 && (int64_t)*value >= low : *value <= high;
    if (!*text || *end || errno || !fits) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: %s is \"%s\", expected a number from %lld to %llu", call, h->key,
                             text, (long long)low, (unsigned long long)high);
    }
    return ncclSuccess;
}

#define NUMBER(suffix, type, low, high)                                              \
    FG_EXPORT ncclResult_t ncclParamGet##suffix(ncclParamHandle_t h, type *out) {    \
        uint64_t value;                                                              \
        ncclResult_t result = read_number(h, out, "ncclParamGet" #suffix, low, high, &value); \
        if (!result) {                                                               \
            *out = (type)value;                                                      \
        }                                                                            \
        return result;                                                               \
    }                                                                                \
    FG_NCCL_ALSO(ncclParamGet##suffix)

NUMBER(I8, int8_t, INT8_MIN, INT8_MAX);
NUMBER(I16, int16_t, INT16_MIN, INT16_MAX);
NUMBER(I32, int32_t, INT32_MIN, INT32_MAX);
NUMBER(I64, int64_t, INT64_MIN, INT64_MAX);
NUMBER(U8, uint8_t, 0, UINT8_MAX);
NUMBER(U16, uint16_t, 0, UINT16_MAX);
NUMBER(U32, uint32_t, 0, UINT32_MAX);
NUMBER(U64, uint64_t, 0, UINT64_MAX);

FG_EXPORT ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out) {
    static _Thread_local char text[1024];
    ncclResult_t result = check_handle(h, out, "ncclParamGetStr");
    if (!result) {
        snprintf(text, sizeof text, "%s", value_of(h));
        *out = text;
    }
    return result;
}
FG_NCCL_ALSO(ncclParamGetStr);

/* Raw bytes of the value: its text. */
FG_EXPORT ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len) {
    ncclResult_t result = check_handle(h, out, "ncclParamGet");
    if (result || (result = fg_nccl_check_pointer(len, "ncclParamGet", "len"))) {
        return result;
    }
    const char *value = value_of(h);
    size_t bytes = strlen(value);
    if (maxLen < 0 || bytes > (size_t)maxLen) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "ncclParamGet: maxLen %d, expected %zu or more for %s", maxLen, bytes,
                             h->key);
    }
    memcpy(out, value, bytes);
    *len = (int)bytes;
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclParamGet);

FG_EXPORT ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen) {
    static _Thread_local char text[1024];
    const char *call = "ncclParamGetParameter";
    ncclResult_t result = fg_nccl_check_pointer(key, call, "key");
    if (result || (result = fg_nccl_check_pointer(value, call, "value"))) {
        return result;
    }
    const struct ncclParamHandle *param = find(key);
    if (!param) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: key %s is not known", call, key);
    }
    snprintf(text, sizeof text, "%s", value_of(param));
    *value = text;
    if (valueLen) {
        *valueLen = (int)strlen(text);
    }
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclParamGetParameter);

FG_EXPORT ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen) {
    static _Thread_local const char *keys[NPARAMS];
    const char *call = "ncclParamGetAllParameterKeys";
    ncclResult_t result = fg_nccl_check_pointer(table, call, "table");
    if (result || (result = fg_nccl_check_pointer(tableLen, call, "tableLen"))) {
        return result;
    }
    for (size_t i = 0; i < NPARAMS; i++) {
        keys[i] = params[i].key;
    }
    *table = keys;
    *tableLen = (int)NPARAMS;
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclParamGetAllParameterKeys);

FG_EXPORT void ncclParamDumpAll(void) {
    for (size_t i = 0; i < NPARAMS; i++) {
        fg_nccl_print(FG_DEBUG_INFO, fg_rt_device_get(), "%s=%s", params[i].key, value_of(&params[i]));
    }
}
FG_NCCL_ALSO(ncclParamDumpAll);
