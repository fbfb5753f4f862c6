//! How much memory this host, and this process's memory cgroup, has left for a storage node.

use std::fs;

use super::cgroup::Group;
use super::finding::{Area, Finding, Findings};
use super::limits::figure;
use super::pool::Pool;
use crate::terminal::bytes;

/// What a storage node takes besides its segment and the stamps of that (docs/deployment.md).
const NODE_ITSELF: u64 = 256 << 20;

/// A segment has one byte of stamps for so many.
const STAMPS: u64 = 128;

/// With less there is little that a storage node could lend.
const LITTLE: u64 = 1 << 30;

/// Lending a larger share of the host's memory leaves too little to all else.
const MUCH: f64 = 0.9;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Of the host.
    pub total: u64,
    /// Of the host, as the kernel estimates it.
    pub available: u64,
    /// Free swap.
    pub swap: u64,
    /// `vm.overcommit_memory`.
    pub overcommit: u64,
    /// What may be promised to processes where that is 2, and what is.
    pub commit: (u64, u64),
    /// The tightest cgroup, where one has a limit.
    pub group: Option<Group>,
}

impl Memory {
    /// Reads it.
    pub fn read() -> Memory {
        let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let of = |name: &str| meminfo(&info, name).unwrap_or(0);
        Memory {
            total: of("MemTotal"),
            available: of("MemAvailable"),
            swap: of("SwapFree"),
            overcommit: figure("/proc/sys/vm/overcommit_memory").unwrap_or(0),
            commit: (of("CommitLimit"), of("Committed_AS")),
            group: Group::tightest(),
        }
    }

    /// The least that anything leaves, and what that is.
    fn left(&self) -> (u64, String) {
        let host = (self.available + self.swap, "MemAvailable".to_owned());
        let group = self.group.as_ref().map(|group| (group.left, group.path.display().to_string()));
        let promised = self.commit.0.saturating_sub(self.commit.1);
        let commit = (self.overcommit == 2).then(|| (promised, "vm.overcommit_memory=2".to_owned()));
        [group, commit].into_iter().flatten().fold(host, |least, one| if one.0 < least.0 { one } else { least })
    }
}

/// A line of `/proc/meminfo` in bytes.
pub fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Judges it.
pub fn judge(read: &Memory, pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::Limits);
    let (left, why) = read.left();
    let lend = left.saturating_sub(NODE_ITSELF) / (STAMPS + 1) * STAMPS;
    let of = |count: u64| bytes(count as f64);
    let group = read.group.as_ref().map_or("no memory cgroup has a limit".to_owned(), |group| {
        format!("{} of {} are left by {}", of(group.left), of(group.limit), group.path.display())
    });
    let message = format!(
        "one more storage node could lend {} here, by {why}: {} of {} are available, {group}",
        of(lend),
        of(read.available),
        of(read.total)
    );
    let remedy = "lower --global_segment_size, raise the limit (MemoryMax= of units, --memory of containers), or run \
                  it on another host";
    match lend < LITTLE {
        // A host that lends has given its memory to that, as it should.
        true if pool.members.iter().any(|member| member.is_here && member.lent > 0.0) => {
            found.hint("memory", format!("{message}; a member of this host lends already"), remedy);
        }
        true => found.warn("memory", message, remedy),
        false => found.ok("memory", message),
    }
    if read.overcommit == 2 {
        found.warn(
            "overcommit",
            format!(
                "vm.overcommit_memory is 2: memory is refused beyond CommitLimit, {} ({} are promised)",
                of(read.commit.0),
                of(read.commit.1)
            ),
            "sysctl vm.overcommit_memory=0, or a higher vm.overcommit_ratio",
        );
    }
    lent(read, pool, &mut found);
    found.sorted()
}

fn lent(read: &Memory, pool: &Pool, found: &mut Findings) {
    let lent: f64 = pool.members.iter().filter(|member| member.is_here).map(|member| member.lent).sum();
    if lent == 0.0 || read.total == 0 {
        return;
    }
    let group = read.group.as_ref().filter(|group| group.limit < read.total);
    let (most, whose) = match group {
        Some(group) => (group.limit, format!("the {} of {}", bytes(group.limit as f64), group.path.display())),
        None => (read.total, format!("its {}", bytes(read.total as f64))),
    };
    let wanted = lent + lent / STAMPS as f64;
    let message = format!("members of this host lend {}, and take {} of {whose}", bytes(lent), bytes(wanted));
    // A status tells neither files from memory, nor the cgroup of a member.
    let only_if = match group {
        Some(_) => "if that is memory and no file, and all of that cgroup",
        None => "if that is memory and no file",
    };
    let remedy = "lower --global_segment_size (global_segment_size of engines), and start these members again";
    match wanted / most as f64 {
        share if share > 1.0 => {
            found.warn("lent_memory", format!("{message}: {only_if}, the kernel will end one"), remedy);
        }
        share if share > MUCH => {
            found.warn("lent_memory", format!("{message}: {only_if}, little is left to all else"), remedy);
        }
        _ => found.ok("lent_memory", message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::broken;
    use crate::doctor::finding::{Severity, told};

    const GIB: u64 = 1 << 30;

    fn well() -> Memory {
        Memory {
            total: 64 * GIB,
            available: 33 * GIB,
            swap: 0,
            overcommit: 0,
            commit: (40 * GIB, 8 * GIB),
            group: None,
        }
    }

    fn judged(read: &Memory) -> Vec<Finding> {
        judge(read, &broken::pool(broken::status()))
    }

    fn that_lends_nothing() -> Pool {
        Pool { members: Vec::new(), ..broken::pool(broken::status()) }
    }

    #[test]
    fn what_a_node_could_lend_is_what_the_tightest_limit_leaves() {
        told::is(&judged(&well()), "memory", Severity::Ok, &["could lend 32.5 GB here, by MemAvailable", "of 64.0 GB"]);
        let group = Group { path: "/g/memory.max".into(), limit: 8 * GIB, left: GIB };
        let limited = Memory { group: Some(group), ..well() };
        let says = ["1.0 GB of 8.0 GB are left by /g/memory.max", "MemoryMax="];
        told::is(&judge(&limited, &that_lends_nothing()), "memory", Severity::Warning, &says);
        let says = ["could lend 762 MB", "lends already", "MemoryMax="];
        told::is(&judged(&limited), "memory", Severity::Ok, &says);
        let strict = Memory { overcommit: 2, commit: (40 * GIB, 38 * GIB), ..well() };
        told::is(&judged(&strict), "memory", Severity::Ok, &["could lend 1.7 GB here, by vm.overcommit_memory=2"]);
        told::is(&judged(&strict), "overcommit", Severity::Warning, &["40.0 GB", "sysctl vm.overcommit_memory=0"]);
    }

    #[test]
    fn members_that_lend_more_than_there_is_are_a_warning_as_they_may_lend_files() {
        told::is(&judged(&well()), "lent_memory", Severity::Ok, &["lend 1.0 GB"]);
        let scarce = Memory { total: GIB, ..well() };
        let says = ["of its 1.0 GB: if that is memory and no file, the kernel", "--global_segment_size"];
        told::is(&judged(&scarce), "lent_memory", Severity::Warning, &says);
        let tight = Memory { total: GIB + GIB / 16, ..well() };
        told::is(&judged(&tight), "lent_memory", Severity::Warning, &["little is left"]);
        let group = |limit| Some(Group { path: "/g/memory.max".into(), limit, left: limit });
        let limited = Memory { group: group(GIB / 2), ..well() };
        let says = ["of the 512 MB of /g/memory.max: if that is memory", "all of that cgroup"];
        told::is(&judged(&limited), "lent_memory", Severity::Warning, &says);
        let wide = Memory { group: group(128 * GIB), ..well() };
        told::is(&judged(&wide), "lent_memory", Severity::Ok, &["of its 64.0 GB"]);
    }

    #[test]
    fn this_host_has_memory() {
        assert!(Memory::read().total > 0);
        assert_eq!(meminfo("MemTotal: 5 kB\nMemAvailable:   12 kB\n", "MemAvailable"), Some(12 << 10));
    }
}
