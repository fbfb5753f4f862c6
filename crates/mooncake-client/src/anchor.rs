//! The anchor: the connection that is the session, and the one thread that
//! keeps it. Heartbeats, what the master asks of an owner, and the way back
//! after either side was away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mooncake_memory::{ProcessIdentity, forked};
use mooncake_transfer::{Fence, Reign, Uuid};
use mooncake_wire::message::{
    AnchorDown, AnchorUp, Beat, EpochTaken, Goodbye, HelloReply, LogPosition, OpenSession,
    ProcessIdentity as WireProcess, ResumeSession, anchor_down, anchor_up, hello, refusal,
};
use mooncake_wire::{Feature, MAX_FRAME};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::{Address, Connection, ConnectionError, Patience};
use crate::control::Control;
use crate::directory::{Directory, wire_process};
use crate::error::{Cause, StoreError};
use crate::link_set::LinkSet;
use crate::machine::pins::Verdict;
use crate::machine::position::reign_of;
use crate::master_address::MasterAddress;
use crate::segment_owner::{SegmentOwner, Suspect};
use crate::session::Session;

/// Time between two beats.
const BEAT: Duration = Duration::from_millis(500);

/// Time between two pings of a master that does not answer.
const PING: Duration = Duration::from_millis(100);

/// How long a master keeps a session that is away; after that it has nothing left to end.
const RETENTION: Duration = Duration::from_secs(600);

/// Time between two tries to reach a master again.
const RECONNECT: Duration = Duration::from_millis(100);

/// Without a word for this long the connection is given up for a new one.
const SILENCE: Duration = Duration::from_secs(4);

/// Longest time for one try to reach one master.
const TRY: Duration = Duration::from_secs(3);

/// What the anchor looks after.
#[derive(Debug)]
pub(crate) struct Shared {
    pub control: Arc<Control>,
    pub links: LinkSet,
    pub directory: Directory,
    pub owner: OnceLock<Arc<SegmentOwner>>,
    pub name: String,
    pub process: ProcessIdentity,
    /// Shown to owners of what this process maps: see [`mooncake_transfer::LinkOptions::mark`].
    pub mark: u64,
    /// The store is being closed.
    pub closing: AtomicBool,
    /// It is closed; the session goes on until its last view ends.
    pub ending: AtomicBool,
}

/// Reaches a master of the list and begins a session.
pub(crate) fn open_first(
    masters: &MasterAddress,
    name: &str,
    process: &ProcessIdentity,
    mark: u64,
    check: &dyn Fn() -> Result<(), ConnectionError>,
) -> Result<(Connection, Session, LogPosition), StoreError> {
    let mut reasons = Vec::new();
    let patience_ends = Instant::now() + TRY;
    let mut index = 0;
    while index < masters.len() {
        let role = open_role(name, process, mark);
        let patience = Patience { deadline: Instant::now() + TRY, check };
        match open_at(masters, index, role, LogPosition::default(), &patience) {
            Ok((connection, reply, address)) => match reply.refusal {
                None => {
                    let session = Session::new(&reply, address, connection.local_ip(), &process.boot_id);
                    return Ok((connection, session, reply.position.unwrap_or_default()));
                }
                Some(refusal) => {
                    let what = "to begin a session";
                    return Err(Cause::Refused { master: masters.to_string(), what, reason: refusal.reason }.into());
                }
            },
            Err(Unreached::Interrupted) => return Err(Cause::Interrupted.into()),
            // A master with too many connections that have not said yet who they are ends the newest.
            Err(Unreached::Cut(_)) if Instant::now() < patience_ends => {
                std::thread::sleep(RECONNECT);
                continue;
            }
            Err(Unreached::Cut(reason) | Unreached::Failed(reason)) => reasons.push(reason),
        }
        index += 1;
    }
    Err(Cause::MasterUnreachable { master: masters.to_string(), reason: reasons.join("; ") }.into())
}

enum Unreached {
    Interrupted,
    /// Somebody listens there, and hung up before an answer.
    Cut(String),
    Failed(String),
}

fn open_role(name: &str, process: &ProcessIdentity, mark: u64) -> hello::Role {
    let process = WireProcess { mark, ..wire_process(process) };
    hello::Role::Open(OpenSession { host_name: name.to_owned(), process: Some(process) })
}

fn open_at(
    masters: &MasterAddress,
    index: usize,
    role: hello::Role,
    highest: LogPosition,
    patience: &Patience<'_>,
) -> Result<(Connection, HelloReply, Address), Unreached> {
    let addresses = masters.resolve(index, patience).map_err(|error| match error {
        ConnectionError::Interrupted => Unreached::Interrupted,
        error => Unreached::Failed(error.to_string()),
    })?;
    let mut reason = "it has no address".to_owned();
    let mut cut = false;
    for address in addresses {
        let at = Address::Tcp(address);
        match Connection::open(&at, role.clone(), highest, patience) {
            Ok((connection, reply)) => return Ok((connection, reply, at)),
            Err(ConnectionError::Interrupted) => return Err(Unreached::Interrupted),
            Err(error) => {
                cut = matches!(&error, ConnectionError::Io(error) if is_cut(error));
                reason = format!("{address}: {error}");
            }
        }
    }
    Err(if cut { Unreached::Cut(reason) } else { Unreached::Failed(reason) })
}

fn is_cut(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Starts the thread.
pub(crate) fn start(shared: Arc<Shared>, connection: Connection) -> Result<std::thread::JoinHandle<()>, StoreError> {
    let thread = std::thread::Builder::new().name("mooncake-anchor".into());
    let shown = shared.control.position();
    let spawned = mooncake_transfer::thread::start(thread, move || {
        let mut anchor = Anchor {
            shared,
            connection: Some(connection),
            next_beat: Instant::now(),
            number: 0,
            last_try: Instant::now(),
            ending_since: None,
            next_master: 0,
            shown,
            facts: Vec::new(),
        };
        anchor.run();
    });
    spawned.map_err(|error| Cause::Setup { what: "starting a thread", reason: error.to_string() }.into())
}

struct Anchor {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    next_beat: Instant,
    /// Of the last beat.
    number: u64,
    last_try: Instant,
    /// Since when the last view of a closed store has ended.
    ending_since: Option<Instant>,
    next_master: usize,
    /// What this master has shown of its log: which one it is, and in which reign.
    shown: LogPosition,
    /// Sent, and of those that nobody asks for a second time: with the beat behind them, whose pong says that they came.
    facts: Vec<(u64, AnchorUp)>,
}

impl Anchor {
    fn run(&mut self) {
        let control = self.shared.control.clone();
        while !control.is_stopped() && !forked() {
            if self.is_ending() && self.has_ended() {
                control.stop();
                return;
            }
            if control.take_wants_resume() {
                self.connection = None;
                self.last_try = Instant::now() - RECONNECT;
            }
            match self.connection.is_some() {
                true => {
                    if let Err(error) = self.turn() {
                        if !self.shared.closing.load(Ordering::Acquire) {
                            tracing::info!(master = %control.masters, %error, "anchor lost; reconnecting");
                        }
                        self.connection = None;
                    }
                }
                false => self.reconnect(),
            }
        }
    }

    /// Nothing is left that the master has to be told. What it holds for this
    /// session is held until it hears so: without a connection that waits.
    fn has_ended(&mut self) -> bool {
        if !self.shared.control.pins.lock().seal() {
            self.ending_since = None;
            return false;
        }
        let since = *self.ending_since.get_or_insert_with(Instant::now);
        if self.connection.is_some() && self.shared.control.pins.lock().is_empty() {
            self.say_goodbye();
            return true;
        }
        since.elapsed() > RETENTION
    }

    fn is_ending(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// One round: waits for something to do, hears the master, tells it.
    fn turn(&mut self) -> Result<(), ConnectionError> {
        let shared = self.shared.clone();
        let control = &shared.control;
        let interval = if control.reach.is_unreachable() { PING } else { BEAT };
        self.next_beat = self.next_beat.min(Instant::now() + interval);
        let wait = self.next_beat.saturating_duration_since(Instant::now());
        let readable = self.wait(wait)?;
        if readable {
            let connection = self.connection();
            match connection.fill(true) {
                Ok(()) | Err(ConnectionError::Deadline) => {}
                Err(error) => return Err(error),
            }
            while let Some(message) = self.connection().next::<AnchorDown>(MAX_FRAME)? {
                self.hear(message);
            }
        }
        if control.reach.silence(control.now()) > SILENCE {
            let silent = std::io::Error::new(std::io::ErrorKind::TimedOut, "no word from the master");
            return Err(silent.into());
        }
        let owner = shared.owner.get();
        let due = Instant::now() >= self.next_beat
            || control.take_wants_ping()
            || control.pins.lock().wants_to_send()
            || owner.is_some_and(|owner| owner.wants_to_report());
        self.tell(due)
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("a turn is only taken with a connection")
    }

    /// True when the master has said something.
    fn wait(&mut self, wait: Duration) -> Result<bool, ConnectionError> {
        let shared = self.shared.clone();
        let timeout = timespec(wait);
        let connection = self.connection();
        let mut fds = [
            PollFd::from_borrowed_fd(connection.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(shared.control.bell.fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            shared.control.bell.hush();
        }
        Ok(!fds[0].revents().is_empty())
    }

    /// Sends what is queued, and a beat if one is due.
    fn tell(&mut self, beat: bool) -> Result<(), ConnectionError> {
        let shared = self.shared.clone();
        let control = &shared.control;
        let check = || if control.is_stopped() { Err(ConnectionError::Interrupted) } else { Ok(()) };
        let patience = Patience { deadline: Instant::now() + TRY, check: &check };
        let mut queued = control.take_up();
        let mut sent = 0;
        let mut outcome = Ok(());
        let next = self.number + 1;
        for message in &queued {
            outcome = self.connection().send(message, &patience);
            if outcome.is_err() {
                break;
            }
            if !is_asked_for_again(message) {
                self.facts.push((next, message.clone()));
            }
            sent += 1;
        }
        if outcome.is_err() {
            // The master answers a fence twice gladly; it must not miss one.
            queued.drain(..sent);
            control.put_back_up(queued);
            return outcome;
        }
        if self.connection().knows(Feature::ReaderGone) {
            let deaths = control.deaths.lock().to_tell(control.now());
            for body in deaths {
                // Those that did not get through are told again over the next connection.
                self.connection().send(&AnchorUp { body: Some(body) }, &patience)?;
            }
        }
        if beat {
            self.number += 1;
            let (unpin_sequence, unpin) =
                control.pins.lock().to_send(|| control.sequences.lock().begin()).unwrap_or_default();
            let populated = shared.owner.get().map(|owner| owner.newly_populated());
            let beat = Beat {
                number: self.number,
                moved: control.progress.lock().moved(control.now()),
                populated: populated.unwrap_or_default(),
                unpin,
                unpin_sequence,
            };
            self.connection().send(&AnchorUp { body: Some(anchor_up::Body::Beat(beat)) }, &patience)?;
            let interval = if control.reach.is_unreachable() { PING } else { BEAT };
            self.next_beat = Instant::now() + interval;
        }
        Ok(())
    }

    fn hear(&mut self, message: AnchorDown) {
        let shared = self.shared.clone();
        let control = &shared.control;
        match message.body {
            Some(anchor_down::Body::Pong(pong)) => {
                control.reach.pong(control.now());
                self.facts.retain(|(beat, _)| *beat > pong.number);
                if control.pins.lock().confirmed(pong.unpin_sequence) {
                    control.sequences.lock().answered(pong.unpin_sequence);
                }
                if let Some(position) = pong.position {
                    self.see(position);
                }
                // Cheap when there is nothing new to obey and nobody asks.
                shared.links.obey(reign_of(&self.shown));
            }
            Some(anchor_down::Body::Fence(fence)) => {
                let Some(uuid) = uuid(&fence.uuid) else { return };
                let fence = Fence {
                    uuid,
                    rid: fence.rid,
                    offset: fence.offset,
                    len: fence.length,
                    writer: fence.writer,
                    writer_done: fence.writer_done,
                };
                if let Some(owner) = shared.owner.get() {
                    owner.fence(fence);
                }
            }
            Some(anchor_down::Body::Recheck(recheck)) => {
                if let (Some(owner), Some(uuid)) = (shared.owner.get(), uuid(&recheck.uuid)) {
                    owner.recheck(Suspect {
                        uuid,
                        rid: recheck.rid,
                        offset: recheck.offset,
                        length: recheck.length,
                        crc: recheck.crc32c,
                    });
                }
            }
            Some(anchor_down::Body::TakeEpoch(take)) => {
                // Before it is obeyed: whatever becomes of this connection, the next hello shows which reign that was.
                self.see(LogPosition { lsn: 0, epoch: take.epoch, reign: take.reign, ..self.shown });
                match shared.owner.get() {
                    Some(owner) if owner.take_epoch(Reign { epoch: take.epoch as u16, id: take.reign }) => {}
                    // Two reigns have begun that epoch. The next hello has the master leave it.
                    Some(_) => {
                        control.note_position(&LogPosition { lsn: u64::MAX, ..self.shown });
                        control.resume_anew();
                    }
                    None => control
                        .tell(anchor_up::Body::EpochTaken(EpochTaken { epoch: take.epoch, segments: Vec::new() })),
                }
                shared.links.obey(reign_of(&self.shown));
            }
            Some(anchor_down::Body::SegmentGone(gone)) => {
                let Some(uuid) = uuid(&gone.uuid) else { return };
                let pinned: Vec<(u64, u64)> = gone.pinned.iter().map(|extent| (extent.offset, extent.length)).collect();
                shared.directory.forget(gone.number);
                if let Some(owner) = shared.owner.get() {
                    owner.segment_gone(uuid, &pinned);
                }
                // Also of this store's own memory: a link to it keeps it mapped.
                shared.links.forget(uuid, &pinned);
            }
            Some(anchor_down::Body::SessionOver(_)) if shared.closing.load(Ordering::Acquire) => {}
            Some(anchor_down::Body::SessionOver(over)) => {
                tracing::warn!(master = %control.masters, reason = over.reason, "the master ended this session");
                control.resume_anew();
            }
            Some(anchor_down::Body::ReaderGoneTaken(taken)) => control.deaths.lock().taken(taken.session, &taken.uuid),
            None => tracing::debug!("the master said something newer than this client"),
        }
    }

    /// The master has shown a position, which may be one that an earlier message has gone beyond.
    fn see(&mut self, position: LogPosition) {
        self.shared.control.note_position(&position);
        if position.epoch >= self.shown.epoch {
            self.shown = position;
        }
    }

    // ------------------------------------------------------------ way back

    fn reconnect(&mut self) {
        let shared = self.shared.clone();
        let control = &shared.control;
        let rest = RECONNECT.saturating_sub(self.last_try.elapsed());
        if !rest.is_zero() {
            let _ = poll(&mut [PollFd::from_borrowed_fd(control.bell.fd(), PollFlags::IN)], Some(&timespec(rest)));
            control.bell.hush();
            return;
        }
        self.last_try = Instant::now();
        // The connection may have ended before they came.
        control.put_back_up(self.facts.drain(..).map(|(_, fact)| fact).collect());
        let index = self.next_master;
        self.next_master = (index + 1) % control.masters.len();
        match self.resume_at(index) {
            Ok(()) => {
                control.explain(None);
                self.next_master = index;
            }
            Err(reason) => {
                if control.explain(Some(&reason)) && !shared.closing.load(Ordering::Acquire) {
                    tracing::warn!(master = %control.masters, reason, "not reconnected yet");
                }
            }
        }
    }

    fn resume_at(&mut self, index: usize) -> Result<(), String> {
        let shared = self.shared.clone();
        let control = &shared.control;
        let check = || if control.is_stopped() { Err(ConnectionError::Interrupted) } else { Ok(()) };
        let patience = Patience { deadline: Instant::now() + TRY, check: &check };
        let open = |role| {
            open_at(&control.masters, index, role, control.position(), &patience).map_err(|error| match error {
                Unreached::Interrupted => "interrupted".to_owned(),
                Unreached::Cut(reason) | Unreached::Failed(reason) => reason,
            })
        };

        let session = control.session();
        let held = shared.owner.get().map(|owner| owner.held()).unwrap_or_default();
        // Before the list is made: a view whose reply is here by now is on it, or comes too late for it and is void.
        let (settled_below, mut unsettled) = control.sequences.lock().settled();
        let listing = control.pins.lock().list();
        unsettled.retain(|sequence| !listing.held_back.contains(sequence));
        let role = hello::Role::Resume(ResumeSession {
            session: session.id,
            secret: session.secret,
            process: Some(wire_process(&shared.process)),
            host_name: shared.name.clone(),
            segments: held.iter().map(|(uuid, _)| uuid.to_vec().into()).collect(),
            pins: listing.rids.clone(),
            // A master that does not know of the epochs below opens all of the segments by this one.
            epoch_taken: held.iter().map(|(_, taken)| u32::from(*taken)).min().unwrap_or(0),
            settled_below,
            unsettled,
            list: listing.number,
            epochs: held.iter().map(|(_, taken)| u32::from(*taken)).collect(),
        });
        let (connection, reply, address) = match open(role) {
            Ok(opened) => opened,
            Err(reason) => {
                control.pins.lock().unlist(listing);
                return Err(reason);
            }
        };
        let resumed = match &reply.refusal {
            None => true,
            Some(refusal) if refusal.kind() == refusal::Kind::UnknownSession => false,
            Some(refusal) => {
                control.pins.lock().unlist(listing);
                return Err(refusal.reason.clone());
            }
        };
        if let Some(replaced) = listing.replaced() {
            control.sequences.lock().answered(replaced);
        }
        control.pins.lock().arrived().into_iter().for_each(|sequence| control.sequences.lock().answered(sequence));
        if resumed {
            let local_ip = connection.local_ip();
            let again = Session::new(&reply, address, local_ip, &shared.process.boot_id);
            // Before any epoch is obeyed.
            let another = reply.instance[..] != session.instance[..];
            if control.pins.lock().listed(&listing, self.verdict(&reply), another) {
                control.resume_anew();
            }
            if !control.pins.lock().all_listed() {
                tracing::warn!(
                    master = %control.masters, named = reply.unknown_pins.len(),
                    "the master's log has lost views of this store; segments that they are over take nothing until they end"
                );
            }
            self.connected(connection, &reply);
            control.set_session(Session { id: session.id, secret: session.secret, ..again });
            tracing::info!(master = %control.masters, session = session.id, "session resumed");
            if let Some(owner) = shared.owner.get() {
                owner.report_again();
                let gone: Vec<Uuid> = reply.gone_segments.iter().filter_map(|gone| uuid(gone)).collect();
                owner.replace(|uuid| gone.contains(uuid));
            }
            return Ok(());
        }

        if shared.closing.load(Ordering::Acquire) {
            // The master has ended it, as asked. Nothing is to begin any more.
            if self.is_ending() {
                control.stop();
            }
            return Err("the store is being closed".into());
        }
        // Everything that hung on the old session is void: placements, pins, segments.
        let (connection, reply, address) = open(open_role(&shared.name, &shared.process, shared.mark))?;
        if let Some(refusal) = &reply.refusal {
            return Err(refusal.reason.clone());
        }
        let next = Session::new(&reply, address, connection.local_ip(), &shared.process.boot_id);
        tracing::warn!(
            master = %control.masters, old = session.id, new = next.id,
            "the master does not know the session any more; a new one has begun, with fresh memory"
        );
        control.pins.lock().start_over();
        control.progress.lock().start_over();
        control.deaths.lock().start_over();
        control.take_up();
        shared.directory.start_over();
        self.connected(connection, &reply);
        control.set_session(next);
        if let Err(error) = shared.links.start_over() {
            tracing::error!(%error, "no new links for the new session");
        }
        if let Some(owner) = shared.owner.get() {
            owner.replace(|_| true);
        }
        Ok(())
    }

    /// What a master says of the views that it was given a list of. An older one says nothing: if it reigns as before, it
    /// has lost none.
    fn verdict<'a>(&self, reply: &'a HelloReply) -> Verdict<'a> {
        if Feature::UnknownPins.is_in(reply.features) {
            return Verdict::Unknown(&reply.unknown_pins);
        }
        match &reply.position {
            Some(position)
                if position.epoch == self.shown.epoch && !reign_of(position).clashes_with(reign_of(&self.shown)) =>
            {
                Verdict::Unchanged
            }
            _ => Verdict::Silent,
        }
    }

    fn connected(&mut self, connection: Connection, reply: &HelloReply) {
        if let Some(position) = &reply.position {
            self.shared.control.note_position(position);
            self.shown = *position;
            self.shared.links.obey(reign_of(position));
        }
        self.shared.control.deaths.lock().tell_again();
        self.connection = Some(connection);
        self.next_beat = Instant::now();
    }

    fn say_goodbye(&mut self) {
        let check = || Ok(());
        let patience = Patience { deadline: Instant::now() + Duration::from_millis(100), check: &check };
        if let Some(connection) = &mut self.connection {
            let goodbye = AnchorUp { body: Some(anchor_up::Body::Goodbye(Goodbye {})) };
            // The end of the connection and of the process say it too.
            let _ = connection.send(&goodbye, &patience);
        }
    }
}

/// Whether nothing is lost for good with a message: the master asks once more for what it has asked for, the next beat
/// says what the last one said, and nothing comes behind a goodbye.
fn is_asked_for_again(message: &AnchorUp) -> bool {
    use anchor_up::Body::{Beat, EpochTaken, FenceDone, Goodbye, Rechecked};
    matches!(&message.body, None | Some(Beat(_) | FenceDone(_) | Rechecked(_) | EpochTaken(_) | Goodbye(_)))
}

fn uuid(bytes: &[u8]) -> Option<Uuid> {
    bytes.try_into().ok()
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as _, tv_nsec: duration.subsec_nanos() as _ }
}

#[cfg(test)]
mod tests {
    use mooncake_wire::MAX_HELLO_FRAME;
    use mooncake_wire::message::Hello;
    use prost::Message;

    use super::*;
    use crate::machine::pins::MAX_VIEWS;
    use crate::machine::sequences::MAX_UNSETTLED;
    use crate::segment_owner::MAX_SEGMENTS;

    #[test]
    fn whatever_a_store_holds_it_can_come_back_with() {
        let most = u64::MAX;
        let position = LogPosition { log_id: most, epoch: u32::MAX, lsn: most, reign: u32::MAX };
        let process = ProcessIdentity { boot_id: [9; 16], pid: u32::MAX, start_time: most, pid_namespace: most };
        let resume = ResumeSession {
            session: most,
            secret: most,
            process: Some(wire_process(&process)),
            host_name: "n".repeat(1 << 10),
            segments: vec![vec![9; 16].into(); MAX_SEGMENTS],
            pins: vec![most; MAX_VIEWS],
            epoch_taken: u32::MAX,
            settled_below: most,
            unsettled: vec![most; MAX_UNSETTLED],
            epochs: vec![u32::MAX; MAX_SEGMENTS],
            list: most,
        };
        let hello = Hello { highest: Some(position), role: Some(hello::Role::Resume(resume)), ..Hello::default() };
        // And what a later version may add: some more about each of its segments.
        assert!(hello.encoded_len() + 32 * MAX_SEGMENTS < MAX_HELLO_FRAME, "{}", hello.encoded_len());
        // The master names those of them that it does not know.
        let (gone_segments, unknown_pins) = (vec![vec![9; 16].into(); MAX_SEGMENTS], vec![most; MAX_VIEWS]);
        let reply = HelloReply { gone_segments, unknown_pins, ..HelloReply::default() };
        assert!(reply.encoded_len() < MAX_HELLO_FRAME);
    }
}
