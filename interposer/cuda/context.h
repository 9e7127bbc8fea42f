/* A context as context.c and context_info.c see it. Private. */
#ifndef FG_CONTEXT_H
#define FG_CONTEXT_H
#include "driver.h"

#define FG_CONTEXT_DEVICES 64

struct fg_context {
    struct fg_context *next; /* created ones */
    int device, retained;
    unsigned flags;
    unsigned long long id;
};

struct fg_context *fg_driver_current(void);
int fg_driver_check_context(const struct fg_context *context);
#endif
