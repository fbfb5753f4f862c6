/* The tests' commands (fabric.c lists them), the faults that they ask for, and the log. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric.h"

enum { RULES = 64, WORDS = 8, LINES = 200000, OUT_MOST = 64 << 20 };

/* A fault of calls to come. */
struct rule {
    bool used, hang;
    enum verb verb;
    int state, error; /* of modify_qp; -1: any */
    uint32_t left, nic; /* 0: for ever; UINT32_MAX: any */
};

struct controller {
    struct source source;
    struct controller *next;
    char in[4096];
    size_t in_len;
    char *out;
    size_t out_len, out_room, out_done;
    int64_t waits_until; /* for quiet; 0: does not */
};

static struct rule rules[RULES];
static struct controller *controllers;
static char *lines[LINES]; /* a ring */
static size_t first_line, line_count, lines_lost;

static const char *const state_names[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};
static const char *const event_names[] = {
    "CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
    "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
    "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL"};

const char *event_name(int event) { return event_names[event]; }

/* -------------------------------------------------------------------- faults */

static struct rule *match(bool hang, enum verb verb, int state, uint32_t nic) {
    for (struct rule *rule = rules; rule < rules + RULES; rule++)
        if (rule->used && rule->hang == hang && rule->verb == verb && (rule->state < 0 || rule->state == state)
            && (rule->nic == UINT32_MAX || rule->nic == nic))
            return rule;
    return NULL;
}

static void count_down(struct rule *rule) {
    if (!rule->left || --rule->left) return;
    rule->used = false;
    if (rule->verb == POLL_CQ) refresh_pages();
}

int refused(enum verb verb, int state, uint32_t nic) {
    struct rule *rule = match(false, verb, state, nic);
    if (!rule) return 0;
    int error = rule->error;
    count_down(rule);
    return error;
}

bool hangs(enum verb verb, int state, uint32_t nic) {
    struct rule *rule = match(true, verb, state, nic);
    if (rule) count_down(rule);
    return rule;
}

bool poll_is_watched(uint32_t nic) { return match(false, POLL_CQ, -1, nic) || match(true, POLL_CQ, -1, nic); }

void log_line(const char *line) {
    if (line_count == LINES) {
        free(lines[first_line]);
        first_line = (first_line + 1) % LINES, line_count--, lines_lost++;
    }
    lines[(first_line + line_count++) % LINES] = strdup(line);
}

/* -------------------------------------------------------------------- output */

static void say(struct controller *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct controller *to, const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    int len = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (len > (int)sizeof line - 2) len = sizeof line - 2;
    line[len++] = '\n';
    if (to->out_len + (size_t)len > OUT_MOST) return;
    to->out = widen(to->out, &to->out_room, to->out_len + (size_t)len, 1);
    memcpy(to->out + to->out_len, line, (size_t)len);
    to->out_len += (size_t)len;
}

/* A test that does not read its answers is waited for a second, then cut off. */
static void drain_out(struct controller *controller) {
    int64_t end = now() + 1000 * MILLISECOND;
    while (controller->out_done < controller->out_len) {
        ssize_t done = send(controller->source.fd, controller->out + controller->out_done,
                            controller->out_len - controller->out_done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done > 0) controller->out_done += (size_t)done;
        else if (errno != EAGAIN || now() > end) break;
        else usleep(200);
    }
    if (controller->out_done < controller->out_len) shutdown(controller->source.fd, SHUT_RDWR);
    controller->out_len = controller->out_done = 0;
}

/* ------------------------------------------------------------------- arguments */

struct command {
    struct controller *from;
    int count;
    char *word[WORDS];
    uint32_t first, last; /* of the NICs that it means */
};

static const char *bad(struct command *command, const char *what) {
    say(command->from, "error %s", what);
    return what;
}

static const char *ok(struct command *command) {
    say(command->from, "ok");
    return NULL;
}

static bool number(const char *word, uint64_t *value) {
    char *stop;
    if (!word || *word < '0' || *word > '9') return false;
    *value = strtoull(word, &stop, 0);
    return !*stop;
}

static bool named_nics(struct command *command, const char *word) {
    uint64_t index;
    if (!word) return false;
    command->first = 0, command->last = nic_count;
    if (!strcmp(word, "all")) return true;
    for (uint32_t i = 0; i < nic_count; i++)
        if (!strcmp(word, nics[i].name) || (number(word, &index) && index == i)) {
            command->first = i, command->last = i + 1;
            return true;
        }
    return false;
}

static int find_word(const char *const *words, int count, const char *word) {
    for (int i = 0; word && i < count; i++)
        if (words[i] && !strcmp(words[i], word)) return i;
    return -1;
}

static int error_number(const char *word) {
    uint64_t value;
    if (number(word, &value)) return value < 4096 ? (int)value : -1;
    for (int i = 1; word && i < 134; i++)
        if (strerrorname_np(i) && !strcmp(strerrorname_np(i), word)) return i;
    return -1;
}

static bool parse_verb(char *word, enum verb *verb, int *state) {
    char *dot = word ? strchr(word, '.') : NULL;
    *state = -1;
    if (dot) {
        *dot = 0;
        if ((*state = find_word(state_names, 7, dot + 1)) < 0) return false;
    }
    if (word && !strncmp(word, "ibv_", 4)) word += 4;
    int found = find_word(verb_names, VERBS, word);
    if (found < 0) return false;
    *verb = (enum verb)found;
    return true;
}

/* -------------------------------------------------------------------- switches */

static const char *do_switch(struct command *command, bool *what) {
    const char *word = command->word[1];
    bool late_all = what == &settings.late && word && !strcmp(word, "all");
    if (!word || (strcmp(word, "on") && strcmp(word, "off") && !late_all)) return bad(command, "on or off?");
    if (what == &settings.late) settings.late_all = late_all;
    *what = strcmp(word, "off");
    return NULL;
}

static const char *do_flag(struct command *command) {
    const char *word = command->word[0];
    bool *what = !strcmp(word, "order")     ? &settings.order
                 : !strcmp(word, "reorder") ? &settings.reorder
                 : !strcmp(word, "reuse")   ? &settings.reuse
                 : !strcmp(word, "stale")   ? &settings.stale
                 : !strcmp(word, "late")    ? &settings.late
                                            : &settings.mapping;
    uint64_t most;
    const char *wrong = do_switch(command, what);
    if (wrong) return wrong;
    if (what == &settings.late && command->count > 2) {
        if (!number(command->word[2], &most) || most > 60000) return bad(command, "how late?");
        settings.late_most = (int64_t)most * MILLISECOND;
    }
    return ok(command);
}

static const char *do_number(struct command *command) {
    uint64_t value;
    const char *word = command->word[0];
    if (!number(command->word[1], &value) || (strcmp(word, "seed") && value > 1ULL << 40))
        return bad(command, "a number?");
    if (!strcmp(word, "seed")) seed(value);
    else if (!strcmp(word, "visible")) {
        settings.visible_most = (int64_t)value * MILLISECOND;
        settings.visible_all = command->word[2] && !strcmp(command->word[2], "all");
    }
    else if (!strcmp(word, "read_delay")) settings.read_most = (int64_t)value * 1000;
    else if (!strcmp(word, "retry")) settings.retry = (int64_t)value * MILLISECOND;
    else if (!strcmp(word, "memlock")) settings.memlock = value;
    else settings.tear = value && value < 1 << 20 ? (uint32_t)value : 1;
    return ok(command);
}

static const char *do_mood(struct command *command) {
    bool nasty = !strcmp(command->word[0], "nasty");
    settings.late = settings.order = settings.reorder = settings.reuse = settings.stale = nasty;
    settings.late_all = settings.visible_all = false;
    settings.visible_most = nasty ? 3 * MILLISECOND : 0;
    return ok(command);
}

static const char *do_fork(struct command *command) {
    const char *const words[] = {"disabled", "enabled", "unneeded"};
    int status = find_word(words, 3, command->word[1]);
    int error = command->count > 2 ? error_number(command->word[2]) : 0;
    if (status < 0 || error < 0) return bad(command, "disabled, enabled or unneeded?");
    settings.fork_status = status, settings.fork_error = error;
    return ok(command);
}

/* ------------------------------------------------------------------------ NICs */

static const char *do_speed(struct command *command) {
    uint64_t value;
    if (!named_nics(command, command->word[1]) || !number(command->word[2], &value))
        return bad(command, "NIC, number?");
    for (uint32_t i = command->first; i < command->last; i++) {
        if (!strcmp(command->word[0], "rate")) nics[i].rate = value, nics[i].tx_free = nics[i].rx_free = 0;
        else nics[i].latency = (int64_t)value * 1000;
        write_port(&nics[i]);
    }
    return ok(command);
}

static const char *do_limit(struct command *command) {
    static const char *const names[] = {"max_mr_size", "max_qp", "max_cqe", "max_qp_wr", "max_sge", "max_inline",
                                        "max_rd_atomic", "max_mr", "mtu"};
    uint64_t value;
    int which = find_word(names, 9, command->word[2]);
    if (!named_nics(command, command->word[1]) || which < 0 || !number(command->word[3], &value))
        return bad(command, "NIC, name, number?");
    if (which == 4 && value > SGE_MOST) return bad(command, "too many SGEs");
    if (which == 8 && value >= 256) value = (uint64_t)(63 - __builtin_clzll(value)) - 7;
    if (which == 8 && (value < FV_MTU_256 || value > FV_MTU_4096)) return bad(command, "no such MTU");
    for (uint32_t i = command->first; i < command->last; i++) ((uint64_t *)&nics[i].limits)[which] = value;
    return ok(command);
}

static const char *do_gid(struct command *command) {
    const char *const types[] = {"ib", "v1", "v2"};
    uint64_t index;
    int type = find_word(types, 3, command->word[3]);
    const char *text = command->word[4];
    union fv_gid gid = {{0}};
    struct in_addr addr;
    if (!named_nics(command, command->word[1]) || !number(command->word[2], &index) || index >= GIDS || type < 0
        || !text)
        return bad(command, "NIC, index, type, address?");
    if (inet_pton(AF_INET, text, &addr) == 1) {
        gid.raw[10] = gid.raw[11] = 0xff;
        memcpy(gid.raw + 12, &addr, 4);
    } else if (strcmp(text, "none")) {
        for (int i = 0; i < 16; i++)
            if (strlen(text) != 32 || sscanf(text + 2 * i, "%2hhx", &gid.raw[i]) != 1)
                return bad(command, "32 digits?");
    }
    for (uint32_t i = command->first; i < command->last; i++) {
        nics[i].gids[index] = gid, nics[i].gid_types[index] = (uint8_t)type;
        write_port(&nics[i]);
    }
    return ok(command);
}

static void wake_nic(struct nic *nic) {
    for (size_t qpn = 0; qpn < nic->qps_room; qpn++)
        if (nic->qps[qpn]) report(nic->qps[qpn]), wake_qp(nic->qps[qpn]);
}

static const char *do_hold(struct command *command) {
    bool hold = !strcmp(command->word[0], "hold");
    const char *const ways[] = {"", "sends", "stalls"};
    bool acks = command->word[2] && !strcmp(command->word[2], "acks");
    const char *way_word = command->word[acks ? 3 : 2];
    int kind = !hold ? FREE : acks ? HELD_ACKS : HELD_ALL, way = way_word ? find_word(ways, 3, way_word) : BY_CHANCE;
    if (!named_nics(command, command->word[1]) || way < 0) return bad(command, "NIC, way?");
    for (uint32_t i = command->first; i < command->last; i++) {
        if (hold) nics[i].hold_epoch++;
        nics[i].held = kind, nics[i].held_way = way;
        wake_nic(&nics[i]);
    }
    return ok(command);
}

static void raise_event(struct nic *nic, int event, uint64_t element) {
    for (struct context *context = contexts; context; context = context->next)
        if (context->nic == nic) send_event(context, event, element);
}

static const char *do_link(struct command *command) {
    const char *way = command->word[2];
    if (!named_nics(command, command->word[1]) || !way || (strcmp(way, "up") && strcmp(way, "down")))
        return bad(command, "NIC, up or down?");
    bool up = !strcmp(way, "up");
    for (uint32_t i = command->first; i < command->last; i++) {
        if (nics[i].up == up) continue;
        nics[i].up = up;
        write_port(&nics[i]);
        raise_event(&nics[i], up ? FV_EVENT_PORT_ACTIVE : FV_EVENT_PORT_ERR, PORT);
    }
    return ok(command);
}

static const char *do_event(struct command *command) {
    const char *name = command->word[2];
    if (name && !strncmp(name, "IBV_EVENT_", 10)) name += 10;
    int event = find_word(event_names, sizeof event_names / sizeof *event_names, name);
    uint64_t which = 0;
    if (!named_nics(command, command->word[1]) || event < 0 || (command->word[3] && !number(command->word[3], &which)))
        return bad(command, "NIC, event?");
    bool of_qp = (event > FV_EVENT_CQ_ERR && event < FV_EVENT_DEVICE_FATAL) || event == FV_EVENT_QP_LAST_WQE_REACHED;
    uint32_t raised = 0;
    for (uint32_t i = command->first; i < command->last; i++) {
        if (!of_qp && event != FV_EVENT_CQ_ERR) raise_event(&nics[i], event, PORT), raised += nics[i].contexts;
        for (uint32_t handle = 1; handle < objects_end(); handle++) {
            struct object *object = object_at(handle);
            if (!object || object->context->nic != &nics[i]) continue;
            if (of_qp && object->kind == QP && (!which || ((struct qp *)object)->qpn == which)) {
                send_event(object->context, event, ((struct qp *)object)->cookie);
                ((struct qp *)object)->async_sent++, raised++;
            } else if (event == FV_EVENT_CQ_ERR && object->kind == CQ && (!which || handle == which)) {
                send_event(object->context, event, ((struct cq *)object)->cookie);
                ((struct cq *)object)->async_sent++, raised++;
            }
        }
    }
    say(command->from, "ok %u", raised);
    return NULL;
}

static const char *do_qp(struct command *command) {
    uint64_t qpn;
    struct qp *qp = NULL;
    if (named_nics(command, command->word[1]) && number(command->word[2], &qpn) && qpn <= PSN_MASK)
        qp = find_qp(&nics[command->first], (uint32_t)qpn);
    if (!qp || !command->word[3] || strcmp(command->word[3], "err")) return bad(command, "NIC, QP number, err?");
    fail_qp(qp, qp->reported);
    return ok(command);
}

static const char *do_ghost(struct command *command) {
    uint64_t id, status, qpn = 0;
    if (!named_nics(command, command->word[1]) || !number(command->word[2], &id) || !number(command->word[3], &status)
        || (command->word[4] && !number(command->word[4], &qpn)))
        return bad(command, "NIC, wr_id, status?");
    struct ghost *ghost = allocate(sizeof *ghost), **last = &nics[command->first].ghosts;
    ghost->wc = (struct fv_wc){.wr_id = id, .status = (int)status, .opcode = FV_WC_RDMA_WRITE, .qp_num = (uint32_t)qpn};
    while (*last) last = &(*last)->next;
    *last = ghost;
    refresh_pages();
    return ok(command);
}

/* ---------------------------------------------------------------- fail and hang */

static const char *do_rule(struct command *command) {
    bool hang = !strcmp(command->word[0], "hang");
    struct rule rule = {.used = true, .hang = hang, .nic = UINT32_MAX, .left = hang ? 0 : 1};
    uint64_t count;
    int at = 2;
    if (!hang && command->word[1] && !strcmp(command->word[1], "off")) {
        for (int i = 0; i < RULES; i++) rules[i].used &= rules[i].hang;
        refresh_pages();
        return ok(command);
    }
    if (!parse_verb(command->word[1], &rule.verb, &rule.state)) return bad(command, "no such verb");
    if (!hang && command->word[2] && !strcmp(command->word[2], "off")) {
        for (int i = 0; i < RULES; i++)
            if (!rules[i].hang && rules[i].verb == rule.verb) rules[i].used = false;
        refresh_pages();
        return ok(command);
    }
    if (!hang && (rule.error = error_number(command->word[at++])) <= 0) return bad(command, "no such error");
    if (command->word[at] && number(command->word[at], &count)) rule.left = (uint32_t)count, at++;
    if (command->word[at]) {
        if (!named_nics(command, command->word[at])) return bad(command, "no such NIC");
        if (command->last - command->first == 1) rule.nic = command->first;
    }
    for (int i = 0; i < RULES; i++) {
        if (rules[i].used) continue;
        rules[i] = rule;
        refresh_pages();
        return ok(command);
    }
    return bad(command, "too many rules");
}

static const char *do_unhang(struct command *command) {
    enum verb verb = VERBS;
    int state;
    bool all = command->word[1] && !strcmp(command->word[1], "all");
    if (!all && !parse_verb(command->word[1], &verb, &state)) return bad(command, "no such verb");
    for (int i = 0; i < RULES; i++)
        if (rules[i].hang && (all || rules[i].verb == verb)) rules[i].used = false;
    refresh_pages();
    answer_hung(verb);
    return ok(command);
}

/* --------------------------------------------------------------------- reports */

static const char *do_log(struct command *command) {
    if (lines_lost) say(command->from, "# %zu lines before are lost", lines_lost);
    for (; line_count; line_count--, first_line = (first_line + 1) % LINES) {
        say(command->from, "%s", lines[first_line]);
        free(lines[first_line]);
    }
    lines_lost = 0;
    say(command->from, ".");
    return NULL;
}

static const char *do_count(struct command *command) {
    for (uint32_t i = 0; i < nic_count; i++)
        say(command->from, "%s contexts=%u pds=%u mrs=%u channels=%u cqs=%u qps=%u", nics[i].name, nics[i].contexts,
            nics[i].live[PD], nics[i].live[MR], nics[i].live[CHANNEL], nics[i].live[CQ], nics[i].live[QP]);
    say(command->from, "strays=%lu hung=%u late=%zu", strays, hung_calls(), late_messages());
    say(command->from, ".");
    return NULL;
}

static const char *do_bytes(struct command *command) {
    for (uint32_t i = 0; i < nic_count; i++)
        say(command->from, "%s written=%lu read=%lu landed=%lu served=%lu", nics[i].name, nics[i].written, nics[i].read,
            nics[i].landed, nics[i].served);
    say(command->from, ".");
    return NULL;
}

static const char *do_qps(struct command *command) {
    for (uint32_t i = 0; i < nic_count; i++)
        for (size_t qpn = 0; qpn < nics[i].qps_room; qpn++) {
            struct qp *qp = nics[i].qps[qpn];
            if (!qp) continue;
            struct nic *peer = qp->state >= FV_QPS_RTR && qp->attr.dest_qp_num ? peer_of(qp) : NULL;
            say(command->from, "%s qp=0x%x pid=%d state=%s peer=%s/0x%x posted=%lu started=%lu reported=%lu",
                nics[i].name, qp->qpn, (int)qp->base.context->pid, state_names[qp->state], peer ? peer->name : "-",
                qp->attr.dest_qp_num, qp->posted, qp->next, qp->reported);
        }
    say(command->from, ".");
    return NULL;
}

static const char *do_land(struct command *command) {
    if (!named_nics(command, command->word[1])) return bad(command, "NIC?");
    for (uint32_t i = command->first; i < command->last; i++) land_all(&nics[i]);
    return ok(command);
}

static const char *do_quiet(struct command *command) {
    uint64_t most = 10000;
    if (command->word[1] && (!number(command->word[1], &most) || most > 600000)) return bad(command, "how long?");
    command->from->waits_until = now() + (int64_t)most * MILLISECOND + 1;
    return NULL;
}

static const char *do_quit(struct command *command) {
    ok(command);
    drain_out(command->from);
    exit(0);
}

static void obey(struct controller *from, char *line) {
    static const struct {
        const char *name;
        const char *(*run)(struct command *);
    } table[] = {
        {"calm", do_mood}, {"nasty", do_mood}, {"order", do_flag}, {"reorder", do_flag}, {"reuse", do_flag},
        {"stale", do_flag}, {"late", do_flag}, {"mapping", do_flag}, {"visible", do_number}, {"tear", do_number},
        {"seed", do_number}, {"read_delay", do_number}, {"retry", do_number}, {"memlock", do_number},
        {"rate", do_speed}, {"latency", do_speed}, {"fork", do_fork}, {"limit", do_limit}, {"gid", do_gid},
        {"hold", do_hold}, {"release", do_hold}, {"fail", do_rule}, {"hang", do_rule}, {"unhang", do_unhang},
        {"link", do_link}, {"event", do_event}, {"qp", do_qp}, {"ghost", do_ghost}, {"log", do_log},
        {"count", do_count}, {"bytes", do_bytes}, {"qps", do_qps}, {"land", do_land}, {"quiet", do_quiet},
        {"ping", ok}, {"quit", do_quit}};
    struct command command = {.from = from};
    char *rest = NULL;
    char *word = strtok_r(line, " \t\r", &rest);
    for (; word && command.count < WORDS - 1; word = strtok_r(NULL, " \t\r", &rest))
        command.word[command.count++] = word;
    if (!command.count) return;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, command.word[0])) {
            table[i].run(&command);
            return;
        }
    bad(&command, "no such command");
}

/* ------------------------------------------------------------------ connections */

static void obey_all(struct controller *controller) {
    char *stop;
    while (!controller->waits_until && (stop = memchr(controller->in, '\n', controller->in_len))) {
        char line[sizeof controller->in];
        size_t len = (size_t)(stop - controller->in);
        memcpy(line, controller->in, len);
        line[len] = 0;
        controller->in_len -= len + 1;
        memmove(controller->in, stop + 1, controller->in_len);
        obey(controller, line);
    }
    drain_out(controller);
}

static void drop_controller(struct controller *controller) {
    struct controller **link = &controllers;
    while (*link != controller) link = &(*link)->next;
    *link = controller->next;
    forget(&controller->source);
    free(controller->out);
    free(controller);
}

static void controller_ready(struct source *source, uint32_t events) {
    struct controller *controller = OF(struct controller, source, source);
    size_t room = sizeof controller->in - controller->in_len;
    (void)events;
    ssize_t len = room ? recv(source->fd, controller->in + controller->in_len, room, MSG_DONTWAIT) : 0;
    if (len < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (len <= 0) {
        drop_controller(controller); /* it has left, or a line is too long */
        return;
    }
    controller->in_len += (size_t)len;
    obey_all(controller);
}

static void accept_test(struct source *source, uint32_t events) {
    (void)events;
    int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    struct controller *controller = allocate(sizeof *controller);
    controller->source = (struct source){fd, controller_ready};
    controller->next = controllers, controllers = controller;
    watch(&controller->source);
}

void control_start(void) {
    static struct source source;
    listen_for_tests(&source, accept_test);
}

static void look_again(struct timer *timer) { (void)timer; }

/* Answers who waits for quiet. */
void control_check(void) {
    static struct timer again;
    for (struct controller *at = controllers; at; at = at->next) {
        if (!at->waits_until) continue;
        size_t busy = in_flight();
        if (busy && now() < at->waits_until) {
            if (!again.slot) set_timer(&again, now() + MILLISECOND, look_again);
            continue;
        }
        at->waits_until = 0;
        if (busy) say(at, "error %zu are under way", busy);
        else say(at, "ok");
        obey_all(at);
    }
}
