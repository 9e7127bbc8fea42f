/* Device attributes by number (cudaDeviceAttr and CUdevice_attribute share them): limits that every supported
 * architecture has in common, those that follow from the compute capability (CUDA C++ Programming Guide, "Technical
 * Specifications per Compute Capability") and those of the GPU profile. What fakegpu refuses is reported as absent.
 */
#include "device.h"

#include <stdlib.h>

#define ABSENT (-2147483647)

typedef struct capability {
    int cc;
    int shared_per_sm, shared_optin, threads_per_sm, blocks_per_sm, double_ratio;
} capability_t;

static const capability_t capabilities[] = {
    {70, 98304, 98304, 2048, 32, 2},    {75, 65536, 65536, 1024, 16, 32},   {80, 167936, 166912, 2048, 32, 2},
    {86, 102400, 101376, 1536, 16, 64}, {87, 167936, 166912, 1536, 16, 64}, {89, 102400, 101376, 1536, 24, 64},
    {90, 233472, 232448, 2048, 32, 2},  {100, 233472, 232448, 2048, 32, 2}, {103, 233472, 232448, 2048, 32, 64},
    {120, 102400, 101376, 1536, 24, 64},
};

static const int common[FG_ATTRIBUTES][2] = { /* {1, value}; {0, 0} = not here */
#define A(number, value) [number] = {1, value}
    A(1, 1024), A(2, 1024), A(3, 1024), A(4, 64), A(5, 2147483647), A(6, 65535), A(7, 65535), A(8, 49152), A(9, 65536),
    A(10, 32), A(11, 2147483647), A(12, 65536), A(14, 512), A(15, 1), A(17, 0), A(18, 0), A(19, 1), A(20, 0),
    /* texture and surface sizes */
    A(21, 131072), A(22, 131072), A(23, 65536), A(24, 16384), A(25, 16384), A(26, 16384), A(27, 32768), A(28, 32768),
    A(29, 2048), A(30, 512), A(42, 32768), A(43, 2048), A(44, 1), A(45, 32768), A(46, 32768), A(47, 8192), A(48, 8192),
    A(49, 32768), A(51, 32), A(52, 32768), A(53, 32768), A(54, 2046), A(55, 32768), A(56, 131072), A(57, 65536),
    A(58, 16384), A(59, 16384), A(60, 16384), A(61, 32768), A(62, 2048), A(63, 32768), A(64, 32768), A(65, 2048),
    A(66, 32768), A(67, 32768), A(68, 2046), A(69, 268435456), A(70, 131072), A(71, 65000), A(72, 2097120),
    A(73, 32768), A(74, 32768), A(77, 32768),
    A(31, 1), A(34, 0), A(35, 0), A(40, 3), A(41, 1), A(50, 0), A(78, 1), A(79, 1), A(80, 1), A(82, 65536), A(83, 1),
    A(84, 0), A(85, 0), A(86, 0), A(88, 0), A(89, 1), A(90, 1), A(91, 1), A(92, 0), A(93, 0), A(94, 0), A(95, 1),
    A(96, 0), A(98, 0), A(99, 1), A(100, 0), A(101, 0),
    A(102, 1), A(103, 1), A(104, 0), A(105, 0), A(107, 0), /* virtual memory; POSIX descriptors only; no compression */
    A(109, 134217728), A(110, 0), A(111, 1024), A(112, 0), A(113, 1), A(114, 0), A(115, 1), A(116, 0), A(117, 0),
    A(118, 0), A(119, 0), /* no GPUDirect RDMA; pools are not shared between processes */
    A(121, 0), A(122, 1), A(123, 1), A(124, 0), A(125, 1), A(128, 0), A(129, 0), A(130, 0), A(131, -1),
    A(132, 0), /* no multicast objects */
    A(133, 0), A(134, 0), A(135, 0), A(136, 0), A(137, 0), A(138, 0), A(139, 0x10de), A(140, 0x10de), A(141, 0),
    A(142, 0), A(143, 0), A(144, 0), A(145, 0), A(147, 0),
#undef A
};

static const capability_t *capability_of(const fg_profile_t *profile) {
    const capability_t *best = capabilities;
    int cc = 10 * profile->cc_major + profile->cc_minor;
    for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++)
        if (capabilities[i].cc <= cc)
            best = &capabilities[i];
    return best;
}

static int of_profile(const fg_profile_t *p, int device, int attribute) {
    const capability_t *c = capability_of(p);
    switch (attribute) {
    case 13: return p->core_clock_khz;
    case 16: return p->sms;
    case 32: return p->memory_bus_bits >= 1024; /* ECC: on where the memory is HBM */
    case 33: return fg_rt_device_pci_bus(device);
    case 36: return p->memory_clock_khz;
    case 37: return p->memory_bus_bits;
    case 38: return p->l2_cache_bytes;
    case 39: return c->threads_per_sm;
    case 75: return p->cc_major;
    case 76: return p->cc_minor;
    case 81: return c->shared_per_sm;
    case 87: return c->double_ratio;
    case 97: return c->shared_optin;
    case 106: return c->blocks_per_sm;
    case 108: return p->cc_major >= 8 ? p->l2_cache_bytes / 4 * 3 : 0;
    case 120: case 127: return p->cc_major >= 9;
    case 126: return p->cc_major >= 9 ? 4 : 1;
    default: return ABSENT;
    }
}

int fg_rt_device_attribute(int device, int attribute, int *out) {
    const fg_profile_t *profile = fg_rt_device_profile(device);
    if (!profile)
        return fg_rt_device_check(device);
    if (attribute > 0 && attribute < FG_ATTRIBUTES) {
        int value = common[attribute][0] ? common[attribute][1] : of_profile(profile, device, attribute);
        if (value != ABSENT) {
            *out = value;
            return FG_OK;
        }
    }
    return fg_rt_set_error(FG_INVALID_ARGUMENT, "device attribute %d: unknown number", attribute);
}
