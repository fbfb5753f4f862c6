/* A stand-in for the CUDA driver, so that the code that uses the real one is tested where there is none.
 *
 * Device memory is memory that the processor may not touch (a load or a store is a SIGSEGV); its bytes are kept in
 * another mapping. Asynchronous copies are done late, by a thread for each stream, so that who does not wait sees it.
 * A call in a forked child ends that child with status 97.
 *
 * FAKE_CUDA_LINK="GB/S,MICROSECONDS" gives copies the time of a link that all streams share, in each direction: that many
 * bytes a second, and that much before the first.
 *
 * Built by the tests: cc -shared -fPIC -pthread -Wl,-soname,libcuda.so.1. The functions named fake_cuda_* are theirs.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };
enum { HOST = 1, DEVICE = 2 };
enum { DEVICES = 2, MOST = 4096, DEPTH = 8 };

struct memory {
    uintptr_t addr;
    size_t len;
    unsigned char *bytes; /* what a copy touches: another mapping for a device's, the same otherwise */
    int kind, managed, device;
    int touched; /* by so many copies at this moment */
};

struct op {
    struct op *next;
    int to_device;
    uintptr_t device;
    unsigned char *host; /* NULL: fill with `value` */
    int value;
    size_t len;
    unsigned delay_us;
    uint64_t after; /* operations of the default stream that come first */
};

struct event {
    uint64_t after; /* operations of the default stream that were queued when it was recorded */
};

struct stream {
    pthread_t thread;
    pthread_cond_t wake; /* there is an operation, or the end */
    struct op *first, **last;
    uint64_t queued, done;
    int device, ends, waits_for_default;
    uint64_t after; /* of the events that it was told to wait for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER; /* an operation is done */
static struct memory memories[MOST];
static int used; /* of them, at most */
static struct stream default_stream = {.wake = PTHREAD_COND_INITIALIZER};
static int initialized;
static int active[DEVICES]; /* primary contexts that somebody has retained */
static pid_t owner;
static unsigned delay_us;
static long streams, copies, waits, strays, calls, spoilt, events, records;
static long busy, abreast; /* streams with operations under way: now, and at most since that was last asked */
static double link_rate; /* bytes a nanosecond; 0: copies take what they take */
static int64_t link_latency, link_free[2]; /* nanoseconds: before the first byte; when either direction is free */
static char fail_call[64];
static int fail_code, fail_after, fail_times;
static __thread int stack[DEPTH], depth;
static __thread int capture_mode; /* 0: global, as every thread begins */

/* ------------------------------------------------------------ the tests' own */

/* Lets a call fail with `code`, `times` times, after it has succeeded `after` times. */
void fake_cuda_fail(const char *call, int code, int after, int times) {
    pthread_mutex_lock(&lock);
    snprintf(fail_call, sizeof fail_call, "%s", call);
    fail_code = code, fail_after = after, fail_times = times;
    pthread_mutex_unlock(&lock);
}

/* How late a copy is done. */
void fake_cuda_delay(unsigned microseconds) { delay_us = microseconds; }

long fake_cuda_count(const char *what) {
    pthread_mutex_lock(&lock);
    long pinned = 0, device = 0;
    for (int i = 0; i < used; i++) {
        pinned += memories[i].len && memories[i].kind == HOST;
        device += memories[i].len && memories[i].kind == DEVICE;
    }
    long count = !strcmp(what, "pinned")    ? pinned
                 : !strcmp(what, "device")  ? device
                 : !strcmp(what, "streams") ? streams
                 : !strcmp(what, "copies")  ? copies
                 : !strcmp(what, "waits")   ? waits
                 : !strcmp(what, "strays")  ? strays
                 : !strcmp(what, "calls")   ? calls
                 : !strcmp(what, "contexts") ? depth
                 : !strcmp(what, "spoilt")  ? spoilt
                 : !strcmp(what, "events")  ? events
                 : !strcmp(what, "records") ? records
                 : !strcmp(what, "abreast") ? abreast
                                            : -1;
    if (!strcmp(what, "abreast")) abreast = busy;
    pthread_mutex_unlock(&lock);
    return count;
}

static struct memory *find(uintptr_t addr, size_t len) {
    for (int i = 0; i < used; i++)
        if (memories[i].len && addr >= memories[i].addr && addr < memories[i].addr + memories[i].len
            && len <= memories[i].addr + memories[i].len - addr)
            return &memories[i];
    return NULL;
}

static uintptr_t add(int kind, int managed, int device, size_t len) {
    unsigned char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *addr = bytes;
    if (kind == DEVICE && !managed) /* a page behind it that is nobody's */
        addr = mmap(NULL, len + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED || addr == MAP_FAILED) return 0;
    for (int i = 0; i < MOST; i++)
        if (!memories[i].len) {
            memories[i] = (struct memory){(uintptr_t)addr, len, bytes, kind, managed, device, 0};
            used = i < used ? used : i + 1;
            return (uintptr_t)addr;
        }
    return 0;
}

static int drop(uintptr_t addr, int kind) {
    struct memory *memory = find(addr, 1);
    if (!memory || memory->addr != addr || memory->kind != kind) return INVALID_VALUE;
    while (memory->touched) pthread_cond_wait(&change, &lock);
    munmap(memory->bytes, memory->len);
    if (memory->bytes != (unsigned char *)addr) munmap((void *)addr, memory->len + 4096);
    memory->len = 0;
    return OK;
}

/* Memory of a device; managed memory, which the processor may touch too. */
uintptr_t fake_cuda_alloc(int device, size_t len, int managed) {
    pthread_mutex_lock(&lock);
    uintptr_t addr = len && device < DEVICES ? add(DEVICE, managed, device, len) : 0;
    if (addr) active[device] = 1; /* who allocates has a context */
    pthread_mutex_unlock(&lock);
    return addr;
}

/* Device bytes as they are at this moment, without a wait for anything. */
int fake_cuda_peek(uintptr_t addr, unsigned char *into, size_t len) {
    pthread_mutex_lock(&lock);
    struct memory *memory = find(addr, len);
    if (memory) memcpy(into, memory->bytes + (addr - memory->addr), len);
    pthread_mutex_unlock(&lock);
    return memory ? OK : INVALID_VALUE;
}

int fake_cuda_poke(uintptr_t addr, const unsigned char *from, size_t len) {
    pthread_mutex_lock(&lock);
    struct memory *memory = find(addr, len);
    if (memory) memcpy(memory->bytes + (addr - memory->addr), from, len);
    pthread_mutex_unlock(&lock);
    return memory ? OK : INVALID_VALUE;
}

/* ------------------------------------------------------------------- streams */

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* The time of a copy behind all that cross the link already. Called with the lock held, which it lets go meanwhile. */
static void cross_link(int to_device, size_t len) {
    int64_t begin = now(), free = link_free[to_device];
    link_free[to_device] = (free > begin ? free : begin) + (int64_t)(len / link_rate);
    int64_t end = link_free[to_device] + link_latency;
    struct timespec until = {end / 1000000000LL, end % 1000000000LL};
    pthread_mutex_unlock(&lock);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) continue;
    pthread_mutex_lock(&lock);
}

static void move(struct op *op, unsigned char *bytes) {
    if (!op->host) memset(bytes, op->value, op->len);
    else if (op->to_device) memcpy(bytes, op->host, op->len);
    else memcpy(op->host, bytes, op->len);
}

static void *run(void *arg) {
    struct stream *stream = arg;
    prctl(PR_SET_TIMERSLACK, 1000UL);
    pthread_mutex_lock(&lock);
    for (;;) {
        struct op *op = stream->first;
        if (!op) {
            if (stream->ends) break;
            pthread_cond_wait(&stream->wake, &lock);
            continue;
        }
        if (default_stream.done < op->after) {
            pthread_cond_wait(&change, &lock);
            continue;
        }
        if (op->delay_us) {
            pthread_mutex_unlock(&lock);
            usleep(op->delay_us);
            pthread_mutex_lock(&lock);
        }
        if (link_rate > 0 && op->host) cross_link(op->to_device, op->len);
        struct memory *device = find(op->device, op->len);
        struct memory *host = op->host ? find((uintptr_t)op->host, op->len) : NULL;
        if (!device || (op->host && (!host || host->kind != HOST))) {
            strays++; /* somebody gave memory back that a copy was still to touch */
        } else {
            unsigned char *bytes = device->bytes + (op->device - device->addr);
            device->touched++, host ? host->touched++ : 0;
            pthread_mutex_unlock(&lock);
            move(op, bytes);
            pthread_mutex_lock(&lock);
            device->touched--, host ? host->touched-- : 0;
        }
        stream->first = op->next;
        if (!stream->first) stream->last = &stream->first, busy--;
        stream->done++;
        free(op);
        pthread_cond_broadcast(&change);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void queue(struct stream *stream, struct op op) {
    struct op *copy = malloc(sizeof op);
    *copy = op;
    copy->next = NULL;
    if (!stream->first && ++busy > abreast) abreast = busy;
    copy->after = stream->waits_for_default ? default_stream.queued : stream->after;
    *stream->last = copy;
    stream->last = &copy->next;
    stream->queued++;
    pthread_cond_signal(&stream->wake);
}

/* A kernel of the framework's on the default stream, that takes its time. */
int fake_cuda_default_stream_fill(uintptr_t addr, int value, size_t len, unsigned microseconds) {
    pthread_mutex_lock(&lock);
    if (!default_stream.last) {
        default_stream.last = &default_stream.first;
        pthread_create(&default_stream.thread, NULL, run, &default_stream);
    }
    queue(&default_stream, (struct op){.to_device = 1, .device = addr, .value = value, .len = len, .delay_us = microseconds});
    pthread_mutex_unlock(&lock);
    return OK;
}

/* -------------------------------------------------------------- the interface */

/* Called with the lock held. */
static int fails(const char *call) {
    if (owner && owner != getpid()) _exit(97);
    calls++;
    if (!initialized) return NOT_INITIALIZED;
    if (!strcmp(call, fail_call) && fail_times != 0) {
        if (fail_after > 0) fail_after--;
        else {
            if (fail_times > 0) fail_times--;
            return fail_code;
        }
    }
    return OK;
}

#define ENTER(call)                                    \
    pthread_mutex_lock(&lock);                         \
    int rc = fails(call);                              \
    if (rc != OK) return pthread_mutex_unlock(&lock), rc
#define LEAVE(value)                                   \
    do {                                               \
        int outcome = (value); /* with the lock held */ \
        pthread_mutex_unlock(&lock);                   \
        return outcome;                                \
    } while (0)

int cuInit(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    const char *link = initialized ? NULL : getenv("FAKE_CUDA_LINK");
    double rate = 0, latency = 0;
    if (link && sscanf(link, "%lf,%lf", &rate, &latency) == 2)
        link_rate = rate, link_latency = (int64_t)(latency * 1000);
    initialized = 1, owner = getpid();
    LEAVE(OK);
}

int cuGetErrorName(int code, const char **name) {
    *name = code == INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
            : code == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
            : code == 906             ? "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
            : code == 700             ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                      : NULL;
    return *name ? OK : INVALID_VALUE;
}

int cuPointerGetAttributes(unsigned count, const int *attributes, void **values, uintptr_t addr) {
    ENTER("cuPointerGetAttributes");
    if (!depth) LEAVE(INVALID_CONTEXT); /* as the real one, although any context will do */
    struct memory *memory = find(addr, 1);
    for (unsigned i = 0; i < count; i++) switch (attributes[i]) {
            case 2: *(unsigned *)values[i] = memory ? memory->kind : 0; break;
            case 8: *(unsigned *)values[i] = memory ? memory->managed : 0; break;
            case 9: *(int *)values[i] = memory ? memory->device : -2; break;
            case 1: *(void **)values[i] = NULL; break; /* mapped by pieces: there is no context */
            default: LEAVE(INVALID_VALUE);
        }
    LEAVE(OK);
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER("cuDeviceGet");
    *device = ordinal;
    LEAVE(ordinal >= 0 && ordinal < DEVICES ? OK : 101);
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    active[device] = 1;
    *context = (void *)(uintptr_t)(0xc0de0000 + device + 1);
    LEAVE(OK);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    ENTER("cuDevicePrimaryCtxGetState");
    *flags = 0;
    *is_active = active[device];
    LEAVE(OK);
}

int cuCtxPushCurrent_v2(void *context) {
    ENTER("cuCtxPushCurrent");
    if (depth == DEPTH) LEAVE(OUT_OF_MEMORY);
    stack[depth++] = (int)((uintptr_t)context - 0xc0de0000);
    LEAVE(OK);
}

int cuCtxPopCurrent_v2(void **context) {
    ENTER("cuCtxPopCurrent");
    if (!depth) LEAVE(INVALID_CONTEXT);
    *context = (void *)(uintptr_t)(0xc0de0000 + stack[--depth]);
    LEAVE(OK);
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    pthread_mutex_lock(&lock);
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    LEAVE(OK);
}

int cuMemHostAlloc(void **memory, size_t len, unsigned flags) {
    ENTER("cuMemHostAlloc");
    if (!depth) LEAVE(INVALID_CONTEXT);
    if (!(flags & 1)) LEAVE(INVALID_VALUE);
    spoilt += capture_mode != 2; /* it would end a capture in another thread */
    *memory = (void *)add(HOST, 0, stack[depth - 1] - 1, len);
    LEAVE(*memory ? OK : OUT_OF_MEMORY);
}

int cuMemFreeHost(void *memory) {
    ENTER("cuMemFreeHost");
    if (!depth) LEAVE(INVALID_CONTEXT);
    LEAVE(drop((uintptr_t)memory, HOST));
}

int cuStreamCreate(void **stream, unsigned flags) {
    ENTER("cuStreamCreate");
    if (!depth) LEAVE(INVALID_CONTEXT);
    struct stream *made = calloc(1, sizeof *made);
    made->last = &made->first;
    pthread_cond_init(&made->wake, NULL);
    made->device = stack[depth - 1] - 1;
    made->waits_for_default = !(flags & 1);
    pthread_create(&made->thread, NULL, run, made);
    streams++;
    *stream = made;
    LEAVE(OK);
}

int cuStreamDestroy_v2(void *stream) {
    ENTER("cuStreamDestroy");
    ((struct stream *)stream)->ends = 1;
    pthread_detach(((struct stream *)stream)->thread);
    streams--;
    pthread_cond_signal(&((struct stream *)stream)->wake);
    LEAVE(OK); /* what it was is kept: a late user must not crash */
}

static int copy(const char *call, int to_device, uintptr_t device, void *host, size_t len, struct stream *stream) {
    ENTER(call);
    struct memory *memory = find(device, len), *pinned = find((uintptr_t)host, len);
    if (!memory || memory->kind != DEVICE || !pinned || pinned->kind != HOST) LEAVE(INVALID_VALUE);
    if (!depth || stack[depth - 1] - 1 != stream->device) LEAVE(INVALID_HANDLE);
    copies++;
    queue(stream, (struct op){.to_device = to_device, .device = device, .host = host, .len = len, .delay_us = delay_us});
    LEAVE(OK);
}

int cuMemcpyDtoHAsync_v2(void *host, uintptr_t device, size_t len, void *stream) {
    return copy("cuMemcpyDtoHAsync", 0, device, host, len, stream);
}

int cuMemcpyHtoDAsync_v2(uintptr_t device, const void *host, size_t len, void *stream) {
    return copy("cuMemcpyHtoDAsync", 1, device, (void *)host, len, stream);
}

int cuStreamIsCapturing(void *stream, int *status) {
    ENTER("cuStreamIsCapturing");
    *status = 0;
    LEAVE(stream == (void *)1 ? OK : INVALID_HANDLE);
}

int cuEventCreate(void **event, unsigned flags) {
    ENTER("cuEventCreate");
    if (!depth) LEAVE(INVALID_CONTEXT);
    if (!(flags & 2)) LEAVE(INVALID_VALUE);
    *event = calloc(1, sizeof(struct event));
    events++;
    LEAVE(OK);
}

int cuEventRecord(void *event, void *stream) {
    ENTER("cuEventRecord");
    if (stream != (void *)1) LEAVE(INVALID_HANDLE); /* the legacy default stream is the only one that tests queue on */
    ((struct event *)event)->after = default_stream.queued;
    records++;
    LEAVE(OK);
}

int cuStreamWaitEvent(void *handle, void *event, unsigned flags) {
    ENTER("cuStreamWaitEvent");
    (void)flags;
    struct stream *stream = handle;
    if (!depth || stack[depth - 1] - 1 != stream->device) LEAVE(INVALID_HANDLE);
    uint64_t after = ((struct event *)event)->after;
    stream->after = stream->after > after ? stream->after : after;
    LEAVE(OK);
}

int cuEventDestroy_v2(void *event) {
    ENTER("cuEventDestroy");
    free(event);
    events--;
    LEAVE(OK);
}

int cuStreamSynchronize(void *handle) {
    ENTER("cuStreamSynchronize");
    if (!depth) LEAVE(INVALID_CONTEXT);
    struct stream *stream = (uintptr_t)handle <= 1 ? &default_stream : handle;
    waits++;
    for (uint64_t until = stream->queued; stream->done < until;) pthread_cond_wait(&change, &lock);
    LEAVE(OK);
}

/* What a framework calls, so that the same test runs against the real driver. */

int cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    *count = DEVICES;
    LEAVE(OK);
}

int cuCtxSetCurrent(void *context) {
    ENTER("cuCtxSetCurrent");
    depth = 1;
    stack[0] = (int)((uintptr_t)context - 0xc0de0000);
    LEAVE(OK);
}

int cuMemAlloc_v2(uintptr_t *addr, size_t len) {
    ENTER("cuMemAlloc");
    *addr = depth && len ? add(DEVICE, 0, stack[depth - 1] - 1, len) : 0;
    LEAVE(*addr ? OK : depth ? OUT_OF_MEMORY : INVALID_CONTEXT);
}

int cuMemAllocManaged(uintptr_t *addr, size_t len, unsigned flags) {
    ENTER("cuMemAllocManaged");
    (void)flags;
    *addr = depth && len ? add(DEVICE, 1, stack[depth - 1] - 1, len) : 0;
    LEAVE(*addr ? OK : depth ? OUT_OF_MEMORY : INVALID_CONTEXT);
}

int cuMemFree_v2(uintptr_t addr) {
    ENTER("cuMemFree");
    LEAVE(drop(addr, DEVICE));
}

/* Memory that is reserved, made and mapped by itself: it is there once access to it was given. */

int cuMemGetAllocationGranularity(size_t *unit, const void *wanted, int option) {
    (void)wanted, (void)option;
    *unit = 2 << 20;
    return OK;
}

int cuMemAddressReserve(uintptr_t *addr, size_t len, size_t alignment, uintptr_t wanted, uint64_t flags) {
    ENTER("cuMemAddressReserve");
    (void)alignment, (void)wanted, (void)flags;
    *addr = add(DEVICE, 0, 0, len);
    find(*addr, 1)->kind = 0;
    LEAVE(OK);
}

int cuMemCreate(uint64_t *handle, size_t len, const void *wanted, uint64_t flags) {
    (void)wanted, (void)flags;
    *handle = len;
    return OK;
}

int cuMemMap(uintptr_t addr, size_t len, size_t offset, uint64_t handle, uint64_t flags) {
    ENTER("cuMemMap");
    (void)offset, (void)flags;
    LEAVE(find(addr, len) && handle == len ? OK : INVALID_VALUE);
}

int cuMemSetAccess(uintptr_t addr, size_t len, const void *access, size_t count) {
    ENTER("cuMemSetAccess");
    (void)access, (void)count;
    if (find(addr, len)) find(addr, len)->kind = DEVICE;
    LEAVE(find(addr, len) ? OK : INVALID_VALUE);
}

int cuMemUnmap(uintptr_t addr, size_t len) {
    ENTER("cuMemUnmap");
    if (find(addr, len)) find(addr, len)->kind = 0;
    LEAVE(OK);
}

int cuMemRelease(uint64_t handle) { return handle ? OK : INVALID_VALUE; }

int cuMemAddressFree(uintptr_t addr, size_t len) {
    ENTER("cuMemAddressFree");
    (void)len;
    LEAVE(drop(addr, 0));
}

int cuMemcpyHtoD_v2(uintptr_t device, const void *host, size_t len) {
    ENTER("cuMemcpyHtoD");
    if (link_rate > 0) cross_link(1, len);
    pthread_mutex_unlock(&lock);
    return fake_cuda_poke(device, host, len);
}

int cuMemcpyDtoH_v2(void *host, uintptr_t device, size_t len) {
    ENTER("cuMemcpyDtoH");
    if (link_rate > 0) cross_link(0, len);
    pthread_mutex_unlock(&lock);
    return fake_cuda_peek(device, host, len);
}
