//! A forked child does not hide that its parent's engine has ended.

use std::collections::BTreeSet;
use std::fs::read_dir;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use mooncake_transfer_engine::{Engine, EngineOptions};

/// Sockets that a process has open.
fn sockets(process: &str) -> BTreeSet<String> {
    let all = read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let names = all.filter_map(|fd| std::fs::read_link(fd.path()).ok()?.into_os_string().into_string().ok());
    names.filter(|name| name.starts_with("socket:")).collect()
}

#[test]
fn a_child_has_none_of_its_parents_sockets() {
    let (ready, mut is_ready) = UnixStream::pair().unwrap();
    let (hold, mut go) = UnixStream::pair().unwrap();
    let before = sockets("self");
    let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let ports = [engine.port(), engine.data_port()];
    assert!(sockets("self").len() >= before.len() + 3);
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: says that it is there, waits for the parent's word, then ends.
        unsafe {
            libc::write(ready.as_raw_fd(), (&raw const byte).cast(), 1);
            libc::read(hold.as_raw_fd(), (&raw mut byte).cast(), 1);
            libc::_exit(0)
        }
    }
    is_ready.read_exact(&mut [0]).unwrap();
    let inherited = sockets(&child.to_string());
    drop(engine);
    let answers = ports.map(|port| TcpStream::connect(("127.0.0.1", port)).is_ok());
    go.write_all(b"x").unwrap();
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(answers, [false; 2]);
    assert!(inherited.is_subset(&before), "{inherited:?} {before:?}");
}
