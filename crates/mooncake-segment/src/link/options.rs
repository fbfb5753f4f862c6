//! How links are made, to what, and what they report.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_os::ProcessIdentity;

use crate::protocol::frames::{FEATURE_KNOWN_PINS, FEATURE_LOCKS, Hello, LANE_VERSION, Purpose};

/// Where a segment is, as its owner told the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentAddress {
    /// UUID of the memory.
    pub uuid: SegmentUuid,
    /// Size of the memory.
    pub bytes: u64,
    /// Name of its owner, for messages.
    pub name: String,
    /// Boot of its host.
    pub boot_id: [u8; 16],
    /// Abstract name of the owner's Unix socket, "" = none.
    pub unix_socket: String,
    /// `ip:port` or `[ip]:port` of its data lanes, one for each of its networks.
    pub tcp: Vec<String>,
    /// Shown to the owner.
    pub access_key: u64,
    /// The owner's process.
    pub process: Option<ProcessIdentity>,
    /// Blocks of a file of it, if it is a tier. 0: it is memory.
    pub tier_file_blocks: u64,
}

impl SegmentAddress {
    /// Whether it is a tier: its records are read over lanes of their own, or by this process itself.
    pub fn is_tier(&self) -> bool {
        self.tier_file_blocks != 0
    }

    /// How a process of that session begins a connection to its owner.
    pub(crate) fn hello(&self, purpose: Purpose, session: u64, process: &ProcessIdentity) -> Hello {
        Hello {
            version: LANE_VERSION,
            purpose,
            features: if purpose == Purpose::Attach { FEATURE_KNOWN_PINS | FEATURE_LOCKS } else { 0 },
            session,
            access_key: self.access_key,
            uuid: self.uuid,
            pid: process.pid,
            start_time: process.start_time,
        }
    }

    /// The segment as messages name it.
    pub fn display_name(&self) -> Arc<str> {
        format!("{} ({})", self.name, self.uuid).into()
    }
}

/// How bytes travel over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// The segment belongs to this very process.
    Local,
    /// The owner's memory is mapped here.
    SharedMemory,
    /// Data lanes over TCP.
    Tcp,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Local => "local",
            Path::SharedMemory => "shm",
            Path::Tcp => "tcp",
        })
    }
}

/// The paths that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paths {
    /// The own process's memory.
    pub local: bool,
    /// Shared memory.
    pub shared_memory: bool,
    /// TCP.
    pub tcp: bool,
}

impl Paths {
    /// Every path; the best one is chosen.
    pub const ALL: Paths = Paths { local: true, shared_memory: true, tcp: true };

    /// One path, forced.
    pub const fn only(path: Path) -> Paths {
        Paths {
            local: matches!(path, Path::Local),
            shared_memory: matches!(path, Path::SharedMemory),
            tcp: matches!(path, Path::Tcp),
        }
    }
}

/// Settings of [`super::Links`].
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Session of the store; owners fence by it.
    pub session: u64,
    /// Random number of the session's process, known to its master. An owner that sees the process end shows the number
    /// to the master, which takes it for the proof that it is this very process. 0: there is none.
    pub mark: u64,
    /// Paths that may be used.
    pub paths: Paths,
    /// Longest time a transfer may stand still.
    pub stall_timeout: Duration,
    /// Longest time for one attempt to connect.
    pub connect_timeout: Duration,
    /// After a failed attempt the owner is avoided for so long.
    pub retry_after: Duration,
    /// Most TCP lanes to one address of a segment.
    pub max_lanes: usize,
    /// Addresses of this host in its networks: lanes come from those that are in the owner's.
    pub tcp_addresses: Vec<IpAddr>,
    /// An address of an owner that failed, where the owner has others, is left out for so long.
    pub tcp_address_pause: Duration,
}

impl LinkOptions {
    /// The defaults, for a session.
    pub fn new(session: u64) -> LinkOptions {
        LinkOptions {
            session,
            mark: 0,
            paths: Paths::ALL,
            stall_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            retry_after: Duration::from_secs(1),
            max_lanes: 64,
            tcp_addresses: Vec::new(),
            tcp_address_pause: Duration::from_secs(30),
        }
    }
}

/// One link, for metrics and health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkReport {
    /// Segment.
    pub uuid: SegmentUuid,
    /// Its owner's name.
    pub name: String,
    /// Path in use.
    pub path: Path,
    /// Why that one.
    pub reason: String,
    /// Bytes read over it.
    pub bytes_read: u64,
    /// Bytes written over it.
    pub bytes_written: u64,
}
