//! Batches cut into requests that the master reads.

/// Most bytes of keys in one request, which its master copies, hashes and logs while others wait: as many as 8,192 keys
/// of 64 bytes have.
pub(crate) const ROUND_KEY_BYTES: usize = 512 << 10;

/// Most keys of one request that changes something: its master carries it out in one step, for which all others wait.
pub(crate) const CHANGED_KEYS: usize = 512;

/// The same of one that removes: each leaves from caches that it has left long ago.
pub(crate) const REMOVED_KEYS: usize = CHANGED_KEYS / 2;

/// The same of one that places or ends so many replicas of each key.
pub(crate) fn changed_keys(replicas: usize) -> usize {
    (CHANGED_KEYS / replicas.max(1)).max(1)
}

/// How many keys, from the first on, of so many replicas each, one request may end or abort.
pub(crate) fn changed_round(replicas: impl Iterator<Item = usize>) -> usize {
    let mut most = 1;
    let fitting = replicas.enumerate().take_while(|(before, replicas)| {
        most = most.max(*replicas);
        *before < changed_keys(most)
    });
    fitting.count()
}

/// Cuts keys into runs of at most `most_keys`, and of no more bytes than one
/// request may carry.
pub(crate) fn rounds<K: AsRef<[u8]>>(keys: &[K], most_keys: usize) -> impl Iterator<Item = &[K]> {
    let mut rest = keys;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = rest.iter().take(most_keys).take_while(|key| {
            bytes += key.as_ref().len();
            bytes <= ROUND_KEY_BYTES
        });
        // One key alone always goes.
        let count = fitting.count().max(1).min(rest.len());
        let (round, others) = rest.split_at(count);
        rest = others;
        (!round.is_empty()).then_some(round)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_one_round_in_order_and_no_round_is_too_large() {
        let keys: Vec<Vec<u8>> = (0..1_000).map(|index| vec![index as u8; (index * 37) % 65_536]).collect();
        let cut: Vec<&[Vec<u8>]> = rounds(&keys, 300).collect();
        assert_eq!(cut.concat(), keys);
        assert!(cut.len() > 30, "{} rounds", cut.len());
        for round in cut {
            assert!(round.len() <= 300);
            assert!(round.iter().map(Vec::len).sum::<usize>() <= ROUND_KEY_BYTES);
        }
    }

    #[test]
    fn no_round_changes_more_replicas_than_keys_of_one_each_and_none_is_empty() {
        let round = |replicas: &[usize]| changed_round(replicas.iter().copied());
        assert_eq!((round(&[]), round(&[1; 2 * CHANGED_KEYS]), round(&[3; CHANGED_KEYS])), (0, CHANGED_KEYS, 170));
        assert_eq!(round(&[CHANGED_KEYS + 1; 2]), 1);
        // One that has many is left to the next request where those before it have none left for it.
        let mut mixed = vec![1; 200];
        mixed.push(2);
        mixed.extend([4; 100]);
        assert_eq!(round(&mixed), 201);
    }

    #[test]
    fn a_key_that_is_too_long_goes_alone_and_nothing_makes_no_round() {
        let keys = [vec![0; ROUND_KEY_BYTES + 1], vec![1]];
        assert_eq!(rounds(&keys, 10).map(<[_]>::len).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(rounds::<Vec<u8>>(&[], 10).count(), 0);
    }
}
