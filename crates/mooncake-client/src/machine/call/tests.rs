//! Calls against a script of tries, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use mooncake_ids::Rid;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_wire::message::{Ping, PutSlot, PutStart, PutStartReply, Replica, request};

use super::*;
use crate::machine::orphans::{self, OrphanDriver, OrphanedPuts};
use crate::machine::ready;

const SLICE: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_millis(500);

impl Session for u64 {
    fn is(&self, other: &u64) -> bool {
        self == other
    }
}

type Failed = Option<Failure<&'static str>>;

/// How a try goes.
enum Try {
    /// No connection comes about.
    NotSent,
    /// The master refuses the connection.
    Refused(refusal::Kind),
    /// The master does not know what is asked.
    TooOld,
    /// The connection breaks behind the request.
    Broken,
    /// No answer comes.
    Silence,
    /// The store is in this session by the time that the master says that it does not know the one of the try.
    Moved(u64),
    Reply(Option<reply::Body>),
}

/// A store and its master: tries go as the script says, and beyond its end no connection comes about. Time passes in
/// pauses and waits.
struct Script {
    now: Cell<Duration>,
    began: Cell<Duration>,
    timeout: Cell<Duration>,
    session: Cell<u64>,
    /// The one that the anchor finds.
    next_session: Cell<u64>,
    tries: RefCell<VecDeque<Try>>,
    /// The master gives pongs.
    is_heard: Cell<bool>,
    is_forked: Cell<bool>,
    is_stopped: Cell<bool>,
    is_interrupted: Cell<bool>,
    /// The store is closed then.
    stops_at: Cell<Duration>,
    lookup_timeout: Cell<Duration>,
    reachability: Reachability,
    sequences: RefCell<Sequences>,
    pins: RefCell<Pins>,
    position: RefCell<LogPosition>,
    orphans: RefCell<OrphanedPuts<u64>>,
    ids: Cell<u64>,
    /// Requests with their sessions.
    sent: RefCell<Vec<(u64, Request)>>,
    told: RefCell<Vec<&'static str>>,
}

impl Script {
    fn new(tries: impl IntoIterator<Item = Try>) -> Script {
        let script = Script {
            now: Cell::new(Duration::from_secs(9)),
            began: Cell::default(),
            timeout: Cell::new(TIMEOUT),
            session: Cell::new(1),
            next_session: Cell::new(1),
            tries: RefCell::new(tries.into_iter().collect()),
            is_heard: Cell::new(false),
            is_forked: Cell::default(),
            is_stopped: Cell::default(),
            is_interrupted: Cell::default(),
            stops_at: Cell::new(Duration::MAX),
            lookup_timeout: Cell::new(TIMEOUT),
            reachability: Reachability::default(),
            sequences: RefCell::default(),
            pins: RefCell::default(),
            position: RefCell::default(),
            orphans: RefCell::default(),
            ids: Cell::default(),
            sent: RefCell::default(),
            told: RefCell::default(),
        };
        script.reachability.pong(script.now.get());
        script.pass(SLICE);
        script
    }

    /// What comes next goes so.
    fn then(&self, tries: impl IntoIterator<Item = Try>) {
        *self.tries.borrow_mut() = tries.into_iter().collect();
        self.sent.borrow_mut().clear();
        self.told.borrow_mut().clear();
    }

    fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
        assert!(self.now.get() < Duration::from_secs(3600), "it goes on for ever");
        self.is_stopped.set(self.is_stopped.get() || self.now.get() >= self.stops_at.get());
        if self.is_heard.get() {
            self.reachability.pong(self.now.get());
        }
    }

    fn call(&self) -> &Self {
        self.began.set(self.now.get());
        self
    }

    fn query(&self) -> Result<SessionReply<u64>, Failure<&'static str>> {
        ready(query(&self.call(), &mut ping(), true))
    }

    fn mutate(&self, if_unanswered: IfUnanswered) -> Result<SessionReply<u64>, Failure<&'static str>> {
        ready(mutate(&self.call(), &mut ping(), if_unanswered))
    }

    fn finish_in(&self, session: u64) -> Result<Option<SessionReply<u64>>, Failure<&'static str>> {
        ready(finish_in(&self.call(), &session, &mut ping()))
    }

    fn waited(&self) -> Duration {
        self.now.get() - self.began.get()
    }

    fn sessions_of_tries(&self) -> Vec<u64> {
        self.sent.borrow().iter().map(|(session, _)| *session).collect()
    }

    /// Which mutations are answered below, and which are abandoned, as the next one tells them.
    fn told_next(&self) -> (u64, Vec<u64>) {
        let mut request = Request { sequence: u64::MAX, ..Request::default() };
        self.sequences.borrow().tell(&mut request);
        (request.answered_below, request.abandoned)
    }
}

impl CallDriver for &Script {
    type Session = u64;
    type Broken = &'static str;

    fn now(&self) -> Duration {
        self.now.get()
    }

    fn began(&self) -> Duration {
        self.began.get()
    }

    fn deadline(&self) -> Duration {
        self.began.get() + self.timeout.get()
    }

    fn lookup_timeout(&self) -> Duration {
        self.lookup_timeout.get()
    }

    fn is_forked(&self) -> bool {
        self.is_forked.get()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    fn is_interrupted(&self) -> bool {
        self.is_interrupted.get()
    }

    fn is_current(&self, session: &u64) -> bool {
        self.session.get() == *session
    }

    fn next_id(&self) -> u64 {
        self.ids.set(self.ids.get() + 1);
        assert!(self.ids.get() < 10_000, "it is tried for ever");
        self.ids.get()
    }

    fn reachability(&self) -> &Reachability {
        &self.reachability
    }

    fn sequences(&self) -> impl DerefMut<Target = Sequences> {
        self.sequences.borrow_mut()
    }

    fn pins(&self) -> impl DerefMut<Target = Pins> {
        self.pins.borrow_mut()
    }

    fn position(&self) -> impl DerefMut<Target = LogPosition> {
        self.position.borrow_mut()
    }

    async fn exchange(&self, call: &mut Call<'_, Self>) -> Result<(), NoReply<u64, &'static str>> {
        let session = self.session.get();
        let next = self.tries.borrow_mut().pop_front().unwrap_or(Try::NotSent);
        match next {
            Try::NotSent => return Err(NoReply::Broken("no connection")),
            Try::Refused(refusal::Kind::UnknownSession) => return Err(NoReply::Session(session)),
            Try::Refused(kind) => return Err(NoReply::Refused(refused(kind))),
            Try::Moved(to) => {
                self.session.set(to);
                return Err(NoReply::Session(session));
            }
            _ => {}
        }
        let is_too_old = matches!(next, Try::TooOld);
        call.connected(&session, |_| is_too_old.then(|| (Feature::ReaderGone, "0.1".into())))?;
        self.sent.borrow_mut().push((session, call.request().clone()));
        let body = match next {
            Try::Reply(body) => body,
            Try::Silence => loop {
                self.pass(SLICE);
                keep_waiting(self, call.is_interruptible()).map_err(NoReply::Ended)?;
                if self.now() >= self.deadline() {
                    return Err(NoReply::Ended(WaitEnded::Late));
                }
            },
            _ => return Err(NoReply::Broken("reset")),
        };
        let position = Some(LogPosition { log_id: 7, epoch: 1, lsn: 3, epoch_id: 6 });
        call.heard(Reply { id: call.request().id, position, body }, [5; 16])
    }

    fn drop_idle(&self, _: Option<&&'static str>) {
        self.told.borrow_mut().push("drop");
    }

    fn ping(&self) {
        self.told.borrow_mut().push("ping");
    }

    fn resume_anew(&self) {
        self.told.borrow_mut().push("resume");
    }

    async fn pause(&self, time: Duration) {
        self.pass(time);
    }

    async fn another_session(&self, lost: &u64, is_interruptible: bool) {
        self.told.borrow_mut().push("wait");
        while self.is_current(lost) && self.now() < self.deadline() && keep_waiting(self, is_interruptible).is_ok() {
            self.pass(SLICE);
            self.session.set(self.next_session.get());
        }
    }

    fn leave_behind(&self, session: u64, request: Request) {
        orphans::add(*self, session, request);
    }

    fn ended(&self, _: &Request) {
        self.told.borrow_mut().push("ended");
    }
}

impl OrphanDriver for Script {
    type Session = u64;

    fn orphans(&self) -> impl DerefMut<Target = OrphanedPuts<u64>> {
        self.orphans.borrow_mut()
    }

    fn sequences(&self) -> impl DerefMut<Target = Sequences> {
        self.sequences.borrow_mut()
    }

    fn is_current(&self, session: &u64) -> bool {
        self.session.get() == *session
    }

    fn start_worker(&self) -> bool {
        self.told.borrow_mut().push("worker");
        true
    }

    fn call(&self) -> impl CallDriver<Session = u64> {
        Script::call(self)
    }
}

fn ping() -> Request {
    Request { body: Some(request::Body::Ping(Ping {})), ..Request::default() }
}

fn put_start() -> Request {
    let start = PutStart { wait: true, ..PutStart::default() };
    Request { body: Some(request::Body::PutStart(start)), ..Request::default() }
}

fn refused(kind: refusal::Kind) -> Refusal {
    Refusal { kind: kind.into(), reason: "no".into() }
}

fn done() -> Try {
    Try::Reply(Some(reply::Body::PutStart(PutStartReply::default())))
}

fn refuses(kind: refusal::Kind) -> Try {
    Try::Reply(Some(reply::Body::Refusal(refused(kind))))
}

fn placed(rid: Rid) -> Try {
    let slot = PutSlot { replicas: vec![Replica { rid: rid.0, ..Replica::default() }], ..PutSlot::default() };
    Try::Reply(Some(reply::Body::PutStart(PutStartReply { slots: vec![slot] })))
}

#[test]
fn a_mutation_keeps_its_sequence_over_its_tries() {
    let script = Script::new([Try::Broken, Try::NotSent, Try::Broken, done()]);
    let reply = script.mutate(IfUnanswered::Stays).unwrap();
    assert_eq!(reply.numbering, Numbering { log_id: 7, instance: [5; 16] });
    assert_eq!(reply.session, 1);
    let numbers: Vec<_> = script.sent.borrow().iter().map(|(_, request)| (request.sequence, request.id)).collect();
    assert_eq!(numbers, [(1, 1), (1, 3), (1, 4)], "and each try has an id of its own");
    assert_eq!(script.waited(), 3 * RETRY_PAUSE);
    let lost = ["drop", "ping"];
    assert_eq!(*script.told.borrow(), [&lost[..], &lost, &lost, &["ended"]].concat());
    assert_eq!(script.told_next(), (2, vec![]), "it is answered");
    script.then([done()]);
    script.query().unwrap();
    assert_eq!(script.sent.borrow()[0].1.sequence, 0, "a query has none");
}

#[test]
fn placements_of_a_put_without_an_answer_are_left_behind_only_if_it_was_sent() {
    let script = Script::new([]);
    assert!(ready(mutate(&script.call(), &mut put_start(), IfUnanswered::AbortsPlacements)).is_err());
    assert!(script.orphans.borrow_mut().first().is_none());
    assert_eq!(script.told_next(), (2, vec![]), "what was not sent is settled");
    script.reachability.pong(script.now.get());
    script.then([Try::TooOld, Try::TooOld]);
    assert!(ready(mutate(&script.call(), &mut put_start(), IfUnanswered::AbortsPlacements)).is_err());
    assert!(script.orphans.borrow_mut().first().is_none() && script.told_next().0 == 3);
    script.then([Try::Broken]);
    assert!(ready(mutate(&script.call(), &mut put_start(), IfUnanswered::AbortsPlacements)).is_err());
    assert_eq!(script.told.borrow().last(), Some(&"worker"));
    assert_eq!(script.told_next(), (3, vec![]), "its answer is still to come");

    script.is_heard.set(true);
    script.pass(SLICE);
    script.then([Try::Silence, placed(Rid(9)), Try::Silence, done()]);
    ready(orphans::run(&script));
    let sent = script.sent.borrow();
    let [(_, first), (_, again), (_, abort), (_, last)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((first.sequence, again.sequence), (3, 3), "the same request, until the master tells what it did");
    assert!(matches!(&first.body, Some(request::Body::PutStart(start)) if !start.wait));
    let is_abort =
        |body: &Option<Body>| matches!(body, Some(Body::Abort(abort)) if abort.rids == [9] && abort.writer_done);
    assert!(is_abort(&abort.body) && abort.body == last.body, "and what it gave is given up");
    assert_eq!(script.told_next(), (6, vec![]));
}

#[test]
fn what_a_former_session_left_behind_is_not_given_up_in_this_one() {
    let script = Script::new([done()]);
    orphans::abort(&script, &1, vec![Rid(9)], true);
    script.session.set(2);
    ready(orphans::run(&script));
    assert_eq!(script.tries.borrow().len(), 1, "nor is the master waited for");
    orphans::abort(&script, &1, vec![Rid(11)], true);
    assert!(script.orphans.borrow_mut().first().is_none());
}

#[test]
fn a_put_that_the_master_refuses_leaves_nothing_behind_unless_an_earlier_try_was_lost() {
    for kind in [refusal::Kind::BadRequest, refusal::Kind::Overloaded] {
        let script = Script::new([refuses(kind)]);
        script.reachability.pong(script.now.get());
        assert!(ready(mutate(&script.call(), &mut put_start(), IfUnanswered::AbortsPlacements)).is_err());
        assert!(script.orphans.borrow_mut().first().is_none(), "{kind:?} is an answer");
        assert_eq!(script.told_next(), (2, vec![]));
        script.then([Try::Broken, refuses(kind)]);
        assert!(ready(mutate(&script.call(), &mut put_start(), IfUnanswered::AbortsPlacements)).is_err());
        assert!(script.orphans.borrow_mut().first().is_some(), "the first try may have got through");
    }
}

#[test]
fn what_the_master_refuses_to_give_up_is_settled() {
    let script = Script::new([refuses(refusal::Kind::BadRequest)]);
    orphans::abort(&script, &1, vec![Rid(9)], true);
    ready(orphans::run(&script));
    assert_eq!(script.sessions_of_tries(), [1]);
    script.then([Try::Broken, refuses(refusal::Kind::Unspecified)]);
    orphans::add(&script, 1, Request { sequence: 5, ..put_start() });
    ready(orphans::run(&script));
    assert_eq!(script.sessions_of_tries(), [1, 1]);
}

#[test]
fn what_a_master_has_no_time_to_give_up_is_told_again() {
    let script = Script::new([Try::Refused(refusal::Kind::Overloaded), refuses(refusal::Kind::Overloaded), done()]);
    script.is_heard.set(true);
    orphans::abort(&script, &1, vec![Rid(9)], true);
    ready(orphans::run(&script));
    assert_eq!(script.tries.borrow().len(), 0, "not given up before it is done");
    // Nor is what a put without an answer was given, by tries of which one may have got through.
    script.then([Try::Broken, refuses(refusal::Kind::Overloaded), placed(Rid(7)), done()]);
    orphans::add(&script, 1, Request { sequence: 5, ..put_start() });
    ready(orphans::run(&script));
    assert_eq!(script.tries.borrow().len(), 0, "nobody else gives it up");
}

#[test]
fn a_mutation_given_up_on_its_way_is_told_until_the_master_has_answered() {
    let script = Script::new([Try::Silence]);
    script.is_heard.set(true);
    assert!(matches!(script.mutate(IfUnanswered::Stays), Err(Failure::Late { .. })));
    assert_eq!(script.told_next(), (2, vec![1]));
    script.then([Try::Broken, done()]);
    script.query().unwrap();
    assert!(script.sent.borrow().iter().all(|(_, request)| request.abandoned == [1]));
    assert_eq!(script.told_next(), (2, vec![]));
    script.then([]);
    assert!(script.mutate(IfUnanswered::Stays).is_err());
    assert_eq!(script.told_next(), (3, vec![]), "what was not sent cannot be carried out");
    script.then([Try::Broken]);
    assert!(ready(finish(&script.call(), &mut ping())).is_err());
    assert_eq!(script.told_next(), (4, vec![]), "what ends something may come late");
    script.then([Try::Broken]);
    assert!(ready(finish_now(&script.call(), &mut ping())).is_err());
    assert_eq!(script.told_next(), (5, vec![4]), "but not where that is done behind the caller's back");
    script.then([]);
    assert!(ready(finish_now(&script.call(), &mut ping())).is_err());
    assert_eq!(script.told_next(), (6, vec![4]));
}

#[test]
fn pins_that_may_have_been_given_without_an_answer_are_voided_by_a_fresh_list() {
    let script = Script::new([]);
    script.is_heard.set(true);
    assert!(script.mutate(IfUnanswered::VoidsPins).is_err());
    assert!(!script.told.borrow().contains(&"resume"), "none was asked for");
    script.then([Try::Broken]);
    assert!(script.mutate(IfUnanswered::VoidsPins).is_err());
    assert!(script.told.borrow().contains(&"resume"));
    assert_eq!(script.told_next(), (3, vec![2]));
}

#[test]
fn pins_given_while_a_list_is_on_its_way_are_not_settled_before_it_has_arrived() {
    let script = Script::new([done(), done()]);
    script.mutate(IfUnanswered::VoidsPins).unwrap();
    assert_eq!(script.told_next().0, 2);
    script.pins.borrow_mut().list();
    script.mutate(IfUnanswered::VoidsPins).unwrap();
    assert_eq!(script.told_next().0, 2);
    assert_eq!(script.pins.borrow_mut().arrived(), [2]);
}

#[test]
fn what_belongs_to_another_session_ends_without_a_call() {
    let script = Script::new([done()]);
    script.session.set(2);
    assert!(matches!(script.finish_in(1), Ok(None)));
    assert_eq!(*script.told.borrow(), ["ended"], "and the session that there is goes on");
    assert!(script.sent.borrow().is_empty());
    assert_eq!(script.told_next(), (2, vec![]));
}

#[test]
fn what_belongs_to_a_session_that_the_master_does_not_know_is_over_and_the_anchor_finds_out() {
    for unknown in [refuses(refusal::Kind::UnknownSession), Try::Refused(refusal::Kind::UnknownSession)] {
        let script = Script::new([unknown, done()]);
        assert!(matches!(script.finish_in(1), Ok(None)));
        assert_eq!(*script.told.borrow(), ["resume", "ended"]);
    }
    let script = Script::new([done()]);
    assert!(matches!(script.finish_in(1), Ok(Some(SessionReply { session: 1, .. }))), "otherwise it is made");
}

#[test]
fn a_repeated_request_keeps_its_sequence_and_tells_only_what_is_final() {
    let script = Script::new([done()]);
    let mut request = Request { sequence: 4, ..ping() };
    assert!(matches!(ready(repeat(&script.call(), &1, &mut request)), Some(Ok(_))));
    assert_eq!(script.sent.borrow()[0].1.sequence, 4);
    script.then([refuses(refusal::Kind::Unspecified)]);
    assert!(matches!(ready(repeat(&script.call(), &1, &mut request)), Some(Err(Failure::Refused(_)))));
    script.then([refuses(refusal::Kind::UnknownSession)]);
    assert!(matches!(ready(repeat(&script.call(), &1, &mut request)), Some(Err(Failure::Over))));
    script.then([Try::Silence]);
    assert!(ready(repeat(&script.call(), &1, &mut request)).is_none());
}

#[test]
fn a_refusal_ends_a_call() {
    for refusal in [refuses(refusal::Kind::BadRequest), Try::Refused(refusal::Kind::BadRequest)] {
        let script = Script::new([refusal, done()]);
        assert!(matches!(script.query(), Err(Failure::Refused(refusal)) if refusal.reason == "no"));
        assert_eq!((script.waited(), script.tries.borrow().len()), (Duration::ZERO, 1));
    }
    assert!(matches!(Script::new([Try::Reply(None)]).query(), Err(Failure::Confused)));
}

#[test]
fn a_call_of_a_session_that_the_master_does_not_know_is_made_in_the_next_one() {
    for unknown in [refuses(refusal::Kind::UnknownSession), Try::Refused(refusal::Kind::UnknownSession)] {
        let script = Script::new([unknown, done()]);
        script.next_session.set(2);
        assert_eq!(script.mutate(IfUnanswered::Stays).unwrap().session, 2);
        assert_eq!((script.sent.borrow().last().unwrap().0, script.waited()), (2, SLICE));
        assert_eq!(*script.told.borrow(), ["resume", "wait", "ended"]);
    }
    let script = Script::new([refuses(refusal::Kind::UnknownSession)]);
    script.is_heard.set(true);
    let failure = script.query().unwrap_err();
    assert!(matches!(failure, Failure::NoAnswer { last: Some(Obstacle::SessionLost), waited } if waited == TIMEOUT));
}

#[test]
fn a_master_that_is_too_old_is_asked_once_more_over_a_fresh_connection() {
    let script = Script::new([Try::TooOld, done()]);
    script.query().unwrap();
    assert_eq!((&script.told.borrow()[..], script.waited()), (&["drop", "ended"][..], Duration::ZERO));
    script.then([Try::TooOld, Try::TooOld, done()]);
    assert!(matches!(script.query(), Err(Failure::TooOld(Feature::ReaderGone, software)) if software == "0.1"));
    assert!(script.sent.borrow().is_empty());
}

#[test]
fn a_call_is_tried_as_long_as_its_timeout_lasts() {
    let script = Script::new([]);
    script.is_heard.set(true);
    let failure = script.query().unwrap_err();
    let no_connection = Failure::NoAnswer { last: Some(Obstacle::Broken("no connection")), waited: TIMEOUT };
    assert_eq!(format!("{failure:?}"), format!("{no_connection:?}"));
    script.then([Try::Silence]);
    assert!(matches!(script.query(), Err(Failure::Late { waited }) if waited == TIMEOUT));
    assert_eq!(*script.told.borrow(), ["ping", "ended"], "the master lives, and that call alone fails");
    script.then([done()]);
    script.query().unwrap();
}

#[test]
fn calls_fail_at_once_while_no_pong_comes() {
    let script = Script::new([Try::Silence]);
    assert!(matches!(script.query(), Err(Failure::NoAnswer { last: None, waited }) if waited == TIMEOUT));
    script.then([done()]);
    assert!(matches!(script.query(), Err(Failure::Unreachable)));
    assert_eq!((script.waited(), script.tries.borrow().len()), (Duration::ZERO, 1));
    script.reachability.pong(script.now.get());
    script.query().unwrap();
}

#[test]
fn a_long_call_waits_for_a_master_that_is_heard_and_ends_early_otherwise() {
    let script = Script::new([Try::Silence]);
    script.timeout.set(20 * TIMEOUT);
    script.is_heard.set(true);
    assert!(script.query().is_err());
    assert_eq!(script.waited(), 20 * TIMEOUT);
    script.is_heard.set(false);
    script.then([Try::Silence]);
    assert!(script.query().is_err());
    assert_eq!(script.waited(), LONG_CALL_SILENCE + SLICE);
}

#[test]
fn an_interrupt_ends_calls_but_those_that_end_something() {
    let script = Script::new([Try::Silence]);
    script.is_interrupted.set(true);
    assert!(matches!(script.mutate(IfUnanswered::Stays), Err(Failure::Interrupted)));
    assert_eq!((script.waited(), script.told_next()), (SLICE, (2, vec![1])));
    script.is_heard.set(true);
    let calls: [fn(&Script) -> Failed; 3] = [
        |script| ready(finish(&script.call(), &mut ping())).err(),
        |script| script.finish_in(1).err(),
        |script| ready(query(&script.call(), &mut ping(), false)).err(),
    ];
    for call in calls {
        script.then([Try::Silence]);
        assert!(matches!(call(&script), Some(Failure::Late { .. })));
    }
}

#[test]
fn a_closed_store_and_a_forked_child_make_no_call() {
    let script = Script::new([done()]);
    script.is_stopped.set(true);
    assert!(matches!(script.query(), Err(Failure::Closed)));
    script.is_stopped.set(false);
    script.is_forked.set(true);
    assert!(matches!(script.query(), Err(Failure::Forked)));
    assert_eq!(script.tries.borrow().len(), 1);
}

#[test]
fn a_reply_of_another_epoch_of_the_same_number_has_the_store_resume() {
    let script = Script::new([done(), done()]);
    script.query().unwrap();
    assert_eq!((script.position.borrow().lsn, &script.told.borrow()[..]), (3, &["ended"][..]));
    script.position.borrow_mut().epoch_id = 4;
    script.query().unwrap();
    assert_eq!(*script.told.borrow(), ["ended", "resume", "ended"]);
}

#[test]
fn a_session_that_was_lost_before_is_neither_asked_about_nor_waited_for() {
    let script = Script::new([Try::Moved(2), done()]);
    assert_eq!(script.query().unwrap().session, 2);
    assert_eq!((&script.told.borrow()[..], script.waited()), (&["ended"][..], Duration::ZERO));
    let script = Script::new([Try::Moved(2), done()]);
    assert!(matches!(script.finish_in(1), Ok(None)));
    assert_eq!(*script.told.borrow(), ["ended"]);
}

#[test]
fn a_wait_ends_with_the_store_and_when_the_master_counts_as_unreachable() {
    let script = Script::new([Try::Silence]);
    script.is_heard.set(true);
    script.stops_at.set(script.now.get() + 3 * SLICE);
    assert!(matches!(script.query(), Err(Failure::Closed)));
    assert_eq!(script.waited(), 3 * SLICE);
    // Another call has found that out.
    let script = Script::new([Try::Silence]);
    script.call();
    script.pass(TIMEOUT);
    assert!(!script.reachability.expired(script.began.get()));
    assert_eq!(keep_waiting(&&script, true), Err(WaitEnded::Late));
}

#[test]
fn a_call_that_is_not_long_yet_waits_for_a_silent_master_as_long_as_it_may() {
    let script = Script::new([Try::Silence]);
    script.lookup_timeout.set(2 * LONG_CALL_SILENCE);
    script.timeout.set(2 * LONG_CALL_SILENCE);
    assert!(script.query().is_err());
    assert_eq!(script.waited(), 2 * LONG_CALL_SILENCE);
}

#[test]
fn what_is_answered_is_settled_whatever_kind_of_mutation_it_was() {
    let script = Script::new([done()]);
    ready(finish_now(&script.call(), &mut ping())).unwrap();
    assert_eq!(script.told_next(), (2, vec![]));
    script.pins.borrow_mut().list();
    for (if_unanswered, below) in
        [(IfUnanswered::Stays, 3), (IfUnanswered::AbortsPlacements, 4), (IfUnanswered::VoidsPins, 4)]
    {
        script.then([done()]);
        script.mutate(if_unanswered).unwrap();
        assert_eq!(script.told_next(), (below, vec![]), "{if_unanswered:?}");
    }
}

#[test]
fn one_worker_gives_up_all_that_was_left_behind_and_another_one_what_comes_later() {
    let script = Script::new([done(), done(), done()]);
    orphans::abort(&script, &1, vec![], true);
    assert!(script.told.borrow().is_empty(), "there is nothing to give up");
    orphans::abort(&script, &1, vec![Rid(9)], true);
    orphans::abort(&script, &1, vec![Rid(11), Rid(13)], false);
    assert_eq!(*script.told.borrow(), ["worker"]);
    ready(orphans::run(&script));
    let aborts = |script: &Script| -> Vec<(Vec<u64>, bool)> {
        let abort = |request: &Request| match &request.body {
            Some(Body::Abort(abort)) => (abort.rids.clone(), abort.writer_done),
            other => panic!("{other:?}"),
        };
        script.sent.borrow().iter().map(|(_, request)| abort(request)).collect()
    };
    assert_eq!(aborts(&script), [(vec![9], true), (vec![11, 13], false)]);
    script.then([done()]);
    orphans::abort(&script, &1, vec![Rid(15)], true);
    assert_eq!(*script.told.borrow(), ["worker"]);
    ready(orphans::run(&script));
    assert_eq!(aborts(&script), [(vec![15], true)]);
}

#[test]
fn a_closed_store_gives_up_nothing_any_more() {
    let script = Script::new([done()]);
    orphans::abort(&script, &1, vec![Rid(9)], true);
    script.is_stopped.set(true);
    ready(orphans::run(&script));
    assert!(script.sent.borrow().is_empty() && script.orphans.borrow_mut().first().is_none());
}

#[test]
fn beyond_so_many_a_put_without_an_answer_is_settled_at_once() {
    let script = Script::new([]);
    while script.orphans.borrow_mut().abort(1, vec![Rid(9)], true) {}
    let sequence = script.sequences.borrow_mut().begin();
    orphans::add(&script, 1, Request { sequence, ..put_start() });
    assert_eq!(script.told_next(), (sequence + 1, vec![]), "nobody asks for its answer again");
}

#[test]
fn their_mutants_are_noticed() {
    assert!(is_noticed_by(Mutant::SilentMastersAreWaitedFor, calls_fail_at_once_while_no_pong_comes));
    assert!(is_noticed_by(Mutant::ForkedChildrenCall, a_closed_store_and_a_forked_child_make_no_call));
    assert!(is_noticed_by(Mutant::PlacementsAreAbortedOnce, what_a_master_has_no_time_to_give_up_is_told_again));
    assert!(is_noticed_by(
        Mutant::AbandonedMutationsAreNotTold,
        a_mutation_given_up_on_its_way_is_told_until_the_master_has_answered
    ));
}
