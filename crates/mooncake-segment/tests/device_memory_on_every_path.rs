//! Memory of a device travels as any other does, whichever way.

mod support;

use mooncake_ids::Rid;
use mooncake_memory::{CopyError, Destination, Registry, Source, crc32c};
use mooncake_segment::{Link, Path, Paths, TransferError};
use mooncake_test_support::fake_cuda::{DeviceMemory, FakeCuda, ILLEGAL_ADDRESS, INVALID_VALUE};
use support::*;

const PATHS: [Path; 3] = [Path::Local, Path::SharedMemory, Path::Tcp];

fn sources<'a>(memory: &DeviceMemory<'_>, host: &'a [u8], cuts: &[usize], registry: &Registry) -> Vec<Source<'a>> {
    let mut parts = vec![Source::new(host)];
    parts.extend(cuts.windows(2).map(|cut| Source::foreign(memory.part(cut[0], cut[1] - cut[0]), registry).unwrap()));
    parts.push(Source::new(host));
    parts
}

fn read(link: &Link, rid: Rid, memory: &DeviceMemory<'_>, registry: &Registry) -> Result<(), TransferError> {
    link.read(rid, 0, &mut [Destination::foreign(memory.range(), registry).unwrap()], None, &soon())
}

#[test]
fn bytes_of_devices_come_back_on_every_path_in_every_size() {
    let fake = FakeCuda::load();
    fake.delay(200);
    let owner = Owner::new(16 * MIB);
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        for (i, len) in [1, 16 << 10, 300_000, MIB, 3 * MIB, 5 * MIB + 17].into_iter().enumerate() {
            for registered in [false, true] {
                let rid = rid(1 + path as u64, 2 * i as u64 + 1 + u64::from(registered));
                let (data, host, registry) = (pattern(len, i as u8), pattern(70_001, 99), Registry::new());
                let (from, to) = (fake.holding(0, &data), fake.alloc(1, data.len()));
                if registered {
                    registry.register(from.range()).unwrap();
                    registry.register(to.range()).unwrap();
                }
                let cuts = [0, data.len() / 3, data.len() / 3 + data.len() / 50, data.len()];
                let parts = sources(&from, &host, &cuts, &registry);
                let crc = link.write(rid, 4096, &parts, &soon()).unwrap();
                assert_eq!(crc, crc32c(&[&host[..], &data, &host].concat()), "{path} {len}");

                let (mut head, mut tail) = (vec![0; host.len()], vec![0; host.len()]);
                let half = data.len() / 2;
                let mut destinations = [
                    Destination::new(&mut head),
                    Destination::foreign(to.part(0, half), &registry).unwrap(),
                    Destination::foreign(to.part(half, data.len() - half), &registry).unwrap(),
                    Destination::new(&mut tail),
                ];
                let wrong = link.read(rid, 4096, &mut destinations, Some(!crc), &soon()).unwrap_err();
                assert!(matches!(wrong, TransferError::Checksum { .. }), "{path} {len}: {wrong}");
                to.write(0, &vec![0; data.len()]);
                link.read(rid, 4096, &mut destinations, Some(crc), &soon()).unwrap();
                assert!(head == host && to.read() == data && tail == host, "{path} {len} registered: {registered}");
            }
        }
    }
    assert_eq!(fake.count("strays"), 0);
}

#[test]
fn a_device_that_fails_is_an_error_and_the_link_goes_on() {
    let fake = FakeCuda::load();
    let owner = Owner::new(16 * MIB);
    let registry = Registry::new();
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let data = pattern(3 * MIB, 1);
        let memory = fake.holding(0, &data);
        let whole = [Source::foreign(memory.range(), &registry).unwrap()];
        let rid = |counter| rid(1 + path as u64, counter);
        let crc = link.write(rid(1), 0, &whole, &soon()).unwrap();
        for (call, code) in
            [("cuMemcpyDtoHAsync", INVALID_VALUE), ("cuMemcpyDtoHAsync", ILLEGAL_ADDRESS), ("cuStreamSynchronize", 700)]
        {
            // Before the first byte is sent, and in mid-stream.
            for after in [0, if path == Path::Tcp { 6 } else { 2 }] {
                fake.fail(call, code, after, 1);
                let failed = link.write(rid(2), 8 * MIB, &whole, &soon()).unwrap_err();
                fake.mend();
                let TransferError::Copy(CopyError::Device(e)) = &failed.error else { panic!("{path}: {failed}") };
                assert_eq!((e.call, e.code), (call, code));
                // On a lane that has sent something the owner has the last word.
                assert_eq!(failed.settled, path != Path::Tcp || after == 0, "{path} {call} {after}");
            }
        }
        for (call, after) in [("cuMemcpyHtoDAsync", 0), ("cuMemcpyHtoDAsync", 2), ("cuStreamSynchronize", 1)] {
            fake.fail(call, ILLEGAL_ADDRESS, after, 1);
            let e = read(&link, rid(1), &memory, &registry).unwrap_err();
            fake.mend();
            assert!(matches!(e, TransferError::Copy(CopyError::Device(_))), "{path} {call}: {e}");
        }
        memory.write(0, &vec![0; data.len()]);
        let mut destination = [Destination::foreign(memory.range(), &registry).unwrap()];
        link.read(rid(1), 0, &mut destination, Some(crc), &soon()).unwrap();
        assert!(memory.read() == data);
    }
    assert_eq!((fake.count("strays"), fake.count("contexts")), (0, 0));
}

#[test]
fn a_range_that_leaves_the_devices_memory_is_the_callers_mistake() {
    let fake = FakeCuda::load();
    let owner = Owner::new(4 * MIB);
    let registry = Registry::new();
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let memory = fake.alloc(0, 200_000);
        let beyond = memory.part(100_000, 100_001);
        let is_callers = |e: &TransferError| match e {
            TransferError::CallerMemory { .. } | TransferError::Copy(CopyError::Fault { .. }) => true,
            TransferError::Copy(CopyError::Device(e)) => e.is_wrong_range(),
            _ => false,
        };
        let failed = link.write(rid(1 + path as u64, 1), 0, &[Source::foreign(beyond, &registry).unwrap()], &soon());
        assert!(is_callers(&failed.unwrap_err().error), "{path}");
        link.write(rid(1 + path as u64, 2), 0, &[Source::new(&[1; 100_001])], &soon()).unwrap();
        let mut destination = [Destination::foreign(beyond, &registry).unwrap()];
        let e = link.read(rid(1 + path as u64, 2), 0, &mut destination, None, &soon()).unwrap_err();
        assert!(is_callers(&e), "{path}: {e}");
        // What was registered and then freed is told by the driver.
        registry.register(memory.range()).unwrap();
        let gone = memory.range();
        drop(memory);
        let failed =
            link.write(rid(1 + path as u64, 3), 0, &[Source::foreign(gone, &registry).unwrap()], &soon()).unwrap_err();
        assert!(is_callers(&failed.error), "{path}: {failed}");
        assert!(failed.settled);
        registry.unregister(gone.addr());
    }
}

#[test]
fn many_threads_with_devices_memory_share_a_link() {
    let fake = FakeCuda::load();
    fake.delay(50);
    let owner = Owner::new(64 * MIB);
    let registry = Registry::new();
    for path in [Path::SharedMemory, Path::Tcp] {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (link, fake, registry) = (&link, &fake, &registry);
                scope.spawn(move || {
                    for round in 0..5 {
                        let rid = rid(1 + path as u64, round * 8 + thread + 1);
                        let data = pattern(700_000 + thread, (8 * round + thread) as u8);
                        let (from, to) = (fake.holding(0, &data), fake.alloc(1, data.len()));
                        let source = [Source::foreign(from.range(), registry).unwrap()];
                        let crc = link.write(rid, thread * 4 * MIB, &source, &soon()).unwrap();
                        let mut destination = [Destination::foreign(to.range(), registry).unwrap()];
                        link.read(rid, thread * 4 * MIB, &mut destination, Some(crc), &soon()).unwrap();
                        assert!(to.read() == data, "{path}");
                    }
                });
            }
        });
    }
    assert_eq!(fake.count("strays"), 0);
}
