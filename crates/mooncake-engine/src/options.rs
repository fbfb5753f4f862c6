//! How an engine is to be.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Settings of an [`Engine`](crate::Engine). The defaults are Mooncake's.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Ports that the engine takes its two from: 15000-17000.
    pub ports: RangeInclusive<u16>,
    /// Where it listens; everywhere if none is given.
    pub bind: Option<IpAddr>,
    /// Copies between processes of one host are used where they work.
    pub same_host: bool,
    /// A transfer takes at most so long, and a nanosecond for each byte more.
    pub transfer_timeout: Duration,
    /// A connection is made in this time or not at all.
    pub connect_timeout: Duration,
    /// A transfer in which no byte moves for so long has failed.
    pub stall_timeout: Duration,
    /// Longest handshake message, bytes.
    pub handshake_max: usize,
    /// TCP connections to a peer over which one large request is spread; 0: by the number of processors.
    pub stripes: usize,
    /// Threads that serve peers.
    pub server_threads: usize,
    /// Most threads that carry out batches in the background.
    pub worker_threads: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            ports: 15_000..=17_000,
            bind: None,
            same_host: true,
            transfer_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            handshake_max: 1 << 20,
            stripes: 0,
            server_threads: 4,
            worker_threads: 16,
        }
    }
}

impl EngineOptions {
    pub(crate) fn stripes(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // Each stream keeps one processor busy at either end.
        if self.stripes > 0 { self.stripes } else { (processors / 2).clamp(1, 4) }
    }
}
