//! A raised epoch: a segment stays closed until nobody writes anything older there, and until no view is left that the
//! master does not know.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mooncake_client::{Store, View};
use mooncake_test_support::child_process::{asked, say};
use mooncake_test_support::test_name;
use mooncake_wire::message::{AnchorDown, Hello, LogPosition, ResumeSession, TakeEpoch, anchor_down, hello};
use mooncake_wire::{PREFACE_LEN, encode_frame};
use prost::Message;

use crate::child;
use crate::cluster::{Cluster, MIB, eventually, put, value};

const CLOSED: &str = "mooncake_segments_closed";

/// A door to the master that can be slammed and shut.
struct Door {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    shut: Arc<AtomicBool>,
    /// The hellos of anchors that came through, each with the way back to its client.
    hellos: Arc<Mutex<Vec<(Hello, TcpStream)>>>,
    /// Held by whoever says something to a client, for one frame.
    speaking: Arc<Mutex<()>>,
}

impl Door {
    fn to(master: String) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (open, shut, hellos, speaking) = Default::default();
        let door = Door { address, open, shut, hellos, speaking };
        let (open, shut, hellos) = (door.open.clone(), door.shut.clone(), door.hellos.clone());
        let speaking = door.speaking.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut open = open.lock().unwrap();
                if shut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(master) = TcpStream::connect(&master) else { continue };
                let [up, down] = [(&client, &master), (&master, &client)].map(pair);
                open.extend([&up, &down].map(|(_, to)| to.try_clone().unwrap()));
                let hellos = hellos.clone();
                std::thread::spawn(move || {
                    let (mut from, mut to) = up;
                    if let Ok(Some(hello)) = pass_hello(&mut from, &mut to) {
                        hellos.lock().unwrap().push((hello, client));
                    }
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                let speaking = speaking.clone();
                std::thread::spawn(move || {
                    let (mut from, mut to) = down;
                    while pass_frame(&mut from, &mut to, &speaking).is_ok() {}
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        });
        door
    }

    /// Every connection ends.
    fn slam(&self) {
        for connection in self.open.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Nobody comes through any more.
    fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        self.slam();
    }

    /// As if the master had said that to the client that came last, and had ended right behind it.
    fn say_at_the_end(&self, body: anchor_down::Body) {
        let _turn = self.speaking.lock().unwrap();
        let hellos = self.hellos.lock().unwrap();
        let (_, mut anchor) = hellos.last().map(|(hello, anchor)| (hello, anchor)).unwrap();
        let mut frame = Vec::new();
        encode_frame(&AnchorDown { body: Some(body) }, &mut frame);
        anchor.write_all(&frame).unwrap();
        anchor.shutdown(Shutdown::Write).unwrap();
    }

    /// What the client that came last had seen of the log, and how it came back.
    fn last_resume(&self) -> (LogPosition, ResumeSession) {
        match self.hellos.lock().unwrap().last() {
            Some((Hello { highest, role: Some(hello::Role::Resume(resume)), .. }, _)) => {
                (highest.unwrap_or_default(), resume.clone())
            }
            other => panic!("no client has come back: {other:?}"),
        }
    }

    fn unlock(&self) {
        self.shut.store(false, Ordering::SeqCst);
    }

    fn store(&self, cluster: &Cluster, segment: u64) -> Store {
        let mut options = cluster.options(segment);
        options.master = self.address.to_string();
        Store::connect(options).unwrap()
    }
}

/// Gives the hello if it is of an anchor.
fn pass_hello(from: &mut TcpStream, to: &mut TcpStream) -> std::io::Result<Option<Hello>> {
    let mut head = [0; PREFACE_LEN + 4];
    from.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_le_bytes(head[PREFACE_LEN..].try_into().unwrap()) as usize];
    from.read_exact(&mut body)?;
    to.write_all(&head)?;
    to.write_all(&body)?;
    let hello = Hello::decode(&body[..])?;
    Ok((!matches!(hello.role, Some(hello::Role::Attach(_)))).then_some(hello))
}

fn pass_frame(from: &mut TcpStream, to: &mut TcpStream, speaking: &Mutex<()>) -> std::io::Result<()> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut body)?;
    let _turn = speaking.lock().unwrap();
    to.write_all(&length)?;
    to.write_all(&body)
}

fn pair((from, to): (&TcpStream, &TcpStream)) -> (TcpStream, TcpStream) {
    (from.try_clone().unwrap(), to.try_clone().unwrap())
}

/// Not a test by itself: what the other process does.
#[test]
fn client() {
    let Some(options) = child::options(0) else { return };
    let store = Store::connect(options).unwrap();
    let mut held: Option<(String, View)> = None;
    say("ready");
    for line in asked() {
        let (verb, key) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "put" => say(put(&store, key, 1 << 20).is_ok()),
            "view" => {
                let view = store.view(&[key]).remove(0).unwrap().unwrap();
                assert!(!view.is_private_copy());
                held = Some((key.to_owned(), view));
                say("viewed");
            }
            "unchanged" => {
                let (key, view) = held.as_ref().unwrap();
                say(view[..] == value(key, view.len())[..]);
            }
            "drop" => {
                held = None;
                say("dropped");
            }
            _ => break,
        }
    }
}

/// Puts three times what fits; how many MiB were stored before the first refusal.
fn overcommit(store: &Store, prefix: &str, segment: u64) -> u64 {
    let puts = (0..3 * segment / MIB).map(|n| put(store, &format!("{prefix}{n}"), 1 << 20));
    puts.take_while(Result::is_ok).count() as u64
}

fn holds_for(what: &str, time: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        assert!(holds(), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_frozen_writer_keeps_a_segment_closed_however_often_its_owner_reconnects() {
    let mut cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let door = Door::to(cluster.address());
    let owner = door.store(&cluster, 8 * MIB);
    let (mut writer, _) = child::start(&cluster, &test_name!("client"));
    assert_eq!(writer.ask("put k"), "true");
    owner.mount_memory(8 * MIB).unwrap();
    let told = || {
        let (_, resume) = door.last_resume();
        assert_eq!(resume.segments.len(), 2);
        (resume.epochs, resume.epoch_taken)
    };
    writer.stop();

    cluster.stop_master();
    cluster.forget_witness();
    cluster.start_master();
    eventually("the owner is back", Duration::from_secs(5), || cluster.metric("mooncake_sessions_resumed_total") == 1);
    // What nobody else maps is taken as soon as the owner is asked.
    eventually("one of the two is open", Duration::from_secs(5), || cluster.metric(CLOSED) == 1);
    for times in 0..3 {
        let closed = || cluster.metric(CLOSED) == 1;
        holds_for(&format!("the segment is closed after {times} cuts"), Duration::from_millis(150), closed);
        door.slam();
        eventually("the owner is back", Duration::from_secs(5), || {
            cluster.metric("mooncake_sessions_resumed_total") == times + 2
        });
    }
    assert_eq!(told(), (vec![0, 2], 0), "what each has taken, and to an older master what all of them have");
    assert_eq!(owner.get(b"k").unwrap(), Some(value("k", 1 << 20)), "readable all the time");
    writer.signal(rustix::process::Signal::CONT);
    eventually("it is open", Duration::from_secs(5), || cluster.metric(CLOSED) == 0);
    door.slam();
    eventually("the owner is back", Duration::from_secs(5), || cluster.metric("mooncake_sessions_resumed_total") == 6);
    assert_eq!(told(), (vec![2, 2], 2));
}

#[test]
fn the_epoch_that_a_store_was_asked_to_obey_is_shown_to_the_next_master_however_soon_the_first_one_ends() {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let door = Door::to(cluster.address());
    let owner = door.store(&cluster, 8 * MIB);
    // Of an epoch that is not this master's: another master has begun the one after this.
    door.say_at_the_end(anchor_down::Body::TakeEpoch(TakeEpoch { epoch: 2, epoch_id: 7 }));
    eventually("the owner is back", Duration::from_secs(5), || cluster.metric("mooncake_sessions_resumed_total") == 1);
    let (LogPosition { epoch, lsn, epoch_id, .. }, resume) = door.last_resume();
    assert_eq!((epoch, lsn, epoch_id, resume.epochs), (2, 0, 7, vec![2]));
    assert_eq!(cluster.metric("mooncake_epoch"), 3, "nobody has begun that one");
    eventually("it is open", Duration::from_secs(5), || cluster.metric(CLOSED) == 0);
    put(&owner, "k", 1 << 20).unwrap();
}

#[test]
fn what_is_viewed_in_every_epoch_is_the_memory_itself() {
    let mut cluster = Cluster::start();
    let [owner, reader] = [0, 0].map(|segment| cluster.store(segment));
    let is_viewed = |key: &str| {
        let view = reader.view(&[key]).remove(0).unwrap().unwrap();
        view[..] == value(key, 1 << 20)[..] && !view.is_private_copy()
    };
    for epoch in [2, 4] {
        // It is not asked for the epoch in which it is mounted.
        let (segment, _) = owner.mount_memory(4 * MIB).unwrap();
        let key = format!("k{epoch}");
        put(&owner, &key, 1 << 20).unwrap();
        assert!(is_viewed(&key));
        for raised in [epoch, epoch + 1] {
            cluster.stop_master();
            cluster.forget_witness();
            cluster.start_master();
            assert_eq!(cluster.metric("mooncake_epoch"), raised);
            let back = || cluster.metric("mooncake_sessions_resumed_total") == 2;
            eventually("both are back", Duration::from_secs(5), back);
            eventually("it is open", Duration::from_secs(5), || cluster.metric(CLOSED) == 0);
            assert!(is_viewed(&key), "in epoch {raised}");
        }
        owner.unmount_segment(segment, Duration::ZERO).unwrap();
    }
}

#[test]
fn a_view_that_only_the_lost_end_of_the_log_knew_does_not_change() {
    const SEGMENT: u64 = 8 * MIB;
    let mut cluster = Cluster::start();
    let owner = cluster.store(SEGMENT);
    let (mut reader, _) = child::start(&cluster, &test_name!("client"));
    let copy = cluster.copy_log();
    eventually("the owner is back", Duration::from_secs(5), || put(&owner, "seen", 1 << 20).is_ok());
    assert_eq!(reader.ask("view seen"), "viewed");

    cluster.stop_master();
    cluster.put_log_back(&copy);
    cluster.start_master();
    eventually("both are back", Duration::from_secs(5), || cluster.metric("mooncake_sessions_resumed_total") == 2);
    let third = cluster.store(0);
    overcommit(&third, "new", SEGMENT);
    assert_eq!(reader.ask("unchanged"), "true");
    assert_eq!(cluster.metric(CLOSED), 1, "nobody but the reader knows where its view is");
    assert_eq!(reader.ask("drop"), "dropped");
    eventually("it is open", Duration::from_secs(5), || cluster.metric(CLOSED) == 0);
    assert_eq!(overcommit(&third, "newer", SEGMENT), 3 * SEGMENT / MIB);
}

#[test]
fn a_view_of_a_second_store_in_the_owners_process_does_not_change_either() {
    const SEGMENT: u64 = 8 * MIB;
    let mut cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let door = Door::to(cluster.address());
    let owner = cluster.store(SEGMENT);
    let reader = door.store(&cluster, 0);
    let copy = cluster.copy_log();
    eventually("the owner is back", Duration::from_secs(5), || put(&owner, "seen", 1 << 20).is_ok());
    eventually("the reader is back", Duration::from_secs(5), || reader.exists(&["seen"]).is_ok_and(|found| found[0]));
    let view = reader.view(&["seen"]).remove(0).unwrap().unwrap();
    assert!(!view.is_private_copy());
    let seen = value("seen", 1 << 20);

    // Its master hears of the view long after the owner is back.
    door.shut();
    cluster.stop_master();
    cluster.put_log_back(&copy);
    cluster.start_master();
    eventually("the owner is back", Duration::from_secs(5), || cluster.metric("mooncake_sessions_resumed_total") == 1);
    overcommit(&owner, "new", SEGMENT);
    assert!(view[..] == seen[..], "before its store is back");
    door.unlock();
    eventually("the reader is back", Duration::from_secs(5), || cluster.metric("mooncake_sessions_resumed_total") == 2);
    holds_for("it is closed", Duration::from_millis(150), || cluster.metric(CLOSED) == 1);
    drop(view);
    eventually("it is open", Duration::from_secs(5), || cluster.metric(CLOSED) == 0);
    assert_eq!(overcommit(&owner, "newer", SEGMENT), 3 * SEGMENT / MIB);
}
