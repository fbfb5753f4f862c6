/* What self_test.c is made of: the fabric's commands, an end with its queue pairs, the peer process, requests. */
#ifndef FAKE_VERBS_SELF_TEST_H
#define FAKE_VERBS_SELF_TEST_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 8 << 20, DEPTH = 256, QPS = 64, ACCESS = 7 };

static const char *fabric_folder;
static int control = -1, checks, failures;
static char answer[1 << 20];
static uint64_t state = 1;

#define CHECK(what, ...)                                                                     \
    do {                                                                                     \
        checks++;                                                                            \
        if (!(what)) {                                                                       \
            failures++;                                                                      \
            fprintf(stderr, "%d: %s is not so; ", __LINE__, #what);                          \
            fprintf(stderr, " " __VA_ARGS__);                                                 \
            fprintf(stderr, "\n");                                                           \
        }                                                                                    \
    } while (0)

static uint64_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void must(int yes, const char *what) {
    if (yes) return;
    fprintf(stderr, "self_test: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int reach(const char *name, int type) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/%s", fabric_folder, name);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    must(!connect(fd, (struct sockaddr *)&addr, sizeof addr), addr.sun_path);
    return fd;
}

/* One command; its answer, of several lines for some, is left in `answer`. */
static char *tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *tell(const char *format, ...) {
    char line[256];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    int many = !strcmp(line, "log") || !strcmp(line, "count") || !strcmp(line, "bytes") || !strcmp(line, "qps");
    strcat(line, "\n");
    must(write(control, line, strlen(line)) > 0, "control");
    size_t used = 0;
    for (;;) {
        ssize_t done = read(control, answer + used, sizeof answer - used - 1);
        must(done > 0, "control's answer");
        used += (size_t)done;
        answer[used] = 0;
        if (answer[used - 1] != '\n') continue;
        if (!many || !strcmp(answer, ".\n") || (used > 2 && !strcmp(answer + used - 3, "\n.\n"))) break;
    }
    if (!many && strncmp(answer, "ok", 2)) fprintf(stderr, "self_test: %s -> %s", line, answer);
    return answer;
}

/* A number of `count` or `bytes`: of this NIC, after this word. */
static long figure(const char *command, const char *nic, const char *word) {
    char *line = strstr(tell("%s", command), nic);
    char *at = line ? strstr(line, word) : NULL;
    return at ? atol(at + strlen(word)) : -1;
}

/* --------------------------------------------------------------------- an end */

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp[QPS];
    unsigned char *bytes;
    union ibv_gid gid;
};

/* What one end tells the other. */
struct card {
    uint32_t qpn, psn, rkey, nic;
    uint64_t addr;
    union ibv_gid gid;
};

static struct ibv_context *open_nic(unsigned nic) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > (int)nic, "devices");
    struct ibv_context *context = ibv_open_device(list[nic]);
    must(context != NULL, "open_device");
    ibv_free_device_list(list);
    return context;
}

static void make_end(struct end *end, unsigned nic, unsigned char *bytes) {
    memset(end, 0, sizeof *end);
    end->context = open_nic(nic), end->bytes = bytes;
    must((end->pd = ibv_alloc_pd(end->context)) != NULL, "alloc_pd");
    must((end->mr = ibv_reg_mr(end->pd, bytes, BYTES, ACCESS)) != NULL, "reg_mr");
    must((end->channel = ibv_create_comp_channel(end->context)) != NULL, "create_comp_channel");
    must((end->cq = ibv_create_cq(end->context, 2 * DEPTH, end, end->channel, 0)) != NULL, "create_cq");
    must(!ibv_query_gid(end->context, 1, 3, &end->gid), "query_gid");
}

static struct card make_qp(struct end *end, int slot) {
    struct ibv_qp_init_attr init = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
                                    .cap = {DEPTH, 1, 4, 1, 128}};
    must((end->qp[slot] = ibv_create_qp(end->pd, &init)) != NULL, "create_qp");
    return (struct card){end->qp[slot]->qp_num, (uint32_t)(draw() & 0xffffff), end->mr->rkey, 0, (uintptr_t)end->bytes,
                         end->gid};
}

static int connect_qp(struct ibv_qp *qp, struct card mine, struct card theirs, enum ibv_mtu mtu) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
    int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error) return error;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = theirs.qpn,
                                .rq_psn = theirs.psn, .max_dest_rd_atomic = 16, .min_rnr_timer = 12};
    attr.ah_attr = (struct ibv_ah_attr){.grh = {.dgid = theirs.gid, .sgid_index = 3, .hop_limit = 64}, .is_global = 1,
                                        .port_num = 1};
    error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                                         | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error) return error;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                                .sq_psn = mine.psn, .max_rd_atomic = 16};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                                        | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int to_err(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/* ------------------------------------------------------------------- the peer */

enum { MAKE_QP = 1, CONNECT, DESTROY, STATE, FORK_KEEPER, FORK_CLEAN, FORK_OPEN, FORK_CALLS };

struct order {
    int what, slot;
    enum ibv_mtu mtu;
    struct card mine, theirs;
};

struct peer {
    pid_t pid;
    int fd;
    unsigned char *bytes; /* the same memory */
};

/* The device pages that a real library maps are this file's in /proc/self/maps. */
static void forget_in_children(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    unsigned long from, to;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "/dev/infiniband/") && sscanf(line, "%lx-%lx", &from, &to) == 2)
            madvise((void *)from, to - from, MADV_DONTFORK);
    fclose(maps);
}

static int peer_main(int fd, int memory, unsigned nic) {
    struct end end;
    struct order order;
    unsigned char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    must(bytes != MAP_FAILED, "mmap");
    state = (uint64_t)getpid() * 77 + 5;
    make_end(&end, nic, bytes);
    while (read(fd, &order, sizeof order) == sizeof order) {
        struct card card = {0};
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        pid_t child = 0;
        switch (order.what) {
        case MAKE_QP: card = make_qp(&end, order.slot); break;
        case CONNECT: card.qpn = (uint32_t)connect_qp(end.qp[order.slot], order.mine, order.theirs, order.mtu); break;
        case DESTROY: card.qpn = (uint32_t)ibv_destroy_qp(end.qp[order.slot]); break;
        case STATE:
            ibv_query_qp(end.qp[order.slot], &attr, IBV_QP_STATE, &init);
            card.qpn = attr.qp_state;
            break;
        case FORK_CLEAN: case FORK_OPEN: forget_in_children(); /* fall through */
        case FORK_KEEPER: case FORK_CALLS:
            child = fork();
            if (!child) {
                if (order.what == FORK_CALLS) ibv_destroy_qp(end.qp[order.slot]); /* not its own: it ends here */
                if (order.what != FORK_OPEN) close(end.context->cmd_fd);
                close(end.context->async_fd), close(fd);
                sleep(30);
                _exit(0);
            }
            card.qpn = (uint32_t)child;
            if (order.what == FORK_CALLS) {
                int status;
                waitpid(child, &status, 0);
                card.qpn = (uint32_t)WEXITSTATUS(status);
            }
        }
        must(write(fd, &card, sizeof card) == sizeof card, "reply");
    }
    return 0;
}

static struct peer start_peer(unsigned nic) {
    struct peer peer;
    int ends[2], memory = memfd_create("peer", 0);
    char fd_word[16], memory_word[16], nic_word[16];
    must(!ftruncate(memory, BYTES), "memfd");
    must(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    peer.bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    peer.fd = ends[0];
    snprintf(fd_word, sizeof fd_word, "%d", ends[1]), snprintf(memory_word, sizeof memory_word, "%d", memory);
    snprintf(nic_word, sizeof nic_word, "%u", nic);
    peer.pid = fork();
    if (!peer.pid) {
        execl("/proc/self/exe", "self_test", "--peer", fd_word, memory_word, nic_word, NULL);
        _exit(1);
    }
    close(ends[1]), close(memory);
    return peer;
}

static struct card ask(struct peer *peer, struct order order) {
    struct card card;
    must(write(peer->fd, &order, sizeof order) == sizeof order, "order");
    must(read(peer->fd, &card, sizeof card) == sizeof card, "peer");
    return card;
}

static void end_peer(struct peer *peer) {
    kill(peer->pid, SIGKILL);
    waitpid(peer->pid, NULL, 0);
    close(peer->fd);
    munmap(peer->bytes, BYTES);
}

/* A queue pair in `slot` of both, connected. */
static struct card join_with(struct end *end, struct peer *peer, int slot, enum ibv_mtu theirs_mtu, uint32_t psn_off) {
    struct card mine = make_qp(end, slot), theirs = ask(peer, (struct order){.what = MAKE_QP, .slot = slot});
    struct card told = mine;
    told.psn = (told.psn + psn_off) & 0xffffff;
    struct card done = ask(peer, (struct order){CONNECT, slot, theirs_mtu, theirs, told});
    CHECK(!done.qpn, "the peer's connect: %u", done.qpn);
    int error = connect_qp(end->qp[slot], mine, theirs, IBV_MTU_1024);
    CHECK(!error, "connect: %d", error);
    return theirs;
}

static struct card join(struct end *end, struct peer *peer, int slot) {
    return join_with(end, peer, slot, IBV_MTU_1024, 0);
}

static void part(struct end *end, struct peer *peer, int slot) {
    CHECK(!ibv_destroy_qp(end->qp[slot]));
    ask(peer, (struct order){.what = DESTROY, .slot = slot});
}

/* ------------------------------------------------------------------- requests */

struct piece {
    size_t at, len;
};

static int post(struct end *end, int slot, struct card *to, enum ibv_wr_opcode opcode, unsigned flags, uint64_t id,
                size_t there, const struct piece *pieces, int count) {
    struct ibv_sge sge[4];
    for (int i = 0; i < count; i++)
        sge[i] = (struct ibv_sge){(uintptr_t)end->bytes + pieces[i].at, (uint32_t)pieces[i].len, end->mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = id, .sg_list = sge, .num_sge = count, .opcode = opcode};
    wr.send_flags = flags;
    wr.wr.rdma.remote_addr = to->addr + there, wr.wr.rdma.rkey = to->rkey;
    return ibv_post_send(end->qp[slot], &wr, &bad);
}

static int post_one(struct end *end, int slot, struct card *to, enum ibv_wr_opcode opcode, unsigned flags, uint64_t id,
                    size_t there, size_t here, size_t len) {
    struct piece piece = {here, len};
    return post(end, slot, to, opcode, flags, id, there, &piece, 1);
}

/* The next completion, or id -1 after `patience` seconds. */
static struct ibv_wc next(struct end *end, double patience) {
    struct ibv_wc wc;
    double stop = seconds() + patience;
    do {
        int count = ibv_poll_cq(end->cq, 1, &wc);
        if (count == 1) return wc;
        if (count < 0) break;
    } while (seconds() < stop);
    return (struct ibv_wc){.wr_id = UINT64_MAX, .status = IBV_WC_GENERAL_ERR};
}

static void expect(struct end *end, uint64_t id, enum ibv_wc_status status, int line) {
    struct ibv_wc wc = next(end, 5);
    checks++;
    if (wc.wr_id == id && wc.status == status) return;
    failures++;
    fprintf(stderr, "%d: completion %ld %s instead of %ld %s\n", line, (long)wc.wr_id, ibv_wc_status_str(wc.status),
            (long)id, ibv_wc_status_str(status));
}

#define EXPECT(end, id, status) expect(end, id, status, __LINE__)

static void fill(unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) bytes[i] = (unsigned char)(draw() >> 24);
}

static int all(const unsigned char *bytes, size_t len, unsigned char value) {
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != value) return 0;
    return 1;
}

#endif
