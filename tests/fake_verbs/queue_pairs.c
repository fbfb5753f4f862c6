/* Queue pairs: their states, the queue of requests, and what is reported of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fabric.h"

static struct qp **turns; /* the queue pairs that have something to do */
static size_t turns_room, turns_used;

struct qp *find_qp(struct nic *nic, uint32_t qpn) { return qpn < nic->qps_room ? nic->qps[qpn] : NULL; }

static void give_turn(struct qp *qp) {
    if (qp->turn) return;
    turns = widen(turns, &turns_room, turns_used + 1, sizeof *turns);
    turns[turns_used++] = qp;
    qp->turn = turns_used;
}

static void take_turn(struct qp *qp) {
    if (!qp->turn) return;
    struct qp *last = turns[--turns_used];
    turns[qp->turn - 1] = last;
    last->turn = qp->turn;
    qp->turn = 0;
}

bool turns_left(void) { return turns_used; }

void wake_qp(struct qp *qp) { give_turn(qp); }

/* At its next turn: what finds the fault is in the middle of something. */
void doom_qp(struct qp *qp, int event) {
    if (qp->state == FV_QPS_ERR || qp->doom >= 0) return;
    qp->doom = event;
    give_turn(qp);
}

/* ------------------------------------------------------------------ requests */

static struct wr **slot(struct qp *qp, uint64_t index) { return &qp->ring[index % qp->cap.max_send_wr]; }

void clear_wr(struct wr *wr) {
    clear_timer(&wr->timer);
    drop_payload(wr->data);
    wr->data = NULL;
}

static void free_wr(struct wr *wr) {
    clear_wr(wr);
    drop_payload(wr->inline_data);
    free(wr->sge);
    free(wr);
}

/* Puts into the CQ what is done, in order, unless completions are withheld. */
void report(struct qp *qp) {
    int held = qp->nic->held;
    for (; qp->reported < qp->settled; qp->reported++) {
        struct wr *wr = *slot(qp, qp->reported);
        if (held == HELD_ALL || (held == HELD_ACKS && !wr->status)) return;
        if (wr->status || qp->sig_all || (wr->flags & FV_SEND_SIGNALED)) {
            struct fv_wc wc = {.wr_id = wr->wr_id, .status = wr->status, .qp_num = qp->qpn,
                               .vendor_err = wr->status ? 0xfa : 0, .byte_len = (uint32_t)wr->len,
                               .opcode = wr->opcode == FV_WR_RDMA_READ ? FV_WC_RDMA_READ : FV_WC_RDMA_WRITE};
            push(qp->send_cq, &wc, qp, qp->reported);
        }
        *slot(qp, qp->reported) = NULL;
        free_wr(wr);
    }
}

static void settle(struct qp *qp) {
    for (; qp->settled < qp->next && (*slot(qp, qp->settled))->progress == DONE; qp->settled++)
        if (qp->state == FV_QPS_RTS && (*slot(qp, qp->settled))->status) {
            fail_qp(qp, qp->settled + 1);
            return;
        }
    report(qp);
}

/* Moves a QP to ERR: requests from an index on are flushed, but what they had sent may arrive yet. */
void fail_qp(struct qp *qp, uint64_t from) {
    if (qp->state == FV_QPS_ERR) return;
    if (from < qp->reported) from = qp->reported;
    bool sends = qp->state == FV_QPS_RTS;
    qp->state = FV_QPS_ERR, qp->doom = -1;
    if (sends) send_late(qp, from);
    for (uint64_t index = from; index < qp->posted; index++) {
        struct wr *wr = *slot(qp, index);
        spill(wr);
        clear_wr(wr);
        wr->progress = DONE, wr->status = FV_WC_WR_FLUSH_ERR;
    }
    qp->blocked = NULL, qp->reads = 0;
    qp->next = qp->settled = qp->posted;
    report(qp);
}

void finish(struct wr *wr, int status) {
    struct qp *qp = wr->qp;
    if (wr->opcode == FV_WR_RDMA_READ && wr->progress == FLYING) qp->reads--;
    if (qp->blocked == wr) qp->blocked = NULL;
    clear_wr(wr);
    wr->progress = DONE, wr->status = status;
    give_turn(qp);
    settle(qp);
}

/* The network lost this request: it and what was sent behind it go again. */
void block(struct wr *wr) {
    struct qp *qp = wr->qp;
    for (uint64_t index = wr->index + 1; index < qp->next; index++) {
        struct wr *behind = *slot(qp, index);
        if (behind->progress != FLYING || behind->admitted) continue;
        if (behind->opcode == FV_WR_RDMA_READ) qp->reads--;
        clear_wr(behind);
        behind->progress = WAITING;
    }
    qp->next = wr->index + 1;
    qp->blocked = wr;
}

/* Starts the next request if it may start. */
static bool start_next(struct qp *qp) {
    if (qp->state != FV_QPS_RTS || qp->blocked) return false;
    while (qp->next < qp->posted && (*slot(qp, qp->next))->progress != WAITING) qp->next++;
    if (qp->next == qp->posted) return false;
    if (qp->next > qp->settled) {
        struct wr *before = *slot(qp, qp->next - 1);
        if (before->progress == DONE && before->status) return false;
    }
    struct wr *wr = *slot(qp, qp->next);
    if (qp->nic->held && qp->hold_epoch != qp->nic->hold_epoch) {
        qp->hold_epoch = qp->nic->hold_epoch;
        qp->stalls = qp->nic->held_way == BY_CHANCE ? chance(1, 2) : qp->nic->held_way == STALLS;
    }
    if (qp->nic->held && qp->stalls) {
        /* What a process that is killed meanwhile had sent. */
        for (uint64_t index = qp->next; index < qp->posted; index++) snapshot(*slot(qp, index));
        return false;
    }
    if ((wr->flags & FV_SEND_FENCE) && qp->reads) return false;
    if (wr->opcode == FV_WR_RDMA_READ && qp->attr.max_rd_atomic && qp->reads >= qp->attr.max_rd_atomic) return false;
    qp->next++;
    start(wr);
    return true;
}

/* One thing that one queue pair has to do; whose turn it is, is chance. */
bool run_some(void) {
    if (!turns_used) return false;
    struct qp *qp = turns[below(turns_used)];
    if (qp->doom >= 0) {
        int event = qp->doom;
        fail_qp(qp, qp->reported);
        qp->async_sent++;
        send_event(qp->base.context, event, qp->cookie);
        logged("%s qp_failed qp=0x%x event=%s", qp->nic->name, qp->qpn, event_name(event));
    }
    if (!start_next(qp)) take_turn(qp);
    return true;
}

/* --------------------------------------------------------------------- posts */

static int post_send(struct call *call, struct qp *qp) {
    const unsigned char *at = call->body, *stop = call->body + call->len;
    uint64_t count = call->request.arg[1];
    snprintf(call->note, sizeof call->note, "qp=0x%x count=%lu", qp->qpn, count);
    if (qp->state != FV_QPS_RTS && qp->state != FV_QPS_ERR) return EINVAL;
    for (uint64_t done = 0; done < count; done++, call->reply.value[0] = done) {
        struct wire_wr wire;
        if ((size_t)(stop - at) < sizeof wire) return EINVAL;
        memcpy(&wire, at, sizeof wire);
        at += sizeof wire;
        bool is_inline = wire.flags & FV_SEND_INLINE;
        if (wire.sges > SGE_MOST || wire.inline_bytes > INLINE_MOST) return EINVAL;
        size_t bytes = is_inline ? (wire.inline_bytes + 7) / 8 * 8 : wire.sges * sizeof(struct fv_sge);
        if ((size_t)(stop - at) < bytes) return EINVAL;
        if (wire.opcode != FV_WR_RDMA_WRITE && wire.opcode != FV_WR_RDMA_READ) return EINVAL;
        if (wire.sges > qp->cap.max_send_sge || (is_inline && wire.opcode == FV_WR_RDMA_READ)) return EINVAL;
        if (is_inline && wire.inline_bytes > qp->cap.max_inline_data) return EINVAL;
        if (qp->posted - qp->freed >= qp->cap.max_send_wr) return ENOMEM;
        struct wr *wr = allocate(sizeof *wr);
        *wr = (struct wr){.qp = qp, .wr_id = wire.wr_id, .remote_addr = wire.remote_addr, .index = qp->posted,
                          .rkey = wire.rkey, .opcode = wire.opcode, .flags = wire.flags, .sges = wire.sges};
        if (is_inline) {
            wr->inline_data = allocate(sizeof *wr->inline_data + wire.inline_bytes);
            *wr->inline_data = (struct payload){.users = 1, .len = wire.inline_bytes};
            memcpy(wr->inline_data->bytes, at, wire.inline_bytes);
            wr->len = wire.inline_bytes;
        } else {
            wr->sge = allocate(bytes);
            memcpy(wr->sge, at, bytes);
            for (uint32_t i = 0; i < wr->sges; i++) wr->len += wr->sge[i].length;
        }
        at += bytes;
        *slot(qp, qp->posted++) = wr;
        if (qp->state == FV_QPS_ERR) {
            wr->progress = DONE, wr->status = FV_WC_WR_FLUSH_ERR;
            qp->next = qp->settled = qp->posted;
        }
    }
    if (qp->state == FV_QPS_ERR) report(qp);
    give_turn(qp);
    return 0;
}

/* ---------------------------------------------------------------- life, states */

static int create_qp(struct call *call) {
    struct context *context = call->context;
    struct nic *nic = context->nic;
    uint64_t *arg = call->request.arg;
    struct pd *pd = object_of(context, PD, arg[0]);
    struct cq *send_cq = object_of(context, CQ, arg[1]), *recv_cq = object_of(context, CQ, arg[2]);
    struct fv_qp_cap cap;
    if (!pd || !send_cq || !recv_cq || call->len != sizeof cap) return EINVAL;
    memcpy(&cap, call->body, sizeof cap);
    if (arg[3] != FV_QPT_RC) return EOPNOTSUPP;
    if (!cap.max_send_wr || cap.max_send_wr > nic->limits.max_qp_wr || cap.max_recv_wr > nic->limits.max_qp_wr
        || cap.max_send_sge > nic->limits.max_sge || cap.max_recv_sge > nic->limits.max_sge
        || cap.max_inline_data > nic->limits.max_inline || cap.max_inline_data > INLINE_MOST)
        return EINVAL;
    if (nic->live[QP] >= nic->limits.max_qp) return ENOMEM;
    uint32_t qpn = nic->fresh;
    if (settings.reuse)
        for (qpn = FIRST_QPN; find_qp(nic, qpn);) qpn++;
    if (qpn >= nic->fresh) nic->fresh = qpn + 1;
    if (qpn > 0xfffffe) return ENOMEM;
    struct qp *qp = add_object(context, QP, sizeof *qp);
    nic->qps = widen(nic->qps, &nic->qps_room, qpn + 1, sizeof *nic->qps);
    nic->qps[qpn] = qp;
    qp->nic = nic, qp->pd = pd, qp->send_cq = send_cq, qp->recv_cq = recv_cq, qp->qpn = qpn, qp->doom = -1;
    qp->sig_all = (int)arg[4], qp->cookie = arg[5], qp->cap = cap;
    qp->ring = allocate(cap.max_send_wr * sizeof *qp->ring);
    pd->users++, send_cq->users++, recv_cq->users++;
    call->reply.value[0] = qp->base.handle, call->reply.value[1] = qpn;
    snprintf(call->note, sizeof call->note, "qp=0x%x cq=%u", qpn, send_cq->base.handle);
    return 0;
}

static void forget_requests(struct qp *qp) {
    for (uint64_t index = qp->reported; index < qp->posted; index++) {
        spill(*slot(qp, index));
        free_wr(*slot(qp, index));
        *slot(qp, index) = NULL;
    }
    qp->posted = qp->next = qp->settled = qp->reported = qp->freed = 0;
    qp->blocked = NULL, qp->reads = 0, qp->doom = -1;
    take_turn(qp);
}

void destroy_qp(struct qp *qp, struct reply *reply) {
    if (qp->state == FV_QPS_RTS && qp->doom < 0) send_late(qp, qp->reported);
    forget_requests(qp);
    land_qp(qp);
    if (!settings.stale || chance(1, 2)) purge(qp->send_cq, qp);
    if (qp->async_sent)
        qp->async_sent -= drain_events(qp->base.context->async_write, qp->base.context->async_read, 16, qp->cookie);
    reply->value[0] = qp->async_sent;
    qp->nic->qps[qp->qpn] = NULL;
    qp->pd->users--, qp->send_cq->users--, qp->recv_cq->users--;
    free(qp->ring);
}

/* The kernel's table: what a change of state needs, and what else it may bring. */
static int mask_fits(int from, int to, uint32_t mask) {
    static const struct {
        int from, to;
        uint32_t needs, may;
    } table[] = {
        {FV_QPS_RESET, FV_QPS_INIT, FV_QP_PKEY_INDEX | FV_QP_PORT | FV_QP_ACCESS_FLAGS, 0},
        {FV_QPS_INIT, FV_QPS_INIT, 0, FV_QP_PKEY_INDEX | FV_QP_PORT | FV_QP_ACCESS_FLAGS},
        {FV_QPS_INIT, FV_QPS_RTR, FV_QP_AV | FV_QP_PATH_MTU | FV_QP_DEST_QPN | FV_QP_RQ_PSN | FV_QP_MAX_DEST_RD_ATOMIC
             | FV_QP_MIN_RNR_TIMER, FV_QP_ALT_PATH | FV_QP_ACCESS_FLAGS | FV_QP_PKEY_INDEX},
        {FV_QPS_RTR, FV_QPS_RTS, FV_QP_TIMEOUT | FV_QP_RETRY_CNT | FV_QP_RNR_RETRY | FV_QP_SQ_PSN
             | FV_QP_MAX_QP_RD_ATOMIC, FV_QP_CUR_STATE | FV_QP_ALT_PATH | FV_QP_ACCESS_FLAGS | FV_QP_MIN_RNR_TIMER
             | FV_QP_PATH_MIG_STATE},
        {FV_QPS_RTS, FV_QPS_RTS, 0, FV_QP_CUR_STATE | FV_QP_ALT_PATH | FV_QP_ACCESS_FLAGS | FV_QP_MIN_RNR_TIMER
             | FV_QP_PATH_MIG_STATE},
    };
    mask &= ~(uint32_t)FV_QP_STATE;
    if (to == FV_QPS_ERR || to == FV_QPS_RESET) return !mask;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].from == from && table[i].to == to)
            return (mask & table[i].needs) == table[i].needs && !(mask & ~(table[i].needs | table[i].may));
    return 0;
}

static bool zero(const union fv_gid *gid) { return !gid->words[0] && !gid->words[1]; }

static int address_fits(struct qp *qp, const struct fv_ah_attr *ah) {
    if (ah->port_num != PORT) return 0;
    if (settings.link_layer == FV_LINK_LAYER_INFINIBAND && !ah->is_global) return ah->dlid > 0 && ah->dlid <= nic_count;
    if (!ah->is_global || ah->grh.sgid_index >= GIDS || zero(&qp->nic->gids[ah->grh.sgid_index])) return 0;
    for (uint32_t i = 0; i < nic_count; i++)
        for (int j = 0; j < GIDS; j++)
            if (!zero(&nics[i].gids[j]) && !memcmp(&nics[i].gids[j], &ah->grh.dgid, sizeof ah->grh.dgid)) return 1;
    return 0;
}

static int modify_qp(struct call *call, struct qp *qp) {
    static const char *const names[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};
    uint32_t mask = (uint32_t)call->request.arg[1];
    struct fv_qp_attr attr;
    if (call->len != sizeof attr) return EINVAL;
    memcpy(&attr, call->body, sizeof attr);
    int to = mask & FV_QP_STATE ? attr.qp_state : qp->state;
    snprintf(call->note, sizeof call->note, "qp=0x%x %s", qp->qpn, to >= 0 && to <= FV_QPS_ERR ? names[to] : "?");
    if (to == FV_QPS_RTR && (mask & FV_QP_DEST_QPN)) {
        size_t used = strlen(call->note);
        snprintf(call->note + used, sizeof call->note - used, " dest=0x%x psn=%u", attr.dest_qp_num, attr.rq_psn);
    }
    if (!mask_fits(qp->state, to, mask)) return EINVAL;
    if ((mask & FV_QP_PORT) && attr.port_num != PORT) return EINVAL;
    if ((mask & FV_QP_PKEY_INDEX) && attr.pkey_index) return EINVAL;
    if ((mask & FV_QP_AV) && !address_fits(qp, &attr.ah_attr)) return EINVAL;
    if ((mask & FV_QP_PATH_MTU) && (attr.path_mtu < FV_MTU_256 || attr.path_mtu > (int)qp->nic->limits.mtu))
        return EINVAL;
    if ((mask & FV_QP_MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > qp->nic->limits.max_rd_atomic) return EINVAL;
    if ((mask & FV_QP_MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > qp->nic->limits.max_rd_atomic) return EINVAL;
    if ((mask & FV_QP_TIMEOUT) && (attr.timeout > 31 || attr.retry_cnt > 7 || attr.rnr_retry > 7)) return EINVAL;
    if (mask & FV_QP_ACCESS_FLAGS) qp->attr.qp_access_flags = attr.qp_access_flags;
    if (mask & FV_QP_AV) qp->attr.ah_attr = attr.ah_attr;
    if (mask & FV_QP_PATH_MTU) qp->attr.path_mtu = attr.path_mtu;
    if (mask & FV_QP_DEST_QPN) qp->attr.dest_qp_num = attr.dest_qp_num & PSN_MASK;
    if (mask & FV_QP_RQ_PSN) qp->attr.rq_psn = qp->rq_psn = attr.rq_psn & PSN_MASK;
    if (mask & FV_QP_SQ_PSN) qp->attr.sq_psn = qp->sq_psn = attr.sq_psn & PSN_MASK;
    if (mask & FV_QP_MAX_DEST_RD_ATOMIC) qp->attr.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    if (mask & FV_QP_MAX_QP_RD_ATOMIC) qp->attr.max_rd_atomic = attr.max_rd_atomic;
    if (mask & FV_QP_MIN_RNR_TIMER) qp->attr.min_rnr_timer = attr.min_rnr_timer;
    if (mask & FV_QP_PORT) qp->attr.port_num = attr.port_num;
    if (mask & FV_QP_TIMEOUT) qp->attr.timeout = attr.timeout;
    if (mask & FV_QP_RETRY_CNT) qp->attr.retry_cnt = attr.retry_cnt;
    if (mask & FV_QP_RNR_RETRY) qp->attr.rnr_retry = attr.rnr_retry;
    if (to == FV_QPS_ERR) {
        fail_qp(qp, qp->reported);
    } else if (to == FV_QPS_RESET) {
        if (qp->state == FV_QPS_RTS) send_late(qp, qp->reported);
        forget_requests(qp);
        purge(qp->send_cq, qp);
        qp->state = to;
    } else {
        qp->state = to;
    }
    return 0;
}

int qp_call(struct call *call) {
    if (call->request.verb == CREATE_QP) return create_qp(call);
    struct qp *qp = object_of(call->context, QP, call->request.arg[0]);
    if (!qp) return EINVAL;
    snprintf(call->note, sizeof call->note, "qp=0x%x", qp->qpn);
    switch (call->request.verb) {
    case MODIFY_QP: return modify_qp(call, qp);
    case POST_SEND: return post_send(call, qp);
    case DESTROY_QP: return destroy_object(&qp->base, &call->reply);
    case QUERY_QP: {
        struct fv_qp_attr attr = qp->attr;
        attr.qp_state = attr.cur_qp_state = qp->doom >= 0 ? FV_QPS_ERR : qp->state;
        attr.cap = qp->cap;
        attr.rq_psn = qp->rq_psn, attr.sq_psn = qp->sq_psn;
        memcpy(call->out, &attr, call->out_len = sizeof attr);
        call->reply.value[0] = (uint64_t)qp->sig_all;
        return 0;
    }
    default: return ENOSYS;
    }
}
