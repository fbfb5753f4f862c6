//! Why nothing can be proven about a process.

use std::io;

/// Nothing can be proven about a process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It runs, or ran, on another host or in another boot of this one.
    #[error("process {pid} belongs to another boot or host")]
    OtherBoot {
        /// Its pid there.
        pid: u32,
    },
    /// Its pid means something else here.
    #[error("process {pid} lives in pid namespace {theirs}, this process in {ours}")]
    OtherNamespace {
        /// Its pid there.
        pid: u32,
        /// Its namespace.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// /proc or `pidfd_open` cannot be used.
    #[error("{what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}
