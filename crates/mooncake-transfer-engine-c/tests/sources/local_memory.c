/* Memory that is not remote_accessible: the local end of transfers, and of no use to peers. */
#include <stdio.h>
#include <string.h>

#include "transfer_engine_c.h"

/* How a request ended. */
static int moved(transfer_engine_t engine, int opcode, void *source, segment_id_t target, void *there, uint64_t length) {
    struct transfer_request request = {opcode, source, target, (uint64_t)(uintptr_t)there, length};
    struct transfer_status status = {STATUS_WAITING, 0};
    batch_id_t batch = allocateBatchID(engine, 1);
    if (submitTransfer(engine, batch, &request, 1)) return -1;
    while (status.status != STATUS_COMPLETED && status.status != STATUS_FAILED && status.status != STATUS_TIMEOUT) {
        if (getTransferStatus(engine, batch, 0, &status)) return -1;
    }
    while (freeBatchID(engine, batch)) {
    }
    return status.status;
}

int main(void) {
    static unsigned char source[4096], lent[4096], peers[4096];
    char name[256];
    segment_id_t peer;
    transfer_engine_t owner = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 12345, 0);
    transfer_engine_t other = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 12345, 0);
    if (!owner || !other) return 1;
    memset(source, 7, sizeof source);
    if (registerLocalMemory(owner, source, sizeof source, "cpu:0", 0)) return 2;
    if (registerLocalMemory(other, peers, sizeof peers, "cpu:0", 1)) return 3;

    /* It is a source and a target of its owner's transfers. */
    if (getLocalIpAndPort(other, name, sizeof name)) return 4;
    peer = openSegment(owner, name);
    if (moved(owner, OPCODE_WRITE, source, peer, peers, sizeof source) != STATUS_COMPLETED || peers[4095] != 7) return 5;
    if (moved(owner, OPCODE_READ, source, peer, peers, sizeof source) != STATUS_COMPLETED) return 6;

    /* Peers are refused, also beside memory that is lent. */
    if (registerLocalMemory(owner, lent, sizeof lent, "cpu:0", 1)) return 7;
    if (getLocalIpAndPort(owner, name, sizeof name)) return 8;
    peer = openSegment(other, name);
    if (moved(other, OPCODE_WRITE, peers, peer, lent, 64) != STATUS_COMPLETED) return 9;
    if (moved(other, OPCODE_WRITE, peers, peer, source, 64) != STATUS_FAILED) return 10;
    if (moved(other, OPCODE_READ, peers, peer, source, 64) != STATUS_FAILED) return 11;

    /* It is registered as any other memory is: once, and with bytes. */
    if (registerLocalMemory(owner, source + 1, 1, "cpu:0", 1) != -7) return 12;
    if (registerLocalMemory(owner, source, sizeof source, "cpu:0", 0) != -7) return 13;
    if (!registerLocalMemory(owner, peers, 0, "cpu:0", 0)) return 14;
    if (unregisterLocalMemory(owner, source) || !unregisterLocalMemory(owner, source)) return 15;
    if (registerLocalMemory(owner, source, sizeof source, "cpu:0", 1)) return 16;
    if (moved(other, OPCODE_READ, peers, peer, source, 64) != STATUS_COMPLETED) return 17;
    destroyTransferEngine(other);
    destroyTransferEngine(owner);
    return 0;
}
