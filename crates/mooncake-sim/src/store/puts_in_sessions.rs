//! Put sessions: what the product's ask of a store, carried out in this world, and what their callers do.

use std::cell::Cell;
use std::ops::DerefMut;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mooncake_client::machine::call::Session as _;
use mooncake_client::machine::filling::Combine;
use mooncake_client::machine::progress::HeldReservations;
use mooncake_client::machine::put::{PutDriver as _, Unwritten};
use mooncake_client::machine::put_session::{self, Aborted, PutSessionDriver, PutSessions, Reserved, write_part};
use mooncake_client::{Cause, StoreError};
use mooncake_ids::SegmentUuid;
use mooncake_ids::{GRANULE, Rid};
use mooncake_wire::message::{Lookup, Object, Replica, reply, request};
use mooncake_wire::pack_keys;

use crate::memory::ledger::{checksum, checksum_of_both, word};
use crate::store::Store;
use crate::store::callers::LARGEST;
use crate::store::calls::LOOKUP_TIMEOUT;
use crate::store::links::Address;
use crate::store::puts::{Driver, Item, Options, ReservationOrigin, error_of};

/// A store's put sessions.
pub(crate) type Sessions = PutSessions<ReservationOrigin, MetSegments>;

/// Rids of replicas, each with its segment.
pub(crate) type MetSegments = Vec<(Rid, Option<Address>)>;

fn segment_of(met: &MetSegments, rid: Rid) -> Option<Address> {
    met.iter().find(|(other, _)| *other == rid).and_then(|(_, address)| address.clone())
}

/// Of what passes.
pub(crate) const NO_LINK: &str = "no link";

/// What an end or an abort has for options.
const NONE: Options = Options { replicas: 1, replace: false, pace: 300 };

impl PutSessionDriver for Driver<'_> {
    type MetSegments = MetSegments;
    const COMBINE: Combine = checksum_of_both;

    fn put_sessions(&self) -> impl DerefMut<Target = Sessions> {
        self.store.inner.put_sessions.borrow_mut()
    }

    fn hold(&self, rids: Vec<Rid>) -> Arc<HeldReservations> {
        let inner = &self.store.inner;
        inner.progress.borrow_mut().hold(inner.world.now(), rids)
    }

    fn met_segments(&self, origin: &ReservationOrigin, replicas: &[Replica]) -> MetSegments {
        let segment = |replica: &Replica| self.store.find_segment(origin.numbering, replica.extents[0].segment);
        replicas.iter().map(|replica| (Rid(replica.rid), segment(replica))).collect()
    }

    fn is_lost(&self, reserved: &Reserved<ReservationOrigin, MetSegments>, replica: &Replica) -> bool {
        segment_of(&reserved.met, Rid(replica.rid)).is_none() || !self.is_current(&reserved.origin)
    }

    async fn rids_of(&self, origin: &ReservationOrigin, keys: &[&[u8]]) -> Result<Vec<Vec<Rid>>, StoreError> {
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(keys)) });
        let reply = self.store.query(body, LOOKUP_TIMEOUT).await.map_err(|error| error_of(&error))?;
        let reply::Body::Lookup(found) = reply.body else { unreachable!("a look-up was asked for") };
        if !reply.session.is(&origin.session) {
            return Ok(Vec::new());
        }
        let rids = |object: &Object| object.replicas.iter().map(|replica| Rid(replica.rid)).collect();
        Ok(found.objects.iter().map(rids).collect())
    }

    fn is_interrupted(&self) -> bool {
        false
    }

    async fn sum_of(
        &self,
        reserved: &Reserved<ReservationOrigin, MetSegments>,
        replica: &Replica,
    ) -> Result<u32, Unwritten> {
        let unread = |what: &str| Unwritten {
            error: Cause::Transfer(what.into()).into(),
            final_word: false,
            passing: what == NO_LINK,
            settled: true,
        };
        let extent = &replica.extents[0];
        let address = segment_of(&reserved.met, Rid(replica.rid)).ok_or_else(|| unread("gone"))?;
        let link = self.store.link_to(&address).await.ok_or_else(|| unread(NO_LINK))?;
        let words = self.store.read(&link, Rid(replica.rid), extent.offset, reserved.size).await;
        words.map(checksum).map_err(|_| unread("not read"))
    }
}

impl Store {
    /// Reserves room for objects, has it filled in parts, and ends or aborts the sessions.
    pub async fn put_in_sessions(self, stops: Duration) {
        let world = self.inner.world.clone();
        let others = Rc::new(Cell::new(0));
        while self.goes_on(stops) {
            self.pause(100_000).await;
            let mut items: Vec<Item> = (0..=world.below(2))
                .map(|_| Item { key: self.key(), value: world.number() >> 16, granules: 1 + world.below(LARGEST) })
                .collect();
            items.dedup_by(|one, other| one.key == other.key);
            let options = Options {
                replicas: 1 + u32::from(world.percent(self.inner.network.mix.replicas)),
                replace: false,
                pace: [300, 3_000, self.inner.network.mix.pace][world.below(3) as usize],
            };
            let started = self.start_put_sessions(&items, &options).await;
            let mut started = started.into_iter();
            items.retain(|_| started.next().is_some_and(|started| started.is_ok()));
            let items: Vec<Rc<Item>> = items.into_iter().map(Rc::new).collect();
            // Something else is written at first, by callers that end only what they have written over.
            let is_spoilt = world.percent(30);
            // Other callers end whatever session these keys have by then, and what is spoilt is none of their business.
            while is_spoilt && others.get() > 0 {
                world.sleep_micros(20_000).await;
            }
            if !is_spoilt && world.percent(30) {
                self.have_others_end(&items, &others);
            }
            let (left, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            for item in &items {
                if is_spoilt {
                    let first = world.below(item.granules);
                    let count = 1 + world.below(item.granules - first);
                    let part = Part { first, count, after: 0, number: item.value ^ 1 };
                    let _ = self.fill_part(item, &part, options.pace).await;
                }
                for part in self.parts_of(item) {
                    let (store, item, pace) = (self.clone(), item.clone(), options.pace);
                    let (left, failed) = (left.clone(), failed.clone());
                    left.set(left.get() + 1);
                    world.spawn(self.inner.process, async move {
                        store.inner.world.sleep_micros(part.after).await;
                        if store.fill_part(&item, &part, pace).await.is_err() {
                            failed.set(true);
                        }
                        left.set(left.get() - 1);
                    });
                }
            }
            // Impatient ones end before all is written, and some take all back.
            let deadline = world.now() + Duration::from_micros([0, 300_000, 3_000_000][world.below(3) as usize]);
            while left.get() > 0 && (is_spoilt || world.now() < deadline) {
                world.sleep_micros(20_000).await;
            }
            let aborts = world.percent(15) || (is_spoilt && failed.get());
            for item in &items {
                self.end_put_session(item, aborts, &left, &others).await;
            }
            // A part that is late must not come into the next session of its key: it would be written there. An end
            // may.
            while left.get() > 0 {
                world.sleep_micros(20_000).await;
            }
        }
    }

    /// Another caller ends these keys with one call, in some moments; `others`: as long as it does.
    fn have_others_end(&self, items: &[Rc<Item>], others: &Rc<Cell<u32>>) {
        let world = &self.inner.world;
        let (store, items, others) = (self.clone(), items.to_vec(), others.clone());
        let after = world.below([40_000, 1_500_000][world.below(2) as usize]);
        others.set(others.get() + 1);
        world.spawn(self.inner.process, async move {
            store.inner.world.sleep_micros(after).await;
            let keys: Vec<&[u8]> = items.iter().map(|item| &item.key[..]).collect();
            put_session::end(&store.sessions(), &keys).await;
            others.set(others.get() - 1);
        });
    }

    /// Every granule is in one of them.
    fn parts_of(&self, item: &Item) -> Vec<Part> {
        let world = &self.inner.world;
        let (mut parts, mut first) = (Vec::new(), 0);
        while first < item.granules {
            let count = 1 + world.below(item.granules - first);
            let after = world.below([1, 40_000, 1_500_000][world.below(3) as usize]);
            parts.push(Part { first, count, after, number: item.value });
            first += count;
        }
        parts
    }

    async fn start_put_sessions(&self, items: &[Item], options: &Options) -> Vec<Result<(), StoreError>> {
        if let Err(closed) = self.check() {
            return items.iter().map(|_| Err(closed.clone())).collect();
        }
        let keys: Vec<&[u8]> = items.iter().map(|item| &item.key[..]).collect();
        let sizes: Vec<u64> = items.iter().map(|item| item.granules * GRANULE).collect();
        let results = items.iter().map(|_| None).collect();
        put_session::start(&Driver { store: self, items, options }, &keys, &sizes, results).await
    }

    async fn fill_part(&self, item: &Item, part: &Part, pace: u64) -> Result<(), StoreError> {
        self.check()?;
        let _calling = self.inner.network.whims.begin_call(&self.inner.world);
        let words: Vec<u64> = (part.first..part.first + part.count).map(|index| word(part.number, index)).collect();
        let bytes = (part.first * GRANULE, part.count * GRANULE);
        write_part(&self.sessions(), &item.key, bytes, async |reserved, replica| {
            let (origin, address) = (&reserved.origin, segment_of(&reserved.met, Rid(replica.rid)));
            let address = address.filter(|_| self.sessions().is_current(origin));
            self.write_words_at(replica, address, item, (part.first, &words), origin, pace).await
        })
        .await
    }

    /// Ends it, and tries again as long as something is left to be written; or aborts it.
    async fn end_put_session(&self, item: &Item, aborts: bool, left: &Cell<u64>, others: &Cell<u32>) {
        let (world, keys) = (&self.inner.world, [&item.key[..]]);
        for last in [false, false, true] {
            if aborts || self.check().is_err() {
                break;
            }
            let ended = put_session::end(&self.sessions(), &keys).await.remove(0);
            match ended {
                Ok(()) => {
                    self.inner.tally.borrow_mut().ended_sessions += 1;
                    return self.inner.network.ledger.acknowledged(item.value);
                }
                Err(error) if matches!(error.cause(), Cause::SessionOver { .. }) => return,
                Err(_) => self.inner.tally.borrow_mut().refused_ends += 1,
            }
            while left.get() > 0 && !last {
                world.sleep_micros(20_000).await;
            }
        }
        // What is still on its way is not waited for: it is refused, or has ended before this has.
        let aborted = put_session::abort(&self.sessions(), &keys).await.remove(0);
        // One that another caller is ending is not aborted, and goes on where that finds a hole.
        if aborted.is_err() {
            while others.get() > 0 {
                world.sleep_micros(20_000).await;
            }
            put_session::abort(&self.sessions(), &keys).await;
        }
    }

    /// A segment is Gone, and put sessions with it that have reserved nothing elsewhere.
    pub(crate) fn leave_put_sessions(&self, uuid: SegmentUuid) {
        let is_on_it = |reserved: &Reserved<ReservationOrigin, MetSegments>, replica: &Replica| {
            segment_of(&reserved.met, Rid(replica.rid)).is_some_and(|address| address.uuid == uuid)
        };
        let aborted = self.inner.put_sessions.borrow_mut().segment_gone(is_on_it);
        for Aborted { reserved, settled } in aborted {
            let rids = reserved.replicas.iter().map(|replica| Rid(replica.rid)).collect();
            self.abort_later(&reserved.origin.session, rids, settled);
        }
    }

    /// Another session with the master has begun.
    pub(crate) fn leave_former_put_sessions(&self) {
        let sessions = self.sessions();
        self.inner.put_sessions.borrow_mut().session_over(|origin| sessions.is_current(origin));
    }

    /// The store closes.
    pub(crate) async fn close_put_sessions(&self) {
        let all = self.inner.put_sessions.borrow_mut().close();
        put_session::abort_placements(&self.sessions(), all).await;
    }

    fn sessions(&self) -> Driver<'_> {
        Driver { store: self, items: &[], options: &NONE }
    }
}

/// Granules of an object that are written at once.
struct Part {
    first: u64,
    count: u64,
    /// So many microseconds later than the session began.
    after: u64,
    /// What they are made of.
    number: u64,
}
