/* The transfer engine for C: peers read and write each other's registered memory.
 *
 * Names, types and codes are those of Mooncake's header of this name. Every call may be made by any thread. Texts that
 * are given to a call may be freed when it returns. A failed call says why on stderr (MC_LOG_LEVEL).
 *
 * Made from the source by `make reference`.
 */
#ifndef TRANSFER_ENGINE_C_H
#define TRANSFER_ENGINE_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An engine, of createTransferEngine. */
typedef void *transfer_engine_t;

/* What installTransport gives: nothing that a caller could use. */
typedef void *transport_t;

/* A peer's segment. */
#define segment_id_t int32_t

/* The same. */
#define segment_handle_t int32_t

/* A batch. */
#define batch_id_t uint64_t

/* The engine's own segment. */
#define LOCAL_SEGMENT (0)

/* No batch. */
#define INVALID_BATCH (UINT64_MAX)

/* From the peer's memory to this process's. */
#define OPCODE_READ (0)

/* From this process's memory to the peer's. */
#define OPCODE_WRITE (1)

/* Not done yet. */
#define STATUS_WAITING (0)

/* Mooncake's; never given here. */
#define STATUS_PENDING (1)

/* Mooncake's; never given here. */
#define STATUS_INVALID (2)

/* Mooncake's; never given here. */
#define STATUS_CANCELED (3)

/* All its bytes are in place. */
#define STATUS_COMPLETED (4)

/* Mooncake's; never given here: callers take it for a success. */
#define STATUS_TIMEOUT (5)

/* It failed, or was not done by its deadline. Nothing touches its memory any more. */
#define STATUS_FAILED (6)

/* What is to be moved. */
struct transfer_request {
    int opcode;
    /* This process's end. */
    void *source;
    /* Of openSegment; 0 is the own segment. */
    segment_id_t target_id;
    /* Address in the peer's process. */
    uint64_t target_offset;
    uint64_t length;
};
typedef struct transfer_request transfer_request_t;

/* How far a request is. */
struct transfer_status {
    int status;
    uint64_t transferred_bytes;
};
typedef struct transfer_status transfer_status_t;

/* A range of memory. */
struct buffer_entry {
    void *addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

/* A message, of two C strings. */
struct notify_msg {
    char *name;
    char *msg;
};
typedef struct notify_msg notify_msg_t;

/* A network device's load. */
struct nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

/* What a segment is made of. No call takes or gives one. */
struct segment_desc {
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path;
            const char *subsystem_name;
            const char *proto;
            const char *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;

/* Starts an engine. metadata_conn_string: P2PHANDSHAKE, or a URL of http:// or https://. ip_or_host_name:
 * address or name that peers reach this host by, where the metadata tells them; may be NULL or "". The ports
 * are taken from MC_MIN_RPC_PORT to MC_MAX_RPC_PORT whatever rpc_port says; getLocalIpAndPort tells which. NULL
 * on failure. */
transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover);

/* Ends it. Nothing else may use it meanwhile or afterwards. */
void destroyTransferEngine(transfer_engine_t engine);

int discoverTopology(transfer_engine_t engine);

int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* Transports are chosen for each peer by themselves; "tcp" and "rdma" are taken, others give NULL. Of "rdma",
 * which this version has not, a line on stderr says that TCP is used instead. args may be NULL; if it is not,
 * its first element is NULL, or the matrix of devices as JSON, which takes the place of what is discovered. A
 * text that is no matrix gives NULL. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);

int uninstallTransport(transfer_engine_t engine, const char *proto);

/* A peer by its name, -1 on failure. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);

/* As openSegment: what turns out old is fetched anew by itself. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);

int closeSegment(transfer_engine_t engine, segment_id_t segment_id);

int removeLocalSegment(transfer_engine_t engine, const char *segment_name);

int syncSegmentCache(transfer_engine_t engine);

int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* 0, or a negative code. Memory that is not remote_accessible is the local end of transfers alone: peers do not
 * learn of it, and are refused. */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible);

/* When it returns, neither this engine nor a peer touches that memory any more. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);

int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                             const char *location);

/* The same for several; all that can be are given up. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* A batch for so many requests. The calls on batches give 0, or a positive code; one that was freed, or never
 * given out, is an error of its own. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);

int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, transfer_request_t *entries, size_t count);

int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, transfer_request_t *entries,
                             size_t count, notify_msg_t notify_msg);

int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, transfer_status_t *status);

int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* Messages of peers, oldest first; freeNotifsMsgBuf gives them back. NULL if there is none. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);

/* 0. */
int freeNotifsMsgBuf(notify_msg_t *msgs, int size);

int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* The load of each network device. count: how many there is room for; then how many there are, which is none in
 * this version. All three are needed: -1 without. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);

/* An engine's entries in the metadata service are replaced by its successor; nothing has to be caught. */
void enableGracefulShutdown(transfer_engine_t engine);

/* How bytes go to each peer, as JSON or as a table, cut to the room that there is. 0. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);

#ifdef __cplusplus
}
#endif

#endif
