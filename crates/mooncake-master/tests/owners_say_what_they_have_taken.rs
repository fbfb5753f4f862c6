//! After a raised epoch: what the word of an owner that resumes is worth, and what a reader is told of its views.

use std::fs;
use std::time::Duration;

use mooncake_wire::message::{Hello, HelloReply, LogPosition, ResumeSession, anchor_down, hello};
use mooncake_wire::{CONTROL_PREFACE, FRAME_BYTES_MAX, Feature, VERSION};

use crate::support;
use crate::support::{Client, Running, Scratch, connect, read_frame, write_frame};

fn closed(master: &Running) -> u64 {
    let (_, page) = master.http("GET /metrics");
    let figure = page.lines().find_map(|line| line.strip_prefix("mooncake_segments_closed "));
    figure.expect("the figure").trim().parse().unwrap()
}

/// A master in whose log nobody trusts, and an owner of two segments that has seen epoch 1 only.
fn raised(scratch: &Scratch) -> (Running, Client) {
    let master = Running::start(scratch.settings());
    let mut owner = Client::open(master.rpc);
    owner.mount(1 << 20);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    master.stop();
    forget(scratch);
    (Running::start(scratch.settings()), owner)
}

/// The host does not know any more how far the log had come.
fn forget(scratch: &Scratch) {
    for entry in fs::read_dir(scratch.0.join("witness")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

fn resume(client: &mut Client, master: &Running, features: u64, change: impl FnOnce(&mut ResumeSession)) -> HelloReply {
    let mut resume = ResumeSession {
        session: client.session,
        secret: client.secret,
        process: Some(support::process()),
        host_name: "test:1".to_owned(),
        segments: client.segments.iter().map(|uuid| uuid.clone().into()).collect(),
        ..ResumeSession::default()
    };
    change(&mut resume);
    let mut anchor = connect(master.rpc);
    std::io::Write::write_all(&mut anchor, &CONTROL_PREFACE).unwrap();
    let highest: Option<LogPosition> = client.highest;
    let role = Some(hello::Role::Resume(resume));
    let hello = Hello { version_min: VERSION, version_max: VERSION, features, highest, role, ..Hello::default() };
    write_frame(&mut anchor, &hello).unwrap();
    let reply: HelloReply = read_frame(&mut anchor, FRAME_BYTES_MAX).unwrap();
    assert_eq!(reply.refusal, None);
    client.anchor = anchor;
    reply
}

fn is_asked(client: &mut Client) -> bool {
    client.anchor.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let heard: std::io::Result<mooncake_wire::message::AnchorDown> = read_frame(&mut client.anchor, FRAME_BYTES_MAX);
    heard.is_ok_and(
        |heard| matches!(heard.body, Some(anchor_down::Body::TakeEpoch(take)) if take.epoch == 2 && take.epoch_id != 0),
    )
}

#[test]
fn what_an_older_owner_was_asked_for_opens_nothing_and_what_it_has_done_does() {
    let scratch = Scratch::new();
    let (master, mut owner) = raised(&scratch);
    for _ in 0..2 {
        // Its second field, should it have one there, is not looked at either.
        resume(&mut owner, &master, 31, |resume| (resume.epoch_taken, resume.epochs) = (2, vec![2, 2]));
        assert_eq!(closed(&master), 2);
        assert!(is_asked(&mut owner));
    }
    owner.take_epoch(2);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while closed(&master) > 0 {
        assert!(std::time::Instant::now() < until, "its own word is not believed");
    }
    master.stop();
}

#[test]
fn each_segment_opens_by_what_it_has_taken_itself() {
    let scratch = Scratch::new();
    let (master, mut owner) = raised(&scratch);
    let bits = Feature::SegmentEpochs.bit();
    for (epochs, left) in [(vec![], 2), (vec![1, 3], 2), (vec![0, 2], 1), (vec![2], 0)] {
        resume(&mut owner, &master, bits, |resume| (resume.epoch_taken, resume.epochs) = (2, epochs.clone()));
        assert_eq!((closed(&master), is_asked(&mut owner)), (left, left > 0), "{epochs:?}");
    }
    master.stop();
}

#[test]
fn views_that_nobody_knows_are_named_and_very_many_are_not() {
    let scratch = Scratch::new();
    let (master, mut owner) = raised(&scratch);
    let lost = 1 << 48 | 2000;
    let reply = resume(&mut owner, &master, 0, |resume| resume.pins = vec![lost, lost + 2, lost]);
    assert_eq!(reply.unknown_pins, [lost, lost, lost + 2]);
    let reply = resume(&mut owner, &master, 0, |resume| resume.pins = (0..70_000).map(|n| lost + 2 * n).collect());
    assert_eq!(reply.unknown_pins, [0], "all of them");
    assert!(resume(&mut owner, &master, 0, |_| {}).unknown_pins.is_empty());
    master.stop();
}

#[test]
fn another_epoch_of_the_same_number_that_was_taken_opens_nothing() {
    let scratch = Scratch::new();
    let (master, mut owner) = raised(&scratch);
    let bits = Feature::SegmentEpochs.bit();
    master.stop();
    forget(&scratch);
    let copy: Vec<_> = scratch.log_files().into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect();
    let taken = |resume: &mut ResumeSession, epoch| (resume.epoch_taken, resume.epochs) = (epoch, vec![epoch; 2]);

    let first = Running::start(scratch.settings());
    let position = resume(&mut owner, &first, bits, |resume| taken(resume, 3)).position.unwrap();
    assert_eq!((position.epoch, closed(&first)), (3, 0));
    owner.highest = Some(position);
    first.stop();
    forget(&scratch);
    fs::remove_dir_all(scratch.current()).unwrap();
    fs::create_dir(scratch.current()).unwrap();
    copy.into_iter().for_each(|(bytes, file)| fs::write(file, bytes).unwrap());

    // It goes on from the same place as the first did, and has come further in the same epoch by the time the owner is
    // back.
    let second = Running::start(scratch.settings());
    let mut stranger = Client::open(second.rpc);
    stranger.mount(1 << 20);
    (0..20).for_each(|number| _ = stranger.put(&format!("b{number}"), 10));
    let own = stranger.highest.unwrap();
    assert_eq!((own.log_id, own.epoch), (position.log_id, 3));
    assert_ne!(own.epoch_id, position.epoch_id);
    let reply = resume(&mut owner, &second, bits, |resume| taken(resume, 3));
    assert_eq!(reply.position.unwrap().epoch, 4);
    assert_eq!(closed(&second), 3, "until it and the stranger have taken this one");
    second.stop();
}
