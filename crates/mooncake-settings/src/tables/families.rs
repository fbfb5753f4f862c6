//! Variables of Mooncake that this version does not read: variables that engines read themselves, and families that
//! share one reason.

use crate::tables::engine::RDMA;

const DEVICES: &str = "of devices, only memory of CUDA's is moved";
const NVLINK: &str = "there is no transport over NVLink in this version";
const SSD: &str = "a tier has files of its own, and few settings (docs/tiers.md)";
const NVME: &str = "there are no pools of NVMe devices in this version";
const FILES: &str = "the tier that hosts share is the master's --root_fs_dir (docs/tiers.md)";
const CXL: &str = "there is no CXL in this version";
const RPC: &str = "clients talk to the master by a protocol of their own, over TCP";
const TENT: &str = "there is one transfer engine";
const ARENA: &str = "a segment is one mapping, there is no arena";
const PINNING: &str = "the store's own memory is not pinned for devices";
const ADMISSION: &str = "transfers over TCP wait in turn, none is turned away";

/// Read by engines or their connectors, which then tell `setup` what they want.
pub(crate) const READ_BY_ENGINES: &[&str] = &[
    "MOONCAKE_CHECK_SERVER",
    "MOONCAKE_CLIENT",
    "MOONCAKE_CLIENT_METRICS_PORT_BASE",
    "MOONCAKE_ENABLE_SSD_OFFLOAD",
    "MOONCAKE_MASTER_METRICS_PORT",
    "MOONCAKE_PREFERRED_SEGMENT",
    "MOONCAKE_REQUESTER_LOCAL_HOSTNAME",
    "MOONCAKE_SSD_OFFLOAD_PATH",
    "MOONCAKE_STANDALONE_STORAGE",
];

/// Names, or with a star beginnings of names, and why they have no effect. No beginning covers a misspelt name that is
/// read.
pub(crate) const FAMILIES: &[(&str, &str)] = &[
    ("MC_CONN_PAUSE_TTL_MS", RDMA),
    ("MC_DISABLE_GPU_DIRECT_RDMA", RDMA),
    ("MC_EFA_*", RDMA),
    ("MC_ENABLE_DEST_DEVICE_AFFINITY", RDMA),
    ("MC_ENABLE_HCA_PEER_AFFINITY", RDMA),
    ("MC_ENABLE_PARALLEL_REG_MR", RDMA),
    ("MC_ENDPOINT_STORE_TYPE", RDMA),
    ("MC_FRAGMENT_RATIO", RDMA),
    ("MC_IB_*", RDMA),
    ("MC_LOG_RDMA_*", RDMA),
    ("MC_MAX_CONCURRENT_REG_MR", RDMA),
    ("MC_MAX_CQE_PER_CTX", RDMA),
    ("MC_MAX_EP_PER_CTX", RDMA),
    ("MC_MAX_INLINE", RDMA),
    ("MC_MAX_SGE", RDMA),
    ("MC_MIN_REG_SIZE", RDMA),
    ("MC_MLX5_*", RDMA),
    ("MC_MS_*", RDMA),
    ("MC_NIC_PEER_AFFINITY", RDMA),
    ("MC_NUM_*", RDMA),
    ("MC_PATH_ROUNDROBIN", RDMA),
    ("MC_RDMA_*", RDMA),
    ("MC_SLICE_TIMEOUT", RDMA),
    ("MC_TRACK_RDMA_*", RDMA),
    ("MC_DISABLE_HIP", DEVICES),
    ("MC_DISABLE_MACA", DEVICES),
    ("MC_DISABLE_MUSA", DEVICES),
    ("MC_FORCE_MUSA", DEVICES),
    ("MC_HIP_*", DEVICES),
    ("MC_MACA_*", DEVICES),
    ("MC_MUSA_*", DEVICES),
    ("MC_TANGRT_*", DEVICES),
    ("MC_TPU_*", DEVICES),
    ("MC_UBSHMEM_*", DEVICES),
    ("MC_USE_HIP_IPC", DEVICES),
    ("MC_USE_UBSHMEM_IPC", DEVICES),
    ("MOONCAKE_DISABLE_HIP_DMABUF", DEVICES),
    ("MC_ENABLE_MNNVL", NVLINK),
    ("MC_FORCE_MNNVL", NVLINK),
    ("MC_INTRANODE_NVLINK", NVLINK),
    ("MC_INTRA_NVLINK", NVLINK),
    ("MC_USE_NVLINK_IPC", NVLINK),
    ("MC_CXL_*", CXL),
    ("MC_NOF_*", NVME),
    ("MC_NVME_*", NVME),
    ("MC_STORE_NUMA_SOCKET_ID", NVME),
    ("MOONCAKE_NVME_*", NVME),
    ("MC_FILEREAD_WORKERS", SSD),
    ("MOONCAKE_AWS_*", SSD),
    ("MOONCAKE_BUCKET_*", SSD),
    ("MOONCAKE_DISK_EVICTION_*", SSD),
    ("MOONCAKE_OFFLOAD_*", SSD),
    ("MOONCAKE_OFFSET_*", SSD),
    ("MOONCAKE_SCANMETA_*", SSD),
    ("MOONCAKE_USE_URING", SSD),
    ("MOONCAKE_DFS_*", FILES),
    ("MOONCAKE_DISTRIBUTED_*", FILES),
    ("MOONCAKE_ENABLE_DFS", FILES),
    ("MC_RPC_CLIENT_IO_THREADS", RPC),
    ("MC_RPC_PROTOCOL", RPC),
    ("MC_STORE_RPC_CLIENT_IO_THREADS", RPC),
    ("MC_TE_RPC_CLIENT_IO_THREADS", RPC),
    ("MC_YLT_LOG_LEVEL", RPC),
    ("MC_TENT_*", TENT),
    ("MC_USE_TENT", TENT),
    ("MC_USE_TEV1", TENT),
    ("MC_DISABLE_MMAP_ARENA", ARENA),
    ("MC_MMAP_ARENA_*", ARENA),
    ("MC_STORE_PINNED_*", PINNING),
    ("MC_STORE_PIN_MEMORY_*", PINNING),
    ("MC_TCP_ADMISSION_TIMEOUT_MS", ADMISSION),
    ("MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER", ADMISSION),
    ("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", ADMISSION),
    ("MC_HANDSHAKE_LISTEN_BACKLOG", "the length of that queue is no setting"),
    ("MC_MAX_PRC_PORT", "it is read by its right name, MC_MAX_RPC_PORT"),
    ("MC_MIN_PRC_PORT", "it is read by its right name, MC_MIN_RPC_PORT"),
    ("MC_REDIS_*", "no metadata is kept in Redis"),
    ("MC_STORE_LOCAL_HOT_*", "a client keeps no cache of its own"),
    ("MC_STORE_MEMCPY", "memory of the same host is always copied where it can be mapped; MC_SHM=0 leaves TCP"),
    ("MC_STORE_REPLICA_SCORING", "copies are not scored"),
    ("MC_TCP_PROTO", "there is one protocol over TCP"),
    ("MC_TE_FILTERS_EXCLUDE", "MC_TE_FILTERS names the devices to be used"),
    ("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", "a description that turns out old is fetched anew"),
    ("MC_TE_METRIC", "engines write no lines of what they moved"),
    ("MC_TE_METRIC_INTERVAL_SECONDS", "engines write no lines of what they moved"),
    ("MC_TRACE_FILE", "no traces are written"),
    ("MOONCAKE_SNAPSHOT_*", "the master's --wal_dir says where its log and snapshots are"),
];

/// Why Mooncake's variable of that name has no effect here; `None` for a name of no family.
pub(crate) fn reason(name: &str) -> Option<&'static str> {
    let is_of = |pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    };
    FAMILIES.iter().find(|(pattern, _)| is_of(pattern)).map(|(_, why)| *why)
}
