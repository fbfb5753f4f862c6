//! What owners of tiers say of their disks. Of a tier whose owner says nothing, as one of before does or one that is
//! away, there is no line.

use mooncake_core::{TierEngine, TierOperations, TierStats};
use mooncake_metrics::{Kind, Page};

use super::page::TierReading;

const READ_BY: [&str; 5] = ["lane", "promotion", "kept", "recheck", "proof"];
const WRITTEN_FOR: [&str; 3] = ["ordered", "kept", "rest"];

fn engine(of: TierEngine) -> &'static str {
    match of {
        TierEngine::Unknown => "unknown",
        TierEngine::Ring => "io_uring",
        TierEngine::Threads => "threads",
    }
}

fn operations(stats: &TierStats) -> [(&'static str, TierOperations); 3] {
    [("read", stats.reads), ("write", stats.writes), ("sync", stats.syncs)]
}

pub(super) fn tell_disks(tiers: &[TierReading], out: &mut Page) {
    let told = || tiers.iter().filter_map(|tier| Some((tier.label.as_str(), tier.stats.as_ref()?)));
    let each = |of: fn(&TierStats) -> Vec<(&'static str, u64)>| {
        told().flat_map(move |(tier, stats)| of(stats).into_iter().map(move |(label, value)| ([tier, label], value)))
    };
    let used = told().map(|(tier, stats)| (tier, stats.used_bytes));
    out.labelled(Kind::Gauge, "mooncake_tier_used_bytes", "tier", "bytes that its files have", used);
    let lacking = told().map(|(tier, stats)| (tier, u64::from(stats.lacks_room)));
    let help = "1: of late there was no room for its next file, though it has not what it may have: its file system is \
                full, or all tiers below its path have what they may together";
    out.labelled(Kind::Gauge, "mooncake_tier_lacks_room", "tier", help, lacking);
    let unknown = told().map(|(tier, stats)| (tier, stats.unknown_folders));
    let help = "folders beside it that no log of this pool knows: they are deleted 24 hours after they were found, or \
                one where room is short";
    out.labelled(Kind::Gauge, "mooncake_tier_unknown_folders", "tier", help, unknown);
    let help = "1, with what carries operations of its disk out: io_uring, or threads where that cannot be had";
    let engines = each(|stats| vec![(engine(stats.engine), 1)]);
    out.labelled_twice(Kind::Gauge, "mooncake_tier_engine", ["tier", "engine"], help, engines);
    let help = "operations of its disk, and how long they took, since its owner took the tier";
    let times = told().flat_map(|(tier, stats)| {
        operations(stats).into_iter().map(move |(op, did)| ([tier, op], did.count, did.micros as f64 / 1e6))
    });
    out.seconds_by_two("mooncake_tier_io_seconds", ["tier", "op"], help, times);
    let help = "bytes that its owner has read: for readers at lanes, promotions, what is kept of a full tier, rechecks \
                and mounts. What readers of its host read by themselves, their own pages say";
    let read = each(|stats| READ_BY.into_iter().zip(stats.read_bytes).collect());
    out.labelled_twice(Kind::Counter, "mooncake_tier_read_bytes_total", ["tier", "by"], help, read);
    let help = "bytes that its owner has written: of new objects, of those kept of a full tier, and all else, such as \
                headers";
    let written = each(|stats| WRITTEN_FOR.into_iter().zip(stats.written_bytes).collect());
    out.labelled_twice(Kind::Counter, "mooncake_tier_write_bytes_total", ["tier", "why"], help, written);
    let help = "what its disk failed to do; record: it gave bytes that are not those of the record";
    let failed = each(|stats| {
        let failed = operations(stats).into_iter().map(|(op, did)| (op, did.failed));
        failed.chain([("record", stats.bad_records)]).collect()
    });
    out.labelled_twice(Kind::Counter, "mooncake_tier_errors_total", ["tier", "kind"], help, failed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(tiers: &[TierReading]) -> String {
        let mut out = Page::text(&[]);
        tell_disks(tiers, &mut out);
        out.finish()
    }

    #[test]
    fn what_an_owner_says_is_told_with_its_tier_and_nothing_of_one_that_says_nothing() {
        let silent = TierReading { label: "b:1/08".to_owned(), live: true, ..TierReading::default() };
        assert!(page(std::slice::from_ref(&silent)).lines().all(|line| line.starts_with('#')));
        let stats = TierStats {
            engine: TierEngine::Threads,
            used_bytes: 7,
            reads: TierOperations { count: 4, micros: 2_500_000, failed: 1 },
            bad_records: 5,
            read_bytes: [1, 2, 3, 4, 5],
            written_bytes: [6, 7, 8],
            lacks_room: true,
            unknown_folders: 2,
            ..TierStats::default()
        };
        let said = TierReading { label: "a:1/07".to_owned(), live: true, stats: Some(stats), ..TierReading::default() };
        let page = page(&[said, silent]);
        for line in [
            "mooncake_tier_used_bytes{tier=\"a:1/07\"} 7",
            "mooncake_tier_lacks_room{tier=\"a:1/07\"} 1",
            "mooncake_tier_unknown_folders{tier=\"a:1/07\"} 2",
            "mooncake_tier_engine{tier=\"a:1/07\",engine=\"threads\"} 1",
            "mooncake_tier_io_seconds_sum{tier=\"a:1/07\",op=\"read\"} 2.5",
            "mooncake_tier_io_seconds_count{tier=\"a:1/07\",op=\"read\"} 4",
            "mooncake_tier_read_bytes_total{tier=\"a:1/07\",by=\"kept\"} 3",
            "mooncake_tier_write_bytes_total{tier=\"a:1/07\",why=\"rest\"} 8",
            "mooncake_tier_errors_total{tier=\"a:1/07\",kind=\"read\"} 1",
            "mooncake_tier_errors_total{tier=\"a:1/07\",kind=\"sync\"} 0",
            "mooncake_tier_errors_total{tier=\"a:1/07\",kind=\"record\"} 5",
        ] {
            assert!(page.lines().any(|other| other == line), "{line}\n{page}");
        }
        assert!(!page.contains("b:1/08"));
    }
}
