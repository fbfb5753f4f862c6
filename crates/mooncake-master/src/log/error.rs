//! What can be wrong with a log, and what to do about it.

use std::io;
use std::path::PathBuf;

use mooncake_core::AsideFull;

/// Why the master cannot use a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The state folder cannot be made or opened.
    #[error(
        "state folder {path}: {source}; give a writable one with --wal_dir, or run without a log with --wal=off{}",
        room(source)
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// Another master runs on this log.
    #[error(
        "the log in {path} is locked by another master{}; stop it, or give this one another --cluster_id, --rpc_port \
         or --wal_dir",
        if holder.is_empty() { String::new() } else { format!(" ({holder})") }
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// What the holder wrote about itself.
        holder: String,
    },
    /// Reading or writing failed.
    #[error("{action} {path}: {source}{}", room(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// A damaged frame with good ones behind it.
    #[error(
        "the log is damaged: {path} has no valid frame at byte {offset}, where LSN {lsn} belongs, but a valid one \
         (LSN {later}) behind it, which no crash of a master leaves. {}",
        way_out(path)
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What belongs there.
        lsn: u64,
        /// What follows.
        later: u64,
    },
    /// Frames between two files are gone.
    #[error("the log is not whole: {path} starts with LSN {found}, but LSN {expected} is missing. {}", way_out(path))]
    Gap {
        /// The file behind the gap.
        path: PathBuf,
        /// The LSN that should come next.
        expected: u64,
        /// The LSN that comes.
        found: u64,
    },
    /// A file that is no log file of this version or of another log.
    #[error("{path} {reason}. {}", way_out(path))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is odd about it.
        reason: String,
    },
    /// A record that makes no sense where it stands.
    #[error("{path}: the record at LSN {lsn} cannot be replayed: {reason}. {}", way_out(path))]
    Replay {
        /// The file.
        path: PathBuf,
        /// Where.
        lsn: u64,
        /// Why.
        reason: String,
    },
    /// Operations changed more than is put aside before the disk took what a snapshot had.
    #[error("the snapshot is given up: {source}; the disk of {path} is too slow for it just now")]
    SnapshotOverrun {
        /// The log's folder.
        path: PathBuf,
        /// How much.
        source: AsideFull,
    },
    /// A compaction panicked: an invariant of the snapshot's is broken, and none of the pool's.
    #[error("the compaction broke off: {reason}; report this. The log is whole, and read as it is by a restart")]
    CompactionBroke {
        /// What the panic said.
        reason: String,
    },
    /// The master stops.
    #[error("the master stops")]
    Stops,
    /// There is a log already.
    #[error("the log is not lost: nothing has to be begun anew")]
    NotLost,
    /// Another snapshot is being written.
    #[error("a snapshot is being written already, of the log or of one that is begun anew; see /health, and ask again")]
    Snapshotting,
    /// The master was started without a log.
    #[error(
        "this master was started without a log (--wal=off, or no folder for one): it begins one when it is started \
         with one"
    )]
    NoLog,
    /// An append to a log that was being begun failed.
    #[error("the new log was lost, too, before it was whole; the master's last line about it says why")]
    LostAgain,
    /// A higher epoch is needed, and there is none.
    #[error(
        "the log in {path} is in epoch {epoch}, the last that there is, and nothing vouches that it is whole, so that \
         a higher one would be needed: rids may not be handed out twice. Start with an empty pool: move it away \
         (mv {path} {path}.old), start again, and restart the engines that were connected"
    )]
    NoEpochLeft {
        /// The log's folder.
        path: PathBuf,
        /// Its epoch.
        epoch: u16,
    },
    /// An old log stands in the way of a run without a log.
    #[error(
        "the old log {path} cannot be renamed away ({source}), and running without a log beside it would make it \
         a lie; move it away by hand or make its folder writable"
    )]
    NotRenamed {
        /// The log.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// What helps a full disk.
const FULL: &str = "; make room on its disk: the folders away-* in the state folder, where any are left, are logs that \
    were given up, and can be deleted";

fn room(source: &io::Error) -> &'static str {
    if is_full(source) { FULL } else { "" }
}

fn is_full(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl LogError {
    /// There is no room, or none is left of what this user may have.
    pub(super) fn is_full(&self) -> bool {
        match self {
            LogError::Folder { source, .. } | LogError::Io { source, .. } | LogError::NotRenamed { source, .. } => {
                is_full(source)
            }
            _ => false,
        }
    }

    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LogError {
        let path = path.into();
        move |source| LogError::Io { action, path, source }
    }
}

/// What a person can do: the log is a cache's directory, so starting empty is
/// always possible.
fn way_out(path: &std::path::Path) -> String {
    let folder = path.parent().unwrap_or(path);
    format!(
        "Nothing was changed. Put an intact copy of {0} back, or start with an empty pool: move it away \
         (mv {0} {0}.damaged) and start again",
        folder.display()
    )
}
