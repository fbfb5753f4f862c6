use std::cell::{Cell, RefCell, RefMut};

use mooncake_mutant::{Mutant, is_noticed_by};

use super::*;
use crate::machine::get::Doubt;
use crate::machine::ready;

/// A pool whose objects are what the test says, each with its replicas' rids.
#[derive(Default)]
struct Pool {
    objects: RefCell<HashMap<Vec<u8>, Vec<u64>>>,
    sessions: RefCell<GetSessions<Vec<u64>, ()>>,
    asked: Cell<usize>,
    protected: RefCell<Vec<Vec<u8>>>,
}

impl GetDriver for Pool {
    type Numbering = ();

    async fn lookup(&self, keys: &[&[u8]]) -> Result<(Vec<Object>, ()), StoreError> {
        self.asked.set(self.asked.get() + 1);
        let objects = self.objects.borrow();
        let replica = |rid: &u64| Replica { rid: *rid, ..Replica::default() };
        let object = |key: &&[u8]| Object {
            size: 9,
            replicas: objects.get(*key).into_iter().flatten().map(replica).collect(),
            ..Object::default()
        };
        Ok((keys.iter().map(object).collect(), ()))
    }

    fn report_replica(&self, _: &[u8], _: Rid, _: String, _: bool) {}

    fn rank(&self, replica: &Replica, (): ()) -> u8 {
        replica.rid as u8
    }

    fn next_call(&self) -> usize {
        0
    }

    fn note_miss(&self, cause: String) {
        panic!("a session's end has its own error: {cause}");
    }
}

impl GetSessionDriver for Pool {
    type MetSegments = Vec<u64>;

    fn get_sessions(&self) -> impl DerefMut<Target = GetSessions<Vec<u64>, ()>> {
        RefMut::map(self.sessions.borrow_mut(), |sessions| sessions)
    }

    async fn protect(&self, keys: &[&[u8]]) -> Result<(), StoreError> {
        self.protected.borrow_mut().extend(keys.iter().map(|key| key.to_vec()));
        Ok(())
    }

    fn met_segments(&self, object: &Object, (): ()) -> Vec<u64> {
        object.replicas.iter().map(|replica| replica.rid).collect()
    }
}

impl Pool {
    fn new(objects: &[(&[u8], &[u64])]) -> Pool {
        let objects = objects.iter().map(|(key, rids)| (key.to_vec(), rids.to_vec())).collect();
        Pool { objects: RefCell::new(objects), ..Pool::default() }
    }

    fn start(&self, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
        ready(start(self, keys))
    }

    /// Reads in the session of a key, as far as replicas are `good`: the rids that were tried.
    fn read(&self, key: &[u8], good: impl Fn(u64) -> bool) -> Result<Vec<u64>, StoreError> {
        self.read_as(key, |rid| (!good(rid)).then_some(false))
    }

    /// The same; those that cannot be read say whether their reason passes.
    fn read_as(&self, key: &[u8], fails: impl Fn(u64) -> Option<bool>) -> Result<Vec<u64>, StoreError> {
        let (found, mut tried) = (self.sessions.borrow_mut().find(key)?, Vec::new());
        ready(read(self, key, &found, async |replica: &Replica| {
            tried.push(replica.rid);
            match fails(replica.rid) {
                None => Ok(()),
                Some(true) => Err(Unread {
                    error: Cause::TransferTimeout("still".into()).into(),
                    doubt: Doubt::None,
                    passing: true,
                }),
                Some(false) => Err(stale()),
            }
        }))
        .map(|()| tried)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.sessions.borrow_mut().find(key).is_ok()
    }
}

fn stale() -> Unread {
    Unread { error: Cause::Transfer("stale".into()).into(), doubt: Doubt::Stale, passing: false }
}

fn is_over(result: &Result<Vec<u64>, StoreError>) -> bool {
    matches!(result, Err(error) if matches!(error.cause(), Cause::SessionOver { .. }))
}

#[test]
fn what_was_looked_up_is_read_with_no_further_question_and_what_is_not_there_has_no_session() {
    let pool = Pool::new(&[(b"a", &[2]), (b"b", &[4])]);
    let started = pool.start(&[b"a", b"none", b"b", b""]);
    assert!(started[0].is_ok() && started[2].is_ok());
    assert!(matches!(started[1].as_ref().unwrap_err().cause(), Cause::NotFound));
    assert!(matches!(started[3].as_ref().unwrap_err().cause(), Cause::InvalidKey { .. }));
    assert_eq!(*pool.protected.borrow(), [&b"a"[..], b"none", b"b"], "as an existence query");
    for _ in 0..3 {
        assert_eq!(pool.read(b"a", |_| true).unwrap(), [2]);
    }
    assert_eq!(pool.asked.get(), 1);
    assert!(matches!(pool.read(b"none", |_| true).unwrap_err().cause(), Cause::InvalidParams(_)));
}

#[test]
fn a_session_is_over_for_a_key_whose_placements_are_stale_and_for_no_other() {
    let pool = Pool::new(&[(b"a", &[2]), (b"b", &[4])]);
    pool.start(&[b"a", b"b"]);
    assert!(is_over(&pool.read(b"a", |_| false)));
    assert!(!pool.has(b"a") && pool.has(b"b"));
    pool.objects.borrow_mut().insert(b"a".to_vec(), vec![6]);
    pool.start(&[b"a"]);
    assert_eq!(pool.read(b"a", |_| true).unwrap(), [6]);
}

#[test]
fn a_replica_that_cannot_be_read_is_not_tried_again_as_long_as_there_is_another() {
    let pool = Pool::new(&[(b"a", &[2, 4])]);
    pool.start(&[b"a"]);
    assert_eq!(pool.read(b"a", |rid| rid != 2).unwrap(), [2, 4]);
    assert_eq!(pool.read(b"a", |_| true).unwrap(), [4]);
    assert!(is_over(&pool.read(b"a", |_| false)));
}

#[test]
fn an_owner_that_stands_still_for_a_while_ends_no_session() {
    let not_read = |result: Result<Vec<u64>, StoreError>| {
        assert!(matches!(result.unwrap_err().cause(), Cause::NotRead { .. }), "a miss, as of a plain get");
    };
    let pool = Pool::new(&[(b"a", &[2]), (b"b", &[2, 4])]);
    pool.start(&[b"a", b"b"]);
    for _ in 0..2 {
        not_read(pool.read_as(b"a", |_| Some(true)));
    }
    assert_eq!(pool.read(b"a", |_| true).unwrap(), [2]);
    assert!(is_over(&pool.read(b"a", |_| false)));
    // A copy whose owner stands still is not waited for each time while there is another one, and read behind that.
    assert_eq!(pool.read_as(b"b", |rid| (rid == 2).then_some(true)).unwrap(), [2, 4]);
    assert_eq!(pool.read(b"b", |_| true).unwrap(), [4]);
    not_read(pool.read(b"b", |_| false));
    assert_eq!(pool.read(b"b", |_| true).unwrap(), [2]);
    assert!(is_over(&pool.read(b"b", |_| false)));
}

#[test]
fn a_reader_of_an_earlier_look_up_ends_no_session_that_was_begun_since() {
    let pool = Pool::new(&[(b"a", &[2])]);
    pool.start(&[b"a"]);
    let former = pool.sessions.borrow_mut().find(b"a").unwrap();
    pool.objects.borrow_mut().insert(b"a".to_vec(), vec![4]);
    pool.start(&[b"a"]);
    ready(read(&pool, b"a", &former, async |_: &Replica| Err(stale()))).unwrap_err();
    assert_eq!(pool.read(b"a", |_| true).unwrap(), [4]);
}

#[test]
fn a_session_that_was_begun_twice_ends_with_its_second_end() {
    let pool = Pool::new(&[(b"a", &[2])]);
    pool.start(&[b"a", b"a"]);
    for has_one in [true, false] {
        pool.sessions.borrow_mut().end(b"a");
        assert_eq!(pool.has(b"a"), has_one);
    }
    pool.sessions.borrow_mut().end(b"a");
}

#[test]
fn a_session_that_is_over_has_its_ends_to_come_and_they_end_none_that_was_begun_since() {
    let pool = Pool::new(&[(b"a", &[2])]);
    // Two callers begin it, and the one that finds it stale begins it again.
    pool.start(&[b"a"]);
    pool.start(&[b"a"]);
    assert!(is_over(&pool.read(b"a", |_| false)) && is_over(&pool.read(b"a", |_| true)));
    pool.objects.borrow_mut().insert(b"a".to_vec(), vec![6]);
    pool.start(&[b"a"]);
    pool.sessions.borrow_mut().end(b"a");
    assert_eq!(pool.read(b"a", |_| true).unwrap(), [6]);
    for _ in 0..2 {
        pool.sessions.borrow_mut().end(b"a");
    }
    assert!(!pool.has(b"a"));
}

#[test]
fn its_mutants_are_noticed() {
    assert!(is_noticed_by(
        Mutant::StaleSessionsStay,
        a_session_is_over_for_a_key_whose_placements_are_stale_and_for_no_other
    ));
    assert!(is_noticed_by(
        Mutant::PassingFailuresEndGetSessions,
        an_owner_that_stands_still_for_a_while_ends_no_session
    ));
}

#[test]
fn sessions_that_nobody_ends_keep_none_from_beginning_and_those_in_use_stay() {
    let object: &[u64] = &[2];
    let pool = Pool::new(&[(b"used", object)]);
    pool.start(&[b"used"]).remove(0).unwrap();
    let left: Vec<Vec<u8>> = (0..SESSIONS_MAX as u64 + 9).map(|nth| nth.to_le_bytes().to_vec()).collect();
    pool.objects.borrow_mut().extend(left.iter().map(|key| (key.clone(), object.to_vec())));
    for round in left.chunks(4_096) {
        let keys: Vec<&[u8]> = round.iter().map(|key| &key[..]).collect();
        assert!(pool.start(&keys).into_iter().all(|started| started.is_ok()));
        assert_eq!(pool.read(b"used", |_| true).unwrap(), [2], "it is in use");
    }
    let open = pool.sessions.borrow().open.len();
    assert!((SESSIONS_MAX / 2..=SESSIONS_MAX).contains(&open), "{open}");
    assert!(pool.read(&left[left.len() - 1], |_| true).is_ok());
    let gone = pool.read(&left[0], |_| true).unwrap_err();
    assert!(gone.to_string().contains("no get session"), "{gone}");
}
