/* A stand-in for libnvidia-ml.so.1 that answers from a text file. For tests only.
 *
 * The file (FAKE_NVML_FIXTURE) holds lines "key = value"; `#` starts a comment. It is read again whenever
 * it changes, so that a test can heat a GPU up, or take it away, under a running process. Keys:
 *
 *   init.error, driver_version, cuda_version, count
 *   missing.SYMBOL = 1              an old driver without that function
 *   error.SYMBOL = NOT_SUPPORTED    that answer for every device
 *   gpu.I.error.SYMBOL, gpu.I.lost  for one device
 *   gpu.I.WHAT, gpu.I.mig.J.WHAT, gpu.I.process.K.{pid,mib,type,mig}, event.K.{gpu,xid}
 *
 * A key that is not there means NOT_SUPPORTED: that is how boards differ. A number may move by itself:
 * "1000+250/s" grows with time, "10|90@0.5" steps through its values. As on real boards, utilisation and
 * core counts are not supported where MIG is on, and a forked child must initialise again.
 *
 * Struct layouts are those of nvidia-ml-py's ctypes classes; a test compares their sizes.
 */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int answer_t;
typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMED_OUT = 10, LIBRARY_NOT_FOUND = 12,
    FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, RESET_REQUIRED = 16, LIB_RM_VERSION_MISMATCH = 18, NO_DATA = 21,
    UNKNOWN = 999
};

static const struct { const char *name; int code; } NAMES[] = {
    {"UNINITIALIZED", 1}, {"INVALID_ARGUMENT", 2}, {"NOT_SUPPORTED", 3}, {"NO_PERMISSION", 4}, {"NOT_FOUND", 6},
    {"INSUFFICIENT_SIZE", 7}, {"DRIVER_NOT_LOADED", 9}, {"TIMEOUT", 10}, {"IRQ_ISSUE", 11},
    {"LIBRARY_NOT_FOUND", 12}, {"FUNCTION_NOT_FOUND", 13}, {"CORRUPTED_INFOROM", 14}, {"GPU_IS_LOST", 15},
    {"RESET_REQUIRED", 16}, {"OPERATING_SYSTEM", 17}, {"LIB_RM_VERSION_MISMATCH", 18}, {"IN_USE", 19},
    {"MEMORY", 20}, {"NO_DATA", 21}, {"INSUFFICIENT_RESOURCES", 23}, {"UNKNOWN", 999},
};

enum { MOST_GPUS = 32, MOST_MIG = 16, MOST_KEYS = 8192, KEY_SIZE = 128, VALUE_SIZE = 128 };

struct pair { char key[KEY_SIZE]; char value[VALUE_SIZE]; };
struct handle { int gpu, mig; }; /* mig -1: the whole GPU */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pair *pairs;
static size_t n_pairs;
static struct stat seen;
static pid_t initialised_by;
static double began;
static struct handle handles[MOST_GPUS][MOST_MIG + 1];

static void unlock(int *unused) { (void)unused; pthread_mutex_unlock(&lock); }
#define LOCKED __attribute__((cleanup(unlock), unused)) int locked = pthread_mutex_lock(&lock)

/* --- the fixture --- */

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct pair *)a)->key, ((const struct pair *)b)->key);
}

static void copy_trimmed(char *to, size_t size, const char *from, size_t length) {
    while (length && (unsigned char)*from <= ' ') { from++; length--; }
    while (length && (unsigned char)from[length - 1] <= ' ') length--;
    if (length >= size) length = size - 1;
    memcpy(to, from, length);
    to[length] = 0;
}

static void load(void) {
    const char *path = getenv("FAKE_NVML_FIXTURE");
    struct stat now;
    if (!path || stat(path, &now) != 0) { n_pairs = 0; memset(&seen, 0, sizeof seen); return; }
    if (pairs && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    if (!pairs && !(pairs = calloc(MOST_KEYS, sizeof *pairs))) { fclose(file); return; }
    seen = now;
    n_pairs = 0;
    char line[1024];
    while (n_pairs < MOST_KEYS && fgets(line, sizeof line, file)) {
        char *hash = strchr(line, '#');
        if (hash) *hash = 0;
        char *equals = strchr(line, '=');
        if (!equals) continue;
        copy_trimmed(pairs[n_pairs].key, KEY_SIZE, line, (size_t)(equals - line));
        copy_trimmed(pairs[n_pairs].value, VALUE_SIZE, equals + 1, strlen(equals + 1));
        n_pairs++;
    }
    fclose(file);
    qsort(pairs, n_pairs, sizeof *pairs, by_key);
}

static const char *text(const char *key) {
    struct pair wanted;
    snprintf(wanted.key, sizeof wanted.key, "%s", key);
    struct pair *found = n_pairs ? bsearch(&wanted, pairs, n_pairs, sizeof *pairs, by_key) : NULL;
    return found && found->value[0] ? found->value : NULL;
}

static double moving(const char *value) {
    const char *at = strchr(value, '@');
    if (at && strchr(value, '|')) {
        double step_s = strtod(at + 1, NULL);
        int count = 1;
        for (const char *c = value; c < at; c++) count += *c == '|';
        double steps = step_s > 0 ? floor((now_s() - began) / step_s) : 0;
        int wanted = (int)fmod(steps, count);
        const char *c = value;
        while (wanted-- > 0) c = strchr(c, '|') + 1;
        return strtod(c, NULL);
    }
    char *end;
    double number = strtod(value, &end);
    if (*end == '+') number += strtod(end + 1, NULL) * (now_s() - began);
    return number;
}

static int number(const char *key, double *out) {
    const char *value = text(key);
    if (!value) return 0;
    double found = moving(value);
    if (isnan(found)) return 0;
    *out = found < 0 ? 0 : found > 9e15 ? 9e15 : found;
    return 1;
}

static u32 as_u32(double value) { return value > 4294967295.0 ? 4294967295U : (u32)value; }

static int code(const char *name) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcasecmp(name, NAMES[i].name)) return NAMES[i].code;
    return UNKNOWN;
}

/* --- every call begins here --- */

struct place { int gpu, mig; char prefix[48]; };

static void key_of(char *key, const struct place *at, const char *what) {
    snprintf(key, KEY_SIZE, "%s.%s", at->prefix, what);
}
static int has(const struct place *at, const char *what, double *out) {
    char key[KEY_SIZE];
    key_of(key, at, what);
    return number(key, out);
}
static const char *text_of(const struct place *at, const char *what) {
    char key[KEY_SIZE];
    key_of(key, at, what);
    return text(key);
}
static struct place parent(const struct place *at) {
    struct place whole = {at->gpu, -1, ""};
    snprintf(whole.prefix, sizeof whole.prefix, "gpu.%d", at->gpu);
    return whole;
}
static int is_cut_up(const struct place *at) {
    struct place whole = parent(at);
    double mode;
    return has(&whole, "mig_mode", &mode) && mode == 1;
}

static answer_t begin(const char *symbol) {
    load();
    char key[KEY_SIZE];
    double flag;
    if (initialised_by != getpid()) return UNINITIALIZED;
    snprintf(key, sizeof key, "missing.%s", symbol);
    if (number(key, &flag)) return FUNCTION_NOT_FOUND;
    snprintf(key, sizeof key, "delay_ms.%s", symbol);
    if (number(key, &flag)) usleep(as_u32(flag * 1000));
    snprintf(key, sizeof key, "error.%s", symbol);
    const char *error = text(key);
    return error ? code(error) : SUCCESS;
}

static answer_t begin_on(const char *symbol, const struct handle *device, struct place *at) {
    answer_t failed = begin(symbol);
    if (failed) return failed;
    const struct handle *first = &handles[0][0], *last = &handles[MOST_GPUS - 1][MOST_MIG];
    if (device < first || device > last) return INVALID_ARGUMENT;
    at->gpu = device->gpu;
    at->mig = device->mig;
    struct place whole = parent(at);
    char key[KEY_SIZE];
    double flag;
    if (has(&whole, "lost", &flag) && flag) return GPU_IS_LOST;
    if (at->mig >= 0) {
        snprintf(at->prefix, sizeof at->prefix, "gpu.%d.mig.%d", at->gpu, at->mig);
        if (!text_of(at, "uuid")) return INVALID_ARGUMENT; /* cut anew since */
    } else
        *at = whole;
    snprintf(key, sizeof key, "gpu.%d.error.%s", at->gpu, symbol);
    const char *error = text(key);
    return error ? code(error) : SUCCESS;
}

#define EXPORT __attribute__((visibility("default")))
#define ON(symbol)                                             \
    LOCKED;                                                    \
    struct place at;                                           \
    answer_t failed = begin_on(symbol, device, &at);           \
    if (failed) return failed

static answer_t give_u32(const struct place *at, const char *what, u32 *out) {
    double value;
    if (!out) return INVALID_ARGUMENT;
    if (!has(at, what, &value)) return NOT_SUPPORTED;
    *out = as_u32(value);
    return SUCCESS;
}
static answer_t give_text(const struct place *at, const char *what, char *out, u32 size) {
    const char *value = text_of(at, what);
    if (!value) return NOT_SUPPORTED;
    if (!out || size <= strlen(value)) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* --- the library --- */

EXPORT answer_t nvmlInitWithFlags(u32 flags) {
    LOCKED;
    (void)flags;
    load();
    if (!n_pairs) return DRIVER_NOT_LOADED;
    const char *error = text("init.error");
    if (error) return code(error);
    if (!began) began = now_s();
    for (int gpu = 0; gpu < MOST_GPUS; gpu++)
        for (int mig = 0; mig <= MOST_MIG; mig++) handles[gpu][mig] = (struct handle){gpu, mig - 1};
    initialised_by = getpid();
    return SUCCESS;
}
EXPORT answer_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT answer_t nvmlShutdown(void) {
    LOCKED;
    answer_t failed = begin("nvmlShutdown");
    if (!failed) initialised_by = 0;
    return failed;
}
EXPORT const char *nvmlErrorString(answer_t error) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (NAMES[i].code == error) return NAMES[i].name;
    return error ? "UNKNOWN" : "SUCCESS";
}

static answer_t system_text(const char *symbol, const char *key, char *out, u32 size) {
    answer_t failed = begin(symbol);
    if (failed) return failed;
    const char *value = text(key);
    if (!value) return NOT_SUPPORTED;
    if (size <= strlen(value)) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}
EXPORT answer_t nvmlSystemGetDriverVersion(char *out, u32 size) {
    LOCKED;
    return system_text("nvmlSystemGetDriverVersion", "driver_version", out, size);
}
EXPORT answer_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    LOCKED;
    answer_t failed = begin("nvmlSystemGetCudaDriverVersion_v2");
    double value;
    if (failed) return failed;
    if (!number("cuda_version", &value)) return NOT_SUPPORTED;
    *out = (int)(value > 1e9 ? 1e9 : value);
    return SUCCESS;
}
EXPORT answer_t nvmlDeviceGetCount_v2(u32 *out) {
    LOCKED;
    answer_t failed = begin("nvmlDeviceGetCount_v2");
    double value = 0;
    if (failed) return failed;
    number("count", &value);
    *out = as_u32(value);
    return SUCCESS;
}
EXPORT answer_t nvmlDeviceGetHandleByIndex_v2(u32 index, struct handle **out) {
    LOCKED;
    answer_t failed = begin("nvmlDeviceGetHandleByIndex_v2");
    double count = 0;
    if (failed) return failed;
    number("count", &count);
    if (index >= count || index >= MOST_GPUS) return INVALID_ARGUMENT;
    struct place at;
    failed = begin_on("nvmlDeviceGetHandleByIndex_v2", &handles[index][0], &at);
    if (!failed) *out = &handles[index][0];
    return failed;
}

/* --- what a device is --- */

#define TEXT(symbol, what)                                                  \
    EXPORT answer_t symbol(struct handle *device, char *out, u32 size) {    \
        ON(#symbol);                                                        \
        return give_text(&at, what, out, size);                             \
    }
#define WHOLE_U32(symbol, what)                                             \
    EXPORT answer_t symbol(struct handle *device, u32 *out) {               \
        ON(#symbol);                                                        \
        if (at.mig >= 0) return NOT_SUPPORTED;                              \
        return give_u32(&at, what, out);                                    \
    }
#define UNCUT_U32(symbol, what)                                             \
    EXPORT answer_t symbol(struct handle *device, u32 *out) {               \
        ON(#symbol);                                                        \
        if (is_cut_up(&at)) return NOT_SUPPORTED;                           \
        return give_u32(&at, what, out);                                    \
    }
#define PARENT_U32(symbol, what)                                            \
    EXPORT answer_t symbol(struct handle *device, u32 *out) {               \
        ON(#symbol);                                                        \
        struct place whole = parent(&at);                                   \
        return give_u32(&whole, what, out);                                 \
    }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
PARENT_U32(nvmlDeviceGetBrand, "brand")
PARENT_U32(nvmlDeviceGetArchitecture, "architecture")
UNCUT_U32(nvmlDeviceGetNumGpuCores, "cores")
WHOLE_U32(nvmlDeviceGetMemoryBusWidth, "bus_bits")
WHOLE_U32(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation")
WHOLE_U32(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
WHOLE_U32(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation_now")
WHOLE_U32(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width_now")
WHOLE_U32(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw")
WHOLE_U32(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
WHOLE_U32(nvmlDeviceGetPowerUsage, "power_mw")
WHOLE_U32(nvmlDeviceGetVirtualizationMode, "virtualization")
PARENT_U32(nvmlDeviceGetComputeMode, "compute_mode")
WHOLE_U32(nvmlDeviceGetMaxMigDeviceCount, "mig_most")

EXPORT answer_t nvmlDeviceGetCudaComputeCapability(struct handle *device, int *major, int *minor) {
    ON("nvmlDeviceGetCudaComputeCapability");
    struct place whole = parent(&at);
    const char *value = text_of(&whole, "cc");
    if (!value || sscanf(value, "%d.%d", major, minor) != 2) return NOT_SUPPORTED;
    return SUCCESS;
}

struct pci { char old_id[16]; u32 domain, bus, device, id, subsystem; char id_text[32]; };
EXPORT answer_t nvmlDeviceGetPciInfo_v3(struct handle *device, struct pci *out) {
    ON("nvmlDeviceGetPciInfo_v3");
    struct place whole = parent(&at);
    memset(out, 0, sizeof *out);
    return give_text(&whole, "pci", out->id_text, sizeof out->id_text);
}

static answer_t clock_of(struct handle *device, const char *symbol, u32 kind, const char *when, u32 *out) {
    struct place at;
    answer_t failed = begin_on(symbol, device, &at);
    if (failed) return failed;
    struct place whole = parent(&at);
    char what[32];
    snprintf(what, sizeof what, "%s%s", kind == 1 ? "sm_mhz" : kind == 2 ? "memory_mhz" : "other_mhz", when);
    return give_u32(&whole, what, out);
}
EXPORT answer_t nvmlDeviceGetMaxClockInfo(struct handle *device, u32 kind, u32 *out) {
    LOCKED;
    return clock_of(device, "nvmlDeviceGetMaxClockInfo", kind, "", out);
}
EXPORT answer_t nvmlDeviceGetClockInfo(struct handle *device, u32 kind, u32 *out) {
    LOCKED;
    return clock_of(device, "nvmlDeviceGetClockInfo", kind, "_now", out);
}

/* --- memory, use, heat --- */

struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };

static answer_t memory_of(const struct place *at, u64 *total, u64 *reserved, u64 *used) {
    const u64 mib = 1024 * 1024;
    double value;
    if (!has(at, "memory_mib", &value)) return NOT_SUPPORTED;
    *total = (u64)(value > 1e9 ? 1e9 : value) * mib;
    *reserved = has(at, "reserved_mib", &value) ? (u64)(value > 1e9 ? 1e9 : value) * mib : 0;
    *used = has(at, "used_mib", &value) ? (u64)(value > 1e9 ? 1e9 : value) * mib : 0;
    return SUCCESS;
}
EXPORT answer_t nvmlDeviceGetMemoryInfo(struct handle *device, struct memory *out) {
    ON("nvmlDeviceGetMemoryInfo");
    u64 reserved;
    failed = memory_of(&at, &out->total, &reserved, &out->used);
    if (failed) return failed;
    out->used += reserved; /* the old call counts the driver's own share as used */
    out->free = out->used < out->total ? out->total - out->used : 0;
    return SUCCESS;
}
EXPORT answer_t nvmlDeviceGetMemoryInfo_v2(struct handle *device, struct memory_v2 *out) {
    ON("nvmlDeviceGetMemoryInfo_v2");
    failed = memory_of(&at, &out->total, &out->reserved, &out->used);
    if (failed) return failed;
    u64 gone = out->used + out->reserved;
    out->free = gone < out->total ? out->total - gone : 0;
    return SUCCESS;
}

struct use { u32 gpu, memory; };
EXPORT answer_t nvmlDeviceGetUtilizationRates(struct handle *device, struct use *out) {
    ON("nvmlDeviceGetUtilizationRates");
    if (is_cut_up(&at)) return NOT_SUPPORTED;
    failed = give_u32(&at, "busy", &out->gpu);
    if (failed) return failed;
    if (give_u32(&at, "memory_busy", &out->memory)) out->memory = 0;
    return SUCCESS;
}
struct temperature { u32 version, sensor; int degrees; };
EXPORT answer_t nvmlDeviceGetTemperatureV(struct handle *device, struct temperature *out) {
    ON("nvmlDeviceGetTemperatureV");
    u32 degrees;
    failed = at.mig >= 0 ? NOT_SUPPORTED : give_u32(&at, "temperature", &degrees);
    if (!failed) out->degrees = (int)degrees;
    return failed;
}
EXPORT answer_t nvmlDeviceGetTemperature(struct handle *device, u32 sensor, u32 *out) {
    ON("nvmlDeviceGetTemperature");
    (void)sensor;
    return at.mig >= 0 ? NOT_SUPPORTED : give_u32(&at, "temperature", out);
}
static answer_t give_u64(const struct place *at, const char *what, u64 *out) {
    double value;
    if (at->mig >= 0 || !has(at, what, &value)) return NOT_SUPPORTED;
    *out = (u64)value;
    return SUCCESS;
}
EXPORT answer_t nvmlDeviceGetTotalEnergyConsumption(struct handle *device, u64 *out) {
    ON("nvmlDeviceGetTotalEnergyConsumption");
    return give_u64(&at, "energy_mj", out);
}
EXPORT answer_t nvmlDeviceGetCurrentClocksEventReasons(struct handle *device, u64 *out) {
    ON("nvmlDeviceGetCurrentClocksEventReasons");
    return give_u64(&at, "reasons", out);
}
EXPORT answer_t nvmlDeviceGetCurrentClocksThrottleReasons(struct handle *device, u64 *out) {
    ON("nvmlDeviceGetCurrentClocksThrottleReasons");
    return give_u64(&at, "reasons", out);
}

/* --- processes --- */

struct process { u32 pid; u64 used; u32 gpu_instance, compute_instance; };

static answer_t processes(const struct place *at, char kind, u32 *count, struct process *out) {
    struct place whole = parent(at);
    u32 found = 0, room = *count;
    double value;
    if (has(&whole, "no_processes", &value)) return NOT_SUPPORTED;
    for (int i = 0; i < 64; i++) {
        char what[32];
        snprintf(what, sizeof what, "process.%d.pid", i);
        if (!has(&whole, what, &value)) break;
        u32 pid = as_u32(value);
        snprintf(what, sizeof what, "process.%d.type", i);
        const char *type = text_of(&whole, what);
        if ((type ? *type : 'C') != kind) continue;
        snprintf(what, sizeof what, "process.%d.mig", i);
        if (at->mig >= 0 && (!has(&whole, what, &value) || value != at->mig)) continue;
        snprintf(what, sizeof what, "process.%d.mib", i);
        u64 used = has(&whole, what, &value) ? (u64)(value > 1e9 ? 1e9 : value) * 1024 * 1024 : ~0ULL;
        if (out && found < room) out[found] = (struct process){pid, used, ~0U, ~0U};
        found++;
    }
    *count = found;
    return found > (out ? room : 0) ? INSUFFICIENT_SIZE : SUCCESS;
}
#define PROCESSES(symbol, kind)                                                             \
    EXPORT answer_t symbol(struct handle *device, u32 *count, struct process *out) {        \
        ON(#symbol);                                                                        \
        return processes(&at, kind, count, out);                                            \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')

/* --- MIG --- */

EXPORT answer_t nvmlDeviceGetMigMode(struct handle *device, u32 *now, u32 *pending) {
    ON("nvmlDeviceGetMigMode");
    if (at.mig >= 0) return NOT_SUPPORTED;
    failed = give_u32(&at, "mig_mode", now);
    *pending = *now;
    return failed;
}
EXPORT answer_t nvmlDeviceGetMigDeviceHandleByIndex(struct handle *device, u32 index, struct handle **out) {
    ON("nvmlDeviceGetMigDeviceHandleByIndex");
    if (at.mig >= 0) return INVALID_ARGUMENT;
    if (!is_cut_up(&at) || index >= MOST_MIG) return NOT_FOUND;
    char what[32];
    snprintf(what, sizeof what, "mig.%u.uuid", index);
    if (!text_of(&at, what)) return NOT_FOUND; /* there may be gaps */
    *out = &handles[at.gpu][index + 1];
    return SUCCESS;
}
struct attributes { u32 sm, copy, decoders, encoders, jpeg, ofa, slices, compute_slices; u64 memory_mib; };
EXPORT answer_t nvmlDeviceGetAttributes_v2(struct handle *device, struct attributes *out) {
    ON("nvmlDeviceGetAttributes_v2");
    if (at.mig < 0) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    double value;
    if (has(&at, "memory_mib", &value)) out->memory_mib = (u64)value;
    give_u32(&at, "slices", &out->slices);
    return give_u32(&at, "sm", &out->sm);
}

/* --- GPM: Hopper and later --- */

struct gpm_sample { u32 magic; struct handle *device; };
struct gpm_info { const char *a, *b, *c; };
struct gpm_metric { u32 id; answer_t answer; double value; struct gpm_info info; };
struct gpm_get { u32 version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };
struct gpm_support { u32 version, is_supported; };
enum { MAGIC = 0x47504d };

EXPORT answer_t nvmlGpmQueryDeviceSupport(struct handle *device, struct gpm_support *out) {
    ON("nvmlGpmQueryDeviceSupport");
    struct place whole = parent(&at);
    double value;
    out->is_supported = has(&whole, "gpm", &value) && value != 0;
    return SUCCESS;
}
EXPORT answer_t nvmlGpmSampleAlloc(struct gpm_sample **out) {
    *out = calloc(1, sizeof **out);
    if (*out) (*out)->magic = MAGIC;
    return *out ? SUCCESS : UNKNOWN;
}
EXPORT answer_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    if (!sample || sample->magic != MAGIC) return INVALID_ARGUMENT;
    sample->magic = 0;
    free(sample);
    return SUCCESS;
}
EXPORT answer_t nvmlGpmSampleGet(struct handle *device, struct gpm_sample *sample) {
    ON("nvmlGpmSampleGet");
    struct place whole = parent(&at);
    double value;
    if (!sample || sample->magic != MAGIC) return INVALID_ARGUMENT;
    if (!has(&whole, "gpm", &value) || !value) return NOT_SUPPORTED;
    sample->device = device;
    return SUCCESS;
}
EXPORT answer_t nvmlGpmMetricsGet(struct gpm_get *get) {
    if (!get || !get->first || !get->second) return INVALID_ARGUMENT;
    if (get->first->magic != MAGIC || get->first->device != get->second->device) return INVALID_ARGUMENT;
    struct handle *device = get->first->device;
    ON("nvmlGpmMetricsGet");
    for (u32 i = 0; i < get->count && i < 256; i++) {
        char what[32];
        snprintf(what, sizeof what, "gpm.%u", get->metrics[i].id);
        get->metrics[i].answer = has(&at, what, &get->metrics[i].value) ? SUCCESS : NOT_SUPPORTED;
    }
    return SUCCESS;
}

/* --- events: an Xid is told once to every set that listens to its GPU --- */

struct event_set { u32 magic; u64 gpus; int told; };
struct event { struct handle *device; u64 type, data; u32 gpu_instance, compute_instance; };

EXPORT answer_t nvmlEventSetCreate(struct event_set **out) {
    LOCKED;
    answer_t failed = begin("nvmlEventSetCreate");
    if (failed) return failed;
    *out = calloc(1, sizeof **out);
    if (!*out) return UNKNOWN;
    (*out)->magic = MAGIC;
    return SUCCESS;
}
EXPORT answer_t nvmlEventSetFree(struct event_set *set) {
    if (!set || set->magic != MAGIC) return INVALID_ARGUMENT;
    set->magic = 0;
    free(set);
    return SUCCESS;
}
EXPORT answer_t nvmlDeviceGetSupportedEventTypes(struct handle *device, u64 *out) {
    ON("nvmlDeviceGetSupportedEventTypes");
    return give_u64(&at, "event_types", out);
}
EXPORT answer_t nvmlDeviceRegisterEvents(struct handle *device, u64 types, struct event_set *set) {
    ON("nvmlDeviceRegisterEvents");
    u64 able = 0;
    if (!set || set->magic != MAGIC) return INVALID_ARGUMENT;
    if (at.mig >= 0 || give_u64(&at, "event_types", &able) || (types & ~able)) return NOT_SUPPORTED;
    set->gpus |= 1ULL << at.gpu;
    return SUCCESS;
}
EXPORT answer_t nvmlEventSetWait_v2(struct event_set *set, struct event *out, u32 wait_ms) {
    LOCKED;
    answer_t failed = begin("nvmlEventSetWait_v2");
    if (failed) return failed;
    if (!set || set->magic != MAGIC) return INVALID_ARGUMENT;
    (void)wait_ms;
    for (;;) {
        char key[KEY_SIZE];
        double gpu, xid;
        snprintf(key, sizeof key, "event.%d.gpu", set->told);
        if (!number(key, &gpu)) return TIMED_OUT;
        snprintf(key, sizeof key, "event.%d.xid", set->told);
        int is_heard = gpu < MOST_GPUS && number(key, &xid) && (set->gpus >> (int)gpu & 1);
        set->told++;
        if (!is_heard) continue;
        *out = (struct event){&handles[(int)gpu][0], 8, (u64)xid, ~0U, ~0U};
        return SUCCESS;
    }
}

/* --- for the test that compares layouts --- */

EXPORT u32 fake_nvml_size_of(const char *name) {
    const struct { const char *name; size_t size; } sizes[] = {
        {"nvmlPciInfo_t", sizeof(struct pci)}, {"c_nvmlMemory_t", sizeof(struct memory)},
        {"c_nvmlMemory_v2_t", sizeof(struct memory_v2)}, {"c_nvmlUtilization_t", sizeof(struct use)},
        {"c_nvmlTemperature_v1_t", sizeof(struct temperature)}, {"c_nvmlProcessInfo_t", sizeof(struct process)},
        {"c_nvmlDeviceAttributes", sizeof(struct attributes)}, {"c_nvmlGpmMetric_t", sizeof(struct gpm_metric)},
        {"c_nvmlGpmSupport_t", sizeof(struct gpm_support)}, {"c_nvmlEventData_t", sizeof(struct event)},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, name)) return (u32)sizes[i].size;
    return 0;
}
