//! Calls to the master: for how long they are tried, which numbers they go under, what a lost connection, a lost
//! session and a refusal mean, and what becomes of a mutation whose answer never came.

use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use mooncake_mutant::mutant;
use mooncake_wire::Feature;
use mooncake_wire::message::request::Body;
use mooncake_wire::message::{LogPosition, Refusal, Reply, Request, refusal, reply};

use crate::machine::numbering::Numbering;
use crate::machine::pins::Pins;
use crate::machine::position::raise;
use crate::machine::reachability::Reachability;
use crate::machine::sequences::Sequences;

/// Pause between two tries to reach a master that refuses connections.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// A long call ends early once no pong has come for this long.
const LONG_CALL_SILENCE: Duration = Duration::from_millis(1_200);

/// What one call needs of its store.
pub trait CallDriver: Sized {
    /// Session of the store with a master.
    type Session: Session;
    /// What broke a connection.
    type Broken;

    /// Since a time origin that the driver chooses.
    fn now(&self) -> Duration;

    /// When the call began, since that time origin.
    fn began(&self) -> Duration;

    /// Until when it is tried, since that time origin.
    fn deadline(&self) -> Duration;

    /// For how long a call waits whatever the master says meanwhile.
    fn lookup_timeout(&self) -> Duration;

    /// Whether this process is a forked child of the store's.
    fn is_forked(&self) -> bool;

    /// Whether the store is closed.
    fn is_stopped(&self) -> bool;

    /// Whether the caller wants to stop.
    fn is_interrupted(&self) -> bool;

    /// Whether the store is in this session now.
    fn is_current(&self, session: &Self::Session) -> bool;

    /// A number for a request: no other request on its connection has it.
    fn next_id(&self) -> u64;

    /// Whether the master answers at all.
    fn reachability(&self) -> &Reachability;

    /// The store's, under their lock.
    fn sequences(&self) -> impl DerefMut<Target = Sequences>;

    /// The store's, under their lock.
    fn pins(&self) -> impl DerefMut<Target = Pins>;

    /// The highest position in a log that the store has seen, under its lock.
    fn position(&self) -> impl DerefMut<Target = LogPosition>;

    /// One try, over a connection of the current session: [`Call::connected`] says whether it is sent, [`keep_waiting`]
    /// for how long it waits, and [`Call::heard`] gets the reply to this very request.
    fn exchange(
        &self,
        call: &mut Call<'_, Self>,
    ) -> impl Future<Output = Result<(), NoReply<Self::Session, Self::Broken>>>;

    /// Closes the connections that no call holds. `broken`: what one of them ran into.
    fn drop_idle(&self, broken: Option<&Self::Broken>);

    /// Has the anchor ask for a pong now.
    fn ping(&self);

    /// Has the anchor give the master a fresh list of what this store holds.
    fn resume_anew(&self);

    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;

    /// Waits until the store is in another session, as long as [`keep_waiting`] says and the deadline allows.
    fn another_session(&self, lost: &Self::Session, is_interruptible: bool) -> impl Future<Output = ()>;

    /// Has the placements aborted that the master may have given for a request of this session:
    /// [`crate::machine::orphans::add`].
    fn leave_behind(&self, session: Self::Session, request: Request);

    /// The call has ended: the driver may count it.
    fn ended(&self, request: &Request);
}

/// A session of a store with a master.
pub trait Session: Clone {
    /// Both are the same one, perhaps with another process.
    fn is(&self, other: &Self) -> bool;
}

/// A reply, and what its segment numbers mean.
#[derive(Debug)]
pub struct SessionReply<S> {
    /// What the master says.
    pub body: reply::Body,
    /// Of the segments that it names.
    pub numbering: Numbering,
    /// Session that the call was made in.
    pub session: S,
}

/// What becomes of a mutation whose answer never came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfUnanswered {
    /// Whatever it did may stay; what it has not done yet, it is not to do behind the calls that follow.
    Stays,
    /// Placements that it may have been given are found out and aborted.
    AbortsPlacements,
    /// Pins that it may have been given are voided.
    VoidsPins,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure<B> {
    /// This process is a forked child.
    Forked,
    /// The store is closed.
    Closed,
    /// The caller wants it no more.
    Interrupted,
    /// The master has not answered for a while: calls fail at once until it does.
    Unreachable,
    /// None came in time, and the master was not heard, or a try ran into something.
    NoAnswer {
        /// What a try ran into most recently; a later one may only have waited.
        last: Option<Obstacle<B>>,
        /// For how long it was tried.
        waited: Duration,
    },
    /// None came in time from a master that lives.
    Late {
        /// For how long it was waited for.
        waited: Duration,
    },
    /// The master refuses.
    Refused(Refusal),
    /// The master does not know what is asked, and what it is.
    TooOld(Feature, String),
    /// The only session that the call may be made in is over.
    Over,
    /// The answer says nothing.
    Confused,
}

impl<B> Failure<B> {
    /// Whether the same request need not be made again: its session is over, or the master has decided, or is
    /// too old for it. One that has
    /// too much to do for now decides nothing.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Over | Self::TooOld(..) => true,
            Self::Refused(refusal) => refusal.kind() != refusal::Kind::Overloaded,
            _ => false,
        }
    }
}

/// What a try ran into.
#[derive(Debug)]
pub enum Obstacle<B> {
    /// The master does not know the session.
    SessionLost,
    /// A connection broke.
    Broken(B),
}

/// Why a try gave no reply.
#[derive(Debug)]
pub enum NoReply<S, B> {
    /// The master does not know this session.
    Session(S),
    /// The store is in another session than the one that the call belongs to.
    Elsewhere,
    /// The master refuses the request, or the connection for it.
    Refused(Refusal),
    /// See [`Failure::TooOld`].
    TooOld(Feature, String),
    /// It is not to be waited for any more.
    Ended(WaitEnded),
    /// The connection broke, or none could be made.
    Broken(B),
    /// See [`Failure::Confused`].
    Confused,
}

/// Why a wait ends without what it was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnded {
    /// The caller wants it no more.
    Interrupted,
    /// The wait is pointless: the deadline, a closed store, or a master that says nothing.
    Late,
}

type Outcome<D> = Result<SessionReply<<D as CallDriver>::Session>, Failure<<D as CallDriver>::Broken>>;

/// Makes a call that changes nothing, or that may be made twice. `is_interruptible`: the caller may interrupt it.
pub async fn query<D: CallDriver>(driver: &D, request: &mut Request, is_interruptible: bool) -> Outcome<D> {
    let mut call = Call::new(driver, request, None, is_interruptible);
    call.run().await?;
    call.reply()
}

/// Makes a call that changes something: made once, however often it is sent.
pub async fn mutate<D: CallDriver>(driver: &D, request: &mut Request, if_unanswered: IfUnanswered) -> Outcome<D> {
    let sequence = begin(driver, request);
    let mut call = Call::new(driver, request, None, true);
    let outcome = call.run().await;
    if let Err(failure) = outcome {
        // A master that refuses the only try has carried nothing out: that is an answer as any other.
        let is_answered = matches!(failure, Failure::Refused(_)) && call.last.is_none();
        match (if_unanswered, call.sent_in.filter(|_| !is_answered)) {
            (IfUnanswered::AbortsPlacements, Some(session)) => {
                driver.leave_behind(session, std::mem::take(request));
            }
            (IfUnanswered::VoidsPins, Some(_)) => {
                driver.sequences().abandoned(sequence);
                driver.resume_anew();
            }
            (IfUnanswered::Stays, Some(_)) => driver.sequences().abandoned(sequence),
            (_, None) => driver.sequences().answered(sequence),
        }
        return Err(failure);
    }
    if if_unanswered != IfUnanswered::VoidsPins || driver.pins().may_settle(sequence) {
        driver.sequences().answered(sequence);
    }
    call.reply()
}

/// Makes a mutation that ends something: it goes out although the caller wants to stop.
pub async fn finish<D: CallDriver>(driver: &D, request: &mut Request) -> Outcome<D> {
    let sequence = begin(driver, request);
    let mut call = Call::new(driver, request, None, false);
    let outcome = call.run().await;
    driver.sequences().answered(sequence);
    outcome?;
    call.reply()
}

/// [`finish`] of placements of this session. `None`: it is over, and they with it. In another one their rids may be
/// those of other clients' placements, as numbers begin anew with another log.
pub async fn finish_in<D: CallDriver>(
    driver: &D,
    session: &D::Session,
    request: &mut Request,
) -> Result<Option<SessionReply<D::Session>>, Failure<D::Broken>> {
    let sequence = begin(driver, request);
    let mut call = Call::new(driver, request, Some(session), false);
    let outcome = call.run().await;
    driver.sequences().answered(sequence);
    match outcome {
        Ok(()) => call.reply().map(Some),
        Err(Failure::Over) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// [`finish`] of what must not be carried out behind the caller's back: when the call fails it was done before the next
/// one, or never is.
pub async fn finish_now<D: CallDriver>(driver: &D, request: &mut Request) -> Outcome<D> {
    let sequence = begin(driver, request);
    let mut call = Call::new(driver, request, None, false);
    let outcome = call.run().await;
    match outcome.is_err() && call.sent_in.is_some() {
        true => driver.sequences().abandoned(sequence),
        false => driver.sequences().answered(sequence),
    }
    outcome?;
    call.reply()
}

/// Sends a mutation of this session once more, with the sequence that it had. `None`: there is no telling yet.
pub async fn repeat<D: CallDriver>(driver: &D, session: &D::Session, request: &mut Request) -> Option<Outcome<D>> {
    let mut call = Call::new(driver, request, Some(session), false);
    match call.run().await {
        Ok(()) => Some(call.reply()),
        Err(failure) => failure.is_final().then_some(Err(failure)),
    }
}

/// Whether a wait of a call goes on; to be asked at every slice of it. `is_interruptible`: the caller may interrupt it.
pub fn keep_waiting<D: CallDriver>(driver: &D, is_interruptible: bool) -> Result<(), WaitEnded> {
    if is_interruptible && driver.is_interrupted() {
        return Err(WaitEnded::Interrupted);
    }
    if driver.is_stopped() || driver.reachability().is_unreachable() {
        return Err(WaitEnded::Late);
    }
    // A call may be long; a master that says nothing meanwhile ends it early.
    let now = driver.now();
    let is_long = now.saturating_sub(driver.began()) > driver.lookup_timeout();
    if is_long && driver.reachability().silence(now) > LONG_CALL_SILENCE {
        return Err(WaitEnded::Late);
    }
    Ok(())
}

fn begin<D: CallDriver>(driver: &D, request: &mut Request) -> u64 {
    request.sequence = driver.sequences().begin();
    request.sequence
}

/// A call under way.
#[derive(Debug)]
pub struct Call<'a, D: CallDriver> {
    driver: &'a D,
    request: &'a mut Request,
    /// What it is about belongs to this session: it is made there or not at all.
    bound_to: Option<&'a D::Session>,
    /// The caller may interrupt it.
    is_interruptible: bool,
    asked_anew: bool,
    /// The master may have got it, in this session.
    sent_in: Option<D::Session>,
    heard: Option<(reply::Body, Numbering)>,
    last: Option<Obstacle<D::Broken>>,
}

/// What comes before the next try.
enum BeforeRetry<S> {
    None,
    Pause,
    /// The wait for another session.
    Session(S),
}

impl<'a, D: CallDriver> Call<'a, D> {
    fn new(driver: &'a D, request: &'a mut Request, bound_to: Option<&'a D::Session>, is_interruptible: bool) -> Self {
        Call { driver, request, bound_to, is_interruptible, asked_anew: false, sent_in: None, heard: None, last: None }
    }

    /// What is asked.
    pub fn request(&self) -> &Request {
        self.request
    }

    /// Whether the caller may interrupt it.
    pub fn is_interruptible(&self) -> bool {
        self.is_interruptible
    }

    /// A try has a connection of this session; it is sent over it unless an error says what is in the way. `lacks`:
    /// what the master at the other end does not know of what is asked, and what it is.
    pub fn connected(
        &mut self,
        session: &D::Session,
        lacks: impl FnOnce(&Body) -> Option<(Feature, String)>,
    ) -> Result<(), NoReply<D::Session, D::Broken>> {
        if self.bound_to.is_some_and(|own| !own.is(session)) && !mutant!(EndsGoToAnySession) {
            return Err(NoReply::Elsewhere);
        }
        if let Some((feature, software)) = self.request.body.as_ref().and_then(lacks) {
            return Err(NoReply::TooOld(feature, software));
        }
        self.sent_in = Some(session.clone());
        Ok(())
    }

    /// What was sent is answered, by this instance. An error says that it is none.
    pub fn heard(&mut self, reply: Reply, instance: [u8; 16]) -> Result<(), NoReply<D::Session, D::Broken>> {
        let mut log_id = 0;
        if let Some(position) = &reply.position {
            log_id = position.log_id;
            if raise(&mut self.driver.position(), position) {
                self.driver.resume_anew();
            }
        }
        match (reply.body, &self.sent_in) {
            (Some(reply::Body::Refusal(refusal)), Some(session)) if refusal.kind() == refusal::Kind::UnknownSession => {
                Err(NoReply::Session(session.clone()))
            }
            (Some(reply::Body::Refusal(refusal)), _) => Err(NoReply::Refused(refusal)),
            (Some(body), _) => {
                self.heard = Some((body, Numbering { log_id, instance }));
                Ok(())
            }
            (None, _) => Err(NoReply::Confused),
        }
    }

    /// Tries until it is answered, or is not to be tried again.
    async fn run(&mut self) -> Result<(), Failure<D::Broken>> {
        let driver = self.driver;
        let outcome = loop {
            if let Err(failure) = self.may_call() {
                break Err(failure);
            }
            if mutant!(RetriesAreNew) && self.sent_in.is_some() && self.request.sequence != 0 {
                begin(driver, self.request);
            }
            self.request.id = driver.next_id();
            driver.sequences().tell(self.request);
            let Err(lost) = driver.exchange(self).await else {
                if !self.request.abandoned.is_empty() {
                    driver.sequences().told_abandoned(&self.request.abandoned);
                }
                break Ok(());
            };
            let rest = match self.judge(lost) {
                Ok(rest) => rest,
                Err(failure) => break Err(failure),
            };
            match rest {
                BeforeRetry::None => {}
                BeforeRetry::Pause => driver.pause(RETRY_PAUSE).await,
                BeforeRetry::Session(lost) => driver.another_session(&lost, self.is_interruptible).await,
            }
            if driver.now() >= driver.deadline() {
                break Err(self.fail_at_deadline());
            }
        };
        driver.ended(self.request);
        outcome
    }

    /// What the last try has heard.
    // Every put is here twice: what it gives is large, and moved once less so.
    #[inline(always)]
    fn reply(&mut self) -> Outcome<D> {
        let Some(session) = self.sent_in.take() else { return Err(Failure::Confused) };
        match self.heard.take() {
            Some((body, numbering)) => Ok(SessionReply { body, numbering, session }),
            None => Err(Failure::Confused),
        }
    }

    fn may_call(&self) -> Result<(), Failure<D::Broken>> {
        if self.driver.is_forked() && !mutant!(ForkedChildrenCall) {
            return Err(Failure::Forked);
        }
        if self.driver.is_stopped() {
            return Err(Failure::Closed);
        }
        if self.driver.reachability().is_unreachable() {
            return Err(Failure::Unreachable);
        }
        Ok(())
    }

    /// What comes before the next try, if there is one.
    fn judge(&mut self, lost: NoReply<D::Session, D::Broken>) -> Result<BeforeRetry<D::Session>, Failure<D::Broken>> {
        match lost {
            NoReply::Session(lost) => self.session_lost(lost),
            NoReply::Elsewhere => Err(Failure::Over),
            NoReply::Refused(refusal) => Err(Failure::Refused(refusal)),
            // A connection of the pool may be to a master that is no more: one that was made just now is not.
            NoReply::TooOld(..) if !self.asked_anew => {
                self.asked_anew = true;
                self.driver.drop_idle(None);
                Ok(BeforeRetry::None)
            }
            NoReply::TooOld(feature, software) => Err(Failure::TooOld(feature, software)),
            NoReply::Ended(WaitEnded::Interrupted) => Err(Failure::Interrupted),
            NoReply::Ended(WaitEnded::Late) => Err(self.fail_at_deadline()),
            NoReply::Broken(broken) => {
                self.driver.drop_idle(Some(&broken));
                self.last = Some(Obstacle::Broken(broken));
                self.driver.ping();
                Ok(BeforeRetry::Pause)
            }
            NoReply::Confused => Err(Failure::Confused),
        }
    }

    /// Has the anchor find out that the session is over, if it does not know. What was bound to it ends; other calls
    /// are made in another one.
    fn session_lost(&mut self, lost: D::Session) -> Result<BeforeRetry<D::Session>, Failure<D::Broken>> {
        let is_current = self.driver.is_current(&lost);
        if is_current {
            self.driver.resume_anew();
        }
        if self.bound_to.is_some() {
            return Err(Failure::Over);
        }
        self.last = Some(Obstacle::SessionLost);
        Ok(if is_current { BeforeRetry::Session(lost) } else { BeforeRetry::None })
    }

    fn fail_at_deadline(&mut self) -> Failure<D::Broken> {
        let driver = self.driver;
        if driver.is_stopped() {
            return Failure::Closed;
        }
        let alive = driver.reachability().expired(driver.began());
        driver.ping();
        let waited = driver.now().saturating_sub(driver.began());
        match self.last.take() {
            None if alive => Failure::Late { waited },
            last => Failure::NoAnswer { last, waited },
        }
    }
}

#[cfg(test)]
mod tests;
