//! Requests that change nothing durable. They protect what they found, or refresh how lately it was used.
//!
//! Room for the answer is made when they are read, so that the core is not held for that; and those of many keys take
//! several steps with it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mooncake_core::{Absent, Core, SegmentNo};
use mooncake_ids::SessionId;
use mooncake_wire::message::{self, reply};
use mooncake_wire::{UnpackedKeys, unpack_keys};

use super::SLICE;
use super::convert::{self, Bad};
use super::core_driver::CoreDriver;
use super::requests::{CountedReply, Tally, bad_keys};

/// Bytes of keys that one step with the core is about, and one key more: each is hashed, and compared with that of an
/// object that has left the caches.
const SLICE_BYTES: usize = 256 << 10;

/// A query.
#[derive(Debug)]
pub enum Query<'m> {
    /// Existence.
    Exists(Exists<'m>),
    /// Where objects are, for a get.
    Lookup(Objects<'m>),
    /// Existence, with replicas.
    Describe(Objects<'m>),
    /// How to reach segments.
    Segments(BTreeSet<u32>),
    /// Whether the master is there.
    Ping,
}

/// Which keys there are.
#[derive(Debug)]
pub struct Exists<'m> {
    keys: UnpackedKeys<'m>,
    found: Vec<u8>,
    /// If they were asked for.
    sizes: Option<Vec<u64>>,
}

/// What there is under some keys.
#[derive(Debug)]
pub struct Objects<'m> {
    keys: UnpackedKeys<'m>,
    found: Vec<message::Object>,
}

impl<'m> Objects<'m> {
    fn read(keys: &'m Option<message::Keys>) -> Result<Objects<'m>, Bad> {
        let keys = unpack_keys(keys).map_err(bad_keys)?;
        Ok(Objects { found: Vec::with_capacity(keys.len()), keys })
    }
}

impl<'m> Query<'m> {
    pub(super) fn exists(ask: &'m message::Exists) -> Result<Query<'m>, Bad> {
        let keys = unpack_keys(&ask.keys).map_err(bad_keys)?;
        let sizes = ask.sizes.then(|| Vec::with_capacity(keys.len()));
        Ok(Query::Exists(Exists { found: Vec::with_capacity(keys.len()), sizes, keys }))
    }

    pub(super) fn lookup(ask: &'m message::Lookup) -> Result<Query<'m>, Bad> {
        Objects::read(&ask.keys).map(Query::Lookup)
    }

    pub(super) fn describe(ask: &'m message::Describe) -> Result<Query<'m>, Bad> {
        Objects::read(&ask.keys).map(Query::Describe)
    }

    pub(super) fn segments(ask: &message::Segments) -> Query<'m> {
        // Each once, however often it is named.
        Query::Segments(ask.numbers.iter().copied().collect())
    }

    /// Asks the core, which others have between two steps.
    pub fn run<D: CoreDriver>(self, driver: &D, session: SessionId) -> CountedReply {
        match self {
            Query::Exists(exists) => exists.run(driver, session),
            Query::Lookup(asked) => lookup(asked, driver, session),
            Query::Describe(asked) => describe(asked, driver, session),
            Query::Segments(numbers) => {
                let numbers: Vec<u32> = numbers.into_iter().collect();
                let mut segments = Vec::with_capacity(numbers.len());
                for some in numbers.chunks(SLICE) {
                    driver.read(|core, _| {
                        let known = |number: SegmentNo| {
                            let segment = core.segment(number).map(|view| convert::segment(&view));
                            segment.or_else(|| core.tier(number).map(|view| convert::tier(&view)))
                        };
                        segments.extend(some.iter().filter_map(|number| known(SegmentNo(*number))));
                    });
                }
                CountedReply { body: reply::Body::Segments(message::SegmentsReply { segments }), tally: None }
            }
            Query::Ping => CountedReply { body: reply::Body::Done(message::Done {}), tally: None },
        }
    }
}

impl Exists<'_> {
    fn run<D: CoreDriver>(self, driver: &D, session: SessionId) -> CountedReply {
        let Exists { keys, mut found, mut sizes } = self;
        let tally = Tally { items: keys.len(), ..Tally::default() };
        let mut away = false;
        in_slices(keys, |some| {
            driver.read(|core, now| {
                core.exists(now, core.sight(session), some, |size| {
                    away |= size == Err(Absent::OwnersAway);
                    found.push(u8::from(size.is_ok()));
                    if let Some(sizes) = &mut sizes {
                        sizes.push(size.unwrap_or(0));
                    }
                });
            });
        });
        let reply = message::ExistsReply { found: Bytes::from(found), sizes: sizes.unwrap_or_default(), away };
        CountedReply::counted(reply::Body::Exists(reply), tally)
    }
}

fn lookup<D: CoreDriver>(asked: Objects<'_>, driver: &D, session: SessionId) -> CountedReply {
    let Objects { keys, found: mut objects } = asked;
    let mut tally = Tally { items: keys.len(), ..Tally::default() };
    let mut away = false;
    in_slices(keys, |some| {
        driver.read(|core, now| {
            core.lookup(now, session, some, |found| {
                match &found {
                    Ok(found) => tally.hit_bytes += found.size,
                    Err(absent) => {
                        tally.failed += 1;
                        away |= *absent == Absent::OwnersAway;
                    }
                }
                objects.push(convert::object(found.ok()));
            });
        });
    });
    CountedReply::counted(reply::Body::Lookup(message::LookupReply { objects, away }), tally)
}

fn describe<D: CoreDriver>(asked: Objects<'_>, driver: &D, session: SessionId) -> CountedReply {
    let Objects { keys, found: mut objects } = asked;
    let tally = Tally { items: keys.len(), ..Tally::default() };
    let mut segments: BTreeMap<u32, Option<message::SegmentName>> = BTreeMap::new();
    in_slices(keys, |some| {
        driver.read(|core, now| {
            let from = objects.len();
            core.describe(now, core.sight(session), some, |found| objects.push(convert::object(found)));
            let extents = objects[from..].iter().flat_map(|object| &object.replicas).flat_map(|it| &it.extents);
            for number in extents.map(|extent| extent.segment) {
                segments.entry(number).or_insert_with(|| segment_name(core, number));
            }
        });
    });
    let segments = segments.into_values().flatten().collect();
    let reply = message::DescribeReply { objects, segments };
    CountedReply::counted(reply::Body::Describe(reply), tally)
}

fn segment_name(core: &Core, number: u32) -> Option<message::SegmentName> {
    if let Some(view) = core.segment(SegmentNo(number)) {
        let name = view.name.to_owned();
        return Some(message::SegmentName { number, name, ..message::SegmentName::default() });
    }
    let view = core.tier(SegmentNo(number))?;
    Some(message::SegmentName {
        number,
        name: view.spec.name.clone(),
        tier: true,
        shared_folder: view.shared_folder().unwrap_or_default(),
        file_blocks: view.spec.file_blocks,
    })
}

/// Does something with as many keys at a time as one step with the core may be about. Once, where there are none.
fn in_slices(mut keys: UnpackedKeys<'_>, mut step: impl FnMut(Slice<'_, '_>)) {
    loop {
        step(Slice { keys: &mut keys, left: SLICE, bytes: SLICE_BYTES });
        if keys.len() == 0 {
            return;
        }
    }
}

/// Keys of one step.
struct Slice<'a, 'm> {
    keys: &'a mut UnpackedKeys<'m>,
    left: usize,
    bytes: usize,
}

impl<'m> Iterator for Slice<'_, 'm> {
    type Item = &'m [u8];

    #[inline]
    fn next(&mut self) -> Option<&'m [u8]> {
        if self.left == 0 || self.bytes == 0 {
            return None;
        }
        let key = self.keys.next()?;
        self.left -= 1;
        self.bytes = self.bytes.saturating_sub(key.len());
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::convert::Infallible;

    use mooncake_core::{Core, Effects, Time};
    use mooncake_wire::message::{Exists, Lookup, Segments};
    use mooncake_wire::pack_keys;

    use super::super::testbed::Testbed;
    use super::*;

    /// How often the core is asked.
    struct Counting {
        testbed: RefCell<Testbed>,
        reads: Cell<usize>,
    }

    impl CoreDriver for Counting {
        type Closed = Infallible;

        fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
            self.reads.set(self.reads.get() + 1);
            self.testbed.read(ask)
        }

        fn apply<R>(&self, _: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Infallible> {
            unreachable!("a query changes nothing")
        }
    }

    #[test]
    fn a_query_of_many_keys_leaves_the_core_to_others_between_its_steps() {
        let driver = Counting { testbed: RefCell::new(Testbed::new()), reads: Cell::new(0) };
        let owner = driver.testbed.borrow_mut().owner();
        let steps = |query: Query<'_>| {
            let before = driver.reads.get();
            let reply = query.run(&driver, owner.session);
            (driver.reads.get() - before, reply)
        };
        for (count, expected) in [(0, 1), (1, 1), (SLICE, 1), (SLICE + 1, 2), (3 * SLICE, 3)] {
            let names: Vec<String> = (0..count).map(|number| format!("key-{number}")).collect();
            let keys = || Some(pack_keys(&names));
            let exists = Exists { keys: keys(), sizes: true };
            let (taken, reply) = steps(Query::exists(&exists).unwrap());
            let reply::Body::Exists(told) = reply.body else { panic!("{reply:?}") };
            assert_eq!((taken, told.found.len(), told.sizes.len()), (expected, count, count));
            let lookup = Lookup { keys: keys() };
            let (taken, reply) = steps(Query::lookup(&lookup).unwrap());
            let reply::Body::Lookup(told) = reply.body else { panic!("{reply:?}") };
            assert_eq!((taken, told.objects.len()), (expected, count));
            let describe = message::Describe { keys: keys() };
            let (taken, reply) = steps(Query::describe(&describe).unwrap());
            let reply::Body::Describe(told) = reply.body else { panic!("{reply:?}") };
            assert_eq!((taken, told.objects.len()), (expected, count));
            let segments = Segments { numbers: (1..=count as u32).collect() };
            let (taken, reply) = steps(Query::segments(&segments));
            let reply::Body::Segments(told) = reply.body else { panic!("{reply:?}") };
            assert_eq!((taken, told.segments.len()), (expected.min(count), count.min(1)), "one is there");
        }
        let long: Vec<String> = (0..20).map(|number| format!("{number:>60000}")).collect();
        let exists = Exists { keys: Some(pack_keys(&long)), sizes: false };
        let (taken, _) = steps(Query::exists(&exists).unwrap());
        assert_eq!(taken, 4, "five long keys at a time");
    }
}
