/* Stands in for libamd_smi.so, as ROCm 7.0 has it. What it says is in the file that AMDSMI_STUB names, read anew at each
 * call:
 *
 *     init 34             what amdsmi_init returns (a status code; 0, or nothing: success)
 *     count 2             processors: GPUs, or partitions of them
 *     0 !31               every call on processor 0 gives status 31
 *     0.uuid d2ff74a1-... a value of processor 0
 *     0.energy !43        the status that asking for it gives
 *     0.metrics 1         it has the metrics, of which 0.metrics.current_socket_power 650 is one
 *     crash 1             the next call on a processor ends the process as a fault in the library does
 *     hang 1              it never returns
 *
 * What is not there is not supported; a number that is not there, of several that come together, is all ones, as the
 * library has it. The file that AMDSMI_STUB_CALLS names gets a letter for each amdsmi_init (i) and amdsmi_shut_down (s).
 * The structures and signatures are those of amdsmi.h; functions that are not below are in what is generated after it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint32_t Status;
typedef void *Handle;

enum { SUCCESS, INVAL, NOT_SUPPORTED, NOT_FOUND = 31, NOT_INIT, NOTHING = 9999 };
enum { TEXT = 256, MOST = 16 };
#define BASE ((char *)0x7f5500000000)

static int initialized;

static void note(char letter) {
    const char *path = getenv("AMDSMI_STUB_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fputc(letter, file);
        fclose(file);
    }
}

/* Find the text of a key: SUCCESS, or NOTHING when it is not there, or the status that it stands for. */
static Status find(const char *key, char *text, size_t size) {
    char line[512], name[128], value[256];
    const char *path = getenv("AMDSMI_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    Status result = NOTHING;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %255[^\n]", name, value) == 2 && !strcmp(name, key)) {
            snprintf(text, size, "%s", value);
            result = value[0] == '!' ? (Status)atoi(value + 1) : SUCCESS;
        }
    }
    if (file) fclose(file);
    return result;
}

static int number_of(const char *key) {
    char text[TEXT];
    return find(key, text, sizeof text) == SUCCESS ? atoi(text) : 0;
}

static Status ask(Handle handle, const char *property, char *text, size_t size) {
    char key[128];
    long index = ((char *)handle - BASE) / 64;
    if (number_of("crash")) abort();
    while (number_of("hang")) usleep(10000);
    if (!initialized) return NOT_INIT;
    if (index < 0 || index >= MOST || index >= number_of("count")) return NOT_FOUND;
    snprintf(key, sizeof key, "%ld", index);
    Status whole = find(key, text, size);
    if (whole != NOTHING) return whole;
    snprintf(key, sizeof key, "%ld.%s", index, property);
    whole = find(key, text, size);
    return whole == NOTHING ? NOT_SUPPORTED : whole;
}

static Status wide(Handle handle, const char *property, uint64_t *value) {
    char text[TEXT];
    Status result = ask(handle, property, text, sizeof text);
    if (result == SUCCESS) *value = strtoull(text, NULL, 10);
    return result;
}

/* A text among others is empty when it is not there. */
static void note_text(Handle handle, const char *property, char *text, size_t size) {
    if (ask(handle, property, text, size) != SUCCESS) text[0] = 0;
}

static uint32_t narrow(Handle handle, const char *property) {
    uint64_t value = UINT32_MAX;
    wide(handle, property, &value);
    return (uint32_t)value;
}

Status amdsmi_init(uint64_t flags) {
    char text[TEXT];
    note('i');
    if (flags != 2) return INVAL;
    Status result = find("init", text, sizeof text);
    if (result != SUCCESS && result != NOTHING) return result;
    initialized = 1;
    return SUCCESS;
}

Status amdsmi_shut_down(void) {
    note('s');
    initialized = 0;
    return SUCCESS;
}

/* Each processor has a socket of its own here. */
Status amdsmi_get_socket_handles(uint32_t *count, Handle *handles) {
    char text[TEXT];
    if (!initialized) return NOT_INIT;
    Status result = find("count", text, sizeof text);
    if (result != SUCCESS && result != NOTHING) return result;
    *count = result == SUCCESS ? (uint32_t)atoi(text) : 0;
    for (uint32_t index = 0; handles && index < *count; index++) handles[index] = BASE + 64 * index;
    return SUCCESS;
}

Status amdsmi_get_processor_handles(Handle socket, uint32_t *count, Handle *handles) {
    if (!initialized) return NOT_INIT;
    *count = 1;
    if (handles) handles[0] = socket;
    return SUCCESS;
}

Status amdsmi_get_gpu_device_uuid(Handle handle, unsigned *length, char *uuid) { return ask(handle, "uuid", uuid, *length); }

typedef union { struct { uint64_t function : 3, device : 5, bus : 8, domain : 48; } part; uint64_t whole; } Bdf;

Status amdsmi_get_gpu_device_bdf(Handle handle, Bdf *bdf) {
    char text[TEXT];
    unsigned long domain, bus, device, function;
    Status result = ask(handle, "bus", text, sizeof text);
    if (result == SUCCESS && sscanf(text, "%lx:%lx:%lx.%lx", &domain, &bus, &device, &function) == 4) {
        bdf->part.domain = domain;
        bdf->part.bus = bus;
        bdf->part.device = device;
        bdf->part.function = function;
    }
    return result;
}

typedef struct { uint32_t render, card, hsa, hip; char uuid[TEXT]; } Enumeration;

Status amdsmi_get_gpu_enumeration_info(Handle handle, Enumeration *info) {
    Status result = ask(handle, "hip_uuid", info->uuid, sizeof info->uuid);
    if (result != SUCCESS) return result;
    info->render = info->card = info->hsa = UINT32_MAX;
    info->hip = narrow(handle, "hip_id");
    return SUCCESS;
}

typedef struct {
    char name[TEXT];
    uint32_t vendor;
    char vendor_name[TEXT];
    uint32_t subvendor;
    uint64_t device;
    uint32_t revision;
    char serial[TEXT];
    uint32_t oam, units;
    uint64_t graphics;
    uint32_t subsystem, reserved[21];
} Asic;

Status amdsmi_get_gpu_asic_info(Handle handle, Asic *info) {
    memset(info, 0, sizeof *info);
    return ask(handle, "name", info->name, sizeof info->name);
}

typedef struct { char model[TEXT], serial[TEXT], fru[TEXT], product[TEXT], manufacturer[TEXT]; uint64_t reserved[64]; } Board;

Status amdsmi_get_gpu_board_info(Handle handle, Board *info) {
    memset(info, 0, sizeof *info);
    note_text(handle, "product", info->product, sizeof info->product);
    return ask(handle, "serial", info->serial, sizeof info->serial);
}

typedef struct { uint64_t kfd; uint32_t node, partition, reserved[12]; } Kfd;

Status amdsmi_get_gpu_kfd_info(Handle handle, Kfd *info) {
    memset(info, 0xff, sizeof *info);
    uint64_t partition = 0;
    Status result = wide(handle, "partition", &partition);
    info->partition = (uint32_t)partition;
    return result;
}

typedef struct { char version[TEXT], date[TEXT], name[TEXT]; } Driver;

Status amdsmi_get_gpu_driver_info(Handle handle, Driver *info) {
    memset(info, 0, sizeof *info);
    return ask(handle, "driver", info->version, sizeof info->version);
}

typedef struct { char name[TEXT], date[TEXT], part[TEXT], version[TEXT]; uint64_t reserved[68]; } Vbios;

Status amdsmi_get_gpu_vbios_info(Handle handle, Vbios *info) {
    memset(info, 0, sizeof *info);
    return ask(handle, "vbios", info->version, sizeof info->version);
}

Status amdsmi_get_gpu_compute_partition(Handle handle, char *text, uint32_t length) {
    return ask(handle, "mode", text, length);
}

typedef struct {
    uint32_t busy[8];
    uint16_t jpeg[40], vcn[4];
    uint64_t accumulated[6][8];
} Partition;

typedef struct {
    uint16_t size;
    uint8_t format, content;
    uint16_t temperature_edge, temperature_hotspot, temperature_mem, temperature_vr[3];
    uint16_t average_gfx_activity, average_umc_activity, average_mm_activity, average_socket_power;
    uint64_t energy, system_clock;
    uint16_t average_clocks[7], current_clocks[7];
    uint32_t throttle_status;
    uint16_t fan, pcie_width, pcie_speed;
    uint32_t gfx_activity_acc, mem_activity_acc;
    uint16_t temperature_hbm[4];
    uint64_t firmware_timestamp;
    uint16_t voltages[3];
    uint64_t indep_throttle_status;
    uint16_t current_socket_power, vcn_activity[4];
    uint32_t gfxclk_lock_status;
    uint16_t xgmi_width, xgmi_speed;
    uint64_t pcie[5], xgmi_read[8], xgmi_write[8];
    uint16_t gfxclks[8], socclks[4], vclks[4], dclks[4], jpeg[32];
    uint32_t pcie_naks[2];
    uint64_t cycles, prochot, ppt, socket, vr, hbm;
    uint16_t partitions;
    Partition xcp[8];
    uint32_t pcie_recovery;
    uint64_t vram_bandwidth;
    uint16_t xgmi_status[8];
} Metrics;

Status amdsmi_get_gpu_metrics_info(Handle handle, Metrics *metrics) {
    char key[96];
    uint64_t value;
    Status result = wide(handle, "metrics", &value);
    memset(metrics, 0xff, sizeof *metrics);
    if (result != SUCCESS) return result;
#define TAKE(name, field) if (wide(handle, "metrics." #name, &value) == SUCCESS) metrics->field = (__typeof__(metrics->field))value
    TAKE(temperature_edge, temperature_edge);
    TAKE(temperature_hotspot, temperature_hotspot);
    TAKE(temperature_mem, temperature_mem);
    TAKE(average_gfx_activity, average_gfx_activity);
    TAKE(average_umc_activity, average_umc_activity);
    TAKE(average_socket_power, average_socket_power);
    TAKE(current_socket_power, current_socket_power);
    TAKE(throttle_status, throttle_status);
    TAKE(indep_throttle_status, indep_throttle_status);
    TAKE(accumulation_counter, cycles);
    TAKE(prochot_residency_acc, prochot);
    TAKE(ppt_residency_acc, ppt);
    TAKE(socket_thm_residency_acc, socket);
    TAKE(vr_thm_residency_acc, vr);
    TAKE(hbm_thm_residency_acc, hbm);
    for (unsigned link = 0; link < 8; link++) {
        snprintf(key, sizeof key, "metrics.xgmi_read_data_acc.%u", link);
        if (wide(handle, key, &value) == SUCCESS) metrics->xgmi_read[link] = value;
        snprintf(key, sizeof key, "metrics.xgmi_write_data_acc.%u", link);
        if (wide(handle, key, &value) == SUCCESS) metrics->xgmi_write[link] = value;
        for (unsigned die = 0; die < 8; die++) {
            snprintf(key, sizeof key, "metrics.gfx_busy_inst.%u.%u", link, die);
            if (wide(handle, key, &value) == SUCCESS) metrics->xcp[link].busy[die] = (uint32_t)value;
        }
    }
    return SUCCESS;
}

typedef struct { uint32_t gfx, umc, mm, reserved[13]; } Activity;

Status amdsmi_get_gpu_activity(Handle handle, Activity *activity) {
    uint64_t gfx = 0;
    Status result = wide(handle, "gfx_activity", &gfx);
    activity->gfx = (uint32_t)gfx;
    activity->umc = narrow(handle, "umc_activity");
    activity->mm = 0xffff;
    return result;
}

typedef struct {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power;
    uint64_t voltages[3];
    uint32_t power_limit;
    uint64_t reserved[18];
} Power;

Status amdsmi_get_power_info(Handle handle, Power *power) {
    memset(power, 0, sizeof *power);
    power->current_socket_power = power->average_socket_power = 0xffff;
    return wide(handle, "socket_power", &power->socket_power);
}

typedef struct { uint64_t cap, usual, dpm, least, most, reserved[3]; } PowerCap;

Status amdsmi_get_power_cap_info(Handle handle, uint32_t sensor, PowerCap *info) {
    memset(info, 0, sizeof *info);
    return sensor ? INVAL : wide(handle, "power_cap", &info->cap);
}

Status amdsmi_get_temp_metric(Handle handle, uint32_t sensor, uint32_t metric, int64_t *value) {
    char key[64];
    snprintf(key, sizeof key, "temperature.%u.%u", sensor, metric);
    return wide(handle, key, (uint64_t *)value);
}

typedef struct { uint32_t clock, least, most; uint8_t locked, asleep; uint32_t reserved[4]; } Clock;

Status amdsmi_get_clock_info(Handle handle, uint32_t kind, Clock *info) {
    char key[64];
    uint64_t value = 0;
    memset(info, 0xff, sizeof *info);
    snprintf(key, sizeof key, "clock.%u", kind);
    Status result = wide(handle, key, &value);
    info->clock = (uint32_t)value;
    return result;
}

Status amdsmi_get_gpu_memory_total(Handle handle, uint32_t kind, uint64_t *bytes) {
    return kind ? INVAL : wide(handle, "total", bytes);
}

Status amdsmi_get_gpu_memory_usage(Handle handle, uint32_t kind, uint64_t *bytes) {
    return kind ? INVAL : wide(handle, "used", bytes);
}

/* `0.resolution` microjoules for each count. */
Status amdsmi_get_energy_count(Handle handle, uint64_t *count, float *resolution, uint64_t *time) {
    char text[TEXT];
    Status result = wide(handle, "energy", count);
    if (result == SUCCESS) result = ask(handle, "resolution", text, sizeof text);
    if (result == SUCCESS) *resolution = strtof(text, NULL);
    *time = 0;
    return result;
}

typedef struct { uint64_t corrected, uncorrected, deferred, reserved[5]; } Errors;

/* `0.ecc 3 0 1`: corrected, uncorrected, deferred. */
Status amdsmi_get_gpu_total_ecc_count(Handle handle, Errors *errors) {
    char text[TEXT];
    Status result = ask(handle, "ecc", text, sizeof text);
    if (result == SUCCESS) sscanf(text, "%lu %lu %lu", &errors->corrected, &errors->uncorrected, &errors->deferred);
    return result;
}

typedef struct {
    char name[TEXT];
    uint32_t pid;
    uint64_t memory;
    struct { uint64_t gfx, enc; uint32_t reserved[12]; } engines;
    struct { uint64_t gtt, cpu, vram; uint32_t reserved[10]; } memories;
    char container[TEXT];
    uint32_t occupancy, reserved[11];
} Process;

/* `0.processes 11:100 12:50`: process ids with their bytes of the device's memory; each has 1 of the host's as well. */
Status amdsmi_get_gpu_process_list(Handle handle, uint32_t *count, Process *processes) {
    char text[TEXT], *rest = text, *word;
    uint32_t found = 0;
    Status result = ask(handle, "processes", text, sizeof text);
    if (result != SUCCESS) return result;
    while ((word = strtok_r(rest, " ", &rest)) && found < *count) {
        memset(&processes[found], 0, sizeof processes[found]);
        processes[found].pid = (uint32_t)atoi(word);
        processes[found].memories.vram = strtoull(strchr(word, ':') + 1, NULL, 10);
        processes[found].memories.gtt = 1;
        processes[found].memory = processes[found].memories.vram + 1;
        found++;
    }
    *count = found;
    return SUCCESS;
}

typedef struct { uint64_t address, size; uint32_t status; } Page;

/* `0.pages 0 1 2`: the status of each bad page. */
Status amdsmi_get_gpu_bad_page_info(Handle handle, uint32_t *count, Page *pages) {
    char text[TEXT], *rest = text, *word;
    uint32_t found = 0;
    Status result = ask(handle, "pages", text, sizeof text);
    if (result != SUCCESS) return result;
    while ((word = strtok_r(rest, " ", &rest))) {
        if (!strcmp(word, "none")) break;
        if (pages) pages[found] = (Page){4096ULL * found, 4096, (uint32_t)atoi(word)};
        found++;
    }
    *count = found;
    return SUCCESS;
}

/* The size of a structure as it is called in amdsmi, 0 for another. */
size_t stub_size(const char *name) {
    static const struct { const char *name; size_t size; } sizes[] = {
        {"bdf", sizeof(Bdf)}, {"enumeration_info", sizeof(Enumeration)}, {"asic_info", sizeof(Asic)},
        {"board_info", sizeof(Board)}, {"kfd_info", sizeof(Kfd)}, {"driver_info", sizeof(Driver)},
        {"vbios_info", sizeof(Vbios)}, {"gpu_metrics", sizeof(Metrics)}, {"engine_usage", sizeof(Activity)},
        {"power_info", sizeof(Power)}, {"power_cap_info", sizeof(PowerCap)}, {"clk_info", sizeof(Clock)},
        {"error_count", sizeof(Errors)}, {"proc_info", sizeof(Process)}, {"retired_page_record", sizeof(Page)},
    };
    for (size_t each = 0; each < sizeof sizes / sizeof *sizes; each++)
        if (!strcmp(name, sizes[each].name)) return sizes[each].size;
    return 0;
}
