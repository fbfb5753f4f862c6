//! Records of a batch that lie behind one another are read at once: larger reads use a disk better, and cost less.

use std::collections::VecDeque;

use super::{Progress, Want};
use crate::address::BLOCK;

/// What is read at once, in the order of the addresses: positions in a batch, or numbers of what was asked for.
pub(super) type Run = Vec<usize>;

/// Most bytes of one read.
pub(super) const RUN_BYTES: u64 = 1 << 20;

/// A batch is parted into so many reads at least: the disk goes on while bytes are copied.
const RUNS_MIN: u64 = 16;

/// What is to be read of a batch, by addresses. A record that takes several reads is a run of its own.
pub(super) fn runs(all: &[Progress], wants: &[Want<'_>]) -> VecDeque<Run> {
    let bytes = |nth: usize| all[nth].pieces.iter().map(|piece| piece.len).sum::<u64>();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|nth| wants[*nth].place.address);
    let most = (order.iter().map(|nth| bytes(*nth)).sum::<u64>() / RUNS_MIN).min(RUN_BYTES);
    let mut runs: VecDeque<Run> = VecDeque::new();
    // The block where the last run goes on, and its bytes; none if it is that of a record that is not read whole.
    let mut end = None;
    for nth in order {
        let start = wants[nth].place.address.0;
        let is_whole = matches!(&all[nth].pieces[..], [piece] if piece.has_header);
        match (runs.back_mut(), end) {
            (Some(run), Some((at, had))) if is_whole && at == start && had + bytes(nth) <= most => {
                run.push(nth);
                end = Some((start.saturating_add(bytes(nth) / BLOCK), had + bytes(nth)));
            }
            _ => {
                runs.push_back(vec![nth]);
                end = is_whole.then(|| (start.saturating_add(bytes(nth) / BLOCK), bytes(nth)));
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use mooncake_ids::{Rid, TierUuid};

    use super::super::RecordPlace;
    use super::*;
    use crate::address::Address;

    const KIB: u64 = 1 << 10;

    /// The runs of whole records, and of one of which a part alone is wanted, at these blocks.
    fn runs_of(records: &[(u64, u64)], part: Option<usize>) -> Vec<Run> {
        let mut all = Vec::new();
        let mut wants: Vec<Want<'_>> = Vec::new();
        for (nth, (address, size)) in records.iter().copied().enumerate() {
            let (tier, address, rid) = (TierUuid([1; 16]), Address(address), Rid(2));
            let from = if part == Some(nth) { size - 1 } else { 0 };
            // Nobody calls it here.
            let sink = Box::leak(Box::new(|_: u64, _: &[u8]| 0));
            wants.push(Want {
                place: RecordPlace { tier, address, rid, size, key_bytes: 3 },
                from,
                len: size - from,
                crc: None,
                sink,
            });
            all.push(Progress::new(&wants[nth], 16));
        }
        runs(&all, &wants).into()
    }

    #[test]
    fn records_behind_one_another_are_read_at_once_however_they_are_asked_for() {
        // A block for the header, and 16 for the value.
        let records: Vec<(u64, u64)> = (0..256).map(|nth| ((nth * 7 % 256) * 17, 64 * KIB)).collect();
        let runs = runs_of(&records, None);
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [[15; 17].as_slice(), &[1]].concat());
        let addresses: Vec<u64> = runs.concat().iter().map(|nth| records[*nth].0).collect();
        assert!(addresses.is_sorted());
    }

    #[test]
    fn what_lies_apart_or_is_read_in_part_or_would_make_few_reads_of_a_batch_is_read_alone() {
        let records: Vec<(u64, u64)> = (0..64).map(|nth| (nth * 17 + nth / 8, 64 * KIB)).collect();
        let gaps: Vec<usize> = runs_of(&records, None).iter().map(Vec::len).collect();
        assert_eq!(gaps, [4; 16], "a sixteenth of all at most, and a gap behind each eighth one");
        let records: Vec<(u64, u64)> = (0..64).map(|nth| (nth * 33, 128 * KIB)).collect();
        let with_part: Vec<Run> = runs_of(&records, Some(1));
        assert!(with_part.contains(&vec![0]) && with_part.contains(&vec![1]), "{with_part:?}");
        let few: Vec<(u64, u64)> = (0..8).map(|nth| (nth * 17, 64 * KIB)).collect();
        assert_eq!(runs_of(&few, None).len(), 8);
        assert_eq!(runs_of(&[(u64::MAX, 64 * KIB), (u64::MAX, 64 * KIB)], None).len(), 2, "no address overflows");
    }
}
