"""The status codes of include/fg_status.h, read from the C table itself.

TABLE holds (name, code, ncclResult_t, text) per status. fakegpu.errors keeps its own table, which a test
compares with this one; nothing else should need this module.
"""

cdef extern from *:
    """
    #include "fg_status.h"
    static const struct fg_status_row { const char *name; int code, nccl; const char *text; } FG_STATUS_ROWS[] = {
    #define FG_STATUS_ROW(name, code, nccl, text) {#name, code, nccl, text},
        FG_STATUS_TABLE(FG_STATUS_ROW)
    };
    #define FG_STATUS_ROW_COUNT (sizeof(FG_STATUS_ROWS) / sizeof(FG_STATUS_ROWS[0]))
    """
    struct fg_status_row:
        const char *name
        int code, nccl
        const char *text
    const fg_status_row FG_STATUS_ROWS[]
    size_t FG_STATUS_ROW_COUNT


def _rows():
    cdef size_t i
    for i in range(FG_STATUS_ROW_COUNT):
        row = &FG_STATUS_ROWS[i]
        yield row.name.decode(), row.code, row.nccl, row.text.decode()


TABLE = tuple(_rows())
