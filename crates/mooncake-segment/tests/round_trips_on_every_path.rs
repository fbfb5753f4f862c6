//! What was written comes back, whichever way it travels.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use mooncake_memory::{Destination, ForeignRange, Registry, Source, crc32c};
use mooncake_os::Deadline;
use mooncake_segment::{LinkError, Path, Paths, ServerOptions, Status, TransferError};

use crate::support::*;

const PATHS: [Path; 3] = [Path::Local, Path::SharedMemory, Path::Tcp];
const SIZES: [u64; 9] = [0, 1, 1023, 4096, 16 << 10, (16 << 10) + 1, 300_000, MIB, 5 * MIB + 17];

#[test]
fn bytes_come_back_on_every_path_in_every_size() {
    let owner = Owner::new(16 * MIB);
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        assert_eq!(link.path(), path);
        assert!(!link.reason().is_empty());
        for (i, len) in SIZES.into_iter().enumerate() {
            let rid = rid(1 + path as u64, i as u64 + 1);
            let data = pattern(len, i as u8);
            // In pieces of different sizes on both sides.
            let cut = data.len() / 3;
            let sources = [Source::new(&data[..cut]), Source::new(&data[cut..])];
            let crc = link.write(rid, 4096, &sources, &soon()).unwrap();
            assert_eq!(crc, crc32c(&data), "{path} {len}");

            let mut back = vec![0; data.len()];
            let (first, rest) = back.split_at_mut(data.len() / 2);
            let mut destinations = [Destination::new(first), Destination::new(rest)];
            link.read(rid, 4096, &mut destinations, Some(crc), &soon()).unwrap();
            assert_eq!(back, data, "{path} {len}");

            let mut middle = vec![0; data.len() - cut];
            link.read(rid, 4096 + cut as u64, &mut [Destination::new(&mut middle)], None, &soon()).unwrap();
            assert_eq!(middle, data[cut..], "{path} {len}");

            let view = link.view(rid, 4096, len, Some(crc)).unwrap();
            assert_eq!(view.is_some(), path != Path::Tcp);
            assert!(view.is_none_or(|view| *view == data));
        }
        let report = links.report();
        assert_eq!(report.len(), 1);
        assert!(report[0].bytes_written >= SIZES.iter().sum());
    }
}

#[test]
fn many_threads_share_a_link() {
    let owner = Owner::new(64 * MIB);
    let address = owner.address();
    for path in [Path::SharedMemory, Path::Tcp] {
        let (links, _noticed) = links(Paths::only(path));
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (links, address) = (&links, &address);
                scope.spawn(move || {
                    for round in 0..20 {
                        let link = links.link(address, &soon()).unwrap();
                        let rid = rid(1 + path as u64, round * 8 + thread + 1);
                        let data = pattern(700_000 + thread, round as u8);
                        let offset = thread * 4 * MIB;
                        let crc = link.write(rid, offset, &[Source::new(&data)], &soon()).unwrap();
                        let mut back = vec![0; data.len()];
                        link.read(rid, offset, &mut [Destination::new(&mut back)], Some(crc), &soon()).unwrap();
                        assert_eq!(back, data);
                    }
                });
            }
        });
    }
}

#[test]
fn the_best_allowed_path_is_chosen_and_the_reason_told() {
    let owner = Owner::new(MIB);
    let chosen = |paths| {
        let (links, _noticed) = links(paths);
        let link = links.link(&owner.address(), &soon()).unwrap();
        (link.path(), link.reason().to_string())
    };
    assert_eq!(chosen(Paths::ALL).0, Path::Local);
    assert_eq!(chosen(Paths { local: false, ..Paths::ALL }), (Path::SharedMemory, "same host".into()));
    let (path, reason) = chosen(Paths { local: false, shared_memory: false, tcp: true });
    assert_eq!(path, Path::Tcp);
    assert!(reason.contains("shared memory is switched off"), "{reason}");

    let elsewhere = mooncake_segment::SegmentAddress { boot_id: [0; 16], ..owner.address() };
    let (links, _noticed) = links(Paths { local: false, ..Paths::ALL });
    let link = links.link(&elsewhere, &soon()).unwrap();
    assert_eq!(link.path(), Path::Tcp);
    assert!(link.reason().contains("another host"), "{}", link.reason());
}

#[test]
fn a_wrong_access_key_opens_nothing() {
    let owner = Owner::new(MIB);
    let address = mooncake_segment::SegmentAddress { access_key: 5, ..owner.address() };
    let (links, _noticed) = links(Paths::ALL);
    match links.link(&address, &soon()) {
        Err(LinkError::NoPath { reason, .. }) => assert_eq!(reason.matches("wrong access key").count(), 3, "{reason}"),
        other => panic!("{other:?}"),
    }
    // At once: the peer has just refused.
    assert!(matches!(links.link(&address, &soon()), Err(LinkError::Avoided { .. })));
}

#[test]
fn ipv6_addresses_are_bracketed_and_work() {
    let loopback = IpAddr::V6(Ipv6Addr::LOCALHOST);
    if std::net::TcpListener::bind((loopback, 0)).is_err() {
        return; // This host has no IPv6.
    }
    let owner = Owner::with(MIB, ServerOptions::new(loopback, 0, OWNER));
    assert!(owner.address().tcp[0].starts_with("[::1]:"));
    let (links, _noticed) = links(Paths::only(Path::Tcp));
    let link = links.link(&owner.address(), &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"six")], &soon()).unwrap();
}

#[test]
fn extents_outside_the_segment_are_refused_and_the_lane_goes_on() {
    let owner = Owner::new(MIB);
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        // The peer believes in a larger segment only where the owner cannot tell it otherwise.
        let link = links.link(&owner.address(), &soon()).unwrap();
        let mut back = [0; 2048];
        for offset in [MIB - 2047, MIB, u64::MAX - 5] {
            let e = link.read(rid(1, 1), offset, &mut [Destination::new(&mut back)], None, &soon()).unwrap_err();
            assert!(matches!(e, TransferError::Copy(_)), "{e}");
            assert!(link.write(rid(1, 1), offset, &[Source::new(&back)], &soon()).unwrap_err().settled);
        }
        link.write(rid(1 + path as u64, 1), 0, &[Source::new(&back)], &soon()).unwrap();
    }
}

#[test]
fn pieces_whose_sizes_wrap_around_are_refused_on_every_path() {
    let owner = Owner::new(MIB);
    let (registry, mut bytes) = (Registry::new(), [7; 4096]);
    let addr = bytes.as_mut_ptr().addr();
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let crc = link.write(rid(1 + path as u64, 1), 8192, &[Source::new(&bytes)], &soon()).unwrap();
        // SAFETY: no piece is ever used: all of them together fit nowhere.
        let ranges = || [1 << 63, (1 << 63) + 4096].map(|len| unsafe { ForeignRange::new(addr, len) });
        let sources = ranges().map(|range| Source::foreign(range, &registry).unwrap());
        let e = link.write(rid(1 + path as u64, 2), 0, &sources, &soon()).unwrap_err();
        assert!(e.settled && matches!(e.error, TransferError::Copy(_)), "{path}: {e}");
        let mut destinations = ranges().map(|range| Destination::foreign(range, &registry).unwrap());
        let e = link.read(rid(1 + path as u64, 1), 8192, &mut destinations, None, &soon()).unwrap_err();
        assert!(matches!(e, TransferError::Copy(_)), "{path}: {e}");
        let mut back = [0; 4096];
        link.read(rid(1 + path as u64, 1), 8192, &mut [Destination::new(&mut back)], Some(crc), &soon()).unwrap();
        assert_eq!(back, bytes);
    }
}

#[test]
fn a_removed_segment_is_gone_for_everyone() {
    let owner = Owner::new(MIB);
    let all: Vec<_> = PATHS.into_iter().map(|path| links(Paths::only(path))).collect();
    let linked: Vec<_> = all.iter().map(|(links, _)| links.link(&owner.address(), &soon()).unwrap()).collect();
    for (i, link) in linked.iter().enumerate() {
        link.write(rid(1, i as u64 + 1), i as u64 * 4096, &[Source::new(b"x")], &soon()).unwrap();
    }
    assert!(owner.server.remove(owner.memory.uuid()));
    owner.memory.give_back(&[]).unwrap();
    for (i, link) in linked.iter().enumerate() {
        let mut back = [0];
        let e = link.read(rid(1, i as u64 + 1), i as u64 * 4096, &mut [Destination::new(&mut back)], None, &soon());
        assert!(e.is_err());
        // A mapped peer sees the connection close a moment later.
        let until = Instant::now() + Duration::from_millis(500);
        let e = loop {
            match link.write(rid(9, 1), 0, &[Source::new(b"x")], &soon()) {
                Err(e) => break e,
                Ok(_) => assert!(Instant::now() < until, "still written over {}", link.path()),
            }
        };
        let refused = matches!(&e.error, TransferError::Refused { status: Status::UnknownSegment, .. });
        assert!(refused || e.settled, "{e}");
    }
}

#[test]
fn an_owner_with_too_many_lanes_refuses_others_and_serves_those_that_it_has() {
    let options = ServerOptions { max_lanes: 1, ..ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER) };
    let owner = Owner::with(MIB, options);
    let (first, _noticed) = links(Paths::only(Path::Tcp));
    let link = first.link(&owner.address(), &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
    let (second, _noticed) = links(Paths::only(Path::Tcp));
    let short = Deadline::at(Instant::now() + Duration::from_millis(150));
    assert!(matches!(second.link(&owner.address(), &short), Err(LinkError::Timeout { .. })));
    link.write(rid(1, 2), 0, &[Source::new(b"x")], &soon()).unwrap();
}
