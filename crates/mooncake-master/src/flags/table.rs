//! Every flag of the reference's master, and ours.

use super::{Flag, Kind, Type};

/// Flags in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    // Control server.
    done("rpc_port", Type::Port, "0", "port of the control server; given as 0: any free port, printed at start"),
    done("port", Type::Port, "50051", "deprecated alias of rpc_port, used when rpc_port is not given"),
    done("rpc_address", Type::Text, "0.0.0.0", "address to bind: IPv4, IPv6 (with or without brackets) or a name"),
    done("rpc_interface", Type::Text, "", "network interface whose IPv4 address replaces rpc_address"),
    accepted("max_threads", Type::I32, "16", "one core answers all requests; threads follow the machine"),
    accepted("rpc_thread_num", Type::I32, "0", "one core answers all requests; threads follow the machine"),
    accepted("rpc_conn_timeout_seconds", Type::I32, "0", "connections end with their session"),
    accepted("rpc_enable_tcp_no_delay", Type::Bool, "true", "TCP_NODELAY is always on"),
    // Metrics.
    done("enable_metric_reporting", Type::Bool, "true", "log a summary line every 10 seconds"),
    done("metrics_port", Type::Port, "9003", "port of the HTTP server with metrics and admin calls; 0: any free port"),
    done("metrics_host", Type::Text, "0.0.0.0", "address the HTTP server binds; :: is dual stack"),
    // Objects.
    done(
        "default_kv_lease_ttl",
        Type::Duration,
        "2s",
        "how long an existence query protects what it found from eviction",
    ),
    done("default_kv_soft_pin_ttl", Type::Duration, "30m", "lifetime of a soft pin whose request names none"),
    done("max_kv_soft_pin_ttl", Type::Duration, "24h", "longest lifetime of a soft pin"),
    done("allow_evict_soft_pinned_objects", Type::Bool, "true", "evict soft-pinned objects when nothing else is left"),
    done(
        "eviction_high_watermark_ratio",
        Type::Ratio,
        "1.0",
        "share of the capacity above which objects are evicted in the background; 1.0: only a put that needs room evicts",
    ),
    done("eviction_ratio", Type::Ratio, "0.05", "share of the capacity, in bytes, freed by one background eviction"),
    done("allocation_strategy", Type::Text, "random", "random, free_ratio_first or local_first"),
    accepted("memory_allocator", Type::Text, "offset", "there is one allocator, and it works by offset"),
    done("put_start_discard_timeout_sec", Type::U64, "30", "deadline of an unfinished put after its last moved byte"),
    accepted(
        "put_start_release_timeout_sec",
        Type::U64,
        "600",
        "memory of an unfinished put comes back as soon as its owner has fenced it",
    ),
    accepted("client_ttl", Type::I64, "10", "a silent client is away after 2 s and forgotten after 10 min"),
    accepted("max_retry_attempts", Type::U32, "10", "a put waits in the master instead of trying again"),
    // The log, ours.
    done("wal", Type::Text, "on", "on, off, or fsync (wait for the disk before each reply)"),
    done("wal_dir", Type::Text, "", "folder of the log; default: <state folder>/<cluster_id>-<port>"),
    done("cluster_id", Type::Text, "mooncake_cluster", "name of this pool, 1 to 128 of [A-Za-z0-9._-]"),
    // Logging, after glog.
    done("v", Type::I32, "0", "1: also log debug messages"),
    done("minloglevel", Type::I32, "0", "0 info, 1 warnings, 2 errors"),
    accepted("log_dir", Type::Text, "", "log lines go to stderr; redirect it"),
    accepted("logtostderr", Type::Bool, "true", "log lines always go to stderr"),
    accepted("alsologtostderr", Type::Bool, "true", "log lines always go to stderr"),
    accepted("colorlogtostderr", Type::Bool, "false", "log lines have no colour"),
    accepted("stderrthreshold", Type::I32, "0", "log lines always go to stderr"),
    accepted("vmodule", Type::Text, "", "set RUST_LOG instead, as in RUST_LOG=mooncake_master=debug"),
    accepted("log_prefix", Type::Bool, "true", "log lines always have one"),
    accepted("logbufsecs", Type::I32, "30", "log lines are not buffered"),
    accepted("logbuflevel", Type::I32, "0", "log lines are not buffered"),
    accepted("max_log_size", Type::I32, "1800", "log lines go to stderr"),
    accepted("stop_logging_if_full_disk", Type::Bool, "false", "log lines go to stderr"),
    accepted("log_link", Type::Text, "", "log lines go to stderr"),
    accepted("log_file_mode", Type::Text, "", "log lines go to stderr"),
    // High availability.
    refused("enable_ha", Type::Bool, "false", "high availability; a restarted master keeps every object (--wal=on)"),
    idle("ha_backend_type", Type::Text, "etcd", "high availability"),
    idle("ha_backend_connstring", Type::Text, "", "high availability"),
    idle("etcd_endpoints", Type::Text, "", "high availability"),
    idle("pod_name", Type::Text, "", "high availability"),
    idle("pod_namespace", Type::Text, "", "high availability"),
    refused("enable_oplog", Type::Bool, "false", "a hot standby; a restarted master keeps every object (--wal=on)"),
    idle("oplog_poll_interval_ms", Type::I32, "1000", "a hot standby"),
    idle("oplog_batch_max_entries", Type::U32, "1024", "a hot standby"),
    idle("batch_oplog_retry_timeout_sec", Type::U32, "180", "a hot standby"),
    // SSD tier.
    refused("enable_offload", Type::Bool, "false", "the SSD tier"),
    refused("offload_on_evict", Type::Bool, "false", "the SSD tier"),
    refused("offload_force_evict", Type::Bool, "false", "the SSD tier"),
    idle("offloading_queue_limit", Type::U64, "50000", "the SSD tier"),
    idle("offload_cap_ratio", Type::Ratio, "0.5", "the SSD tier"),
    refused("promotion_on_hit", Type::Bool, "false", "the SSD tier"),
    idle("promotion_admission_threshold", Type::U32, "2", "the SSD tier"),
    idle("promotion_queue_limit", Type::U32, "50000", "the SSD tier"),
    idle("promotion_max_per_heartbeat", Type::U32, "1", "the SSD tier"),
    // Replication of hot objects.
    Flag {
        name: "dynamic_replication_mode",
        kind: Kind::Refused { off: &["off"] },
        value: Type::Text,
        default: "off",
        help: "replication of hot objects",
    },
    idle("dynamic_replication_heat_window_seconds", Type::U32, "10", "replication of hot objects"),
    idle("dynamic_replication_admission_qps_threshold", Type::F64, "0.8", "replication of hot objects"),
    idle("dynamic_replication_max_memory_replicas", Type::U64, "2", "replication of hot objects"),
    // Events.
    refused("enable_kv_events", Type::Bool, "false", "KV events"),
    idle("kv_events_bind_endpoint", Type::Text, "", "KV events"),
    idle("kv_events_backend_id", Type::Text, "", "KV events"),
    idle("kv_events_emit_legacy_compat", Type::Bool, "true", "KV events"),
    idle("kv_events_emit_object_key", Type::Bool, "true", "KV events"),
    idle("kv_events_queue_capacity", Type::U32, "65536", "KV events"),
    idle("kv_events_model_name", Type::Text, "", "KV events"),
    idle("kv_events_tenant_id", Type::Text, "default", "KV events"),
    idle("kv_events_additional_salt", Type::Text, "", "KV events"),
    idle("kv_events_lora_name", Type::Text, "", "KV events"),
    idle("kv_events_block_size", Type::I64, "0", "KV events"),
    idle("kv_events_dp_rank", Type::I64, "0", "KV events"),
    // NVMe-oF pool.
    idle("nof_eviction_ratio", Type::Ratio, "0.05", "an NVMe-oF pool"),
    idle("nof_eviction_high_watermark_ratio", Type::Ratio, "0.90", "an NVMe-oF pool"),
    idle("nof_heartbeat_interval_sec", Type::I64, "10", "an NVMe-oF pool"),
    idle("nof_heartbeat_probe_timeout_ms", Type::U32, "1000", "an NVMe-oF pool"),
    idle("nof_heartbeat_failures_threshold", Type::U32, "3", "an NVMe-oF pool"),
    // Shared file system.
    refused("root_fs_dir", Type::Text, "", "replicas on a shared file system"),
    idle("global_file_segment_size", Type::I64, "9223372036854775807", "replicas on a shared file system"),
    idle("enable_disk_eviction", Type::Bool, "true", "replicas on a shared file system"),
    idle("quota_bytes", Type::U64, "0", "replicas on a shared file system"),
    // Tenants.
    refused("enable_multi_tenants", Type::Bool, "false", "tenants and quotas"),
    idle("tenant_quota_connector_type", Type::Text, "file", "tenants and quotas"),
    idle("tenant_quota_connector_uri", Type::Text, "", "tenants and quotas"),
    // HTTP metadata server.
    refused(
        "enable_http_metadata_server",
        Type::Bool,
        "false",
        "an HTTP metadata server; clients of this pool need none (give them P2PHANDSHAKE)",
    ),
    idle("http_metadata_server_port", Type::Port, "8080", "an HTTP metadata server"),
    idle("http_metadata_server_host", Type::Text, "0.0.0.0", "an HTTP metadata server"),
    refused(
        "enable_metadata_cleanup_on_timeout",
        Type::Bool,
        "false",
        "an HTTP metadata server; nothing is left to clean",
    ),
    // Snapshots of the reference.
    refused(
        "enable_snapshot",
        Type::Bool,
        "false",
        "snapshots to a store; the log (--wal=on) already survives a restart",
    ),
    refused(
        "enable_snapshot_restore",
        Type::Bool,
        "false",
        "snapshots to a store; the log (--wal=on) is replayed at every start",
    ),
    idle("snapshot_backup_dir", Type::Text, "", "snapshots to a store"),
    idle("snapshot_interval_seconds", Type::U64, "600", "snapshots to a store"),
    idle("snapshot_child_timeout_seconds", Type::U64, "300", "snapshots to a store"),
    idle("snapshot_retention_count", Type::U32, "2", "snapshots to a store"),
    idle("snapshot_object_store_type", Type::Text, "", "snapshots to a store"),
    idle("snapshot_payload_store_type", Type::Text, "", "snapshots to a store"),
    idle("snapshot_payload_backend_type", Type::Text, "", "snapshots to a store"),
    idle("snapshot_catalog_store_type", Type::Text, "", "snapshots to a store"),
    idle("snapshot_catalog_backend_type", Type::Text, "", "snapshots to a store"),
    idle("snapshot_catalog_store_connstring", Type::Text, "", "snapshots to a store"),
    idle("snapshot_catalog_backend_connstring", Type::Text, "", "snapshots to a store"),
    // Copy and move tasks.
    idle("max_total_finished_tasks", Type::U32, "10000", "copy and move tasks"),
    idle("max_total_pending_tasks", Type::U32, "10000", "copy and move tasks"),
    idle("max_total_processing_tasks", Type::U32, "10000", "copy and move tasks"),
    idle("pending_task_timeout_sec", Type::U64, "300", "copy and move tasks"),
    idle("processing_task_timeout_sec", Type::U64, "300", "copy and move tasks"),
    // CXL.
    refused("enable_cxl", Type::Bool, "false", "CXL memory"),
    idle("cxl_path", Type::Text, "/dev/dax0.0", "CXL memory"),
    idle("cxl_size", Type::U64, "8589934592", "CXL memory"),
    // Files of settings.
    refused("config_path", Type::Text, "", "a configuration file; give the same settings as flags"),
    refused("flagfile", Type::Text, "", "a file of flags; give them on the command line"),
];

const fn done(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Flag {
    Flag { name, value, default, help, kind: Kind::Done }
}

const fn accepted(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Flag {
    Flag { name, value, default, help, kind: Kind::Accepted }
}

/// A setting of a capability that is missing: harmless by itself.
const fn idle(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Flag {
    Flag { name, value, default, help, kind: Kind::Idle }
}

const fn refused(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Flag {
    Flag { name, value, default, help, kind: Kind::Refused { off: &["", "false"] } }
}
