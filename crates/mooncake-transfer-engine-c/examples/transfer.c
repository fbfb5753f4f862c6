/* Two processes: `transfer target` lends memory and says its name and address; `transfer initiator NAME ADDRESS` writes to it,
 * reads back what it wrote, and leaves a message. */
#include "transfer_engine_c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES ((size_t)1 << 20)

static int target(void) {
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
    unsigned char *memory = calloc(1, BYTES);
    char name[128];
    if (!engine || !memory || getLocalIpAndPort(engine, name, sizeof name) != 0) return 1;
    if (registerLocalMemory(engine, memory, BYTES, "cpu:0", 1) != 0) return 1;
    if (registerLocalMemory(engine, memory, BYTES, "cpu:0", 1) != -7) return 1; /* it overlaps */
    printf("%s %" PRIuPTR "\n", name, (uintptr_t)memory);
    fflush(stdout);
    int done = 0;
    for (int tries = 0; tries < 2000 && !done; tries++) {
        int count = 0;
        notify_msg_t *messages = getNotifsFromEngine(engine, &count);
        for (int at = 0; at < count; at++) {
            if (strcmp(messages[at].name, "written") == 0) printf("%s %d\n", messages[at].msg, memory[BYTES - 1]);
            done |= strcmp(messages[at].name, "done") == 0;
        }
        freeNotifsMsgBuf(messages, count);
        usleep(5000);
    }
    if (!done) return 1;
    if (unregisterLocalMemory(engine, memory) != 0 || unregisterLocalMemory(engine, memory) >= 0) return 1;
    destroyTransferEngine(engine);
    free(memory);
    return 0;
}

static int move(transfer_engine_t engine, struct transfer_request *requests, size_t count, notify_msg_t *message) {
    batch_id_t batch = allocateBatchID(engine, count);
    int code = message ? submitTransferWithNotify(engine, batch, requests, count, *message)
                       : submitTransfer(engine, batch, requests, count);
    if (code != 0) return code;
    for (size_t task = 0; task < count; task++) {
        struct transfer_status status;
        do {
            if (getTransferStatus(engine, batch, task, &status) != 0) return 1;
        } while (status.status == STATUS_WAITING);
        if (status.status != STATUS_COMPLETED || status.transferred_bytes != requests[task].length) return 1;
    }
    while ((code = freeBatchID(engine, batch)) == 4) usleep(100);
    if (code != 0 || freeBatchID(engine, batch) != 1) return 1; /* it is no batch any more */
    return 0;
}

static int initiator(const char *name, uint64_t address) {
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    unsigned char *memory = malloc(BYTES), *back = calloc(1, BYTES);
    if (!engine || !memory || !back || !installTransport(engine, "tcp", NULL)) return 1;
    for (size_t at = 0; at < BYTES; at++) memory[at] = (unsigned char)(at * 7 + (at >> 8));
    segment_id_t peer = openSegment(engine, name);
    if (peer < 0 || openSegment(engine, "127.0.0.1:1") != -1) return 1;
    struct transfer_request write[2] = {{OPCODE_WRITE, memory, peer, address, BYTES / 2},
                                        {OPCODE_WRITE, memory + BYTES / 2, peer, address + BYTES / 2, BYTES / 2}};
    notify_msg_t message = {"written", "all of it"};
    if (move(engine, write, 2, &message) != 0) return 1;
    struct transfer_request read = {OPCODE_READ, back, peer, address, BYTES};
    if (move(engine, &read, 1, NULL) != 0 || memcmp(memory, back, BYTES) != 0) return 1;
    struct transfer_request outside = {OPCODE_READ, back, peer, address + 1, BYTES};
    batch_id_t batch = allocateBatchID(engine, 1);
    struct transfer_status status = {STATUS_WAITING, 0};
    if (submitTransfer(engine, batch, &outside, 1) != 0) return 1;
    while (status.status == STATUS_WAITING) getTransferStatus(engine, batch, 0, &status);
    if (status.status != STATUS_FAILED) return 1;
    char links[512];
    if (showLinks(engine, links, sizeof links, 1) != 0 || !strstr(links, name)) return 1;
    notify_msg_t bye = {"done", ""};
    if (genNotifyInEngine(engine, (uint64_t)peer, bye) != 0) return 1;
    puts("both ways");
    destroyTransferEngine(engine);
    free(memory);
    free(back);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "target") == 0) return target();
    if (argc == 4 && strcmp(argv[1], "initiator") == 0) return initiator(argv[2], strtoull(argv[3], NULL, 10));
    fprintf(stderr, "usage: %s target | initiator NAME ADDRESS\n", argv[0]);
    return 2;
}
