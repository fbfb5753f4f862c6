//! Which file systems a tier of one owner may lie on, and which limits of the process its files must fit.

use std::io;
use std::path::Path;

use rustix::fs::statfs;
use rustix::process::{Resource, getrlimit};

/// File systems of which another host may write the same files, or whose server may stand still or lose what it has
/// acknowledged: by the magic number that the kernel gives them. 9p is not among them: it gives its server's.
const SHARED: [(u32, &str); 7] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x6573_5546, "FUSE"),
];

/// What the file system of a path is, if it is none of this host's disks.
pub fn shared_file_system(path: &Path) -> io::Result<Option<&'static str>> {
    // The kernel's word is signed on some processors, and as wide as an address on others.
    Ok(named(statfs(path)?.f_type as u32))
}

fn named(magic: u32) -> Option<&'static str> {
    SHARED.iter().find(|(of, _)| *of == magic).map(|(_, name)| *name)
}

/// The limit of the bytes of one file, if this process has one that is below `bytes`. To write beyond it would end the
/// process by a signal.
pub fn file_size_limit_below(bytes: u64) -> Option<u64> {
    getrlimit(Resource::Fsize).current.filter(|limit| *limit < bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_several_hosts_are_known_and_this_ones_is_none_of_them() {
        assert_eq!(shared_file_system(&std::env::temp_dir()).unwrap(), None);
        // Of ext4, XFS, btrfs, ZFS, tmpfs and overlayfs.
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0x0102_1994, 0x794c_7630] {
            assert_eq!(named(local), None);
        }
        assert_eq!((named(0x6969), named(0xff53_4d42), named(0x6573_5546)), (Some("NFS"), Some("SMB"), Some("FUSE")));
        assert!(shared_file_system(Path::new("/no such folder")).is_err());
    }
}
