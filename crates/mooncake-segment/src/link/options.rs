//! How links are made, to what, and what they report.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_os::ProcessIdentity;

use super::shared_memory::Attachment;
use crate::Uuid;
use crate::local::Inside;
use crate::reign::Reign;

/// Where a segment is, as its owner told the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentAddress {
    /// UUID of the memory.
    pub uuid: Uuid,
    /// Size of the memory.
    pub bytes: u64,
    /// Name of its owner, for messages.
    pub name: String,
    /// Boot of its host.
    pub boot_id: [u8; 16],
    /// Abstract name of the owner's Unix socket, "" = none.
    pub unix_socket: String,
    /// `ip:port` or `[ip]:port` of its data lanes, tried in order.
    pub tcp: Vec<String>,
    /// Shown to the owner.
    pub access_key: u64,
    /// The owner's process.
    pub process: Option<ProcessIdentity>,
}

impl SegmentAddress {
    /// The segment as messages name it.
    pub(crate) fn label(&self) -> Arc<str> {
        format!("{} ({})", self.name, SegmentUuid(self.uuid)).into()
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
    pub data_timeout: Duration,
    /// Longest time for one attempt to connect.
    pub connect_timeout: Duration,
    /// After a failed attempt the peer is avoided for so long.
    pub retry_after: Duration,
    /// Most TCP lanes to one segment.
    pub max_lanes: usize,
}

impl LinkOptions {
    /// The defaults, for a session.
    pub fn new(session: u64) -> LinkOptions {
        LinkOptions {
            session,
            mark: 0,
            paths: Paths::ALL,
            data_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            retry_after: Duration::from_secs(1),
            max_lanes: 64,
        }
    }
}

/// What links report by themselves. Called on a thread of the links: hand over, do not block.
pub trait LinkEvents: Send + Sync {
    /// The process that owns a mapped segment is proven gone.
    fn owner_gone(&self, uuid: Uuid);
    /// The owner of a mapped segment, or of one in this process, asks to obey a reign. Confirm when the
    /// master that reigns so knows all of this store's pins and no write
    /// of an older placement is planned; drop the question to stay silent.
    fn take_epoch(&self, question: EpochQuestion);
}

/// An owner's wish that this process writes nothing older than a reign's epoch. It keeps nothing mapped.
#[derive(Debug)]
pub struct EpochQuestion {
    pub(super) place: Place,
    pub(super) uuid: Uuid,
    pub(super) reign: Reign,
}

/// What is asked about.
#[derive(Debug)]
pub(super) enum Place {
    /// A segment of another process, mapped here.
    Attached(Weak<Attachment>),
    /// A segment of this process.
    Inside(Weak<Inside>),
}

impl EpochQuestion {
    /// Segment whose owner asks.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Whether another one asks the same of the same: one answer is enough.
    pub fn repeats(&self, other: &EpochQuestion) -> bool {
        self.is_asked_where(other) && self.reign == other.reign
    }

    /// Whether the answer to this one, at the same place, says all that the other one's would: it asks for a higher
    /// epoch.
    pub fn supersedes(&self, other: &EpochQuestion) -> bool {
        self.is_asked_where(other) && self.reign.epoch > other.reign.epoch
    }

    fn is_asked_where(&self, other: &EpochQuestion) -> bool {
        match (&self.place, &other.place) {
            (Place::Attached(one), Place::Attached(other)) => Weak::ptr_eq(one, other),
            (Place::Inside(one), Place::Inside(other)) => Weak::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether nothing is mapped there any more: the owner has heard of that, or hears of it, and waits for no answer.
    pub fn is_moot(&self) -> bool {
        match &self.place {
            Place::Attached(attachment) => attachment.strong_count() == 0,
            Place::Inside(inside) => inside.strong_count() == 0,
        }
    }

    /// The reign.
    pub fn reign(&self) -> Reign {
        self.reign
    }

    /// So it is. The owner hears of it as soon as the older writes that are
    /// still copying have ended; newer ones of that kind are refused already.
    pub fn confirm(self) {
        match &self.place {
            Place::Attached(attachment) => {
                if let Some(attachment) = attachment.upgrade() {
                    attachment.confirm_epoch(self.reign);
                }
            }
            // Its writes pass the owner's own gate.
            Place::Inside(inside) => {
                if let Some(inside) = inside.upgrade() {
                    inside.confirm(self.reign);
                }
            }
        }
    }
}

/// One link, for metrics and health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkReport {
    /// Segment.
    pub uuid: Uuid,
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
