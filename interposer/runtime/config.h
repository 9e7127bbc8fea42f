/* Private to libfakegpu_rt: configuration that the public fg_config_t does not carry. */
#ifndef FG_CONFIG_H
#define FG_CONFIG_H
#include "fg_runtime.h"

typedef struct fg_config_private {
    const char *profile;         /* FAKEGPU_PROFILE: one profile for all devices; NULL = not set */
    const char *profiles;        /* FAKEGPU_PROFILES: "a100:2,h100:2"; NULL = not set */
    const char *visible_devices; /* CUDA_VISIBLE_DEVICES; NULL = not set */
    const char *device_ledger;   /* FAKEGPU_DEVICE_LEDGER: see ledger.c; NULL = not set */
    bool device_count_set;       /* FAKEGPU_DEVICE_COUNT was given */
    bool guard;                  /* FAKEGPU_OOM_POLICY is not "device": also answer for the host's own memory */
} fg_config_private_t;

const fg_config_private_t *fg_config_private(void);
int fg_config_refuse(const char *format, ...) FG_PRINTF(1, 2); /* records the first bad value found later (profiles) */
int fg_config_verbose(void); /* FAKEGPU_VERBOSE, without parsing the rest */
#endif
