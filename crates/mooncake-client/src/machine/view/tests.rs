use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mooncake_ids::Rid;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_wire::message::Replica;

use super::*;
use crate::error::Cause;
use crate::machine::get::Doubt;
use crate::machine::pins::{ListAnswer, VIEWS_MAX};
use crate::machine::ready;

/// Of each object.
const SIZE: u64 = 10;

/// A master that knows an object of one replica for each key; its number is the key's only byte.
#[derive(Default)]
struct Script {
    pins: Rc<RefCell<Pins>>,
    /// Keys of each request for pins.
    asked: RefCell<Vec<usize>>,
    /// What happens to the pins while these are asked for, one after the other.
    on_pin: RefCell<Vec<fn(&mut Pins)>>,
    /// And while a link is made.
    on_link: Option<fn(&Script)>,
    pin_fails: Cell<bool>,
    meet_fails: bool,
    is_striped: bool,
    /// What is there is found without a replica.
    is_unpinned: bool,
    has_no_link: bool,
    has_tcp: bool,
    is_not_vouched_for: Cell<bool>,
    bad: Option<Doubt>,
    has_no_bytes: bool,
    did: RefCell<Vec<&'static str>>,
    replica_reports: RefCell<Vec<(u64, bool)>>,
    copied: RefCell<Vec<Vec<u8>>>,
    resumed: Cell<u32>,
    pauses: Cell<usize>,
    /// The list arrives in this pause.
    arrives_in: Cell<usize>,
}

struct Guard(Rc<RefCell<Pins>>, HeldPin);

impl AsMut<HeldPin> for Guard {
    fn as_mut(&mut self) -> &mut HeldPin {
        &mut self.1
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.1.end(&mut self.0.borrow_mut());
    }
}

enum Seen {
    Borrowed(u64, #[expect(dead_code, reason = "held, and let go of")] Guard),
    Copied(u64),
}

impl GetDriver for Script {
    type Numbering = ();

    async fn lookup(&self, _: &[&[u8]]) -> Result<(Vec<Object>, ()), StoreError> {
        unreachable!("copies are the driver's")
    }

    fn report_replica(&self, _: &[u8], rid: Rid, _: String, confirmed: bool) {
        self.replica_reports.borrow_mut().push((rid.0, confirmed));
    }

    fn rank(&self, _: &Replica, (): ()) -> u8 {
        0
    }

    fn next_call(&self) -> usize {
        0
    }

    fn note_miss(&self, _: String) {}
}

impl ViewDriver for Script {
    type Link = ();
    type Guard = Guard;
    type Mapped = u64;
    type View = Seen;

    fn pins<R>(&self, step: impl FnOnce(&mut Pins) -> R) -> R {
        step(&mut self.pins.borrow_mut())
    }

    async fn pin(&self, keys: &[&[u8]]) -> Result<(Vec<Object>, ()), StoreError> {
        self.asked.borrow_mut().push(keys.len());
        if self.pin_fails.take() {
            return Err(Cause::Closed.into());
        }
        if let Some(happens) = self.on_pin.borrow_mut().pop() {
            happens(&mut self.pins.borrow_mut());
        }
        let extents = vec![Extent::default(); if self.is_striped { 2 } else { 1 }];
        let object = |key: &&[u8]| {
            let replica = Replica { rid: key[0].into(), extents: extents.clone() };
            let (is_there, is_pinned) = (key != b"\0", !self.is_unpinned && key != b"\0");
            Object {
                size: if is_there { SIZE } else { 0 },
                replicas: is_pinned.then_some(replica).into_iter().collect(),
                ..Object::default()
            }
        };
        Ok((keys.iter().map(object).collect(), ()))
    }

    fn resume_anew(&self) {
        self.resumed.set(self.resumed.get() + 1);
    }

    async fn pause(&self, _: Duration) {
        self.pauses.set(self.pauses.get() + 1);
        if self.pauses.get() == self.arrives_in.get() {
            let _ = self.pins.borrow_mut().list();
            self.pins.borrow_mut().arrived();
        }
    }

    fn guard(&self, held: HeldPin) -> Guard {
        Guard(self.pins.clone(), held)
    }

    async fn meet(&self, _: &[Object], (): ()) -> Result<(), StoreError> {
        if self.meet_fails { Err(Cause::Closed.into()) } else { Ok(()) }
    }

    async fn link(&self, _: &Extent, (): ()) -> Option<()> {
        self.did.borrow_mut().push("link");
        if let Some(happens) = self.on_link {
            happens(self);
        }
        (!self.has_no_link).then_some(())
    }

    fn is_mapped(&self, (): &()) -> bool {
        !self.has_tcp
    }

    fn vouch_for(&self, (): &()) -> bool {
        !self.is_not_vouched_for.get()
    }

    async fn check(&self, (): &(), object: &Object, rid: Rid, _: &Extent) -> Result<Option<u64>, Unread> {
        self.did.borrow_mut().push("check");
        assert_eq!(object.size, SIZE);
        match self.bad {
            Some(doubt) => Err(Unread { error: Cause::Checksum("no".into()).into(), doubt, passing: false }),
            None => Ok((!self.has_no_bytes).then_some(rid.0)),
        }
    }

    fn borrowed(&self, bytes: u64, pin: Guard) -> Seen {
        Seen::Borrowed(bytes, pin)
    }

    async fn copy(&self, keys: &[&[u8]]) -> Vec<Result<Option<Seen>, StoreError>> {
        self.copied.borrow_mut().extend(keys.iter().map(|key| key.to_vec()));
        let copy = |key: &&[u8]| match key.first() {
            Some(0) => Ok(None),
            Some(&number) => Ok(Some(Seen::Copied(number.into()))),
            None => Err(Cause::Closed.into()),
        };
        keys.iter().map(copy).collect()
    }
}

impl Script {
    fn view(&self, keys: &[&[u8]]) -> Vec<Result<Option<Seen>, StoreError>> {
        ready(view(self, keys, 3 * SIZE))
    }

    /// No view is counted, and no byte of one. Those that have ended, the master is told of.
    fn ended(&self) -> Vec<Rid> {
        let mut pins = self.pins.borrow_mut();
        assert!(pins.seal(), "a pin is counted");
        assert!(pins.admit(3 * SIZE, 3 * SIZE), "bytes are counted");
        assert_eq!(pins.take_room(usize::MAX), VIEWS_MAX);
        pins.to_send(|| 1).map(|(_, rids)| rids).unwrap_or_default()
    }
}

/// `b2`: borrowed, object 2; `c2`: copied; `-`: a miss; `!`: an error.
fn outcomes(views: &[Result<Option<Seen>, StoreError>]) -> Vec<String> {
    let outcome = |view: &Result<Option<Seen>, StoreError>| match view {
        Ok(Some(Seen::Borrowed(rid, _))) => format!("b{rid}"),
        Ok(Some(Seen::Copied(rid))) => format!("c{rid}"),
        Ok(None) => "-".to_owned(),
        Err(_) => "!".to_owned(),
    };
    views.iter().map(outcome).collect()
}

#[test]
fn what_is_mapped_is_borrowed_and_pinned_until_its_view_ends() {
    let script = Script::default();
    let mut views = script.view(&[b"\x02", b"\0", b"", b"\x04"]);
    assert_eq!(outcomes(&views), ["b2", "-", "!", "b4"]);
    assert_eq!(*script.copied.borrow(), [b""], "a key that no object can have is refused where copies are made");
    assert!(!script.pins.borrow_mut().seal());
    drop(views.remove(0));
    assert_eq!(script.pins.borrow_mut().to_send(|| 1), Some((1, vec![Rid(2)])));
    assert!(script.pins.borrow_mut().confirmed(1));
    drop(views);
    assert_eq!(script.ended(), [Rid(4)]);
}

#[test]
fn a_pin_that_a_list_without_it_may_have_voided_is_asked_for_again() {
    let script = Script::default();
    script.on_pin.borrow_mut().push(|pins| _ = pins.list());
    let views = script.view(&[b"\x02"]);
    assert_eq!(outcomes(&views), ["b2"]);
    assert_eq!((&*script.asked.borrow(), script.resumed.get()), (&vec![1, 1], 1), "the void one is to go");
    drop(views);
    assert_eq!(script.ended(), [Rid(2)], "one pin");
}

#[test]
fn what_was_void_is_asked_for_again_once_the_master_has_the_list_that_it_called_for() {
    let script = Script::default();
    script.on_pin.borrow_mut().push(|pins| _ = pins.list());
    script.arrives_in.set(3);
    assert_eq!(outcomes(&script.view(&[b"\x02"])), ["b2"]);
    assert_eq!((script.pauses.get(), script.resumed.get()), (3, 1), "asked for before, it would be void again");
    let lost = Script::default();
    lost.on_pin.borrow_mut().push(|pins| _ = pins.list());
    assert_eq!(outcomes(&lost.view(&[b"\x02"])), ["b2"]);
    assert_eq!(lost.pauses.get(), WAITS.0, "it is not waited for without end");
}

#[test]
fn what_is_there_and_not_to_be_pinned_is_copied_and_no_miss() {
    let script = Script { is_unpinned: true, ..Script::default() };
    assert_eq!(outcomes(&script.view(&[b"\x02", b"\0"])), ["c2", "-"]);
    assert_eq!((&*script.copied.borrow(), script.resumed.get()), (&vec![b"\x02".to_vec()], 0));
}

#[test]
fn where_sessions_come_and_go_copies_do() {
    let script = Script::default();
    script.on_pin.borrow_mut().extend([(|pins| _ = pins.list()) as fn(&mut Pins); ATTEMPTS + 1]);
    assert_eq!(outcomes(&script.view(&[b"\x02", b"\0"])), ["c2", "-"]);
    assert_eq!((script.asked.borrow().len(), script.resumed.get()), (ATTEMPTS, ATTEMPTS as u32));
    assert_eq!(script.ended(), [Rid(0); 0]);
}

#[test]
fn whatever_goes_wrong_behind_a_pin_it_is_released_and_a_copy_does_where_one_can() {
    let cases = [
        ("!", Script { meet_fails: true, ..Script::default() }),
        ("c", Script { is_striped: true, ..Script::default() }),
        ("c", Script { has_no_link: true, ..Script::default() }),
        ("c", Script { has_tcp: true, ..Script::default() }),
        ("c", Script { is_not_vouched_for: Cell::new(true), ..Script::default() }),
        ("c", Script { bad: Some(Doubt::Stale), ..Script::default() }),
        ("c", Script { has_no_bytes: true, ..Script::default() }),
    ];
    for (number, (expected, script)) in cases.into_iter().enumerate() {
        let views = script.view(&[b"\x02", b"\x04"]);
        assert!(
            outcomes(&views).iter().all(|outcome| outcome.starts_with(expected)),
            "{number}: {:?}",
            outcomes(&views)
        );
        assert_eq!(script.ended(), [Rid(2), Rid(4)], "{number}");
        assert!(script.replica_reports.borrow().is_empty());
    }
}

#[test]
fn a_pin_that_the_master_is_said_not_to_know_while_its_link_is_made_begins_no_view() {
    let forgets = |script: &Script| {
        let mut pins = script.pins.borrow_mut();
        let listing = pins.list();
        assert_eq!(listing.rids, [Rid(2)], "counted before the link is made: owners that ask now hear of it");
        pins.listed(&listing, ListAnswer::Unknown(&[Rid(2)]), false);
    };
    let script = Script { on_link: Some(forgets), ..Script::default() };
    assert_eq!(outcomes(&script.view(&[b"\x02"])), ["c2"]);
    assert_eq!(*script.did.borrow(), ["link"], "nobody looks at its bytes");
}

#[test]
fn whether_the_owner_waits_for_this_store_is_asked_once_the_link_is_there() {
    let script = Script {
        is_not_vouched_for: Cell::new(true),
        on_link: Some(|script| script.is_not_vouched_for.set(false)),
        ..Script::default()
    };
    assert_eq!(outcomes(&script.view(&[b"\x02"])), ["b2"]);
    let script = Script { on_link: Some(|script| script.is_not_vouched_for.set(true)), ..Script::default() };
    assert_eq!(outcomes(&script.view(&[b"\x02"])), ["c2"]);
    assert_eq!(*script.did.borrow(), ["link"]);
}

#[test]
fn wrong_bytes_are_reported_and_make_no_view() {
    let script = Script { bad: Some(Doubt::Checksum), ..Script::default() };
    assert_eq!(outcomes(&script.view(&[b"\x02"])), ["c2"]);
    assert_eq!(*script.replica_reports.borrow(), [(2, true)]);
    assert_eq!(script.ended(), [Rid(2)]);
}

#[test]
fn beyond_the_bytes_that_views_may_hold_they_are_copies() {
    let script = Script::default();
    let keys: [&[u8]; 4] = [b"\x02", b"\x04", b"\x06", b"\x08"];
    let mut views = script.view(&keys);
    assert_eq!(outcomes(&views), ["b2", "b4", "b6", "c8"]);
    drop(views.remove(0));
    let more = script.view(&keys);
    assert_eq!(outcomes(&more), ["b2", "c4", "c6", "c8"], "what ends makes room");
    drop((views, more));
    let ended = script.ended();
    assert_eq!(ended.len(), 8, "each pin is released: {ended:?}");
    assert_eq!(outcomes(&ready(view(&script, &keys[..1], 0))), ["c2"]);
    assert_eq!(script.asked.borrow().len(), 2, "without room for any nothing is pinned");
}

#[test]
fn a_round_takes_the_room_that_is_left_and_gives_it_back_whatever_becomes_of_it() {
    let script = Script::default();
    let keys = vec![&b"\0"[..]; 2 * CHANGED_KEYS + 10];
    let held = VIEWS_MAX - CHANGED_KEYS - 5;
    script.pins.borrow_mut().take_room(held);
    script.pin_fails.set(true);
    let views = script.view(&keys);
    assert_eq!(*script.asked.borrow(), [CHANGED_KEYS, CHANGED_KEYS, 10], "misses keep no room");
    assert!(views[..CHANGED_KEYS].iter().all(Result::is_err), "the first request failed, and its keys with it");
    assert!(views[CHANGED_KEYS..].iter().all(|view| matches!(view, Ok(None))));
    script.pins.borrow_mut().take_room(CHANGED_KEYS);
    assert_eq!(outcomes(&script.view(&keys[..8])), ["-"; 8]);
    assert_eq!(script.asked.borrow()[3..], [5]);
    assert_eq!(script.copied.borrow().len(), 3, "there is no room for those");
    script.pins.borrow_mut().take_room(5);
    script.view(&[b"\x02"]);
    assert_eq!(script.asked.borrow().len(), 4, "nothing is asked for without any");
}

#[test]
fn their_mutants_are_noticed() {
    assert!(is_noticed_by(
        Mutant::UnknownPinsBeginViews,
        a_pin_that_the_master_is_said_not_to_know_while_its_link_is_made_begins_no_view
    ));
    assert!(is_noticed_by(
        Mutant::ViewsAreNotVouchedFor,
        whether_the_owner_waits_for_this_store_is_asked_once_the_link_is_there
    ));
}
