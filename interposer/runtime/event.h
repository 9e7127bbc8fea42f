/* Private to libfakegpu_rt: events that processes share. */
#ifndef FG_EVENT_H
#define FG_EVENT_H
#include "fg_cuda.h"

/* Both words only grow (they wrap together); `finished` is a futex word. In a segment that other processes map. */
typedef struct fg_event_slot {
    uint32_t issued, finished;
    uint32_t pad[14];
} fg_event_slot_t;

int fg_event_slot_take(fg_event_slot_t **out);
void fg_event_slot_finish(fg_event_slot_t *slot, uint32_t ticket);
bool fg_event_slot_done(const fg_event_slot_t *slot, uint32_t ticket);
void fg_event_slot_await(fg_event_slot_t *slot, uint32_t ticket);
int fg_event_slot_export(const fg_event_slot_t *slot, void *out);
int fg_event_slot_import(const void *wire, fg_event_slot_t **out);
#endif
