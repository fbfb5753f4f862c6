/* The structures and numbers of libibverbs that the fake provider needs, under a prefix of their own (fv_ for ibv_), so
 * that it is built where no RDMA package is installed and check_abi.c can hold both against each other.
 *
 * Member names are those of <infiniband/verbs.h>.
 */
#ifndef FAKE_VERBS_ABI_H
#define FAKE_VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { FV_NODE_CA = 1, FV_TRANSPORT_IB = 0 };
enum { FV_FORK_DISABLED, FV_FORK_ENABLED, FV_FORK_UNNEEDED };
enum { FV_MTU_256 = 1, FV_MTU_512, FV_MTU_1024, FV_MTU_2048, FV_MTU_4096 };
enum { FV_PORT_DOWN = 1, FV_PORT_ACTIVE = 4 };
enum { FV_LINK_LAYER_INFINIBAND = 1, FV_LINK_LAYER_ETHERNET };
enum { FV_GID_TYPE_IB, FV_GID_TYPE_ROCE_V1, FV_GID_TYPE_ROCE_V2 };
enum { FV_QPT_RC = 2 };
enum { FV_QPS_RESET, FV_QPS_INIT, FV_QPS_RTR, FV_QPS_RTS, FV_QPS_SQD, FV_QPS_SQE, FV_QPS_ERR };
enum { FV_WR_RDMA_WRITE = 0, FV_WR_RDMA_READ = 4 };
enum { FV_WC_RDMA_WRITE = 1, FV_WC_RDMA_READ = 2 };
enum { FV_SEND_FENCE = 1, FV_SEND_SIGNALED = 2, FV_SEND_SOLICITED = 4, FV_SEND_INLINE = 8 };

enum {
    FV_ACCESS_LOCAL_WRITE = 1,
    FV_ACCESS_REMOTE_WRITE = 2,
    FV_ACCESS_REMOTE_READ = 4,
    FV_ACCESS_REMOTE_ATOMIC = 8,
    FV_ACCESS_OPTIONAL = 0x3ff00000, /* a device that knows nothing of these ignores them; reg_mr refuses them */
};

enum {
    FV_QP_STATE = 1 << 0,
    FV_QP_CUR_STATE = 1 << 1,
    FV_QP_ACCESS_FLAGS = 1 << 3,
    FV_QP_PKEY_INDEX = 1 << 4,
    FV_QP_PORT = 1 << 5,
    FV_QP_AV = 1 << 7,
    FV_QP_PATH_MTU = 1 << 8,
    FV_QP_TIMEOUT = 1 << 9,
    FV_QP_RETRY_CNT = 1 << 10,
    FV_QP_RNR_RETRY = 1 << 11,
    FV_QP_RQ_PSN = 1 << 12,
    FV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    FV_QP_ALT_PATH = 1 << 14,
    FV_QP_MIN_RNR_TIMER = 1 << 15,
    FV_QP_SQ_PSN = 1 << 16,
    FV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    FV_QP_PATH_MIG_STATE = 1 << 18,
    FV_QP_DEST_QPN = 1 << 20,
};

enum {
    FV_EVENT_CQ_ERR,
    FV_EVENT_QP_FATAL,
    FV_EVENT_QP_REQ_ERR,
    FV_EVENT_QP_ACCESS_ERR,
    FV_EVENT_COMM_EST,
    FV_EVENT_SQ_DRAINED,
    FV_EVENT_PATH_MIG,
    FV_EVENT_PATH_MIG_ERR,
    FV_EVENT_DEVICE_FATAL,
    FV_EVENT_PORT_ACTIVE,
    FV_EVENT_PORT_ERR,
    FV_EVENT_LID_CHANGE,
    FV_EVENT_PKEY_CHANGE,
    FV_EVENT_SM_CHANGE,
    FV_EVENT_SRQ_ERR,
    FV_EVENT_SRQ_LIMIT_REACHED,
    FV_EVENT_QP_LAST_WQE_REACHED,
    FV_EVENT_CLIENT_REREGISTER,
    FV_EVENT_GID_CHANGE,
    FV_EVENT_WQ_FATAL,
};

enum {
    FV_WC_SUCCESS,
    FV_WC_LOC_LEN_ERR,
    FV_WC_LOC_QP_OP_ERR,
    FV_WC_LOC_EEC_OP_ERR,
    FV_WC_LOC_PROT_ERR,
    FV_WC_WR_FLUSH_ERR,
    FV_WC_MW_BIND_ERR,
    FV_WC_BAD_RESP_ERR,
    FV_WC_LOC_ACCESS_ERR,
    FV_WC_REM_INV_REQ_ERR,
    FV_WC_REM_ACCESS_ERR,
    FV_WC_REM_OP_ERR,
    FV_WC_RETRY_EXC_ERR,
    FV_WC_RNR_RETRY_EXC_ERR,
    FV_WC_LOC_RDD_VIOL_ERR,
    FV_WC_REM_INV_RD_REQ_ERR,
    FV_WC_REM_ABORT_ERR,
    FV_WC_INV_EECN_ERR,
    FV_WC_INV_EEC_STATE_ERR,
    FV_WC_FATAL_ERR,
    FV_WC_RESP_TIMEOUT_ERR,
    FV_WC_GENERAL_ERR,
    FV_WC_TM_ERR,
    FV_WC_TM_RNDV_INCOMPLETE,
};

union fv_gid {
    uint8_t raw[16];
    uint64_t words[2];
};

struct fv_gid_entry {
    union fv_gid gid;
    uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

struct fv_device_attr {
    char fw_ver[64];
    uint64_t node_guid, sys_image_guid;
    uint64_t max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    unsigned device_cap_flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
    int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
    int atomic_cap;
    int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach;
    int max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct fv_port_attr {
    int state, max_mtu, active_mtu, gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state;
    uint8_t link_layer, flags;
    uint16_t port_cap_flags2; /* the exported ibv_query_port leaves this one alone */
};

struct fv_device {
    void *_ops[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};

struct fv_wc {
    uint64_t wr_id;
    int status, opcode;
    uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
    unsigned wc_flags;
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
};

struct fv_sge {
    uint64_t addr;
    uint32_t length, lkey;
};

struct fv_send_wr {
    uint64_t wr_id;
    struct fv_send_wr *next;
    struct fv_sge *sg_list;
    int num_sge, opcode;
    unsigned send_flags;
    uint32_t imm_data;
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        uint64_t atomic[4];
    } wr;
    uint32_t qp_type;
    uint64_t bind_mw[6];
};

struct fv_recv_wr {
    uint64_t wr_id;
    struct fv_recv_wr *next;
    struct fv_sge *sg_list;
    int num_sge;
};

struct fv_context;
struct fv_cq;
struct fv_qp;

struct fv_context_ops {
    void *dead_0[11];
    int (*poll_cq)(struct fv_cq *, int, struct fv_wc *);
    int (*req_notify_cq)(struct fv_cq *, int);
    void *dead_13[12];
    int (*post_send)(struct fv_qp *, struct fv_send_wr *, struct fv_send_wr **);
    int (*post_recv)(struct fv_qp *, struct fv_recv_wr *, struct fv_recv_wr **);
    void *dead_27[5];
};

struct fv_context {
    struct fv_device *device;
    struct fv_context_ops ops;
    int cmd_fd, async_fd, num_comp_vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
};

struct fv_pd {
    struct fv_context *context;
    uint32_t handle;
};

struct fv_mr {
    struct fv_context *context;
    struct fv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle, lkey, rkey;
};

struct fv_comp_channel {
    struct fv_context *context;
    int fd, refcnt;
};

struct fv_cq {
    struct fv_context *context;
    struct fv_comp_channel *channel;
    void *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed, async_events_completed;
};

struct fv_qp {
    struct fv_context *context;
    void *qp_context;
    struct fv_pd *pd;
    struct fv_cq *send_cq, *recv_cq;
    void *srq;
    uint32_t handle, qp_num;
    int state, qp_type;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
};

struct fv_qp_cap {
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct fv_qp_init_attr {
    void *qp_context;
    struct fv_cq *send_cq, *recv_cq;
    void *srq;
    struct fv_qp_cap cap;
    int qp_type, sq_sig_all;
};

struct fv_global_route {
    union fv_gid dgid;
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class;
};

struct fv_ah_attr {
    struct fv_global_route grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct fv_qp_attr {
    int qp_state, cur_qp_state, path_mtu, path_mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
    unsigned qp_access_flags;
    struct fv_qp_cap cap;
    struct fv_ah_attr ah_attr, alt_ah_attr;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout;
    uint8_t retry_cnt, rnr_retry, alt_port_num, alt_timeout;
    uint32_t rate_limit;
};

struct fv_async_event {
    union {
        struct fv_cq *cq;
        struct fv_qp *qp;
        int port_num;
        uint64_t cookie;
    } element;
    int event_type;
};

#endif
