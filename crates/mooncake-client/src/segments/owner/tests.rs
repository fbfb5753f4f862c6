//! An owner of segments, with a master that says what a test wants it to say.

use std::net::TcpStream;
use std::time::Instant;

use mooncake_os::Deadline;
use mooncake_segment::ServerOptions;
use mooncake_wire::message::{
    Extent, HelloReply, Refusal, Replica, Reply, Request, SegmentGone, SegmentsReply, anchor_down, hello, refusal,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::machine::numbering::Numbering;
use crate::scripted_master::{Caller, Client, Master, TIMEOUT, hello_reply, reply_to, usual, wait_for};
use crate::segments::owner_events::{OwnerEvents, Reporter};

/// An owner whose master is not there.
fn alone() -> (Arc<Control>, Arc<SegmentOwner>) {
    let control = Control::alone();
    let options = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
    let server = SegmentServer::start(options, Box::new(Reporter(OwnerEvents::new()))).unwrap();
    let process = ProcessIdentity::current().unwrap();
    let (name, advertised) = ("host:1".into(), Advertised::Addresses(Vec::new()));
    let ownership = Ownership { server, huge_pages: false, name, advertised, process, kept: None };
    (control.clone(), SegmentOwner::prepare(control, ownership).unwrap())
}

fn lent(backing: Backing, memory: SegmentMemory) -> Arc<LentMemory> {
    let (populated, reported) = (AtomicU64::new(0), AtomicU64::new(0));
    Arc::new(LentMemory {
        backing,
        memory: Arc::new(memory),
        populated,
        reported,
        stopped_short: AtomicBool::new(false),
    })
}

fn rang(control: &Control) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(control.waker.fd(), PollFlags::IN)];
    let rings = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1);
    control.waker.clear();
    rings
}

fn gone(uuid: SegmentUuid) -> anchor_down::Body {
    anchor_down::Body::SegmentGone(SegmentGone { uuid: uuid.0.to_vec().into(), number: 1, ..SegmentGone::default() })
}

fn refuses(request: &Request) -> Reply {
    let refusal = Refusal { kind: refusal::Kind::BadRequest.into(), reason: "no".into() };
    reply_to(request, reply::Body::Refusal(refusal))
}

fn memory_of(client: &Client, uuid: SegmentUuid) -> Arc<SegmentMemory> {
    let state = client.owner().state.lock();
    let found = state.memories().find(|lent| lent.memory.uuid() == uuid);
    found.map(|lent| lent.memory.clone()).expect("it is held")
}

/// The segments that the master was asked to mount.
fn mounts(master: &Master) -> Vec<Segment> {
    let bodies = master.asked().into_iter();
    bodies.filter_map(|body| if let request::Body::Mount(mount) = body { mount.segment } else { None }).collect()
}

fn unmounts(master: &Master) -> usize {
    master.asked().iter().filter(|body| matches!(body, request::Body::Unmount(_))).count()
}

/// What the next hello lists. It is answered so.
fn comes_back(client: &Client, reply: &HelloReply) -> (Caller, Vec<Vec<u8>>) {
    let mut caller = client.master.next();
    let Some(hello::Role::Resume(resume)) = &caller.hello.role else { panic!("{:?}", caller.hello) };
    let listed = resume.segments.iter().map(|uuid| uuid.to_vec()).collect();
    caller.say(reply);
    (caller, listed)
}

#[test]
fn each_step_of_population_is_news_and_so_is_that_it_ends_early() {
    let (control, owner) = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory");
    let bytes = 2 << 20;
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    let backing = Backing::File { path: path.clone(), offset: 0, bytes };
    let lent = lent(backing.clone(), owner.make(&backing).unwrap());
    let uuid = lent.memory.uuid();
    owner.state.lock().mount(None, uuid, lent.clone());
    assert!(!owner.wants_to_report() && !rang(&control));
    assert!(owner.populate(&lent, 1 << 20), "there is more");
    assert!(owner.wants_to_report() && rang(&control));
    let told = |bytes, failed| vec![Populated { uuid: uuid.0.to_vec().into(), bytes, failed }];
    assert_eq!(owner.newly_populated(), told(1 << 20, false));
    assert_eq!((owner.newly_populated(), owner.wants_to_report()), (vec![], false));
    // What is not there cannot be populated.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    assert!(!owner.populate(&lent, 1 << 20), "it is over");
    assert!(owner.wants_to_report() && rang(&control));
    assert_eq!(owner.newly_populated(), told(1 << 20, true));
    control.stop();
    owner.close();
}

#[test]
fn a_mounted_segment_is_populated_to_its_end_and_known_in_its_masters_epoch() {
    let (client, mut caller) = Client::with_owner();
    let bytes = 2 * FIRST_STEP_BYTES;
    let (id, _) = client.owner().mount(Backing::Memory(bytes)).unwrap();
    while caller.beat().populated.last().is_none_or(|told| told.bytes < bytes) {}
    let segment = mounts(&client.master).remove(0);
    let address = met(&client, segment).expect("it is there");
    assert_eq!(address.uuid, id.0);
    let deadline = Deadline::at(Instant::now() + TIMEOUT);
    let link = client.shared.links.link(&address, &deadline).unwrap();
    assert!(client.shared.links.vouch_for(&link), "views of it may begin");
}

/// Where the segment is, as the master says.
fn met(client: &Client, segment: Segment) -> Option<Arc<mooncake_segment::SegmentAddress>> {
    let segment = Segment { number: 1, ..segment };
    client.master.answers(move |request| match &request.body {
        Some(request::Body::Segments(_)) => {
            Some(reply_to(request, reply::Body::Segments(SegmentsReply { segments: vec![segment.clone()] })))
        }
        _ => Some(usual(request)),
    });
    let numbering = Numbering { log_id: 1, instance: [1; 16] };
    let replica = Replica { rid: 2, extents: vec![Extent { segment: 1, ..Extent::default() }] };
    client.shared.directory.meet(&client.shared.control, numbering, [&replica].into_iter()).unwrap();
    client.shared.directory.find(numbering, 1)
}

#[test]
fn memory_that_the_master_does_not_want_is_served_no_more() {
    let (client, _caller) = Client::with_owner();
    client.master.answers(|request| Some(refuses(request)));
    client.owner().mount(Backing::Memory(1 << 20)).unwrap_err();
    assert!(client.owner().held().is_empty());
    let address = met(&client, mounts(&client.master).remove(0)).unwrap();
    let deadline = Deadline::at(Instant::now() + TIMEOUT);
    assert!(client.shared.links.link(&address, &deadline).is_err());
}

#[test]
fn a_segment_that_takes_anothers_place_is_mounted_as_soon_as_the_master_wants_it() {
    let (client, mut caller) = Client::with_owner();
    let mounted = client.mount();
    let wanted = AtomicU64::new(0);
    client.master.answers(move |request| match &request.body {
        Some(request::Body::Mount(_)) if wanted.fetch_add(1, Ordering::SeqCst) < 2 => Some(refuses(request)),
        _ => Some(usual(request)),
    });
    caller.tell(gone(mounted));
    wait_for("another one", || mounts(&client.master).len() == 4 && client.owner().held().len() == 1);
    assert!(!client.holds(mounted));
    client.owner().unmount(SegmentId(mounted), Duration::ZERO).expect("its name stays");
}

#[test]
fn a_segment_that_a_list_was_too_early_for_is_replaced_when_the_master_has_mounted_it() {
    let (client, _caller) = Client::with_owner();
    let owner = Arc::downgrade(client.owner());
    let first = AtomicBool::new(true);
    client.master.answers(move |request| {
        if matches!(request.body, Some(request::Body::Mount(_))) && first.swap(false, Ordering::SeqCst) {
            let owner = owner.upgrade().unwrap();
            owner.list();
            owner.list_answered(|_| true);
        }
        Some(usual(request))
    });
    let (id, _) = client.owner().mount(Backing::Memory(1 << 20)).unwrap();
    wait_for("another one", || mounts(&client.master).len() == 2 && client.owner().held().len() == 1);
    assert!(!client.holds(id.0));
}

#[test]
fn memory_that_is_unmounted_goes_back_to_the_host_also_where_only_the_word_that_it_is_gone_came() {
    for is_answered in [true, false] {
        let (client, mut caller) = Client::with_owner();
        let uuid = client.mount();
        let memory = memory_of(&client, uuid);
        let owner = Arc::downgrade(client.owner());
        client.master.answers(move |request| {
            if !matches!(request.body, Some(request::Body::Unmount(_))) {
                return Some(usual(request));
            }
            let owner = owner.upgrade()?;
            wait_for("the other word", || !owner.state.lock().waits_for_pins(uuid));
            is_answered.then(|| usual(request))
        });
        std::thread::scope(|scope| {
            let unmounting = scope.spawn(|| client.owner().unmount(SegmentId(uuid), Duration::ZERO));
            wait_for("the master is asked", || unmounts(&client.master) > 0);
            caller.tell(gone(uuid));
            unmounting.join().unwrap().unwrap_or_else(|error| panic!("{is_answered}: {error}"));
        });
        assert!(!client.holds(uuid));
        wait_for("its pages are given back", || matches!(memory.populate_step(1), Err(MemoryError::GivenBack)));
    }
}

#[test]
fn an_unmount_without_an_answer_has_the_store_list_what_it_holds() {
    let (client, _caller) = Client::with_owner();
    let uuid = client.mount();
    client.master.answers(|request| {
        let is_unmount = matches!(request.body, Some(request::Body::Unmount(_)));
        (!is_unmount).then(|| usual(request))
    });
    client.owner().unmount(SegmentId(uuid), Duration::ZERO).unwrap_err();
    let (_caller, listed) = comes_back(&client, &hello_reply(7));
    assert_eq!(listed, [uuid.0.to_vec()], "it is still there, and the master says whether it knows it");
}

#[test]
fn of_a_segment_that_the_master_does_not_know_it_is_told_until_it_answers() {
    let (client, caller) = Client::with_owner();
    let uuid = client.mount();
    // It may have been mounted just behind the list.
    client.master.answers(|request| {
        let is_unmount = matches!(request.body, Some(request::Body::Unmount(_)));
        (!is_unmount).then(|| usual(request))
    });
    drop(caller);
    let gone_segments = vec![uuid.0.to_vec().into()];
    let (_caller, listed) = comes_back(&client, &HelloReply { gone_segments, ..hello_reply(7) });
    assert_eq!(listed, [uuid.0.to_vec()]);
    wait_for("it is asked to unmount it", || unmounts(&client.master) > 0);
    let (_caller, listed) = comes_back(&client, &hello_reply(7));
    assert!(!listed.contains(&uuid.0.to_vec()), "a list without it says as much");
}

#[test]
fn an_owner_that_is_closed_holds_nothing_and_listens_no_more() {
    let (client, _caller) = Client::with_owner();
    let uuid = client.mount();
    let address = client.owner().server.tcp_addr();
    TcpStream::connect(address).unwrap();
    client.owner().close();
    assert_eq!((unmounts(&client.master), client.owner().held()), (1, vec![]));
    wait_for("nothing listens", || TcpStream::connect(address).is_err());
    client.owner().unmount(SegmentId(uuid), Duration::ZERO).unwrap_err();
}
