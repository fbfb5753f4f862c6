//! How cards are used.

use std::time::Duration;

use mooncake_verbs::Mtu;

/// Settings of RDMA. The defaults are Mooncake's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaOptions {
    /// Which port of a device, from 1 on.
    pub port: u8,
    /// Which address of the port; chosen if none is given.
    pub gid_index: Option<u8>,
    /// Index of the partition.
    pub partition: u16,
    /// The largest packet, if the link takes it.
    pub mtu: Mtu,
    /// Queue pairs of one lane.
    pub queue_pairs: usize,
    /// Requests under way of one queue pair.
    pub send_depth: u32,
    /// The largest request, bytes.
    pub slice_bytes: usize,
    /// The largest region, bytes; the device's own limit holds besides.
    pub region_bytes: u64,
    /// How packets are marked for the network.
    pub traffic_class: Option<u8>,
    /// Service level of InfiniBand, priority of RoCE.
    pub service_level: Option<u8>,
    /// For how long a rail that failed is left out.
    pub rail_pause: Duration,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        RdmaOptions {
            port: 1,
            gid_index: None,
            partition: 0,
            mtu: Mtu::of_bytes(4_096).expect("one of five"),
            queue_pairs: 2,
            send_depth: 256,
            slice_bytes: 1 << 20,
            region_bytes: 2 << 30,
            traffic_class: None,
            service_level: None,
            rail_pause: Duration::from_secs(30),
        }
    }
}
