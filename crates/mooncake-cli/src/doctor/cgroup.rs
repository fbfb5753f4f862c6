//! Memory cgroups that this process is in, of both versions.

use std::fs;
use std::path::{Path, PathBuf};

use super::limits::figure;

/// The memory cgroup that leaves the least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The file with its limit.
    pub path: PathBuf,
    /// That limit.
    pub limit: u64,
    /// What it leaves.
    pub left: u64,
}

impl Group {
    /// Of those of this process.
    pub fn tightest() -> Option<Group> {
        tightest(
            &fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
            &fs::read_to_string("/proc/self/mounts").unwrap_or_default(),
        )
    }
}

/// Of all memory cgroups from this process's own up to the root, of both versions, the one that leaves the least.
fn tightest(membership: &str, mounts: &str) -> Option<Group> {
    let mut tightest: Option<Group> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let is_first = controllers.split(',').any(|name| name == "memory");
        let (kind, names) = match (controllers, is_first) {
            ("", _) => ("cgroup2", ["memory.max", "memory.current", "inactive_file"]),
            (_, true) => ("cgroup", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"]),
            _ => continue,
        };
        let Some(root) = mount_point(mounts, kind) else { continue };
        let groups = Path::new(path.trim_start_matches('/')).ancestors().map(|group| root.join(group));
        for found in groups.filter_map(|group| limited(&group, names)) {
            if tightest.as_ref().is_none_or(|before| found.left < before.left) {
                tightest = Some(found);
            }
        }
    }
    tightest
}

fn mount_point(mounts: &str, kind: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, at, found, options, ..] = fields[..] else { return None };
        let fits = kind == "cgroup2" || options.split(',').any(|option| option == "memory");
        (found == kind && fits).then(|| PathBuf::from(at))
    })
}

/// None: it has no limit, or this container does not see it.
fn limited(group: &Path, [limit, usage, cache]: [&str; 3]) -> Option<Group> {
    let number = |name: &str| figure(group.join(name).to_str()?);
    // Version 1 says "no limit" with the largest number of pages.
    let (limit_bytes, used) = (number(limit).filter(|limit| *limit < 1 << 60)?, number(usage)?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // Clean file cache goes before anything fails.
    let cached = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse().ok()).unwrap_or(0_u64);
    let left = limit_bytes.saturating_sub(used.saturating_sub(cached));
    Some(Group { path: group.join(limit), limit: limit_bytes, left })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_is_found_above_the_own_one_too() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("a/b");
        fs::create_dir_all(&own).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "1000000\n");
        write("a/memory.current", "600000\n");
        write("a/memory.stat", "anon 5\ninactive_file 100000\n");
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", folder.path().display());
        let expected = Group { path: folder.path().join("a/memory.max"), limit: 1_000_000, left: 500_000 };
        assert_eq!(tightest("0::/a/b\n", &mounts), Some(expected));
        assert_eq!(tightest("0::/\n1:cpu:/x\n", &mounts), None);
        assert_eq!(
            mount_point("cgroup /c cgroup rw,cpu 0 0\ncgroup /m cgroup rw,memory 0 0\n", "cgroup"),
            Some("/m".into())
        );
    }
}
