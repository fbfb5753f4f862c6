//! Every flag of the transfer engine's tools.

use crate::setting::{Setting, Type};

const ONE: &str = "there is one engine";
const VRAM: &str = "memory of a GPU to measure with: transfers take it, but the bench lends and moves the host's";
const QOS: &str = "classes of traffic, each with a goal of its own";
const COUNT: Type = Type::Whole(1, u32::MAX as i128);

/// `transfer_engine_bench`, in the order of `--help`.
pub(crate) const BENCH: &[Setting] = &[
    Setting::supported("mode", Type::Text, "initiator", "initiator: moves bytes; target: lends memory until Ctrl-C"),
    Setting::supported("operation", Type::Text, "read", "read or write"),
    Setting::supported("metadata_server", Type::Text, "P2PHANDSHAKE", "P2PHANDSHAKE, or a URL of http:// or https://"),
    Setting::supported(
        "local_server_name",
        Type::Text,
        "127.0.0.1",
        "name or address by which peers reach this host; it listens on that address alone, on all and with a \
         warning if it leads to no address by which other hosts reach this one",
    ),
    Setting::supported("segment_id", Type::Text, "", "the target's name, which it prints; an initiator needs it"),
    Setting::supported("block_size", Type::Size, "65536", "bytes of a request"),
    Setting::supported("batch_size", COUNT, "128", "requests of a batch"),
    Setting::supported("threads", COUNT, "12", "threads, each with a batch at a time"),
    Setting::supported("duration", Type::F64, "10", "seconds"),
    Setting::supported("buffer_size", Type::Size, "1GB", "bytes of memory; more if the threads' blocks need it"),
    Setting::supported("report_unit", Type::Text, "GB", "GB, GiB, Gb, MB, MiB, Mb, KB, KiB or Kb, a second"),
    Setting::supported("report_precision", Type::Whole(0, 100), "2", "digits after the point"),
    Setting::supported(
        "protocol",
        Type::OneOf(&["tcp", "rdma"]),
        "tcp",
        "tcp, or rdma, with TCP where there is no device; the path to a peer is chosen by itself, MC_SHM=0 \
         leaves TCP",
    ),
    Setting::no_effect("device_name", Type::Text, "", "there are no network devices to choose from in this version"),
    Setting::no_effect(
        "nic_priority_matrix",
        Type::Text,
        "",
        "there are no network devices to choose from in this version",
    ),
    Setting::no_effect(
        "auto_discovery",
        Type::Bool,
        "false",
        "there are no network devices to choose from in this version",
    ),
    Setting::no_effect("backend", Type::Text, "classic", ONE),
    Setting::no_effect("init_mem", Type::Bool, "true", "memory is always filled"),
    Setting::refused("use_vram", Type::Bool, "false", VRAM),
    Setting::inactive("gpu_id", Type::Whole(-1, 1023), "0", VRAM),
];

/// `tebench`, in the order of `--help`.
pub(crate) const SWEEP: &[Setting] = &[
    Setting::supported(
        "target_seg_name",
        Type::Text,
        "",
        "the target's name, which it prints; several, with commas between them, share the threads; none: be a target",
    ),
    Setting::supported(
        "seg_name",
        Type::Text,
        "127.0.0.1",
        "name or address by which peers reach this host; it listens on that address alone, on all and with a \
         warning if it leads to no address by which other hosts reach this one",
    ),
    Setting::supported(
        "op_type",
        Type::Text,
        "read",
        "read, write, mix: a write, a read, a write and so on; write_seed: write bytes that tell their places; \
         read_verify: read these, and compare",
    ),
    Setting::supported("start_block_size", Type::Size, "4096", "bytes of a request, doubled up to max_block_size"),
    Setting::supported("max_block_size", Type::Size, "64MB", "the most bytes of a request"),
    Setting::supported("start_batch_size", COUNT, "1", "requests of a batch, doubled up to max_batch_size"),
    Setting::supported("max_batch_size", COUNT, "1", "the most requests of a batch"),
    Setting::supported("start_num_threads", COUNT, "1", "threads, each with a batch at a time, doubled up to the most"),
    Setting::supported("max_num_threads", COUNT, "1", "the most threads"),
    Setting::supported("duration", Type::F64, "5", "seconds of each combination, after a warm-up of at most one"),
    Setting::supported(
        "total_buffer_size",
        Type::Size,
        "1GB",
        "bytes of memory; combinations that need more are left out",
    ),
    Setting::supported("target_offset", Type::U64, "0", "bytes from the beginning of the target's memory"),
    Setting::supported(
        "target_range_size",
        Type::U64,
        "0",
        "bytes of the target's memory from there on that are used; 0: all; combinations that need more are left out",
    ),
    Setting::supported("request_interval_us", Type::U64, "0", "pause of a thread after each batch"),
    Setting::supported("check_consistency", Type::Bool, "false", "also write and read back known bytes, and compare"),
    Setting::supported("json", Type::Bool, "false", "JSON instead of a table"),
    Setting::supported("metadata_type", Type::Text, "p2p", "p2p, or http with metadata_url_list"),
    Setting::supported("metadata_url_list", Type::Text, "", "a URL of http:// or https://"),
    Setting::no_effect("seg_type", Type::Text, "DRAM", "memory is the host's in this version"),
    Setting::no_effect("seg_type_mix", Type::Text, "", "memory is the host's in this version"),
    Setting::no_effect("xport_type", Type::Text, "", "the path to a peer is chosen by itself; MC_SHM=0 leaves TCP"),
    Setting::no_effect("rpc_server_port", Type::Port, "0", "MC_MIN_RPC_PORT and MC_MAX_RPC_PORT set the ports"),
    Setting::no_effect("backend", Type::Text, "classic", ONE),
    Setting::no_effect("tent_transport_hint", Type::Text, "unspec", ONE),
    Setting::no_effect("tent_intent_type", Type::Text, "unspec", ONE),
    Setting::inactive("local_gpu_id", Type::Whole(-1, 1023), "0", VRAM),
    Setting::inactive("target_gpu_id", Type::Whole(-1, 1023), "0", VRAM),
    Setting::refused("notifi", Type::Bool, "false", "a message with each batch"),
    Setting::refused("qos_classes", Type::Text, "", QOS),
    Setting::refused("qos_classes_json", Type::Text, "", QOS),
    Setting::refused("workload_classes_json", Type::Text, "", QOS),
    Setting::inactive("qos_link_capacity_gbps", Type::F64, "0", QOS),
    Setting::inactive("qos_output_jsonl", Type::Text, "", QOS),
    Setting::inactive("deadline_us", Type::U64, "0", QOS),
    Setting::inactive("deadline_tight_threads", Type::U64, "0", QOS),
    Setting::refused("deadline_bw_arbitration", Type::Bool, "false", QOS),
];

/// `show_link`, in the order of `--help`.
pub(crate) const LINKS: &[Setting] = &[
    Setting::supported(
        "segment_id",
        Type::Text,
        "",
        "peers to meet, with commas between them; needed unless --json or --discover_only is given",
    ),
    Setting::supported(
        "json",
        Type::Bool,
        "false",
        "JSON, with this machine's devices and topology, instead of a table",
    ),
    Setting::supported("metadata_server", Type::Text, "P2PHANDSHAKE", "P2PHANDSHAKE, or a URL of http:// or https://"),
    Setting::supported(
        "local_server_name",
        Type::Text,
        "127.0.0.1",
        "name or address by which peers reach this host; it listens on that address alone, on all and with a \
         warning if it leads to no address by which other hosts reach this one",
    ),
    Setting::no_effect("ip_or_host_name", Type::Text, "", "local_server_name is that, too"),
    Setting::no_effect("rpc_port", Type::Port, "12345", "MC_MIN_RPC_PORT and MC_MAX_RPC_PORT set the ports"),
    Setting::supported("discover_only", Type::Bool, "false", "meet no peer: what --json alone shows"),
];

/// `transfer_engine_topology_dump`, in the order of `--help`.
pub(crate) const TOPOLOGY: &[Setting] = &[
    Setting::supported(
        "device_name",
        Type::Text,
        "",
        "names of the devices that count, with commas between them; none: all",
    ),
    Setting::supported("use_custom_topo", Type::Bool, "false", "show the file that MC_CUSTOM_TOPO_JSON names"),
    Setting::supported("custom_topo_json", Type::Text, "", "show this file"),
    Setting::supported("json", Type::Bool, "false", "the JSON alone, without the words before it"),
    Setting::no_effect("backend", Type::Text, "auto", ONE),
];
