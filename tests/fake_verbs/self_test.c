/* The fake provider's own test, compiled with the real headers: a program and a second process of it exchange bytes,
 * and each switch of the fabric is seen to do what it says. self_test.sh builds and runs it.
 *
 * self_test FOLDER: FOLDER has a running fabric of three NICs. The peer's memory is shared with the program, which
 * therefore sees at once what has landed there.
 */
#define _GNU_SOURCE
#include "self_test.h"

static void facts(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(count == 3 && list[3] == NULL);
    CHECK(!strcmp(ibv_get_device_name(list[1]), "fake1"));
    CHECK(be64toh(ibv_get_device_guid(list[1])) == 0x020000fffe000002);
    char path[600], text[64] = "";
    snprintf(path, sizeof path, "%s/ports/1/gid_attrs/types/3", list[1]->ibdev_path);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof text, file) && !strcmp(text, "RoCE v2\n"), "%s", path);
    if (file) fclose(file);
    struct ibv_context *context = ibv_open_device(list[1]);
    ibv_free_device_list(list);
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    struct ibv_gid_entry entry;
    CHECK(!ibv_query_device(context, &device) && device.phys_port_cnt == 1 && device.max_sge == 4);
    CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE && port.link_layer == 2);
    CHECK(ibv_query_port(context, 2, &port) == EINVAL);
    CHECK(!ibv_query_gid_ex(context, 1, 3, &entry, 0) && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
    CHECK(ibv_query_gid_ex(context, 1, 5, &entry, 0) == ENODATA);
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    CHECK(library && dlvsym(library, "ibv_get_device_list", "IBVERBS_1.0")
          != dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1"));
    CHECK(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8") && dlvsym(library, "_ibv_query_gid_ex", "IBVERBS_1.11"));
    CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED && !ibv_fork_init());
    CHECK(!ibv_close_device(context));
    CHECK(figure("count", "fake1", "contexts=") == 0);
    setenv("FAKE_VERBS_NICS", "0,2", 1);
    list = ibv_get_device_list(&count);
    CHECK(count == 2 && !strcmp(list[1]->name, "fake2"));
    ibv_free_device_list(list);
    unsetenv("FAKE_VERBS_NICS");
    unsetenv("FAKE_VERBS");
    list = ibv_get_device_list(&count);
    CHECK(list && !count && !list[0]);
    ibv_free_device_list(list);
    setenv("FAKE_VERBS", fabric_folder, 1);
    pid_t child = fork();
    if (!child) {
        struct ibv_device **(*oldest)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.0");
        fclose(stderr);
        oldest(&count);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    printf("facts: ok\n");
}

static void exchange(struct end *end, struct peer *peer) {
    struct card to = join(end, peer, 0);
    size_t bytes = 0;
    for (int round = 0; round < 400; round++) {
        static const size_t most[] = {1, 64, 128, 5000, 70000, 1 << 20};
        size_t len = draw() % (most[draw() % 6] + 1), there = draw() % (BYTES / 2 - len);
        struct piece pieces[4];
        int count = 1 + (int)(draw() % 4);
        size_t left = len, at = draw() % 4096;
        for (int i = 0; i < count; i++) {
            size_t some = i == count - 1 ? left : draw() % (left + 1);
            pieces[i] = (struct piece){at, some};
            at += some + draw() % 100, left -= some;
        }
        fill(end->bytes, at);
        unsigned flags = len <= 128 && draw() % 2 ? IBV_SEND_INLINE : 0;
        CHECK(!post(end, 0, &to, IBV_WR_RDMA_WRITE, flags | IBV_SEND_SIGNALED, 1, there, pieces, count));
        if (flags & IBV_SEND_INLINE) /* it is the caller's again */
            for (int i = 0; i < count; i++) memset(end->bytes + pieces[i].at, 0xee, pieces[i].len);
        CHECK(!post_one(end, 0, &to, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 2, there, BYTES / 2, len));
        EXPECT(end, 1, IBV_WC_SUCCESS);
        EXPECT(end, 2, IBV_WC_SUCCESS);
        CHECK(!memcmp(peer->bytes + there, end->bytes + BYTES / 2, len), "round %d, %zu bytes", round, len);
        size_t offset = 0;
        for (int i = 0; i < count && !(flags & IBV_SEND_INLINE); offset += pieces[i++].len)
            CHECK(!memcmp(peer->bytes + there + offset, end->bytes + pieces[i].at, pieces[i].len), "round %d", round);
        bytes += 2 * len;
    }
    part(end, peer, 0);
    printf("exchange: 400 rounds, %.0f MB\n", (double)bytes / 1e6);
}

static void late_sight(struct end *end, struct peer *peer) {
    struct card to = join(end, peer, 0), other = join(end, peer, 1);
    tell("visible 50");
    int unseen = 0, torn = 0;
    for (int round = 0; round < 40; round++) {
        memset(end->bytes, round + 1, 1000);
        memset(peer->bytes, 0, 1000);
        post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 7, 0, 0, 1000);
        EXPECT(end, 7, IBV_WC_SUCCESS);
        int whole = all(peer->bytes, 1000, (unsigned char)(round + 1));
        unseen += !whole, torn += !whole && !all(peer->bytes, 1000, 0);
        post_one(end, round & 1, round & 1 ? &other : &to, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 8, 999, 5000, 1);
        EXPECT(end, 8, IBV_WC_SUCCESS);
        CHECK(all(peer->bytes, 1000, (unsigned char)(round + 1)));
    }
    CHECK(unseen > 5 && torn > 2, "%d unseen, %d in parts", unseen, torn);
    tell("visible 400 all"); /* the remote queue pair's end makes them visible too, and so does time */
    memset(peer->bytes, 0, 1000), memset(end->bytes, 0x66, 1000);
    post_one(end, 1, &other, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, 0, 0, 1000);
    EXPECT(end, 8, IBV_WC_SUCCESS);
    usleep(20000);
    CHECK(all(peer->bytes, 1000, 0));
    part(end, peer, 1);
    CHECK(all(peer->bytes, 1000, 0x66));
    tell("visible 50");
    memset(end->bytes, 0x77, 1000);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 9, 0, 0, 1000);
    EXPECT(end, 9, IBV_WC_SUCCESS);
    usleep(60000);
    CHECK(all(peer->bytes, 1000, 0x77));
    tell("visible 3");
    part(end, peer, 0);
    printf("late sight: %d of 40 completed WRITEs were not in memory, %d in part\n", unseen, torn);
}

static void fence(struct end *end, struct peer *peer) {
    struct card to = join(end, peer, 0);
    int passed[2] = {0, 0};
    for (int round = 0; round < 400; round++) {
        int fenced = round & 1;
        memset(peer->bytes, 1, 64);
        memset(end->bytes, 2, 64);
        post_one(end, 0, &to, IBV_WR_RDMA_READ, 0, 1, 0, 4096, 64);
        post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | (fenced ? IBV_SEND_FENCE : 0), 2, 0, 0, 64);
        EXPECT(end, 2, IBV_WC_SUCCESS);
        passed[fenced] += !all(end->bytes + 4096, 64, 1);
        tell("land all");
    }
    CHECK(passed[0] > 3 && !passed[1]);
    part(end, peer, 0);
    printf("fence: %d of 200 READs were passed by the WRITE behind them, %d with the fence\n", passed[0], passed[1]);
}

static void hold(struct end *end, struct peer *peer) {
    int landed = 0;
    for (int round = 0; round < 20; round++) {
        struct card to = join(end, peer, 0);
        memset(peer->bytes, 0, 512), memset(end->bytes, 5, 512);
        tell("hold 0");
        post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 3, 0, 0, 512);
        CHECK(next(end, 0.01).wr_id == UINT64_MAX);
        tell("quiet");
        landed += all(peer->bytes, 512, 5);
        tell("release 0");
        EXPECT(end, 3, IBV_WC_SUCCESS);
        part(end, peer, 0);
    }
    CHECK(landed > 2 && landed < 18);
    for (int sends = 0; sends < 2; sends++) {
        struct card to = join(end, peer, 0);
        memset(peer->bytes, 0, 512);
        tell(sends ? "hold 0 sends" : "hold 0 stalls");
        post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 3, 0, 0, 512);
        tell("quiet");
        CHECK(all(peer->bytes, 512, sends ? 5 : 0));
        if (!sends) tell("late all 30");
        CHECK(!to_err(end->qp[0]) && next(end, 0.01).wr_id == UINT64_MAX); /* the flush is withheld too */
        tell("quiet");
        CHECK(all(peer->bytes, 512, 5));
        tell("release 0");
        EXPECT(end, 3, IBV_WC_WR_FLUSH_ERR);
        part(end, peer, 0);
    }
    tell("late on 200");
    printf("hold: %d of 20 withheld WRITEs had landed\n", landed);
}

static void lateness(struct end *end, struct peer *peer) {
    int flushed_and_landed = 0, after_destruction = 0;
    tell("late on 60");
    for (int round = 0; round < 40; round++) {
        int destroys = round & 1;
        struct card to = join(end, peer, 0);
        memset(peer->bytes, 0, 4096), memset(end->bytes, 9, 4096);
        tell("hold 0 acks");
        for (int i = 0; i < 4; i++)
            post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 10 + (uint64_t)i, (size_t)i * 1024, 0, 1024);
        CHECK(!to_err(end->qp[0]));
        for (int i = 0; i < 4; i++) EXPECT(end, 10 + (uint64_t)i, IBV_WC_WR_FLUSH_ERR);
        memset(end->bytes, 0xaa, 4096); /* the caller's again: none of this may be sent */
        tell("release 0");
        if (destroys) {
            ask(peer, (struct order){.what = DESTROY, .slot = 0});
            unsigned char copy[4096];
            memcpy(copy, peer->bytes, sizeof copy);
            usleep(70000);
            after_destruction += memcmp(copy, peer->bytes, sizeof copy) != 0;
        } else {
            int before = all(peer->bytes, 4096, 0);
            usleep(70000);
            flushed_and_landed += before && !all(peer->bytes, 4096, 0);
            ask(peer, (struct order){.what = DESTROY, .slot = 0});
        }
        CHECK(!memchr(peer->bytes, 0xaa, 4096));
        CHECK(!ibv_destroy_qp(end->qp[0]));
    }
    CHECK(flushed_and_landed > 0 && !after_destruction, "%d", flushed_and_landed);
    tell("late on 200");
    printf("late: packets of %d of 20 flushed queue pairs landed later, %d after the remote one's end\n",
           flushed_and_landed, after_destruction);
}

static void errors(struct end *end, struct peer *peer) {
    struct ibv_send_wr *bad, wr = {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    struct card to = join(end, peer, 0), wrong = to;
    wrong.rkey ^= 0x80;
    tell("log");
    post_one(end, 0, &wrong, IBV_WR_RDMA_WRITE, 0, 1, 0, 0, 10);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 2, 0, 0, 10);
    EXPECT(end, 1, IBV_WC_REM_ACCESS_ERR);
    EXPECT(end, 2, IBV_WC_WR_FLUSH_ERR);
    CHECK(!post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 3, 0, 0, 10));
    EXPECT(end, 3, IBV_WC_WR_FLUSH_ERR);
    CHECK(ask(peer, (struct order){.what = STATE, .slot = 0}).qpn == IBV_QPS_ERR);
    CHECK(strstr(tell("log"), "event=QP_ACCESS_ERR") != NULL);
    part(end, peer, 0);
    to = join(end, peer, 0);
    CHECK(!post_one(end, 0, &wrong, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 4, 0, 0, 0)); /* no bytes, no key */
    EXPECT(end, 4, IBV_WC_SUCCESS);
    CHECK(post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 5, 0, 0, 129) == EINVAL);
    struct ibv_sge five[5] = {{0, 0, 0}};
    wr.sg_list = five, wr.num_sge = 5;
    CHECK(ibv_post_send(end->qp[0], &wr, &bad) == EINVAL && bad == &wr);
    int posted = 0;
    while (posted < 2 * DEPTH && !post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 6, 0, 0, 1)) posted++;
    CHECK(posted == DEPTH, "%d unsignalled requests fit", posted);
    part(end, peer, 0);
    to = join(end, peer, 0);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 7, BYTES - 5, 0, 10);
    EXPECT(end, 7, IBV_WC_REM_ACCESS_ERR);
    part(end, peer, 0);
    to = join(end, peer, 0);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 8, 0, BYTES - 5, 10);
    EXPECT(end, 8, IBV_WC_LOC_PROT_ERR);
    CHECK(ask(peer, (struct order){.what = STATE, .slot = 0}).qpn == IBV_QPS_RTS);
    part(end, peer, 0);
    double begin = seconds();
    to = join_with(end, peer, 0, IBV_MTU_1024, 1); /* another PSN */
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 9, 0, 0, 10);
    EXPECT(end, 9, IBV_WC_RETRY_EXC_ERR);
    CHECK(seconds() - begin > 0.09 && seconds() - begin < 2);
    part(end, peer, 0);
    to = join_with(end, peer, 0, IBV_MTU_4096, 0);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 10, 0, 0, 1000);
    EXPECT(end, 10, IBV_WC_SUCCESS);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 11, 0, 0, 5000);
    EXPECT(end, 11, IBV_WC_REM_INV_REQ_ERR);
    part(end, peer, 0);
    to = join(end, peer, 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    CHECK(ibv_modify_qp(end->qp[0], &attr, IBV_QP_STATE | IBV_QP_AV) == EINVAL);
    ask(peer, (struct order){.what = DESTROY, .slot = 0});
    post_one(end, 0, &to, IBV_WR_RDMA_READ, 0, 12, 0, 0, 10);
    EXPECT(end, 12, IBV_WC_RETRY_EXC_ERR);
    uint32_t number = end->qp[0]->qp_num;
    CHECK(!ibv_destroy_qp(end->qp[0]));
    CHECK(make_qp(end, 0).qpn == number); /* used again at once */
    ibv_destroy_qp(end->qp[0]);
    printf("errors: ok\n");
}

static void *destroy_it(void *qp) { return (void *)(long)ibv_destroy_qp(qp); }

static void events(struct end *end, struct peer *peer) {
    struct ibv_async_event event;
    struct card to = join(end, peer, 0);
    struct pollfd ready = {end->context->async_fd, POLLIN, 0};
    pthread_t thread;
    tell("event 0 PORT_ERR");
    CHECK(poll(&ready, 1, 1000) == 1 && !ibv_get_async_event(end->context, &event));
    CHECK(event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == 1);
    ibv_ack_async_event(&event);
    double begin = seconds();
    tell("link 0 down");
    CHECK(!ibv_get_async_event(end->context, &event) && event.event_type == IBV_EVENT_PORT_ERR);
    ibv_ack_async_event(&event);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 1, 0, 0, 100);
    EXPECT(end, 1, IBV_WC_RETRY_EXC_ERR);
    CHECK(seconds() - begin > 0.09);
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(end->context, 1, &port) && port.state == IBV_PORT_DOWN);
    tell("link 0 up");
    CHECK(!ibv_get_async_event(end->context, &event) && event.event_type == IBV_EVENT_PORT_ACTIVE);
    ibv_ack_async_event(&event);
    part(end, peer, 0);

    to = join(end, peer, 0);
    tell("event 0 QP_FATAL %u", end->qp[0]->qp_num);
    CHECK(!ibv_get_async_event(end->context, &event) && event.element.qp == end->qp[0]);
    pthread_create(&thread, NULL, destroy_it, end->qp[0]);
    usleep(50000);
    CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY); /* it waits for the acknowledgement */
    ibv_ack_async_event(&event);
    pthread_join(thread, NULL);
    ask(peer, (struct order){.what = DESTROY, .slot = 0});

    to = join(end, peer, 0);
    tell("event 0 QP_FATAL %u", end->qp[0]->qp_num); /* not fetched: nothing to wait for, and it vanishes */
    part(end, peer, 0);
    CHECK(poll(&ready, 1, 0) == 0);

    to = join(end, peer, 0);
    struct pollfd channel = {end->channel->fd, POLLIN, 0};
    struct ibv_cq *cq;
    void *about;
    CHECK(!ibv_req_notify_cq(end->cq, 0) && poll(&channel, 1, 0) == 0);
    post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 2, 0, 0, 100);
    CHECK(poll(&channel, 1, 1000) == 1 && !ibv_get_cq_event(end->channel, &cq, &about));
    CHECK(cq == end->cq && about == end);
    ibv_ack_cq_events(cq, 1);
    EXPECT(end, 2, IBV_WC_SUCCESS);
    tell("qp 0 %u err", end->qp[0]->qp_num);
    CHECK(!post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 3, 0, 0, 100));
    EXPECT(end, 3, IBV_WC_WR_FLUSH_ERR);
    tell("ghost 0 4242 4");
    EXPECT(end, 4242, IBV_WC_LOC_PROT_ERR);
    part(end, peer, 0);

    struct ibv_cq *small = ibv_create_cq(end->context, 1, NULL, NULL, 0), *usual = end->cq;
    end->cq = small;
    to = join(end, peer, 0);
    for (int i = 0; i < 2; i++) post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 5, 0, 0, 1);
    CHECK(poll(&ready, 1, 1000) == 1 && !ibv_get_async_event(end->context, &event));
    CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small);
    ibv_ack_async_event(&event);
    CHECK(!ibv_get_async_event(end->context, &event) && event.event_type == IBV_EVENT_QP_FATAL);
    ibv_ack_async_event(&event);
    CHECK(ibv_destroy_cq(small) == EBUSY);
    part(end, peer, 0);
    CHECK(!ibv_destroy_cq(small));
    end->cq = usual;
    printf("events: ok\n");
}

static void faults(struct end *end, struct peer *peer) {
    struct card to = join(end, peer, 0);
    struct ibv_wc wc;
    pthread_t thread;
    tell("fail reg_mr ENOMEM 2");
    CHECK(!ibv_reg_mr(end->pd, end->bytes, 100, ACCESS) && errno == ENOMEM);
    CHECK(!ibv_reg_mr(end->pd, end->bytes, 100, ACCESS) && errno == ENOMEM);
    struct ibv_mr *mr = ibv_reg_mr(end->pd, end->bytes, 100, ACCESS);
    CHECK(mr && !ibv_dereg_mr(mr));
    CHECK(!ibv_reg_mr(end->pd, (void *)4096, 100, ACCESS) && errno == EFAULT);
    CHECK(!ibv_reg_mr(end->pd, end->bytes, 100, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    mr = ibv_reg_mr_iova2(end->pd, end->bytes, 100, 0x1000, ACCESS | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(mr && !ibv_dereg_mr(mr));
    tell("memlock %d", BYTES + 50);
    CHECK(!ibv_reg_mr(end->pd, end->bytes, 100, ACCESS) && errno == ENOMEM);
    tell("memlock 0");
    tell("fail modify_qp.err EIO");
    CHECK(to_err(end->qp[0]) == EIO);
    tell("fail poll_cq EFAULT");
    CHECK(ibv_poll_cq(end->cq, 1, &wc) == -EFAULT && ibv_poll_cq(end->cq, 1, &wc) == 0);
    tell("fail post_send ENOMEM");
    CHECK(post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 1, 0, 0, 1) == ENOMEM);
    tell("fail get_device_list ENOSYS");
    CHECK(!ibv_get_device_list(NULL) && errno == ENOSYS);
    tell("limit 0 max_qp 1");
    struct ibv_qp_init_attr init = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC};
    init.cap.max_send_wr = 1;
    CHECK(!ibv_create_qp(end->pd, &init) && errno == ENOMEM);
    tell("limit 0 max_qp 4096");
    CHECK(ibv_dealloc_pd(end->pd) == EBUSY);
    tell("hang destroy_qp");
    pthread_create(&thread, NULL, destroy_it, end->qp[0]);
    usleep(30000);
    mr = ibv_reg_mr(end->pd, end->bytes, 100, ACCESS); /* others go on */
    CHECK(mr && !ibv_dereg_mr(mr) && pthread_tryjoin_np(thread, NULL) == EBUSY);
    tell("unhang destroy_qp");
    void *result;
    CHECK(!pthread_join(thread, &result) && !result);
    ask(peer, (struct order){.what = DESTROY, .slot = 0});
    char *log = tell("log");
    CHECK(strstr(log, "hung destroy_qp") && strstr(log, "EFAULT"));
    printf("faults: ok\n");
}

static void processes(struct end *end) {
    static const int kinds[] = {0, FORK_KEEPER, FORK_CLEAN, FORK_OPEN};
    for (int kind = 0; kind < 4; kind++) {
        int keeps = kinds[kind] == FORK_KEEPER || kinds[kind] == FORK_OPEN;
        struct peer peer = start_peer(2);
        struct card to = join(end, &peer, 0);
        memset(end->bytes, 3, 100);
        pid_t child = 0;
        if (!kind) CHECK(ask(&peer, (struct order){.what = FORK_CALLS}).qpn == 97);
        if (kind) child = (pid_t)ask(&peer, (struct order){.what = kinds[kind]}).qpn;
        kill(peer.pid, SIGSTOP); /* its NIC goes on */
        post_one(end, 0, &to, IBV_WR_RDMA_WRITE, 0, 1, 0, 0, 100);
        post_one(end, 0, &to, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 2, 0, 500, 100);
        EXPECT(end, 2, IBV_WC_SUCCESS);
        CHECK(all(peer.bytes, 100, 3) && all(end->bytes + 500, 100, 3));
        CHECK(figure("count", "fake2", "qps=") == 1);
        end_peer(&peer);
        usleep(100000);
        CHECK(figure("count", "fake2", "qps=") == keeps, "kind %d", kind);
        CHECK(figure("count", "fake2", "mrs=") == keeps);
        if (keeps) { /* the dead process' queue pair still answers */
            post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 3, 0, 0, 100);
            EXPECT(end, 3, IBV_WC_SUCCESS);
        }
        if (child) kill(child, SIGKILL);
        usleep(100000);
        CHECK(figure("count", "fake2", "contexts=") == 0);
        CHECK(!ibv_destroy_qp(end->qp[0]));
    }
    printf("processes: ok\n");
}

/* A killed sender's packets land until the remote queue pair is destroyed. */
static void killed_sender(struct end *end) {
    int landed = 0;
    tell("late on 100");
    for (int round = 0; round < 20; round++) {
        memset(end->bytes, 0, 4096);
        pid_t writer = fork();
        if (!writer) {
            struct end mine;
            unsigned char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            struct card here, there = {0, 0, end->mr->rkey, 0, (uintptr_t)end->bytes, end->gid};
            memset(bytes, 6, 4096);
            make_end(&mine, 1, bytes);
            here = make_qp(&mine, 0);
            here.psn = 17, there.psn = 18, there.qpn = 0x11;
            int error = connect_qp(mine.qp[0], here, there, IBV_MTU_1024);
            if (error) _exit(1);
            for (size_t i = 0; i < 4; i++)
                post_one(&mine, 0, &there, IBV_WR_RDMA_WRITE, 0, i, i * 1024, 0, 1024);
            pause();
        }
        tell("hold 1");
        struct card mine = make_qp(end, 0);
        CHECK(mine.qpn == 0x11, "0x%x", mine.qpn);
        mine.psn = 18;
        struct card other = {.qpn = 0x11, .psn = 17, .gid = end->gid};
        other.gid.raw[15] = 2;
        CHECK(!connect_qp(end->qp[0], mine, other, IBV_MTU_1024));
        usleep(30000); /* it has posted; its queue pair sends by turns of chance */
        int before = all(end->bytes, 4096, 0);
        kill(writer, SIGKILL);
        waitpid(writer, NULL, 0);
        usleep(150000);
        landed += before && !all(end->bytes, 4096, 0);
        CHECK(!ibv_destroy_qp(end->qp[0]));
        tell("release 1");
    }
    CHECK(landed > 0);
    tell("late on 200");
    printf("killed sender: packets of %d of 20 landed after its end\n", landed);
}

static void speed(struct end *end, struct peer *peer) {
    struct card to = join(end, peer, 0);
    double begin = seconds();
    for (int i = 0; i < 2000; i++) {
        post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1, 0, 0, 8);
        while (next(end, 5).wr_id != 1) continue;
    }
    double each = (seconds() - begin) / 2000;
    begin = seconds();
    for (int i = 0; i < 2000; i++) ibv_req_notify_cq(end->cq, 0);
    double call = (seconds() - begin) / 2000;
    begin = seconds();
    int done = 0, posted = 0;
    struct ibv_wc wc[16];
    while (done < 1000) {
        while (posted < 1000 && posted - done < 64)
            post_one(end, 0, &to, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1, 0, 0, 1 << 20), posted++;
        int got = ibv_poll_cq(end->cq, 16, wc);
        if (got > 0) done += got;
    }
    double rate = 1000.0 * (1 << 20) / (seconds() - begin);
    tell("rate 0 100000000");
    begin = seconds();
    for (int i = 0; i < 20; i++)
        post_one(end, 0, &to, IBV_WR_RDMA_WRITE, i == 19 ? IBV_SEND_SIGNALED : 0, 1, 0, 0, 1 << 20);
    EXPECT(end, 1, IBV_WC_SUCCESS);
    double slow = seconds() - begin;
    CHECK(slow > 0.19 && slow < 0.5, "%f s", slow);
    tell("rate 0 0"), tell("latency 0 5000");
    begin = seconds();
    post_one(end, 0, &to, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 1, 0, 0, 1);
    EXPECT(end, 1, IBV_WC_SUCCESS);
    CHECK(seconds() - begin > 0.0099);
    tell("latency 0 0");
    part(end, peer, 0);
    printf("speed: a call %.1f us, a WRITE and its completion %.1f us, %.2f GB/s of 1 MiB\n", call * 1e6, each * 1e6,
           rate / 1e9);
}

static void garbage(void) {
    for (int round = 0; round < 200; round++) {
        uint32_t words[64];
        int fd = reach(round & 1 ? "socket" : "control", round & 1 ? SOCK_SEQPACKET : SOCK_STREAM);
        fill((unsigned char *)words, sizeof words);
        if (round & 2) words[0] = 0x66766231, words[1] = (uint32_t)(draw() % 40);
        for (int i = 2; (round & 4) && i < 64; i++) words[i] %= 16;
        if (send(fd, words, 4 + draw() % (sizeof words - 4), MSG_NOSIGNAL) < 0) break;
        if (round & 8) usleep(500);
        close(fd);
    }
    CHECK(!strncmp(tell("ping"), "ok", 2));
    /* Requests of a real context with senseless contents. */
    int fd = reach("socket", SOCK_SEQPACKET);
    for (int round = 0; round < 20000; round++) {
        uint64_t words[40];
        fill((unsigned char *)words, sizeof words);
        for (int i = 1; i < 40; i++)
            if (draw() % 4) words[i] %= 8;
        words[0] = 0x66766231 | (round ? draw() % 27 : 1) << 32;
        if (words[0] >> 32 == 3) words[0] += 1ULL << 32;
        if (!round) words[1] = 0;
        if (send(fd, words, 72 + draw() % (sizeof words - 71), MSG_NOSIGNAL) < 0) break;
        char reply[65536];
        if (recv(fd, reply, sizeof reply, 0) <= 0) break;
    }
    close(fd);
    CHECK(!strncmp(tell("ping"), "ok", 2));
    printf("garbage: ok\n");
}

int main(int argc, char **argv) {
    if (argc == 5 && !strcmp(argv[1], "--peer"))
        return peer_main(atoi(argv[2]), atoi(argv[3]), (unsigned)atoi(argv[4]));
    must(argc == 2, "usage: self_test FOLDER");
    fabric_folder = argv[1];
    setenv("FAKE_VERBS", argv[1], 1);
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(240);
    control = reach("control", SOCK_STREAM);
    facts();
    struct end end;
    unsigned char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    make_end(&end, 0, bytes);
    struct peer peer = start_peer(1);
    exchange(&end, &peer);
    late_sight(&end, &peer);
    fence(&end, &peer);
    hold(&end, &peer);
    lateness(&end, &peer);
    errors(&end, &peer);
    events(&end, &peer);
    faults(&end, &peer);
    speed(&end, &peer);
    end_peer(&peer);
    processes(&end);
    killed_sender(&end);
    garbage();
    CHECK(!ibv_destroy_cq(end.cq) && !ibv_destroy_comp_channel(end.channel));
    CHECK(!ibv_dereg_mr(end.mr) && !ibv_dealloc_pd(end.pd) && !ibv_close_device(end.context));
    usleep(50000);
    CHECK(figure("count", "fake0", "contexts=") == 0 && figure("count", "strays", "strays=") == 0);
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
