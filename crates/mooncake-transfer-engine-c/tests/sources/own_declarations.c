/* A caller that was built elsewhere: it declares what it calls by itself, as Mooncake's header has it, and knows nothing of ours.
 *
 * With HEADER_OF_THIS_LIBRARY the types and numbers are that header's. Then the layouts below are checked against it, and a
 * function that it declares in another way is an error of the compiler's.
 *
 *   own_declarations target              lends memory; says its name and address; ends with its input
 *   own_declarations initiator           obeys lines: `both NAME ADDRESS`, `write NAME ADDRESS`, `calls`; says how each went
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef HEADER_OF_THIS_LIBRARY
#include "transfer_engine_c.h"
#else
typedef void *transfer_engine_t;
typedef void *transport_t;
typedef int32_t segment_id_t, segment_handle_t;
typedef uint64_t batch_id_t;
enum { LOCAL_SEGMENT = 0, OPCODE_READ = 0, OPCODE_WRITE = 1 };
enum {
    STATUS_WAITING,
    STATUS_PENDING,
    STATUS_INVALID,
    STATUS_CANCELED,
    STATUS_COMPLETED,
    STATUS_TIMEOUT,
    STATUS_FAILED
};
#define INVALID_BATCH 0xffffffffffffffffu
typedef struct transfer_request {
    int opcode;
    void *source;
    int32_t target_id;
    uint64_t target_offset, length;
} transfer_request_t;
typedef struct transfer_status {
    int status;
    uint64_t transferred_bytes;
} transfer_status_t;
typedef struct buffer_entry {
    void *addr;
    size_t length;
} buffer_entry_t;
typedef struct notify_msg {
    char *name, *msg;
} notify_msg_t;
typedef struct segment_desc {
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path, *subsystem_name, *proto, *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
} segment_desc_t;
typedef struct nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
} nic_load_stat_t;
#endif

#define IS(what, number) _Static_assert((what) == (number), #what)
#define AT(type, member, offset) IS(offsetof(type, member), offset)
IS(sizeof(transfer_engine_t), 8); IS(sizeof(transport_t), 8);
IS(sizeof(segment_id_t), 4); IS(sizeof(segment_handle_t), 4); IS(sizeof(batch_id_t), 8);
IS((segment_id_t)-1 < 0, 1); IS((segment_handle_t)-1 < 0, 1); IS((batch_id_t)-1 > 0, 1);
IS(LOCAL_SEGMENT, 0); IS(INVALID_BATCH, UINT64_MAX); IS(OPCODE_READ, 0); IS(OPCODE_WRITE, 1);
IS(STATUS_WAITING, 0); IS(STATUS_PENDING, 1); IS(STATUS_INVALID, 2); IS(STATUS_CANCELED, 3); IS(STATUS_COMPLETED, 4);
IS(STATUS_TIMEOUT, 5); IS(STATUS_FAILED, 6);
IS(sizeof(struct transfer_request), 40); IS(sizeof(transfer_request_t), 40);
AT(transfer_request_t, opcode, 0); AT(transfer_request_t, source, 8); AT(transfer_request_t, target_id, 16);
AT(transfer_request_t, target_offset, 24); AT(transfer_request_t, length, 32);
IS(sizeof(struct transfer_status), 16); IS(sizeof(transfer_status_t), 16);
AT(transfer_status_t, status, 0); AT(transfer_status_t, transferred_bytes, 8);
IS(sizeof(struct buffer_entry), 16); IS(sizeof(buffer_entry_t), 16);
AT(buffer_entry_t, addr, 0); AT(buffer_entry_t, length, 8);
IS(sizeof(struct notify_msg), 16); IS(sizeof(notify_msg_t), 16);
AT(notify_msg_t, name, 0); AT(notify_msg_t, msg, 8);
IS(sizeof(struct nic_load_stat), 80); IS(sizeof(nic_load_stat_t), 80);
AT(nic_load_stat_t, device_name, 0); AT(nic_load_stat_t, inflight_bytes, 64); AT(nic_load_stat_t, ewma_bandwidth_bps, 72);
IS(sizeof(struct segment_desc), 48); IS(sizeof(segment_desc_t), 48);
AT(segment_desc_t, type, 0); AT(segment_desc_t, desc_.rdma.addr, 8); AT(segment_desc_t, desc_.rdma.size, 16);
AT(segment_desc_t, desc_.rdma.location, 24); AT(segment_desc_t, desc_.nvmeof.file_path, 8);
AT(segment_desc_t, desc_.nvmeof.subsystem_name, 16); AT(segment_desc_t, desc_.nvmeof.proto, 24);
AT(segment_desc_t, desc_.nvmeof.ip, 32); AT(segment_desc_t, desc_.nvmeof.port, 40);

/* All of them, used below or not: the test compares the list with what the library exports. */
transfer_engine_t createTransferEngine(const char *, const char *, const char *, uint64_t, int);
void destroyTransferEngine(transfer_engine_t);
int discoverTopology(transfer_engine_t);
int getLocalIpAndPort(transfer_engine_t, char *, size_t);
transport_t installTransport(transfer_engine_t, const char *, void **);
int uninstallTransport(transfer_engine_t, const char *);
segment_id_t openSegment(transfer_engine_t, const char *);
segment_id_t openSegmentNoCache(transfer_engine_t, const char *);
int closeSegment(transfer_engine_t, segment_id_t);
int warmupEfaSegment(transfer_engine_t, const char *);
int removeLocalSegment(transfer_engine_t, const char *);
int registerLocalMemory(transfer_engine_t, void *, size_t, const char *, int);
int unregisterLocalMemory(transfer_engine_t, void *);
int registerLocalMemoryBatch(transfer_engine_t, buffer_entry_t *, size_t, const char *);
int unregisterLocalMemoryBatch(transfer_engine_t, void **, size_t);
batch_id_t allocateBatchID(transfer_engine_t, size_t);
int submitTransfer(transfer_engine_t, batch_id_t, struct transfer_request *, size_t);
int submitTransferWithNotify(transfer_engine_t, batch_id_t, struct transfer_request *, size_t, notify_msg_t);
notify_msg_t *getNotifsFromEngine(transfer_engine_t, int *);
int freeNotifsMsgBuf(notify_msg_t *, int);
int genNotifyInEngine(transfer_engine_t, uint64_t, notify_msg_t);
int getTransferStatus(transfer_engine_t, batch_id_t, size_t, struct transfer_status *);
int freeBatchID(transfer_engine_t, batch_id_t);
int syncSegmentCache(transfer_engine_t);
int getNicLoadStats(transfer_engine_t, nic_load_stat_t *, size_t *);
void enableGracefulShutdown(transfer_engine_t);
int showLinks(transfer_engine_t, char *, size_t, int);

#define BYTES ((size_t)256 << 10)

static int target(void) {
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
    unsigned char *memory = calloc(1, BYTES);
    char name[128];
    if (!engine || !memory || getLocalIpAndPort(engine, name, sizeof name)) return 1;
    if (registerLocalMemory(engine, memory, BYTES, "cpu:0", 1)) return 1;
    printf("%s %llu\n", name, (unsigned long long)(uintptr_t)memory);
    fflush(stdout);
    while (getchar() != EOF) {
    }
    destroyTransferEngine(engine);
    free(memory);
    return 0;
}

static void say(const char *what) {
    puts(what);
    fflush(stdout);
}

/* How NIXL reads a status: failed is an error, waiting and pending are under way, and everything else has arrived. */
static const char *moved(transfer_engine_t engine, int opcode, void *source, segment_id_t peer, uint64_t address) {
    struct transfer_request request = {opcode, source, peer, address, BYTES};
    struct transfer_status status = {STATUS_WAITING, 0};
    const struct timespec nap = {0, 1000000};
    const time_t deadline = time(NULL) + 10;
    batch_id_t batch = allocateBatchID(engine, 1);
    if (batch == INVALID_BATCH) return "no batch";
    if (submitTransfer(engine, batch, &request, 1)) return "refused";
    say("under way");
    while (status.status == STATUS_WAITING || status.status == STATUS_PENDING) {
        if (time(NULL) > deadline) return "never ended";
        nanosleep(&nap, NULL);
        if (getTransferStatus(engine, batch, 0, &status)) return "no status";
    }
    while (freeBatchID(engine, batch)) nanosleep(&nap, NULL);
    if (status.status == STATUS_FAILED) return "failed";
    return status.status == STATUS_COMPLETED && status.transferred_bytes == BYTES ? "success" : "taken for a success";
}

/* What other callers get wrong when a declaration is not what the library has. */
static const char *calls(transfer_engine_t engine) {
    nic_load_stat_t loads[2], untouched[2];
    size_t count = 2;
    char text[512];
    memset(loads, 0xab, sizeof loads);
    memcpy(untouched, loads, sizeof loads);
    if (getNicLoadStats(engine, loads, &count) || count != 0) return "getNicLoadStats";
    if (memcmp(loads, untouched, sizeof loads)) return "getNicLoadStats wrote";
    if (getNicLoadStats(engine, NULL, &count) != -1 || getNicLoadStats(engine, loads, NULL) != -1) return "no room for loads";
    if (getNicLoadStats(NULL, loads, &count) != -1) return "loads of no engine";
    enableGracefulShutdown(engine);
    enableGracefulShutdown(NULL);
    if (showLinks(engine, text, sizeof text, 1) || text[0] != '{') return "showLinks";
    if (showLinks(engine, NULL, 0, 1) != -1 || showLinks(engine, text, 0, 1) != -1) return "no room for links";
    return "as declared";
}

static int initiator(void) {
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    unsigned char *memory = malloc(BYTES), *back = calloc(1, BYTES);
    char line[256], what[16], name[128];
    unsigned long long address;
    if (!engine || !memory || !back) return 1;
    for (size_t at = 0; at < BYTES; at++) memory[at] = (unsigned char)(at * 7 + (at >> 8));
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "calls\n") == 0) {
            say(calls(engine));
        } else if (sscanf(line, "%15s %127s %llu", what, name, &address) == 3) {
            segment_id_t peer = openSegment(engine, name);
            if (peer < 0) return 1;
            say(moved(engine, OPCODE_WRITE, memory, peer, address));
            if (strcmp(what, "both") == 0) {
                say(moved(engine, OPCODE_READ, back, peer, address));
                say(memcmp(memory, back, BYTES) ? "other bytes" : "the same bytes");
            }
        }
    }
    destroyTransferEngine(engine);
    free(memory);
    free(back);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "target") == 0) return target();
    return argc == 2 && strcmp(argv[1], "initiator") == 0 ? initiator() : 2;
}
