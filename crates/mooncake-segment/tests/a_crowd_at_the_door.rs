//! More callers than an owner has room for, none of which says who it is. One test: the limit is the whole process's.

mod support;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mooncake_segment::{Path, Paths};
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::*;

/// Callers without a hello that an owner hears at a time.
const HEARD: usize = 512;

fn limit(descriptors: u64) {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), ..before }).unwrap();
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn callers_that_say_nothing_keep_nobody_out_and_nobody_busy() {
    limit(getrlimit(Resource::Nofile).maximum.unwrap_or(4096).min(4096));
    let owner = Owner::new(MIB);
    let idle = open_descriptors();
    let address: SocketAddr = owner.server.tcp_addr();
    let is_served = || {
        let (links, _noticed) = links(Paths::only(Path::Tcp));
        links.link(&owner.address(), &soon()).is_ok()
    };

    // The oldest make room.
    let mut silent: Vec<TcpStream> = (0..HEARD + 20).map(|_| TcpStream::connect(address).unwrap()).collect();
    eventually("the first ones are shown out", || silent[..20].iter_mut().all(is_closed));
    assert!(!is_closed(silent.last_mut().unwrap()), "there is room for it");
    assert!(is_served());
    drop(silent);

    // There is no descriptor for another one: the owner rests, and takes up its work when there is.
    eventually("all of them are shown out", || open_descriptors() == idle);
    let unconnected: Vec<OwnedFd> = (0..4).map(|_| tcp_socket()).collect();
    let highest = unconnected.iter().map(AsRawFd::as_raw_fd).max().unwrap();
    let fillers: Vec<OwnedFd> =
        std::iter::repeat_with(tcp_socket).take_while(|filler| filler.as_raw_fd() < highest).collect();
    let before = getrlimit(Resource::Nofile).current.unwrap();
    limit(highest as u64 + 1);
    let (began, busy) = (Instant::now(), cpu_time());
    for caller in &unconnected {
        connect(caller, &address).unwrap();
    }
    std::thread::sleep(Duration::from_millis(600).saturating_sub(began.elapsed()));
    let busy = cpu_time() - busy;
    drop(fillers);
    limit(before);
    assert!(busy < Duration::from_millis(100), "{busy:?} of 600 ms");
    assert!(is_served());
}

fn tcp_socket() -> OwnedFd {
    socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
