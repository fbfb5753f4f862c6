//! Every flag of Mooncake's master, and ours.

use crate::setting::{HelpGroup, Setting, Support, Type};
use crate::tables::LOG_FORMAT;

const WAL: Type = Type::OneOf(&["on", "off", "fsync", "true", "false", "1", "0"]);

/// What Mooncake's snapshots are for.
const SNAPSHOTS: &str = "the log (--wal=on, --wal_dir) survives a restart, and takes snapshots of itself as it grows";

/// Flags in the order of `--help`.
pub(crate) const SETTINGS: &[Setting] = &[
    // Control server.
    Setting::supported(
        "rpc_port",
        Type::Port,
        "50051",
        "port of the control server; given as 0: any free port, printed at start",
    ),
    Setting::supported("port", Type::Port, "50051", "deprecated alias of rpc_port, used when rpc_port is not given"),
    Setting::supported(
        "rpc_address",
        Type::Text,
        "0.0.0.0",
        "address to bind: IPv4, IPv6 (with or without brackets) or a name",
    ),
    Setting::supported("rpc_interface", Type::Text, "", "network interface whose IPv4 address replaces rpc_address"),
    Setting::no_effect("max_threads", Type::I32, "16", "one core answers all requests; threads follow the machine"),
    Setting::no_effect("rpc_thread_num", Type::I32, "0", "one core answers all requests; threads follow the machine"),
    Setting::no_effect("rpc_conn_timeout_seconds", Type::I32, "0", "connections end with their session"),
    Setting::no_effect("rpc_enable_tcp_no_delay", Type::Bool, "true", "TCP_NODELAY is always on"),
    // Metrics.
    Setting::supported("enable_metric_reporting", Type::Bool, "true", "log a summary line every 10 seconds"),
    Setting::supported(
        "metrics_port",
        Type::Port,
        "9003",
        "port of the HTTP server with metrics and admin calls; 0: any free port",
    ),
    Setting::supported("metrics_host", Type::Text, "0.0.0.0", "address the HTTP server binds; :: is dual stack"),
    // Objects.
    Setting::supported(
        "default_kv_lease_ttl",
        Type::Duration,
        "2s",
        "how long an existence query protects what it found from eviction",
    ),
    Setting::supported(
        "default_kv_soft_pin_ttl",
        Type::Duration,
        "30m",
        "lifetime of a soft pin whose request names none",
    ),
    Setting::supported("max_kv_soft_pin_ttl", Type::Duration, "24h", "longest lifetime of a soft pin"),
    Setting::supported(
        "allow_evict_soft_pinned_objects",
        Type::Bool,
        "true",
        "evict soft-pinned objects when nothing else is left",
    ),
    Setting::supported(
        "eviction_high_watermark_ratio",
        Type::Ratio,
        "1.0",
        "share of the capacity above which objects are evicted in the background; 1.0: only a put that needs room \
         evicts",
    ),
    Setting::supported(
        "eviction_ratio",
        Type::Ratio,
        "0.05",
        "share of the capacity, in bytes, freed by one background eviction",
    ),
    Setting::supported(
        "allocation_strategy",
        Type::Text,
        "random",
        "random, free_ratio_first (ssd_free_ratio_first is the same) or local_first",
    ),
    Setting::no_effect(
        "memory_allocator",
        Type::OneOf(&["offset", "cachelib"]),
        "offset",
        "there is one allocator, and it works by offset",
    ),
    Setting::supported(
        "put_start_discard_timeout_sec",
        Type::Whole(1, 86_400),
        "30",
        "deadline of an unfinished put after its last moved byte, seconds",
    ),
    Setting::no_effect(
        "put_start_release_timeout_sec",
        Type::U64,
        "600",
        "memory of an unfinished put comes back as soon as its owner has fenced it",
    ),
    Setting::no_effect("client_ttl", Type::I64, "10", "a silent client is away after 2 s and forgotten after 10 min"),
    Setting::no_effect("max_retry_attempts", Type::U32, "10", "a put waits in the master instead of trying again"),
    // The log, ours.
    Setting::supported("wal", WAL, "on", "whether there is a log; fsync: wait for the disk before each reply"),
    Setting::supported("wal_dir", Type::Text, "", "folder of the log; default: <state folder>/<cluster_id>-<port>"),
    Setting::supported("cluster_id", Type::Name, "mooncake_cluster", "name of this pool, 1 to 128 of [A-Za-z0-9._-]"),
    // Logging, after glog.
    Setting::supported("v", Type::I32, "0", "1: also log debug messages"),
    LOG_FORMAT,
    Setting::supported("minloglevel", Type::I32, "0", "0 info, 1 warnings, 2 errors"),
    Setting::supported(
        "log_dir",
        Type::Text,
        "",
        "folder for a journal of all log lines, besides stderr; a link mooncake_master leads to the newest",
    ),
    Setting::no_effect("logtostderr", Type::Bool, "true", "log lines always go to stderr"),
    Setting::no_effect("alsologtostderr", Type::Bool, "true", "log lines always go to stderr"),
    Setting::no_effect(
        "colorlogtostderr",
        Type::Bool,
        "false",
        "log lines have colour on a terminal unless NO_COLOR is set",
    ),
    Setting::no_effect("stderrthreshold", Type::I32, "0", "log lines always go to stderr"),
    Setting::no_effect("vmodule", Type::Text, "", "set RUST_LOG instead, as in RUST_LOG=mooncake_master=debug"),
    Setting::no_effect("log_prefix", Type::Bool, "true", "log lines always have one"),
    Setting::no_effect("logbufsecs", Type::I32, "30", "log lines are not buffered"),
    Setting::no_effect("logbuflevel", Type::I32, "0", "log lines are not buffered"),
    Setting::supported(
        "max_log_size",
        Type::Whole(1, i32::MAX as i128),
        "1800",
        "MiB after which the journal begins a new file",
    ),
    Setting::supported(
        "max_log_files",
        Type::Whole(0, u32::MAX as i128),
        "0",
        "journal files of this program that are kept in log_dir, the newest; 0: all",
    ),
    Setting::no_effect("stop_logging_if_full_disk", Type::Bool, "false", "log lines go to stderr"),
    Setting::no_effect("log_link", Type::Text, "", "log lines go to stderr"),
    Setting::no_effect("log_file_mode", Type::Text, "", "log lines go to stderr"),
    // High availability.
    Setting::refused(
        "enable_ha",
        Type::Bool,
        "false",
        "high availability; a restarted master keeps every object (--wal=on)",
    ),
    Setting::inactive("ha_backend_type", Type::Text, "etcd", "high availability"),
    Setting::inactive("ha_backend_connstring", Type::Text, "", "high availability"),
    Setting::inactive("etcd_endpoints", Type::Text, "", "high availability"),
    Setting::inactive("pod_name", Type::Text, "", "high availability"),
    Setting::inactive("pod_namespace", Type::Text, "", "high availability"),
    Setting::refused(
        "enable_oplog",
        Type::Bool,
        "false",
        "a hot standby; a restarted master keeps every object (--wal=on)",
    ),
    Setting::inactive("oplog_poll_interval_ms", Type::I32, "1000", "a hot standby"),
    Setting::inactive("oplog_batch_max_entries", Type::U32, "1024", "a hot standby"),
    Setting::inactive("batch_oplog_retry_timeout_sec", Type::U32, "180", "a hot standby"),
    // Tiers.
    Setting::supported(
        "enable_offload",
        Type::Bool,
        "true",
        "stores may keep tiers on disks of their hosts (docs/tiers.md). Set to true, and not by default, it leaves \
         root_fs_dir without effect; with false only the file system of root_fs_dir has tiers, and a store that asks \
         for one of its own is not set up (-1300)",
    ),
    Setting::supported(
        "offload_on_evict",
        Type::Bool,
        "false",
        "write to tiers only what would leave memory soon, not everything in order of commit",
    ),
    Setting::supported(
        "offload_force_evict",
        Type::Bool,
        "false",
        "a put that needs room does not wait for a tier to have what it evicts",
    ),
    Setting::no_effect("offloading_queue_limit", Type::U64, "50000", "orders have a window that the disk's rate gives"),
    Setting::no_effect("offload_cap_ratio", Type::Ratio, "0.5", "orders have a window that the disk's rate gives"),
    Setting::supported(
        "promotion_on_hit",
        Type::Bool,
        "false",
        "copy to memory what gets find on a tier alone; it waits up to 10 s for room",
    ),
    Setting::supported(
        "promotion_admission_threshold",
        Type::U32,
        "2",
        "gets of late (1 to 255) before an object is copied to memory",
    ),
    Setting::no_effect("promotion_queue_limit", Type::U32, "50000", "what is copied at a time is bounded in bytes"),
    Setting::no_effect("promotion_max_per_heartbeat", Type::U32, "1", "what is copied at a time is bounded in bytes"),
    Setting::supported(
        "tier_writes_per_day",
        Type::F64,
        "0",
        "how often what is written may fill a tier in a day (0: any); what is not written leaves memory as without",
    ),
    Setting::supported(
        "tier_retention",
        Type::Duration,
        "168h",
        "how long a tier whose owner is away is remembered; after that its objects are forgotten",
    ),
    Setting::supported(
        "tier_prefetch",
        Type::Bool,
        "true",
        "copy to memory what existence queries find on a tier alone, where there is room: it is read next",
    ),
    // Replication of hot objects.
    Setting {
        name: "dynamic_replication_mode",
        support: Support::Refused { off: &["off"] },
        value: Type::Text,
        default: "off",
        help: "replication of hot objects",
    },
    Setting::inactive("dynamic_replication_heat_window_seconds", Type::U32, "10", "replication of hot objects"),
    Setting::inactive("dynamic_replication_admission_qps_threshold", Type::F64, "0.8", "replication of hot objects"),
    Setting::inactive("dynamic_replication_max_memory_replicas", Type::U64, "2", "replication of hot objects"),
    // Events.
    Setting::refused("enable_kv_events", Type::Bool, "false", "KV events"),
    Setting::inactive("kv_events_bind_endpoint", Type::Text, "", "KV events"),
    Setting::inactive("kv_events_backend_id", Type::Text, "", "KV events"),
    Setting::inactive("kv_events_emit_legacy_compat", Type::Bool, "true", "KV events"),
    Setting::inactive("kv_events_emit_object_key", Type::Bool, "true", "KV events"),
    Setting::inactive("kv_events_queue_capacity", Type::U32, "65536", "KV events"),
    Setting::inactive("kv_events_model_name", Type::Text, "", "KV events"),
    Setting::inactive("kv_events_tenant_id", Type::Text, "default", "KV events"),
    Setting::inactive("kv_events_additional_salt", Type::Text, "", "KV events"),
    Setting::inactive("kv_events_lora_name", Type::Text, "", "KV events"),
    Setting::inactive("kv_events_block_size", Type::I64, "0", "KV events"),
    Setting::inactive("kv_events_dp_rank", Type::I64, "0", "KV events"),
    // NVMe-oF pool.
    Setting::inactive("nof_eviction_ratio", Type::Ratio, "0.05", "an NVMe-oF pool"),
    Setting::inactive("nof_eviction_high_watermark_ratio", Type::Ratio, "0.90", "an NVMe-oF pool"),
    Setting::inactive("nof_heartbeat_interval_sec", Type::I64, "10", "an NVMe-oF pool"),
    Setting::inactive("nof_heartbeat_probe_timeout_ms", Type::U32, "1000", "an NVMe-oF pool"),
    Setting::inactive("nof_heartbeat_failures_threshold", Type::U32, "3", "an NVMe-oF pool"),
    // Shared file system.
    Setting::supported(
        "root_fs_dir",
        Type::Text,
        "",
        "folder of a file system that clients share: each writes what is put to <root_fs_dir>/<cluster_id>, and reads \
         what others wrote there; no effect where --enable_offload=true is given as well",
    ),
    Setting::inactive(
        "global_file_segment_size",
        Type::I64,
        "9223372036854775807",
        "files of one object each: a file there has many",
    ),
    Setting::supported(
        "enable_disk_eviction",
        Type::Bool,
        "true",
        "what was written first on the file system of root_fs_dir goes when it is full; otherwise nothing more is \
         written",
    ),
    Setting::supported(
        "quota_bytes",
        Type::U64,
        "0",
        "most bytes that clients have on the file system of root_fs_dir together; 0: nine tenths of it",
    ),
    // Tenants.
    Setting::refused("enable_multi_tenants", Type::Bool, "false", "tenants and quotas"),
    Setting::inactive("tenant_quota_connector_type", Type::Text, "file", "tenants and quotas"),
    Setting::inactive("tenant_quota_connector_uri", Type::Text, "", "tenants and quotas"),
    // HTTP metadata server.
    Setting::supported(
        "enable_http_metadata_server",
        Type::Bool,
        "false",
        "serve transfer engines' metadata over HTTP as well; the store needs none",
    ),
    Setting::supported("http_metadata_server_port", Type::Port, "8080", "its port; 0: any free port, printed at start"),
    Setting::supported("http_metadata_server_host", Type::Text, "0.0.0.0", "the address that it binds"),
    Setting::refused(
        "enable_metadata_cleanup_on_timeout",
        Type::Bool,
        "false",
        "removal of dead engines' metadata; an engine that comes back replaces its own",
    ),
    // Snapshots of Mooncake: the log has them, and brings them back.
    Setting::no_effect("enable_snapshot", Type::Bool, "false", SNAPSHOTS),
    Setting::no_effect("enable_snapshot_restore", Type::Bool, "false", "the log (--wal=on) is read at every start"),
    Setting::no_effect("snapshot_backup_dir", Type::Text, "", SNAPSHOTS),
    Setting::supported(
        "snapshot_interval_seconds",
        Type::U64,
        "0",
        "the longest time between two snapshots of a log that grows, in seconds; 0: whenever it has grown by half",
    ),
    Setting::no_effect("snapshot_child_timeout_seconds", Type::U64, "300", SNAPSHOTS),
    Setting::no_effect("snapshot_retention_count", Type::U32, "2", SNAPSHOTS),
    Setting::no_effect("snapshot_object_store_type", Type::Text, "", SNAPSHOTS),
    Setting::no_effect("snapshot_payload_store_type", Type::Text, "", SNAPSHOTS),
    Setting::no_effect("snapshot_payload_backend_type", Type::Text, "", SNAPSHOTS),
    Setting::no_effect("snapshot_catalog_store_type", Type::Text, "", SNAPSHOTS),
    Setting::no_effect("snapshot_catalog_backend_type", Type::Text, "", SNAPSHOTS),
    Setting::no_effect("snapshot_catalog_store_connstring", Type::Text, "", SNAPSHOTS),
    Setting::no_effect("snapshot_catalog_backend_connstring", Type::Text, "", SNAPSHOTS),
    // Copy and move tasks.
    Setting::inactive("max_total_finished_tasks", Type::U32, "10000", "copy and move tasks"),
    Setting::inactive("max_total_pending_tasks", Type::U32, "10000", "copy and move tasks"),
    Setting::inactive("max_total_processing_tasks", Type::U32, "10000", "copy and move tasks"),
    Setting::inactive("pending_task_timeout_sec", Type::U64, "300", "copy and move tasks"),
    Setting::inactive("processing_task_timeout_sec", Type::U64, "300", "copy and move tasks"),
    // CXL.
    Setting::refused("enable_cxl", Type::Bool, "false", "CXL memory"),
    Setting::inactive("cxl_path", Type::Text, "/dev/dax0.0", "CXL memory"),
    Setting::inactive("cxl_size", Type::U64, "8589934592", "CXL memory"),
    // Files of settings.
    Setting::supported(
        "config_path",
        Type::Text,
        "",
        "a .yaml, .yml or .json file of these settings; flags win over it",
    ),
    Setting::supported(
        "check_config",
        Type::Bool,
        "false",
        "check all settings, print those in force with their source, and exit",
    ),
];

/// By what they are for.
pub(crate) const GROUPS: &[HelpGroup] = &[
    (
        "Network",
        &[
            "rpc_address",
            "rpc_port",
            "port",
            "rpc_interface",
            "metrics_host",
            "metrics_port",
            "enable_metric_reporting",
        ],
    ),
    (
        "Capacity and eviction",
        &[
            "default_kv_lease_ttl",
            "default_kv_soft_pin_ttl",
            "max_kv_soft_pin_ttl",
            "allow_evict_soft_pinned_objects",
            "eviction_high_watermark_ratio",
            "eviction_ratio",
            "allocation_strategy",
            "put_start_discard_timeout_sec",
        ],
    ),
    (
        "Tiers (docs/tiers.md)",
        &[
            "enable_offload",
            "offload_on_evict",
            "offload_force_evict",
            "promotion_on_hit",
            "promotion_admission_threshold",
            "tier_writes_per_day",
            "tier_retention",
            "tier_prefetch",
            "root_fs_dir",
            "enable_disk_eviction",
            "quota_bytes",
        ],
    ),
    ("Durability", &["wal", "wal_dir", "cluster_id", "snapshot_interval_seconds"]),
    ("Logging", &["log_format", "v", "minloglevel", "log_dir", "max_log_size", "max_log_files"]),
    ("Settings", &["config_path", "check_config"]),
    (
        "A metadata server for transfer engines beside it",
        &["enable_http_metadata_server", "http_metadata_server_host", "http_metadata_server_port"],
    ),
];
