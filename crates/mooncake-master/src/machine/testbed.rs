//! For the tests of this folder: a master's machines in one thread, in virtual time, without a log.

use std::borrow::BorrowMut;
use std::cell::RefCell;
use std::convert::Infallible;

use mooncake_core::{Config, Core, Effects, Origin, PutStarted, Stats, Ticket, Time};
use mooncake_ids::{SegmentUuid, SessionId};
use mooncake_wire::message::{
    AnchorUp, Hello, HelloReply, LogPosition, OpenSession, ProcessIdentity, Refusal, Request, ResumeSession,
    anchor_down, anchor_up, hello, reply, request,
};
use mooncake_wire::{FEATURES, VERSION};

use super::anchor_frames::{Pongs, Said};
use super::anchors::{self, Anchor, Anchors, Replaced};
use super::convert::SoftPinTtl;
use super::core_driver::CoreDriver;
use super::epoch_claim::EpochClaims;
use super::hello::{Admission, Identity, ReadHello, Standing};
use super::requests::{self, CountedReply, ReadRequest};

pub const MEMORY: [u8; 16] = [3; 16];
pub const HOST: [u8; 16] = [7; 16];
/// The log's.
pub const LOG_ID: u64 = 11;
/// Of the process of each session that [`Testbed::open`] opens.
pub const MARK: u64 = 0xa11ce;
const MIB: u64 = 1 << 20;

pub struct Testbed {
    pub core: Core,
    /// A queue is a number.
    pub anchors: Anchors<u32>,
    pub claims: EpochClaims,
    pub now: Time,
    pub effects: Effects,
    /// Anchors that were closed as others replaced them.
    pub closed: Vec<u32>,
    queues: u32,
    sequence: u64,
}

/// A session as its client knows it.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    pub session: SessionId,
    pub secret: u64,
    pub queue: u32,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Garbage(String),
    Replaced,
}

impl Testbed {
    pub fn new() -> Testbed {
        let mut testbed = Testbed {
            core: Core::new(Config::default()),
            anchors: Anchors::default(),
            claims: EpochClaims::new(std::time::Duration::ZERO),
            now: Time(1_000_000),
            effects: Effects::default(),
            closed: Vec::new(),
            queues: 0,
            sequence: 0,
        };
        testbed.core.begin(testbed.now, None, &mut testbed.effects);
        testbed
    }

    pub fn hello(&mut self, hello: Hello) -> Result<(Client, HelloReply), Refusal> {
        self.queues += 1;
        let (queue, secret) = (self.queues, 900 + u64::from(self.queues));
        let mut hello = ReadHello::read(hello, secret, self.anchors.count())?;
        while hello.look_for_views(&RefCell::new(&mut *self)) {
            hello.note_views(&mut self.core, self.now, &mut self.effects);
        }
        let epoch = self.core.epoch();
        let position = LogPosition { log_id: LOG_ID, epoch: epoch.number.into(), lsn: 50, epoch_id: epoch.id };
        let admission = Admission {
            anchors: &mut self.anchors,
            claims: &mut self.claims,
            log: Standing { position, first_id: LOG_ID - 1 },
        };
        let mut admitted = hello.admit(&mut self.core, admission, self.now, &queue, &mut self.effects)?;
        self.closed.extend(admitted.replaced.take());
        let session = admitted.session;
        let identity = Identity {
            instance: [1; 16],
            boot_id: HOST,
            unix_socket: "socket".to_owned(),
            lookup_protect_ms: 5,
            cluster_id: "cluster".to_owned(),
            storage: None,
            tiers_allowed: true,
            pages: String::new(),
        };
        let reply = admitted.reply(true, &identity, position);
        Ok((Client { session, secret: reply.secret, queue }, reply))
    }

    pub fn open(&mut self) -> Client {
        self.open_on(&HOST)
    }

    pub fn open_on(&mut self, boot_id: &[u8]) -> Client {
        let process = ProcessIdentity { boot_id: boot_id.to_vec().into(), mark: MARK, ..ProcessIdentity::default() };
        let open = OpenSession { host_name: "h:1".to_owned(), process: Some(process), claim: None };
        self.hello(from(hello::Role::Open(open))).unwrap().0
    }

    /// A client that lends memory.
    pub fn owner(&mut self) -> Client {
        self.owner_on(&HOST)
    }

    pub fn owner_on(&mut self, boot_id: &[u8]) -> Client {
        let client = self.open_on(boot_id);
        let segment = mooncake_wire::message::Segment {
            uuid: MEMORY.to_vec().into(),
            name: "h:1".to_owned(),
            bytes: 64 * MIB,
            endpoint: Some(Default::default()),
            ..Default::default()
        };
        let mount = mooncake_wire::message::Mount { segment: Some(segment), populated: 64 * MIB };
        let mounted = self.call(client, request::Body::Mount(mount)).body;
        assert!(matches!(mounted, reply::Body::Mount(_)), "{mounted:?}");
        client
    }

    /// A tier of a client that may have so many bytes, and takes as many of orders: its UUID.
    pub fn tier(&mut self, client: Client, bytes: u64) -> bytes::Bytes {
        let tier = bytes::Bytes::from_static(&[9; 16]);
        let spec = mooncake_wire::message::Tier {
            uuid: tier.clone(),
            secret: vec![1; 16].into(),
            name: "h:1".to_owned(),
            bytes,
            file_blocks: 4_096,
            endpoint: Some(Default::default()),
        };
        let mount = mooncake_wire::message::TierMount { tier: Some(spec), is_new: true, ..Default::default() };
        let mounted = self.call(client, request::Body::TierMount(mount)).body;
        assert!(matches!(mounted, reply::Body::TierMount(_)), "{mounted:?}");
        let window = mooncake_wire::message::TierWritten { tier: tier.clone(), window: bytes, ..Default::default() };
        self.says(client, anchor_up::Body::TierWritten(window)).unwrap();
        tier
    }

    pub fn resume(&mut self, client: Client) -> Client {
        let resume = coming_back(client);
        self.hello(from(hello::Role::Resume(resume))).unwrap().0
    }

    /// A frame comes on a client's anchor; gives what is sent back.
    pub fn says(&mut self, client: Client, body: anchor_up::Body) -> Result<Option<anchor_down::Body>, End> {
        let Some(said) = Said::read(AnchorUp { body: Some(body) }).map_err(End::Garbage)? else { return Ok(None) };
        let from = Anchor { session: client.session, queue: &client.queue };
        let heard = said.obey(&mut self.core, &mut self.anchors, self.now, from, &mut self.effects);
        let heard = heard.map_err(|Replaced| End::Replaced)?;
        let reply = Pongs::default().reply(&heard, true, LogPosition { lsn: 51, ..Default::default() });
        Ok(reply.map(|reply| reply.body.unwrap()))
    }

    /// A client's anchor ends.
    pub fn hangs_up(&mut self, client: Client) -> bool {
        let anchor = Anchor { session: client.session, queue: &client.queue };
        anchors::ended(&mut self.core, &mut self.anchors, self.now, anchor, &mut self.effects)
    }

    /// A numbered request that is through at once.
    pub fn call(&mut self, client: Client, body: request::Body) -> CountedReply {
        self.sequence += 1;
        let request = Request { sequence: self.sequence, body: Some(body), ..Request::default() };
        self.request(client, request).unwrap_or_else(|ticket| panic!("parked as {ticket:?}"))
    }

    /// A request, as the driver carries it out.
    pub fn request(&mut self, client: Client, mut request: Request) -> Result<CountedReply, Ticket> {
        let session = client.session;
        let origin = Origin { session, sequence: request.sequence, answered_below: request.answered_below };
        if requests::says_settled(&request) {
            requests::note_settled(&mut self.core, session, &request);
        }
        let soft_pin = SoftPinTtl { default_ms: 1_000, max_ms: 10_000 };
        let read = requests::read(&mut request, soft_pin);
        if let Ok(ReadRequest::Query(query)) = read {
            return Ok(query.run(&RefCell::new(self), session));
        }
        let Testbed { core, now, effects, .. } = self;
        Ok(match read {
            Err(reason) => CountedReply::bad(reason),
            Ok(ReadRequest::Command(command)) => command.run(core, *now, origin, effects).reply(),
            Ok(ReadRequest::PutStart(put)) => match put.run(core, *now, origin, effects) {
                Ok(PutStarted::Now(outcomes)) => CountedReply::put_start(&outcomes),
                Ok(PutStarted::Parked(ticket)) => return Err(ticket),
                Err(refused) => CountedReply::refused(&refused, put.sizes.len()),
            },
            Ok(other) => panic!("in slices: {other:?}"),
        })
    }

    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    pub fn knows(&self, client: Client) -> bool {
        self.core.session_spec(client.session).is_some()
    }

    pub fn owner_of_memory(&self) -> Option<SessionId> {
        self.core.segment_owner(SegmentUuid(MEMORY))
    }
}

impl<T: BorrowMut<Testbed>> CoreDriver for RefCell<T> {
    type Closed = Infallible;

    fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
        let mut testbed = RefCell::borrow_mut(self);
        let Testbed { core, now, .. } = (*testbed).borrow_mut();
        ask(core, *now)
    }

    fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Infallible> {
        let mut testbed = RefCell::borrow_mut(self);
        let Testbed { core, now, effects, .. } = (*testbed).borrow_mut();
        Ok(operation(core, *now, effects))
    }
}

/// A hello of this version that has seen nothing.
pub fn from(role: hello::Role) -> Hello {
    Hello { version_min: VERSION, version_max: VERSION, features: FEATURES, role: Some(role), ..Hello::default() }
}

/// What a client says when it comes back with its memory and no view.
pub fn coming_back(client: Client) -> ResumeSession {
    ResumeSession {
        session: client.session.0,
        secret: client.secret,
        host_name: "h:1".to_owned(),
        segments: vec![MEMORY.to_vec().into()],
        ..ResumeSession::default()
    }
}
