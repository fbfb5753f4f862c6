/* A stand-in for libibverbs.so.1: its calls go to the fabric (fabric.c), a process that plays the NICs and the network.
 *
 * FAKE_VERBS=FOLDER names the fabric's folder; without it, or without a fabric there, there is no device.
 * FAKE_VERBS_NICS=0,2 leaves a process only these NICs. A call on a context in a forked child ends that child with
 * status 97.
 *
 * Built by the tests: cc -std=gnu17 -O1 -shared -fPIC -pthread -Wl,-soname,libibverbs.so.1
 * -Wl,--version-script,libibverbs.map library.c -o libibverbs.so.1
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol.h"

enum { IDLE_MOST = 64, POLL_MOST = 256 };

struct device {
    struct fv_device ibv;
    uint64_t guid;
    uint32_t nic;
    int users; /* its list, and contexts */
    char folder[PATH_MAX];
};

struct context {
    struct fv_context ibv;
    pid_t pid;
    uint64_t id, token;
    struct page *page;
    pthread_mutex_t lock;
    int idle[IDLE_MOST], idles; /* connections that no call uses */
};

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

/* --------------------------------------------------------------- the fabric */

static int connect_to(const char *folder) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char path[PATH_MAX + 16];
    /* A long folder does not fit an address: it goes through a descriptor of the folder. */
    int dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d/socket", dir);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr)) close(fd), fd = -1;
    close(dir);
    return fd;
}

/* One request and its reply on a connection. `given`: where a descriptor that comes with the reply goes.
 * EIO where there is no fabric any more. */
static int exchange(int fd, struct request *request, const void *body, size_t len, struct reply *reply, void *out,
                    size_t room, int *given) {
    struct iovec send[2] = {{request, sizeof *request}, {(void *)body, len}};
    struct iovec receive[2] = {{reply, sizeof *reply}, {out, room}};
    struct msghdr message = {.msg_iov = send, .msg_iovlen = len ? 2 : 1};
    request->magic = MAGIC;
    ssize_t done;
    do done = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (done < 0 && errno == EINTR);
    if (done < 0) return EIO;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    message = (struct msghdr){.msg_iov = receive, .msg_iovlen = room ? 2 : 1, .msg_control = &control,
                              .msg_controllen = sizeof control};
    do done = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (done < 0 && errno == EINTR);
    struct cmsghdr *header = done > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    int came = -1;
    if (header && header->cmsg_type == SCM_RIGHTS) memcpy(&came, CMSG_DATA(header), sizeof came);
    if (given) *given = came;
    else if (came >= 0) close(came);
    if (done < (ssize_t)sizeof *reply || reply->magic != MAGIC) return EIO;
    return reply->error;
}

static void no_child(struct context *context) {
    if (context->pid == getpid()) return;
    fprintf(stderr, "fake_verbs: a forked child used its parent's context\n");
    _exit(97);
}

static int take(struct context *context) {
    pthread_mutex_lock(&context->lock);
    int fd = context->idles ? context->idle[--context->idles] : -1;
    pthread_mutex_unlock(&context->lock);
    if (fd >= 0) return fd;
    struct device *device = (struct device *)context->ibv.device;
    fd = connect_to(device->folder);
    struct request request = {.verb = ATTACH, .arg = {context->id, context->token}};
    struct reply reply;
    if (fd >= 0 && exchange(fd, &request, NULL, 0, &reply, NULL, 0, NULL)) close(fd), fd = -1;
    return fd;
}

static void put(struct context *context, int fd) {
    pthread_mutex_lock(&context->lock);
    int keep = context->idles < IDLE_MOST;
    if (keep) context->idle[context->idles++] = fd;
    pthread_mutex_unlock(&context->lock);
    if (!keep) close(fd);
}

static int call_with(struct fv_context *ibv, struct request *request, const void *body, size_t len,
                     struct reply *reply, void *out, size_t room, int *given) {
    struct context *context = (struct context *)ibv;
    no_child(context);
    int fd = take(context);
    if (fd < 0) return EIO;
    int error = exchange(fd, request, body, len, reply, out, room, given);
    put(context, fd);
    return error;
}

static int call(struct fv_context *ibv, enum verb verb, uint64_t a, uint64_t b, struct reply *reply) {
    struct request request = {.verb = verb, .arg = {a, b}};
    struct reply unused;
    return call_with(ibv, &request, NULL, 0, reply ? reply : &unused, NULL, 0, NULL);
}

static void *fail(int error) {
    errno = error;
    return NULL;
}

/* ------------------------------------------------------------------ devices */

static int allowed(uint32_t nic) {
    const char *list = getenv("FAKE_VERBS_NICS");
    if (!list) return 1;
    while (*list) {
        char *end;
        unsigned long number = strtoul(list, &end, 10);
        if (end != list && number == nic) return 1;
        list = *end ? end + 1 : end;
    }
    return 0;
}

/* Asks the fabric of FAKE_VERBS without a context. -1: there is none. */
static int ask(enum verb verb, struct reply *reply, void *out, size_t room, char *folder) {
    const char *named = getenv("FAKE_VERBS");
    if (!named || !*named || !realpath(named, folder)) return -1;
    int fd = connect_to(folder);
    if (fd < 0) return -1;
    struct request request = {.verb = verb};
    int error = exchange(fd, &request, NULL, 0, reply, out, room, NULL);
    close(fd);
    return error;
}

struct fv_device **get_device_list(int *count);
struct fv_device **get_device_list(int *count) {
    char folder[PATH_MAX];
    struct listed listed[DEVICES_MOST];
    struct reply reply = {0};
    int error = ask(GET_DEVICE_LIST, &reply, listed, sizeof listed, folder), used = 0;
    if (count) *count = 0;
    if (error > 0) return fail(error);
    struct fv_device **list = calloc(DEVICES_MOST + 1, sizeof *list);
    if (!list) return fail(ENOMEM);
    for (uint64_t i = 0; !error && i < reply.value[0] && i < DEVICES_MOST; i++) {
        if (!allowed(listed[i].nic)) continue;
        struct device *device = calloc(1, sizeof *device);
        if (!device) break;
        device->nic = listed[i].nic, device->guid = listed[i].guid, device->users = 1;
        device->ibv.node_type = FV_NODE_CA, device->ibv.transport_type = FV_TRANSPORT_IB;
        snprintf(device->folder, sizeof device->folder, "%s", folder);
        snprintf(device->ibv.name, sizeof device->ibv.name, "%s", listed[i].name);
        snprintf(device->ibv.dev_name, sizeof device->ibv.dev_name, "%s", listed[i].dev_name);
        int dev_len = snprintf(device->ibv.dev_path, sizeof device->ibv.dev_path, "%s/sys/class/infiniband_verbs/%s",
                               folder, listed[i].dev_name);
        int len = snprintf(device->ibv.ibdev_path, sizeof device->ibv.ibdev_path, "%s/sys/class/infiniband/%s",
                           folder, listed[i].name);
        if (len >= (int)sizeof device->ibv.ibdev_path || dev_len >= (int)sizeof device->ibv.dev_path) {
            fprintf(stderr, "fake_verbs: the folder's name is too long for a device's path\n");
            abort();
        }
        list[used++] = &device->ibv;
    }
    if (count) *count = used;
    return list;
}

/* Its structures have another layout: who gets here asked for a symbol without its version. */
struct fv_device **oldest_get_device_list(int *count);
struct fv_device **oldest_get_device_list(int *count) {
    (void)count;
    fprintf(stderr, "fake_verbs: ibv_get_device_list of IBVERBS_1.0 was called; ask dlvsym for IBVERBS_1.1\n");
    abort();
}
__asm__(".symver oldest_get_device_list, ibv_get_device_list@IBVERBS_1.0");
__asm__(".symver get_device_list, ibv_get_device_list@@IBVERBS_1.1");

static void leave_device(struct device *device) {
    pthread_mutex_lock(&devices_lock);
    int left = --device->users;
    pthread_mutex_unlock(&devices_lock);
    if (!left) free(device);
}

void ibv_free_device_list(struct fv_device **list) {
    for (struct fv_device **at = list; at && *at; at++) leave_device((struct device *)*at);
    free(list);
}

const char *ibv_get_device_name(struct fv_device *device) { return device->name; }

uint64_t ibv_get_device_guid(struct fv_device *device) { return htobe64(((struct device *)device)->guid); }

static int poll_cq(struct fv_cq *, int, struct fv_wc *);
static int req_notify_cq(struct fv_cq *, int);
static int post_send(struct fv_qp *, struct fv_send_wr *, struct fv_send_wr **);
static int post_recv(struct fv_qp *, struct fv_recv_wr *, struct fv_recv_wr **);

/* The lock of the page's open file lasts as long as any mapping of it, in whatever process: so the fabric sees a child
 * that keeps a context alive, as a mapping of a real device's pages does. */
static struct page *map_page(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    struct page *page = MAP_FAILED;
    if (!flock(fd, LOCK_SH | LOCK_NB)) page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? NULL : page;
}

struct fv_context *ibv_open_device(struct fv_device *ibv) {
    struct device *device = (struct device *)ibv;
    struct context *context = calloc(1, sizeof *context);
    if (!context) return fail(ENOMEM);
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* the fabric touches this process' memory */
#endif
    char path[PATH_MAX] = "";
    struct request request = {.verb = OPEN_DEVICE, .arg = {device->nic}};
    struct reply reply;
    int async_fd = -1, fd = connect_to(device->folder);
    int error = fd < 0 ? EIO : exchange(fd, &request, NULL, 0, &reply, path, sizeof path - 1, &async_fd);
    if (!error && !(context->page = map_page(path))) error = EIO;
    if (error) {
        if (fd >= 0) close(fd);
        if (async_fd >= 0) close(async_fd);
        free(context);
        return fail(error);
    }
    pthread_mutex_lock(&devices_lock);
    device->users++;
    pthread_mutex_unlock(&devices_lock);
    context->pid = getpid(), context->id = reply.value[0], context->token = reply.value[1];
    context->idle[context->idles++] = fd;
    pthread_mutex_init(&context->lock, NULL);
    context->ibv.device = ibv, context->ibv.cmd_fd = fd, context->ibv.async_fd = async_fd;
    context->ibv.num_comp_vectors = 1;
    context->ibv.ops.poll_cq = poll_cq, context->ibv.ops.req_notify_cq = req_notify_cq;
    context->ibv.ops.post_send = post_send, context->ibv.ops.post_recv = post_recv;
    pthread_mutex_init(&context->ibv.mutex, NULL);
    return &context->ibv;
}

int ibv_close_device(struct fv_context *ibv) {
    struct context *context = (struct context *)ibv;
    int error = call(ibv, CLOSE_DEVICE, 0, 0, NULL);
    if (error && error != EIO) return -1;
    for (int i = 0; i < context->idles; i++)
        if (context->idle[i] != ibv->cmd_fd) close(context->idle[i]);
    close(ibv->cmd_fd), close(ibv->async_fd);
    munmap(context->page, PAGE_BYTES);
    leave_device((struct device *)ibv->device);
    free(context);
    return 0;
}

int ibv_query_device(struct fv_context *context, struct fv_device_attr *attr) {
    struct request request = {.verb = QUERY_DEVICE};
    struct reply reply;
    return call_with(context, &request, NULL, 0, &reply, attr, sizeof *attr, NULL);
}

int ibv_query_port(struct fv_context *context, uint8_t port, struct fv_port_attr *attr) {
    struct request request = {.verb = QUERY_PORT, .arg = {port}};
    struct reply reply;
    struct fv_port_attr whole;
    int error = call_with(context, &request, NULL, 0, &reply, &whole, sizeof whole, NULL);
    if (!error) memcpy(attr, &whole, offsetof(struct fv_port_attr, port_cap_flags2));
    return error;
}

int _ibv_query_gid_ex(struct fv_context *context, uint32_t port, uint32_t index, struct fv_gid_entry *entry,
                      uint32_t flags, size_t size) {
    struct request request = {.verb = QUERY_GID, .arg = {port, index}};
    struct reply reply;
    struct fv_gid_entry whole;
    if (flags || size < sizeof whole) return EINVAL;
    int error = call_with(context, &request, NULL, 0, &reply, &whole, sizeof whole, NULL);
    if (!error && !whole.gid.words[0] && !whole.gid.words[1]) error = ENODATA;
    if (!error) memcpy(entry, &whole, sizeof whole);
    return error;
}

ssize_t _ibv_query_gid_table(struct fv_context *context, struct fv_gid_entry *entries, size_t most, uint32_t flags,
                             size_t size) {
    size_t used = 0;
    if (flags || size < sizeof *entries) return -EINVAL;
    for (uint32_t index = 0; used < most; index++) {
        struct fv_gid_entry *entry = (struct fv_gid_entry *)((char *)entries + used * size);
        int error = _ibv_query_gid_ex(context, 1, index, entry, 0, size);
        if (error == EINVAL) break; /* behind the table's end */
        if (error && error != ENODATA) return -error;
        used += !error;
    }
    return (ssize_t)used;
}

int ibv_query_gid(struct fv_context *context, uint8_t port, int index, union fv_gid *gid) {
    struct request request = {.verb = QUERY_GID, .arg = {port, (uint32_t)index}};
    struct reply reply;
    struct fv_gid_entry whole;
    int error = call_with(context, &request, NULL, 0, &reply, &whole, sizeof whole, NULL);
    if (!error) *gid = whole.gid;
    return error ? errno = error, -1 : 0;
}

int ibv_query_pkey(struct fv_context *context, uint8_t port, int index, uint16_t *pkey) {
    struct reply reply;
    int error = call(context, QUERY_PKEY, port, (uint32_t)index, &reply);
    if (!error) *pkey = htobe16((uint16_t)reply.value[0]);
    return error ? errno = error, -1 : 0;
}

/* ------------------------------------------------------------------- memory */

struct fv_pd *ibv_alloc_pd(struct fv_context *context) {
    struct fv_pd *pd = calloc(1, sizeof *pd);
    struct reply reply;
    if (!pd) return fail(ENOMEM);
    int error = call(context, ALLOC_PD, 0, 0, &reply);
    if (error) return free(pd), fail(error);
    pd->context = context, pd->handle = (uint32_t)reply.value[0];
    return pd;
}

int ibv_dealloc_pd(struct fv_pd *pd) {
    int error = call(pd->context, DEALLOC_PD, pd->handle, 0, NULL);
    if (!error) free(pd);
    return error;
}

/* Whether these bytes are mapped, and writable where that is wanted: what pinning them would find out. */
static int mapped(uintptr_t addr, size_t len, int writable) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return 1;
    uintptr_t at = addr, end = addr + len, from, to;
    char line[PATH_MAX + 256], rights[8];
    while (at < end && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || to <= at) continue;
        if (from > at || rights[0] != 'r' || (writable && rights[1] != 'w')) break;
        at = to;
    }
    fclose(maps);
    return at >= end;
}

static struct fv_mr *reg(struct fv_pd *pd, void *addr, size_t length, uint64_t iova, uint32_t access, int optional) {
    uint32_t writing = FV_ACCESS_LOCAL_WRITE | FV_ACCESS_REMOTE_WRITE | FV_ACCESS_REMOTE_ATOMIC;
    if (!optional && (access & FV_ACCESS_OPTIONAL)) return fail(EINVAL);
    if (!length || (uintptr_t)addr + length < length) return fail(EINVAL);
    no_child((struct context *)pd->context);
    if (!mapped((uintptr_t)addr, length, access & writing)) return fail(EFAULT);
    struct fv_mr *mr = calloc(1, sizeof *mr);
    if (!mr) return fail(ENOMEM);
    struct request request = {.verb = REG_MR, .arg = {pd->handle, (uintptr_t)addr, length, iova, access}};
    struct reply reply;
    int error = call_with(pd->context, &request, NULL, 0, &reply, NULL, 0, NULL);
    if (error) return free(mr), fail(error);
    *mr = (struct fv_mr){pd->context, pd, addr, length, (uint32_t)reply.value[0], (uint32_t)reply.value[1],
                         (uint32_t)reply.value[2]};
    return mr;
}

struct fv_mr *ibv_reg_mr(struct fv_pd *pd, void *addr, size_t length, int access) {
    return reg(pd, addr, length, (uintptr_t)addr, (uint32_t)access, 0);
}

struct fv_mr *ibv_reg_mr_iova2(struct fv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access) {
    return reg(pd, addr, length, iova, access, 1);
}

struct fv_mr *ibv_reg_dmabuf_mr(struct fv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    struct request request = {.verb = REG_DMABUF_MR, .arg = {pd->handle, offset, length, iova, (uint32_t)access}};
    struct reply reply;
    (void)fd;
    int error = call_with(pd->context, &request, NULL, 0, &reply, NULL, 0, NULL);
    return fail(error ? error : EOPNOTSUPP);
}

int ibv_dereg_mr(struct fv_mr *mr) {
    int error = call(mr->context, DEREG_MR, mr->handle, 0, NULL);
    if (!error) free(mr);
    return error;
}

/* -------------------------------------------------------- completion queues */

struct fv_comp_channel *ibv_create_comp_channel(struct fv_context *context) {
    struct fv_comp_channel *channel = calloc(1, sizeof *channel + sizeof(uint64_t));
    struct request request = {.verb = CREATE_COMP_CHANNEL};
    struct reply reply;
    int fd = -1;
    if (!channel) return fail(ENOMEM);
    int error = call_with(context, &request, NULL, 0, &reply, NULL, 0, &fd);
    if (error) {
        if (fd >= 0) close(fd);
        return free(channel), fail(error);
    }
    channel->context = context, channel->fd = fd;
    *(uint64_t *)(channel + 1) = reply.value[0]; /* the public structure has no room for its handle */
    return channel;
}

static uint64_t channel_handle(struct fv_comp_channel *channel) { return channel ? *(uint64_t *)(channel + 1) : 0; }

int ibv_destroy_comp_channel(struct fv_comp_channel *channel) {
    if (channel->refcnt) return EBUSY;
    int error = call(channel->context, DESTROY_COMP_CHANNEL, channel_handle(channel), 0, NULL);
    if (error) return error;
    close(channel->fd);
    free(channel);
    return 0;
}

struct fv_cq *ibv_create_cq(struct fv_context *context, int cqe, void *cq_context, struct fv_comp_channel *channel,
                            int vector) {
    if (vector < 0 || vector >= context->num_comp_vectors || cqe < 1) return fail(EINVAL);
    struct fv_cq *cq = calloc(1, sizeof *cq);
    if (!cq) return fail(ENOMEM);
    struct request request = {.verb = CREATE_CQ, .arg = {(uint64_t)cqe, channel_handle(channel), (uintptr_t)cq}};
    struct reply reply;
    int error = call_with(context, &request, NULL, 0, &reply, NULL, 0, NULL);
    if (error) return free(cq), fail(error);
    cq->context = context, cq->channel = channel, cq->cq_context = cq_context;
    cq->handle = (uint32_t)reply.value[0], cq->cqe = (int)reply.value[1];
    pthread_mutex_init(&cq->mutex, NULL), pthread_cond_init(&cq->cond, NULL);
    if (channel) __atomic_add_fetch(&channel->refcnt, 1, __ATOMIC_SEQ_CST);
    return cq;
}

/* Waits without limit for events that were fetched and not acknowledged, as the real one does. */
int ibv_destroy_cq(struct fv_cq *cq) {
    struct reply reply;
    int error = call(cq->context, DESTROY_CQ, cq->handle, 0, &reply);
    if (error) return error;
    pthread_mutex_lock(&cq->mutex);
    while (cq->comp_events_completed != reply.value[0] || cq->async_events_completed != reply.value[1])
        pthread_cond_wait(&cq->cond, &cq->mutex);
    pthread_mutex_unlock(&cq->mutex);
    if (cq->channel) __atomic_sub_fetch(&cq->channel->refcnt, 1, __ATOMIC_SEQ_CST);
    free(cq);
    return 0;
}

int ibv_get_cq_event(struct fv_comp_channel *channel, struct fv_cq **cq, void **cq_context) {
    uint64_t cookie;
    if (read(channel->fd, &cookie, sizeof cookie) != sizeof cookie) return -1;
    *cq = (struct fv_cq *)cookie;
    *cq_context = (*cq)->cq_context;
    return 0;
}

void ibv_ack_cq_events(struct fv_cq *cq, unsigned count) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

static int poll_cq(struct fv_cq *cq, int most, struct fv_wc *into) {
    struct context *context = (struct context *)cq->context;
    if (most < 0) return -EINVAL;
    no_child(context);
    if (!context->page->always_call && cq->handle < PAGE_SLOTS && !context->page->ready[cq->handle]) return 0;
    if (most > POLL_MOST) most = POLL_MOST;
    struct request request = {.verb = POLL_CQ, .arg = {cq->handle, (uint64_t)most}};
    struct reply reply;
    int error = call_with(cq->context, &request, NULL, 0, &reply, into, (size_t)most * sizeof *into, NULL);
    return error ? -error : (int)reply.value[0];
}

static int req_notify_cq(struct fv_cq *cq, int solicited) {
    return call(cq->context, REQ_NOTIFY_CQ, cq->handle, (uint64_t)solicited, NULL);
}

/* --------------------------------------------------------------- queue pairs */

struct fv_qp *ibv_create_qp(struct fv_pd *pd, struct fv_qp_init_attr *attr) {
    if (!attr->send_cq || !attr->recv_cq || attr->srq) return fail(EINVAL);
    struct fv_qp *qp = calloc(1, sizeof *qp);
    if (!qp) return fail(ENOMEM);
    struct request request = {.verb = CREATE_QP, .arg = {pd->handle, attr->send_cq->handle, attr->recv_cq->handle,
                                                         (uint64_t)attr->qp_type, attr->sq_sig_all, (uintptr_t)qp}};
    struct reply reply;
    int error = call_with(pd->context, &request, &attr->cap, sizeof attr->cap, &reply, NULL, 0, NULL);
    if (error) return free(qp), fail(error);
    qp->context = pd->context, qp->qp_context = attr->qp_context, qp->pd = pd;
    qp->send_cq = attr->send_cq, qp->recv_cq = attr->recv_cq, qp->qp_type = attr->qp_type;
    qp->handle = (uint32_t)reply.value[0], qp->qp_num = (uint32_t)reply.value[1];
    pthread_mutex_init(&qp->mutex, NULL), pthread_cond_init(&qp->cond, NULL);
    return qp;
}

int ibv_modify_qp(struct fv_qp *qp, struct fv_qp_attr *attr, int mask) {
    struct request request = {.verb = MODIFY_QP, .arg = {qp->handle, (uint32_t)mask}};
    struct reply reply;
    int error = call_with(qp->context, &request, attr, sizeof *attr, &reply, NULL, 0, NULL);
    if (!error && (mask & FV_QP_STATE)) qp->state = attr->qp_state;
    return error;
}

int ibv_query_qp(struct fv_qp *qp, struct fv_qp_attr *attr, int mask, struct fv_qp_init_attr *init) {
    struct request request = {.verb = QUERY_QP, .arg = {qp->handle, (uint32_t)mask}};
    struct reply reply;
    int error = call_with(qp->context, &request, NULL, 0, &reply, attr, sizeof *attr, NULL);
    if (error) return error;
    qp->state = attr->qp_state;
    *init = (struct fv_qp_init_attr){qp->qp_context, qp->send_cq, qp->recv_cq, NULL, attr->cap, qp->qp_type,
                                     (int)reply.value[0]};
    return 0;
}

/* Waits without limit for events that were fetched and not acknowledged, as the real one does. */
int ibv_destroy_qp(struct fv_qp *qp) {
    struct reply reply;
    int error = call(qp->context, DESTROY_QP, qp->handle, 0, &reply);
    if (error) return error;
    pthread_mutex_lock(&qp->mutex);
    while (qp->events_completed != reply.value[0]) pthread_cond_wait(&qp->cond, &qp->mutex);
    pthread_mutex_unlock(&qp->mutex);
    free(qp);
    return 0;
}

/* Bytes of a request in a message, or 0 with an error. */
static size_t measure(const struct fv_send_wr *wr, int *error) {
    size_t bytes = 0;
    if (wr->num_sge < 0 || wr->num_sge > SGE_MOST) return *error = EINVAL, 0;
    if (!(wr->send_flags & FV_SEND_INLINE)) return sizeof(struct wire_wr) + (size_t)wr->num_sge * sizeof(struct fv_sge);
    for (int i = 0; i < wr->num_sge; i++) bytes += wr->sg_list[i].length;
    if (bytes > INLINE_MOST) return *error = EINVAL, 0;
    return sizeof(struct wire_wr) + (bytes + 7) / 8 * 8;
}

static void encode(const struct fv_send_wr *wr, char *into) {
    struct wire_wr wire = {.wr_id = wr->wr_id, .remote_addr = wr->wr.rdma.remote_addr, .rkey = wr->wr.rdma.rkey,
                           .opcode = (uint32_t)wr->opcode, .flags = wr->send_flags, .sges = (uint32_t)wr->num_sge};
    char *at = into + sizeof wire;
    if (wr->send_flags & FV_SEND_INLINE) {
        for (int i = 0; i < wr->num_sge; i++) {
            memcpy(at + wire.inline_bytes, (void *)wr->sg_list[i].addr, wr->sg_list[i].length);
            wire.inline_bytes += wr->sg_list[i].length;
        }
    } else if (wr->num_sge) {
        memcpy(at, wr->sg_list, (size_t)wr->num_sge * sizeof(struct fv_sge));
    }
    memcpy(into, &wire, sizeof wire);
}

static int post_send(struct fv_qp *qp, struct fv_send_wr *wr, struct fv_send_wr **bad) {
    char body[MESSAGE_MOST - sizeof(struct request)];
    while (wr) {
        struct fv_send_wr *first = wr;
        size_t used = 0;
        int error = 0, count = 0;
        for (; wr; wr = wr->next, count++) {
            size_t bytes = measure(wr, &error);
            if (error || used + bytes > sizeof body) break;
            memset(body + used, 0, bytes);
            encode(wr, body + used);
            used += bytes;
        }
        struct request request = {.verb = POST_SEND, .arg = {qp->handle, (uint64_t)count}};
        struct reply reply = {0};
        int refused = call_with(qp->context, &request, body, used, &reply, NULL, 0, NULL);
        if (refused) {
            for (wr = first; reply.value[0] && wr->next; reply.value[0]--) wr = wr->next;
            *bad = wr;
            return refused;
        }
        if (error) return *bad = wr, error;
    }
    return 0;
}

static int post_recv(struct fv_qp *qp, struct fv_recv_wr *wr, struct fv_recv_wr **bad) {
    *bad = wr;
    int error = call(qp->context, POST_RECV, qp->handle, 0, NULL);
    return error ? error : ENOSYS;
}

/* -------------------------------------------------------------------- events */

int ibv_get_async_event(struct fv_context *context, struct fv_async_event *event) {
    uint64_t came[2];
    no_child((struct context *)context);
    if (read(context->async_fd, came, sizeof came) != sizeof came) return -1;
    event->element.cookie = came[1];
    event->event_type = (int)came[0];
    return 0;
}

void ibv_ack_async_event(struct fv_async_event *event) {
    if (event->event_type == FV_EVENT_CQ_ERR) {
        struct fv_cq *cq = event->element.cq;
        pthread_mutex_lock(&cq->mutex);
        cq->async_events_completed++;
        pthread_cond_signal(&cq->cond);
        pthread_mutex_unlock(&cq->mutex);
    } else if (event->event_type < FV_EVENT_DEVICE_FATAL || event->event_type == FV_EVENT_QP_LAST_WQE_REACHED) {
        struct fv_qp *qp = event->element.qp;
        pthread_mutex_lock(&qp->mutex);
        qp->events_completed++;
        pthread_cond_signal(&qp->cond);
        pthread_mutex_unlock(&qp->mutex);
    }
}

/* --------------------------------------------------------------- fork, words */

int ibv_fork_init(void) {
    char folder[PATH_MAX];
    struct reply reply;
    int error = ask(FORK_INIT, &reply, NULL, 0, folder);
    return error > 0 ? error : 0;
}

int ibv_is_fork_initialized(void) {
    char folder[PATH_MAX];
    struct reply reply;
    return ask(IS_FORK_INITIALIZED, &reply, NULL, 0, folder) ? FV_FORK_UNNEEDED : (int)reply.value[0];
}

const char *ibv_wc_status_str(int status) {
    static const char *const words[] = {
        "success", "local length error", "local QP operation error", "local EE context operation error",
        "local protection error", "Work Request Flushed Error", "memory management operation error",
        "bad response error", "local access error", "remote invalid request error", "remote access error",
        "remote operation error", "transport retry counter exceeded", "RNR retry counter exceeded",
        "local RDD violation error", "remote invalid RD request", "aborted error", "invalid EE context number",
        "invalid EE context state", "fatal error", "response timeout error", "general error", "TM error",
        "TM software rendezvous"};
    return status < 0 || status > FV_WC_TM_RNDV_INCOMPLETE ? "unknown" : words[status];
}

const char *ibv_event_type_str(int event) {
    static const char *const words[] = {
        "CQ error", "local work queue catastrophic error", "invalid request local work queue error",
        "local access violation work queue error", "communication established", "send queue drained",
        "path migrated", "path migration request error", "local catastrophic error", "port active", "port error",
        "LID change", "P_Key change", "SM change", "SRQ catastrophic error", "SRQ limit reached",
        "last WQE reached", "client reregistration", "GID table change", "WQ fatal"};
    return event < 0 || event > FV_EVENT_WQ_FATAL ? "unknown" : words[event];
}

const char *ibv_node_type_str(int type) { return type == FV_NODE_CA ? "InfiniBand channel adapter" : "unknown"; }

const char *ibv_port_state_str(int state) {
    return state == FV_PORT_ACTIVE ? "PORT_ACTIVE" : state == FV_PORT_DOWN ? "PORT_DOWN" : "invalid state";
}
