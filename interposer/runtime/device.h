/* Private to libfakegpu_rt: the profile table made by generate.py out of data/gpus. */
#ifndef FG_DEVICE_H
#define FG_DEVICE_H
#include "fg_cuda.h"

#define FG_MAX_DEVICES 64

extern const fg_profile_t fg_profiles[];
extern const int fg_profile_count;
#endif
