// A disk under tiers that fails, lies and stands still, as often as a table of numbers says which its processes share. For LD_PRELOAD;
// MOONCAKE_FAULTY_DISK names the table's file (tests/python/faulty_disk.py). Only files of tiers are touched. There is no io_uring, whose
// operations nothing could come between.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum fault { READ_FAILS, WRITE_FAILS, SYNC_FAILS, NO_SPACE, READ_FLIPPED, WRITE_FLIPPED, MISDIRECTED, READ_SHORT, STANDS, FAULTS };

// As tests/python/faulty_disk.py has it: of a million operations so many, and how many there were.
struct table {
    uint64_t chance[FAULTS];
    uint64_t count[FAULTS];
};

enum { BLOCK = 4096 };

static struct table *table;
static long (*real_syscall)(long, ...);
static ssize_t (*real_pread)(int, void *, size_t, off64_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static int (*real_fdatasync)(int);

static void find_all(void) {
    if (real_fdatasync) return;
    real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    real_pread = (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    real_pwrite = (ssize_t(*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
}

__attribute__((constructor)) static void begin(void) {
    find_all();
    const char *path = getenv("MOONCAKE_FAULTY_DISK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) table = mapped;
    close(fd);
}

static uint64_t draw(void) {
    static __thread uint64_t state;
    if (!state) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = ((uint64_t)now.tv_nsec << 20) ^ ((uint64_t)real_syscall(SYS_gettid) << 3) ^ 1;
    }
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int happens(enum fault fault) {
    uint64_t chance = __atomic_load_n(&table->chance[fault], __ATOMIC_RELAXED);
    if (chance == 0 || draw() % 1000000 >= chance) return 0;
    __atomic_add_fetch(&table->count[fault], 1, __ATOMIC_RELAXED);
    return 1;
}

static int ends_with(const char *text, const char *end) {
    size_t all = strlen(text), part = strlen(end);
    return all >= part && memcmp(text + all - part, end, part) == 0;
}

static int of_tier(int fd, int *is_records) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (ends_with(path, " (deleted)")) path[length - 10] = 0;
    *is_records = ends_with(path, ".records");
    return strstr(path, "/mooncake-") && (*is_records || ends_with(path, "/super"));
}

static int fails(int error) {
    errno = error;
    return -1;
}

static void wait_for_the_disk(void) {
    // Counted once an operation.
    if (!happens(STANDS)) return;
    while (__atomic_load_n(&table->chance[STANDS], __ATOMIC_RELAXED)) usleep(2000);
}

long syscall(long number, ...) {
    find_all();
    __builtin_va_list list;
    __builtin_va_start(list, number);
    long given[6];
    for (int nth = 0; nth < 6; nth++) given[nth] = __builtin_va_arg(list, long);
    __builtin_va_end(list);
    if (number == SYS_io_uring_setup) return fails(ENOSYS);
    return real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

ssize_t pread64(int fd, void *into, size_t count, off64_t offset) {
    find_all();
    int is_records;
    if (!table || !of_tier(fd, &is_records)) return real_pread(fd, into, count, offset);
    wait_for_the_disk();
    if (happens(READ_FAILS)) return fails(EIO);
    ssize_t moved = real_pread(fd, into, count, offset);
    if (moved > 0 && is_records && happens(READ_FLIPPED)) ((char *)into)[draw() % (uint64_t)moved] ^= (char)(1 << draw() % 8);
    // The end of the file, as its caller sees it: what follows is not read.
    if (moved > BLOCK && is_records && happens(READ_SHORT)) return 0;
    return moved;
}

static ssize_t write_flipped(int fd, const void *from, size_t count, off64_t offset) {
    void *copy = NULL;
    if (posix_memalign(&copy, BLOCK, count) != 0) return fails(ENOMEM);
    memcpy(copy, from, count);
    ((char *)copy)[draw() % count] ^= (char)(1 << draw() % 8);
    ssize_t moved = real_pwrite(fd, copy, count, offset);
    free(copy);
    return moved;
}

// Elsewhere in the same file, over whatever is there.
static off64_t another_place(int fd, size_t count, off64_t offset) {
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_size < (off64_t)count + BLOCK) return offset;
    return (off64_t)(draw() % (((uint64_t)about.st_size - count) / BLOCK + 1)) * BLOCK;
}

ssize_t pwrite64(int fd, const void *from, size_t count, off64_t offset) {
    find_all();
    int is_records;
    if (!table || !of_tier(fd, &is_records)) return real_pwrite(fd, from, count, offset);
    wait_for_the_disk();
    if (happens(WRITE_FAILS)) return fails(EIO);
    if (happens(NO_SPACE)) return fails(ENOSPC);
    if (count > 0 && is_records && happens(WRITE_FLIPPED)) return write_flipped(fd, from, count, offset);
    if (count > 0 && is_records && happens(MISDIRECTED)) offset = another_place(fd, count, offset);
    return real_pwrite(fd, from, count, offset);
}

int fdatasync(int fd) {
    find_all();
    int is_records;
    if (!table || !of_tier(fd, &is_records)) return real_fdatasync(fd);
    wait_for_the_disk();
    if (happens(SYNC_FAILS)) return fails(EIO);
    return real_fdatasync(fd);
}
