//! Whether a segment can be had at all, before its memory is touched: running
//! into a limit later ends processes.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::error::MemoryError;

/// Size of the host's default huge pages.
pub(crate) fn huge_page_bytes() -> Result<u64, MemoryError> {
    let info = read("/proc/meminfo").unwrap_or_default();
    match meminfo(&info, "Hugepagesize") {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(MemoryError::HugePages { wanted: 1, page_bytes: 0, free: 0, total: 0, reserved: 0 }),
    }
}

/// Compares a segment's size with every limit that applies to it.
pub(crate) fn check(data: u64, control: u64, huge_pages: bool, page: u64) -> Result<(), MemoryError> {
    let ordinary = if huge_pages { control } else { data + control };
    if huge_pages {
        check_huge_pages(data / page, page)?;
    }
    check_file_size(data)?;
    check_address_space(data + control)?;
    check_host(ordinary)?;
    check_cgroup(ordinary)
}

fn check_huge_pages(wanted: u64, page_bytes: u64) -> Result<(), MemoryError> {
    let pool = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes >> 10));
    let figure = |name: &str| number(&pool.join(name)).unwrap_or(0);
    let (total, reserved) = (figure("nr_hugepages"), figure("resv_hugepages"));
    let overcommit = figure("nr_overcommit_hugepages").saturating_sub(figure("surplus_hugepages"));
    let free = (figure("free_hugepages") + overcommit).saturating_sub(reserved);
    if wanted > free {
        return Err(MemoryError::HugePages { wanted, page_bytes, free, total, reserved });
    }
    Ok(())
}

/// Growing a file beyond this limit is a signal, not an error.
fn check_file_size(wanted: u64) -> Result<(), MemoryError> {
    match getrlimit(Resource::Fsize).current {
        Some(available) => enough(wanted, available, || format!("RLIMIT_FSIZE (ulimit -f) of {available} bytes")),
        None => Ok(()),
    }
}

fn check_address_space(wanted: u64) -> Result<(), MemoryError> {
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    let used = read("/proc/self/statm").and_then(|text| text.split_ascii_whitespace().next()?.parse::<u64>().ok());
    let used = used.unwrap_or(0) * crate::file::mapped_file::PAGE;
    let name = || format!("RLIMIT_AS (ulimit -v) of {limit} bytes with {used} in use");
    enough(wanted, limit.saturating_sub(used), name)
}

fn check_host(wanted: u64) -> Result<(), MemoryError> {
    let info = read("/proc/meminfo").unwrap_or_default();
    let Some(available) = meminfo(&info, "MemAvailable") else { return Ok(()) };
    let swap = meminfo(&info, "SwapFree").unwrap_or(0);
    let name = || format!("the host's memory (MemAvailable {available} bytes, SwapFree {swap} bytes)");
    enough(wanted, available + swap, name)
}

/// Every memory cgroup from this process's own up to the root, v2 and v1.
fn check_cgroup(wanted: u64) -> Result<(), MemoryError> {
    let membership = read("/proc/self/cgroup").unwrap_or_default();
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => &V2,
            list if list.split(',').any(|name| name == "memory") => &V1,
            _ => continue,
        };
        let Some(root) = mount_point(&mounts, version) else { continue };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            check_group(wanted, &root.join(group), version)?;
        }
    }
    Ok(())
}

/// Names of the files of one cgroup version.
struct Version {
    kind: &'static str,
    option: Option<&'static str>,
    limit: &'static str,
    usage: &'static str,
    cache: &'static str,
}

const V2: Version =
    Version { kind: "cgroup2", option: None, limit: "memory.max", usage: "memory.current", cache: "inactive_file" };

const V1: Version = Version {
    kind: "cgroup",
    option: Some("memory"),
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: "total_inactive_file",
};

fn check_group(wanted: u64, group: &Path, version: &Version) -> Result<(), MemoryError> {
    // "max", and directories without the file (a root, or a path that this container does not see), are no limit.
    let (Some(limit), Some(usage)) = (number(&group.join(version.limit)), number(&group.join(version.usage))) else {
        return Ok(());
    };
    // Clean file cache goes before anything fails.
    let stat = read(group.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(version.cache)?.trim().parse().ok()).unwrap_or(0_u64);
    let name = || {
        let path = group.join(version.limit);
        format!("the memory cgroup ({} = {limit} bytes, {usage} in use, {cache} of it cache)", path.display())
    };
    enough(wanted, limit.saturating_sub(usage.saturating_sub(cache)), name)
}

fn mount_point(mounts: &str, version: &Version) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, at, kind, options, ..] = fields[..] else { return None };
        let fits = version.option.is_none_or(|option| options.split(',').any(|found| found == option));
        (kind == version.kind && fits).then(|| PathBuf::from(at))
    })
}

fn enough(wanted: u64, available: u64, limit: impl FnOnce() -> String) -> Result<(), MemoryError> {
    if wanted <= available { Ok(()) } else { Err(MemoryError::Limit { wanted, available, limit: limit() }) }
}

/// A line of /proc/meminfo in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

fn number(path: &Path) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_its_figures() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("memory.max"), "1000000\n").unwrap();
        fs::write(root.join("memory.current"), "600000\n").unwrap();
        fs::write(root.join("memory.stat"), "anon 5\ninactive_file 100000\n").unwrap();
        assert!(check_group(500_000, root, &V2).is_ok());
        let message = check_group(500_001, root, &V2).unwrap_err().to_string();
        fs::write(root.join("memory.max"), "max\n").unwrap();
        assert!(check_group(1 << 50, root, &V2).is_ok());
        for figure in ["500001", "500000", "1000000", "600000", "100000", "memory.max"] {
            assert!(message.contains(figure), "{figure} in {message}");
        }
    }

    #[test]
    fn mounts_are_told_apart_by_version() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(mounts, &V1), Some(PathBuf::from("/sys/fs/cgroup/memory")));
        assert_eq!(mount_point(mounts, &V2), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(meminfo("MemTotal: 5 kB\nMemAvailable:   12 kB\n", "MemAvailable"), Some(12 << 10));
    }
}
