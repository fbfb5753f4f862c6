//! What the library refuses, in words.

use std::io;

use thiserror::Error;

/// Why there are no verbs at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoadError {
    /// This is a forked child of the process that uses them.
    #[error("a forked child has no RDMA: make the engine or the store in the child itself")]
    Forked,
    /// The dynamic linker did not find it, or what it depends on.
    #[error("libibverbs.so.1 cannot be loaded ({reason}): install rdma-core (Debian: libibverbs1, ibverbs-providers)")]
    Missing {
        /// The linker's words.
        reason: String,
    },
    /// It is there, and has not what is wanted.
    #[error("libibverbs.so.1 has no {symbol} of version {version}: install rdma-core 16 or newer")]
    TooOld {
        /// The function.
        symbol: String,
        /// The version of the symbol.
        version: String,
    },
    /// The kernel copies registered pages at a fork, and the library cannot be told to prevent it.
    #[error("this kernel needs ibv_fork_init before the first registration, and it failed: {source_text}")]
    ForksUnsafe {
        /// The error in words.
        source_text: String,
    },
}

/// Why a call of the library failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VerbsError {
    /// This is a forked child of the process that the object belongs to.
    #[error("{verb} on {device}: refused in a forked child")]
    Forked {
        /// The call.
        verb: &'static str,
        /// The device's name.
        device: String,
    },
    /// The library or the kernel said no.
    #[error("{verb} on {device} failed: {}{}", in_words(*errno), remedy(verb, *errno))]
    Refused {
        /// The call.
        verb: &'static str,
        /// The device's name.
        device: String,
        /// The kernel's number.
        errno: i32,
    },
}

impl VerbsError {
    /// The kernel's number, where it said one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            VerbsError::Forked { .. } => None,
            VerbsError::Refused { errno, .. } => Some(*errno),
        }
    }
}

/// Not all requests of a chain were taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{source}, after {posted} of its requests were taken")]
pub struct PostError {
    /// So many from its start will complete.
    pub posted: usize,
    /// Why no more were.
    pub source: VerbsError,
}

fn in_words(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// What an operator can do about it.
fn remedy(verb: &str, errno: i32) -> &'static str {
    match (verb, errno) {
        ("ibv_reg_mr", libc::ENOMEM) => ": raise the limit of locked memory (LimitMEMLOCK, ulimit -l)",
        ("ibv_reg_mr", libc::EFAULT) => ": the memory is not mapped, or not writable",
        ("ibv_open_device", libc::EACCES | libc::EPERM) => ": the process may not open /dev/infiniband/uverbs*",
        ("ibv_create_qp", libc::ENOMEM) => {
            ": the device has no queue pair left, or the limit of locked memory is reached"
        }
        ("ibv_modify_qp to RTR", libc::EINVAL) => ": the peer's GID cannot be reached from this one (MC_GID_INDEX)",
        (_, libc::EIO) => ": the device or its driver is in trouble (dmesg)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_where_why_and_what_to_do() {
        let refused = |verb, errno| VerbsError::Refused { verb, device: "mlx5_0".to_owned(), errno }.to_string();
        let said = refused("ibv_reg_mr", libc::ENOMEM);
        assert_eq!(
            said,
            "ibv_reg_mr on mlx5_0 failed: Cannot allocate memory (os error 12): raise the limit of locked memory \
             (LimitMEMLOCK, ulimit -l)"
        );
        assert_eq!(
            refused("ibv_dereg_mr", libc::EBUSY),
            "ibv_dereg_mr on mlx5_0 failed: Device or resource busy (os error 16)"
        );
    }
}
