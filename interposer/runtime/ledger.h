/* Private to libfakegpu_rt: what every process of the job holds of each physical device of this node. */
#ifndef FG_LEDGER_H
#define FG_LEDGER_H
#include "fg_cuda.h"

/* memory lock held. Books `bytes` (negative: gives back) of a device of which this process holds `own`, or fails with
 * FG_OUT_OF_MEMORY when all processes together would pass `limit`. Does nothing but compare where there is no ledger. */
int fg_ledger_charge(int physical, int64_t bytes, uint64_t own, uint64_t limit);
uint64_t fg_ledger_others(int physical); /* memory lock held; bytes of other living processes */
#endif
