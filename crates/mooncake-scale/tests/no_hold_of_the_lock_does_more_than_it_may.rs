//! What `mooncake-scale` measures in time, counted: whatever waits or breaks in a pool, one hold of the core's lock
//! does so much of it and no more.

use mooncake_core::STEP;
use mooncake_scale::cases::CASES;
use mooncake_scale::pool::{Pool, Size, log_in};
use mooncake_scale::{Figure, Figures};

/// The answers to a request's 512 keys that waited, a step of what is done for them, and a few words of who asked. A
/// request that is answered at once leaves no more than that of its keys.
const MOST: usize = 512 + STEP + 16;

/// Puts that are given up leave two records each: they have ended, and no writer touches them any more.
const ABORTED: usize = 2 * 512 + 16;

#[test]
fn whatever_waits_or_breaks_the_rest_of_it_is_left_to_later_holds() {
    let size = Size { objects: 100_000, segments: 200, replicas: 1 };
    let mut pool = Pool::new(size, log_in(None).unwrap());
    pool.fill();
    CASES.iter().for_each(|case| case(&mut pool));
    let Figures(figures) = Figures::of(&[pool.holds]);
    let cut = figures.iter().filter(|figure| !figure.operation.contains("older client"));
    let most = |figure: &Figure| if figure.operation.starts_with("abort") { ABORTED } else { MOST };
    let over: Vec<&Figure> = cut.filter(|figure| figure.steps > most(figure)).collect();
    assert!(over.is_empty(), "{over:#?}");
}
