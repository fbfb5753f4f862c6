//! Gets: look up, copy from the best replica, check; what is stale or cannot
//! be read is looked up once more, then it is a miss.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;
use mooncake_wire::message::{Object, Replica};

use crate::error::StoreError;
use crate::key::check_key;
use crate::machine::rounds::rounds;

/// Keys looked up with one request.
pub(crate) const ROUND_KEYS: usize = 32_768;

/// What a get needs of its store.
pub trait GetDriver {
    /// What the segment numbers of a look-up mean.
    type Numbering: Copy;

    /// Asks the master for these keys, and has the segments of what is there known. An object per key; those without
    /// replicas are not there.
    fn lookup(&self, keys: &[&[u8]]) -> impl Future<Output = Result<(Vec<Object>, Self::Numbering), StoreError>>;

    /// Has a replica reported. `confirmed`: the bytes were the placement's, or a second look-up has named it again;
    /// otherwise that look-up is still to be made.
    fn report_replica(&self, key: &[u8], rid: Rid, reason: String, confirmed: bool);

    /// How near a replica is: the lowest first, in turn among equals.
    fn rank(&self, replica: &Replica, numbering: Self::Numbering) -> u8;

    /// A number that differs from call to call.
    fn next_call(&self) -> usize;

    /// Remembers why objects that were there could not be read.
    fn note_miss(&self, cause: String);

    /// An object that a look-up has found so came to nothing.
    fn count_lost(&self, _object: &Object, _numbering: Self::Numbering) {}
}

/// What became of one read.
#[derive(Debug)]
pub enum Fetched {
    /// So many bytes are the object's.
    Done(u64),
    /// No replica gave the bytes; the cause is worth telling.
    Lost(String),
    /// The caller's own doing, or wish: no other replica is tried.
    Failed(StoreError),
}

/// A placement that could not be read, and why: what a second look-up finds
/// unchanged is not tried again, and its miss keeps the first reason.
#[derive(Debug, Clone)]
pub struct LostReplica {
    pub(crate) rid: Rid,
    cause: String,
    /// Its extent carries another placement: overtaken, unless the second look-up names it again.
    stale: bool,
    /// It may be read in a moment.
    pub(crate) passing: bool,
}

/// A replica was not read.
#[derive(Debug)]
pub struct Unread {
    /// Why.
    pub error: StoreError,
    /// What that says of the replica.
    pub doubt: Doubt,
    /// The same may go well in a moment.
    pub passing: bool,
}

/// What a failed read says of the replica itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// Nothing.
    None,
    /// Its stamps are not the placement's.
    Stale,
    /// Its stamps are, and its bytes are wrong.
    Checksum,
}

/// Looks keys up and reads what is there, all that one look-up has found by one `attempt`, which says what became of
/// each; what it could not read is looked up once more. Bytes read per key, none for a miss.
pub async fn read_batch<D: GetDriver>(
    driver: &D,
    keys: &[&[u8]],
    mut attempt: impl AsyncFnMut(&[(usize, &Object)], D::Numbering, &mut Vec<LostReplica>) -> Vec<Fetched>,
) -> Vec<Result<Option<u64>, StoreError>> {
    let mut results: Vec<Result<Option<u64>, StoreError>> = Vec::with_capacity(keys.len());
    let mut pending = Vec::with_capacity(keys.len());
    for (index, key) in keys.iter().enumerate() {
        match check_key(key) {
            Ok(()) => pending.push(index),
            Err(error) => {
                results.push(Err(error));
                continue;
            }
        }
        results.push(Ok(None));
    }
    // Placements that have failed already are not tried a second time.
    let mut lost = Vec::new();
    let mut causes: Vec<(usize, String)> = Vec::new();
    let mut unread: Vec<(usize, Object, D::Numbering)> = Vec::new();
    for last in [false, true] {
        let mut again = Vec::new();
        let overtaken = lost.iter().filter(|lost: &&LostReplica| last && lost.stale);
        let overtaken: HashMap<Rid, String> = overtaken.map(|lost| (lost.rid, lost.cause.clone())).collect();
        let pending_keys: Vec<&[u8]> = pending.iter().map(|&index| keys[index]).collect();
        let mut rest = &pending[..];
        for round_keys in rounds(&pending_keys, ROUND_KEYS) {
            let (round, others) = rest.split_at(round_keys.len());
            rest = others;
            let (objects, numbering) = match driver.lookup(round_keys).await {
                Ok(found) => found,
                Err(error) => {
                    round.iter().for_each(|&index| results[index] = Err(error.clone()));
                    continue;
                }
            };
            let there: Vec<(usize, &Object)> =
                round.iter().copied().zip(&objects).filter(|(_, object)| !object.replicas.is_empty()).collect();
            if !overtaken.is_empty() {
                report_named_again(driver, keys, &there, &overtaken);
            }
            for (&(index, object), fetched) in there.iter().zip(attempt(&there, numbering, &mut lost).await) {
                match fetched {
                    Fetched::Done(size) => results[index] = Ok(Some(size)),
                    Fetched::Failed(error) => results[index] = Err(error),
                    Fetched::Lost(cause) => {
                        causes.push((index, cause));
                        if !last {
                            unread.push((index, object.clone(), numbering));
                            again.push(index);
                        }
                    }
                }
            }
        }
        pending = again;
        if pending.is_empty() || mutant!(OvertakenReadersMiss) {
            break;
        }
    }
    // What the first look-up has found: by the second one it may have left a tier that cannot read it.
    for (index, object, numbering) in unread {
        if matches!(results[index], Ok(None)) {
            driver.count_lost(&object, numbering);
        }
    }
    // A cache miss for the caller; the cause is kept for the one that wonders.
    if let Some((_, cause)) = causes.into_iter().rfind(|(index, _)| matches!(results[*index], Ok(None))) {
        tracing::warn!(cause, "an object was there and could not be read: a miss");
        driver.note_miss(cause);
    }
    results
}

/// Reads an object by `read` from the first of its replicas that can be read.
pub async fn read_any_replica<D: GetDriver>(
    driver: &D,
    key: &[u8],
    object: &Object,
    numbering: D::Numbering,
    lost: &mut Vec<LostReplica>,
    mut read: impl AsyncFnMut(&Replica) -> Result<(), Unread>,
) -> Fetched {
    let mut cause = Cow::Borrowed("no replica is left");
    let mut out_of_descriptors = None;
    for replica in in_order_of_choice(driver, object, numbering) {
        if let Some(earlier) = lost.iter().find(|lost| lost.rid == Rid(replica.rid)) {
            cause = earlier.cause.clone().into();
            continue;
        }
        match read(replica).await {
            Ok(()) => return Fetched::Done(object.size),
            Err(Unread { error, .. }) if error.is_callers() => return Fetched::Failed(error),
            Err(Unread { error, doubt, passing }) => {
                tracing::debug!(rid = format_args!("{:#x}", replica.rid), %error, "replica not read; trying the next");
                let said = error.to_string();
                report_doubt(driver, key, object, Rid(replica.rid), doubt, &said);
                cause = said.clone().into();
                lost.push(LostReplica { rid: Rid(replica.rid), cause: said, stale: doubt == Doubt::Stale, passing });
                if error.is_short_of_descriptors() {
                    out_of_descriptors = Some(error);
                }
            }
        }
    }
    // The object is there, and may be read in a moment: that is no miss.
    out_of_descriptors.map_or_else(|| Fetched::Lost(cause.into_owned()), Fetched::Failed)
}

/// A replica that is not what it should be is the master's business too. A stale one is mostly ordinary: a later
/// placement has its extent. The second look-up tells; where another replica makes that one needless, the report brings
/// it.
pub fn report_doubt<D: GetDriver>(driver: &D, key: &[u8], object: &Object, rid: Rid, doubt: Doubt, reason: &str) {
    let confirmed = match doubt {
        Doubt::Checksum => true,
        Doubt::Stale if object.replicas.len() > 1 => false,
        Doubt::Stale | Doubt::None => return,
    };
    driver.report_replica(key, rid, reason.to_owned(), confirmed);
}

/// The nearest first; at random among equals.
fn in_order_of_choice<'o, D: GetDriver>(
    driver: &D,
    object: &'o Object,
    numbering: D::Numbering,
) -> impl Iterator<Item = &'o Replica> {
    let (only, mut several) = match &object.replicas[..] {
        [only] => (Some(only), Vec::new()),
        all => (None, all.iter().collect()),
    };
    if several.len() > 1 {
        let rotation = driver.next_call() % several.len();
        several.rotate_left(rotation);
        several.sort_by_key(|replica: &&Replica| driver.rank(replica, numbering));
    }
    only.into_iter().chain(several)
}

/// Placements that were stale, and that the second look-up names all the same: nothing has overtaken the reader, their
/// stamps are wrong.
fn report_named_again<D: GetDriver>(
    driver: &D,
    keys: &[&[u8]],
    found: &[(usize, &Object)],
    stale: &HashMap<Rid, String>,
) {
    for (index, object) in found {
        for replica in &object.replicas {
            if let Some(cause) = stale.get(&Rid(replica.rid))
                && !mutant!(StaleReplicasAreNotReported)
            {
                let reason = format!("{cause} (it has been, and is still named)");
                driver.report_replica(keys[*index], Rid(replica.rid), reason, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;
    use crate::error::Cause;
    use crate::machine::ready;

    /// What look-ups find, one after the other, how reads of replicas end, and what was reported.
    #[derive(Default)]
    struct Script {
        /// Rids per key.
        look_ups: RefCell<VecDeque<Vec<Vec<u64>>>>,
        asked: RefCell<Vec<usize>>,
        reads: RefCell<Vec<u64>>,
        replica_reports: RefCell<Vec<(Vec<u8>, u64, bool)>>,
        missed: RefCell<Option<String>>,
        /// Objects that were found and came to nothing, by the rids that the first look-up found.
        lost: RefCell<Vec<Vec<u64>>>,
        call: Cell<usize>,
    }

    impl GetDriver for Script {
        type Numbering = ();

        async fn lookup(&self, keys: &[&[u8]]) -> Result<(Vec<Object>, ()), StoreError> {
            self.asked.borrow_mut().push(keys.len());
            let found = self.look_ups.borrow_mut().pop_front().ok_or(StoreError::from(Cause::Closed))?;
            let replica = |rid: u64| Replica { rid, ..Replica::default() };
            let object = |rids: Vec<u64>| Object {
                size: 9,
                replicas: rids.into_iter().map(replica).collect(),
                ..Object::default()
            };
            Ok((found.into_iter().map(object).collect(), ()))
        }

        fn report_replica(&self, key: &[u8], rid: Rid, _: String, confirmed: bool) {
            self.replica_reports.borrow_mut().push((key.to_vec(), rid.0, confirmed));
        }

        /// The lowest ten first.
        fn rank(&self, replica: &Replica, (): ()) -> u8 {
            (replica.rid / 10) as u8
        }

        fn next_call(&self) -> usize {
            self.call.get()
        }

        fn note_miss(&self, cause: String) {
            *self.missed.borrow_mut() = Some(cause);
        }

        fn count_lost(&self, object: &Object, (): ()) {
            self.lost.borrow_mut().push(object.replicas.iter().map(|replica| replica.rid).collect());
        }
    }

    fn unread(doubt: Doubt) -> Unread {
        Unread { error: Cause::Transfer(format!("{doubt:?}")).into(), doubt, passing: false }
    }

    impl Script {
        fn new(look_ups: &[&[&[u64]]]) -> Script {
            let look_ups = look_ups.iter().map(|found| found.iter().map(|rids| rids.to_vec()).collect()).collect();
            Script { look_ups: RefCell::new(look_ups), ..Script::default() }
        }

        /// Gets keys; replicas whose rids `bad` knows cannot be read.
        fn get(&self, keys: &[&[u8]], bad: impl Fn(u64) -> Option<Doubt>) -> Vec<Result<Option<u64>, StoreError>> {
            ready(read_batch(self, keys, async |found, (), lost| {
                let mut fetched = Vec::new();
                for (index, object) in found {
                    let read = async |replica: &Replica| {
                        self.reads.borrow_mut().push(replica.rid);
                        bad(replica.rid).map_or(Ok(()), |doubt| Err(unread(doubt)))
                    };
                    fetched.push(read_any_replica(self, keys[*index], object, (), lost, read).await);
                }
                fetched
            }))
        }
    }

    const BAD: fn(u64) -> Option<Doubt> = |_| Some(Doubt::Stale);

    #[test]
    fn the_nearest_replica_is_read_and_the_others_only_where_it_cannot_be() {
        let script = Script::new(&[&[&[24, 12, 14]]]);
        assert_eq!(script.get(&[b"k"], |rid| (rid < 14).then_some(Doubt::None))[0].as_ref().unwrap(), &Some(9));
        assert_eq!(*script.reads.borrow(), [12, 14]);
        let script = Script::new(&[&[&[24, 12, 14]]]);
        script.call.set(2);
        script.get(&[b"k"], |_| None);
        assert_eq!(*script.reads.borrow(), [14], "equals have their turns");
    }

    #[test]
    fn an_overtaken_reader_looks_up_once_more_and_reads_what_is_there_then() {
        let script = Script::new(&[&[&[2], &[4]], &[&[6]]]);
        let got = script.get(&[b"a", b"b"], |rid| (rid == 4).then_some(Doubt::Stale));
        assert!(got.iter().all(|got| matches!(got, Ok(Some(9)))));
        assert_eq!((&*script.reads.borrow(), &*script.asked.borrow()), (&vec![2, 4, 6], &vec![2, 1]));
        assert!(script.replica_reports.borrow().is_empty() && script.missed.borrow().is_none());
    }

    #[test]
    fn what_was_found_and_came_to_nothing_counts_once_as_what_it_was_found_as() {
        // The second one is read in the end, the third is not there, the fourth is dropped meanwhile.
        let script = Script::new(&[&[&[2], &[4], &[], &[6]], &[&[2], &[8], &[]]]);
        let got = script.get(&[b"a", b"b", b"c", b"d"], |rid| (rid < 8).then_some(Doubt::None));
        assert!(matches!(got[..], [Ok(None), Ok(Some(9)), Ok(None), Ok(None)]), "{got:?}");
        assert_eq!(*script.lost.borrow(), [vec![2], vec![6]]);
    }

    #[test]
    fn an_object_that_the_process_has_no_descriptor_for_is_no_miss() {
        let read = |bad: &dyn Fn(u64) -> bool| {
            let script = Script::new(&[&[&[2, 4]], &[&[2, 4]]]);
            let got = ready(read_batch(&script, &[b"k"], async |found, (), lost| {
                let read = async |replica: &Replica| match replica.rid {
                    2 => Err(Unread {
                        error: Cause::OutOfDescriptors("none".into()).into(),
                        doubt: Doubt::None,
                        passing: false,
                    }),
                    rid if bad(rid) => Err(unread(Doubt::None)),
                    _ => Ok(()),
                };
                vec![read_any_replica(&script, b"k", found[0].1, (), lost, read).await]
            }));
            assert!(script.replica_reports.borrow().is_empty() && script.missed.borrow().is_none());
            got
        };
        assert!(matches!(read(&|_| false)[..], [Ok(Some(9))]), "another replica is read");
        let got = read(&|_| true);
        assert!(got[0].as_ref().unwrap_err().is_short_of_descriptors(), "{got:?}");
    }

    #[test]
    fn a_replica_that_is_stale_and_named_again_is_reported_and_not_read_again() {
        let script = Script::new(&[&[&[2], &[4]], &[&[2], &[8]]]);
        let got = script.get(&[b"a", b"b"], |rid| (rid < 8).then_some(Doubt::Stale));
        assert!(matches!(got[..], [Ok(None), Ok(Some(9))]));
        assert_eq!(*script.replica_reports.borrow(), [(b"a".to_vec(), 2, true)]);
        assert_eq!(*script.reads.borrow(), [2, 4, 8]);
        assert_eq!(script.missed.borrow().as_deref(), Some("Stale"), "the first reason is the one that is told");
    }

    #[test]
    fn wrong_bytes_are_reported_at_once_and_unreachable_owners_never() {
        let script = Script::new(&[&[&[2], &[4]], &[&[2], &[4]]]);
        let got = script.get(&[b"a", b"b"], |rid| Some(if rid == 2 { Doubt::Checksum } else { Doubt::None }));
        assert!(matches!(got[..], [Ok(None), Ok(None)]));
        assert_eq!(*script.replica_reports.borrow(), [(b"a".to_vec(), 2, true)]);
    }

    #[test]
    fn a_stale_replica_beside_a_good_one_is_left_to_a_later_look() {
        let script = Script::new(&[&[&[2, 12]]]);
        assert!(matches!(script.get(&[b"a"], |rid| (rid == 2).then_some(Doubt::Stale))[..], [Ok(Some(9))]));
        assert_eq!(*script.replica_reports.borrow(), [(b"a".to_vec(), 2, false)]);
    }

    #[test]
    fn after_two_look_ups_it_is_a_miss() {
        let script = Script::new(&[&[&[2]], &[&[4]], &[&[6]]]);
        assert!(matches!(script.get(&[b"a"], BAD)[..], [Ok(None)]));
        assert_eq!((&*script.reads.borrow(), script.look_ups.borrow().len()), (&vec![2, 4], 1));
    }

    #[test]
    fn keys_that_no_object_can_have_and_masters_that_do_not_answer_fail_their_own() {
        let script = Script::new(&[]);
        let got = script.get(&[b"", b"a"], |_| None);
        assert!(matches!(&got[0], Err(error) if matches!(error.cause(), Cause::InvalidKey { .. })));
        assert!(matches!(&got[1], Err(error) if matches!(error.cause(), Cause::Closed)));
        assert_eq!(*script.asked.borrow(), [1]);
    }

    #[test]
    fn what_the_callers_own_memory_refuses_is_tried_with_no_other_replica() {
        let script = Script::new(&[&[&[2, 12]]]);
        let got = ready(read_batch(&script, &[b"a"], async |found, (), lost| {
            let refused = async |_: &Replica| {
                Err(Unread { error: Cause::InvalidParams("no".into()).into(), doubt: Doubt::None, passing: false })
            };
            vec![read_any_replica(&script, b"a", found[0].1, (), lost, refused).await]
        }));
        assert!(matches!(&got[0], Err(error) if matches!(error.cause(), Cause::InvalidParams(_))));
    }

    #[test]
    fn each_of_more_keys_than_are_asked_for_at_a_time_gets_its_own_answer() {
        let keys: Vec<Vec<u8>> = (0..ROUND_KEYS + 2).map(|index| index.to_string().into_bytes()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let first: Vec<&[u64]> = keys[..ROUND_KEYS].iter().map(|_| &[][..]).collect();
        let script = Script::new(&[&first, &[&[12], &[]], &[&[14]]]);
        let got = script.get(&keys, |rid| (rid == 12).then_some(Doubt::None));
        let there: Vec<usize> = (0..got.len()).filter(|index| matches!(got[*index], Ok(Some(_)))).collect();
        assert_eq!((there, &script.asked.borrow()[..]), (vec![ROUND_KEYS], &[ROUND_KEYS, 2, 1][..]));
    }

    #[test]
    fn a_miss_of_what_was_there_has_its_reason_and_another_one_has_none() {
        let script = Script::new(&[&[&[], &[]]]);
        assert!(matches!(script.get(&[b"a", b"b"], BAD)[..], [Ok(None), Ok(None)]));
        assert_eq!((script.missed.take(), script.asked.borrow().len()), (None, 1));
        let found_no_more: &[&[&[u64]]] = &[&[&[2]], &[&[]]];
        for look_ups in [found_no_more, &[&[&[2]], &[&[4]]]] {
            let script = Script::new(look_ups);
            let bad = |rid| Some(if rid == 2 { Doubt::Stale } else { Doubt::None });
            assert!(matches!(script.get(&[b"a"], bad)[..], [Ok(None)]));
            let last = if look_ups[1][0].is_empty() { "Stale" } else { "None" };
            assert_eq!(script.missed.take().as_deref(), Some(last));
        }
        // What could be read in the end is no miss.
        let script = Script::new(&[&[&[2]], &[&[4]]]);
        script.get(&[b"a"], |rid| (rid == 2).then_some(Doubt::Stale));
        assert_eq!(script.missed.take(), None);
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::OvertakenReadersMiss,
            an_overtaken_reader_looks_up_once_more_and_reads_what_is_there_then
        ));
    }
}
