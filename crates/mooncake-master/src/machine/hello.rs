//! The handshake: which client is it, may it come in, and what does its memory of the log say?

use std::time::Duration;

use bytes::Bytes;
use mooncake_core::{
    Claim, Core, Effects, Inherited, ListedViews, Resumed, STEP_OBJECTS, SessionSpec, SharedStorage, Sight, Time,
};
use mooncake_ids::{Rid, SegmentUuid, SessionId};
use mooncake_mutant::mutant;
use mooncake_wire::message::{self, Hello, HelloReply, LogPosition, ProcessIdentity, Refusal, hello, refusal};
use mooncake_wire::{FEATURES, Feature, VERSION};
use prost::Message;

use super::anchors::AnchorTable;
use super::convert::{self, NAME_MAX};
use super::core_driver::CoreDriver;
use super::epoch_claim::{EpochClaims, Shown};

/// Sessions with an anchor at a time.
const SESSIONS_MAX: usize = 8192;

const BOOT_ID: usize = 16;

/// Most pins that a reply names: with all else it is well below the limit of a hello's frame.
const UNKNOWN_PINS_MAX: usize = 65_536;

/// Slots of objects that are searched for views in one hold of the core's lock.
pub const SEARCHED: usize = 2_048;

/// What a master tells of itself in each reply.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Random per process.
    pub instance: [u8; 16],
    /// Of this host.
    pub boot_id: [u8; 16],
    /// Abstract name of the Unix socket, empty without one.
    pub unix_socket: String,
    /// Protection of looked-up objects, milliseconds.
    pub lookup_protect_ms: u64,
    /// The pool's name for itself, by which tiers say whose they are.
    pub cluster_id: String,
    /// Where clients may have tiers on a file system that they share.
    pub storage: Option<SharedStorage>,
    /// Whether clients may have tiers on disks of their own.
    pub tiers_allowed: bool,
    /// Where the HTTP pages are, IP:PORT as the master listens.
    pub pages: String,
}

/// Where the master's own log stands, under the core's lock.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Behind every operation so far, whether its record is in the log yet or not.
    pub position: LogPosition,
    /// What the log's id was before an append failed: what was seen under that this very master has done.
    pub first_id: u64,
}

/// A hello that was read, and makes sense.
#[derive(Debug)]
pub struct ReadHello {
    highest: Option<Shown>,
    role: Role,
    /// What the client's version knows of.
    sight: Sight,
}

#[derive(Debug)]
enum Role {
    Open {
        spec: SessionSpec,
        process: ProcessIdentity,
        /// Memory that the new session's process holds, and whose former owner has ended.
        claim: Option<Claim>,
    },
    Resume {
        resume: Box<message::ResumeSession>,
        process: ProcessIdentity,
        segments: Vec<(SegmentUuid, u16)>,
        views: ListedViews,
    },
    Attach(message::AttachCall),
}

/// What a hello is judged by, and what its admission changes. All of it is under the core's lock.
#[derive(Debug)]
pub struct Admission<'a, L> {
    /// The anchors.
    pub anchors: &'a mut L,
    /// How far clients are believed that say that the log lost its end.
    pub claims: &'a mut EpochClaims,
    /// Where the log stands.
    pub log: Standing,
}

/// A hello that was admitted. It may be told once the records that it left are in the log.
#[derive(Debug)]
pub struct Admitted<Q> {
    /// Whose connection it is.
    pub session: SessionId,
    /// What the connection is.
    pub kind: Kind,
    /// The anchor that this one replaces, to be closed at once.
    pub replaced: Option<Q>,
}

/// Segments of a former session that a new one has claimed.
#[derive(Debug)]
pub struct Claimed {
    /// Number of those that it has now.
    pub taken: usize,
    /// The others that it holds: they must not be mounted again.
    pub gone: Vec<SegmentUuid>,
}

/// What an admitted connection is.
#[derive(Debug)]
pub enum Kind {
    /// The anchor of a new session.
    Opened {
        /// The client's name.
        name: String,
        /// Its process, to be watched where that is possible.
        process: ProcessIdentity,
        /// The session's.
        secret: u64,
        /// What became of the memory that it claimed.
        claimed: Option<Claimed>,
    },
    /// The anchor of a session that was away.
    Resumed {
        /// The client's name.
        name: String,
        /// Its process, to be watched where that is possible.
        process: ProcessIdentity,
        /// The session's.
        secret: u64,
        /// Number of segments that it still holds.
        segments: usize,
        /// What it is told.
        resumed: Resumed,
    },
    /// A call connection.
    Attached,
}

impl ReadHello {
    /// Reads a hello. `secret` is random and not 0, for a session that it may open; `anchors` are how many there are.
    pub fn read(hello: Hello, secret: u64, anchors: usize) -> Result<ReadHello, Refusal> {
        if hello.version_min > VERSION || hello.version_max < VERSION {
            let asked = (hello.version_min, hello.version_max);
            let reason = format!("this master speaks version {VERSION}, the client {} to {}", asked.0, asked.1);
            return Err(refuse(refusal::Kind::Version, reason));
        }
        let features = hello.features;
        let highest =
            hello.highest.map(|position| Shown { position, says_epoch_ids: Feature::EpochIds.is_in(features) });
        let bad_request = |reason| refuse(refusal::Kind::BadRequest, reason);
        let role = match hello.role {
            Some(hello::Role::Open(_)) if anchors >= SESSIONS_MAX => {
                return Err(refuse(refusal::Kind::Overloaded, format!("{SESSIONS_MAX} clients are connected already")));
            }
            Some(hello::Role::Open(open)) => {
                let process = open.process.unwrap_or_default();
                check_identity(&open.host_name, &process).map_err(bad_request)?;
                let spec = SessionSpec {
                    secret,
                    name: open.host_name,
                    boot_id: process.boot_id.to_vec(),
                    process: process.encode_to_vec(),
                };
                let claim = open.claim.map(convert::claim).transpose().map_err(bad_request)?;
                Role::Open { spec, process, claim }
            }
            Some(hello::Role::Resume(mut resume)) => {
                let segments = segments_of(features, &resume).map_err(bad_request)?;
                let process = resume.process.take().unwrap_or_default();
                check_identity(&resume.host_name, &process).map_err(bad_request)?;
                let views = ListedViews::new(convert::rids(&resume.pins));
                Role::Resume { resume: Box::new(resume), process, segments, views }
            }
            Some(hello::Role::Attach(attach)) => Role::Attach(attach),
            // The shell answers the first of these before it reads on.
            Some(hello::Role::Ask(_)) | None => {
                return Err(bad_request("the hello asks for no role known here".to_owned()));
            }
        };
        let sight = if Feature::Tiers.is_in(features) { Sight::Tiers } else { Sight::Memory };
        Ok(ReadHello { highest, role, sight })
    }

    /// Looks for views that the client lists and the books do not have, before it is admitted. That may take long, and
    /// the core is free between any two slices of it. True: some are to be [noted](ReadHello::note_views), and then
    /// this goes on.
    pub fn look_for_views<D: CoreDriver>(&mut self, driver: &D) -> bool {
        let Role::Resume { resume, views, .. } = &mut self.role else { return false };
        let session = SessionId(resume.session);
        loop {
            let (is_refused, is_done) = driver.read(|core, _| {
                let is_refused = is_refused(core, resume);
                (is_refused, is_refused || core.look_for_views(session, views, SEARCHED))
            });
            if is_done {
                return !is_refused && views.has_found();
            }
        }
    }

    /// Notes some of the views that were found and the log lost.
    pub fn note_views(&mut self, core: &mut Core, now: Time, effects: &mut Effects) {
        let Role::Resume { resume, views, .. } = &mut self.role else { return };
        if !is_refused(core, resume) {
            core.note_found_views(now, SessionId(resume.session), views, STEP_OBJECTS, effects);
        }
    }

    /// Admits a client that is known, or new. What goes down an anchor goes to `queue`.
    pub fn admit<L: AnchorTable>(
        self,
        core: &mut Core,
        admission: Admission<'_, L>,
        now: Time,
        queue: &L::Queue,
        effects: &mut Effects,
    ) -> Result<Admitted<L::Queue>, Refusal> {
        let Admission { anchors, claims, log } = admission;
        let mut believe = |core: &mut Core, effects: &mut Effects| match &self.highest {
            Some(seen) => believe(core, claims, log, now, seen, effects),
            None => Ok(()),
        };
        let (session, kind) = match self.role {
            Role::Open { spec, process, claim } => {
                believe(core, effects)?;
                let (name, secret) = (spec.name.clone(), spec.secret);
                let opened = match claim {
                    None => core.open_session(now, spec, effects).map(|session| (session, None)),
                    Some(claim) => core.open_heir(now, spec, &claim, effects).map(|Inherited { session, gone }| {
                        (session, Some(Claimed { taken: claim.segments.len() - gone.len(), gone }))
                    }),
                };
                let (session, claimed) = opened.map_err(|refused| convert::refusal(&refused))?;
                (session, Kind::Opened { name, process, secret, claimed })
            }
            Role::Resume { resume, process, segments, views } => {
                let (session, secret) = (SessionId(resume.session), resume.secret);
                // First of all: strangers are not believed.
                if !mutant!(StrangersAreBelieved) {
                    core.check_session(session, secret).map_err(|refused| convert::refusal(&refused))?;
                }
                if !core.is_latest_list(session, resume.list) && !mutant!(OlderListsAreTaken) {
                    let reason = format!("the client has come back since it sent this (list {})", resume.list);
                    return Err(refuse(refusal::Kind::BadRequest, reason));
                }
                believe(core, effects)?;
                core.settle_replies(session, resume.settled_below, &resume.unsettled);
                let resumed = core
                    .resume_session(now, session, secret, &segments, views, effects)
                    .map_err(|refused| convert::refusal(&refused))?;
                let (name, segments) = (resume.host_name, segments.len());
                (session, Kind::Resumed { name, process, secret, segments, resumed })
            }
            Role::Attach(attach) => {
                let session = SessionId(attach.session);
                core.check_session(session, attach.secret).map_err(|refused| convert::refusal(&refused))?;
                believe(core, effects)?;
                (session, Kind::Attached)
            }
        };
        let replaced = match kind {
            Kind::Attached => None,
            _ => {
                core.set_sight(session, self.sight);
                anchors.with_anchors(|anchors| anchors.set(session, queue.clone()))
            }
        };
        Ok(Admitted { session, kind, replaced })
    }
}

impl<Q> Admitted<Q> {
    /// The reply. `watched`: the master learns by itself when the client's process ends.
    pub fn reply(self, watched: bool, identity: &Identity, position: LogPosition) -> HelloReply {
        let (session, pid_proof) = (self.session.0, u32::from(watched));
        let reply = match self.kind {
            Kind::Opened { secret, claimed, .. } => {
                let gone = claimed.map(|claimed| claimed.gone).unwrap_or_default();
                HelloReply { secret, pid_proof, gone_segments: uuids(&gone), ..HelloReply::default() }
            }
            Kind::Resumed { secret, resumed: Resumed { gone, mut unknown_pins }, .. } => {
                if unknown_pins.len() > UNKNOWN_PINS_MAX {
                    unknown_pins = vec![Rid(0)];
                }
                HelloReply {
                    secret,
                    pid_proof,
                    unknown_pins: unknown_pins.iter().map(|rid| rid.0).collect(),
                    gone_segments: uuids(&gone),
                    ..HelloReply::default()
                }
            }
            Kind::Attached => HelloReply::default(),
        };
        signed(HelloReply { session, ..reply }, identity, position)
    }
}

fn uuids(segments: &[SegmentUuid]) -> Vec<Bytes> {
    segments.iter().map(|uuid| uuid.0.to_vec().into()).collect()
}

/// The reply to a hello that asks for nothing else.
pub fn introduced(identity: &Identity, position: LogPosition) -> HelloReply {
    signed(HelloReply::default(), identity, position)
}

/// The reply to a hello that is refused.
pub fn refused(refusal: Refusal, identity: &Identity, position: LogPosition) -> HelloReply {
    signed(HelloReply { refusal: Some(refusal), ..HelloReply::default() }, identity, position)
}

fn signed(reply: HelloReply, identity: &Identity, position: LogPosition) -> HelloReply {
    HelloReply {
        version: VERSION,
        features: FEATURES,
        software: concat!("mooncake-master ", env!("CARGO_PKG_VERSION")).to_owned(),
        position: Some(position),
        instance: identity.instance.to_vec().into(),
        boot_id: identity.boot_id.to_vec().into(),
        unix_socket: identity.unix_socket.clone(),
        lookup_protect_ms: identity.lookup_protect_ms,
        storage: identity.storage.as_ref().map(convert::storage),
        cluster_id: identity.cluster_id.clone(),
        no_tiers: !identity.tiers_allowed,
        pages: identity.pages.clone(),
        ..reply
    }
}

/// Whether a resume is refused anyway: a stranger's, for which the master does not search, or one with an older list,
/// which counts for nothing.
fn is_refused(core: &mut Core, resume: &message::ResumeSession) -> bool {
    let session = SessionId(resume.session);
    core.check_session(session, resume.secret).is_err() || !core.is_latest_list(session, resume.list)
}

/// Raises the epoch if what an admitted client has seen asks for it.
fn believe(
    core: &mut Core,
    claims: &mut EpochClaims,
    log: Standing,
    now: Time,
    seen: &Shown,
    effects: &mut Effects,
) -> Result<(), Refusal> {
    let mut seen = *seen;
    if seen.position.log_id == log.first_id {
        seen.position.log_id = log.position.log_id;
    }
    if let Some(raised) = claims.judge(Duration::from_micros(now.0), log.position, &seen)? {
        core.raise_epoch(now, raised, effects);
    }
    Ok(())
}

/// The segments that an owner still holds, each with the epoch that it has taken. Where the owner is one that says for
/// all of them what it was asked to take, that is 0: it tells what it has done as it is done, and is asked once more
/// for it.
fn segments_of(features: u64, resume: &message::ResumeSession) -> Result<Vec<(SegmentUuid, u16)>, String> {
    convert::epoch(resume.epoch_taken)?;
    let said = if Feature::SegmentEpochs.is_in(features) { &resume.epochs[..] } else { &[] };
    let each = resume.segments.iter().enumerate().map(|(index, uuid)| {
        let epoch = said.get(index).copied().unwrap_or(0);
        Ok((convert::uuid(uuid)?, convert::epoch(epoch)?))
    });
    each.collect()
}

/// It is kept for as long as the session is, and in the log.
fn check_identity(name: &str, process: &ProcessIdentity) -> Result<(), String> {
    if name.len() > NAME_MAX {
        return Err(format!("a name has at most {NAME_MAX} bytes, not {}", name.len()));
    }
    match process.boot_id.len() {
        0 | BOOT_ID => Ok(()),
        other => Err(format!("a boot id has {BOOT_ID} bytes, not {other}")),
    }
}

fn refuse(kind: refusal::Kind, reason: String) -> Refusal {
    Refusal { kind: kind.into(), reason }
}

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};
    use mooncake_wire::message::{AttachCall, OpenSession, ResumeSession};

    use super::super::testbed::{Client, HOST, LOG_ID, MEMORY, Testbed, coming_back, from};
    use super::*;

    fn open() -> OpenSession {
        OpenSession { host_name: "h:1".to_owned(), ..OpenSession::default() }
    }

    fn attach(client: Client, secret: u64) -> Hello {
        from(hello::Role::Attach(AttachCall { session: client.session.0, secret }))
    }

    fn refused(testbed: &mut Testbed, hello: Hello) -> (refusal::Kind, String) {
        let refusal = testbed.hello(hello).unwrap_err();
        (refusal.kind(), refusal.reason)
    }

    /// Seen of another log, whose rids of this epoch may be in use.
    fn seen(epoch: u32) -> Option<LogPosition> {
        Some(LogPosition { log_id: 99, epoch, lsn: 1, epoch_id: 0 })
    }

    #[test]
    fn a_new_session_has_the_secret_that_was_drawn_and_an_anchor() {
        let mut testbed = Testbed::new();
        let (client, reply) = testbed.hello(from(hello::Role::Open(open()))).unwrap();
        assert_eq!((reply.secret, reply.pid_proof, reply.session), (901, 1, client.session.0));
        assert_eq!((reply.version, &reply.boot_id[..], &*reply.unix_socket), (VERSION, &HOST[..], "socket"));
        assert_eq!(testbed.anchors.get(client.session), Some(&client.queue));
        let attached = testbed.hello(attach(client, 901)).unwrap().1;
        assert_eq!((attached.session, attached.secret), (client.session.0, 0));
        assert_eq!(testbed.anchors.get(client.session), Some(&client.queue), "a call connection is no anchor");
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let mut testbed = Testbed::new();
        let owner = testbed.owner();
        testbed.effects = Effects::default();
        let process = |len| Some(ProcessIdentity { boot_id: vec![7; len].into(), ..ProcessIdentity::default() });
        let back = || coming_back(owner);
        let name = "n".repeat(NAME_MAX + 1);
        let opens = [OpenSession { host_name: name.clone(), ..open() }, OpenSession { process: process(15), ..open() }];
        let resumes = [
            ResumeSession { host_name: name, ..back() },
            ResumeSession { process: process(17), ..back() },
            ResumeSession { segments: vec![vec![1; 15].into()], ..back() },
            ResumeSession { epoch_taken: 65_536, ..back() },
            ResumeSession { epochs: vec![65_536], ..back() },
        ];
        let opens = opens.into_iter().map(hello::Role::Open);
        let resumes = resumes.into_iter().map(hello::Role::Resume);
        for role in opens.chain(resumes) {
            let said = format!("{role:?}");
            assert_eq!(refused(&mut testbed, from(role)).0, refusal::Kind::BadRequest, "{said}");
        }
        let hello = Hello { role: None, ..from(hello::Role::Open(open())) };
        assert_eq!(refused(&mut testbed, hello).0, refusal::Kind::BadRequest);
        for (version_min, version_max) in [(VERSION + 1, VERSION + 1), (0, VERSION - 1)] {
            let hello = Hello { version_min, version_max, ..from(hello::Role::Open(open())) };
            assert_eq!(refused(&mut testbed, hello).0, refusal::Kind::Version);
        }
        assert!(testbed.effects.is_empty() && testbed.anchors.count() == 1);
        let full = ReadHello::read(from(hello::Role::Open(open())), 1, SESSIONS_MAX).unwrap_err();
        assert_eq!(full.kind(), refusal::Kind::Overloaded);
        assert!(ReadHello::read(from(hello::Role::Resume(back())), 1, SESSIONS_MAX).is_ok(), "it is counted already");
    }

    #[test]
    fn a_stranger_is_not_believed_whatever_it_claims_to_have_seen() {
        let mut testbed = Testbed::new();
        let owner = testbed.owner();
        let wrong = ResumeSession { secret: owner.secret + 1, ..coming_back(owner) };
        for role in [hello::Role::Resume(wrong), attach(owner, owner.secret + 1).role.unwrap()] {
            let hello = Hello { highest: seen(1), ..from(role) };
            assert_eq!(refused(&mut testbed, hello).0, refusal::Kind::UnknownSession);
        }
        assert_eq!((testbed.core.epoch().number, testbed.closed.len()), (1, 0));
        let hello = Hello { highest: seen(1), ..attach(owner, owner.secret) };
        testbed.hello(hello).unwrap();
        assert_eq!(testbed.core.epoch().number, 2, "a client's claim counts");
        let hello = Hello { highest: seen(60_000), ..from(hello::Role::Open(open())) };
        let sessions = testbed.stats().sessions;
        assert_eq!(refused(&mut testbed, hello).0, refusal::Kind::BadRequest);
        assert_eq!(
            (testbed.core.epoch().number, testbed.stats().sessions),
            (2, sessions),
            "a client that is not believed is not served"
        );
    }

    #[test]
    fn what_was_seen_of_this_log_before_it_was_lost_is_this_masters_own() {
        let mut testbed = Testbed::new();
        for (log_id, raised) in [(LOG_ID, 1), (LOG_ID - 1, 1), (LOG_ID - 2, 2)] {
            let highest = Some(LogPosition { log_id, epoch: 1, lsn: 40, epoch_id: 0 });
            testbed.hello(Hello { highest, ..from(hello::Role::Open(open())) }).unwrap();
            assert_eq!(testbed.core.epoch().number, raised, "{log_id}");
        }
    }

    #[test]
    fn an_older_list_of_views_is_refused_and_takes_no_anchor_away() {
        let mut testbed = Testbed::new();
        let owner = testbed.owner();
        let list = |list| from(hello::Role::Resume(ResumeSession { list, ..coming_back(owner) }));
        let (second, _) = testbed.hello(list(5)).unwrap();
        let (kind, reason) = refused(&mut testbed, list(4));
        assert_eq!((kind, reason.contains("list 4")), (refusal::Kind::BadRequest, true));
        assert_eq!(testbed.anchors.get(owner.session), Some(&second.queue));
        let (third, _) = testbed.hello(list(5)).unwrap();
        assert_eq!(testbed.anchors.get(owner.session), Some(&third.queue), "the same one may come twice");
    }

    #[test]
    fn an_owner_that_says_for_all_what_it_was_asked_to_take_opens_nothing() {
        for (features, epochs, closed) in
            [(0, vec![2], 1), (FEATURES, vec![], 1), (FEATURES, vec![1], 1), (FEATURES, vec![2], 0)]
        {
            let mut testbed = Testbed::new();
            let owner = testbed.owner();
            testbed.core.raise_epoch(testbed.now, 2, &mut testbed.effects);
            let said = format!("{features} {epochs:?}");
            let resume = ResumeSession { epoch_taken: 2, epochs, ..coming_back(owner) };
            testbed.hello(Hello { features, ..from(hello::Role::Resume(resume)) }).unwrap();
            assert_eq!(testbed.stats().segments_closed, closed, "{said}");
        }
    }

    #[test]
    fn a_client_that_comes_back_is_told_which_of_its_segments_are_gone_and_which_views_the_log_does_not_know() {
        let mut testbed = Testbed::new();
        let owner = testbed.owner();
        let other = vec![9; 16];
        let segments = vec![MEMORY.to_vec().into(), other.clone().into()];
        let unknown = |count: u64| (1..=count).map(|counter| Rid::new(1, 1_000 + counter).0).collect::<Vec<_>>();
        let back = |pins| ResumeSession { segments: segments.clone(), pins, ..coming_back(owner) };
        let (_, reply) = testbed.hello(from(hello::Role::Resume(back(unknown(2))))).unwrap();
        assert_eq!((&reply.gone_segments[..], &reply.unknown_pins), (&[other.into()][..], &unknown(2)));
        assert_eq!(reply.secret, owner.secret);
        let many = unknown(UNKNOWN_PINS_MAX as u64 + 1);
        let (_, reply) = testbed.hello(from(hello::Role::Resume(back(many)))).unwrap();
        assert_eq!(reply.unknown_pins, [0], "too many to name: all of them");
    }

    /// A new session of a process of that host that claims the memory, and another segment that nobody knows.
    fn heir(turn: u64, secret: &'static [u8], lost: bool) -> Hello {
        let claimed = |uuid: &[u8]| message::Claimed { uuid: uuid.to_vec().into(), endpoint: Some(Default::default()) };
        let held = if lost { vec![] } else { vec![claimed(&MEMORY), claimed(&[4; 16])] };
        let lost = if lost { vec![MEMORY.to_vec().into()] } else { vec![] };
        let claim = Some(message::Claim { secret: secret.into(), turn, held, lost });
        let process = Some(ProcessIdentity { boot_id: HOST.to_vec().into(), ..ProcessIdentity::default() });
        from(hello::Role::Open(OpenSession { process, claim, ..open() }))
    }

    /// An owner whose memory is kept.
    fn kept(testbed: &mut Testbed) -> Client {
        let owner = testbed.owner();
        let keep = message::Keep { ms: 60_000, secret: vec![9; 16].into(), turn: 0 };
        let reply = testbed.call(owner, message::request::Body::Keep(keep)).body;
        assert!(matches!(reply, message::reply::Body::Done(_)), "{reply:?}");
        owner
    }

    #[test]
    fn a_session_that_claims_kept_memory_has_it_and_is_told_what_of_it_is_gone() {
        let mut testbed = Testbed::new();
        let owner = kept(&mut testbed);
        testbed.hangs_up(owner);
        testbed.core.process_gone(testbed.now, owner.session, &mut testbed.effects);
        assert_eq!(testbed.stats().sessions_bereft, 1);
        let (client, reply) = testbed.hello(heir(5, &[9; 16], false)).unwrap();
        assert_eq!(reply.gone_segments, [vec![4; 16]]);
        assert_eq!(testbed.owner_of_memory(), Some(client.session));
        assert!(testbed.knows(client) && !testbed.knows(owner) && testbed.stats().sessions_bereft == 0);
        assert_eq!(testbed.anchors.get(client.session), Some(&client.queue));
        let (kind, _) = refused(&mut testbed, heir(5, &[9; 16], false));
        assert_eq!((kind, testbed.owner_of_memory()), (refusal::Kind::OldClaim, Some(client.session)));
    }

    #[test]
    fn what_is_not_kept_for_a_claimant_is_refused_and_changes_nothing() {
        for (memory_is_kept, secret) in [(true, &[8; 16]), (false, &[9; 16])] {
            let mut testbed = Testbed::new();
            let owner = if memory_is_kept { kept(&mut testbed) } else { testbed.owner() };
            let sessions = testbed.stats().sessions;
            assert_eq!(refused(&mut testbed, heir(5, secret, false)).0, refusal::Kind::NotKept);
            assert_eq!((testbed.owner_of_memory(), testbed.stats().sessions), (Some(owner.session), sessions));
        }
        let mut testbed = Testbed::new();
        assert_eq!(refused(&mut testbed, heir(5, &[9; 15], false)).0, refusal::Kind::BadRequest);
    }

    #[test]
    fn a_claim_of_nothing_but_lost_memory_ends_the_session_that_had_it() {
        let mut testbed = Testbed::new();
        let owner = kept(&mut testbed);
        let (client, reply) = testbed.hello(heir(5, &[9; 16], true)).unwrap();
        assert!(reply.gone_segments.is_empty() && testbed.knows(client) && !testbed.knows(owner));
        assert_eq!(testbed.owner_of_memory(), None);
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::StrangersAreBelieved,
            a_stranger_is_not_believed_whatever_it_claims_to_have_seen
        ));
        assert!(is_noticed_by(Mutant::OlderListsAreTaken, an_older_list_of_views_is_refused_and_takes_no_anchor_away));
    }
}
