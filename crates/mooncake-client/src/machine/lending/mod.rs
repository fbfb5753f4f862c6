//! What lending memory asks of the master, and what follows from each answer: the steps of a segment's way into the
//! pool and out of it, as [`Owner`] decides them.

use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_wire::message::{self, Mount, reply, request};

use super::owner::{Output, Owner, Pinned, Told, Unmount, must_resume};
use crate::error::{Cause, StoreError};
use crate::segment_id::SegmentId;

/// What lending needs of its store.
pub trait LendingDriver {
    /// A segment's memory, with what another one is made of in its place.
    type Memory: Clone;

    /// Since a time origin that the driver chooses.
    fn now(&self) -> Duration;

    /// The store's segments, under their lock.
    fn owner(&self) -> impl DerefMut<Target = Owner<Self::Memory>>;

    /// Whether the store is closed.
    fn is_stopped(&self) -> bool;

    /// Asks the master by [`super::call::finish`].
    fn finish(&self, what: &'static str, body: request::Body) -> impl Future<Output = Result<reply::Body, StoreError>>;

    /// Asks the master by [`super::call::finish_now`].
    fn finish_now(
        &self,
        what: &'static str,
        body: request::Body,
    ) -> impl Future<Output = Result<reply::Body, StoreError>>;

    /// The master's answer makes no sense.
    fn confused(&self, what: &'static str) -> StoreError;

    /// Has the master given a fresh list of what is held.
    fn resume_anew(&self);

    /// The master has mounted a segment of this memory.
    fn mounted(&self, uuid: SegmentUuid, memory: Self::Memory);

    /// Waits as long as [`Owner::waits_for_pins`] of the segment, and no longer than until that time.
    fn wait_for_pins(&self, uuid: SegmentUuid, until: Duration) -> impl Future<Output = ()>;

    /// Serves memory no more, and gives it back, all but what is pinned. `None`: what is pinned is not known.
    fn free(&self, memory: &Self::Memory, pinned: Option<&Pinned>) -> impl Future<Output = ()>;

    /// Leaves to the owner's worker what takes long.
    fn hand_over(&self, out: Vec<Output<Self::Memory>>);
}

/// Has memory mounted that is served by now, in the place of an earlier segment or as a new one, and gives the
/// segment's name.
pub async fn mount<D: LendingDriver>(
    driver: &D,
    id: Option<SegmentId>,
    (uuid, memory): (SegmentUuid, D::Memory),
    body: Mount,
) -> Result<SegmentId, StoreError> {
    const WHAT: &str = "mount";
    let id = driver.owner().mount(id, uuid, memory.clone());
    let mounted = match driver.finish_now(WHAT, request::Body::Mount(body)).await {
        Ok(reply::Body::Mount(_)) => Ok(id),
        Ok(_) => Err(driver.confused(WHAT)),
        Err(error) => Err(error),
    };
    let mut out = Vec::new();
    let is_held = driver.owner().mount_answered(uuid, told(&mounted), &mut out);
    match is_held {
        true => driver.mounted(uuid, memory),
        false => give_back(driver, uuid, &memory, None).await,
    }
    driver.hand_over(out);
    mounted
}

/// Takes a segment out of the pool and gives its memory back: at once, or when the grace is over, in which it is only
/// read.
pub async fn unmount<D: LendingDriver>(driver: &D, id: SegmentId, grace: Duration) -> Result<(), StoreError> {
    let unmount = driver.owner().unmount(id, grace);
    match unmount {
        Some(unmount) => carry_out(driver, unmount).await,
        None => Err(Cause::NoSuchSegment { id: id.to_string() }.into()),
    }
}

/// Takes all segments out of the pool: the store is being closed.
pub async fn close<D: LendingDriver>(driver: &D) {
    let leaving = driver.owner().close();
    let Some(leaving) = leaving else { return };
    for unmount in leaving {
        driver.owner().begin(&unmount);
        if let Err(error) = carry_out(driver, unmount).await {
            tracing::warn!(%error, "segment not unmounted; the master finds out by itself");
        }
    }
    driver.owner().closed();
}

async fn carry_out<D: LendingDriver>(driver: &D, unmount: Unmount<D::Memory>) -> Result<(), StoreError> {
    let mut unmounted = ask_to_unmount(driver, unmount.uuid, unmount.grace_ms).await;
    let mut out = Vec::new();
    let waits = driver.owner().unmount_answered(driver.now(), &unmount, told(&unmounted), &mut out);
    if let Some(until) = waits {
        driver.wait_for_pins(unmount.uuid, until).await;
        driver.owner().take_back(unmount, &mut out);
        unmounted = Ok(());
    }
    driver.hand_over(out);
    if must_resume(told(&unmounted)) && !driver.owner().is_closing() {
        // Whether it is gone the master says in its answer to the list of what is held.
        driver.resume_anew();
    }
    unmounted
}

/// The master has answered the last list of what is held: it does not know these segments (any more).
pub fn list_answered<D: LendingDriver>(driver: &D, gone: impl Fn(&SegmentUuid) -> bool) {
    let mut out = Vec::new();
    let is_outdated = {
        let mut owner = driver.owner();
        let is_outdated = owner.list_is_outdated();
        owner.list_answered(gone, &mut out);
        is_outdated
    };
    if is_outdated {
        driver.resume_anew();
    }
    driver.hand_over(out);
}

/// Gives a segment's memory back, once the master does not have it any more.
pub async fn give_back<D: LendingDriver>(driver: &D, uuid: SegmentUuid, memory: &D::Memory, pinned: Option<&Pinned>) {
    let must_unmount = driver.owner().must_unmount(pinned) && !driver.is_stopped();
    if must_unmount {
        let unmounted = ask_to_unmount(driver, uuid, 0).await;
        if must_resume(told(&unmounted)) {
            // The list of what is held, which says as much, goes to the master as soon as it answers again.
            tracing::debug!(?unmounted, "the master is told of it when it is back");
            driver.resume_anew();
        }
    }
    driver.free(memory, pinned).await;
}

async fn ask_to_unmount<D: LendingDriver>(driver: &D, uuid: SegmentUuid, grace_ms: u64) -> Result<(), StoreError> {
    let body = request::Body::Unmount(message::Unmount { uuid: uuid.0.to_vec().into(), grace_ms });
    driver.finish("unmount", body).await.map(drop)
}

/// What the master said.
fn told<T>(reply: &Result<T, StoreError>) -> Told {
    match reply.as_ref().map_err(StoreError::cause) {
        Ok(_) => Told::Done,
        Err(Cause::BadRequest { .. }) => Told::Refused,
        // Of several tries one may have got through, and only a later one have been refused.
        Err(_) => Told::Unanswered,
    }
}

#[cfg(test)]
mod tests;
