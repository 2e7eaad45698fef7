/* Stands in for libnvidia-ml.so.1. What it says is in the file that NVML_STUB names, read anew at each call:
 *
 *     init 9              what nvmlInit returns (an error code; 0, or nothing: success)
 *     count 2
 *     driver 550.54.15
 *     0 !15               every call on GPU 0 gives error 15, from then on until the library is initialised anew
 *     0.uuid GPU-aaaa     a value of GPU 0
 *     0.power !3          the error that asking for it gives
 *     0.mig 2             places for MIG devices; 0/1.uuid is a value of that in place 1
 *
 * What is not there is not supported. The structures are those of nvml.h. The file that NVML_STUB_CALLS names gets a
 * letter for each call of nvmlInit (i) and nvmlShutdown (s). OLD_DRIVER leaves out what drivers before R570 do not have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Return;
typedef unsigned long Device;
typedef unsigned long long Wide;

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15 };
enum { MOST_GPUS = 16, PLACES = 8 };

static int initialized;
static int lost[MOST_GPUS];

static void note(char letter) {
    const char *path = getenv("NVML_STUB_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fputc(letter, file);
        fclose(file);
    }
}

/* Find the text of a key: SUCCESS, or NOT_SUPPORTED, or the error that it stands for. */
static Return find(const char *key, char *text, size_t size) {
    char line[512], name[128], value[256];
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    Return result = NOT_SUPPORTED;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %255[^\n]", name, value) == 2 && !strcmp(name, key)) {
            snprintf(text, size, "%s", value);
            result = value[0] == '!' ? atoi(value + 1) : SUCCESS;
        }
    }
    if (file) fclose(file);
    return result;
}

/* Devices are 1-based; a MIG device is its GPU plus 256 for each place. */
static Return ask(Device device, const char *property, char *text, size_t size) {
    char key[64];
    int gpu = (int)(device & 255) - 1, place = (int)(device >> 8) - 1;
    if (!initialized) return UNINITIALIZED;
    if (gpu < 0 || gpu >= MOST_GPUS) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%d", gpu);
    Return whole = find(key, text, size);
    if (whole == LOST) lost[gpu] = 1;
    if (lost[gpu]) return LOST;
    if (whole != NOT_SUPPORTED) return whole;
    if (place < 0) snprintf(key, sizeof key, "%d.%s", gpu, property);
    else snprintf(key, sizeof key, "%d/%d.%s", gpu, place, property);
    return find(key, text, size);
}

static Return number(Device device, const char *property, Wide *value) {
    char text[256];
    Return result = ask(device, property, text, sizeof text);
    if (result == SUCCESS) *value = strtoull(text, NULL, 10);
    return result;
}

static Return small(Device device, const char *property, unsigned *value) {
    Wide wide = 0;
    Return result = number(device, property, &wide);
    if (result == SUCCESS) *value = (unsigned)wide;
    return result;
}

static Return indexed(Device device, const char *property, unsigned index, unsigned *value) {
    char name[64];
    snprintf(name, sizeof name, "%s.%u", property, index);
    return small(device, name, value);
}

Return nvmlInitWithFlags(unsigned flags) {
    char text[64];
    (void)flags;
    note('i');
    Return result = find("init", text, sizeof text);
    if (result != SUCCESS && result != NOT_SUPPORTED) return result;
    memset(lost, 0, sizeof lost);
    initialized++;
    return SUCCESS;
}

Return nvmlShutdown(void) {
    note('s');
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(Return result) {
    (void)result;
    return "an error of the stub";
}

Return nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return initialized ? find("driver", version, length) : UNINITIALIZED;
}

Return nvmlDeviceGetCount_v2(unsigned *count) {
    char text[64];
    if (!initialized) return UNINITIALIZED;
    Return result = find("count", text, sizeof text);
    *count = result == SUCCESS ? (unsigned)atoi(text) : 0;
    return result == NOT_SUPPORTED ? SUCCESS : result;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    char text[256];
    *device = index + 1;
    Return result = ask(*device, "uuid", text, sizeof text);
    return result == NOT_SUPPORTED ? INVALID_ARGUMENT : result;
}

Return nvmlDeviceGetUUID(Device device, char *text, unsigned size) { return ask(device, "uuid", text, size); }
Return nvmlDeviceGetName(Device device, char *text, unsigned size) { return ask(device, "name", text, size); }
Return nvmlDeviceGetSerial(Device device, char *text, unsigned size) { return ask(device, "serial", text, size); }
Return nvmlDeviceGetVbiosVersion(Device device, char *text, unsigned size) { return ask(device, "vbios", text, size); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;

Return nvmlDeviceGetPciInfo_v3(Device device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    return ask(device, "bus", pci->bus_id, sizeof pci->bus_id);
}

Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    unsigned places = 0;
    Return result = small(device, "mig", &places);
    *current = *pending = places > 0;
    return result;
}

Return nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) { return small(device, "mig", count); }

Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *part) {
    char text[256];
    *part = device + 256 * (Device)(index + 1);
    Return result = ask(*part, "uuid", text, sizeof text);
    return result == NOT_SUPPORTED ? NOT_FOUND : result;
}

Return nvmlDeviceGetGpuInstanceId(Device device, unsigned *id) { return small(device, "gi", id); }
Return nvmlDeviceGetComputeInstanceId(Device device, unsigned *id) { return small(device, "ci", id); }

typedef struct { Wide total, free, used; } Memory;
typedef struct { unsigned version; Wide total, reserved, free, used; } Memory2;

Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    Return result = number(device, "total", &memory->total);
    if (result == SUCCESS) result = number(device, "used", &memory->used);
    Wide reserved = 0;
    number(device, "reserved", &reserved);
    memory->used += reserved;
    return result;
}

Return nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *memory) {
    Return result = number(device, "memory2", &memory->reserved); /* an old driver does not have it */
    if (memory->version != 0x02000028) return INVALID_ARGUMENT;
    if (result == SUCCESS) result = number(device, "total", &memory->total);
    return result == SUCCESS ? number(device, "used", &memory->used) : result;
}

typedef struct { unsigned pid; Wide memory; unsigned gpu_instance, compute_instance; } Process;

/* `0.processes 11:100 12:-` : process ids with their bytes, `-` where those are not to be had. */
Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
    char text[256], *rest = text, *word;
    unsigned found = 0, room = *count;
    Return result = ask(device, "processes", text, sizeof text);
    if (result != SUCCESS) return result;
    while ((word = strtok_r(rest, " ", &rest))) {
        if (processes && found < room) {
            char *bytes = strchr(word, ':') + 1;
            processes[found].pid = (unsigned)atoi(word);
            processes[found].memory = *bytes == '-' ? ~0ULL : strtoull(bytes, NULL, 10);
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

typedef struct { unsigned gpu, memory; } Utilization;

Return nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
    Return result = small(device, "busy", &rates->gpu);
    return result == SUCCESS ? small(device, "memory_busy", &rates->memory) : result;
}

Return nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) { return small(device, "power", milliwatts); }
Return nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts) { return small(device, "power_limit", milliwatts); }
Return nvmlDeviceGetTotalEnergyConsumption(Device device, Wide *millijoules) { return number(device, "energy", millijoules); }

Return nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *value) { return indexed(device, "temperature", sensor, value); }
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, Wide *reasons) { return number(device, "reasons", reasons); }

#ifndef OLD_DRIVER
typedef struct { unsigned version, sensor; int temperature; } Temperature;

Return nvmlDeviceGetTemperatureV(Device device, Temperature *temperature) {
    unsigned value = 0;
    if (temperature->version != 0x100000C) return INVALID_ARGUMENT;
    Return result = indexed(device, "temperature", temperature->sensor, &value);
    temperature->temperature = (int)value;
    return result;
}

Return nvmlDeviceGetCurrentClocksEventReasons(Device device, Wide *reasons) { return number(device, "reasons", reasons); }
#endif

Return nvmlDeviceGetTemperatureThreshold(Device device, unsigned kind, unsigned *value) { return indexed(device, "threshold", kind, value); }
Return nvmlDeviceGetClockInfo(Device device, unsigned kind, unsigned *megahertz) { return indexed(device, "clock", kind, megahertz); }
Return nvmlDeviceGetPcieThroughput(Device device, unsigned counter, unsigned *value) { return indexed(device, "pcie", counter, value); }

Return nvmlDeviceGetTotalEccErrors(Device device, unsigned kind, unsigned counter, Wide *count) {
    char name[64];
    snprintf(name, sizeof name, "ecc.%u.%u", kind, counter);
    return number(device, name, count);
}

/* `0.rows 1 0 1 0`: corrected, uncorrected, pending, failed. */
Return nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    char text[256];
    Return result = ask(device, "rows", text, sizeof text);
    if (result == SUCCESS) sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed);
    return result;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    Return result;
    union { double real; unsigned small; Wide wide; } value;
} Field;

/* `0.field.138.4294967295 500`: a value of 64 bits; `u500`: of 32 bits. */
Return nvmlDeviceGetFieldValues(Device device, int count, Field *fields) {
    char name[64], text[256];
    Return whole = ask(device, "fields", text, sizeof text);
    if (whole != SUCCESS && whole != NOT_SUPPORTED) return whole;
    for (int each = 0; each < count; each++) {
        snprintf(name, sizeof name, "field.%u.%u", fields[each].field, fields[each].scope);
        text[0] = 0;
        fields[each].result = ask(device, name, text, sizeof text);
        fields[each].type = text[0] == 'u' ? 1 : 3;
        if (fields[each].result != SUCCESS) continue;
        if (text[0] == 'u') fields[each].value.small = (unsigned)strtoul(text + 1, NULL, 10);
        else fields[each].value.wide = strtoull(text, NULL, 10);
    }
    return SUCCESS;
}
