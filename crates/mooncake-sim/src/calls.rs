//! Calls of a store to its master: one connection each, tried again under the same number while there is patience.

use std::time::Duration;

use mooncake_wire::message::{AttachCall, Reply, Request, hello, refusal, reply, request};

use crate::directory::Numbering;
use crate::master::{FromMaster, ToMaster};
use crate::store::{Session, Store};

/// Rest between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// What becomes of a mutation whose answer never came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abandoned {
    /// Whatever it did may stay; what it has not done yet, it is not to do behind the calls that follow.
    Stays,
    /// It ends something, and whether it comes late is all the same.
    Forgotten,
    /// Pins that it may have been given are voided.
    VoidsPins,
}

/// A reply, and what its segment numbers mean.
#[derive(Debug)]
pub(crate) struct Answer {
    pub body: reply::Body,
    pub numbering: Numbering,
    /// Session that the call was made in.
    pub session: Session,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// None came in time.
    Late,
    /// The master refuses.
    Refused(String),
}

enum Lost {
    Session(Session),
    Connection,
}

impl Store {
    /// A call that changes nothing.
    pub(crate) async fn query(&self, body: request::Body, patience: Duration) -> Result<Answer, NoAnswer> {
        let mut request = Request { body: Some(body), ..Request::default() };
        self.call(&mut request, patience).await.0
    }

    /// A call that changes something: made once, however often it is sent.
    pub(crate) async fn mutate(
        &self,
        body: request::Body,
        patience: Duration,
        abandoned: Abandoned,
    ) -> Result<Answer, NoAnswer> {
        let sequence = self.inner.sequences.borrow_mut().begin();
        let mut request = Request { sequence, body: Some(body), ..Request::default() };
        let (answer, sent) = self.call(&mut request, patience).await;
        let mut sequences = self.inner.sequences.borrow_mut();
        match &answer {
            Ok(_) if abandoned == Abandoned::VoidsPins => {
                if self.inner.pins.borrow_mut().may_settle(sequence) {
                    sequences.answered(sequence);
                }
            }
            Ok(_) => sequences.answered(sequence),
            Err(_) if sent && abandoned != Abandoned::Forgotten => {
                sequences.abandoned(sequence);
                if abandoned == Abandoned::VoidsPins {
                    self.resume_anew();
                }
            }
            Err(_) => sequences.answered(sequence),
        }
        answer
    }

    async fn call(&self, request: &mut Request, patience: Duration) -> (Result<Answer, NoAnswer>, bool) {
        let world = self.inner.world.clone();
        let (by, mut sent) = (world.now() + patience, false);
        let started = world.now();
        while world.now() < by {
            if self.inner.reach.is_unreachable() {
                return (Err(NoAnswer::Late), sent);
            }
            request.id = world.number();
            self.inner.sequences.borrow().tell(request);
            match self.exchange(request, by, &mut sent).await {
                Ok((reply, session, instance)) => {
                    let log_id = reply.position.as_ref().map_or(0, |position| position.log_id);
                    if let Some(position) = &reply.position {
                        self.note_position(position);
                    }
                    match reply.body {
                        Some(reply::Body::Refusal(refusal)) if refusal.kind() == refusal::Kind::UnknownSession => {
                            self.find_session(by).await;
                        }
                        Some(reply::Body::Refusal(refusal)) => return (Err(NoAnswer::Refused(refusal.reason)), sent),
                        Some(body) => {
                            self.inner.sequences.borrow_mut().told_abandoned(&request.abandoned);
                            let numbering = Numbering { log_id, instance };
                            return (Ok(Answer { body, numbering, session }), sent);
                        }
                        None => unreachable!("masters of this world answer with something"),
                    }
                }
                Err(Lost::Session(lost)) => {
                    if self.session().as_ref() == Some(&lost) {
                        self.find_session(by).await;
                    }
                }
                Err(Lost::Connection) => {
                    self.ping();
                    world.sleep(RETRY_PAUSE).await;
                }
            }
        }
        self.inner.reach.expired(started);
        self.ping();
        (Err(NoAnswer::Late), sent)
    }

    async fn exchange(
        &self,
        request: &Request,
        by: Duration,
        sent: &mut bool,
    ) -> Result<(Reply, Session, [u8; 16]), Lost> {
        let session = self.session().ok_or(Lost::Connection)?;
        let role = hello::Role::Attach(AttachCall { session: session.id, secret: session.secret });
        let opened = self.open(session.master, role, self.position(), by).await;
        let ((up, mut down), reply) = opened.ok_or(Lost::Connection)?;
        match reply.refusal {
            Some(refusal) if refusal.kind() == refusal::Kind::UnknownSession => return Err(Lost::Session(session)),
            Some(_) => return Err(Lost::Connection),
            None => {}
        }
        *sent = true;
        up.send(ToMaster::Call(request.clone())).map_err(|_| Lost::Connection)?;
        if self.inner.world.percent(self.inner.world.loss()) {
            // The connection breaks, before or behind what is asked for.
            let cut = up.cutter();
            self.inner.world.after(self.inner.world.below(3_000), cut);
        }
        match self.inner.world.until(by, down.next()).await {
            Some(Ok(FromMaster::Reply(answer))) if answer.id == request.id => {
                let instance = reply.instance[..].try_into().expect("16 bytes");
                Ok((answer, session, instance))
            }
            _ => Err(Lost::Connection),
        }
    }

    /// Has the anchor find out whether there is a session, and waits until it has another one.
    async fn find_session(&self, by: Duration) {
        let (world, lost) = (self.inner.world.clone(), self.session());
        self.resume_anew();
        while self.session() == lost && world.now() < by {
            world.sleep(Duration::from_millis(20)).await;
        }
    }
}
