/* Holds abi.h against the headers of libibverbs-dev: it compiles if each size, offset and number agrees.
 *
 * cc -std=gnu17 -Wall -Wextra -fsyntax-only check_abi.c, where <infiniband/verbs.h> is installed.
 */
#include <infiniband/verbs.h>

#include "abi.h"

#define SIZE(name) _Static_assert(sizeof(struct fv_##name) == sizeof(struct ibv_##name), #name)
#define AT(name, member)                                                                                     \
    _Static_assert(offsetof(struct fv_##name, member) == offsetof(struct ibv_##name, member), #name "." #member); \
    _Static_assert(sizeof(((struct fv_##name *)0)->member) == sizeof(((struct ibv_##name *)0)->member),      \
                   #name "." #member)
#define SAME(name) _Static_assert((int)FV_##name == (int)IBV_##name, #name)

SIZE(gid_entry); AT(gid_entry, gid); AT(gid_entry, gid_index); AT(gid_entry, port_num); AT(gid_entry, gid_type);
AT(gid_entry, ndev_ifindex);

SIZE(device_attr); AT(device_attr, fw_ver); AT(device_attr, node_guid); AT(device_attr, sys_image_guid);
AT(device_attr, max_mr_size); AT(device_attr, page_size_cap); AT(device_attr, vendor_id);
AT(device_attr, vendor_part_id); AT(device_attr, hw_ver); AT(device_attr, max_qp); AT(device_attr, max_qp_wr);
AT(device_attr, device_cap_flags); AT(device_attr, max_sge); AT(device_attr, max_sge_rd); AT(device_attr, max_cq);
AT(device_attr, max_cqe); AT(device_attr, max_mr); AT(device_attr, max_pd); AT(device_attr, max_qp_rd_atom);
AT(device_attr, max_qp_init_rd_atom); AT(device_attr, atomic_cap); AT(device_attr, max_srq_sge);
AT(device_attr, max_pkeys); AT(device_attr, local_ca_ack_delay); AT(device_attr, phys_port_cnt);

SIZE(port_attr); AT(port_attr, state); AT(port_attr, max_mtu); AT(port_attr, active_mtu); AT(port_attr, gid_tbl_len);
AT(port_attr, port_cap_flags); AT(port_attr, max_msg_sz); AT(port_attr, pkey_tbl_len); AT(port_attr, lid);
AT(port_attr, sm_lid); AT(port_attr, active_width); AT(port_attr, active_speed); AT(port_attr, phys_state);
AT(port_attr, link_layer); AT(port_attr, flags); AT(port_attr, port_cap_flags2);

SIZE(device); AT(device, node_type); AT(device, transport_type); AT(device, name); AT(device, dev_name);
AT(device, dev_path); AT(device, ibdev_path);

SIZE(wc); AT(wc, wr_id); AT(wc, status); AT(wc, opcode); AT(wc, vendor_err); AT(wc, byte_len); AT(wc, imm_data);
AT(wc, qp_num); AT(wc, src_qp); AT(wc, wc_flags); AT(wc, pkey_index); AT(wc, slid); AT(wc, sl);
AT(wc, dlid_path_bits);

SIZE(sge); AT(sge, addr); AT(sge, length); AT(sge, lkey);

SIZE(send_wr); AT(send_wr, wr_id); AT(send_wr, next); AT(send_wr, sg_list); AT(send_wr, num_sge);
AT(send_wr, opcode); AT(send_wr, send_flags); AT(send_wr, imm_data); AT(send_wr, wr); AT(send_wr, qp_type);
AT(send_wr, bind_mw); AT(send_wr, wr.rdma.remote_addr); AT(send_wr, wr.rdma.rkey);

SIZE(recv_wr); AT(recv_wr, next); AT(recv_wr, sg_list); AT(recv_wr, num_sge);

SIZE(context_ops); AT(context_ops, poll_cq); AT(context_ops, req_notify_cq); AT(context_ops, post_send);
AT(context_ops, post_recv);
_Static_assert(offsetof(struct fv_context, ops.post_send) == 208, "post_send");

SIZE(context); AT(context, device); AT(context, ops); AT(context, cmd_fd); AT(context, async_fd);
AT(context, num_comp_vectors); AT(context, mutex); AT(context, abi_compat);

SIZE(pd); AT(pd, handle);
SIZE(mr); AT(mr, pd); AT(mr, addr); AT(mr, length); AT(mr, handle); AT(mr, lkey); AT(mr, rkey);
SIZE(comp_channel); AT(comp_channel, fd); AT(comp_channel, refcnt);

SIZE(cq); AT(cq, channel); AT(cq, cq_context); AT(cq, handle); AT(cq, cqe); AT(cq, mutex); AT(cq, cond);
AT(cq, comp_events_completed); AT(cq, async_events_completed);

SIZE(qp); AT(qp, qp_context); AT(qp, pd); AT(qp, send_cq); AT(qp, recv_cq); AT(qp, srq); AT(qp, handle);
AT(qp, qp_num); AT(qp, state); AT(qp, qp_type); AT(qp, mutex); AT(qp, cond); AT(qp, events_completed);

SIZE(qp_cap); AT(qp_cap, max_send_wr); AT(qp_cap, max_send_sge); AT(qp_cap, max_inline_data);

SIZE(qp_init_attr); AT(qp_init_attr, send_cq); AT(qp_init_attr, recv_cq); AT(qp_init_attr, srq);
AT(qp_init_attr, cap); AT(qp_init_attr, qp_type); AT(qp_init_attr, sq_sig_all);

SIZE(global_route); AT(global_route, dgid); AT(global_route, sgid_index); AT(global_route, hop_limit);
AT(global_route, traffic_class);
SIZE(ah_attr); AT(ah_attr, dlid); AT(ah_attr, sl); AT(ah_attr, static_rate); AT(ah_attr, is_global);
AT(ah_attr, port_num);

SIZE(qp_attr); AT(qp_attr, qp_state); AT(qp_attr, cur_qp_state); AT(qp_attr, path_mtu); AT(qp_attr, rq_psn);
AT(qp_attr, sq_psn); AT(qp_attr, dest_qp_num); AT(qp_attr, qp_access_flags); AT(qp_attr, cap);
AT(qp_attr, ah_attr); AT(qp_attr, alt_ah_attr); AT(qp_attr, pkey_index); AT(qp_attr, max_rd_atomic);
AT(qp_attr, max_dest_rd_atomic); AT(qp_attr, min_rnr_timer); AT(qp_attr, port_num); AT(qp_attr, timeout);
AT(qp_attr, retry_cnt); AT(qp_attr, rnr_retry); AT(qp_attr, alt_port_num); AT(qp_attr, alt_timeout);
AT(qp_attr, rate_limit);

SIZE(async_event); AT(async_event, element); AT(async_event, event_type);

SAME(NODE_CA); SAME(TRANSPORT_IB); SAME(FORK_DISABLED); SAME(FORK_ENABLED); SAME(FORK_UNNEEDED); SAME(MTU_256);
SAME(MTU_4096); SAME(PORT_DOWN); SAME(PORT_ACTIVE); SAME(LINK_LAYER_INFINIBAND); SAME(LINK_LAYER_ETHERNET);
SAME(QPT_RC); SAME(QPS_RESET); SAME(QPS_INIT); SAME(QPS_RTR); SAME(QPS_RTS); SAME(QPS_ERR); SAME(WR_RDMA_WRITE);
SAME(WR_RDMA_READ); SAME(WC_RDMA_WRITE); SAME(WC_RDMA_READ); SAME(SEND_FENCE); SAME(SEND_SIGNALED);
SAME(SEND_SOLICITED); SAME(SEND_INLINE); SAME(ACCESS_LOCAL_WRITE); SAME(ACCESS_REMOTE_WRITE);
SAME(ACCESS_REMOTE_READ); SAME(ACCESS_REMOTE_ATOMIC); SAME(QP_STATE); SAME(QP_CUR_STATE); SAME(QP_ACCESS_FLAGS);
SAME(QP_PKEY_INDEX); SAME(QP_PORT); SAME(QP_AV); SAME(QP_PATH_MTU); SAME(QP_TIMEOUT); SAME(QP_RETRY_CNT);
SAME(QP_RNR_RETRY); SAME(QP_RQ_PSN); SAME(QP_MAX_QP_RD_ATOMIC); SAME(QP_ALT_PATH); SAME(QP_MIN_RNR_TIMER);
SAME(QP_SQ_PSN); SAME(QP_MAX_DEST_RD_ATOMIC); SAME(QP_PATH_MIG_STATE); SAME(QP_DEST_QPN); SAME(EVENT_CQ_ERR);
SAME(EVENT_QP_FATAL); SAME(EVENT_QP_REQ_ERR); SAME(EVENT_QP_ACCESS_ERR); SAME(EVENT_DEVICE_FATAL);
SAME(EVENT_PORT_ACTIVE); SAME(EVENT_PORT_ERR); SAME(EVENT_LID_CHANGE); SAME(EVENT_SM_CHANGE);
SAME(EVENT_GID_CHANGE); SAME(EVENT_WQ_FATAL); SAME(WC_LOC_LEN_ERR); SAME(WC_LOC_QP_OP_ERR); SAME(WC_LOC_PROT_ERR);
SAME(WC_WR_FLUSH_ERR); SAME(WC_REM_INV_REQ_ERR); SAME(WC_REM_ACCESS_ERR); SAME(WC_RETRY_EXC_ERR);
SAME(WC_FATAL_ERR); SAME(WC_GENERAL_ERR); SAME(WC_TM_RNDV_INCOMPLETE); SAME(GID_TYPE_IB); SAME(GID_TYPE_ROCE_V1);
SAME(GID_TYPE_ROCE_V2);
_Static_assert((unsigned)FV_ACCESS_OPTIONAL == IBV_ACCESS_OPTIONAL_RANGE, "optional access flags");

int main(void) { return 0; }
