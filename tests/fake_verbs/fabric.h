/* What the parts of the fabric share: fabric.c (sockets, clock, contexts), objects.c (domains, regions, CQs),
 * queue_pairs.c (queues and their states), network.c (messages and memory), control.c (the tests' commands),
 * sysfs.c (the tree of device facts). One thread does everything, so there is no lock.
 */
#ifndef FAKE_VERBS_FABRIC_H
#define FAKE_VERBS_FABRIC_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "protocol.h"

enum { GIDS = 8, PORT = 1, FIRST_QPN = 0x11, PSN_MASK = 0xffffff, RANDOM_CHUNKS = 6 };
enum { FREE, HELD_ACKS, HELD_ALL };
enum { NO_DEVICE = -2, NO_NODE = -1 };
enum { BY_CHANCE, SENDS, STALLS }; /* what a QP of a held NIC does */

#define MILLISECOND 1000000LL

/* -------------------------------------------------------------------- clock */

struct timer {
    int64_t at;
    uint64_t number;
    size_t slot; /* in the heap, from 1; 0: not set */
    void (*fire)(struct timer *);
};

#define OF(type, member, pointer) ((type *)((char *)(pointer)-offsetof(type, member)))

int64_t now(void);
void set_timer(struct timer *timer, int64_t at, void (*fire)(struct timer *));
void clear_timer(struct timer *timer);

/* --------------------------------------------------------- contexts, objects */

struct nic;
struct connection;

/* Something that epoll watches. */
struct source {
    int fd;
    void (*ready)(struct source *, uint32_t events);
};

bool watch(struct source *source);
void forget(struct source *source); /* and closes it */
void listen_for_tests(struct source *source, void (*ready)(struct source *, uint32_t));

struct context {
    struct context *next;
    uint32_t id;
    uint64_t token;
    pid_t pid;
    struct nic *nic;
    struct connection *owner; /* that made it; NULL: gone, and only a mapping keeps the context */
    int lock_fd;
    struct source exit; /* of its process */
    bool dead; /* its process has ended: its memory is nobody's */
    int async_write, async_read;
    struct page *page;
    char page_path[4200];
    struct timer gone; /* looks whether the mapping is gone too */
    uint64_t pinned; /* bytes */
};

enum kind { PD = 1, MR, CHANNEL, CQ, QP };

struct object {
    enum kind kind;
    uint32_t handle;
    uint64_t serial; /* never used again */
    struct context *context;
};

struct pd {
    struct object base;
    int users;
};

struct mr {
    struct object base;
    struct pd *pd;
    uint64_t addr, iova, len;
    uint32_t access, key;
};

struct channel {
    struct object base;
    int write_fd, read_fd, users;
};

struct completion {
    struct fv_wc wc;
    uint64_t qp_serial, index;
    uint32_t qp_handle;
};

struct cq {
    struct object base;
    struct channel *channel;
    uint64_t cookie;
    struct completion *ring;
    uint32_t size, first, count;
    int armed; /* 1: by any completion, 2: by an error only */
    int users;
    bool broken;
    uint32_t sent, async_sent; /* events */
};

struct payload {
    int users;
    size_t len;
    unsigned char bytes[];
};

struct chunk {
    uint32_t at, len;
};

enum progress { WAITING, FLYING, DONE };

struct wr {
    struct qp *qp;
    uint64_t wr_id, remote_addr, index, len;
    uint32_t rkey, opcode, flags, sges;
    enum progress progress;
    int status;
    struct fv_sge *sge;
    struct payload *inline_data;
    struct payload *data; /* read from memory already: of a WRITE the sender's, of a READ the responder's */
    bool numbered, admitted;
    uint32_t psn, packets;
    int64_t retry_until, ends;
    uint64_t remote_serial;
    uint32_t remote_handle;
    struct chunk chunks[RANDOM_CHUNKS];
    int chunks_left;
    struct timer timer;
};

struct qp {
    struct object base;
    struct nic *nic;
    struct pd *pd;
    struct cq *send_cq, *recv_cq;
    uint64_t cookie;
    uint32_t qpn;
    int sig_all, state;
    struct fv_qp_attr attr;
    struct fv_qp_cap cap;
    struct wr **ring;
    /* Indexes of requests: freed <= reported <= settled <= next <= posted. A slot is freed when a completion at or
     * behind it is polled. */
    uint64_t posted, next, settled, reported, freed;
    int reads; /* outstanding */
    struct wr *blocked; /* is being sent again; nothing behind it is sent */
    uint32_t sq_psn, rq_psn;
    int64_t last_take;
    int doom; /* goes to ERR with this event at its next turn; -1: no */
    uint64_t hold_epoch;
    bool stalls; /* in this hold it sends nothing, instead of having its acknowledgements withheld */
    size_t turn; /* slot in the run queue, from 1 */
    uint32_t async_sent;
};

struct limits {
    uint64_t max_mr_size, max_qp, max_cqe, max_qp_wr, max_sge, max_inline, max_rd_atomic, max_mr, mtu;
};

struct landing;

struct ghost {
    struct ghost *next;
    struct fv_wc wc;
};

struct nic {
    uint32_t index;
    char name[32], ndev[32];
    union fv_gid gids[GIDS];
    uint8_t gid_types[GIDS];
    uint16_t lid;
    int numa; /* a node, or one of these */
    bool up;
    uint64_t rate; /* bytes a second, 0: without limit */
    int64_t latency, tx_free, rx_free;
    int held, held_way;
    uint64_t hold_epoch;
    struct limits limits;
    struct qp **qps; /* by number */
    size_t qps_room;
    uint32_t fresh; /* the next number where none is reused */
    struct mr **mrs; /* by key >> 8 */
    size_t mrs_room;
    uint8_t key_salt;
    struct landing *first, *last; /* bytes that are not in memory yet, in order of arrival */
    struct ghost *ghosts;
    uint64_t written, read, landed, served; /* bytes */
    uint32_t live[QP + 1], contexts;
};

/* What a test may set; each "nasty" switch is on at first. */
struct settings {
    uint64_t seed;
    bool late, order, reorder, reuse, stale, mapping;
    bool late_all, visible_all; /* not by chance, and exactly so late */
    int64_t late_most, visible_most, retry, read_most;
    uint32_t tear;
    uint64_t memlock; /* of a process; 0: none */
    int fork_status, fork_error;
    uint32_t link_layer;
};

extern struct settings settings;
extern struct nic nics[DEVICES_MOST];
extern uint32_t nic_count;
extern struct context *contexts;
extern char folder[4096];
extern uint64_t strays; /* times that a NIC found registered memory gone */

uint64_t draw(void);
uint64_t below(uint64_t limit); /* 0 to limit - 1; 0 of 0 */
bool chance(unsigned in, unsigned of);

/* A call of the library that is being answered. */
struct call {
    struct connection *connection;
    struct context *context;
    struct request request;
    const unsigned char *body;
    size_t len;
    struct reply reply;
    unsigned char *out;
    size_t out_len, out_room;
    int give; /* a descriptor that goes with the reply, -1: none */
    char note[160];
};

void logged(const char *format, ...) __attribute__((format(printf, 1, 2)));
void send_event(struct context *context, int event, uint64_t element);
uint32_t drain_events(int write_fd, int read_fd, size_t size, uint64_t element);
void *allocate(size_t size);
void *widen(void *array, size_t *room, size_t want, size_t size);

/* ---------------------------------------------------------------- objects.c */

void *add_object(struct context *context, enum kind kind, size_t size);
void *object_of(struct context *context, enum kind kind, uint64_t handle);
struct object *object_at(uint32_t handle);
uint32_t objects_end(void);
void remove_object(struct object *object);
struct mr *find_mr(struct nic *nic, uint32_t key);
void push(struct cq *cq, const struct fv_wc *wc, struct qp *qp, uint64_t index);
void purge(struct cq *cq, struct qp *qp);
int destroy_object(struct object *object, struct reply *reply);
int pd_call(struct call *call);
int mr_call(struct call *call);
int channel_call(struct call *call);
int cq_call(struct call *call);

/* ------------------------------------------------------------ queue_pairs.c */

struct qp *find_qp(struct nic *nic, uint32_t qpn);
int qp_call(struct call *call);
void destroy_qp(struct qp *qp, struct reply *reply);
void fail_qp(struct qp *qp, uint64_t from);
void doom_qp(struct qp *qp, int event);
void wake_qp(struct qp *qp);
void report(struct qp *qp);
void finish(struct wr *wr, int status);
void block(struct wr *wr);
bool run_some(void);
bool turns_left(void);
void clear_wr(struct wr *wr);

/* ---------------------------------------------------------------- network.c */

void start(struct wr *wr);
void send_late(struct qp *qp, uint64_t from);
void snapshot(struct wr *wr);
void spill(struct wr *wr);
void land_qp(struct qp *qp);
void land_mr(struct mr *mr);
void drop_landings(struct context *context);
void land_all(struct nic *nic);
struct nic *peer_of(struct qp *qp);
void drop_payload(struct payload *payload);
uint32_t packets_of(struct qp *qp, uint64_t len);
size_t in_flight(void);
size_t late_messages(void);

/* ---------------------------------------------------------------- control.c */

void control_start(void);
void control_check(void); /* what waits for quiet */
int refused(enum verb verb, int state, uint32_t nic); /* an error that a test wants */
bool hangs(enum verb verb, int state, uint32_t nic);
bool poll_is_watched(uint32_t nic);
void log_line(const char *line);
const char *event_name(int event);

/* ----------------------------------------------------------------- fabric.c */

void answer_hung(enum verb verb);
unsigned hung_calls(void);
void seed(uint64_t value);
void refresh_pages(void);
extern const char *const verb_names[];

/* ------------------------------------------------------------------ sysfs.c */

void make_nic(uint32_t index, int numa);
void write_tree(struct nic *nic);
void write_port(struct nic *nic);
void make_folder(const char *path);
void put_file(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
double nominal_gbps(struct nic *nic);

#endif
