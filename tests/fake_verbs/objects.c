/* Protection domains, memory regions, completion channels and completion queues. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric.h"

static struct object **objects; /* by handle, from 1 */
static size_t objects_room = 0;
static uint32_t end = 1;
static uint64_t serials;

void *allocate(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (!memory) {
        fprintf(stderr, "fabric: out of memory\n");
        exit(1);
    }
    return memory;
}

/* An array with room for `want`, new places zero. */
void *widen(void *array, size_t *room, size_t want, size_t size) {
    if (want <= *room) return array;
    size_t wide = *room ? *room : 64;
    while (wide < want) wide *= 2;
    char *memory = allocate(wide * size);
    if (array) memcpy(memory, array, *room * size);
    free(array);
    *room = wide;
    return memory;
}

void *add_object(struct context *context, enum kind kind, size_t size) {
    struct object *object = allocate(size);
    uint32_t handle = 1;
    while (handle < end && objects[handle]) handle++;
    objects = widen(objects, &objects_room, handle + 1, sizeof *objects);
    if (handle == end) end++;
    *object = (struct object){kind, handle, ++serials, context};
    objects[handle] = object;
    context->nic->live[kind]++;
    return object;
}

struct object *object_at(uint32_t handle) { return handle < end && handle ? objects[handle] : NULL; }

uint32_t objects_end(void) { return end; }

void *object_of(struct context *context, enum kind kind, uint64_t handle) {
    struct object *object = handle < end ? object_at((uint32_t)handle) : NULL;
    return object && object->kind == kind && object->context == context ? object : NULL;
}

void remove_object(struct object *object) {
    object->context->nic->live[object->kind]--;
    objects[object->handle] = NULL;
    free(object);
}

int pd_call(struct call *call) {
    struct context *context = call->context;
    if (call->request.verb == ALLOC_PD) {
        struct pd *pd = add_object(context, PD, sizeof *pd);
        call->reply.value[0] = pd->base.handle;
        snprintf(call->note, sizeof call->note, "pd=%u", pd->base.handle);
        return 0;
    }
    struct pd *pd = object_of(context, PD, call->request.arg[0]);
    snprintf(call->note, sizeof call->note, "pd=%u", (unsigned)call->request.arg[0]);
    if (!pd) return EINVAL;
    return destroy_object(&pd->base, &call->reply);
}

/* ------------------------------------------------------------------- regions */

struct mr *find_mr(struct nic *nic, uint32_t key) {
    struct mr *mr = key >> 8 < nic->mrs_room ? nic->mrs[key >> 8] : NULL;
    return mr && mr->key == key ? mr : NULL;
}

static uint64_t pinned_by(pid_t pid) {
    uint64_t bytes = 0;
    for (struct context *context = contexts; context; context = context->next)
        if (context->pid == pid) bytes += context->pinned;
    return bytes;
}

static int reg_mr(struct call *call) {
    struct context *context = call->context;
    struct nic *nic = context->nic;
    uint64_t *arg = call->request.arg;
    struct pd *pd = object_of(context, PD, arg[0]);
    uint32_t access = (uint32_t)arg[4] & ~(uint32_t)FV_ACCESS_OPTIONAL;
    uint32_t known = FV_ACCESS_LOCAL_WRITE | FV_ACCESS_REMOTE_WRITE | FV_ACCESS_REMOTE_READ | FV_ACCESS_REMOTE_ATOMIC;
    snprintf(call->note, sizeof call->note, "pd=%u addr=0x%lx len=%lu access=0x%lx", (unsigned)arg[0], arg[1], arg[2],
             arg[4]);
    if (!pd || (access & ~known)) return EINVAL;
    if ((access & (FV_ACCESS_REMOTE_WRITE | FV_ACCESS_REMOTE_ATOMIC)) && !(access & FV_ACCESS_LOCAL_WRITE))
        return EINVAL;
    if (arg[2] > nic->limits.max_mr_size || arg[3] + arg[2] < arg[2]) return EINVAL;
    if (nic->live[MR] >= nic->limits.max_mr) return ENOMEM;
    if (settings.memlock && pinned_by(context->pid) + arg[2] > settings.memlock) return ENOMEM;
    struct mr *mr = add_object(context, MR, sizeof *mr);
    uint32_t index = 1;
    while (index < nic->mrs_room && nic->mrs[index]) index++;
    nic->mrs = widen(nic->mrs, &nic->mrs_room, index + 1, sizeof *nic->mrs);
    nic->mrs[index] = mr;
    /* The low byte of a key changes from one use of its index to the next, as it does in hardware. */
    mr->key = index << 8 | nic->key_salt++;
    mr->pd = pd, mr->addr = arg[1], mr->len = arg[2], mr->iova = arg[3], mr->access = access;
    pd->users++;
    context->pinned += mr->len;
    call->reply.value[0] = mr->base.handle, call->reply.value[1] = call->reply.value[2] = mr->key;
    size_t used = strlen(call->note);
    snprintf(call->note + used, sizeof call->note - used, " mr=%u key=0x%x", mr->base.handle, mr->key);
    return 0;
}

int mr_call(struct call *call) {
    if (call->request.verb == REG_MR) return reg_mr(call);
    if (call->request.verb == REG_DMABUF_MR) return EOPNOTSUPP;
    struct mr *mr = object_of(call->context, MR, call->request.arg[0]);
    if (!mr) return EINVAL;
    snprintf(call->note, sizeof call->note, "mr=%u addr=0x%lx len=%lu key=0x%x", mr->base.handle, mr->addr, mr->len,
             mr->key);
    return destroy_object(&mr->base, &call->reply);
}

/* ------------------------------------------------------------------ channels */

int channel_call(struct call *call) {
    if (call->request.verb == CREATE_COMP_CHANNEL) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC)) return errno;
        struct channel *channel = add_object(call->context, CHANNEL, sizeof *channel);
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        channel->read_fd = ends[0], channel->write_fd = ends[1];
        call->give = ends[0];
        call->reply.value[0] = channel->base.handle;
        snprintf(call->note, sizeof call->note, "channel=%u", channel->base.handle);
        return 0;
    }
    struct channel *channel = object_of(call->context, CHANNEL, call->request.arg[0]);
    snprintf(call->note, sizeof call->note, "channel=%u", (unsigned)call->request.arg[0]);
    return channel ? destroy_object(&channel->base, &call->reply) : EINVAL;
}

/* Takes the events of one object out of a pipe that nobody has fetched yet, and tells how many these were. */
uint32_t drain_events(int write_fd, int read_fd, size_t size, uint64_t element) {
    char path[64];
    uint64_t kept[8192], words = size / 8, all = 0, left = 0, dropped = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", read_fd);
    /* Opened anew: whether reads wait is the client's choice for its own descriptor. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t done = read(fd, kept, sizeof kept);
    close(fd);
    for (all = 0; done > 0 && all + words <= (uint64_t)done / 8; all += words) {
        bool object = words == 1 || kept[all] < FV_EVENT_DEVICE_FATAL;
        if (object && kept[all + words - 1] == element) {
            dropped++;
            continue;
        }
        memmove(&kept[left], &kept[all], size);
        left += words;
    }
    if (left && write(write_fd, kept, left * 8) < 0) fprintf(stderr, "fabric: events are lost\n");
    return (uint32_t)dropped;
}

/* --------------------------------------------------------- completion queues */

static void show(struct cq *cq) {
    struct page *page = cq->base.context->page;
    if (page && cq->base.handle < PAGE_SLOTS) page->ready[cq->base.handle] = cq->count;
}

static int create_cq(struct call *call) {
    uint64_t *arg = call->request.arg;
    struct channel *channel = arg[1] ? object_of(call->context, CHANNEL, arg[1]) : NULL;
    if (!arg[0] || arg[0] > call->context->nic->limits.max_cqe || (arg[1] && !channel)) return EINVAL;
    struct cq *cq = add_object(call->context, CQ, sizeof *cq);
    cq->size = (uint32_t)arg[0], cq->channel = channel, cq->cookie = arg[2];
    cq->ring = allocate(cq->size * sizeof *cq->ring);
    if (channel) channel->users++;
    show(cq);
    call->reply.value[0] = cq->base.handle, call->reply.value[1] = cq->size;
    snprintf(call->note, sizeof call->note, "cq=%u cqe=%u", cq->base.handle, cq->size);
    return 0;
}

/* A completion that no NIC made goes to whoever polls first. */
static bool take_ghost(struct nic *nic, struct fv_wc *wc) {
    struct ghost *ghost = nic->ghosts;
    if (!ghost) return false;
    *wc = ghost->wc;
    nic->ghosts = ghost->next;
    free(ghost);
    if (!nic->ghosts) refresh_pages();
    return true;
}

static int poll_cq(struct call *call) {
    struct cq *cq = object_of(call->context, CQ, call->request.arg[0]);
    if (!cq) return EINVAL;
    struct fv_wc *into = (struct fv_wc *)call->out;
    uint64_t most = call->request.arg[1], used = 0;
    unsigned errors = 0;
    if (most > call->out_room / sizeof *into) most = call->out_room / sizeof *into;
    if (most && take_ghost(call->context->nic, into)) used++;
    for (; used < most && cq->count; used++) {
        struct completion *completion = &cq->ring[cq->first];
        struct qp *qp = (struct qp *)object_at(completion->qp_handle);
        into[used] = completion->wc;
        errors += completion->wc.status != 0;
        if (qp && qp->base.serial == completion->qp_serial && qp->freed <= completion->index)
            qp->freed = completion->index + 1;
        cq->first = (cq->first + 1) % cq->size, cq->count--;
    }
    show(cq);
    call->out_len = used * sizeof *into;
    call->reply.value[0] = used;
    if (used) snprintf(call->note, sizeof call->note, "cq=%u count=%lu errors=%u", cq->base.handle, used, errors);
    return 0;
}

int cq_call(struct call *call) {
    if (call->request.verb == CREATE_CQ) return create_cq(call);
    if (call->request.verb == POLL_CQ) return poll_cq(call);
    struct cq *cq = object_of(call->context, CQ, call->request.arg[0]);
    snprintf(call->note, sizeof call->note, "cq=%u", (unsigned)call->request.arg[0]);
    if (!cq) return EINVAL;
    if (call->request.verb == REQ_NOTIFY_CQ) {
        if (cq->armed != 1) cq->armed = call->request.arg[1] ? 2 : 1;
        return 0;
    }
    return destroy_object(&cq->base, &call->reply);
}

/* Puts a completion into a CQ. One too many breaks the CQ and every QP that reports to it. */
void push(struct cq *cq, const struct fv_wc *wc, struct qp *qp, uint64_t index) {
    if (cq->broken) return;
    if (cq->count == cq->size) {
        cq->broken = true;
        cq->async_sent++;
        logged("%s overflow cq=%u", cq->base.context->nic->name, cq->base.handle);
        send_event(cq->base.context, FV_EVENT_CQ_ERR, cq->cookie);
        for (uint32_t handle = 1; handle < end; handle++) {
            struct qp *user = (struct qp *)objects[handle];
            if (user && user->base.kind == QP && user->send_cq == cq) doom_qp(user, FV_EVENT_QP_FATAL);
        }
        return;
    }
    cq->ring[(cq->first + cq->count++) % cq->size] =
        (struct completion){*wc, qp->base.serial, index, qp->base.handle};
    show(cq);
    if (!cq->channel || !cq->armed || (cq->armed == 2 && !wc->status)) return;
    cq->armed = 0;
    if (write(cq->channel->write_fd, &cq->cookie, sizeof cq->cookie) == sizeof cq->cookie) cq->sent++;
    else logged("%s lost_event cq=%u", cq->base.context->nic->name, cq->base.handle);
}

/* Takes the completions of a QP out of its CQ. */
void purge(struct cq *cq, struct qp *qp) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < cq->count; i++) {
        struct completion completion = cq->ring[(cq->first + i) % cq->size];
        if (completion.qp_serial == qp->base.serial) continue;
        cq->ring[(cq->first + left++) % cq->size] = completion;
    }
    cq->count = left;
    show(cq);
}

/* --------------------------------------------------------------- destruction */

static int destroy_cq(struct cq *cq, struct reply *reply) {
    struct context *context = cq->base.context;
    if (cq->users) return EBUSY;
    if (cq->channel) {
        cq->sent -= drain_events(cq->channel->write_fd, cq->channel->read_fd, 8, cq->cookie);
        cq->channel->users--;
    }
    if (cq->async_sent) cq->async_sent -= drain_events(context->async_write, context->async_read, 16, cq->cookie);
    reply->value[0] = cq->sent, reply->value[1] = cq->async_sent;
    cq->count = 0;
    show(cq);
    free(cq->ring);
    return 0;
}

int destroy_object(struct object *object, struct reply *reply) {
    if (object->kind == QP) {
        destroy_qp((struct qp *)object, reply);
    } else if (object->kind == CQ) {
        int error = destroy_cq((struct cq *)object, reply);
        if (error) return error;
    } else if (object->kind == CHANNEL) {
        struct channel *channel = (struct channel *)object;
        if (channel->users) return EBUSY;
        close(channel->write_fd), close(channel->read_fd);
    } else if (object->kind == MR) {
        struct mr *mr = (struct mr *)object;
        land_mr(mr);
        object->context->nic->mrs[mr->key >> 8] = NULL;
        object->context->pinned -= mr->len;
        mr->pd->users--;
    } else if (((struct pd *)object)->users) {
        return EBUSY;
    }
    remove_object(object);
    return 0;
}
