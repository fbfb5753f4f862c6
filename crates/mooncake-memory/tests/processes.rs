//! Who a process is, that it is gone, and who gets descriptors.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use mooncake_ids::Rid;
use mooncake_memory::{Destination, Expect, Mapping, SegmentMemory, SegmentOptions, Source, Verify};
use mooncake_os::{ProcessError, ProcessIdentity, has_exited, peer_credentials, peer_pidfd, recv_fds, send_fds};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

fn sleeper() -> Child {
    Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
}

/// Identity of another process, read as it would tell it itself.
fn identity_of(pid: u32) -> ProcessIdentity {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap();
    ProcessIdentity { pid, start_time: start.parse().unwrap(), ..ProcessIdentity::current().unwrap() }
}

#[test]
fn a_process_is_alive_until_it_is_gone() {
    let me = ProcessIdentity::current().unwrap();
    assert!(me.pidfd().unwrap().is_some());
    let mut child = sleeper();
    let identity = identity_of(child.id());
    let pidfd = identity.pidfd().unwrap().expect("it runs");
    assert!(!has_exited(pidfd.as_fd()).unwrap());
    child.kill().unwrap();
    // A zombie stores nothing any more, whoever waits for it.
    while !has_exited(pidfd.as_fd()).unwrap() {
        std::thread::yield_now();
    }
    assert!(identity.pidfd().unwrap().is_none());
    child.wait().unwrap();
    assert!(identity.pidfd().unwrap().is_none());
}

#[test]
fn a_recycled_pid_is_not_the_process() {
    let me = ProcessIdentity::current().unwrap();
    let earlier = ProcessIdentity { start_time: me.start_time - 1, ..me };
    assert!(earlier.pidfd().unwrap().is_none());
}

/// Has no descriptor left behind the next one. Each test is a process of its own.
fn with_one_descriptor_left<R>(act: impl FnOnce() -> R) -> R {
    let before = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/proc/self/stat").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + 1), ..before }).unwrap();
    let result = act();
    setrlimit(Resource::Nofile, before).unwrap();
    result
}

#[test]
fn what_cannot_be_read_of_a_process_proves_nothing_about_it() {
    let mut child = sleeper();
    let identity = identity_of(child.id());
    let alive = with_one_descriptor_left(|| identity.pidfd());
    assert!(matches!(&alive, Err(ProcessError::Os { source, .. }) if source.raw_os_error() == Some(24)), "{alive:?}");
    assert!(identity.pidfd().unwrap().is_some());
    child.kill().unwrap();
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    while !has_exited(pidfd.as_fd()).unwrap() {
        std::thread::yield_now();
    }
    drop(pidfd);
    assert!(with_one_descriptor_left(|| identity.pidfd()).unwrap().is_none(), "the descriptor of it says enough");
    child.wait().unwrap();
}

#[test]
fn nothing_is_said_about_other_hosts_and_namespaces() {
    let me = ProcessIdentity::current().unwrap();
    let elsewhere = ProcessIdentity { boot_id: [1; 16], ..me };
    assert!(matches!(elsewhere.pidfd(), Err(ProcessError::OtherBoot { .. })));
    let elsewhere = ProcessIdentity { pid_namespace: me.pid_namespace + 1, ..me };
    assert!(matches!(elsewhere.pidfd(), Err(ProcessError::OtherNamespace { .. })));
}

#[test]
fn a_peer_on_a_unix_socket_is_known_by_its_kernel_credentials() {
    let (left, _right) = UnixStream::pair().unwrap();
    let peer = peer_credentials(&left).unwrap();
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    assert!(peer.is_own_user());
    assert!(!mooncake_os::PeerCredentials { uid: peer.uid + 1, ..peer }.is_own_user());
    match peer_pidfd(&left) {
        Ok(pidfd) => assert!(!has_exited(pidfd.as_fd()).unwrap()),
        // Before Linux 6.5.
        Err(error) => assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOPROTOOPT.raw_os_error())),
    }
}

#[test]
fn a_segment_is_passed_over_a_unix_socket() {
    let segment = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
    let crc = segment.mapping().write(Rid(6), 4096, &[Source::new(b"passed on")]).unwrap();
    let (left, mut right) = UnixStream::pair().unwrap();
    assert_eq!(send_fds(&left, b"hello", &[segment.data_fd(), segment.control_fd()]).unwrap(), 5);
    drop(left);
    let (mut greeting, mut fds) = ([0; 16], Vec::new());
    assert_eq!(recv_fds(&right, &mut greeting, &mut fds).unwrap(), 5);
    assert_eq!(right.read(&mut greeting[5..]).unwrap(), 0);
    assert!(send_fds(&right, b"", &[segment.data_fd()]).is_err());
    let [data, control] = <[_; 2]>::try_from(fds).unwrap();
    let peer = Mapping::map(data, control, Expect { uuid: segment.uuid(), bytes: segment.bytes() }, false).unwrap();
    let mut copy = [0; 9];
    peer.read(Rid(6), 4096, &mut [Destination::new(&mut copy)], Verify::Crc(crc)).unwrap();
    assert_eq!(copy, *b"passed on");
}

#[test]
fn segment_bytes_travel_over_sockets_in_place() {
    let (from, to) = (
        SegmentMemory::create(8 << 20, SegmentOptions::default()).unwrap(),
        SegmentMemory::create(8 << 20, SegmentOptions::default()).unwrap(),
    );
    let data: Vec<u8> = (0..3_000_001_u32).map(|i| ((i * 13) >> 3) as u8).collect();
    let crc = from.mapping().write(Rid(2), 1024, &[Source::new(&data)]).unwrap();
    let (left, mut right) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            loop {
                match from.mapping().send_to(left.as_fd(), b"header", 1024, 3_000_001, sent).unwrap() {
                    0 => break,
                    more => sent += more as u64,
                }
            }
            assert_eq!(sent, 3_000_007);
        });
        let mut header = [0; 6];
        right.read_exact(&mut header).unwrap();
        assert_eq!(header, *b"header");
        to.mapping().stamp_if_newest(Rid(8), 2048, 3_000_001).unwrap();
        let mut received = 0;
        while received < 3_000_001 {
            let more = to.mapping().recv_from(right.as_fd(), 2048 + received, 3_000_001 - received, true).unwrap();
            assert!(more > 0);
            received += more as u64;
        }
    });
    assert_eq!(to.mapping().crc(2048, 3_000_001).unwrap(), crc);
    assert!(to.mapping().check_stamps(Rid(8), 2048, 3_000_001).unwrap());
    let read_only = to.view_mapping().unwrap();
    assert!(read_only.recv_from(right.as_fd(), 0, 1, true).is_err());
    assert!(to.mapping().send_to(right.as_fd(), b"", 8 << 20, 1, 0).is_err());
}
