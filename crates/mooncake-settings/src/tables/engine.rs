//! Settings of transfer engines that come from the environment.

use crate::setting::{Setting, Type};

pub(crate) const RDMA: &str = "RDMA of this version has no use for it";
const WORKERS: &str = "the thread that transfers posts and polls by itself";

/// Why variables of RDMA mean nothing to stores.
pub(crate) const RDMA_OF_STORES: &str = "RDMA is of transfer engines alone in this version";

/// Those that engines read.
pub(crate) const OF_RDMA: &[&str] = &[
    "MC_FORCE_TCP",
    "MC_IB_PORT",
    "MC_GID_INDEX",
    "MC_PKEY_INDEX",
    "MC_MTU",
    "MC_NUM_QP_PER_EP",
    "MC_MAX_WR",
    "MC_SLICE_SIZE",
    "MC_MAX_MR_SIZE",
    "MC_IB_TC",
    "MC_IB_SL",
    "MC_RDMA_RAIL_PAUSE_SECONDS",
];

/// Of stores and of engines.
pub(crate) const RAISE_DESCRIPTORS: Setting = Setting::supported(
    "MOONCAKE_RAISE_DESCRIPTORS",
    Type::Bool,
    "1",
    "raise the soft limit of open files of the process to what it may be, at most 65,536; 0: leave it as it is",
);

/// Of stores and of engines.
pub(crate) const TCP_ADDRESSES: Setting = Setting::supported(
    "MC_TCP_ADDRESSES",
    Type::Text,
    "",
    "addresses of this machine, one in each of its networks, with commas between them: data is listened for on them, \
     peers are told all of them, and large requests go over all that answer. None: one address",
);

/// Of stores and of engines.
pub(crate) const TCP_ADDRESS_PAUSE: Setting = Setting::supported(
    "MC_TCP_ADDRESS_PAUSE_MS",
    Type::Milliseconds,
    "30000",
    "an address of a peer that failed, where the peer has others, is left out for so long",
);

/// All of them.
pub const VARIABLES: &[Setting] = &[
    RAISE_DESCRIPTORS,
    Setting::supported("MC_SHM", Type::Bool, "1", "copies between processes of one host; 0: everything by TCP"),
    Setting::supported(
        "MC_TRANSFER_TIMEOUT",
        Type::Whole(0, 86_400),
        "30",
        "seconds that a transfer may take, 5 at least",
    ),
    Setting::supported("MC_MIN_RPC_PORT", Type::Port, "15000", "first port to choose from, for handshakes and data"),
    Setting::supported("MC_MAX_RPC_PORT", Type::Port, "17000", "last port to choose from"),
    Setting::supported(
        "MC_TCP_BIND_ADDRESS",
        Type::Address,
        "",
        "address that is told to peers where they find each other by a metadata service; none: the one towards that \
         service. Where peers are told it, and the host has it, it is listened on",
    ),
    Setting::supported(
        "MC_TE_BIND_ADDRESS",
        Type::Address,
        "",
        "address to listen on, whatever peers are told; none: all, unless MC_TCP_BIND_ADDRESS says less",
    ),
    TCP_ADDRESSES,
    TCP_ADDRESS_PAUSE,
    Setting::supported(
        "MC_LEGACY_RPC_PORT_BINDING",
        Type::Text,
        "",
        "set to anything: engines of a metadata service are at the host and port that their names say",
    ),
    Setting::supported("MC_HANDSHAKE_PORT", Type::Port, "12001", "the port, then, where the name says none"),
    Setting::supported("MC_METADATA_CLUSTER_ID", Type::Text, "", "keeps clusters that share a metadata service apart"),
    Setting::supported("MC_HANDSHAKE_CONNECT_TIMEOUT", Type::Whole(1, 3_599), "5", "seconds to connect to a peer"),
    Setting::supported(
        "MC_HANDSHAKE_MAX_LENGTH",
        Type::Whole(1 << 20, 128 << 20),
        "1048576",
        "longest handshake, bytes",
    ),
    Setting::supported(
        "MC_TCP_STATUS_TIMEOUT_SEC",
        Type::Whole(1, 86_400),
        "30",
        "seconds without a byte moved after which a transfer fails",
    ),
    Setting::supported(
        "MC_TCP_LANES_PER_PEER",
        Type::Whole(1, 16),
        "",
        "connections over which one large transfer is spread; none: half of the processors, at most 4",
    ),
    Setting::supported(
        "MC_TCP_MAX_CONNECTIONS_PER_PEER",
        Type::Whole(1, 16),
        "",
        "the older name of MC_TCP_LANES_PER_PEER, which comes first",
    ),
    Setting::supported(
        "MC_TE_FILTERS",
        Type::Text,
        "",
        "names of the network devices to be used, with commas between them",
    ),
    Setting::supported(
        "MC_CUSTOM_TOPO_JSON",
        Type::Text,
        "",
        "file with the matrix of devices, in place of what is discovered",
    ),
    Setting::supported("MC_FORCE_TCP", Type::Text, "", "set to anything: no RDMA, whatever the protocol is"),
    Setting::supported("MC_IB_PORT", Type::Whole(1, 255), "1", "port of RDMA devices"),
    Setting::supported(
        "MC_GID_INDEX",
        Type::Whole(0, 255),
        "",
        "which address of the port is used; none: RoCE v2 or InfiniBand, routed before private before link-local",
    ),
    Setting::no_effect("MC_AUTO_GID_MAX_RETRIES", Type::Text, "", "MC_GID_INDEX names another address"),
    Setting::supported("MC_PKEY_INDEX", Type::Whole(0, 65_535), "0", "partition, by its index in the port's table"),
    Setting::supported(
        "MC_MTU",
        Type::OneOf(&["256", "512", "1024", "2048", "4096"]),
        "4096",
        "bytes of the largest packet, where the link takes it; engines of other makes need the same at both ends",
    ),
    Setting::supported("MC_NUM_QP_PER_EP", Type::Whole(1, 64), "2", "queue pairs of one lane to a peer"),
    Setting::supported("MC_MAX_WR", Type::Whole(4, 65_535), "256", "requests under way of one queue pair"),
    Setting::supported(
        "MC_SLICE_SIZE",
        Type::Whole(4_096, 1 << 30),
        "1048576",
        "bytes of the largest request that a device is given",
    ),
    Setting::supported(
        "MC_MAX_MR_SIZE",
        Type::Whole(4_096, i64::MAX as i128),
        "2147483648",
        "bytes that are registered at a time; the device's own limit holds besides",
    ),
    Setting::supported("MC_IB_TC", Type::Whole(0, 255), "", "traffic class of packets"),
    Setting::supported("MC_IB_SL", Type::Whole(0, 15), "", "service level of packets"),
    Setting::supported(
        "MC_RDMA_RAIL_PAUSE_SECONDS",
        Type::Whole(0, 3_600),
        "30",
        "for how long a pair of devices that failed is left out; twice as long each time, 600 at most",
    ),
    Setting::no_effect("MC_TCP_ENABLE_CONNECTION_POOL", Type::Text, "", "connections are always kept"),
    Setting::no_effect("MC_TCP_SLICE_SIZE", Type::Text, "", "nothing is cut for TCP"),
    Setting::no_effect("MC_USE_IPV6", Type::Text, "", "both versions are listened on"),
    Setting::no_effect("MC_DISABLE_METACACHE", Type::Text, "", "a description that turns out old is fetched anew"),
    Setting::no_effect("MC_RETRY_CNT", Type::Text, "", "what failed by RDMA goes again by TCP"),
    Setting::no_effect("MC_WORKERS_PER_CTX", Type::Text, "", WORKERS),
    Setting::no_effect("MC_FORCE_HCA", Type::Text, "", RDMA),
];
