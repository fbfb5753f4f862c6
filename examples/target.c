/* A C program that lends memory. Peers read and write it at any time; this program takes no part in that.
 *
 * This is the transfer engine, memory by name and address, and no part of a pool: the C library has no store.
 * initiator.py starts this program and uses its memory. README.md says how to build it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <transfer_engine_c.h>
#include <unistd.h>

#define BYTES ((size_t)1 << 20)

/* The library has said why on stderr. */
static int failed(const char *what) {
    fprintf(stderr, "target: %s failed\n", what);
    return 1;
}

/* Waits for a message of that name: 1 if it came. A peer may die before it sends one, so the wait has an end. */
static int wait_for_message(transfer_engine_t engine, const char *name) {
    for (int tries = 0; tries < 6000; tries++) {
        int count = 0, came = 0;
        notify_msg_t *messages = getNotifsFromEngine(engine, &count);
        for (int at = 0; at < count; at++) came |= strcmp(messages[at].name, name) == 0;
        freeNotifsMsgBuf(messages, count);
        if (came) return 1;
        usleep(5000);
    }
    return 0;
}

int main(void) {
    /* Every process that reaches the engine's ports may use what it lends, and it listens on all addresses unless it is
     * told otherwise. Give real engines a network of their own. */
    setenv("MC_TE_BIND_ADDRESS", "127.0.0.1", 0);

    /* P2PHANDSHAKE: peers find this engine by host and port, without a metadata service. The port is the engine's
     * choice; the last two arguments have no say in it. */
    char name[256];
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);
    if (!engine || getLocalIpAndPort(engine, name, sizeof name)) return failed("createTransferEngine");

    unsigned char *memory = calloc(1, BYTES);
    if (!memory) return failed("calloc");
    strcpy((char *)memory, "hello from C");

    /* The last argument lends the range to peers. With 0 it would be the local end of own transfers only. */
    if (registerLocalMemory(engine, memory, BYTES, "cpu:0", 1)) return failed("registerLocalMemory");

    /* How a peer learns name and address is up to the application. Here it reads them from this program's output. */
    printf("%s %" PRIuPTR " %zu\n", name, (uintptr_t)memory, BYTES);
    fflush(stdout);

    /* A write says nothing by itself. The peer sends a message behind it: once that is here, so are the bytes. */
    if (!wait_for_message(engine, "written")) return failed("waiting for the peer");
    printf("%s\n", (char *)memory);

    /* Take the memory back before it is freed: when the call returns 0, no peer touches it any more. */
    if (unregisterLocalMemory(engine, memory)) return failed("unregisterLocalMemory");
    destroyTransferEngine(engine);
    free(memory);
    return 0;
}
