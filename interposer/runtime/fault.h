/* Private to libfakegpu_rt: injected faults as the memory, the communicators and the streams meet them. */
#ifndef FG_FAULT_H
#define FG_FAULT_H
#include <stdbool.h>
#include <stdint.h>
#include "fg_wire.h"

struct fg_comm;
struct fg_task;
int fg_fault_kind(const char *name); /* fg_kind_t of an operation's name, or -1 */
int fg_fault_check(const struct fg_comm *comm, const struct fg_task *task); /* FG_INJECTED: the variables hit this one */
void fg_fault_obey(const fg_go_t *go); /* crash, device failure */
void fg_fault_corrupt(const struct fg_comm *comm, const struct fg_task *task); /* after the operation moved its bytes */
bool fg_fault_allocation(int device, uint64_t bytes); /* true: this allocation is to fail; memory lock held */
int fg_device_failure(void); /* FG_OK, or FG_CUDA(214) with the text set */
void fg_device_fail(void); /* stream_failure.c: from now on every CUDA call of the process answers 214 */
#endif
