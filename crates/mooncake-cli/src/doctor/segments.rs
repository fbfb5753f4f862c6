//! What segments are made of: sealed memory without a name, pages of the kernel's choice, and processes whose end can
//! be proven. And `/dev/shm`, where the witness of the master's log lies.

use std::fs;
use std::path::Path;

use mooncake_client::StoreOptions;
use rustix::fs::{Access, MemfdFlags, SealFlags, access, fcntl_add_seals, ftruncate, memfd_create, statvfs};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::finding::{Area, Finding, Findings};
use super::limits::figure;
use super::memory::meminfo;
use crate::terminal::bytes;

/// A witness is a page.
const WITNESS: u64 = 1 << 20;

/// Where witnesses lie, unless a master is told otherwise.
pub const SHM: &str = "/dev/shm";

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments {
    /// Whether sealed memory can be made.
    pub memfd: Result<(), String>,
    /// Whether the end of a process can be waited for.
    pub pidfd: Result<(), String>,
    /// Bytes that are free in `/dev/shm`, and all of it; or why it is of no use.
    pub shm: Result<(u64, u64), String>,
    /// A file system is mounted there.
    pub shm_is_mounted: bool,
    /// `MC_STORE_USE_HUGEPAGE` of this environment.
    pub wants_huge: bool,
    /// Bytes of a huge page.
    pub huge_page: u64,
    /// Huge pages that are free, and all of them.
    pub huge_pages: (u64, u64),
    /// The kernel's choice of pages for shared memory; none: it has none.
    pub transparent: Option<String>,
}

impl Segments {
    /// Reads it, and tries what can be tried without a trace.
    pub fn read() -> Segments {
        let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let page = meminfo(&info, "Hugepagesize").unwrap_or(0);
        let pool = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10);
        let of = |name: &str| figure(&format!("{pool}/{name}")).unwrap_or(0);
        let reserve = of("nr_overcommit_hugepages").saturating_sub(of("surplus_hugepages"));
        let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").ok();
        Segments {
            memfd: sealed().map_err(|errno| errno.to_string()),
            pidfd: pidfd_open(getpid(), PidfdFlags::empty()).map(drop).map_err(|errno| errno.to_string()),
            shm: space(Path::new(SHM)),
            shm_is_mounted: is_mounted(&fs::read_to_string("/proc/self/mounts").unwrap_or_default()),
            wants_huge: StoreOptions::new("", "").from_env().is_ok_and(|options| options.huge_pages),
            huge_page: page,
            huge_pages: ((of("free_hugepages") + reserve).saturating_sub(of("resv_hugepages")), of("nr_hugepages")),
            transparent: enabled.and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())),
        }
    }
}

/// Whether `/dev/shm` is a mount point.
fn is_mounted(mounts: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(SHM))
}

/// As a store makes it.
fn sealed() -> Result<(), Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create("mooncake-doctor", flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => memfd_create("mooncake-doctor", flags),
        made => made,
    }?;
    ftruncate(&fd, 4096)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Free bytes of a folder that can be written, and all bytes of its file system.
pub fn space(folder: &Path) -> Result<(u64, u64), String> {
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| errno.to_string())?;
    let about = statvfs(folder).map_err(|errno| errno.to_string())?;
    Ok((about.f_bavail.saturating_mul(about.f_frsize), about.f_blocks.saturating_mul(about.f_frsize)))
}

/// Judges it.
pub fn judge(read: &Segments) -> Vec<Finding> {
    let mut found = Findings::of(Area::Limits);
    let profile = "allow it in the container's seccomp profile (--security-opt seccomp=...)";
    match &read.memfd {
        Ok(()) => found.ok("memfd", "sealed memory can be made: segments are memfd, not files of /dev/shm"),
        Err(why) => found.error(
            "memfd",
            format!("memfd_create with seals: {why}; no memory can be lent"),
            format!("{profile}, or sysctl vm.memfd_noexec=0 where that is 2"),
        ),
    }
    match &read.pidfd {
        Ok(()) => found.ok("pidfd", "the end of a process can be waited for (pidfd)"),
        Err(why) => found.warn(
            "pidfd",
            format!("pidfd_open: {why}; no process proves its end to another one, and all bytes go by TCP"),
            format!("Linux 5.3 or newer; or {profile}"),
        ),
    }
    dev_shm(read, &mut found);
    huge_pages(read, &mut found);
    found.sorted()
}

/// A mount over another one would hide the files of all that runs here.
fn dev_shm(read: &Segments, found: &mut Findings) {
    let lost = "a master that starts here has no witness of its log, and begins a new epoch at each start";
    let hosts = "give the container the host's (--ipc=host, -v /dev/shm:/dev/shm)";
    let mount = format!("mount -t tmpfs tmpfs {SHM}, or {hosts}");
    match (&read.shm, read.shm_is_mounted) {
        (Err(why), true) => found.warn(
            "dev_shm",
            format!("{SHM}: {why}; {lost}"),
            format!("mount -o remount,rw {SHM} and chmod 1777 {SHM}, or {hosts}"),
        ),
        (Err(why), false) => found.warn("dev_shm", format!("{SHM}: {why}; {lost}"), mount),
        (Ok((free, _)), is_mounted) if *free < WITNESS => {
            let room = format!("mount -o remount,size=SIZE {SHM} (--shm-size=SIZE of containers)");
            found.warn(
                "dev_shm",
                format!("{SHM} has {} left; {lost}", bytes(*free as f64)),
                match is_mounted {
                    true => format!("{room}, or remove files there: ls -l {SHM}, mooncake state gc"),
                    false => format!("remove files there (ls -l {SHM}, mooncake state gc), or {mount}"),
                },
            );
        }
        (Ok((free, total)), _) => found.ok(
            "dev_shm",
            format!(
                "{} of {} of {SHM} are free, which segments do not need",
                bytes(*free as f64),
                bytes(*total as f64)
            ),
        ),
    }
}

fn huge_pages(read: &Segments, found: &mut Findings) {
    let (free, total) = read.huge_pages;
    let size = bytes(read.huge_page as f64);
    match read.wants_huge {
        true if free == 0 => found.error(
            "huge_pages",
            format!("MC_STORE_USE_HUGEPAGE is set, and none of {total} huge pages of {size} is free: none can be lent"),
            "sysctl vm.nr_hugepages=COUNT for the size of the segment, or unset MC_STORE_USE_HUGEPAGE",
        ),
        true => found.ok(
            "huge_pages",
            format!(
                "{free} of {total} huge pages of {size} are free: a segment of {}",
                bytes((free * read.huge_page) as f64)
            ),
        ),
        false => found.ok("huge_pages", format!("MC_STORE_USE_HUGEPAGE is not set ({free} of {total} are free)")),
    }
    match read.transparent.as_deref() {
        Some(choice @ ("never" | "deny")) if !read.wants_huge => found.hint(
            "transparent_pages",
            format!(
                "transparent_hugepage/shmem_enabled is {choice}: segments have small pages, which are slower to map"
            ),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Some(choice) => found.ok("transparent_pages", format!("transparent_hugepage/shmem_enabled is {choice}")),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Severity, told};

    fn well() -> Segments {
        Segments {
            memfd: Ok(()),
            pidfd: Ok(()),
            shm: Ok((64 << 20, 64 << 20)),
            shm_is_mounted: true,
            wants_huge: false,
            huge_page: 2 << 20,
            huge_pages: (0, 0),
            transparent: Some("advise".to_owned()),
        }
    }

    #[test]
    fn a_usual_host_is_well() {
        let found = judge(&well());
        assert!(found.iter().all(|finding| finding.severity == Severity::Ok), "{found:#?}");
    }

    #[test]
    fn calls_that_a_profile_refuses_are_named() {
        let refused = || Err("Operation not permitted".to_owned());
        let found = judge(&Segments { memfd: refused(), pidfd: refused(), ..well() });
        told::is(&found, "memfd", Severity::Error, &["Operation not permitted", "seccomp", "vm.memfd_noexec"]);
        told::is(&found, "pidfd", Severity::Warning, &["by TCP", "seccomp"]);
    }

    #[test]
    fn a_witness_needs_a_folder_with_a_page_left() {
        let (closed, full) = (Err("Permission denied".to_owned()), Ok((4096, 64 << 20)));
        for (shm, says) in [(closed.clone(), "remount,rw /dev/shm"), (full.clone(), "remount,size=SIZE /dev/shm")] {
            let found = judge(&Segments { shm, ..well() });
            told::is(&found, "dev_shm", Severity::Warning, &["new epoch", says]);
            let remedy = told::of(&found, "dev_shm").remedy.clone().unwrap();
            assert!(!remedy.contains("mount -t"), "it would hide what is there: {remedy}");
        }
        for shm in [closed, full] {
            let found = judge(&Segments { shm, shm_is_mounted: false, ..well() });
            told::is(&found, "dev_shm", Severity::Warning, &["mount -t tmpfs", "--ipc=host"]);
        }
        assert!(is_mounted("shm /dev/shm tmpfs rw,size=65536k 0 0\n"));
        assert!(!is_mounted("dev /dev tmpfs rw 0 0\nx /dev/shmem tmpfs rw 0 0\n"));
    }

    #[test]
    fn huge_pages_that_are_asked_for_have_to_be_there() {
        let wanted = Segments { wants_huge: true, ..well() };
        told::is(&judge(&wanted), "huge_pages", Severity::Error, &["none of 0", "vm.nr_hugepages"]);
        let there = Segments { huge_pages: (512, 600), ..wanted };
        told::is(&judge(&there), "huge_pages", Severity::Ok, &["512 of 600", "a segment of 1.0 GB"]);
        let never = Segments { transparent: Some("never".to_owned()), ..well() };
        told::is(&judge(&never), "transparent_pages", Severity::Ok, &["never", "echo advise"]);
    }

    #[test]
    fn what_can_be_tried_is_tried() {
        let read = Segments::read();
        assert_eq!(read.memfd, Ok(()));
        assert!(space(Path::new("/nonexistent")).is_err());
    }
}
