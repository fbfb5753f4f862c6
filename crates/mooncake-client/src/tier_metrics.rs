//! What a reader counts of tiers: bytes that it has read from their files itself, and objects that it could not read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mooncake_ids::TierUuid;
use mooncake_metrics::{Kind, Page};
use mooncake_tier::disk_times::{DirectionTimes, DiskTimes, DiskTotals};
use parking_lot::Mutex;

/// Tiers that are told one by one; what is lost on more of them is told together.
const TIERS_MAX: usize = 256;

/// The label of those.
const OTHERS: &str = "others";

/// Counters of one store.
#[derive(Debug, Default)]
pub(crate) struct TierMetrics {
    /// Bytes of objects that this process has read past their owners.
    read_bytes: AtomicU64,
    /// By owner and UUID, as the master names a tier. Only what has failed takes the lock.
    lost: Mutex<BTreeMap<String, u64>>,
    /// Objects on its own tiers, and on those that it reads by itself.
    disk: Arc<DiskTimes>,
}

/// One reading of [`TierMetrics`].
#[derive(Debug, Clone)]
pub(crate) struct TierReading {
    read_bytes: u64,
    lost: Vec<(String, u64)>,
    disk: DiskTotals,
}

impl TierMetrics {
    /// So many bytes of objects were read from files of tiers.
    pub fn read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An object that was there on that tier alone could not be read.
    pub fn lost_on(&self, owner: &str, tier: TierUuid) {
        let (mut lost, label) = (self.lost.lock(), format!("{owner}/{tier}"));
        let is_told = lost.len() < TIERS_MAX || lost.contains_key(&label);
        *lost.entry(if is_told { label } else { OTHERS.to_owned() }).or_default() += 1;
    }

    /// Where objects that are read from tiers and written to them count.
    pub fn disk(&self) -> &Arc<DiskTimes> {
        &self.disk
    }

    pub fn reading(&self) -> TierReading {
        let lost = self.lost.lock().iter().map(|(label, count)| (label.clone(), *count)).collect();
        TierReading { read_bytes: self.read_bytes.load(Ordering::Relaxed), lost, disk: self.disk.totals() }
    }
}

impl TierReading {
    pub fn tell(&self, out: &mut Page) {
        out.section("A client that reads tiers");
        let help = "bytes of objects that this process has read from files of tiers by itself";
        out.counter("mooncake_client_tier_read_bytes_total", help, self.read_bytes);
        let help = "objects that a look-up found on that tier alone, and that could not be read: a miss";
        let lost = self.lost.iter().map(|(label, count)| (label.as_str(), *count));
        out.labelled(Kind::Counter, "mooncake_tier_lookup_then_miss_total", "tier", help, lost);
        let both = self.disk.both();
        // Tens of buckets for disks that were never touched would be most of the page.
        if both.latency.count() > 0 || out.is_reference() {
            out.section("A client: its own tiers, and those that it reads by itself");
            tell_direction(out, "read", "were read from tiers", &self.disk.reads);
            tell_direction(out, "write", "were written to tiers", &self.disk.writes);
            tell_direction(out, "total", "were read from tiers or written to them", &both);
        }
    }
}

fn tell_direction(out: &mut Page, name: &str, what: &str, DirectionTimes { bytes, latency }: &DirectionTimes) {
    let named = |part: &str| format!("mooncake_ssd_{name}_{part}");
    out.counter(&named("ops_total"), &format!("objects that {what}"), latency.count());
    out.counter(&named("bytes_total"), &format!("bytes of objects that {what}"), *bytes);
    let times = "microseconds from the call or the master's order on";
    out.histogram(&named("latency_us"), &format!("objects that {what}, by time: {times}"), latency);
    let help = format!("of the objects that {what}, the bound of the histogram that each share stays within");
    out.quantiles(&named("latency_summary_us"), &help, latency);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_by_tier_and_of_no_more_tiers_than_there_is_room_for() {
        let metrics = TierMetrics::default();
        metrics.read(5);
        (0..2).for_each(|_| metrics.lost_on("a:1", TierUuid([7; 16])));
        for nth in 0..TIERS_MAX as u16 + 9 {
            let mut uuid = [0; 16];
            uuid[..2].copy_from_slice(&nth.to_le_bytes());
            metrics.lost_on("b", TierUuid(uuid));
        }
        metrics.lost_on("a:1", TierUuid([7; 16]));
        let mut page = Page::text(&[]);
        metrics.reading().tell(&mut page);
        let page = page.finish();
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("mooncake_tier_lookup_then_miss")).collect();
        assert_eq!(lines.len(), TIERS_MAX + 1);
        for line in [
            format!("mooncake_tier_lookup_then_miss_total{{tier=\"a:1/{}\"}} 3", TierUuid([7; 16])),
            "mooncake_tier_lookup_then_miss_total{tier=\"others\"} 10".to_owned(),
            "mooncake_client_tier_read_bytes_total 5".to_owned(),
        ] {
            assert!(page.lines().any(|other| other == line), "{line}\n{page}");
        }
    }
}
