//! Memory that processors cannot load from is as good as any other.

use mooncake_ids::Rid;
use mooncake_memory::{
    Bounce, CopyError, Destination, DeviceError, ForeignRange, ReadError, RegisterError, Registry, SegmentMemory,
    SegmentOptions, Source, Verify, crc_of_destinations, crc_of_sources, crc32c, split_destinations,
};
use mooncake_test_support::fake_cuda::{DeviceMemory, FakeCuda, ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY};

/// Another thread captures a stream that waits for the default one.
const CAPTURE_IMPLICIT: i32 = 906;
const MIB: usize = 1 << 20;

fn segment() -> SegmentMemory {
    SegmentMemory::create(32 << 20, SegmentOptions::default()).unwrap()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn host(bytes: &mut [u8]) -> ForeignRange {
    // SAFETY: the test's own, not touched while it is in use.
    unsafe { ForeignRange::new(bytes.as_mut_ptr().expose_provenance(), bytes.len()) }
}

fn put(segment: &SegmentMemory, memory: &DeviceMemory<'_>, registry: &Registry) -> Result<u32, CopyError> {
    segment.mapping().write(Rid(2), 0, &[Source::foreign(memory.range(), registry).unwrap()])
}

fn get(segment: &SegmentMemory, memory: &DeviceMemory<'_>, registry: &Registry) -> Result<u32, CopyError> {
    match segment.mapping().read(
        Rid(2),
        0,
        &mut [Destination::foreign(memory.range(), registry).unwrap()],
        Verify::Compute,
    ) {
        Ok(crc) => Ok(crc),
        Err(ReadError::Copy(e)) => Err(e),
        Err(e) => panic!("{e}"),
    }
}

/// Makes calls fail until the pool has no ring left, so that the next call makes one.
fn without_rings(fake: &FakeCuda) {
    let (segment, registry) = (segment(), Registry::new());
    for _ in 0..64 {
        for device in [0, 1] {
            let memory = fake.alloc(device, 100);
            fake.fail("cuMemcpyDtoHAsync", ILLEGAL_ADDRESS, 0, 1);
            put(&segment, &memory, &registry).unwrap_err();
        }
        if fake.count("pinned") == 0 {
            break;
        }
    }
    fake.mend();
    assert_eq!((fake.count("pinned"), fake.count("streams")), (0, 0));
}

#[test]
fn device_pieces_and_host_pieces_make_one_object_registered_or_not() {
    let fake = FakeCuda::load();
    fake.delay(300);
    for registered in [false, true] {
        for len in [1, 1000, 262_145, 700_001, 5 * MIB + 17] {
            let (segment, registry) = (segment(), Registry::new());
            let data = pattern(2 * len + 2000, len as u64);
            let (from, to) = (fake.holding(0, &data[1000..1000 + len]), fake.alloc(0, len));
            let (other_from, other_to) = (fake.holding(1, &data[2000 + len..]), fake.alloc(1, len));
            if registered {
                for memory in [&from, &to, &other_from, &other_to] {
                    registry.register(memory.range()).unwrap();
                }
            }
            let sources = [
                Source::new(&data[..1000]),
                Source::foreign(from.part(0, len / 3), &registry).unwrap(),
                Source::foreign(from.part(len / 3, len - len / 3), &registry).unwrap(),
                Source::new(&data[1000 + len..2000 + len]),
                Source::foreign(other_from.range(), &registry).unwrap(),
            ];
            let crc = segment.mapping().write(Rid(2), 0, &sources).unwrap();
            assert_eq!(crc, crc32c(&data));
            assert_eq!(crc_of_sources(0, &sources, 0, data.len() as u64).unwrap(), crc);

            let (mut head, mut middle) = (vec![0; 1000], vec![0; 1000]);
            let mut destinations = [
                Destination::new(&mut head),
                Destination::foreign(to.part(0, len / 2), &registry).unwrap(),
                Destination::foreign(to.part(len / 2, len - len / 2), &registry).unwrap(),
                Destination::new(&mut middle),
                Destination::foreign(other_to.range(), &registry).unwrap(),
            ];
            assert_eq!(segment.mapping().read(Rid(2), 0, &mut destinations, Verify::Crc(crc)).unwrap(), crc);
            assert_eq!(crc_of_destinations(0, &destinations, 0, data.len() as u64).unwrap(), crc);
            let arrived = [head, to.read(), middle, other_to.read()].concat();
            assert!(arrived == data, "{len} bytes, registered: {registered}");
            // Part of it, unverified.
            let part = &mut [Destination::foreign(to.part(0, len), &registry).unwrap()];
            segment.mapping().read(Rid(2), 500, part, Verify::Skip).unwrap();
            assert!(to.read() == data[500..500 + len]);
        }
    }
    assert_eq!((fake.count("strays"), fake.count("spoilt"), fake.count("contexts")), (0, 0, 0));
}

#[test]
fn what_the_default_stream_still_has_to_write_is_waited_for() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let memory = fake.alloc(0, 100_000);
    fake.fill_later(&memory, 7, 50_000);
    assert_eq!(put(&segment, &memory, &registry).unwrap(), crc32c(&[7; 100_000]));
}

#[test]
fn what_the_default_stream_still_has_to_do_comes_before_what_is_written() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let data = pattern(3 * MIB, 8);
    segment.mapping().write(Rid(2), 0, &[Source::new(&data)]).unwrap();
    let memory = fake.alloc(0, data.len());
    fake.fill_later(&memory, 7, 50_000);
    get(&segment, &memory, &registry).unwrap();
    assert!(memory.read() == data, "memory that a kernel was still to write was written before it");
}

#[test]
fn what_the_default_stream_gets_during_a_call_is_not_waited_for() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let data = pattern(16 * MIB, 5);
    let (memory, other) = (fake.holding(0, &data), fake.alloc(0, 4096));
    put(&segment, &fake.holding(0, &data[..4096]), &registry).unwrap();
    let (records, events) = (fake.count("records"), fake.count("events"));
    // Sixteen steps of 10 ms each, four at a time.
    fake.delay(10_000);
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| put(&segment, &memory, &registry).unwrap());
        while fake.count("records") == records && !putting.is_finished() {
            std::thread::yield_now();
        }
        fake.fill_later(&other, 9, 3_000_000);
        assert_eq!(putting.join().unwrap(), crc32c(&data));
    });
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(2), "{took:?}: a kernel of 3 s was waited for");
    assert_eq!(fake.count("records"), records + 1, "one look at the default stream is enough for a call");
    assert_eq!(fake.count("events"), events, "no event is left behind");
    fake.delay(0);
    // The next call comes after it.
    assert_eq!(put(&segment, &other, &registry).unwrap(), crc32c(&[9; 4096]));
}

#[test]
fn a_capture_that_the_default_stream_would_end_is_let_be() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let memory = fake.alloc(0, 100);
    put(&segment, &memory, &registry).unwrap();
    let records = fake.count("records");
    fake.fail("cuStreamIsCapturing", CAPTURE_IMPLICIT, 0, 1);
    let told = put(&segment, &memory, &registry).unwrap_err().to_string();
    assert!(told.contains("CAPTURE_IMPLICIT"), "{told}");
    assert_eq!(fake.count("records"), records);
    put(&segment, &memory, &registry).unwrap();
}

#[test]
fn many_small_pieces_are_gathered_with_few_waits() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let data = pattern(2 * MIB, 3);
    let (from, to) = (fake.holding(0, &data), fake.alloc(0, data.len()));
    registry.register(from.range()).unwrap();
    registry.register(to.range()).unwrap();
    let (copies, waits) = (fake.count("copies"), fake.count("waits"));
    // Backwards, so that no two of them follow each other in memory.
    let places = || (0..2048).rev().map(|piece| piece * 1024);
    let sources: Vec<_> = places().map(|at| Source::foreign(from.part(at, 1024), &registry).unwrap()).collect();
    let crc = segment.mapping().write(Rid(2), 0, &sources).unwrap();
    let mut destinations: Vec<_> =
        places().map(|at| Destination::foreign(to.part(at, 1024), &registry).unwrap()).collect();
    segment.mapping().read(Rid(2), 0, &mut destinations, Verify::Crc(crc)).unwrap();
    assert!(to.read() == data);
    assert_eq!(fake.count("copies") - copies, 2 * 2048);
    assert!(fake.count("waits") - waits <= 2 * 4, "{} waits", fake.count("waits") - waits);
}

#[test]
fn a_range_that_leaves_its_allocation_is_refused_and_nothing_of_it_copied() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    segment.mapping().write(Rid(2), 0, &[Source::new(&[1; 70_000])]).unwrap();
    let memory = fake.alloc(0, 64 << 10);
    let copies = fake.count("copies");
    for (from, len) in [(0, (64 << 10) + 1), (60 << 10, 8 << 10), (64 << 10, 100), (0, usize::MAX / 2)] {
        let range = memory.part(from, len);
        assert!(matches!(registry.register(range), Err(RegisterError::NotReadable { .. })), "{from} {len}");
        if len > MIB {
            continue;
        }
        let write = segment.mapping().write(Rid(4), 1 << 20, &[Source::foreign(range, &registry).unwrap()]);
        assert!(matches!(write, Err(CopyError::Fault { .. })), "{from} {len}: {write:?}");
        let read =
            segment.mapping().read(Rid(2), 0, &mut [Destination::foreign(range, &registry).unwrap()], Verify::Skip);
        assert!(matches!(read, Err(ReadError::Copy(CopyError::Fault { .. }))), "{from} {len}");
    }
    assert_eq!((fake.count("copies"), registry.len()), (copies, 0));
}

#[test]
fn device_memory_freed_after_its_registration_is_the_callers_mistake() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let memory = fake.alloc(0, 4096);
    let range = memory.range();
    registry.register(range).unwrap();
    drop(memory);
    let error = segment.mapping().write(Rid(2), 0, &[Source::foreign(range, &registry).unwrap()]).unwrap_err();
    let CopyError::Device(error) = error else { panic!("{error}") };
    assert!(error.is_wrong_range());
    assert_eq!((error.addr, error.len, error.device), (range.addr(), 4096, 0));
    let said = error.to_string();
    assert!(said.contains("cuMemcpyDtoHAsync") && said.contains("CUDA_ERROR_INVALID_VALUE (1)"), "{said}");
}

#[test]
fn every_call_that_fails_is_told_and_nothing_is_leaked() {
    let fake = FakeCuda::load();
    let registry = Registry::new();
    let segment = segment();
    let data = pattern(3 * MIB, 5);
    let memory = fake.holding(0, &data);
    // Nothing is asked about it any more.
    registry.register(memory.range()).unwrap();
    let crc = put(&segment, &memory, &registry).unwrap();
    let calls = [
        ("cuMemHostAlloc", OUT_OF_MEMORY, 1),
        ("cuStreamCreate", OUT_OF_MEMORY, 4),
        ("cuCtxPushCurrent", ILLEGAL_ADDRESS, 6),
        ("cuMemcpyDtoHAsync", INVALID_VALUE, 3),
        ("cuMemcpyDtoHAsync", ILLEGAL_ADDRESS, 3),
        ("cuMemcpyHtoDAsync", INVALID_VALUE, 3),
        ("cuMemcpyHtoDAsync", ILLEGAL_ADDRESS, 3),
        // One for the put, one for the get.
        ("cuStreamIsCapturing", CAPTURE_IMPLICIT, 2),
        ("cuEventCreate", OUT_OF_MEMORY, 2),
        ("cuEventRecord", ILLEGAL_ADDRESS, 2),
        ("cuStreamWaitEvent", ILLEGAL_ADDRESS, 8),
        ("cuEventDestroy", ILLEGAL_ADDRESS, 2),
        // Four for the put, four for the get.
        ("cuStreamSynchronize", ILLEGAL_ADDRESS, 8),
    ];
    for (call, code, most) in calls {
        for after in 0..most {
            without_rings(&fake);
            fake.fail(call, code, after, 1);
            let outcomes = [put(&segment, &memory, &registry), get(&segment, &memory, &registry)];
            let failures: Vec<DeviceError> = outcomes
                .into_iter()
                .filter_map(Result::err)
                .map(|error| match error {
                    CopyError::Device(error) => error,
                    other => panic!("{call} {after}: {other}"),
                })
                .collect();
            fake.mend();
            assert_eq!(failures.len(), 1, "{call} {after}");
            assert_eq!((failures[0].call, failures[0].code, failures[0].device), (call, code, 0));
            assert!(failures[0].to_string().contains(failures[0].name));
            // All is as it was.
            assert_eq!(put(&segment, &memory, &registry).unwrap(), crc, "{call} {after}");
            assert_eq!(get(&segment, &memory, &registry).unwrap(), crc, "{call} {after}");
            assert!(memory.read() == data);
            assert_eq!((fake.count("pinned"), fake.count("streams")), (1, 4), "{call} {after}");
            assert_eq!((fake.count("contexts"), fake.count("strays")), (0, 0), "{call} {after}");
        }
    }
}

#[test]
fn what_cannot_be_waited_for_is_never_used_again() {
    let fake = FakeCuda::load();
    without_rings(&fake);
    let (segment, registry) = (segment(), Registry::new());
    let memory = fake.holding(0, &pattern(MIB, 6));
    fake.fail("cuStreamSynchronize", ILLEGAL_ADDRESS, 0, -1);
    assert!(matches!(put(&segment, &memory, &registry), Err(CopyError::Device(_))));
    fake.mend();
    assert_eq!(fake.count("pinned"), 1, "the device may still be at it");
    put(&segment, &memory, &registry).unwrap();
    assert_eq!(fake.count("pinned"), 2);
}

#[test]
fn nothing_is_under_way_once_a_call_has_failed() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let data = pattern(4 * MIB, 8);
    segment.mapping().write(Rid(2), 0, &[Source::new(&data)]).unwrap();
    fake.delay(3000);
    for call in ["cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"] {
        let memory = fake.alloc(0, data.len());
        let range = memory.range();
        registry.register(range).unwrap();
        let sources: Vec<_> =
            (0..40).map(|at| Source::foreign(memory.part(at * 5000, 5000), &registry).unwrap()).collect();
        let mut destinations: Vec<_> =
            (0..40).map(|at| Destination::foreign(memory.part(at * 5000, 5000), &registry).unwrap()).collect();
        fake.fail(call, INVALID_VALUE, 30, 1);
        let failures = [
            segment.mapping().write(Rid(4), 8 << 20, &sources).is_err(),
            segment.mapping().read(Rid(2), 0, &mut destinations, Verify::Skip).is_err(),
        ];
        assert_eq!(failures.iter().filter(|failed| **failed).count(), 1, "{call}");
        // Its caller may do so now; a copy that is done later finds it gone.
        drop(memory);
        registry.unregister(range.addr());
    }
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(fake.count("strays"), 0);
}

#[test]
fn many_threads_and_devices_share_what_is_pinned() {
    let fake = FakeCuda::load();
    fake.delay(100);
    let registry = Registry::new();
    std::thread::scope(|scope| {
        for thread in 0..12_u64 {
            let (fake, registry) = (&fake, &registry);
            scope.spawn(move || {
                let segment = segment();
                for round in 0..6 {
                    let data = pattern(300_000 + 90_001 * thread as usize, thread * 100 + round);
                    let device = (thread + round) as i32 % 2;
                    let (from, to) = (fake.holding(device, &data), fake.alloc(1 - device, data.len()));
                    let crc = put(&segment, &from, registry).unwrap();
                    assert_eq!(crc, crc32c(&data));
                    assert_eq!(get(&segment, &to, registry).unwrap(), crc);
                    assert!(to.read() == data);
                }
            });
        }
    });
    assert_eq!((fake.count("strays"), fake.count("device")), (0, 0));
    assert!(fake.count("pinned") <= 32);
}

#[test]
fn memory_that_processors_can_use_is_used_directly() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let memory = fake.alloc_managed(100_000);
    let data = pattern(100_000, 9);
    memory.write(0, &data);
    let copies = fake.count("copies");
    for registered in [false, true] {
        if registered {
            registry.register(memory.range()).unwrap();
        }
        let crc = put(&segment, &memory, &registry).unwrap();
        assert_eq!(crc, crc32c(&data));
        memory.write(0, &[0; 100_000]);
        get(&segment, &memory, &registry).unwrap();
        assert!(memory.read() == data);
    }
    assert_eq!(fake.count("copies"), copies);
}

#[test]
fn ordinary_memory_is_not_held_up_by_a_driver_that_fails() {
    let fake = FakeCuda::load();
    let (segment, registry) = (segment(), Registry::new());
    let memory = fake.alloc(0, 5000);
    fake.fail("cuPointerGetAttributes", ILLEGAL_ADDRESS, 0, -1);
    let mut bytes = pattern(5000, 4);
    let expected = crc32c(&bytes);
    let crc = segment.mapping().write(Rid(2), 0, &[Source::foreign(host(&mut bytes), &registry).unwrap()]).unwrap();
    assert_eq!(crc, expected);
    // Of what the kernel cannot reach either, the driver's reason is told.
    let asked = |error: &DeviceError| error.call == "cuPointerGetAttributes" && error.code == ILLEGAL_ADDRESS;
    assert!(matches!(put(&segment, &memory, &registry), Err(CopyError::Device(e)) if asked(&e)));
    assert!(matches!(get(&segment, &memory, &registry), Err(CopyError::Device(e)) if asked(&e)));
    assert!(matches!(registry.register(memory.range()), Err(RegisterError::Device(e)) if asked(&e)));
    fake.mend();
    let nothing = memory.part(1 << 40, 100);
    let write = segment.mapping().write(Rid(4), 0, &[Source::foreign(nothing, &registry).unwrap()]);
    assert!(matches!(write, Err(CopyError::Fault { .. })));
}

#[test]
fn stand_ins_have_the_devices_bytes_and_bring_them_back() {
    let fake = FakeCuda::load();
    fake.delay(300);
    let registry = Registry::new();
    let data = pattern(MIB, 11);
    let (from, to) = (fake.holding(0, &data[..600_000]), fake.alloc(1, 600_000));
    let mut bounce = Bounce::new();
    let parts = [Source::new(&data[600_000..700_000]), Source::foreign(from.range(), &registry).unwrap()];
    assert!(Bounce::is_needed_for_sources(&parts) && !Bounce::is_needed_for_sources(&parts[..1]));
    let stand_ins = bounce.sources(&parts).unwrap();
    assert!(!Bounce::is_needed_for_sources(&stand_ins));
    let sum = crc32c(&[&data[600_000..700_000], &data[..600_000]].concat());
    assert_eq!(crc_of_sources(0, &stand_ins, 0, 700_000).unwrap(), sum);

    let segment = segment();
    segment.mapping().write(Rid(2), 0, &parts).unwrap();
    let mut head = vec![0; 100_000];
    let mut parts = [Destination::new(&mut head), Destination::foreign(to.range(), &registry).unwrap()];
    assert!(Bounce::is_needed_for_destinations(&parts));
    for (start, end) in [(0, 50_000), (50_000, 300_000), (300_000, 700_000)] {
        let mut chunk = split_destinations(&mut parts, start, end);
        let mut stand_ins = bounce.destinations(&mut chunk);
        assert!(!Bounce::is_needed_for_destinations(&stand_ins));
        segment.mapping().read(Rid(2), start, &mut stand_ins, Verify::Skip).unwrap();
        bounce.deliver(&mut chunk).unwrap();
    }
    assert!(head == data[600_000..700_000] && to.read() == data[..600_000]);
    drop(from);
    let gone = bounce.sources(&[Source::foreign(to.part(500_000, 200_000), &registry).unwrap()]).map(|_| ());
    assert!(gone.is_ok(), "not a device's: {gone:?}");
}

#[test]
fn a_piece_is_copied_to_another_wherever_both_are() {
    let fake = FakeCuda::load();
    fake.delay(300);
    let (registry, mut bounce) = (Registry::new(), Bounce::new());
    for len in [1, 5000, 3 * MIB + 1] {
        let data = pattern(len, 13);
        let (mut from_host, mut into_host) = (data.clone(), vec![0; len]);
        let (from_device, into_device) = (fake.holding(0, &data), fake.alloc(1, len));
        let sources =
            [host(&mut from_host), from_device.range()].map(|range| Source::foreign(range, &registry).unwrap());
        for (nth, source) in sources.iter().enumerate() {
            into_host.fill(0);
            bounce.copy(source, &mut Destination::foreign(host(&mut into_host), &registry).unwrap()).unwrap();
            assert!(into_host == data, "{len} bytes of source {nth} to the host");
            into_device.write(0, &vec![0; len]);
            bounce.copy(source, &mut Destination::foreign(into_device.range(), &registry).unwrap()).unwrap();
            assert!(into_device.read() == data, "{len} bytes of source {nth} to the device");
        }
    }
    let mut kept = vec![9; 5000];
    // SAFETY: page 1 is nobody's.
    let nowhere = Source::foreign(unsafe { ForeignRange::new(4096, 5000) }, &registry).unwrap();
    let device = fake.holding(0, &kept);
    assert!(bounce.copy(&nowhere, &mut Destination::foreign(device.range(), &registry).unwrap()).is_err());
    assert!(bounce.copy(&nowhere, &mut Destination::new(&mut kept)).is_err());
    assert!(device.read() == kept && kept == [9; 5000]);
}
