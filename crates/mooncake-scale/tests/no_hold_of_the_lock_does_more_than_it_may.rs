//! What `mooncake-scale` measures in time, counted: whatever waits or breaks in a pool, one hold of the core's lock
//! does so much of it and no more, and looks at no more for that.

use mooncake_core::STEP_OBJECTS;
use mooncake_scale::cases::CASES;
use mooncake_scale::pool::{Pool, REQUEST, Size, log_in};
use mooncake_scale::{Figure, Figures};

/// Far more than one hold may look at, so that whatever grows with their number is seen.
const OBJECTS: u64 = 100_000;

/// The answers to a request's 512 keys that waited, a step of what is done for them, and a few words of who asked. A
/// request that is answered at once leaves no more than that of its keys.
const LEFT: usize = 512 + STEP_OBJECTS + 16;

/// What leaves more than that.
const LEFT_MORE: &[(&str, usize)] = &[
    // Two records each: they have ended, and no writer touches them any more. With one message each to an owner.
    ("abort", 3 * 512 + 16),
    // One message for each replica of one frame, and for each that an owner that is back has not looked at.
    ("512 replicas are reported bad", 512),
    ("a session comes back, 4,096 replicas", 4_096 + STEP_OBJECTS),
    // One record for each segment.
    ("beat, 1,000 segments", 1_000 + STEP_OBJECTS),
    ("an owner of 1,000 segments takes an epoch", 1_000 + STEP_OBJECTS),
    ("a session comes back without any of its 1,000 segments", 1_000 + STEP_OBJECTS),
];

/// Entries of the core's tables that one hold looks at, each as often as it does: some twenty for each of a request's
/// 512 keys.
const TOUCHED: u32 = 20 * REQUEST as u32;

/// What looks at more than that.
const TOUCHED_MORE: &[(&str, u32)] = &[
    // Evictions beside the keys themselves, with all of their neighbours in lists.
    ("put_start", 50 * REQUEST as u32),
    ("put_end", 30 * REQUEST as u32),
    ("pin", 30 * REQUEST as u32),
    ("abort", 25 * REQUEST as u32),
    // As many puts as four requests have.
    ("beat, 2,048 puts", 4 * 6 * REQUEST as u32 + 64),
    // Two groups of 1,024 beside the keys.
    ("exists, 512 keys of large groups", 40 * REQUEST as u32),
    // Ten looks at each of 1,200 segments.
    ("another epoch", 12_000),
    ("a session comes back without any of its 1,000 segments", 12_000),
    // Twelve at each of 1,024.
    ("tick, 10 owners of 1,000 segments", 13_000),
    // As many objects of several replicas as a step looks at, and the objects of another kind that it began with.
    ("tick, behind a large owner", 11_000),
    // One look at each segment.
    ("figures for the metrics, 10,000 segments", 12_000),
];

/// The bar of an operation.
fn bar<T: Copy>(of: &Figure, usual: T, more: &[(&str, T)]) -> T {
    more.iter().find(|(operation, _)| of.operation.starts_with(operation)).map_or(usual, |(_, bar)| *bar)
}

#[test]
fn whatever_waits_or_breaks_the_rest_of_it_is_left_to_later_holds() {
    let size = Size { objects: OBJECTS, segments: 200, replicas: 1 };
    let mut pool = Pool::new(size, log_in(None).unwrap());
    pool.fill();
    CASES.iter().for_each(|case| case(&mut pool));
    let Figures(figures) = Figures::of(&[pool.holds]);
    let cut = || figures.iter().filter(|figure| !figure.operation.contains("older client"));
    let left: Vec<&Figure> = cut().filter(|figure| figure.steps > bar(figure, LEFT, LEFT_MORE)).collect();
    let touched: Vec<&Figure> = cut().filter(|figure| figure.touched > bar(figure, TOUCHED, TOUCHED_MORE)).collect();
    let is_cut = left.is_empty() && touched.is_empty();
    assert!(is_cut, "some leave too much behind: {left:#?}; some look at too much: {touched:#?}");
}
