//! Requests that change nothing durable. They protect what they found, or refresh how lately it was used.
//!
//! Room for the answer is made when they are read, so that the core is not held for that.

use std::collections::BTreeSet;

use bytes::Bytes;
use mooncake_core::{Core, SegmentNo, SessionId, Time};
use mooncake_wire::message::{self, reply};
use mooncake_wire::{UnpackedKeys, unpack_keys};

use super::convert::{self, Bad};
use super::requests::{Answer, Tally, bad_keys};

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

    /// Asks the core.
    pub fn run(self, core: &mut Core, now: Time, session: SessionId) -> Answer {
        match self {
            Query::Exists(exists) => exists.run(core, now),
            Query::Lookup(asked) => lookup(asked, core, now, session),
            Query::Describe(asked) => describe(asked, core, now),
            Query::Segments(numbers) => {
                let known = numbers.into_iter().filter_map(|number| core.segment(SegmentNo(number)));
                let segments = known.map(|view| convert::segment(&view)).collect();
                Answer { body: reply::Body::Segments(message::SegmentsReply { segments }), tally: None }
            }
            Query::Ping => Answer { body: reply::Body::Done(message::Done {}), tally: None },
        }
    }
}

impl Exists<'_> {
    fn run(self, core: &mut Core, now: Time) -> Answer {
        let Exists { keys, mut found, mut sizes } = self;
        let tally = Tally { items: keys.len(), ..Tally::default() };
        core.exists(now, keys, |size| {
            found.push(u8::from(size.is_some()));
            if let Some(sizes) = &mut sizes {
                sizes.push(size.unwrap_or(0));
            }
        });
        let reply = message::ExistsReply { found: Bytes::from(found), sizes: sizes.unwrap_or_default() };
        Answer::counted(reply::Body::Exists(reply), tally)
    }
}

fn lookup(asked: Objects<'_>, core: &mut Core, now: Time, session: SessionId) -> Answer {
    let Objects { keys, found: mut objects } = asked;
    let mut tally = Tally { items: keys.len(), ..Tally::default() };
    core.lookup(now, session, keys, |found| {
        match &found {
            Some(found) => tally.hit_bytes += found.size,
            None => tally.failed += 1,
        }
        objects.push(convert::object(found));
    });
    Answer::counted(reply::Body::Lookup(message::LookupReply { objects }), tally)
}

fn describe(asked: Objects<'_>, core: &mut Core, now: Time) -> Answer {
    let Objects { keys, found: mut objects } = asked;
    let tally = Tally { items: keys.len(), ..Tally::default() };
    let mut numbers = BTreeSet::new();
    core.describe(now, keys, |found| {
        numbers.extend(found.iter().flat_map(|found| found.replicas()).map(|replica| replica.extent.segment));
        objects.push(convert::object(found));
    });
    let named = numbers.iter().filter_map(|number| core.segment(*number));
    let segments = named.map(|view| message::SegmentName { number: view.number.0, name: view.name.to_owned() });
    let segments = segments.collect();
    Answer::counted(reply::Body::Describe(message::DescribeReply { objects, segments }), tally)
}
