/* Which handles given out to the program are alive. Private to libfakegpu_rt. */
#ifndef FG_HANDLES_H
#define FG_HANDLES_H
#include "fg_cuda.h"

typedef enum fg_handle_kind { FG_HANDLE_STREAM = 1, FG_HANDLE_EVENT, FG_HANDLE_MEMORY, FG_HANDLE_POOL, FG_HANDLE_GRAPH,
                              FG_HANDLE_EXEC, FG_HANDLE_OBJECT, FG_HANDLE_CONTEXT, FG_HANDLE_LIBRARY } fg_handle_kind_t;
int fg_handle_add(const void *handle, fg_handle_kind_t kind);
bool fg_handle_drop(const void *handle, fg_handle_kind_t kind); /* false: was not alive */
bool fg_handle_alive(const void *handle, fg_handle_kind_t kind);
#endif
