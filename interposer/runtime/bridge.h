/* What client.c asks of Python beyond the capsule. */
#ifndef FG_BRIDGE_H
#define FG_BRIDGE_H
#include "fg_runtime.h"

/* HMAC-SHA256 through Python's hmac, so that there is no own cryptography; call after fg_rt_core succeeded. */
int fg_bridge_hmac_sha256(const char *key, const uint8_t challenge[32], uint8_t digest[32]);

#endif
