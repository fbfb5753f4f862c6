//! Replicas that reads found bad, until the master is told. No read waits for that.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_wire::message::{BadReplica, Object};

use super::rounds::rounds;
use crate::error::StoreError;

/// Most replicas that wait to be reported; the next read of another finds it again.
const WAITING_MAX: usize = 8_192;

/// So long a replica is not reported a second time: its owner has not looked yet, or sees nothing wrong.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Replicas in one message, which its master goes through in one step. A master takes up to 1,024.
const ROUND: usize = 512;

/// What reports need of their store.
pub trait ReplicaReportDriver {
    /// Since a time origin that the driver chooses.
    fn now(&self) -> Duration;

    /// The store's, under their lock.
    fn reports(&self) -> impl DerefMut<Target = ReplicaReports>;

    /// Whether the store is closed.
    fn is_stopped(&self) -> bool;

    /// Has a worker begin that does [`run`]. False: there is none to be had.
    fn start_worker(&self) -> bool;

    /// Asks the master for these keys: an object each.
    fn lookup(&self, keys: &[ReplicaReport]) -> impl Future<Output = Result<Vec<Object>, StoreError>>;

    /// Tells the master.
    fn tell(&self, bad: BadReplica) -> impl Future<Output = Result<(), StoreError>>;
}

/// Has a replica reported.
pub fn add<D: ReplicaReportDriver>(driver: &D, report: ReplicaReport) {
    let mut reports = driver.reports();
    // Also where there was no worker to be had for an earlier report.
    if reports.add(driver.now(), report) && !reports.running {
        reports.running = driver.start_worker();
    }
}

/// Reports what waits, many with one message, until nothing does.
pub async fn run<D: ReplicaReportDriver>(driver: &D) {
    loop {
        let all = driver.reports().take(driver.now());
        if all.is_empty() {
            return;
        }
        for round in rounds(&all, ROUND) {
            if driver.is_stopped() {
                continue;
            }
            if let Err(error) = send(driver, round).await {
                tracing::debug!(%error, "bad replicas not reported");
                driver.reports().forget(round);
            }
        }
    }
}

/// Where the read did not look the key up a second time, this does: what the master names no more was overtaken.
pub(crate) async fn send<D: ReplicaReportDriver>(driver: &D, reports: &[ReplicaReport]) -> Result<(), StoreError> {
    let (mut bad, unsure): (Vec<ReplicaReport>, Vec<ReplicaReport>) =
        reports.iter().cloned().partition(|report| report.confirmed);
    if !unsure.is_empty() {
        let objects = driver.lookup(&unsure).await?;
        let named = unsure.into_iter().zip(objects);
        let still = named.filter(|(report, object)| object.replicas.iter().any(|other| other.rid == report.rid.0));
        bad.extend(still.map(|(report, _)| report));
    }
    let mut messages = bad.into_iter().map(|ReplicaReport { key, rid, reason, .. }| {
        tracing::warn!(rid = format_args!("{:#x}", rid.0), reason, "a replica is bad; reported");
        BadReplica { key: key.into(), rid: rid.0, reason, more: Vec::new() }
    });
    let Some(first) = messages.next() else { return Ok(()) };
    driver.tell(BadReplica { more: messages.collect(), ..first }).await
}

/// A replica that could not be verified.
#[derive(Debug, Clone)]
pub struct ReplicaReport {
    /// Key of its object.
    pub key: Vec<u8>,
    /// Its placement.
    pub rid: Rid,
    /// What is wrong with it, for people.
    pub reason: String,
    /// Whether the bytes were the placement's, or a second look-up named it again: nothing has overtaken the reader.
    pub confirmed: bool,
}

impl AsRef<[u8]> for ReplicaReport {
    fn as_ref(&self) -> &[u8] {
        &self.key
    }
}

/// Reports that wait, and when other replicas were reported.
#[derive(Debug, Default)]
pub struct ReplicaReports {
    /// By rid.
    waiting: BTreeMap<Rid, ReplicaReport>,
    /// When a rid was reported last.
    reported: BTreeMap<Rid, Duration>,
    /// A worker is at it.
    pub(crate) running: bool,
}

impl ReplicaReports {
    /// Has a replica reported. False: it was reported a moment ago, or too many wait.
    pub fn add(&mut self, now: Duration, report: ReplicaReport) -> bool {
        if let Some(waiting) = self.waiting.get_mut(&report.rid) {
            waiting.confirmed |= report.confirmed;
            return true;
        }
        let is_recent = self.reported.get(&report.rid).is_some_and(|at| is_recent(now, *at));
        if is_recent || self.waiting.len() >= WAITING_MAX {
            return false;
        }
        self.waiting.insert(report.rid, report);
        true
    }

    /// All that wait. Nothing: the worker is to end.
    pub fn take(&mut self, now: Duration) -> Vec<ReplicaReport> {
        let all: Vec<ReplicaReport> = std::mem::take(&mut self.waiting).into_values().collect();
        self.running = !all.is_empty();
        self.reported.retain(|_, at| is_recent(now, *at));
        self.reported.extend(all.iter().filter(|report| report.confirmed).map(|report| (report.rid, now)));
        all
    }

    /// They were not reported after all: the next read that finds one bad says so again.
    pub fn forget(&mut self, reports: &[ReplicaReport]) {
        for report in reports {
            self.reported.remove(&report.rid);
        }
    }
}

fn is_recent(now: Duration, at: Duration) -> bool {
    now.saturating_sub(at) < RETRY_PAUSE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rid: Rid, confirmed: bool) -> ReplicaReport {
        ReplicaReport { key: b"key".to_vec(), rid, reason: "bad".into(), confirmed }
    }

    fn taken(reports: &mut ReplicaReports, now: Duration) -> Vec<(u64, bool)> {
        reports.take(now).into_iter().map(|report| (report.rid.0, report.confirmed)).collect()
    }

    #[test]
    fn a_confirmed_replica_is_reported_once_in_a_while_and_again_when_the_report_failed() {
        let (mut reports, start) = (ReplicaReports::default(), Duration::from_secs(1));
        assert!(reports.add(start, report(Rid(4), false)) && reports.add(start, report(Rid(2), false)));
        assert!(reports.add(start, report(Rid(4), true)), "another reader is sure");
        assert_eq!(taken(&mut reports, start), [(2, false), (4, true)]);
        assert!(!reports.add(start + RETRY_PAUSE / 2, report(Rid(4), true)));
        assert!(reports.add(start + RETRY_PAUSE / 2, report(Rid(2), true)), "the master has not heard of it for sure");
        assert_eq!(taken(&mut reports, start + RETRY_PAUSE / 2), [(2, true)]);
        assert!(
            !reports.add(start + RETRY_PAUSE / 2, report(Rid(4), true)),
            "that others are reported changes nothing"
        );
        assert!(reports.add(start + RETRY_PAUSE, report(Rid(4), true)), "it is still bad");
        reports.forget(&[report(Rid(2), true)]);
        assert!(reports.add(start + RETRY_PAUSE, report(Rid(2), true)));
        assert_eq!(taken(&mut reports, start + RETRY_PAUSE), [(2, true), (4, true)]);
        assert!(reports.running);
        assert_eq!(taken(&mut reports, start + RETRY_PAUSE), []);
        assert!(!reports.running);
    }

    #[test]
    fn no_more_wait_than_there_is_room_for_and_nothing_is_remembered_for_ever() {
        let (mut reports, start) = (ReplicaReports::default(), Duration::from_secs(1));
        let most = WAITING_MAX as u64;
        assert!((0..most).all(|rid| reports.add(start, report(Rid(rid), true))));
        assert!(!reports.add(start, report(Rid(most), true)) && reports.add(start, report(Rid(0), true)));
        assert_eq!(taken(&mut reports, start).len(), WAITING_MAX);
        assert!(reports.add(start + RETRY_PAUSE, report(Rid(most), true)));
        reports.take(start + RETRY_PAUSE);
        assert_eq!(reports.reported.len(), 1);
    }
}
