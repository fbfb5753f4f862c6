//! Every flag of Mooncake's storage node, and ours.

use crate::setting::{HelpGroup, Setting, Type};
use crate::tables::LOG_FORMAT;

const LOGS: &str = "log lines go to stderr";

/// Flags in the order of `--help`.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::supported(
        "host",
        Type::Text,
        "0.0.0.0",
        "address to listen on for data, with or without :PORT; the wildcard takes all",
    ),
    Setting::supported(
        "master_server_address",
        Type::Text,
        "127.0.0.1:50051",
        "host:port of the master; one only, as there is no standby",
    ),
    Setting::supported("global_segment_size", Type::Size, "4 GB", "memory lent to the pool"),
    Setting::supported("local_buffer_size", Type::Size, "0", "most bytes borrowed from others at a time"),
    Setting::supported(
        "port",
        Type::Port,
        "50052",
        "where setup_dummy() of processes of this host finds the pool; also names the Unix socket; 0: any free port",
    ),
    Setting::supported(
        "metadata_server",
        Type::Text,
        "http://127.0.0.1:8080/metadata",
        "accepted; the store needs none",
    ),
    Setting::supported(
        "tcp_addresses",
        Type::Text,
        "",
        "addresses of this machine, one in each of its networks, with commas between them: data is listened for on all \
         of them, and peers are told them all; none: those of MC_TCP_ADDRESSES, or the one that --host says",
    ),
    Setting::supported("protocol", Type::Text, "tcp", "tcp; peers on the same host use shared memory"),
    Setting::supported(
        "enable_http_server",
        Type::Bool,
        "false",
        "serve /health, /metrics and /metrics/summary over HTTP",
    ),
    Setting::supported("http_port", Type::Port, "9300", "port of that HTTP server; 0: any free port, printed at start"),
    Setting::supported(
        "http_host",
        Type::Text,
        "127.0.0.1",
        "address of that HTTP server; 0.0.0.0 takes all of IPv4, :: both",
    ),
    Setting::supported("v", Type::I32, "0", "1: also log debug messages"),
    LOG_FORMAT,
    Setting::supported("minloglevel", Type::I32, "0", "0 info, 1 warnings, 2 errors"),
    Setting::no_effect("device_names", Type::Text, "", "there are no RDMA devices to choose from"),
    Setting::no_effect("threads", Type::I64, "1", "threads follow the connections"),
    Setting::no_effect("tenant_id", Type::Text, "default", "tenants are not kept apart, all clients see the same keys"),
    Setting::no_effect("logtostderr", Type::Bool, "true", LOGS),
    Setting::no_effect("alsologtostderr", Type::Bool, "false", LOGS),
    Setting::no_effect("colorlogtostderr", Type::Bool, "false", LOGS),
    Setting::no_effect("stderrthreshold", Type::I32, "0", LOGS),
    Setting::supported(
        "log_dir",
        Type::Text,
        "",
        "folder for a journal of all log lines, besides stderr; a link mooncake_client leads to the newest",
    ),
    Setting::no_effect("vmodule", Type::Text, "", "set RUST_LOG instead"),
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
    Setting::no_effect("stop_logging_if_full_disk", Type::Bool, "false", LOGS),
    Setting::no_effect("log_link", Type::Text, "", LOGS),
    Setting::no_effect("log_file_mode", Type::Text, "", LOGS),
    Setting::no_effect("start_offload_rpc_server", Type::Bool, "true", "a tier is served where memory is"),
    Setting::supported(
        "enable_offload",
        Type::Bool,
        "false",
        "keep a tier below MOONCAKE_OFFLOAD_FILE_STORAGE_PATH, /data/file_storage where that is not set, or one below \
         each of MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS (docs/tiers.md)",
    ),
    Setting::supported(
        "keep",
        Type::Bool,
        "false",
        "the memory outlives this process: the next one of this node serves what it holds (docs/kept-memory.md)",
    ),
    Setting::supported(
        "keep_ms",
        Type::Whole(1, 24 * 3600 * 1000),
        "60000",
        "with --keep: how long the master waits for that next process, milliseconds",
    ),
    Setting::supported(
        "keeper",
        Type::Text,
        "",
        "with --keep: Unix socket of a mooncake keeper that holds the memory; empty: the service manager's store",
    ),
];

/// By what they are for.
pub(crate) const GROUPS: &[HelpGroup] = &[
    ("The pool", &["master_server_address", "global_segment_size", "local_buffer_size", "enable_offload"]),
    ("Network", &["host", "port", "protocol", "metadata_server", "enable_http_server", "http_host", "http_port"]),
    ("Memory that outlives the process (docs/kept-memory.md)", &["keep", "keep_ms", "keeper"]),
    ("Logging", &["log_format", "v", "minloglevel", "log_dir", "max_log_size", "max_log_files"]),
];
