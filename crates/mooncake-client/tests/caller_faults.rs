//! The caller's mistakes are errors with a reason, never a signal.

use mooncake_client::{
    Destination, ErrorKind, ForeignRange, GetInto, GetRanges, Health, PutItem, PutOptions, PutRanges, ReadRange,
    Refused, RunsOut, Source, Store, StoreError, WriteRange,
};

use crate::cluster::{Cluster, MIB, put, value};

/// Memory of this process at a place where nobody else maps anything, so that
/// it stays gone once it is freed.
struct Pages {
    addr: usize,
    bytes: usize,
}

impl Pages {
    fn map(slot: usize, bytes: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let wanted = std::ptr::with_exposed_provenance_mut(0x5000_0000_0000 + (slot << 32));
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a fresh mapping that replaces none and that nothing points to.
        let mapped = unsafe { mmap_anonymous(wanted, bytes, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap() };
        Self { addr: mapped.expose_provenance(), bytes }
    }

    /// One page less.
    fn free_page(&self, offset: usize) {
        // SAFETY: no reference to it exists.
        unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(self.addr + offset), 4096).unwrap() };
    }

    /// One page of it can only be read.
    fn protect_page(&self, offset: usize) {
        let page = std::ptr::with_exposed_provenance_mut(self.addr + offset);
        // SAFETY: no reference to it exists.
        unsafe { rustix::mm::mprotect(page, 4096, rustix::mm::MprotectFlags::READ).unwrap() };
    }

    /// Unmaps it; the address remains.
    fn free(self) -> usize {
        // SAFETY: no reference to it exists.
        unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(self.addr), self.bytes).unwrap() };
        self.addr
    }
}

fn range(addr: usize, len: usize) -> ForeignRange {
    // SAFETY: either nothing is mapped there, or a buffer that the test keeps and does not touch meanwhile.
    unsafe { ForeignRange::new(addr, len) }
}

fn stores() -> (Cluster, Store, Store) {
    let cluster = Cluster::start();
    let owner = cluster.store(32 * MIB);
    let tcp = cluster.tcp_store(0);
    (cluster, owner, tcp)
}

#[test]
fn unregistered_memory_is_copied() {
    let (_cluster, owner, tcp) = stores();
    for (nth, store) in [&owner, &tcp].into_iter().enumerate() {
        let bytes = value("foreign", 700_001);
        let key = format!("k{nth}");
        let source = Source::foreign(range(bytes.as_ptr().addr(), bytes.len()), store.registry()).unwrap();
        store.put(key.as_bytes(), &[source], &PutOptions::default()).unwrap();
        let mut into = vec![0u8; bytes.len()];
        let destination =
            Destination::foreign(range(into.as_mut_ptr().expose_provenance(), into.len()), store.registry()).unwrap();
        let mut items = [GetInto { key: key.as_bytes(), destinations: vec![destination] }];
        assert_eq!(store.get_into(&mut items).remove(0).unwrap(), Some(700_001));
        assert!(into == bytes);
    }
}

#[test]
fn registered_memory_is_used_and_forgotten() {
    let (_cluster, owner, _tcp) = stores();
    let bytes = value("registered", 2 << 20);
    let whole = range(bytes.as_ptr().expose_provenance(), bytes.len());
    owner.register(whole).unwrap();
    assert_eq!(owner.register(whole).unwrap_err().kind(), ErrorKind::InvalidParams);
    let source = Source::foreign(whole, owner.registry()).unwrap();
    owner.put(b"a", &[source], &PutOptions::default()).unwrap();
    assert!(owner.get(b"a").unwrap().unwrap() == bytes);
    owner.unregister(whole.addr()).unwrap();
    assert_eq!(owner.unregister(whole.addr()).unwrap_err().kind(), ErrorKind::InvalidParams);
}

#[test]
fn pieces_whose_sizes_add_up_to_more_than_can_be_counted_are_a_wrong_argument() {
    let (_cluster, owner, _tcp) = stores();
    for sizes in [[usize::MAX, 1], [1 << 63, 1 << 63], [usize::MAX, usize::MAX]] {
        let parts = sizes.map(|size| Source::foreign(range(4096, size), owner.registry()).unwrap());
        let error = owner.put(b"bad", &parts, &PutOptions::default()).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidParams && error.to_string().contains("add up"), "{error}");
    }
    assert_eq!(owner.exists(&["bad"]).unwrap(), [false]);
}

#[test]
fn memory_that_is_not_there_is_an_error_and_leaves_nothing_behind() {
    let (_cluster, owner, tcp) = stores();
    let gone = Pages::map(0, 1 << 20).free();
    assert_eq!(owner.register(range(gone, 1 << 20)).unwrap_err().kind(), ErrorKind::InvalidParams);
    for addr in [gone, 8, 0xffff_8000_0000_0000, 0x7fff_ffff_f000] {
        for store in [&owner, &tcp] {
            for size in [100, 4096, 1 << 20] {
                let source = Source::foreign(range(addr, size), store.registry()).unwrap();
                let error = store.put(b"bad", &[source], &PutOptions::default()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidParams, "{addr:#x} {size}: {error}");
                assert!(error.to_string().contains(" bytes at 0x") && error.to_string().contains("; pass "), "{error}");
            }
            // Part of it is there.
            let parts = [Source::new(b"good"), Source::foreign(range(addr, 5000), store.registry()).unwrap()];
            assert_eq!(store.put(b"bad", &parts, &PutOptions::default()).unwrap_err().kind(), ErrorKind::InvalidParams);
        }
    }
    // The key is free at once, and whole.
    put(&owner, "bad", 300_000).unwrap();
    for store in [&owner, &tcp] {
        let destination = Destination::foreign(range(gone, 300_000), store.registry()).unwrap();
        let error =
            store.get_into(&mut [GetInto { key: b"bad", destinations: vec![destination] }]).remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
        assert_eq!(store.get(b"bad").unwrap(), Some(value("bad", 300_000)));
    }
}

#[test]
fn registered_memory_that_was_freed_is_an_error() {
    let (_cluster, owner, _tcp) = stores();
    let pages = Pages::map(1, 1 << 20);
    let whole = range(pages.addr, pages.bytes);
    owner.register(whole).unwrap();
    pages.free();
    let source = Source::foreign(whole, owner.registry()).unwrap();
    let error = owner.put(b"a", &[source], &PutOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
}

#[test]
fn a_forked_child_is_refused_and_its_parent_unharmed() {
    let (_cluster, owner, _tcp) = stores();
    put(&owner, "a", 200_000).unwrap();
    let view = owner.view(&["a"]).remove(0).unwrap().unwrap();
    // SAFETY: the child calls the store, which refuses, and leaves without running anything else.
    match unsafe { libc::fork() } {
        0 => {
            let refused = owner.get(b"a").is_err_and(|error| error.kind() == ErrorKind::Forked)
                && owner.exists(&["a"]).is_err_and(|error| error.kind() == ErrorKind::Forked)
                && owner.health() == Health::MasterUnreachable
                && put(&owner, "b", 10).is_err_and(|error| error.kind() == ErrorKind::Forked);
            drop(view);
            owner.close();
            drop(owner);
            // SAFETY: ends the child at once; the test harness is the parent's.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child was not refused");
        }
    }
    assert!(view[..] == value("a", 200_000)[..]);
    assert_eq!(owner.get(b"a").unwrap(), Some(value("a", 200_000)));
    put(&owner, "b", 10).unwrap();
}

#[test]
fn an_interrupt_ends_a_call_that_waits() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let cluster = Cluster::start();
    let owner = cluster.store(8 * MIB);
    put(&owner, "a", 5 << 20).unwrap();
    // Looked up a moment ago: a put waits for that to lapse before it takes it.
    owner.exists(&["a"]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut options = cluster.options(0);
    let asked = stop.clone();
    options.interrupted = Some(Arc::new(move || asked.load(Ordering::SeqCst)));
    let writer = Store::connect(options).unwrap();
    let bytes = value("b", 5 << 20);
    std::thread::scope(|scope| {
        let raised = scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(200));
            stop.store(true, Ordering::SeqCst);
            std::time::Instant::now()
        });
        let error = writer.put(b"b", &[Source::new(&bytes)], &PutOptions::default()).unwrap_err();
        let ended = std::time::Instant::now();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        let late = ended.saturating_duration_since(raised.join().unwrap());
        assert!(late.as_millis() < 150, "{late:?}");
    });
}

#[test]
fn a_put_that_is_interrupted_while_it_copies_stores_nothing() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let cluster = Cluster::start();
    let owner = cluster.store(8 * MIB);
    let stop = Arc::new(AtomicBool::new(false));
    let mut options = cluster.options(0);
    let asked = stop.clone();
    options.interrupted = Some(Arc::new(move || asked.load(Ordering::SeqCst)));
    let writer = Store::connect(options).unwrap();
    // The paths are there, so that nothing has to wait.
    put(&writer, "warm", 2 << 20).unwrap();
    let bytes = value("b", 2 << 20);
    let pieces = [Source::new(&bytes)];
    let items: Vec<_> = [b"b1", b"b2"].iter().map(|key| PutItem { key: *key, value: &pieces }).collect();
    stop.store(true, Ordering::SeqCst);
    let outcomes = writer.put_batch(&items, &PutOptions::default());
    stop.store(false, Ordering::SeqCst);
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted)));
    assert_eq!(owner.exists(&["b1", "b2"]).unwrap(), [false, false]);
    // What it held is free again at once: the segment has no room for both otherwise.
    for key in ["c1", "c2", "c3"] {
        put(&writer, key, 2 << 20).unwrap();
    }
}

/// A buffer of so many bytes that is registered, in memory that goes on behind it.
fn registered(store: &Store, bytes: usize) -> (Vec<u8>, ForeignRange) {
    let mut memory = vec![0xcc_u8; 2 * bytes];
    let whole = range(memory.as_mut_ptr().expose_provenance(), memory.len());
    store.register(whole.part(0, bytes)).unwrap();
    (memory, whole)
}

fn is_untouched(memory: &[u8]) -> bool {
    // Stores change it behind the compiler's back.
    std::hint::black_box(memory).iter().all(|byte| *byte == 0xcc)
}

#[test]
fn a_range_that_runs_out_of_a_registered_buffer_is_refused_before_a_byte_moves() {
    let (_cluster, owner, tcp) = stores();
    put(&owner, "k", 4096).unwrap();
    for store in [&owner, &tcp] {
        let (memory, whole) = registered(store, 4096);
        for (from, len) in [(4, 4096), (0, 4097), (4095, 2), (4095, usize::MAX), (0, usize::MAX)] {
            let piece = range(whole.addr() + from, len);
            for refused in [
                Destination::foreign(piece, store.registry()).map(drop).unwrap_err(),
                Source::foreign(piece, store.registry()).map(drop).unwrap_err(),
            ] {
                let wanted = RunsOut { addr: piece.addr(), len, start: whole.addr(), end: whole.addr() + 4096 };
                assert_eq!(refused, wanted);
                assert_eq!(mooncake_client::StoreError::from(refused).kind(), ErrorKind::InvalidParams);
            }
        }
        // The last byte of it, and what begins behind it.
        for (from, len) in [(0, 4096), (4095, 1), (4096, 4096)] {
            let destination = Destination::foreign(whole.part(from, len), store.registry()).unwrap();
            let ranges = vec![ReadRange { offset: 0, destination }];
            let mut wanted = [GetRanges { key: b"k", ranges }];
            assert_eq!(store.get_ranges(&mut wanted).remove(0).remove(0).unwrap(), Some(len as u64));
        }
        drop(memory);
    }
}

#[test]
fn of_a_batch_only_what_runs_out_of_its_buffer_is_refused_and_none_of_it_moves() {
    let (_cluster, owner, _tcp) = stores();
    for key in ["a", "b", "c"] {
        put(&owner, key, 4096).unwrap();
    }
    let (memory, whole) = registered(&owner, 16_384);
    // Each object in two pieces; the second piece of b runs out.
    let pieces = |key: usize| match key {
        1 => [whole.part(4096, 2048), whole.part(16_380, 2048)],
        _ => [whole.part(key * 4096, 2048), whole.part(key * 4096 + 2048, 2048)],
    };
    let mut refused = Refused::default();
    let destinations = |pieces: [ForeignRange; 2]| Destination::all_foreign(&pieces, owner.registry());
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    let mut wanted: Vec<_> = (0..3)
        .filter_map(|at| Some(GetInto { key: keys[at], destinations: refused.sift(at, destinations(pieces(at)))? }))
        .collect();
    let outcomes = refused.merge(owner.get_into(&mut wanted));
    let got: Vec<_> = outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.kind())).collect();
    assert_eq!(got, [Ok(Some(4096)), Err(ErrorKind::InvalidParams), Ok(Some(4096))]);
    assert!(memory[..4096] == value("a", 4096) && memory[8192..12_288] == value("c", 4096));
    assert!(is_untouched(&memory[4096..8192]) && is_untouched(&memory[12_288..]));

    let mut refused = Refused::default();
    let sources = |pieces: [ForeignRange; 2]| Source::all_foreign(&pieces, owner.registry());
    let names = ["x".to_owned(), "y".to_owned(), "z".to_owned()];
    let values: Vec<_> = (0..3).filter_map(|at| refused.sift(at, sources(pieces(at)))).collect();
    let left = refused.others(&names);
    assert_eq!(left, ["x", "z"]);
    let items: Vec<_> = left.iter().zip(&values).map(|(key, value)| PutItem { key: key.as_bytes(), value }).collect();
    let outcomes = refused.merge(owner.put_batch(&items, &PutOptions::default()));
    let stored: Vec<_> = outcomes.into_iter().map(|outcome| outcome.map(drop).map_err(|error| error.kind())).collect();
    assert_eq!(stored, [Ok(()), Err(ErrorKind::InvalidParams), Ok(())]);
    assert_eq!(owner.exists(&names).unwrap(), [true, false, true]);
    assert_eq!(owner.get(b"z").unwrap(), Some(value("c", 4096)));
}

/// Keys of objects that a layer is read from or written to, with a block each: side by side in memory.
const BLOCKS: usize = 12;
const BLOCK: usize = 10_000;

fn block_keys(prefix: &str) -> Vec<String> {
    (0..BLOCKS).map(|nth| format!("{prefix}-{nth}")).collect()
}

/// What a batch of sessions has read into a layer, or written from it; none where it was a wrong argument.
fn moved(outcomes: Vec<Result<u64, StoreError>>) -> Vec<Option<u64>> {
    let kind = |error: StoreError| (error.kind() == ErrorKind::InvalidParams).then_some(()).ok_or(error);
    outcomes.into_iter().map(|outcome| outcome.map(Some).or_else(|error| kind(error).map(|()| None)).unwrap()).collect()
}

#[test]
fn of_the_blocks_of_a_layer_only_those_fail_in_sessions_that_touch_a_page_which_is_gone_or_read_only() {
    let (cluster, owner, tcp) = stores();
    let keys = block_keys("k");
    for key in &keys {
        put(&owner, key, BLOCK).unwrap();
    }
    for (slot, store) in [owner.clone(), cluster.store(0), tcp].iter().enumerate() {
        let registry = store.registry();
        let pages = Pages::map(2 + slot, 1 << 20);
        let whole = range(pages.addr, pages.bytes);
        store.register(whole).unwrap();
        store.start_get_sessions(&keys).into_iter().for_each(|started| started.unwrap());
        let read = || {
            let destination = |nth| Destination::foreign(whole.part(nth * BLOCK, BLOCK), registry).unwrap();
            let range = |nth| vec![ReadRange { offset: 0, destination: destination(nth) }];
            let mut items: Vec<_> = keys
                .iter()
                .enumerate()
                .map(|(nth, key)| GetRanges { key: key.as_bytes(), ranges: range(nth) })
                .collect();
            moved(store.read_in_sessions(&mut items))
        };
        let names = block_keys(&format!("new-{slot}"));
        let started = store.start_put_sessions(&names, &[BLOCK as u64; BLOCKS], &PutOptions::default());
        started.into_iter().for_each(|started| started.unwrap());
        let write = || {
            let source = |nth| Source::foreign(whole.part(nth * BLOCK, BLOCK), registry).unwrap();
            let range = |nth| vec![WriteRange { offset: 0, source: source(nth) }];
            let items: Vec<_> = names
                .iter()
                .enumerate()
                .map(|(nth, key)| PutRanges { key: key.as_bytes(), ranges: range(nth) })
                .collect();
            moved(store.write_in_sessions(&items))
        };
        let but = |missing: &[usize]| -> Vec<_> {
            (0..BLOCKS).map(|nth| (!missing.contains(&nth)).then_some(BLOCK as u64)).collect()
        };
        assert_eq!((read(), write()), (but(&[]), but(&[])));
        // In the middle of the ninth block; then on the border of two.
        pages.protect_page(20 * 4096);
        assert_eq!((read(), write()), (but(&[8]), but(&[])), "read-only");
        pages.free_page(7 * 4096);
        assert_eq!((read(), write()), (but(&[2, 3, 8]), but(&[2, 3])), "gone");
        for (nth, key) in keys.iter().enumerate().filter(|(nth, _)| ![2, 3, 8].contains(nth)) {
            let mut got = vec![0; BLOCK];
            whole.part(nth * BLOCK, BLOCK).read_into(&mut got).unwrap();
            assert!(got == value(key, BLOCK), "{key}");
        }
        store.abort_put_sessions(&names).into_iter().for_each(|aborted| aborted.unwrap());
        store.end_get_sessions(&keys).unwrap();
        store.unregister(whole.addr()).unwrap();
    }
}
