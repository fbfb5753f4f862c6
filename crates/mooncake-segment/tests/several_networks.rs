//! An owner in several networks: each is a gateway before it, which counts what passes, and stands still or hangs up
//! when it is told.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::{Destination, Source, crc32c};
use mooncake_os::Deadline;
use mooncake_segment::{Link, LinkOptions, Links, Path, Paths, SegmentAddress, ServerOptions, TransferError};
use parking_lot::Mutex;

use crate::support::*;

const LEN: u64 = 16 * MIB;
const PAUSE: Duration = Duration::from_millis(700);

/// What a gateway does with more bytes than it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Holds them back, as a network does that is gone.
    StandStill,
    HangUp,
}

struct Gateway {
    at: SocketAddr,
    state: Arc<Passing>,
}

struct Passing {
    passed: AtomicU64,
    /// What it does when so many bytes have passed.
    end: Mutex<Option<(u64, Then)>>,
}

impl Gateway {
    fn before(owner: SocketAddr) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let state = Arc::new(Passing { passed: AtomicU64::new(0), end: Mutex::new(None) });
        let passing = state.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(owner).unwrap());
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to, passing) = (from.try_clone().unwrap(), to.try_clone().unwrap(), passing.clone());
                    std::thread::spawn(move || passing.pump(from, to));
                }
            }
        });
        Gateway { at, state }
    }

    fn passed(&self) -> u64 {
        self.state.passed.load(Ordering::SeqCst)
    }

    /// After so many bytes more.
    fn ends_after(&self, more: u64, then: Then) {
        *self.state.end.lock() = Some((self.passed() + more, then));
    }

    fn mends(&self) {
        *self.state.end.lock() = None;
    }
}

impl Passing {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let passed = self.passed.fetch_add(count as u64, Ordering::SeqCst);
            loop {
                let end = *self.end.lock();
                match end {
                    Some((at, Then::StandStill)) if passed >= at => std::thread::sleep(Duration::from_millis(5)),
                    Some((at, Then::HangUp)) if passed >= at => {
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                        return;
                    }
                    _ => break,
                }
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}

struct Pair {
    owner: Owner,
    gateways: [Gateway; 2],
    links: Links,
    address: SegmentAddress,
}

/// An owner, and a peer that reaches it by two gateways alone.
fn pair() -> Pair {
    let owner = Owner::new(2 * LEN);
    let gateways = [(); 2].map(|()| Gateway::before(owner.server.tcp_addr()));
    let tcp = gateways.iter().map(|gateway| gateway.at.to_string()).collect();
    let address = SegmentAddress { tcp, ..owner.address() };
    Pair { owner, gateways, links: links_with(options()).0, address }
}

fn options() -> LinkOptions {
    LinkOptions {
        paths: Paths::only(Path::Tcp),
        tcp_address_pause: PAUSE,
        stall_timeout: Duration::from_secs(2),
        ..LinkOptions::new(WRITER)
    }
}

impl Pair {
    fn link(&self) -> Arc<Link> {
        self.links.link(&self.address, &soon()).unwrap()
    }

    /// How many bytes went by each gateway meanwhile.
    fn passed_in(&self, act: impl FnOnce()) -> [u64; 2] {
        let before = [0, 1].map(|nth| self.gateways[nth].passed());
        act();
        [0, 1].map(|nth| self.gateways[nth].passed() - before[nth])
    }

    fn reason(&self) -> String {
        self.link().report().reason
    }

    fn reads(&self, rid_of: u64, data: &[u8]) {
        let mut back = vec![0; data.len()];
        let (first, rest) = back.split_at_mut(data.len() / 3);
        let mut pieces = [Destination::new(first), Destination::new(rest)];
        self.link().read(rid(1, rid_of), 0, &mut pieces, Some(crc32c(data)), &soon()).unwrap();
        assert!(back == data, "every byte is the owner's");
    }

    fn writes(&self, rid_of: u64, data: &[u8]) {
        let (first, rest) = data.split_at(data.len() / 5);
        let crc = self.link().write(rid(1, rid_of), 0, &[Source::new(first), Source::new(rest)], &soon()).unwrap();
        assert_eq!(crc, crc32c(data));
        assert_eq!(self.owner.memory.mapping().crc(0, data.len() as u64).unwrap(), crc);
        assert!(self.owner.memory.mapping().check_stamps(rid(1, rid_of), 0, data.len() as u64).unwrap());
    }
}

#[test]
fn a_large_request_goes_over_every_address_and_a_small_one_over_one() {
    let pair = pair();
    for (nth, len) in [(1, LEN), (2, LEN - 12_345), (3, MIB + 1)] {
        let data = pattern(len, nth as u8);
        let written = pair.passed_in(|| pair.writes(nth, &data));
        let read = pair.passed_in(|| pair.reads(nth, &data));
        for passed in [written, read] {
            // On a busy machine a lane may begin when the other one has carried much.
            assert!(len < LEN / 2 || !passed.contains(&0), "{passed:?} of {len}");
            assert!(passed.iter().sum::<u64>() < len + len / 8, "{passed:?} of {len}: nothing twice");
        }
    }
    let data = pattern(MIB, 4);
    let written = pair.passed_in(|| pair.writes(4, &data));
    let read = pair.passed_in(|| pair.reads(4, &data));
    assert!([written, read].iter().all(|passed| passed.contains(&0)), "{written:?}, {read:?}");
    assert!(pair.reason().ends_with("over 2 addresses"), "{}", pair.reason());
}

#[test]
fn a_read_goes_on_over_the_other_address_when_one_hangs_up_or_stands_still_and_uses_it_again_later() {
    for then in [Then::HangUp, Then::StandStill] {
        let pair = pair();
        let data = pattern(LEN, 1);
        pair.writes(1, &data);
        pair.gateways[1].ends_after(2 * MIB, then);
        let began = Instant::now();
        pair.reads(1, &data);
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        assert!(pair.reason().contains("over 1 of 2 addresses"), "{then:?}: {}", pair.reason());
        let began = Instant::now();
        let passed = pair.passed_in(|| pair.reads(1, &data));
        assert!(passed[1] == 0 || began.elapsed() > PAUSE / 2, "{then:?}: it is left out: {passed:?}");
        pair.gateways[1].mends();
        std::thread::sleep(PAUSE);
        let passed = pair.passed_in(|| pair.reads(1, &data));
        assert!(passed.iter().all(|bytes| *bytes > MIB), "{then:?}: {passed:?}");
        assert!(pair.reason().ends_with("over 2 addresses"), "{}", pair.reason());
    }
}

#[test]
fn a_small_read_ends_in_time_over_the_other_address_when_one_stands_still() {
    let pair = pair();
    let data = pattern(64 << 10, 1);
    pair.writes(1, &data);
    pair.gateways[0].ends_after(0, Then::StandStill);
    // As much time as a store gives it.
    let (began, time) = (Instant::now(), Duration::from_secs(2));
    let mut back = vec![0; data.len()];
    let deadline = Deadline::after(time, &|| false);
    pair.link().read(rid(1, 1), 0, &mut [Destination::new(&mut back)], Some(crc32c(&data)), &deadline).unwrap();
    assert!(back == data && began.elapsed() < time);
    let began = Instant::now();
    pair.reads(1, &data);
    assert!(began.elapsed() < Duration::from_millis(500), "it is left out");
}

#[test]
fn an_address_where_no_owner_answers_costs_a_large_request_nothing_but_its_help() {
    let mut pair = pair();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    pair.address.tcp[1] = closed.to_string();
    let data = pattern(LEN, 1);
    pair.writes(1, &data);
    pair.reads(1, &data);
    assert!(pair.reason().contains("over 1 of 2 addresses"), "{}", pair.reason());
    // And where it is the first one.
    pair.links = links_with(options()).0;
    pair.address.tcp.swap(0, 1);
    pair.reads(1, &data);
    pair.reads(1, &data[..4096]);
}

#[test]
fn a_write_over_several_addresses_ends_with_a_lane_that_fails_and_is_not_settled() {
    for then in [Then::HangUp, Then::StandStill] {
        let pair = pair();
        pair.writes(1, &pattern(LEN, 1));
        pair.gateways[0].ends_after(2 * MIB, then);
        let data = pattern(LEN, 2);
        let error = pair.link().write(rid(1, 2), 0, &[Source::new(&data)], &soon()).unwrap_err();
        assert!(!error.settled, "{then:?}: {error}");
        let of_lane = matches!(error.error, TransferError::Broken { .. } | TransferError::Timeout { .. });
        assert!(of_lane, "{then:?}: {error}");
        // Of a placement of its own, as a put that is tried again has.
        assert!(pair.owner.fence(rid(1, 2), 0, LEN) || pair.owner.hears_within(2_000).is_some());
        pair.gateways[0].ends_after(0, then);
        pair.writes(3, &pattern(LEN, 3));
    }
}

#[test]
fn of_a_write_that_stands_still_on_every_address_nothing_lands_after_its_fence() {
    let pair = pair();
    let data = pattern(LEN, 1);
    pair.writes(1, &data);
    pair.gateways.iter().for_each(|gateway| gateway.ends_after(2 * MIB, Then::StandStill));
    let link = pair.link();
    std::thread::scope(|scope| {
        let late = pattern(LEN, 2);
        let writing = scope.spawn(move || link.write(rid(1, 2), 0, &[Source::new(&late)], &soon()));
        let is_stamped = |at: u64| pair.owner.memory.mapping().check_stamps(rid(1, 2), at, 1024).unwrap();
        eventually("it writes", || is_stamped(0));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!pair.owner.fence(rid(1, 2), 0, LEN), "chunks of it are under way on both lanes");
        assert_eq!(pair.owner.hears_within(1_500), Some(Heard::Fenced(rid(1, 2))));
        let next = pattern(LEN, 3);
        pair.owner.memory.mapping().write(rid(1, 3), 0, &[Source::new(&next)]).unwrap();
        pair.gateways.iter().for_each(Gateway::mends);
        let error = writing.join().unwrap().unwrap_err();
        assert!(!error.settled, "{error}");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(pair.owner.memory.mapping().crc(0, LEN).unwrap(), crc32c(&next));
        assert!(pair.owner.memory.mapping().check_stamps(rid(1, 3), 0, LEN).unwrap());
    });
}

#[test]
fn a_refused_write_is_settled_and_a_late_read_is_a_miss_whatever_the_number_of_addresses() {
    let pair = pair();
    let data = pattern(LEN, 1);
    pair.writes(2, &data);
    let error = pair.link().write(rid(1, 1), 0, &[Source::new(&data)], &soon()).unwrap_err();
    assert!(error.settled && matches!(error.error, TransferError::Superseded { .. }), "{error}");
    let mut back = vec![0; LEN as usize];
    let error = pair.link().read(rid(1, 1), 0, &mut [Destination::new(&mut back)], None, &soon()).unwrap_err();
    assert!(error.is_stale(), "{error}");
    let wrong = pair.link().read(rid(1, 2), 0, &mut [Destination::new(&mut back)], Some(1), &soon()).unwrap_err();
    assert!(matches!(wrong, TransferError::Checksum { .. }), "{wrong}");
    pair.reads(2, &data);
    assert!(pair.reason().ends_with("over 2 addresses"), "none of it is the addresses' fault: {}", pair.reason());
}

#[test]
fn an_owner_serves_its_lanes_at_every_address_and_at_one_port() {
    let options =
        ServerOptions { also: vec![[127, 0, 0, 2].into()], ..ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER) };
    let owner = Owner::with(LEN, options);
    let port = owner.server.tcp_addr().port();
    let tcp = vec![format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}")];
    let address = SegmentAddress { tcp, ..owner.address() };
    let (links, _) = links(Paths::only(Path::Tcp));
    let link = links.link(&address, &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(&pattern(LEN, 1))], &soon()).unwrap();
    assert_eq!(owner.server.lanes(), 2);
    assert_eq!(owner.memory.mapping().crc(0, LEN).unwrap(), crc32c(&pattern(LEN, 1)));
}
