/* Owns the list of fake devices: profiles by FAKEGPU_PROFILE(S) and FAKEGPU_DEVICE_COUNT, selected and ordered by
 * CUDA_VISIBLE_DEVICES as CUDA does it (a bad entry cuts the list, a repeated one empties it), and each thread's
 * current device. Fixed at the first call; owns no memory and no streams.
 */
#include "device.h"
#include "config.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t built = PTHREAD_ONCE_INIT;
static const fg_profile_t *physical[FG_MAX_DEVICES];
static int physical_count, visible[FG_MAX_DEVICES], visible_count;
static __thread int current;
static __thread bool current_set;
static __thread unsigned epoch; /* how often this thread chose a device */
static _Atomic bool active[FG_MAX_DEVICES];

static const fg_profile_t *find_profile(const char *name, size_t length) {
    for (int i = 0; i < fg_profile_count; i++)
        if (strlen(fg_profiles[i].id) == length && !strncmp(fg_profiles[i].id, name, length))
            return &fg_profiles[i];
    char known[512] = "";
    for (int i = 0; i < fg_profile_count; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", fg_profiles[i].id);
    fg_config_refuse("no GPU profile named \"%.*s\"; known: %s", (int)length, name, known);
    return NULL;
}

/* "a100:2,h100:2" or "a100,h100" */
static void add_profiles(const char *list) {
    for (const char *p = list; *p;) {
        size_t name = strcspn(p, ":,"), item = strcspn(p, ",");
        long count = 1;
        if (p[name] == ':') {
            char *end;
            count = strtol(p + name + 1, &end, 10);
            if (end != p + item || count < 1 || count > FG_MAX_DEVICES) {
                fg_config_refuse("FAKEGPU_PROFILES=%s: expected NAME:COUNT items such as a100:2,h100:2", list);
                return;
            }
        }
        const fg_profile_t *profile = find_profile(p, name);
        for (long i = 0; profile && i < count; i++) {
            if (physical_count == FG_MAX_DEVICES) {
                fg_config_refuse("FAKEGPU_PROFILES=%s: more than %d devices", list, FG_MAX_DEVICES);
                return;
            }
            physical[physical_count++] = profile;
        }
        p += item;
        p += *p == ',';
    }
}

static void build_physical(void) {
    const fg_config_private_t *config = fg_config_private();
    int wanted = fg_rt_config()->device_count;
    if (!config->profiles) {
        const char *name = config->profile ? config->profile : "a100";
        const fg_profile_t *profile = find_profile(name, strlen(name));
        for (int i = 0; profile && i < wanted; i++)
            physical[physical_count++] = profile;
        return;
    }
    add_profiles(config->profiles);
    if (config->device_count_set && wanted != physical_count)
        fg_config_refuse("FAKEGPU_DEVICE_COUNT=%d but FAKEGPU_PROFILES=%s describes %d devices; give one of the two",
                         wanted, config->profiles, physical_count);
}

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Fixed by node, physical index and profile: the same in every process of a node, different on every device. */
static void physical_uuid(int index, uint8_t uuid[16]) {
    uint64_t seed = mix((uint64_t)(fg_rt_config()->node + 1) * 65536u + (uint64_t)index);
    for (const char *p = physical[index]->id; *p; p++)
        seed = mix(seed ^ (uint8_t)*p);
    uint64_t words[2] = {mix(seed), mix(seed + 1)};
    memcpy(uuid, words, 16);
    uuid[6] = (uint8_t)(0x40 | (uuid[6] & 0x0f)); /* RFC 9562 version 4, variant 1: what tools expect to parse */
    uuid[8] = (uint8_t)(0x80 | (uuid[8] & 0x3f));
}

static void uuid_text(int index, char out[48]) {
    uint8_t u[16];
    physical_uuid(index, u);
    snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* Physical index an entry of CUDA_VISIBLE_DEVICES names, or -1. A UUID may be shortened while it stays unique. */
static int entry_index(const char *text, size_t length) {
    if (length > 4 && !strncmp(text, "GPU-", 4)) {
        int found = -1;
        for (int i = 0; i < physical_count; i++) {
            char uuid[48];
            uuid_text(i, uuid);
            if (length <= strlen(uuid) && !strncasecmp(uuid, text, length)) {
                if (found >= 0)
                    return -1;
                found = i;
            }
        }
        return found;
    }
    int number = 0;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]) || number > FG_MAX_DEVICES)
            return -1;
        number = number * 10 + (text[i] - '0');
    }
    return length && number < physical_count ? number : -1;
}

static void select_visible(const char *list) {
    for (const char *p = list; *p;) {
        size_t item = strcspn(p, ","), skip = strspn(p, " \t");
        size_t begin = skip < item ? skip : item, end = item;
        while (end > begin && isspace((unsigned char)p[end - 1]))
            end--;
        int index = entry_index(p + begin, end - begin);
        if (index < 0)
            return;
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == index) {
                visible_count = 0;
                return;
            }
        visible[visible_count++] = index;
        p += item;
        p += *p == ',';
    }
}

static void build(void) {
    build_physical();
    const char *list = fg_config_private()->visible_devices;
    if (list) {
        select_visible(list);
        return;
    }
    for (int i = 0; i < physical_count; i++)
        visible[visible_count++] = i;
}

int fg_rt_device_count(void) {
    pthread_once(&built, build);
    return fg_rt_config_check() ? 0 : visible_count;
}

int fg_rt_device_check(int device) {
    int count = fg_rt_device_count();
    if (device >= 0 && device < count)
        return FG_OK;
    if (fg_rt_config_check())
        return FG_CUDA(3);
    return fg_rt_set_error(FG_CUDA(101), "device %d: expected 0 to %d", device, count - 1);
}

const fg_profile_t *fg_rt_device_profile(int device) {
    return fg_rt_device_check(device) ? NULL : physical[visible[device]];
}

int fg_rt_device_physical(int device) {
    return fg_rt_device_check(device) ? -1 : visible[device];
}

void fg_rt_device_uuid(int device, uint8_t uuid[16]) {
    memset(uuid, 0, 16);
    if (!fg_rt_device_check(device))
        physical_uuid(visible[device], uuid);
}

int fg_rt_physical_count(void) {
    fg_rt_device_count();
    return physical_count;
}

const fg_profile_t *fg_rt_physical_profile(int index) {
    return index >= 0 && index < fg_rt_physical_count() ? physical[index] : NULL;
}

void fg_rt_physical_uuid(int index, char out[48]) {
    out[0] = 0;
    if (fg_rt_physical_profile(index))
        uuid_text(index, out);
}

int fg_rt_physical_visible(int index) {
    for (int device = 0; device < fg_rt_device_count(); device++)
        if (fg_rt_device_physical(device) == index)
            return device;
    return -1;
}

int fg_rt_device_pci_bus(int device) {
    return fg_rt_device_physical(device) + 1;
}

void fg_rt_device_pci(int device, char out[16]) {
    snprintf(out, 16, "0000:%02X:00.0", (unsigned)fg_rt_device_pci_bus(device) & 0xffu);
}

int fg_rt_device_get(void) {
    return current;
}

int fg_rt_device_set(int device) {
    int status = fg_rt_device_check(device);
    if (status)
        return status;
    current = device;
    current_set = true;
    epoch++;
    atomic_store_explicit(&active[device], true, memory_order_relaxed);
    return FG_OK;
}

unsigned fg_rt_device_epoch(void) {
    return epoch;
}

void fg_rt_device_activate(int device) {
    if (!fg_rt_device_check(device))
        atomic_store_explicit(&active[device], true, memory_order_relaxed);
}

bool fg_rt_device_active(int device) {
    return !fg_rt_device_check(device) && atomic_load_explicit(&active[device], memory_order_relaxed);
}

bool fg_rt_device_current_set(void) {
    return current_set;
}
