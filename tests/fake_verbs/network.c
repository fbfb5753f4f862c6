/* Messages between queue pairs, and the memory that they touch. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "fabric.h"

enum { LARGEST = 1 << 30, PENDING_MOST = 64 << 20, COPIES_MOST = 256 << 20 };
enum verdict { PASSED, DROPPED, NO_ACCESS, NO_REQUEST };

/* What a receiver sees of a request. */
struct message {
    struct nic *from, *to;
    union fv_gid source, destination;
    int gid_type, mtu;
    bool global, again;
    uint32_t source_qpn, qpn, psn, packets, opcode, rkey;
    uint64_t addr, len;
    int reads;
};

/* Bytes that a NIC has acknowledged and that are not in memory yet. */
struct landing {
    struct timer timer;
    struct landing *next, *before;
    struct nic *nic;
    struct context *context;
    struct qp *qp;
    struct mr *mr;
    uint64_t addr;
    size_t at, len;
    struct payload *data;
};

/* A message of a QP that has failed. */
struct late {
    struct timer timer;
    struct message message;
    struct payload *data;
};

static size_t pending_bytes, copied_bytes, late_count, landing_count;

/* ------------------------------------------------------------------ payloads */

static struct payload *new_payload(size_t len) {
    struct payload *payload = malloc(sizeof *payload + len);
    if (!payload) return allocate(SIZE_MAX / 2); /* which ends the fabric */
    payload->users = 1, payload->len = len;
    copied_bytes += len;
    return payload;
}

void drop_payload(struct payload *payload) {
    if (!payload || --payload->users) return;
    if (copied_bytes >= payload->len) copied_bytes -= payload->len;
    free(payload);
}

/* -------------------------------------------------------------------- memory */

/* Moves bytes between here and a process, and tells whether it could. Memory that is gone swallows what is written and
 * reads as zeros; that its process lives on makes it a stray. */
static bool move(struct context *context, bool writes, struct iovec *here, struct iovec *there, size_t parts) {
    size_t bytes = 0;
    for (size_t i = 0; i < parts; i++) bytes += here[i].iov_len;
    if (!bytes) return true;
    ssize_t done = context->dead ? -1
                   : writes      ? process_vm_writev(context->pid, here, parts, there, parts, 0)
                                 : process_vm_readv(context->pid, here, parts, there, parts, 0);
    if (done == (ssize_t)bytes) return true;
    if (!context->dead && !(done < 0 && errno == ESRCH)) {
        strays++;
        logged("%s stray %s of=%d addr=%p len=%zu", context->nic->name, writes ? "write" : "read", (int)context->pid,
               there[0].iov_base, bytes);
        if (done < 0 && errno == EPERM) fprintf(stderr, "fabric: may not touch the memory of %d\n", (int)context->pid);
    }
    size_t whole = done < 0 ? 0 : (size_t)done;
    for (size_t i = 0; i < parts && !writes; i++) {
        size_t have = whole < here[i].iov_len ? whole : here[i].iov_len;
        memset((char *)here[i].iov_base + have, 0, here[i].iov_len - have);
        whole -= have;
    }
    return false;
}

/* ------------------------------------------------------------------ landings */

static void remove_landing(struct landing *landing) {
    struct nic *nic = landing->nic;
    *(landing->before ? &landing->before->next : &nic->first) = landing->next;
    *(landing->next ? &landing->next->before : &nic->last) = landing->before;
    clear_timer(&landing->timer);
    pending_bytes -= landing->len, landing_count--;
    drop_payload(landing->data);
    free(landing);
}

static void land(struct landing *landing) {
    struct iovec here = {landing->data->bytes + landing->at, landing->len};
    struct iovec there = {(void *)landing->addr, landing->len};
    move(landing->context, true, &here, &there, 1);
    remove_landing(landing);
}

static void landing_due(struct timer *timer) { land(OF(struct landing, timer, timer)); }

#define EACH_LANDING(nic, at) \
    for (struct landing *at = (nic)->first, *at##_next; at && (at##_next = at->next, 1); at = at##_next)

void land_all(struct nic *nic) { EACH_LANDING(nic, at) land(at); }

void land_qp(struct qp *qp) { EACH_LANDING(qp->nic, at) if (at->qp == qp) land(at); }

void land_mr(struct mr *mr) { EACH_LANDING(mr->base.context->nic, at) if (at->mr == mr) land(at); }

void drop_landings(struct context *context) {
    EACH_LANDING(context->nic, at) if (at->context == context) remove_landing(at);
}

/* Puts into memory what is under way to a place: a NIC's writes to one place keep their order, and none of its reads
 * passes them. */
static void land_there(struct nic *nic, struct context *context, uint64_t addr, uint64_t len) {
    EACH_LANDING(nic, at)
        if (at->context->pid == context->pid && at->addr < addr + len && addr < at->addr + at->len) land(at);
}

static void land_parts(struct qp *qp, struct iovec *parts, size_t count) {
    for (size_t i = 0; i < count && qp->nic->first; i++)
        land_there(qp->nic, qp->base.context, (uint64_t)parts[i].iov_base, parts[i].iov_len);
}

/* ------------------------------------------------------------------ requests */

/* The local memory of a request, cut as its SGEs are; a completion status. */
static int local_parts(struct wr *wr, bool writable, struct iovec *parts) {
    struct qp *qp = wr->qp;
    for (uint32_t i = 0; i < wr->sges; i++) {
        struct fv_sge *sge = &wr->sge[i];
        struct mr *mr = find_mr(qp->nic, sge->lkey);
        parts[i] = (struct iovec){NULL, 0};
        if (!sge->length) continue;
        if (!mr || mr->pd != qp->pd || sge->addr < mr->iova || sge->addr - mr->iova > mr->len
            || sge->length > mr->len - (sge->addr - mr->iova) || (writable && !(mr->access & FV_ACCESS_LOCAL_WRITE)))
            return FV_WC_LOC_PROT_ERR;
        parts[i] = (struct iovec){(void *)(mr->addr + (sge->addr - mr->iova)), sge->length};
    }
    return 0;
}

/* Reads what a WRITE sends: as late as it can be, and again when it is sent again. */
static int gather(struct wr *wr) {
    struct iovec here[SGE_MOST], there[SGE_MOST];
    if (wr->data && wr->qp->base.context->dead) return 0; /* nothing better will come */
    if (wr->inline_data) {
        if (!wr->data) wr->data = wr->inline_data, wr->data->users++;
        return 0;
    }
    int status = local_parts(wr, false, there);
    if (status) return status;
    land_parts(wr->qp, there, wr->sges);
    drop_payload(wr->data);
    wr->data = new_payload(wr->len);
    size_t at = 0;
    for (uint32_t i = 0; i < wr->sges; at += there[i++].iov_len)
        here[i] = (struct iovec){wr->data->bytes + at, there[i].iov_len};
    if (move(wr->qp->base.context, false, here, there, wr->sges)) return 0;
    drop_payload(wr->data); /* a NIC would have had the bytes; no others are sent for them */
    wr->data = NULL;
    return FV_WC_LOC_PROT_ERR;
}

void snapshot(struct wr *wr) {
    if (!settings.late || wr->data || wr->opcode != FV_WR_RDMA_WRITE || wr->progress != WAITING) return;
    if (wr->len <= LARGEST && copied_bytes + wr->len < COPIES_MOST) gather(wr);
}

/* Cuts a message into chunks, at multiples of the settings' size in remote memory, in random order. */
static int cut(uint64_t addr, uint64_t len, struct chunk *chunks) {
    uint32_t edges[RANDOM_CHUNKS + 1] = {0};
    int count = 1, wanted = settings.order ? 1 + (int)below(RANDOM_CHUNKS) : 1;
    for (int i = 1; i < wanted; i++) {
        uint64_t edge = addr + below(len);
        edge -= edge % settings.tear;
        if (edge <= addr) continue;
        uint32_t at = (uint32_t)(edge - addr);
        int place = count;
        while (place > 1 && edges[place - 1] > at) place--;
        if (edges[place - 1] == at) continue;
        memmove(&edges[place + 1], &edges[place], (size_t)(count - place) * sizeof *edges);
        edges[place] = at, count++;
    }
    edges[count] = (uint32_t)len;
    for (int i = 0; i < count; i++) {
        int other = (int)below((uint64_t)i + 1);
        chunks[i] = chunks[other];
        chunks[other] = (struct chunk){edges[i], edges[i + 1] - edges[i]};
    }
    return count;
}

/* Puts the bytes of an acknowledged WRITE into memory: some now, some later. */
static void put_down(struct nic *nic, struct qp *qp, struct mr *mr, struct message *message, struct payload *data) {
    struct chunk chunks[RANDOM_CHUNKS];
    struct iovec here[RANDOM_CHUNKS], there[RANDOM_CHUNKS];
    struct context *context = mr->base.context;
    uint64_t addr = mr->addr + (message->addr - mr->iova), len = message->len;
    size_t parts = 0;
    land_there(nic, context, addr, len);
    int count = cut(addr, len, chunks);
    bool later = settings.visible_most && (settings.visible_all || chance(3, 4));
    nic->landed += len;
    for (int i = 0; i < count; i++) {
        if (!later || (!settings.visible_all && chance(1, 2))) {
            here[parts] = (struct iovec){data->bytes + chunks[i].at, chunks[i].len};
            there[parts++] = (struct iovec){(void *)(addr + chunks[i].at), chunks[i].len};
            continue;
        }
        struct landing *landing = allocate(sizeof *landing);
        *landing = (struct landing){.nic = nic, .context = context, .qp = qp, .mr = mr, .addr = addr + chunks[i].at,
                                    .at = chunks[i].at, .len = chunks[i].len, .data = data, .before = nic->last};
        data->users++;
        *(nic->last ? &nic->last->next : &nic->first) = landing;
        nic->last = landing;
        pending_bytes += landing->len, landing_count++;
        int64_t delay = settings.visible_all ? settings.visible_most : (int64_t)below((uint64_t)settings.visible_most);
        set_timer(&landing->timer, now() + delay, landing_due);
    }
    move(context, true, here, there, parts);
    while (pending_bytes > PENDING_MOST && nic->first) land(nic->first);
}

/* ------------------------------------------------------------------ receivers */

static bool same(const union fv_gid *a, const union fv_gid *b) { return !memcmp(a, b, sizeof *a); }

/* The NIC at the other end of a QP's path, NULL: there is none. */
struct nic *peer_of(struct qp *qp) {
    struct fv_ah_attr *ah = &qp->attr.ah_attr;
    for (uint32_t i = 0; i < nic_count; i++) {
        if (!ah->is_global && nics[i].lid == ah->dlid) return &nics[i];
        for (int j = 0; j < GIDS && ah->is_global; j++)
            if (same(&nics[i].gids[j], &ah->grh.dgid)) return &nics[i];
    }
    return NULL;
}

static uint64_t mtu_bytes(int mtu) { return 128ULL << mtu; }

uint32_t packets_of(struct qp *qp, uint64_t len) {
    uint64_t mtu = mtu_bytes(qp->attr.path_mtu);
    return len ? (uint32_t)((len + mtu - 1) / mtu) : 1;
}

static struct message message_of(struct wr *wr) {
    struct qp *qp = wr->qp;
    struct fv_ah_attr *ah = &qp->attr.ah_attr;
    if (!wr->numbered) {
        wr->numbered = true, wr->psn = qp->sq_psn, wr->packets = packets_of(qp, wr->len);
        qp->sq_psn = (qp->sq_psn + wr->packets) & PSN_MASK;
    }
    struct message message = {.from = qp->nic, .to = peer_of(qp), .destination = ah->grh.dgid, .global = ah->is_global,
                              .mtu = qp->attr.path_mtu, .source_qpn = qp->qpn, .qpn = qp->attr.dest_qp_num,
                              .psn = wr->psn, .packets = wr->packets, .opcode = wr->opcode, .rkey = wr->rkey,
                              .addr = wr->remote_addr, .len = wr->len, .reads = qp->reads, .again = wr->admitted};
    if (ah->is_global) {
        message.source = qp->nic->gids[ah->grh.sgid_index];
        message.gid_type = qp->nic->gid_types[ah->grh.sgid_index];
    }
    return message;
}

static bool knows(struct qp *qp, struct message *message) {
    struct fv_ah_attr *ah = &qp->attr.ah_attr;
    if (qp->attr.dest_qp_num != message->source_qpn || ah->is_global != message->global) return false;
    if (!message->global) return ah->dlid == message->from->lid;
    return same(&ah->grh.dgid, &message->source) && same(&qp->nic->gids[ah->grh.sgid_index], &message->destination)
           && qp->nic->gid_types[ah->grh.sgid_index] == message->gid_type;
}

static bool receives(struct qp *qp) {
    return qp && qp->doom < 0 && (qp->state == FV_QPS_RTR || qp->state == FV_QPS_RTS);
}

/* The region that a message may touch; NULL: none. */
static struct mr *target(struct qp *qp, uint32_t rkey, uint64_t addr, uint64_t len, uint32_t access) {
    struct mr *mr = find_mr(qp->nic, rkey);
    return mr && mr->pd == qp->pd && (mr->access & access) && addr >= mr->iova && addr - mr->iova <= mr->len
                   && len <= mr->len - (addr - mr->iova)
               ? mr
               : NULL;
}

/* Whether a receiver takes a message, as hardware decides it. Of no bytes no key is looked at. */
static enum verdict admit(struct message *message, struct qp **qp, struct mr **mr) {
    *mr = NULL;
    if (!message->to || !message->to->up || !message->from->up) return DROPPED;
    *qp = find_qp(message->to, message->qpn);
    if (!receives(*qp) || !knows(*qp, message)) return DROPPED;
    uint32_t behind = ((*qp)->rq_psn - message->psn) & PSN_MASK;
    if (message->again ? !behind || behind > PSN_MASK / 2 : behind) return DROPPED;
    uint32_t access = message->opcode == FV_WR_RDMA_READ ? FV_ACCESS_REMOTE_READ : FV_ACCESS_REMOTE_WRITE;
    int mtu = (*qp)->attr.path_mtu < message->mtu ? (*qp)->attr.path_mtu : message->mtu;
    if (((*qp)->attr.path_mtu != message->mtu && message->len > mtu_bytes(mtu))
        || !((*qp)->attr.qp_access_flags & access)
        || (message->opcode == FV_WR_RDMA_READ && message->reads > (*qp)->attr.max_dest_rd_atomic)) {
        doom_qp(*qp, FV_EVENT_QP_REQ_ERR);
        return NO_REQUEST;
    }
    if (message->len && !(*mr = target(*qp, message->rkey, message->addr, message->len, access))) {
        doom_qp(*qp, FV_EVENT_QP_ACCESS_ERR);
        return NO_ACCESS;
    }
    if (!message->again) (*qp)->rq_psn = ((*qp)->rq_psn + message->packets) & PSN_MASK;
    return PASSED;
}

/* ------------------------------------------------------------------- senders */

/* When bytes that leave now are there: each end carries one message at a time. */
static int64_t crossing(struct nic *from, struct nic *to, uint64_t len) {
    int64_t begin = now();
    if (from->rate || to->rate) {
        uint64_t slower = !from->rate ? to->rate : !to->rate || from->rate < to->rate ? from->rate : to->rate;
        if (from->tx_free > begin) begin = from->tx_free;
        if (to->rx_free > begin) begin = to->rx_free;
        int64_t takes = (int64_t)((double)len * 1e9 / (double)slower);
        from->tx_free = begin + (from->rate ? (int64_t)((double)len * 1e9 / (double)from->rate) : 0);
        to->rx_free = begin + (to->rate ? (int64_t)((double)len * 1e9 / (double)to->rate) : 0);
        begin += takes;
    }
    return begin + from->latency + to->latency;
}

static void arrive(struct timer *timer);

static void again_later(struct wr *wr) {
    struct qp *qp = wr->qp;
    if (!wr->retry_until) wr->retry_until = now() + settings.retry;
    if (!qp->base.context->dead) clear_wr(wr);
    if (now() >= wr->retry_until) {
        finish(wr, FV_WC_RETRY_EXC_ERR);
        return;
    }
    if (qp->blocked != wr) block(wr);
    set_timer(&wr->timer, now() + settings.retry / 4, arrive);
}

/* The network took a request that it had lost before, or takes it for the first time. */
static void went_through(struct wr *wr) {
    wr->admitted = true, wr->retry_until = 0;
    if (wr->qp->blocked == wr) wr->qp->blocked = NULL;
    wake_qp(wr->qp);
}

static void acknowledged(struct timer *timer) { finish(OF(struct wr, timer, timer), 0); }

static void deliver(struct timer *timer) {
    struct wr *wr = OF(struct wr, timer, timer);
    struct iovec here[SGE_MOST], there[SGE_MOST];
    int status = local_parts(wr, true, there);
    size_t at = 0;
    if (!status) {
        for (uint32_t i = 0; i < wr->sges; at += there[i++].iov_len)
            here[i] = (struct iovec){wr->data->bytes + at, there[i].iov_len};
        land_parts(wr->qp, there, wr->sges);
        uint32_t turn = (uint32_t)below(wr->sges); /* the parts in another order */
        move(wr->qp->base.context, true, here + turn, there + turn, wr->sges - turn);
        move(wr->qp->base.context, true, here, there, turn);
        wr->qp->nic->read += wr->len;
    }
    finish(wr, status);
}

/* A READ that is given up may have brought a part of its bytes before. */
void spill(struct wr *wr) {
    struct iovec here[SGE_MOST], there[SGE_MOST];
    if (wr->opcode != FV_WR_RDMA_READ || wr->progress != FLYING || !wr->data || wr->chunks_left) return;
    if (!settings.order || local_parts(wr, true, there)) return;
    land_parts(wr->qp, there, wr->sges);
    size_t at = 0;
    for (uint32_t i = 0; i < wr->sges; i++) {
        here[i].iov_base = wr->data->bytes + at;
        at += there[i].iov_len;
        here[i].iov_len = there[i].iov_len = (size_t)below(there[i].iov_len + 1);
    }
    move(wr->qp->base.context, true, here, there, wr->sges);
}

/* Takes the bytes of a READ out of the responder's memory, in one go or in two. */
static void take(struct timer *timer) {
    struct wr *wr = OF(struct wr, timer, timer);
    struct qp *qp = wr->qp, *remote = (struct qp *)object_at(wr->remote_handle);
    struct iovec here[RANDOM_CHUNKS], there[RANDOM_CHUNKS];
    if (!remote || remote->base.serial != wr->remote_serial || !receives(remote) || !remote->nic->up || !qp->nic->up) {
        again_later(wr);
        return;
    }
    struct mr *mr = wr->len ? target(remote, wr->rkey, wr->remote_addr, wr->len, FV_ACCESS_REMOTE_READ) : NULL;
    if (wr->len && !mr) {
        doom_qp(remote, FV_EVENT_QP_ACCESS_ERR);
        finish(wr, FV_WC_REM_ACCESS_ERR);
        return;
    }
    if (!wr->data) {
        wr->data = new_payload(wr->len);
        wr->chunks_left = wr->len ? cut(wr->remote_addr, wr->len, wr->chunks) : 0;
    }
    int64_t time = now();
    int keep = time < wr->ends ? wr->chunks_left / 2 : 0;
    size_t parts = 0;
    while (wr->chunks_left > keep) {
        struct chunk *chunk = &wr->chunks[--wr->chunks_left];
        here[parts] = (struct iovec){wr->data->bytes + chunk->at, chunk->len};
        there[parts++] = (struct iovec){(void *)(mr->addr + (wr->remote_addr - mr->iova) + chunk->at), chunk->len};
        remote->nic->served += chunk->len;
    }
    if (parts) move(remote->base.context, false, here, there, parts);
    if (wr->chunks_left) {
        set_timer(&wr->timer, wr->ends, take);
        return;
    }
    int64_t at = crossing(remote->nic, qp->nic, wr->len);
    if (at <= time) deliver(timer);
    else set_timer(timer, at, deliver);
}

/* A READ makes what came to its NIC before visible, and takes its own bytes then or somewhat later. */
static void begin_read(struct wr *wr, struct qp *remote) {
    struct qp *qp = wr->qp;
    int64_t time = now(), first = time > qp->last_take ? time : qp->last_take;
    land_all(remote->nic);
    if (settings.reorder && chance(1, 4)) first += (int64_t)below((uint64_t)settings.read_most);
    wr->ends = first;
    if (settings.reorder && wr->len > settings.tear && chance(1, 4))
        wr->ends += (int64_t)below((uint64_t)settings.read_most / 2);
    qp->last_take = wr->ends;
    wr->remote_handle = remote->base.handle, wr->remote_serial = remote->base.serial;
    drop_payload(wr->data);
    wr->data = NULL;
    if (first <= time) take(&wr->timer);
    else set_timer(&wr->timer, first, take);
}

static void arrive(struct timer *timer) {
    struct wr *wr = OF(struct wr, timer, timer);
    struct qp *remote;
    struct mr *mr;
    bool writes = wr->opcode == FV_WR_RDMA_WRITE;
    int status = writes && !wr->data ? gather(wr) : 0;
    if (status) {
        finish(wr, status);
        return;
    }
    struct message message = message_of(wr);
    enum verdict verdict = admit(&message, &remote, &mr);
    if (verdict == DROPPED) {
        again_later(wr);
    } else if (verdict != PASSED) {
        finish(wr, verdict == NO_ACCESS ? FV_WC_REM_ACCESS_ERR : FV_WC_REM_INV_REQ_ERR);
    } else if (!writes) {
        went_through(wr);
        begin_read(wr, remote);
    } else {
        went_through(wr);
        wr->qp->nic->written += wr->len;
        if (wr->len) put_down(remote->nic, remote, mr, &message, wr->data);
        int64_t way = message.from->latency + message.to->latency;
        if (way) set_timer(timer, now() + way, acknowledged);
        else finish(wr, 0);
    }
}

void start(struct wr *wr) {
    struct qp *qp = wr->qp;
    struct iovec unused[SGE_MOST];
    bool writes = wr->opcode == FV_WR_RDMA_WRITE;
    wr->progress = FLYING;
    if (!writes) qp->reads++;
    int status = wr->len > LARGEST                        ? FV_WC_LOC_LEN_ERR
                 : !writes && !qp->attr.max_rd_atomic     ? FV_WC_LOC_QP_OP_ERR
                 : wr->inline_data                        ? 0
                                                          : local_parts(wr, !writes, unused);
    if (status) {
        finish(wr, status);
        return;
    }
    struct message message = message_of(wr);
    int64_t at = message.to ? crossing(message.from, message.to, writes ? wr->len : 0) : 0;
    if (!qp->base.context->dead) drop_payload(wr->data), wr->data = NULL;
    if (at <= now()) {
        arrive(&wr->timer);
        return;
    }
    if (writes) gather(wr); /* it is on its way from now on */
    set_timer(&wr->timer, at, arrive);
}

/* ------------------------------------------------------------- what is late */

static void late_arrives(struct timer *timer) {
    struct late *late = OF(struct late, timer, timer);
    struct message *message = &late->message;
    struct qp *remote;
    struct mr *mr;
    enum verdict verdict = admit(message, &remote, &mr);
    if (verdict == PASSED && message->opcode == FV_WR_RDMA_READ) land_all(message->to);
    if (verdict == PASSED && late->data && message->len) put_down(remote->nic, remote, mr, message, late->data);
    logged("%s late from=0x%x to=0x%x len=%lu %s", message->from->name, message->source_qpn, message->qpn, message->len,
           verdict == PASSED ? "landed" : "dropped");
    drop_payload(late->data);
    free(late);
    late_count--;
}

/* What a QP that leaves RTS had sent, or may have: the first of its requests, perhaps a part of the last one. They
 * arrive in order, each when it will, and nothing of this QP is asked any more. */
void send_late(struct qp *qp, uint64_t from) {
    struct nic *peer = peer_of(qp);
    int64_t end = now() + settings.late_most;
    int64_t at = settings.late_all ? end : now() + (int64_t)below((uint64_t)settings.late_most);
    bool reads = false;
    if (!settings.late || !peer || !qp->nic->up || qp->blocked) return;
    for (uint64_t index = qp->reported; index < qp->posted; index++) {
        struct wr *wr = qp->ring[index % qp->cap.max_send_wr];
        if (wr->progress == DONE && !wr->status) continue;
        if (wr->progress == DONE || index < from) return;
        bool writes = wr->opcode == FV_WR_RDMA_WRITE;
        if (wr->admitted) {
            reads |= !writes;
            continue;
        }
        if (((wr->flags & FV_SEND_FENCE) && reads) || copied_bytes > COPIES_MOST) return;
        if (!settings.late_all && chance(1, 8)) return;
        if (wr->len > LARGEST || (writes && (wr->progress == WAITING || !wr->data) && gather(wr))) return;
        reads |= !writes;
        struct late *late = allocate(sizeof *late);
        late->message = message_of(wr);
        if (writes) late->data = wr->data, late->data->users++;
        bool part = writes && late->message.packets > 1 && !settings.late_all && chance(1, 4);
        if (part) {
            late->message.packets = 1 + (uint32_t)below(late->message.packets - 1);
            late->message.len = late->message.packets * mtu_bytes(late->message.mtu);
        }
        late_count++;
        set_timer(&late->timer, at, late_arrives);
        at += (int64_t)below((uint64_t)settings.late_most / 8 + 1);
        if (at > end) at = end;
        if (part) return;
    }
}

size_t late_messages(void) { return late_count; }

/* What is under way; held requests are not. */
size_t in_flight(void) {
    size_t count = late_count + landing_count + turns_left();
    for (uint32_t handle = 1; handle < objects_end(); handle++) {
        struct qp *qp = (struct qp *)object_at(handle);
        if (!qp || qp->base.kind != QP) continue;
        for (uint64_t index = qp->settled; index < qp->next; index++)
            count += qp->ring[index % qp->cap.max_send_wr]->progress == FLYING;
    }
    return count;
}
