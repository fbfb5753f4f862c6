/* The tree of device facts in FOLDER/sys, laid out as the kernel's, and what each NIC is at first. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fabric.h"

void make_folder(const char *path) {
    char part[8192];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0777);
        *slash = '/';
    }
    if (mkdir(part, 0777) && errno != EEXIST) {
        fprintf(stderr, "fabric: cannot make %s: %s\n", part, strerror(errno));
        exit(1);
    }
}

/* Written beside and renamed, so that nobody reads half of it. */
void put_file(const char *path, const char *format, ...) {
    char beside[8192];
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *file = fopen(beside, "we");
    if (!file) return;
    va_list list;
    va_start(list, format);
    vfprintf(file, format, list);
    va_end(list);
    fclose(file);
    rename(beside, path);
}

/* What the port calls its speed; where no rate is set, 100. */
double nominal_gbps(struct nic *nic) { return nic->rate ? (double)nic->rate * 8 / 1e9 : 100; }

void write_port(struct nic *nic) {
    char port[6000], path[8000];
    snprintf(port, sizeof port, "%s/sys/class/infiniband/%s/ports/1", folder, nic->name);
    snprintf(path, sizeof path, "%s/state", port);
    put_file(path, nic->up ? "4: ACTIVE\n" : "1: DOWN\n");
    snprintf(path, sizeof path, "%s/phys_state", port);
    put_file(path, nic->up ? "5: LinkUp\n" : "3: Disabled\n");
    snprintf(path, sizeof path, "%s/rate", port);
    put_file(path, "%.4g Gb/sec (4X EDR)\n", nominal_gbps(nic));
    snprintf(path, sizeof path, "%s/link_layer", port);
    put_file(path, settings.link_layer == FV_LINK_LAYER_ETHERNET ? "Ethernet\n" : "InfiniBand\n");
    snprintf(path, sizeof path, "%s/lid", port);
    put_file(path, "0x%x\n", settings.link_layer == FV_LINK_LAYER_ETHERNET ? 0 : nic->lid);
    for (int i = 0; i < GIDS; i++) {
        uint8_t *raw = nic->gids[i].raw;
        char text[64], *at = text;
        bool set = nic->gids[i].words[0] || nic->gids[i].words[1];
        for (int pair = 0; pair < 16; pair += 2)
            at += sprintf(at, "%s%02x%02x", pair ? ":" : "", raw[pair], raw[pair + 1]);
        snprintf(path, sizeof path, "%s/gids/%d", port, i);
        put_file(path, "%s\n", text);
        /* The kernel's files of an unset entry cannot be read; here they are not there. */
        snprintf(path, sizeof path, "%s/gid_attrs/types/%d", port, i);
        if (set) put_file(path, nic->gid_types[i] == FV_GID_TYPE_ROCE_V2 ? "RoCE v2\n" : "IB/RoCE v1\n");
        else unlink(path);
        snprintf(path, sizeof path, "%s/gid_attrs/ndevs/%d", port, i);
        if (set && settings.link_layer == FV_LINK_LAYER_ETHERNET) put_file(path, "%s\n", nic->ndev);
        else unlink(path);
    }
    snprintf(path, sizeof path, "%s/sys/class/net/%s/operstate", folder, nic->ndev);
    put_file(path, nic->up ? "up\n" : "down\n");
    snprintf(path, sizeof path, "%s/sys/class/net/%s/carrier", folder, nic->ndev);
    put_file(path, nic->up ? "1\n" : "0\n");
}

void write_tree(struct nic *nic) {
    char base[6000], path[8000], target[200];
    snprintf(base, sizeof base, "%s/sys/class/infiniband/%s", folder, nic->name);
    const char *const parts[] = {"ports/1/gids", "ports/1/gid_attrs/types", "ports/1/gid_attrs/ndevs", "ports/1/pkeys",
                                 "device/net"};
    bool device = nic->numa != NO_DEVICE; /* Soft-RoCE over a device of no bus has none */
    for (size_t i = 0; i < sizeof parts / sizeof *parts - !device; i++) {
        snprintf(path, sizeof path, "%s/%s", base, parts[i]);
        make_folder(path);
    }
    snprintf(path, sizeof path, "%s/sys/class/net/%s", folder, nic->ndev);
    make_folder(path);
    snprintf(path, sizeof path, "%s/device/net/%s", base, nic->ndev);
    snprintf(target, sizeof target, "../../../../net/%s", nic->ndev);
    if (device && symlink(target, path) && errno != EEXIST) fprintf(stderr, "fabric: no link %s\n", path);
    snprintf(path, sizeof path, "%s/sys/class/infiniband_verbs/uverbs%u", folder, nic->index);
    make_folder(path);
    snprintf(path, sizeof path, "%s/sys/class/infiniband_verbs/uverbs%u/ibdev", folder, nic->index);
    put_file(path, "%s\n", nic->name);
    snprintf(path, sizeof path, "%s/node_type", base);
    put_file(path, "1: CA\n");
    snprintf(path, sizeof path, "%s/node_guid", base);
    put_file(path, "0200:00ff:fe00:%04x\n", nic->index + 1);
    snprintf(path, sizeof path, "%s/fw_ver", base);
    put_file(path, "1.0.fake\n");
    snprintf(path, sizeof path, "%s/hca_type", base);
    put_file(path, "fake\n");
    snprintf(path, sizeof path, "%s/ports/1/pkeys/0", base);
    put_file(path, "0xffff\n");
    if (device) {
        snprintf(path, sizeof path, "%s/device/numa_node", base);
        put_file(path, "%d\n", nic->numa);
    }
    write_port(nic);
}

/* As a ConnectX has it: link-local v1 and v2, then that of an address, v1 and v2. */
void make_nic(uint32_t index, int numa) {
    struct nic *nic = &nics[index];
    *nic = (struct nic){.index = index, .numa = numa, .up = true, .lid = (uint16_t)(index + 1), .fresh = FIRST_QPN};
    snprintf(nic->name, sizeof nic->name, "fake%u", index);
    snprintf(nic->ndev, sizeof nic->ndev, "fakenet%u", index);
    nic->limits = (struct limits){.max_mr_size = 1ULL << 40, .max_qp = 4096, .max_cqe = 65536, .max_qp_wr = 8192,
                                  .max_sge = 4, .max_inline = 512, .max_rd_atomic = 16, .max_mr = 1 << 20,
                                  .mtu = FV_MTU_4096};
    nic->key_salt = (uint8_t)draw();
    const uint8_t local[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, 0, (uint8_t)(index + 1)};
    const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, (uint8_t)(index + 1)};
    bool ethernet = settings.link_layer == FV_LINK_LAYER_ETHERNET;
    for (int i = 0; i < (ethernet ? 4 : 1); i++) {
        memcpy(nic->gids[i].raw, i < 2 ? local : mapped, 16);
        nic->gid_types[i] = ethernet ? (i & 1 ? FV_GID_TYPE_ROCE_V2 : FV_GID_TYPE_ROCE_V1) : FV_GID_TYPE_IB;
    }
    write_tree(nic);
}
