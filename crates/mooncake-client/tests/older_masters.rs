//! A newer client on an older master of the same protocol version: what that master knows goes on working, and what it
//! does not know is an error that says so, before anything is done.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mooncake_client::{Cause, ErrorKind, PutOptions, Source, Store, StoreError};
use mooncake_wire::message::HelloReply;
use mooncake_wire::{FEATURES, Feature, encode_frame};
use prost::Message;

use crate::cluster::{Cluster, MIB, eventually, value};

/// A door to a master that withholds feature bits, and says another version.
struct OlderMaster {
    address: SocketAddr,
    features: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl OlderMaster {
    fn in_front_of(cluster: &Cluster, features: u64, software: &'static str) -> OlderMaster {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, behind) = (listener.local_addr().unwrap(), cluster.address());
        let (features, open) = (Arc::new(AtomicU64::new(features)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let older = OlderMaster { address, features: features.clone(), open: open.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(master) = TcpStream::connect(&behind) else { continue };
                open.lock().unwrap().push(client.try_clone().unwrap());
                let (mut up_from, mut up_to) = (client.try_clone().unwrap(), master.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut up_from, &mut up_to);
                    let _ = up_to.shutdown(Shutdown::Both);
                });
                let features = features.load(Ordering::SeqCst);
                std::thread::spawn(move || {
                    let _ = pass_down(master, &client, features, software);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        older
    }

    /// Every connection ends, and the next ones meet another master.
    fn become_one_with(&self, features: u64) {
        self.features.store(features, Ordering::SeqCst);
        for connection in self.open.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn store(&self, cluster: &Cluster) -> Store {
        let mut options = cluster.options(16 * MIB);
        options.master = self.address.to_string();
        Store::connect(options).unwrap()
    }
}

fn pass_down(mut master: TcpStream, mut client: &TcpStream, features: u64, software: &str) -> std::io::Result<()> {
    let mut header = [0; 4];
    master.read_exact(&mut header)?;
    let mut body = vec![0; u32::from_le_bytes(header) as usize];
    master.read_exact(&mut body)?;
    let mut hello = HelloReply::decode(&body[..])?;
    assert_eq!(hello.features, FEATURES, "a master says what it knows");
    hello.features = features;
    hello.software = software.to_owned();
    // Whoever goes past this one meets the real master.
    hello.unix_socket = String::new();
    let mut frame = Vec::new();
    encode_frame(&hello, &mut frame);
    client.write_all(&frame)?;
    std::io::copy(&mut master, &mut client).map(|_| ())
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, StoreError>, feature: Feature, software: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(matches!(error.cause(), Cause::MasterTooOld { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(feature.name()) && text.contains(software), "{text}");
}

#[test]
fn what_an_older_master_does_not_know_is_an_error_that_names_it_and_nothing_is_done() {
    let cluster = Cluster::start();
    let software = "mooncake-master 0.0.7";
    let store = OlderMaster::in_front_of(&cluster, 0, software).store(&cluster);
    let (old, new) = (value("old", 1000), value("new", 1000));
    store.put(b"k", &[Source::new(&old)], &PutOptions::default()).unwrap();

    refused(store.upsert(b"k", &[Source::new(&new)], &PutOptions::default()), Feature::Replace, software);
    let grouped = PutOptions { groups: vec!["g".to_owned()], ..PutOptions::default() };
    refused(store.put(b"in-a-group", &[Source::new(&new)], &grouped), Feature::Groups, software);
    refused(store.remove_by_regex("k", true), Feature::RemoveByRegex, software);
    refused(store.describe(&["k"]), Feature::Describe, software);
    refused(store.clear_replicas(&["k"], ""), Feature::ClearReplicas, software);

    let (segment, _) = store.mount_memory(MIB).unwrap();
    refused(store.unmount_segment(segment, Duration::from_secs(60)), Feature::UnmountGrace, software);
    store.unmount_segment(segment, Duration::ZERO).unwrap();

    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&old[..]), "untouched");
    assert!(!store.exists(&["in-a-group"]).unwrap()[0]);
    let ungrouped = PutOptions { groups: vec![String::new()], ..PutOptions::default() };
    store.put(b"in-no-group", &[Source::new(&new)], &ungrouped).unwrap();
    assert_eq!(store.get(b"in-no-group").unwrap().as_deref(), Some(&new[..]), "the store goes on");
}

#[test]
fn one_bit_withheld_is_one_thing_less() {
    let cluster = Cluster::start();
    let store = OlderMaster::in_front_of(&cluster, FEATURES & !Feature::RemoveByRegex.bit(), "").store(&cluster);
    let bytes = value("k", 1000);
    for _ in 0..2 {
        store.upsert(b"k", &[Source::new(&bytes)], &PutOptions::default()).unwrap();
    }
    refused(store.remove_by_regex("k", true), Feature::RemoveByRegex, "an older version");
    assert!(store.exists(&["k"]).unwrap()[0]);
}

#[test]
fn of_an_older_master_that_may_have_lost_pins_none_is_taken_for_known() {
    let mut cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let owner = cluster.store(8 * MIB);
    let mut options = cluster.options(0);
    let without = FEATURES & !Feature::UnknownPins.bit();
    options.master = OlderMaster::in_front_of(&cluster, without, "").address.to_string();
    let reader = Store::connect(options).unwrap();
    owner.put(b"k", &[Source::new(&value("k", 1000))], &PutOptions::default()).unwrap();
    let view = reader.view(&["k"]).remove(0).unwrap().unwrap();
    assert!(!view.is_private_copy());

    for (forgets, closed) in [(false, 0), (true, 1)] {
        cluster.stop_master();
        if forgets {
            cluster.forget_witness();
        }
        cluster.start_master();
        let back = || cluster.metric("mooncake_sessions_resumed_total") == 2;
        eventually("both are back", Duration::from_secs(5), back);
        // Every beat is a chance to say what the owner waits for.
        let until = Instant::now() + Duration::from_millis(700);
        while Instant::now() < until {
            assert_eq!(cluster.metric("mooncake_segments_closed"), closed);
        }
    }
    drop(view);
    eventually("it is open", Duration::from_secs(5), || cluster.metric("mooncake_segments_closed") == 0);
    owner.put(b"l", &[Source::new(&value("l", 1000))], &PutOptions::default()).unwrap();
}

#[test]
fn a_master_that_is_replaced_by_an_older_one_is_known_as_that() {
    let cluster = Cluster::start();
    let older = OlderMaster::in_front_of(&cluster, FEATURES, "");
    let store = older.store(&cluster);
    let bytes = value("k", 1000);
    let upsert = || store.upsert(b"k", &[Source::new(&bytes)], &PutOptions::default());
    upsert().unwrap();
    older.become_one_with(FEATURES & !Feature::Replace.bit());
    refused(upsert(), Feature::Replace, "an older version");
    older.become_one_with(FEATURES);
    upsert().unwrap();
}
