/* The fabric: the NICs and the network of a test, in a process of its own. It moves bytes between processes with
 * process_vm_readv and process_vm_writev, so that the NIC of a stopped process goes on.
 *
 *   fabric FOLDER [--seed N] [--nics K] [--numa LIST] [--link-layer ib|eth] [--stay]
 *
 * FOLDER gets `socket` (for the library: FAKE_VERBS=FOLDER), `control` (for the test: lines of text), `sys` (the facts
 * of devices) and `dev/infiniband` (a file for each context, mapped by who opened it: look for this part of a path).
 * --numa 0,-1,- gives nodes to the NICs in turn; - (at first): no `device` folder, as Soft-RoCE may have none. It says
 * "ready seed N folder FOLDER" when it can be used, and ends with its parent or when its standard input ends; --stay
 * looks at neither.
 *
 * Built by the tests: cc -std=gnu17 -O1 fabric.c objects.c queue_pairs.c network.c control.c sysfs.c -o fabric
 *
 * Commands on `control`, one a line. Each is answered by one line, "ok ..." or "error ..."; those marked * by
 * several, the last one a dot. NIC is a number, a name, or `all`. VERB is a function's name without ibv_; modify_qp.err
 * and the like (reset, init, rtr, rts) are changes to that state alone.
 *
 *   calm | nasty               all of the next switches off | on (they start on)
 *   order on|off               chunks of a message are placed and read in random order
 *   visible MS [all]           a WRITE that has completed is in memory at most so late (3; 0: at once); `all`: each of
 *                              them exactly so late, unless a READ of that NIC comes before
 *   reorder on|off             the bytes of a READ are taken late; unfenced WRITEs behind it pass it
 *   read_delay US              at most so late (200)
 *   late on|off|all [MS]       what a failed or destroyed QP had sent still arrives, at most so late (200), as long as
 *                              a remote QP takes it; `all`: everything that was posted, exactly so late
 *   reuse on|off               QP numbers are used again at once, the lowest first
 *   stale on|off               some completions of a destroyed QP can still be polled
 *
 *   seed N                     begins the chances anew
 *   tear BYTES                 chunks are cut at multiples of this (64)
 *   retry MS                   how long a sender tries before RETRY_EXC_ERR (100)
 *   rate NIC BYTES_A_SECOND    0: without limit (at first)
 *   latency NIC US             one way (0)
 *   mapping on|off             a mapping of its page keeps a context alive (on)
 *   fork STATUS [ERRNO]        what ibv_is_fork_initialized says (disabled, enabled, unneeded: at first), and what
 *                              ibv_fork_init fails with
 *   memlock BYTES              registrations above it fail with ENOMEM, counted for each process; 0: none
 *   limit NIC NAME VALUE       max_mr_size, max_qp, max_cqe, max_qp_wr, max_sge, max_inline, max_rd_atomic, max_mr, mtu
 *   gid NIC INDEX ib|v1|v2 HEX sets an entry of the GID table; 32 digits, or an IPv4 address, or `none`
 *
 *   hold NIC [acks] [sends|stalls]   withholds completions (with `acks`: those of success only). A QP sends all the
 *                              same, or nothing until the release; by chance, where neither is said
 *   release NIC
 *   fail VERB ERRNO [COUNT] [NIC]   its next calls (1; 0: all) fail; `fail VERB off`, `fail off` take that back
 *   hang VERB [COUNT] [NIC]    its next calls (0, at first: all) are not answered until `unhang VERB` or `unhang all`
 *   link NIC up|down           down: nothing passes; the port's state changes and its event is raised
 *   event NIC NAME [NUMBER]    raises PORT_ERR, DEVICE_FATAL and the others, of port 1, or of a QP number or a CQ
 *                              handle (0: all); says how many
 *   qp NIC QPN err             moves a QP to ERR, as a fault of the NIC would, without an event
 *   ghost NIC WR_ID STATUS [QPN]   a completion in the next CQ of that NIC that is polled
 *
 *   log *                      each call in order since the last `log`: microseconds, process, NIC, verb, objects,
 *                              result; and, with - for the process, what the fabric did of itself
 *   count *                    live objects of each NIC; `strays`: times that registered memory was not there; `hung`:
 *                              calls that hang; `late`: messages of failed QPs that are under way
 *   bytes *                    of each NIC: written and read by its requests, landed in and served from its memory
 *   qps *                      the queue pairs
 *   quiet [MS]                 answers when nothing is under way, after MS (10000) with an error
 *   land NIC                   puts what is not visible yet into memory
 *   ping, quit
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "fabric.h"

enum { UNITS = 16, TIMERS = 64 }; /* of work between two looks at the sockets */

struct connection {
    struct source source;
    pid_t pid;
    struct context *context;
    struct connection *next;
    unsigned char *hung; /* a request that a test keeps from an answer */
    size_t hung_len;
};

struct settings settings = {.late = true, .order = true, .reorder = true, .reuse = true, .stale = true,
                            .mapping = true, .late_most = 200 * MILLISECOND, .visible_most = 3 * MILLISECOND,
                            .retry = 100 * MILLISECOND, .read_most = 200000, .tear = 64,
                            .fork_status = FV_FORK_UNNEEDED, .link_layer = FV_LINK_LAYER_ETHERNET};
struct nic nics[DEVICES_MOST];
uint32_t nic_count = 2;
struct context *contexts;
char folder[4096];
uint64_t strays;
const char *const verb_names[] = {VERB_NAMES};

static int poller = -1;
static struct connection *connections;
static uint64_t random_state;
static uint32_t context_ids;

/* ------------------------------------------------------------------- chance */

void seed(uint64_t value) { settings.seed = random_state = value; }

uint64_t draw(void) {
    uint64_t mix = random_state += 0x9e3779b97f4a7c15;
    mix = (mix ^ mix >> 30) * 0xbf58476d1ce4e5b9;
    mix = (mix ^ mix >> 27) * 0x94d049bb133111eb;
    return mix ^ mix >> 31;
}

uint64_t below(uint64_t limit) { return limit ? draw() % limit : 0; }

bool chance(unsigned in, unsigned of) { return below(of) < in; }

/* -------------------------------------------------------------------- clock */

static struct timer **heap;
static size_t heap_room, heap_used; /* places 1 to heap_used */
static uint64_t timer_numbers;

int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static bool sooner(struct timer *a, struct timer *b) { return a->at != b->at ? a->at < b->at : a->number < b->number; }

static void place(size_t slot, struct timer *timer) { heap[slot] = timer, timer->slot = slot; }

static void sift(size_t slot, struct timer *timer) {
    for (; slot > 1 && sooner(timer, heap[slot / 2]); slot /= 2) place(slot, heap[slot / 2]);
    for (size_t child; (child = slot * 2) <= heap_used; slot = child) {
        if (child < heap_used && sooner(heap[child + 1], heap[child])) child++;
        if (!sooner(heap[child], timer)) break;
        place(slot, heap[child]);
    }
    place(slot, timer);
}

void clear_timer(struct timer *timer) {
    size_t slot = timer->slot;
    if (!slot) return;
    timer->slot = 0;
    struct timer *last = heap[heap_used--];
    if (last != timer) sift(slot, last);
}

void set_timer(struct timer *timer, int64_t at, void (*fire)(struct timer *)) {
    clear_timer(timer);
    timer->at = at, timer->number = ++timer_numbers, timer->fire = fire;
    heap = widen(heap, &heap_room, heap_used + 2, sizeof *heap);
    sift(++heap_used, timer);
}

static void fire_timers(void) {
    int64_t time = now();
    for (int i = 0; i < TIMERS && heap_used && heap[1]->at <= time; i++) {
        struct timer *timer = heap[1];
        clear_timer(timer);
        timer->fire(timer);
    }
}

/* ----------------------------------------------------------- events, the log */

void logged(const char *format, ...) {
    char line[512];
    int used = snprintf(line, sizeof line, "%lld - ", (long long)(now() / 1000));
    va_list list;
    va_start(list, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, list);
    va_end(list);
    log_line(line);
}

void send_event(struct context *context, int event, uint64_t element) {
    uint64_t words[2] = {(uint64_t)event, element};
    if (write(context->async_write, words, sizeof words) != sizeof words)
        logged("%s lost_event event=%s", context->nic->name, event_name(event));
}

/* ----------------------------------------------------------------- contexts */

void refresh_pages(void) {
    for (struct context *context = contexts; context; context = context->next)
        context->page->always_call = poll_is_watched(context->nic->index) || context->nic->ghosts;
}

static void destroy_context(struct context *context) {
    static const enum kind order[] = {QP, MR, CQ, CHANNEL, PD};
    struct reply unused;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        for (uint32_t handle = 1; handle < objects_end(); handle++) {
            struct object *object = object_at(handle);
            if (object && object->kind == order[i] && object->context == context) destroy_object(object, &unused);
        }
    drop_landings(context);
    for (struct connection *at = connections; at; at = at->next)
        if (at->context == context) {
            at->context = NULL;
            shutdown(at->source.fd, SHUT_RDWR);
        }
    struct context **link = &contexts;
    while (*link != context) link = &(*link)->next;
    *link = context->next;
    context->nic->contexts--;
    logged("%s context_gone id=%u of=%d", context->nic->name, context->id, (int)context->pid);
    clear_timer(&context->gone);
    unlink(context->page_path);
    munmap(context->page, PAGE_BYTES);
    if (context->exit.fd >= 0) forget(&context->exit);
    close(context->lock_fd), close(context->async_read), close(context->async_write);
    free(context);
}

/* The owner's connection has ended: the context lives on while some process still maps its page. */
static void look_whether_gone(struct timer *timer) {
    struct context *context = OF(struct context, gone, timer);
    if (settings.mapping && flock(context->lock_fd, LOCK_EX | LOCK_NB)) {
        set_timer(timer, now() + MILLISECOND, look_whether_gone);
        return;
    }
    destroy_context(context);
}

/* From here on its number may be another's. */
static void process_ended(struct source *source, uint32_t events) {
    struct context *context = OF(struct context, exit, source);
    (void)events;
    context->dead = true;
    forget(source);
    source->fd = -1;
}

static struct context *make_context(struct connection *owner, struct nic *nic) {
    int ends[2];
    struct context *context = allocate(sizeof *context);
    context->id = ++context_ids, context->token = draw(), context->pid = owner->pid, context->nic = nic;
    context->owner = owner;
    snprintf(context->page_path, sizeof context->page_path, "%s/dev/infiniband/uverbs%u.%u", folder, nic->index,
             context->id);
    context->lock_fd = open(context->page_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    context->page = context->lock_fd < 0 || ftruncate(context->lock_fd, PAGE_BYTES)
                        ? MAP_FAILED
                        : mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, context->lock_fd, 0);
    if (context->page == MAP_FAILED || pipe2(ends, O_CLOEXEC)) {
        if (context->lock_fd >= 0) close(context->lock_fd);
        if (context->page != MAP_FAILED) munmap(context->page, PAGE_BYTES);
        free(context);
        return NULL;
    }
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    context->async_read = ends[0], context->async_write = ends[1];
    context->exit = (struct source){(int)syscall(SYS_pidfd_open, context->pid, 0), process_ended};
    if (context->exit.fd >= 0) watch(&context->exit);
    context->next = contexts, contexts = context;
    nic->contexts++;
    refresh_pages();
    return context;
}

static int open_context(struct call *call) {
    if (call->connection->context || call->request.arg[0] >= nic_count) return ENODEV;
    struct context *context = make_context(call->connection, &nics[call->request.arg[0]]);
    if (!context) return EMFILE;
    call->context = call->connection->context = context;
    call->reply.value[0] = context->id, call->reply.value[1] = context->token;
    call->give = context->async_read;
    call->out_len = strlen(context->page_path) + 1;
    if (call->out_len > call->out_room) return ENAMETOOLONG;
    memcpy(call->out, context->page_path, call->out_len);
    return 0;
}

static int attach(struct call *call) {
    uint64_t *arg = call->request.arg;
    for (struct context *context = contexts; context && !call->connection->context; context = context->next)
        if (context->id == arg[0] && context->token == arg[1]) call->context = call->connection->context = context;
    return call->context ? 0 : EINVAL;
}

/* ------------------------------------------------------------------- devices */

static int list_devices(struct call *call) {
    struct listed *list = (struct listed *)call->out;
    for (uint32_t i = 0; i < nic_count; i++) {
        list[i] = (struct listed){i, settings.link_layer, 0x020000fffe000001 + i, "", ""};
        snprintf(list[i].name, sizeof list[i].name, "%s", nics[i].name);
        snprintf(list[i].dev_name, sizeof list[i].dev_name, "uverbs%u", i);
    }
    call->reply.value[0] = nic_count;
    call->out_len = nic_count * sizeof *list;
    return 0;
}

static int query_device(struct call *call) {
    struct nic *nic = call->context->nic;
    struct limits *limits = &nic->limits;
    struct fv_device_attr attr = {
        .fw_ver = "1.0.fake", .node_guid = __builtin_bswap64(0x020000fffe000001 + nic->index),
        .sys_image_guid = __builtin_bswap64(0x020000fffe000001 + nic->index), .max_mr_size = limits->max_mr_size,
        .page_size_cap = 0xfffff000, .vendor_id = 0xfa4e, .vendor_part_id = 1, .max_qp = (int)limits->max_qp,
        .max_qp_wr = (int)limits->max_qp_wr, .max_sge = (int)limits->max_sge, .max_sge_rd = (int)limits->max_sge,
        .max_cq = 65536, .max_cqe = (int)limits->max_cqe, .max_mr = (int)limits->max_mr, .max_pd = 65536,
        .max_qp_rd_atom = (int)limits->max_rd_atomic, .max_qp_init_rd_atom = (int)limits->max_rd_atomic,
        .max_res_rd_atom = (int)(limits->max_rd_atomic * limits->max_qp), .max_pkeys = 1, .phys_port_cnt = 1};
    memcpy(call->out, &attr, call->out_len = sizeof attr);
    return 0;
}

static int query_port(struct call *call) {
    struct nic *nic = call->context->nic;
    if (call->request.arg[0] != PORT) return EINVAL;
    double gbps = nominal_gbps(nic);
    struct fv_port_attr attr = {
        .state = nic->up ? FV_PORT_ACTIVE : FV_PORT_DOWN, .max_mtu = FV_MTU_4096, .active_mtu = (int)nic->limits.mtu,
        .gid_tbl_len = GIDS, .port_cap_flags = 1 << 16, .max_msg_sz = 1 << 30, .pkey_tbl_len = 1,
        .lid = settings.link_layer == FV_LINK_LAYER_ETHERNET ? 0 : nic->lid, .max_vl_num = 1, .active_width = 2,
        .active_speed = gbps > 150 ? 64 : gbps > 80 ? 32 : gbps > 45 ? 16 : gbps > 20 ? 4 : 1,
        .phys_state = nic->up ? 5 : 3, .link_layer = (uint8_t)settings.link_layer};
    memcpy(call->out, &attr, call->out_len = sizeof attr);
    return 0;
}

static int query_table(struct call *call) {
    struct nic *nic = call->context->nic;
    uint64_t index = call->request.arg[1];
    if (call->request.arg[0] != PORT || index >= (call->request.verb == QUERY_GID ? GIDS : 1)) return EINVAL;
    if (call->request.verb == QUERY_PKEY) {
        call->reply.value[0] = 0xffff;
        return 0;
    }
    struct fv_gid_entry entry = {nic->gids[index], (uint32_t)index, PORT, nic->gid_types[index], 0};
    memcpy(call->out, &entry, call->out_len = sizeof entry);
    return 0;
}

static int fork_call(struct call *call) {
    if (call->request.verb == FORK_INIT) {
        if (!settings.fork_error && settings.fork_status == FV_FORK_DISABLED) settings.fork_status = FV_FORK_ENABLED;
        return settings.fork_error;
    }
    call->reply.value[0] = (uint64_t)settings.fork_status;
    return 0;
}

/* --------------------------------------------------------------------- calls */

static int dispatch(struct call *call) {
    switch (call->request.verb) {
    case GET_DEVICE_LIST: return list_devices(call);
    case OPEN_DEVICE: return open_context(call);
    case ATTACH: return attach(call);
    case FORK_INIT: case IS_FORK_INITIALIZED: return fork_call(call);
    }
    if (!call->context) return EINVAL;
    switch (call->request.verb) {
    case CLOSE_DEVICE: return 0;
    case QUERY_DEVICE: return query_device(call);
    case QUERY_PORT: return query_port(call);
    case QUERY_GID: case QUERY_PKEY: return query_table(call);
    case ALLOC_PD: case DEALLOC_PD: return pd_call(call);
    case REG_MR: case REG_DMABUF_MR: case DEREG_MR: return mr_call(call);
    case CREATE_COMP_CHANNEL: case DESTROY_COMP_CHANNEL: return channel_call(call);
    case CREATE_CQ: case DESTROY_CQ: case POLL_CQ: case REQ_NOTIFY_CQ: return cq_call(call);
    default: return qp_call(call);
    }
}

static void answer(struct call *call) {
    struct iovec parts[2] = {{&call->reply, sizeof call->reply}, {call->out, call->out_len}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = call->out_len ? 2 : 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    if (call->give >= 0) {
        message.msg_control = &control, message.msg_controllen = sizeof control;
        memset(&control, 0, sizeof control);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_len = CMSG_LEN(sizeof(int)), header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(header), &call->give, sizeof(int));
    }
    if (sendmsg(call->connection->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        shutdown(call->connection->source.fd, SHUT_RDWR);
}

/* The state that a modify_qp asks for; -1: none. */
static int wanted_state(struct call *call) {
    struct fv_qp_attr attr;
    if (call->request.verb != MODIFY_QP || call->len != sizeof attr || !(call->request.arg[1] & FV_QP_STATE)) return -1;
    memcpy(&attr, call->body, sizeof attr);
    return attr.qp_state;
}

static void handle(struct connection *connection, const unsigned char *message, size_t len, bool again) {
    static unsigned char out[MESSAGE_MOST];
    struct call call = {.connection = connection, .context = connection->context, .body = message + sizeof call.request,
                        .len = len - sizeof call.request, .out = out,
                        .out_room = sizeof out - sizeof call.reply, .give = -1};
    memcpy(&call.request, message, sizeof call.request);
    uint32_t verb = call.request.verb;
    if (call.request.magic != MAGIC || verb >= VERBS) {
        shutdown(connection->source.fd, SHUT_RDWR);
        return;
    }
    int state = wanted_state(&call);
    uint32_t nic = call.context ? call.context->nic->index
                                : verb == OPEN_DEVICE ? (uint32_t)call.request.arg[0] : UINT32_MAX;
    if (!again && verb != ATTACH && hangs(verb, state, nic)) {
        connection->hung = allocate(len);
        memcpy(connection->hung, message, connection->hung_len = len);
        logged("hung %s by=%d", verb_names[verb], (int)connection->pid);
        return;
    }
    call.reply.error = verb == ATTACH ? 0 : refused(verb, state, nic);
    if (!call.reply.error) call.reply.error = dispatch(&call);
    call.reply.magic = MAGIC;
    if (call.reply.error) call.out_len = 0;
    if (verb != ATTACH && (verb != POLL_CQ || call.reply.error || call.note[0])) {
        char line[512];
        snprintf(line, sizeof line, "%lld %d %s %s%s%s %s", (long long)(now() / 1000), (int)connection->pid,
                 nic < nic_count ? nics[nic].name : "-", verb_names[verb], *call.note ? " " : "", call.note,
                 call.reply.error ? strerrorname_np(call.reply.error) : "ok");
        log_line(line);
    }
    struct context *closed = verb == CLOSE_DEVICE && !call.reply.error ? call.context : NULL;
    answer(&call);
    if (closed) destroy_context(closed);
}

static void drop_connection(struct connection *connection) {
    struct context *context = connection->context;
    struct connection **link = &connections;
    while (*link != connection) link = &(*link)->next;
    *link = connection->next;
    forget(&connection->source);
    free(connection->hung);
    if (context && context->owner == connection) {
        context->owner = NULL;
        look_whether_gone(&context->gone);
    }
    free(connection);
}

static void connection_ready(struct source *source, uint32_t events) {
    static unsigned char message[MESSAGE_MOST + 1];
    struct connection *connection = OF(struct connection, source, source);
    ssize_t len = recv(source->fd, message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
    if (len < 0 && (errno == EAGAIN || errno == EINTR) && !(events & (EPOLLHUP | EPOLLERR))) return;
    if (len < (ssize_t)sizeof(struct request) || len > MESSAGE_MOST || connection->hung) {
        drop_connection(connection);
        return;
    }
    handle(connection, message, (size_t)len, false);
}

/* Takes up the calls that hang: those of a verb, or all. */
void answer_hung(enum verb verb) {
    for (struct connection *at = connections; at; at = at->next) {
        if (!at->hung || (verb != VERBS && ((struct request *)at->hung)->verb != verb)) continue;
        unsigned char *message = at->hung;
        at->hung = NULL;
        handle(at, message, at->hung_len, true);
        free(message);
    }
}

unsigned hung_calls(void) {
    unsigned count = 0;
    for (struct connection *at = connections; at; at = at->next) count += at->hung != NULL;
    return count;
}

static void accept_library(struct source *source, uint32_t events) {
    (void)events;
    int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    struct connection *connection = allocate(sizeof *connection);
    connection->source = (struct source){fd, connection_ready};
    connection->pid = peer.pid;
    connection->next = connections, connections = connection;
    watch(&connection->source);
}

/* ---------------------------------------------------------------------- main */

bool watch(struct source *source) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    return !epoll_ctl(poller, EPOLL_CTL_ADD, source->fd, &event);
}

void forget(struct source *source) {
    epoll_ctl(poller, EPOLL_CTL_DEL, source->fd, NULL);
    close(source->fd);
}

static void input_ready(struct source *source, uint32_t events) {
    char bytes[256];
    (void)events;
    if (read(source->fd, bytes, sizeof bytes) <= 0) exit(0);
}

static void listen_at(struct source *source, const char *name, int type, void (*ready)(struct source *, uint32_t)) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/%s", dir, name);
    unlink(addr.sun_path);
    *source = (struct source){socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), ready};
    if (dir < 0 || bind(source->fd, (struct sockaddr *)&addr, sizeof addr) || listen(source->fd, 128)) {
        fprintf(stderr, "fabric: cannot listen at %s/%s: %s\n", folder, name, strerror(errno));
        exit(1);
    }
    close(dir);
    watch(source);
}

void listen_for_tests(struct source *source, void (*ready)(struct source *, uint32_t)) {
    listen_at(source, "control", SOCK_STREAM, ready);
}

static void serve(void) {
    struct epoll_event events[32];
    struct itimerspec alarm = {0};
    struct source clock = {timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), NULL};
    int64_t set = 0;
    watch(&clock);
    for (;;) {
        bool busy = turns_left() || (heap_used && heap[1]->at <= now());
        if (!busy && heap_used && heap[1]->at != set) {
            set = heap[1]->at;
            alarm.it_value = (struct timespec){set / 1000000000, set % 1000000000};
            timerfd_settime(clock.fd, TFD_TIMER_ABSTIME, &alarm, NULL);
        }
        /* One at a time: what one does may free another's source. */
        int count = epoll_wait(poller, events, 1, busy ? 0 : -1);
        if (count > 0 && events[0].data.ptr == &clock) {
            uint64_t ticks;
            if (read(clock.fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN) return;
            set = 0;
        } else if (count > 0) {
            struct source *source = events[0].data.ptr;
            source->ready(source, events[0].events);
        }
        fire_timers();
        for (int i = 0; i < UNITS && run_some(); i++) continue;
        control_check();
    }
}

static void usage(void) {
    fprintf(stderr, "usage: fabric FOLDER [--seed N] [--nics K] [--numa LIST] [--link-layer ib|eth] [--stay]\n");
    exit(2);
}

int main(int argc, char **argv) {
    const char *numa = "";
    bool stay = false;
    static struct source input, library;
    char path[8192];
    if (argc < 2 || !realpath(argv[1], folder)) usage();
    settings.seed = (uint64_t)now() * 0x9e3779b97f4a7c15 >> 32;
    for (int i = 2; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--stay")) stay = true;
        else if (!strcmp(argv[i], "--seed") && more) settings.seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--nics") && more) nic_count = (uint32_t)strtoul(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--numa") && more) numa = argv[++i];
        else if (!strcmp(argv[i], "--link-layer") && more)
            settings.link_layer = strcmp(argv[++i], "ib") ? FV_LINK_LAYER_ETHERNET : FV_LINK_LAYER_INFINIBAND;
        else usage();
    }
    if (nic_count > DEVICES_MOST) usage();
    seed(settings.seed);
    signal(SIGPIPE, SIG_IGN), signal(SIGINT, SIG_IGN);
    mallopt(M_MMAP_THRESHOLD, 64 << 20), mallopt(M_TRIM_THRESHOLD, 256 << 20); /* messages come and go */
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1000UL);
    poller = epoll_create1(EPOLL_CLOEXEC);
    snprintf(path, sizeof path, "%s/dev/infiniband", folder);
    make_folder(path);
    for (uint32_t i = 0; i < nic_count; i++) {
        int node = *numa && strncmp(numa, "-,", 2) && strcmp(numa, "-") ? atoi(numa) : NO_DEVICE;
        numa += strcspn(numa, ",");
        numa += *numa == ',';
        make_nic(i, node);
    }
    listen_at(&library, "socket", SOCK_SEQPACKET, accept_library);
    control_start();
    if (!stay) {
        input = (struct source){STDIN_FILENO, input_ready};
        /* Where the input cannot be watched (a file), the end of the thread that started this counts instead. */
        if (!watch(&input)) prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    printf("ready seed %lu folder %s\n", settings.seed, folder);
    fflush(stdout);
    serve();
    return 1;
}
