/* Each name of the header, used as sources that were written for Mooncake's use it; read as C and as C++. */
#include "transfer_engine_c.h"

/* What the preprocessor sees. */
#if !defined(segment_handle_t) || !defined(segment_id_t) || !defined(batch_id_t)
#error "Mooncake's integers are macros"
#endif
#if LOCAL_SEGMENT != 0 || INVALID_BATCH != UINT64_MAX || OPCODE_READ != 0 || OPCODE_WRITE != 1
#error "numbers"
#endif
#if STATUS_WAITING != 0 || STATUS_PENDING != 1 || STATUS_INVALID != 2 || STATUS_CANCELED != 3 || STATUS_COMPLETED != 4 \
    || STATUS_TIMEOUT != 5 || STATUS_FAILED != 6
#error "states"
#endif
#ifndef __cplusplus
#ifndef bool
#error "Mooncake's header has stdbool.h"
#endif
#endif

/* Constants where only constants may stand. */
static const char *const states[STATUS_FAILED + 1] = {"waiting", "pending", "invalid", "canceled",
                                                      "completed", "timeout", "failed"};
static const char by_opcode[OPCODE_WRITE + 1] = {'r', 'w'};
static const batch_id_t none = INVALID_BATCH;
enum { FIRST = LOCAL_SEGMENT, READS = OPCODE_READ + 10, ENDED = STATUS_COMPLETED };
struct bits {
    unsigned state : STATUS_FAILED;
};

static int is_over(int status) {
    switch (status) {
        case STATUS_COMPLETED:
        case STATUS_TIMEOUT:
        case STATUS_FAILED:
        case STATUS_CANCELED:
        case STATUS_INVALID:
            return 1;
        case STATUS_WAITING:
        case STATUS_PENDING:
        default:
            return 0;
    }
}

/* The functions, with their types as they are there. */
static transfer_engine_t (*const create)(const char *, const char *, const char *, uint64_t, int) = createTransferEngine;
static void (*const destroy)(transfer_engine_t) = destroyTransferEngine;
static int (*const discover)(transfer_engine_t) = discoverTopology;
static int (*const address)(transfer_engine_t, char *, size_t) = getLocalIpAndPort;
static transport_t (*const install)(transfer_engine_t, const char *, void **) = installTransport;
static int (*const uninstall)(transfer_engine_t, const char *) = uninstallTransport;
static segment_id_t (*const open_)(transfer_engine_t, const char *) = openSegment;
static segment_id_t (*const open_anew)(transfer_engine_t, const char *) = openSegmentNoCache;
static int (*const close_)(transfer_engine_t, segment_id_t) = closeSegment;
static int (*const remove_)(transfer_engine_t, const char *) = removeLocalSegment;
static int (*const lend)(transfer_engine_t, void *, size_t, const char *, int) = registerLocalMemory;
static int (*const give_up)(transfer_engine_t, void *) = unregisterLocalMemory;
static int (*const lend_all)(transfer_engine_t, buffer_entry_t *, size_t, const char *) = registerLocalMemoryBatch;
static int (*const give_up_all)(transfer_engine_t, void **, size_t) = unregisterLocalMemoryBatch;
static batch_id_t (*const allocate)(transfer_engine_t, size_t) = allocateBatchID;
static int (*const submit)(transfer_engine_t, batch_id_t, struct transfer_request *, size_t) = submitTransfer;
static int (*const submit_and_tell)(transfer_engine_t, batch_id_t, struct transfer_request *, size_t,
                                    notify_msg_t) = submitTransferWithNotify;
static int (*const look)(transfer_engine_t, batch_id_t, size_t, struct transfer_status *) = getTransferStatus;
static int (*const free_)(transfer_engine_t, batch_id_t) = freeBatchID;
static notify_msg_t *(*const take)(transfer_engine_t, int *) = getNotifsFromEngine;
static int (*const give_back)(notify_msg_t *, int) = freeNotifsMsgBuf;
static int (*const tell)(transfer_engine_t, uint64_t, notify_msg_t) = genNotifyInEngine;
static int (*const sync_)(transfer_engine_t) = syncSegmentCache;
static int (*const warm)(transfer_engine_t, const char *) = warmupEfaSegment;
static int (*const loads)(transfer_engine_t, nic_load_stat_t *, size_t *) = getNicLoadStats;
static void (*const graceful)(transfer_engine_t) = enableGracefulShutdown;
static int (*const links)(transfer_engine_t, char *, size_t, int) = showLinks;

int main(void) {
    unsigned char memory[64] = {0};
    struct transfer_request request;
    transfer_request_t *same = &request;
    struct transfer_status status = {STATUS_WAITING, 0};
    struct buffer_entry entry = {memory, sizeof memory};
    struct notify_msg message = {(char *)"name", (char *)"text"};
    struct bits bits = {STATUS_FAILED};
    void *all[1] = {memory};
    char text[256];
    size_t count = 1;
    int taken = -1;
    nic_load_stat_t load;
    batch_id_t batch;
    segment_handle_t own;
    transfer_engine_t engine = create("P2PHANDSHAKE", "127.0.0.1", "", 12345, 0);
    if (!engine || discover(engine) || address(engine, text, sizeof text)) return 1;
    if (!install(engine, "tcp", NULL) || uninstall(engine, "tcp")) return 2;
    own = open_(engine, text);
    if (own != LOCAL_SEGMENT || open_anew(engine, text) != FIRST || warm(engine, text)) return 3;
    if (lend_all(engine, &entry, 1, "cpu:0") || give_up_all(engine, all, 1)) return 4;
    if (lend(engine, memory, sizeof memory, "*", 1)) return 5;
    request.opcode = OPCODE_WRITE;
    request.source = memory;
    request.target_id = own;
    request.target_offset = (uint64_t)(uintptr_t)(memory + 32);
    request.length = 32;
    batch = allocate(engine, 2);
    if (batch == none || submit(engine, batch, same, 1) || submit_and_tell(engine, batch, same, 1, message)) return 6;
    while (!is_over(status.status)) {
        if (look(engine, batch, 1, &status)) return 7;
    }
    while (look(engine, batch, 0, &status), !is_over(status.status)) {
    }
    if (status.status != ENDED || status.transferred_bytes != 32) return 8;
    while (free_(engine, batch)) {
    }
    do {
        notify_msg_t *messages = take(engine, &taken);
        if (give_back(messages, taken)) return 9;
    } while (taken == 0);
    if (tell(engine, LOCAL_SEGMENT, message) || sync_(engine) || loads(engine, &load, &count) || count) return 10;
    graceful(engine);
    text[0] = 0;
    if (links(engine, text, sizeof text, 1) != 0 || !text[0]) return 11;
    if (give_up(engine, memory) || close_(engine, own) || remove_(engine, "")) return 12;
    destroy(engine);
    return states[STATUS_FAILED][0] == 'f' && by_opcode[OPCODE_WRITE] == 'w' && READS == 10 && bits.state == STATUS_FAILED ? 0 : 13;
}
