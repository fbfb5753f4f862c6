//! What `mooncake-scale` measures in time, counted: whatever waits or breaks in a pool, one hold of the core's lock does so much of
//! it and no more.

use mooncake_scale::cases::CASES;
use mooncake_scale::pool::{Pool, Size};
use mooncake_scale::{Figure, Figures, log_in};

/// A request's 512 keys, each placed or ended; the answers to as many that waited; the 256 objects that are evicted for them; and a
/// few words of who asked.
const MOST: usize = 512 + 512 + 256 + 16;

#[test]
fn whatever_waits_or_breaks_the_rest_of_it_is_left_to_later_holds() {
    let size = Size { objects: 100_000, segments: 200, replicas: 1 };
    let mut pool = Pool::new(size, log_in(None).unwrap());
    pool.fill();
    CASES.iter().for_each(|case| case(&mut pool));
    let Figures(figures) = Figures::of(&[pool.holds]);
    let cut = figures.iter().filter(|figure| !figure.operation.contains("older client"));
    let over: Vec<&Figure> = cut.filter(|figure| figure.steps > MOST).collect();
    assert!(over.is_empty(), "{over:#?}");
}
