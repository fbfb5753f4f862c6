use std::cell::RefCell;
use std::collections::VecDeque;

use mooncake_wire::message::{Done, MountReply};

use super::*;
use crate::machine::ready;

const ONE: SegmentUuid = SegmentUuid([1; 16]);

/// An owner of one segment or none, and what its master answers: `None` is nothing that fits.
#[derive(Default)]
struct Script {
    owner: RefCell<Owner<&'static str>>,
    answers: RefCell<VecDeque<Option<Told>>>,
    /// The master's word on what is pinned comes while it is waited for.
    pinned: Option<Pinned>,
    is_stopped: bool,
    log: RefCell<Vec<String>>,
}

impl Script {
    fn new(answers: &[Option<Told>]) -> Script {
        Script { answers: RefCell::new(answers.iter().copied().collect()), ..Script::default() }
    }

    /// It has mounted a segment.
    fn lending(self) -> Script {
        let mut owner = self.owner.borrow_mut();
        owner.mount(None, ONE, "one");
        assert!(owner.mount_answered(ONE, Told::Done, &mut Vec::new()));
        drop(owner);
        self
    }

    fn say(&self, what: impl Into<String>) {
        self.log.borrow_mut().push(what.into());
    }

    fn said(&self) -> Vec<String> {
        self.log.take()
    }

    fn reply(&self, what: &'static str, body: &request::Body) -> Result<reply::Body, StoreError> {
        let name = match body {
            request::Body::Mount(_) => "mount".into(),
            request::Body::Unmount(unmount) => format!("unmount {}", unmount.grace_ms),
            other => panic!("{other:?}"),
        };
        self.say(name);
        let master = || "master".to_owned();
        match self.answers.borrow_mut().pop_front().expect("another answer") {
            Some(Told::Done) if what == "mount" => Ok(reply::Body::Mount(MountReply::default())),
            Some(Told::Done) => Ok(reply::Body::Done(Done::default())),
            Some(Told::Refused) => Err(Cause::BadRequest { master: master(), what, reason: "no".into() }.into()),
            Some(Told::Unanswered) => Err(Cause::CallTimeout { master: master(), what, waited: Duration::ZERO }.into()),
            None => Ok(reply::Body::Done(Done::default())),
        }
    }
}

impl LendingDriver for Script {
    type Memory = &'static str;

    fn now(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn owner(&self) -> impl DerefMut<Target = Owner<&'static str>> {
        self.owner.borrow_mut()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    async fn finish(&self, what: &'static str, body: request::Body) -> Result<reply::Body, StoreError> {
        self.reply(what, &body)
    }

    async fn finish_now(&self, what: &'static str, body: request::Body) -> Result<reply::Body, StoreError> {
        self.say("now");
        self.reply(what, &body)
    }

    fn confused(&self, what: &'static str) -> StoreError {
        Cause::Protocol { master: "master".into(), what }.into()
    }

    fn resume_anew(&self) {
        self.say("resume");
    }

    fn mounted(&self, _: SegmentUuid, memory: &'static str) {
        self.say(format!("{memory} is mounted"));
    }

    async fn wait_for_pins(&self, uuid: SegmentUuid, until: Duration) {
        assert!(until > self.now());
        self.say("wait");
        if let Some(pinned) = &self.pinned {
            self.owner.borrow_mut().segment_gone(uuid, pinned, &mut Vec::new());
        }
    }

    async fn free(&self, memory: &&'static str, pinned: Option<&Pinned>) {
        self.say(format!("free {memory} but {pinned:?}"));
    }

    fn hand_over(&self, out: Vec<Output<&'static str>>) {
        out.into_iter().for_each(|output| self.say(format!("{output:?}")));
    }
}

#[test]
fn memory_whose_mount_was_not_answered_leaves_the_pool_before_it_is_given_back() {
    let mount = |script: &Script| ready(mount(script, None, (ONE, "one"), Mount::default()));
    let script = Script::new(&[Some(Told::Done)]);
    assert_eq!(mount(&script).unwrap(), SegmentId(ONE));
    assert_eq!(script.said(), ["now", "mount", "one is mounted"], "nothing of it comes behind the caller's back");
    for reply in [None, Some(Told::Unanswered)] {
        let script = Script::new(&[reply, Some(Told::Unanswered)]);
        assert!(mount(&script).is_err());
        assert_eq!(script.said(), ["now", "mount", "unmount 0", "resume", "free one but None"]);
        assert!(script.owner.borrow().memories().next().is_none());
    }
    let script = Script::new(&[Some(Told::Refused), Some(Told::Refused)]);
    assert!(mount(&script).is_err());
    assert_eq!(script.said(), ["now", "mount", "unmount 0", "free one but None"], "the master knows that it has none");
}

#[test]
fn what_is_pinned_is_waited_for_once_the_master_has_unmounted_a_segment() {
    let script = Script { pinned: Some(vec![(0, 4)]), ..Script::new(&[Some(Told::Done)]).lending() };
    ready(unmount(&script, SegmentId(ONE), Duration::ZERO)).unwrap();
    assert_eq!(script.said(), ["unmount 0", "wait", "GiveBack { memory: \"one\", pinned: Some([(0, 4)]) }"]);
    assert!(ready(unmount(&script, SegmentId(ONE), Duration::ZERO)).is_err(), "there is no such segment");
    for (told, then) in [(Told::Unanswered, vec!["unmount 9", "resume"]), (Told::Refused, vec!["unmount 9"])] {
        let script = Script::new(&[Some(told)]).lending();
        assert!(ready(unmount(&script, SegmentId(ONE), Duration::from_millis(9))).is_err());
        assert_eq!(script.said(), then);
    }
}

#[test]
fn of_memory_whose_pins_are_known_the_master_is_told_nothing_and_nothing_once_the_store_is_closed() {
    let script = Script::default();
    ready(give_back(&script, ONE, &"one", Some(&vec![(0, 4)])));
    assert_eq!(script.said(), ["free one but Some([(0, 4)])"]);
    let script = Script { is_stopped: true, ..Script::default() };
    ready(give_back(&script, ONE, &"one", None));
    assert_eq!(script.said(), ["free one but None"]);
}

#[test]
fn at_its_end_a_store_takes_back_its_memory_whatever_the_master_says() {
    for (told, then) in [(Told::Done, &["unmount 0", "wait"][..]), (Told::Unanswered, &["unmount 0"])] {
        let script = Script::new(&[Some(told)]).lending();
        ready(close(&script));
        let given = "GiveBack { memory: \"one\", pinned: None }";
        assert_eq!(script.said(), [then, &[given]].concat(), "and no list of what is held follows");
        assert!(script.owner.borrow().memories().next().is_none());
        ready(close(&script));
        assert_eq!(script.said(), [""; 0]);
    }
}
