//! Every flag of the transfer engine's tools.

use crate::setting::{Setting, Type};

const ONE: &str = "there is one engine";

/// `transfer_engine_bench`, in the order of `--help`.
pub(crate) const BENCH: &[Setting] = &[
    Setting::done("mode", Type::Text, "initiator", "initiator: moves bytes; target: lends memory until Ctrl-C"),
    Setting::done("operation", Type::Text, "read", "read or write"),
    Setting::done("metadata_server", Type::Text, "P2PHANDSHAKE", "P2PHANDSHAKE, or a URL of http:// or https://"),
    Setting::done("local_server_name", Type::Text, "127.0.0.1", "name or address by which peers reach this host"),
    Setting::done("segment_id", Type::Text, "", "the target's name, which it prints"),
    Setting::done("block_size", Type::Size, "65536", "bytes of a request"),
    Setting::done("batch_size", Type::U32, "128", "requests of a batch"),
    Setting::done("threads", Type::U32, "12", "threads, each with a batch at a time"),
    Setting::done("duration", Type::F64, "10", "seconds"),
    Setting::done("buffer_size", Type::Size, "1GB", "bytes of memory; more if the threads' blocks need it"),
    Setting::done("report_unit", Type::Text, "GB", "GB, GiB, Gb, MB, MiB, Mb, KB, KiB or Kb, a second"),
    Setting::done("report_precision", Type::U32, "2", "digits after the point"),
    Setting::accepted("protocol", Type::Text, "tcp", "the path to a peer is chosen by itself; MC_SHM=0 leaves TCP"),
    Setting::accepted("device_name", Type::Text, "", "there are no network devices to choose from in this version"),
    Setting::accepted(
        "nic_priority_matrix",
        Type::Text,
        "",
        "there are no network devices to choose from in this version",
    ),
    Setting::accepted(
        "auto_discovery",
        Type::Bool,
        "false",
        "there are no network devices to choose from in this version",
    ),
    Setting::accepted("backend", Type::Text, "classic", ONE),
    Setting::accepted("init_mem", Type::Bool, "true", "memory is always filled"),
];

/// `transfer_engine_topology_dump`, in the order of `--help`.
pub(crate) const TOPOLOGY: &[Setting] = &[
    Setting::done(
        "device_name",
        Type::Text,
        "",
        "names of the devices that count, with commas between them; none: all",
    ),
    Setting::done("use_custom_topo", Type::Bool, "false", "show the file that MC_CUSTOM_TOPO_JSON names"),
    Setting::done("custom_topo_json", Type::Text, "", "show this file"),
    Setting::accepted("backend", Type::Text, "auto", ONE),
];
