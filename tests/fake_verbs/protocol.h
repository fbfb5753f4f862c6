/* What the library and the fabric say to each other over FOLDER/socket (SOCK_SEQPACKET): one request, one reply.
 *
 * A context has one connection that made it (`cmd_fd`), and further ones for calls that run at the same time, so that a
 * call that hangs keeps no other waiting. Only the first one, and the mapping of the context's page, keep it alive.
 */
#ifndef FAKE_VERBS_PROTOCOL_H
#define FAKE_VERBS_PROTOCOL_H

#include "abi.h"

enum {
    MAGIC = 0x66766231,
    MESSAGE_MOST = 60 * 1024, /* bytes of a request or a reply with its body */
    SGE_MOST = 32,
    INLINE_MOST = 4096,
    DEVICES_MOST = 32,
    PAGE_BYTES = 64 * 1024,
    PAGE_SLOTS = PAGE_BYTES / 4 - 1,
};

enum verb {
    GET_DEVICE_LIST, OPEN_DEVICE, ATTACH, CLOSE_DEVICE, FORK_INIT, IS_FORK_INITIALIZED, QUERY_DEVICE, QUERY_PORT,
    QUERY_GID, QUERY_PKEY, ALLOC_PD, DEALLOC_PD, REG_MR, DEREG_MR, CREATE_COMP_CHANNEL, DESTROY_COMP_CHANNEL,
    CREATE_CQ, DESTROY_CQ, CREATE_QP, MODIFY_QP, QUERY_QP, DESTROY_QP, POLL_CQ, REQ_NOTIFY_CQ, POST_SEND, POST_RECV,
    REG_DMABUF_MR, VERBS
};

#define VERB_NAMES                                                                                          \
    "get_device_list", "open_device", "attach", "close_device", "fork_init", "is_fork_initialized",          \
        "query_device", "query_port", "query_gid", "query_pkey", "alloc_pd", "dealloc_pd", "reg_mr",         \
        "dereg_mr", "create_comp_channel", "destroy_comp_channel", "create_cq", "destroy_cq", "create_qp",   \
        "modify_qp", "query_qp", "destroy_qp", "poll_cq", "req_notify_cq", "post_send", "post_recv",         \
        "reg_dmabuf_mr"

struct request {
    uint32_t magic, verb;
    uint64_t arg[8];
};

struct reply {
    uint32_t magic;
    int32_t error; /* an errno, 0: none */
    uint64_t value[6];
};

/* One of those that GET_DEVICE_LIST answers. */
struct listed {
    uint32_t nic, link_layer;
    uint64_t guid;
    char name[64], dev_name[64];
};

/* A work request of POST_SEND; then its SGEs, or its inline bytes. */
struct wire_wr {
    uint64_t wr_id, remote_addr;
    uint32_t rkey, opcode, flags, sges, inline_bytes;
    uint32_t unused;
};

/* Shared memory of a context, written by the fabric: what a CQ holds is seen without a call. */
struct page {
    volatile uint32_t always_call; /* polls go to the fabric even so */
    volatile uint32_t ready[PAGE_SLOTS]; /* completions in the CQ of this handle */
};

#endif
