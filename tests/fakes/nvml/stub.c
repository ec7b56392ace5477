/*
 * A stand-in for libnvidia-ml.so.1: what the real pynvml calls when tests load this instead of a driver.
 *
 * It answers as the real library does where programs go wrong: a field is of a scope and of a value type, counters of
 * type `unsigned int` wrap at 2^32, a lost GPU stays lost until the library is initialised anew, handles and event sets
 * end with their initialisation, an event set with a lost GPU in it says so at every wait. NVML_STUB_OLD leaves out
 * what drivers before 510 lack.
 *
 * Driven by lines of text (control.c; the file NVML_STUB_SCRIPT is read at the first start). Time is the stub's own.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE };
enum { DRIVER_NOT_LOADED = 9, TIMEOUT, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { DOUBLE, UINT, ULONG, ULONGLONG, LONGLONG, INT, USHORT };
enum { GPUS = 16, LINKS = 18, FIELDS = 256, PARTS = 8, PROCESSES = 8, EVENTS = 64, RETURNS = 64, SESSIONS = 32 };
#define ALL_LINKS UINT32_MAX

typedef struct { unsigned id, scope; int ret, type; double value, per_second; } Field;
typedef struct { int there, state, type, ret; char remote[32]; } Link;
typedef struct { char uuid[96], name[96]; unsigned long long memory; unsigned instance, compute; } Part;
typedef struct {
    char uuid[96], name[96], bus[32];
    unsigned minor, power, field_count, part_count, process_count;
    unsigned long long total, used, reserved;
    int lost, lost_session, links, mig;
    int fabric_ret; unsigned fabric_state, fabric_status, fabric_mask; unsigned char fabric_summary;
    Field fields[FIELDS]; Link link[LINKS]; Part part[PARTS];
    struct { unsigned pid; unsigned long long used; } process[PROCESSES];
} Gpu;
typedef struct { int session, gpu, part; } Handle;
typedef struct { int session, used; unsigned members; } Set;
typedef struct { Set *set; int gpu; unsigned long long kind, data; } Event;

static Gpu gpus[GPUS];
static Handle handles[SESSIONS][GPUS][PARTS + 1];
static Set sets[EVENTS];
static Event events[EVENTS];
static struct { int gpu, ret; char name[64]; } returns[RETURNS];
static int gpu_count, session, open_count, event_count, set_count, return_count, loaded = 1, fabric_version = 3;
static int init_ret;
static double now_us, call_us;

unsigned long long stub_now(void) { return (unsigned long long)now_us; }
int stub_sessions(void) { return session; }

static int inits(void) { return loaded ? (open_count ? SUCCESS : UNINITIALIZED) : UNINITIALIZED; }

static int is_lost(const Gpu *gpu) { return gpu->lost || (gpu->lost_session && gpu->lost_session == session); }

static int asked(const char *name, Handle *handle, Gpu **gpu) {
    now_us += call_us;
    if (inits()) return inits();
    if (!handle || handle->session != session) return INVALID_ARGUMENT;
    *gpu = &gpus[handle->gpu];
    if (is_lost(*gpu)) return GPU_IS_LOST;
    for (int i = 0; i < return_count; i++)
        if (returns[i].gpu == handle->gpu && returns[i].ret && !strcmp(returns[i].name, name)) return returns[i].ret;
    return SUCCESS;
}
#define ASKED(handle) Gpu *gpu; { int wrong = asked(__func__, handle, &gpu); if (wrong) return wrong; }

/* the library */
static void script(const char *path);
int nvmlInitWithFlags(unsigned flags) {
    static int scripted;
    (void)flags;
    if (!scripted++ && getenv("NVML_STUB_SCRIPT")) script(getenv("NVML_STUB_SCRIPT"));
    if (!loaded) return DRIVER_NOT_LOADED;
    if (init_ret) return init_ret;
    if (!open_count++) session++;
    return SUCCESS;
}
int nvmlShutdown(void) { if (!open_count) return UNINITIALIZED; open_count--; return SUCCESS; }
const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stub's error %d", code);
    return text;
}
int nvmlDeviceGetCount_v2(unsigned *count) { if (inits()) return inits(); *count = gpu_count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **handle) {
    if (inits()) return inits();
    if (index >= (unsigned)gpu_count || session >= SESSIONS) return INVALID_ARGUMENT;
    Handle *made = &handles[session][index][PARTS];
    *made = (Handle){session, (int)index, -1};
    ASKED(made);
    *handle = made;
    return SUCCESS;
}

/* facts */
static Part *part_of(Handle *handle, Gpu *gpu) { return handle->part < 0 ? NULL : &gpu->part[handle->part]; }
int nvmlDeviceGetUUID(Handle *h, char *text, unsigned length) {
    ASKED(h);
    snprintf(text, length, "%s", part_of(h, gpu) ? part_of(h, gpu)->uuid : gpu->uuid);
    return SUCCESS;
}
int nvmlDeviceGetName(Handle *h, char *text, unsigned length) {
    ASKED(h);
    snprintf(text, length, "%s", part_of(h, gpu) ? part_of(h, gpu)->name : gpu->name);
    return SUCCESS;
}
int nvmlDeviceGetMinorNumber(Handle *h, unsigned *minor) { ASKED(h); *minor = gpu->minor; return SUCCESS; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char text[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Handle *h, Pci *pci) {
    ASKED(h);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->text, 32, "%s", gpu->bus);
    return SUCCESS;
}
typedef struct { unsigned long long total, free, used; } Memory1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo(Handle *h, Memory1 *memory) {
    ASKED(h);
    if (part_of(h, gpu)) { *memory = (Memory1){part_of(h, gpu)->memory, part_of(h, gpu)->memory, 0}; return SUCCESS; }
    unsigned long long used = gpu->used + gpu->reserved; /* the first version counts what the driver keeps as used */
    *memory = (Memory1){gpu->total, gpu->total - used, used};
    return SUCCESS;
}
#ifndef NVML_STUB_OLD
int nvmlDeviceGetMemoryInfo_v2(Handle *h, Memory2 *memory) {
    ASKED(h);
    if (memory->version != (sizeof(Memory2) | 2u << 24)) return VERSION_MISMATCH;
    memory->total = part_of(h, gpu) ? part_of(h, gpu)->memory : gpu->total;
    memory->used = part_of(h, gpu) ? 0 : gpu->used;
    memory->reserved = part_of(h, gpu) ? 0 : gpu->reserved;
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}
typedef struct { unsigned char cluster[16]; unsigned status, clique, state; } Fabric;
typedef struct { unsigned version; Fabric fabric; unsigned mask; unsigned char summary; } FabricV;
int nvmlDeviceGetGpuFabricInfoV(Handle *h, FabricV *info) {
    ASKED(h);
    unsigned version = info->version >> 24, size = info->version & 0xffffff;
    if (version > (unsigned)fabric_version || size != (version == 3 ? sizeof(FabricV) : 36)) return VERSION_MISMATCH;
    if (gpu->fabric_ret) return gpu->fabric_ret;
    info->fabric.status = gpu->fabric_status; info->fabric.state = gpu->fabric_state; info->mask = gpu->fabric_mask;
    if (version == 3) info->summary = gpu->fabric_summary;
    return SUCCESS;
}
#endif

/* NVLinks */
static int linked(Gpu *gpu, unsigned link) {
    if (!gpu->links) return NOT_SUPPORTED;
    if (link >= (unsigned)gpu->links) return INVALID_ARGUMENT;
    return gpu->link[link].ret;
}
int nvmlDeviceGetNvLinkState(Handle *h, unsigned link, unsigned *state) {
    ASKED(h);
    int wrong = linked(gpu, link);
    if (!wrong) *state = gpu->link[link].state;
    return wrong;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Handle *h, unsigned link, unsigned *type) {
    ASKED(h);
    int wrong = linked(gpu, link);
    if (!wrong && !gpu->link[link].state) wrong = NOT_SUPPORTED;
    if (!wrong) *type = gpu->link[link].type;
    return wrong;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle *h, unsigned link, Pci *pci) {
    ASKED(h);
    int wrong = linked(gpu, link);
    if (!wrong && !gpu->link[link].state) wrong = NOT_SUPPORTED;
    if (wrong) return wrong;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->text, 32, "%s", gpu->link[link].remote);
    return SUCCESS;
}

/* field values */
typedef union {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
    int si;
    unsigned short us;
} Value;
typedef struct { uint32_t field, scope; int64_t at, took; unsigned type, ret; Value value; } Answer;

static int of_links(unsigned id) {
    return (id >= 138 && id <= 141) || id == 146 || (id >= 161 && id <= 166) || (id >= 201 && id <= 222);
}
static int summed(unsigned id) { return (id >= 138 && id <= 141) || (id >= 201 && id <= 222); }

static double level(const Field *field) { return field->value + field->per_second * now_us / 1e6; }

static void answer(Gpu *gpu, Answer *one) {
    double total = 0;
    int found = 0;
    one->ret = NOT_SUPPORTED;
    one->at = (int64_t)now_us;
    memset(&one->value, 0xa5, sizeof one->value); /* what is not written is anything */
    for (unsigned i = 0; i < gpu->field_count; i++) {
        Field *field = &gpu->fields[i];
        int all = of_links(field->id) && one->scope == ALL_LINKS && summed(field->id);
        if (field->id != one->field || (of_links(field->id) && !all && field->scope != one->scope)) continue;
        int silent = of_links(field->id) && !all && one->scope < LINKS ? gpu->link[one->scope].ret : 0;
        if (silent || field->ret) {
            one->ret = silent ? silent : field->ret;
            return;
        }
        total += level(field);
        one->type = field->type;
        found = 1;
        if (!all) break;
    }
    if (!found) return;
    one->ret = SUCCESS;
    switch (one->type) {
    case DOUBLE: one->value.d = total; break;
    case UINT: one->value.ui = (unsigned)((unsigned long long)total & UINT32_MAX); break;
    case ULONG: one->value.ul = (unsigned long)total; break;
    case LONGLONG: one->value.sll = (long long)total; break;
    case INT: one->value.si = (int)total; break;
    case USHORT: one->value.us = (unsigned short)total; break;
    default: one->value.ull = (unsigned long long)total;
    }
}
int nvmlDeviceGetFieldValues(Handle *h, int count, Answer *answers) {
    ASKED(h);
    for (int i = 0; i < count; i++) answer(gpu, &answers[i]);
    return SUCCESS;
}

/* figures */
int nvmlDeviceGetUtilizationRates(Handle *h, unsigned *rates) {
    ASKED(h);
    rates[0] = 40;
    rates[1] = 10;
    return gpu->mig ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetPowerUsage(Handle *h, unsigned *power) { ASKED(h); *power = gpu->power; return SUCCESS; }
int nvmlDeviceGetTemperature(Handle *h, unsigned sensor, unsigned *celsius) {
    ASKED(h);
    (void)sensor;
    *celsius = 55;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(Handle *h, unsigned kind, unsigned *clock) {
    ASKED(h);
    *clock = kind == 1 ? 1980 : 2619;
    return SUCCESS;
}
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Handle *h, unsigned *count, Process *found) {
    ASKED(h);
    unsigned room = *count;
    *count = gpu->process_count;
    if (room < gpu->process_count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < gpu->process_count; i++)
        found[i] = (Process){gpu->process[i].pid, gpu->process[i].used, 0, 0};
    return SUCCESS;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle *h, unsigned *count, Process *found) {
    ASKED(h);
    (void)found;
    *count = 0;
    return SUCCESS;
}
int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    if (inits()) return inits();
    snprintf(name, length, "/usr/bin/of-%u", pid);
    return SUCCESS;
}

/* MIG */
int nvmlDeviceGetMigMode(Handle *h, unsigned *current, unsigned *pending) {
    ASKED(h);
    if (gpu->mig < 0) return NOT_SUPPORTED;
    *current = *pending = gpu->mig;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Handle *h, unsigned *count) { ASKED(h); *count = PARTS - 1; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(Handle *h, unsigned index, Handle **part) {
    ASKED(h);
    if (!gpu->mig || index >= gpu->part_count || !*gpu->part[index].uuid) return NOT_FOUND;
    *part = &handles[session][h->gpu][index];
    **part = (Handle){session, h->gpu, (int)index};
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(Handle *h, unsigned *id) {
    ASKED(h);
    if (!part_of(h, gpu)) return INVALID_ARGUMENT;
    *id = part_of(h, gpu)->instance;
    return SUCCESS;
}
int nvmlDeviceGetComputeInstanceId(Handle *h, unsigned *id) {
    ASKED(h);
    if (!part_of(h, gpu)) return INVALID_ARGUMENT;
    *id = part_of(h, gpu)->compute;
    return SUCCESS;
}

/* events */
int nvmlDeviceGetSupportedEventTypes(Handle *h, unsigned long long *kinds) { ASKED(h); *kinds = 2 | 8; return SUCCESS; }
int nvmlEventSetCreate(Set **set) {
    if (inits()) return inits();
    if (set_count >= EVENTS) return INVALID_ARGUMENT;
    *set = &sets[set_count++];
    **set = (Set){session, 1, 0};
    return SUCCESS;
}
int nvmlEventSetFree(Set *set) { if (inits()) return inits(); set->used = 0; return SUCCESS; }
int nvmlDeviceRegisterEvents(Handle *h, unsigned long long kinds, Set *set) {
    ASKED(h);
    (void)kinds;
    set->members |= 1u << h->gpu;
    return SUCCESS;
}
typedef struct { Handle *device; unsigned long long kind, data; unsigned instance, compute; } EventData;
int nvmlEventSetWait_v2(Set *set, EventData *data, unsigned milliseconds) {
    (void)milliseconds;
    now_us += call_us;
    if (inits()) return inits();
    if (!set->used || set->session != session) return INVALID_ARGUMENT;
    for (int i = 0; i < gpu_count; i++)
        if (set->members >> i & 1 && is_lost(&gpus[i])) return GPU_IS_LOST;
    for (int i = 0; i < event_count; i++) {
        if (events[i].set != set) continue;
        Handle *made = &handles[session][events[i].gpu][PARTS];
        *made = (Handle){session, events[i].gpu, -1};
        *data = (EventData){made, events[i].kind, events[i].data, 0, 0};
        memmove(&events[i], &events[i + 1], (size_t)(--event_count - i) * sizeof *events);
        return SUCCESS;
    }
    return TIMEOUT;
}

#include "control.c"
