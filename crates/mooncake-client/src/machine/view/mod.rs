//! Views: pin, and look at what is pinned where it lies; what cannot be looked at there is copied.
//!
//! The order keeps owners from giving bytes out under a view. A pin is counted first, then its segment is linked: so
//! that from the link on no owner is told that this store obeys an epoch in which no master knows of the pin. Only then
//! is it asked whether the owner waits for this store, and whether the master knows the pin still.

use std::future::Future;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;
use mooncake_wire::message::{Extent, Object};

use crate::error::StoreError;
use crate::key::check_key;
use crate::machine::get::{Doubt, GetDriver, Unread, report_doubt};
use crate::machine::pins::Pins;
use crate::machine::rounds::{CHANGED_KEYS, rounds};

/// Pins are asked for again this often when the session was resumed meanwhile.
const ATTEMPTS: usize = 3;

/// So often, and each time so long, it is waited before that until the master has the list of what this store holds:
/// each list makes void what is asked for meanwhile. Where many take views at a time one list would call for another
/// without end.
const WAITS: (usize, Duration) = (100, Duration::from_millis(1));

/// What views need of their store.
pub trait ViewDriver: GetDriver {
    /// The way to a segment.
    type Link;

    /// Holds a pin. Dropped, it has [`HeldPin::end`] done.
    type Guard: AsMut<HeldPin>;

    /// The bytes of an object where they lie.
    type Mapped;

    /// What the caller gets: borrowed, or a copy.
    type View;

    /// Takes one step with the pins of the store.
    fn pins<R>(&self, step: impl FnOnce(&mut Pins) -> R) -> R;

    /// Has the master pin these keys. An object per key; those without a size are not there, and those with a size and
    /// no replica are, but are not pinned. Pins whose answer does not come are voided.
    fn pin(&self, keys: &[&[u8]]) -> impl Future<Output = Result<(Vec<Object>, Self::Numbering), StoreError>>;

    /// Has the master given a fresh list of what this store holds.
    fn resume_anew(&self);

    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;

    /// Holds a pin from now on.
    fn guard(&self, held: HeldPin) -> Self::Guard;

    /// Has the segments of objects known.
    fn meet(&self, objects: &[Object], numbering: Self::Numbering) -> impl Future<Output = Result<(), StoreError>>;

    /// Links to the segment of an extent, if that can be.
    fn link(&self, extent: &Extent, numbering: Self::Numbering) -> impl Future<Output = Option<Self::Link>>;

    /// Whether the segment is mapped here.
    fn is_mapped(&self, link: &Self::Link) -> bool;

    /// Whether the segment's owner waits for this store before it gives out what this store's master does not know of.
    fn vouch_for(&self, link: &Self::Link) -> bool;

    /// The bytes of a pinned object in place, once they are checked; none where they are not mapped.
    fn check(
        &self,
        link: &Self::Link,
        object: &Object,
        rid: Rid,
        extent: &Extent,
    ) -> impl Future<Output = Result<Option<Self::Mapped>, Unread>>;

    /// The view of such bytes. They end before the pin does.
    fn borrowed(&self, bytes: Self::Mapped, pin: Self::Guard) -> Self::View;

    /// Gets these keys as copies; none for a miss.
    fn copy(&self, keys: &[&[u8]]) -> impl Future<Output = Vec<Result<Option<Self::View>, StoreError>>>;
}

/// A pin that this store has taken charge of.
#[derive(Debug)]
pub struct HeldPin {
    era: u64,
    rid: Rid,
    /// Counted against the bytes that views may hold.
    bytes: u64,
}

impl HeldPin {
    /// Its view has ended, or none has come of it: once. True if the anchor should be told.
    pub fn end(&mut self, pins: &mut Pins) -> bool {
        pins.forget_bytes(self.bytes);
        pins.release(self.era, self.rid)
    }

    /// Whether there is room for its object among the `limit` bytes that views may hold. It is taken then.
    fn admit(&mut self, pins: &mut Pins, bytes: u64, limit: u64) -> bool {
        let admitted = pins.admit(bytes, limit);
        if admitted {
            self.bytes = bytes;
        }
        admitted
    }
}

/// Room for views that are asked for; given back when dropped.
struct Room<'a, D: ViewDriver> {
    driver: &'a D,
    views: usize,
}

impl<'a, D: ViewDriver> Room<'a, D> {
    fn take(driver: &'a D, wanted: usize) -> Self {
        Room { driver, views: driver.pins(|pins| pins.take_room(wanted)) }
    }
}

impl<D: ViewDriver> Drop for Room<'_, D> {
    fn drop(&mut self) {
        self.driver.pins(|pins| pins.give_room_back(self.views));
    }
}

/// A replica whose bytes were not what they should be.
struct Doubtful {
    key: Vec<u8>,
    object: Object,
    rid: Rid,
    doubt: Doubt,
    reason: String,
}

/// A view, a miss, or nothing where a copy has to do.
type Borrowed<V> = Option<Result<Option<V>, StoreError>>;

/// Views of these keys, none for a miss. The borrowed ones hold no more than `limit` bytes in all; the others are
/// copies.
pub async fn view<D: ViewDriver>(driver: &D, keys: &[&[u8]], limit: u64) -> Vec<Result<Option<D::View>, StoreError>> {
    let mut views: Vec<Borrowed<D::View>> = keys.iter().map(|_| None).collect();
    let mut doubtful = Vec::new();
    if limit > 0 {
        let valid: Vec<usize> = (0..keys.len()).filter(|&index| check_key(keys[index]).is_ok()).collect();
        let valid_keys: Vec<&[u8]> = valid.iter().map(|&index| keys[index]).collect();
        let mut rest = &valid[..];
        for round_keys in rounds(&valid_keys, CHANGED_KEYS) {
            let (round, others) = rest.split_at(round_keys.len());
            rest = others;
            // Beyond it they are copies, as beyond the bytes that views may hold.
            let room = Room::take(driver, round_keys.len());
            let (round_keys, round) = (&round_keys[..room.views], &round[..room.views]);
            if round_keys.is_empty() {
                continue;
            }
            match pinned(driver, round_keys, limit, &mut doubtful).await {
                Ok(pinned) => round.iter().zip(pinned).for_each(|(&index, view)| views[index] = view),
                Err(error) => round.iter().for_each(|&index| views[index] = Some(Err(error.clone()))),
            }
        }
    }
    // Whatever could not be borrowed is copied.
    let rest: Vec<usize> = (0..keys.len()).filter(|&index| views[index].is_none()).collect();
    let rest_keys: Vec<&[u8]> = rest.iter().map(|&index| keys[index]).collect();
    for (index, copy) in rest.into_iter().zip(driver.copy(&rest_keys).await) {
        views[index] = Some(copy);
    }
    // Behind the copies: what is reported may be gone a moment later, and a copy of it would not say why.
    for Doubtful { key, object, rid, doubt, reason } in doubtful {
        report_doubt(driver, &key, &object, rid, doubt, &reason);
    }
    views.into_iter().map(|view| view.unwrap_or(Ok(None))).collect()
}

/// Pins what is there, and borrows it.
async fn pinned<D: ViewDriver>(
    driver: &D,
    keys: &[&[u8]],
    limit: u64,
    doubtful: &mut Vec<Doubtful>,
) -> Result<Vec<Borrowed<D::View>>, StoreError> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            until_listed(driver).await;
        }
        let generation = driver.pins(|pins| pins.generation());
        let (objects, numbering) = driver.pin(keys).await?;
        let rids = objects.iter().filter_map(|object| object.replicas.first()).map(|replica| Rid(replica.rid));
        let Some(era) = driver.pins(|pins| pins.adopt(generation, rids)) else {
            // The master was told meanwhile what this store holds, and these pins were not on the list; whichever of
            // them came after it must go.
            driver.resume_anew();
            continue;
        };
        // All of them are held before anything can go wrong with one.
        let guards: Vec<Option<D::Guard>> = objects
            .iter()
            .map(|object| Some(driver.guard(HeldPin { era, rid: Rid(object.replicas.first()?.rid), bytes: 0 })))
            .collect();
        driver.meet(&objects, numbering).await?;
        let mut views = Vec::with_capacity(keys.len());
        for ((key, object), guard) in keys.iter().zip(&objects).zip(guards) {
            views.push(match guard {
                None if object.size == 0 => Some(Ok(None)),
                // It is there, and not to be pinned for now.
                None => None,
                Some(guard) => match borrow(driver, object, numbering, guard, limit).await {
                    Ok(view) => view.map(|view| Ok(Some(view))),
                    Err((rid, Unread { error, doubt, .. })) => {
                        let (key, object, reason) = (key.to_vec(), object.clone(), error.to_string());
                        doubtful.push(Doubtful { key, object, rid, doubt, reason });
                        None
                    }
                },
            });
        }
        return Ok(views);
    }
    // The session comes and goes: copies will do.
    Ok(keys.iter().map(|_| None).collect())
}

async fn until_listed<D: ViewDriver>(driver: &D) {
    for _ in 0..WAITS.0 {
        if !driver.pins(|pins| pins.is_listing()) {
            break;
        }
        driver.pause(WAITS.1).await;
    }
}

/// A view of a pinned object, where its memory is mapped and there is room for it.
async fn borrow<D: ViewDriver>(
    driver: &D,
    object: &Object,
    numbering: D::Numbering,
    mut pin: D::Guard,
    limit: u64,
) -> Result<Option<D::View>, (Rid, Unread)> {
    let Some(replica) = object.replicas.first() else { return Ok(None) };
    let [extent] = &replica.extents[..] else { return Ok(None) };
    let Some(link) = driver.link(extent, numbering).await else { return Ok(None) };
    // The pin is counted since before the link was made: from here on this store tells no owner that it obeys an epoch
    // whose master does not know the pin (docs/safety.md, rule 5).
    let held = pin.as_mut();
    let kept = (driver.vouch_for(&link) || mutant!(ViewsAreNotVouchedFor))
        && (driver.pins(|pins| pins.is_known(held.era, held.rid)) || mutant!(UnknownPinsBeginViews));
    if !kept || !driver.is_mapped(&link) || !driver.pins(|pins| held.admit(pins, object.size, limit)) {
        return Ok(None);
    }
    match driver.check(&link, object, Rid(replica.rid), extent).await {
        Ok(bytes) => Ok(bytes.map(|bytes| driver.borrowed(bytes, pin))),
        Err(unread) => Err((Rid(replica.rid), unread)),
    }
}

#[cfg(test)]
mod tests;
