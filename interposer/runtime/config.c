/* Owns the configuration: the only reader of the environment on the C side. Everything is parsed once, at the first
 * call that asks; a bad value keeps its default, is reported once and makes fg_rt_config_check() refuse, so that no
 * program runs on a setting it did not ask for. Variables of other programs (RANK, OMPI_..., SLURM_...) are taken
 * when they hold a number and ignored otherwise.
 */
#include "fault.h"
#include "config.h"
#include "log.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t parsed = PTHREAD_ONCE_INIT;
static fg_config_t config;
static fg_config_private_t private_config;
static char bad[512];

int fg_config_refuse(const char *format, ...) {
    char text[sizeof bad];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!bad[0]) {
        memcpy(bad, text, sizeof bad);
        fg_rt_log_once(FG_LOG_ERROR, "bad configuration", "%s", bad);
    }
    return FG_INVALID_ARGUMENT;
}

static const char *text_of(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value && *value ? value : fallback;
}

static int64_t number_of(const char *name, int64_t low, int64_t high, int64_t fallback) {
    const char *value = text_of(name, NULL);
    if (!value)
        return fallback;
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (errno || *end || number < low || number > high) {
        fg_config_refuse("%s=%s: expected a whole number from %lld to %lld", name, value, (long long)low,
                         (long long)high);
        return fallback;
    }
    return number;
}

static bool flag_of(const char *name, bool fallback) {
    static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no", "off"};
    const char *value = text_of(name, NULL);
    if (!value)
        return fallback;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        if (!strcasecmp(value, yes[i]))
            return true;
        if (!strcasecmp(value, no[i]))
            return false;
    }
    fg_config_refuse("%s=%s: expected 1 or 0", name, value);
    return fallback;
}

/* Position of the variable's value in a NULL-ended list of words. */
static int word_of(const char *name, const char *const *words, int fallback) {
    const char *value = text_of(name, NULL);
    if (!value)
        return fallback;
    char expected[256] = "";
    for (int i = 0; words[i]; i++) {
        if (!strcmp(value, words[i]))
            return i;
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%s", i ? ", " : "", words[i]);
    }
    fg_config_refuse("%s=%s: expected one of %s", name, value, expected);
    return fallback;
}

static int launcher_number(const char *name) {
    const char *value = name ? text_of(name, NULL) : NULL;
    char *end;
    long number = value ? strtol(value, &end, 10) : -1;
    return value && !*end && number >= 0 && number <= INT_MAX ? (int)number : -1;
}

/* The launcher whose rank and size are both known, as fakegpu/settings.py finds it: variables of two launchers are
 * never mixed (torchrun below srun has both sets). PMI's local rank is Hydra's; Slurm's own PMI leaves it to SLURM_. */
static void parse_launcher(void) {
    static const char *const launchers[][4] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", NULL},
        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", NULL},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", NULL},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"},
        {"PMI_RANK", "PMI_SIZE", NULL, NULL},
    };
    config.rank = config.world_size = config.local_rank = config.node = -1;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *const *names = launchers[i];
        bool hydra = names[2] && !strcmp(names[2], "MPI_LOCALRANKID");
        int rank = launcher_number(names[0]), size = launcher_number(names[1]);
        if (rank >= 0 && size > rank && (!hydra || launcher_number(names[2]) >= 0)) {
            config.rank = rank;
            config.world_size = size;
            config.local_rank = launcher_number(names[2]);
            config.node = launcher_number(names[3]);
            break;
        }
    }
    config.generation = launcher_number("TORCHELASTIC_RESTART_COUNT");
}

/* FAKEGPU_TOKEN, else the first line of FAKEGPU_TOKEN_FILE without the blanks around it; "" = none. */
static const char *token_of(void) {
    static char line[4096];
    const char *token = text_of("FAKEGPU_TOKEN", NULL), *path = text_of("FAKEGPU_TOKEN_FILE", NULL);
    if (token || !path)
        return token ? token : "";
    FILE *file = fopen(path, "re");
    if (!file) {
        fg_config_refuse("FAKEGPU_TOKEN_FILE=%s: not readable: %s", path, strerror(errno));
        return "";
    }
    char *start = fgets(line, sizeof line, file);
    fclose(file);
    start = start ? start + strspn(start, " \t\r\n") : line;
    for (size_t n = strlen(start); n && strchr(" \t\r\n", start[n - 1]); n--)
        start[n - 1] = 0;
    if (!*start)
        fg_config_refuse("FAKEGPU_TOKEN_FILE=%s: %s, expected one line", path, "empty");
    return start;
}

static void parse_coordinator(void) {
    static const char *const transports[] = {"unix", "tcp", NULL}, *const duplicate[] = {"allow", "error", NULL};
    config.timeout_ms = (uint32_t)number_of("FAKEGPU_COORDINATOR_TIMEOUT_MS", 1, UINT32_MAX, 1000);
    config.tcp = word_of("FAKEGPU_COORDINATOR_TRANSPORT", transports, 0) == 1;
    config.coordinator_addr = text_of("FAKEGPU_COORDINATOR_ADDR", NULL);
    config.session = text_of("FAKEGPU_SESSION", "");
    config.token = token_of();
    config.tls_ca = text_of("FAKEGPU_TLS_CA", NULL);
    config.staging_chunk_bytes = (uint64_t)number_of("FAKEGPU_STAGING_CHUNK_BYTES", 0, INT64_MAX, 0);
    bool same_host = flag_of("FAKEGPU_SAME_HOST_SHM", false);
    config.shares_memory = !flag_of("FAKEGPU_STAGING_FORCE_SOCKET", false) && (!config.tcp || same_host);
    config.eager_bytes = (uint64_t)number_of("FAKEGPU_P2P_EAGER_BYTES", 0, INT64_MAX, 1 << 20);
    config.duplicate_gpu_error = word_of("FAKEGPU_DUPLICATE_GPU", duplicate, 0) == 1;
    config.nccl_version = (int)number_of("FAKEGPU_NCCL_VERSION", 20000, 99999, 23007);
    const char *operation = text_of("FAKEGPU_NCCL_FAULT_OPERATION", NULL);
    config.fault_kind = operation ? fg_fault_kind(operation) : -1;
    if (operation && config.fault_kind < 0)
        fg_config_refuse("FAKEGPU_NCCL_FAULT_OPERATION=%s: expected an operation such as all_reduce or send", operation);
    config.fault_allocations = text_of("FAKEGPU_FAULT_ALLOCATIONS", NULL);
    config.fault_rank = (int)number_of("FAKEGPU_NCCL_FAULT_RANK", -1, INT_MAX, -1);
    config.fault_seqno = number_of("FAKEGPU_NCCL_FAULT_SEQNO", -1, INT64_MAX, -1);
}

static void parse(void) {
    static const char *const modes[] = {"simulate", "hybrid", "passthrough", NULL};
    static const char *const dist_modes[] = {"disabled", "simulate", "proxy", "passthrough", NULL};
    static const char *const unsupported[] = {"warn", "error", "allow", NULL};
    static const char *const policies[] = {"host", "device", NULL};
    config.mode = (fg_mode_t)word_of("FAKEGPU_MODE", modes, FG_MODE_SIMULATE);
    config.dist_mode = (fg_dist_mode_t)word_of("FAKEGPU_DIST_MODE", dist_modes, FG_DIST_SIMULATE);
    config.device_count = (int)number_of("FAKEGPU_DEVICE_COUNT", 0, 64, 8);
    config.verbose = fg_config_verbose();
    config.libpython = text_of("FAKEGPU_LIBPYTHON", NULL);
    config.python_program = text_of("FAKEGPU_PYTHON", NULL);
    config.unsupported_api = unsupported[word_of("FAKEGPU_UNSUPPORTED_API", unsupported, 0)];
    private_config.profile = text_of("FAKEGPU_PROFILE", NULL);
    private_config.profiles = text_of("FAKEGPU_PROFILES", NULL);
    private_config.device_count_set = text_of("FAKEGPU_DEVICE_COUNT", NULL) != NULL;
    private_config.device_ledger = text_of("FAKEGPU_DEVICE_LEDGER", NULL);
    private_config.visible_devices = getenv("CUDA_VISIBLE_DEVICES"); /* empty is not the same as not set */
    private_config.guard = word_of("FAKEGPU_OOM_POLICY", policies, 0) == 0;
    parse_coordinator();
    parse_launcher();
}

const fg_config_t *fg_rt_config(void) {
    pthread_once(&parsed, parse);
    return &config;
}

const fg_config_private_t *fg_config_private(void) {
    pthread_once(&parsed, parse);
    return &private_config;
}

int fg_rt_config_check(void) {
    fg_rt_config();
    return bad[0] ? fg_rt_set_error(FG_INVALID_ARGUMENT, "%s", bad) : FG_OK;
}

int fg_config_verbose(void) {
    const char *value = getenv("FAKEGPU_VERBOSE");
    if (!value || !*value)
        return 0;
    int number = atoi(value);
    return number < 0 ? 0 : number > 2 ? 2 : number;
}
