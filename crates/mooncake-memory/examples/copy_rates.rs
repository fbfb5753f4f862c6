//! Rates of writes to and reads from a segment, beside a plain memcpy in the
//! same run. Run with `--release`.

use std::hint::black_box;
use std::time::Instant;

use mooncake_ids::Rid;
use mooncake_memory::{Destination, SegmentMemory, SegmentOptions, Source, Verify};

const AREA: usize = 64 << 20;

fn main() {
    let segment = SegmentMemory::create(AREA as u64, SegmentOptions::default()).expect("64 MiB of memory");
    segment.populate_step(u64::MAX).expect("64 MiB of memory");
    let writer = segment.mapping();
    let reader = writer.remap(false).expect("a second mapping");
    let source: Vec<u8> = (0..AREA).map(|i| (i * 7 + i / 1000) as u8).collect();
    let mut destination = vec![1_u8; AREA];
    println!(
        "{:>8}  {:>10}  {:>16}  {:>16}  {:>16}  {:>16}",
        "bytes", "memcpy", "write", "read", "unchecked read", "view"
    );
    for size in [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20] {
        // Small sizes stay on one spot, as a hot value does; large ones walk through memory that is in no cache.
        let spots = if size <= 64 << 10 { 1 } else { AREA / size };
        let at = |i: usize| (i % spots) * size;
        let mut rid = Rid(2);
        let mut crcs = vec![0; spots];
        let mut figures: [Vec<f64>; 5] = Default::default();
        for _ in 0..9 {
            let copy = time(size, |i| {
                destination[at(i)..][..size].copy_from_slice(black_box(&source[at(i)..][..size]));
                black_box(&mut destination);
            });
            let write = time(size, |i| {
                let parts = [Source::new(&source[at(i)..][..size])];
                crcs[i % spots] = writer.write(rid, at(i) as u64, &parts).expect("a write");
            });
            let mut read_with = |verify: fn(u32) -> Verify| {
                time(size, |i| {
                    let parts = &mut [Destination::new(&mut destination[at(i)..][..size])];
                    reader.read(rid, at(i) as u64, parts, verify(crcs[i % spots])).expect("a read");
                })
            };
            let read = read_with(Verify::Crc);
            let unchecked = read_with(|_| Verify::Skip);
            let view = time(size, |i| {
                black_box(reader.crc(at(i) as u64, size as u64).expect("a sum"));
            });
            for (list, figure) in figures.iter_mut().zip([copy, write, read, unchecked, view]) {
                list.push(figure);
            }
            rid.0 += 2;
        }
        let [copy, write, read, unchecked, view] = figures.map(median);
        let show = |ns: f64| format!("{:>6.2} ({:>3.0} %)", size as f64 / ns, 100.0 * copy / ns);
        println!(
            "{size:>8}  {:>10.2}  {:>16}  {:>16}  {:>16}  {:>16}  write {write:.0} ns, read {read:.0} ns",
            size as f64 / copy,
            show(write),
            show(read),
            show(unchecked),
            show(view),
        );
    }
    println!("GB/s, and percent of memcpy");
}

/// Nanoseconds of one call, over about 128 MiB of them.
fn time(size: usize, mut call: impl FnMut(usize)) -> f64 {
    let rounds = ((128 << 20) / size).max(2);
    let start = Instant::now();
    for i in 0..rounds {
        call(i);
    }
    start.elapsed().as_nanos() as f64 / rounds as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
