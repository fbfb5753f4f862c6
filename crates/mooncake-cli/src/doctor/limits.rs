//! What the kernel lets this process have: locked memory, sizes of files, io_uring; and NUMA nodes.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::finding::{Area, Finding, Findings};
use crate::terminal::bytes;

/// Before it io_uring counts against the limit of locked memory.
const RINGS_UNLOCKED: (u32, u32) = (5, 12);

/// What a ring needs of it.
const RINGS_LOCKED: u64 = 1 << 20;

/// A limit as it is, and as far as it may be raised; none: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// As it is.
    pub soft: Option<u64>,
    /// As far as it may be raised.
    pub hard: Option<u64>,
}

impl Limit {
    /// As it is for this process.
    pub fn of(resource: Resource) -> Limit {
        let limit = getrlimit(resource);
        Limit { soft: limit.current, hard: limit.maximum }
    }
}

/// What was read.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Locked memory.
    pub locked: Limit,
    /// Size of a file.
    pub file_size: Limit,
    /// Address space.
    pub address_space: Limit,
    /// `kernel.io_uring_disabled`; none: the kernel has no such switch, or is not asked.
    pub io_uring: Option<u64>,
    /// `MC_TIER_ENGINE=ring` of this environment.
    pub wants_ring: bool,
    /// NUMA nodes with memory.
    pub numa_nodes: usize,
    /// The kernel's version.
    pub kernel: (u32, u32),
}

impl Limits {
    /// Reads it.
    pub fn read() -> Limits {
        let nodes = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
        Limits {
            locked: Limit::of(Resource::Memlock),
            file_size: Limit::of(Resource::Fsize),
            address_space: Limit::of(Resource::As),
            io_uring: figure("/proc/sys/kernel/io_uring_disabled"),
            wants_ring: std::env::var("MC_TIER_ENGINE").is_ok_and(|engine| engine.eq_ignore_ascii_case("ring")),
            numa_nodes: listed(&nodes).max(1),
            kernel: kernel(),
        }
    }
}

/// How many numbers a list of the kernel's has: `0-3,7` has five.
fn listed(list: &str) -> usize {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.trim().split(',').filter_map(count).sum()
}

/// A number that a file of the kernel's has.
pub fn figure(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Version of the running kernel; 0.0 where it says none.
pub fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|one: char| !one.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Judges it.
pub fn judge(read: &Limits) -> Vec<Finding> {
    let mut found = Findings::of(Area::Limits);
    let amount = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| bytes(limit as f64));
    let locked = amount(read.locked.soft);
    match read.kernel < RINGS_UNLOCKED && read.locked.soft.is_some_and(|limit| limit < RINGS_LOCKED) {
        true => found.warn(
            "locked_memory",
            format!("RLIMIT_MEMLOCK is {locked}: before Linux 5.12 the rings of a tier count against it"),
            "ulimit -l unlimited, LimitMEMLOCK=infinity of the unit, or MOONCAKE_OFFLOAD_USE_URING=0",
        ),
        false => found.ok("locked_memory", format!("RLIMIT_MEMLOCK is {locked}: stores lock no memory")),
    }
    for (check, name, flag, limit) in [
        ("file_size", "RLIMIT_FSIZE", "ulimit -f unlimited, LimitFSIZE=infinity of the unit", read.file_size),
        ("address_space", "RLIMIT_AS", "ulimit -v unlimited, LimitAS=infinity of the unit", read.address_space),
    ] {
        if limit.soft.is_some() {
            let message =
                format!("{name} is {}: no segment can be larger, nor be mapped beyond it", amount(limit.soft));
            found.warn(check, message, flag);
        }
    }
    io_uring(read, &mut found);
    match read.numa_nodes {
        1 => found.ok("numa", "1 NUMA node: memory is near everywhere"),
        nodes => found.hint(
            "numa",
            format!("{nodes} NUMA nodes: memory of another one is slower to copy"),
            "a storage node for each: numactl --cpunodebind=N --membind=N mooncake_client ...",
        ),
    }
    found.sorted()
}

fn io_uring(read: &Limits, found: &mut Findings) {
    let message = |says: &str| {
        let switch = read.io_uring.map_or("no switch".to_owned(), |value| value.to_string());
        format!("kernel.io_uring_disabled: {switch}; {says}")
    };
    let remedy = "sysctl kernel.io_uring_disabled=0";
    match read.io_uring {
        Some(1..) if read.wants_ring => found.error(
            "io_uring",
            message("MC_TIER_ENGINE=ring has no tier where the kernel refuses it"),
            format!("unset MC_TIER_ENGINE, or {remedy}"),
        ),
        Some(2..) => found.hint("io_uring", message("tiers are read and written by threads"), remedy),
        Some(1) => found.hint("io_uring", message("tiers of users without CAP_SYS_ADMIN go by threads"), remedy),
        _ => found.ok("io_uring", message("tiers use it, unless a seccomp profile refuses it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Severity, told};

    fn well() -> Limits {
        let none = Limit { soft: None, hard: None };
        Limits {
            locked: Limit { soft: Some(64 << 10), hard: Some(64 << 10) },
            file_size: none,
            address_space: none,
            io_uring: Some(0),
            wants_ring: false,
            numa_nodes: 1,
            kernel: (6, 8),
        }
    }

    #[test]
    fn usual_limits_are_well_and_so_are_none() {
        let none = Limit { soft: None, hard: None };
        for read in [well(), Limits { locked: none, io_uring: None, ..well() }] {
            let found = judge(&read);
            assert!(found.iter().all(|finding| finding.severity == Severity::Ok), "{found:#?}");
        }
    }

    #[test]
    fn locked_memory_counts_for_rings_of_old_kernels_alone() {
        let old = Limits { kernel: (5, 4), ..well() };
        told::is(&judge(&old), "locked_memory", Severity::Warning, &["64.0 KB", "LimitMEMLOCK"]);
        told::is(&judge(&well()), "locked_memory", Severity::Ok, &["64.0 KB"]);
    }

    #[test]
    fn limits_of_files_and_addresses_are_told_where_there_are_any() {
        let limit = Limit { soft: Some(1 << 30), hard: None };
        let found = judge(&Limits { file_size: limit, address_space: limit, ..well() });
        told::is(&found, "file_size", Severity::Warning, &["RLIMIT_FSIZE is 1.0 GB", "ulimit -f"]);
        told::is(&found, "address_space", Severity::Warning, &["RLIMIT_AS", "ulimit -v"]);
    }

    #[test]
    fn io_uring_that_is_off_is_a_note_unless_it_is_asked_for() {
        for switch in [1, 2] {
            let off = Limits { io_uring: Some(switch), ..well() };
            told::is(&judge(&off), "io_uring", Severity::Ok, &["threads", "sysctl"]);
            let wanted = Limits { wants_ring: true, ..off };
            told::is(&judge(&wanted), "io_uring", Severity::Error, &["unset MC_TIER_ENGINE"]);
        }
    }

    #[test]
    fn numa_nodes_are_counted() {
        told::is(&judge(&Limits { numa_nodes: 2, ..well() }), "numa", Severity::Ok, &["2 NUMA nodes", "numactl"]);
        assert!(Limits::read().numa_nodes > 0);
        assert_eq!(["0\n", "0-3,7\n", "", "odd", "3-1"].map(listed), [1, 5, 0, 0, 0]);
    }

    #[test]
    fn this_kernel_has_a_version() {
        assert!(kernel() > (3, 10), "{:?}", kernel());
    }
}
