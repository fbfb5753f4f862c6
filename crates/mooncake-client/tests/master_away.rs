//! The master stops, comes back, or comes back without its memory.

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use mooncake_client::{ErrorKind, Health, PutOutcome};

use crate::cluster::{Cluster, MIB, eventually, put, value};

#[test]
fn a_master_that_is_gone_costs_one_deadline_then_calls_fail_at_once() {
    let mut cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    put(&store, "a", 1000).unwrap();
    cluster.stop_master();
    let started = Instant::now();
    let error = store.exists(&["a"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MasterUnreachable, "{error}");
    assert!(error.to_string().contains(&cluster.address()), "{error}");
    assert!(started.elapsed() < Duration::from_millis(800), "{:?}", started.elapsed());
    let started = Instant::now();
    for _ in 0..100 {
        assert!(store.exists(&["a"]).is_err());
    }
    assert!(started.elapsed() < Duration::from_millis(50), "{:?}", started.elapsed());
    assert_eq!(store.health(), Health::MasterUnreachable);

    cluster.start_master();
    eventually("calls succeed again", Duration::from_secs(1), || store.exists(&["a"]).is_ok());
    assert_eq!(store.get(b"a").unwrap(), Some(value("a", 1000)));
}

#[test]
fn objects_and_views_outlast_a_restart_of_the_master() {
    let mut cluster = Cluster::start();
    let store = cluster.store(32 * MIB);
    let reader = cluster.store(0);
    for n in 0..20 {
        put(&store, &format!("k{n}"), 100_000).unwrap();
    }
    let view = reader.view(&["k7"]).remove(0).unwrap().unwrap();
    assert!(!view.is_private_copy());
    for _ in 0..2 {
        cluster.stop_master();
        cluster.start_master();
        eventually("every object is readable", Duration::from_secs(2), || {
            (0..20).all(|n| {
                let key = format!("k{n}");
                reader.get(key.as_bytes()).is_ok_and(|got| got == Some(value(&key, 100_000)))
            })
        });
        // Three times what the pool holds: only the pin keeps the bytes.
        for n in 0..96 {
            let put = put(&store, &format!("more{n}"), 1 << 20);
            assert!(put.is_ok(), "{put:?}");
            store.remove(&[format!("more{n}")], true).unwrap();
        }
        assert_eq!(view[..], value("k7", 100_000)[..]);
    }
}

#[test]
fn a_master_that_lost_its_log_gets_a_new_session_and_fresh_memory() {
    let mut cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    let reader = cluster.store(0);
    put(&store, "old", 5000).unwrap();
    let view = reader.view(&["old"]).remove(0).unwrap().unwrap();
    let own = store.view(&["old"]).remove(0).unwrap().unwrap();
    cluster.stop_master();
    cluster.forget_log();
    cluster.start_master();
    eventually("a put is stored again", Duration::from_secs(3), || {
        matches!(put(&store, "new", 5000), Ok(PutOutcome::Stored { .. }))
    });
    eventually("the other client reads it", Duration::from_secs(2), || {
        reader.get(b"new").is_ok_and(|got| got == Some(value("new", 5000)))
    });
    // What the master does not know is gone, and yet nobody's bytes change.
    assert_eq!(reader.get(b"old").unwrap(), None);
    for n in 0..64 {
        put(&store, &format!("fill{n}"), 1 << 20).unwrap();
    }
    assert_eq!(view[..], value("old", 5000)[..]);
    assert_eq!(own[..], value("old", 5000)[..]);
    assert_eq!(store.health(), Health::Ok);
    drop(view);
    drop(own);
    store.close();
}

#[test]
fn calls_in_flight_outlast_a_quick_restart() {
    let mut cluster = Cluster::start();
    let store = cluster.store(64 * MIB);
    put(&store, "warm", 10).unwrap();
    let writer = {
        let store = store.clone();
        std::thread::spawn(move || {
            let mut failed = 0;
            let started = Instant::now();
            let mut n = 0;
            while started.elapsed() < Duration::from_secs(2) {
                let key = format!("w{n}");
                n += 1;
                if put(&store, &key, 10_000).is_err() {
                    failed += 1;
                    std::thread::sleep(Duration::from_millis(10));
                } else if let Some(got) = store.get(key.as_bytes()).unwrap_or(None) {
                    assert_eq!(got, value(&key, 10_000));
                }
            }
            (n, failed)
        })
    };
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        cluster.stop_master();
        cluster.start_master();
    }
    let (made, failed) = writer.join().unwrap();
    assert!(made > 100, "{made} puts, {failed} failed");
    assert_eq!(store.health(), Health::Ok);
}

/// Needs a user that may become another one.
#[test]
fn a_stranger_on_the_name_of_a_masters_socket_is_told_nothing() {
    let mut cluster = Cluster::start();
    let store = cluster.store(8 * MIB);
    put(&store, "a", 1000).unwrap();
    let port = cluster.address().rsplit(':').next().unwrap().to_owned();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let prefix = format!("mooncake-master-{port}-");
    let names = sockets.lines().filter_map(|line| line.rsplit_once('@').map(|(_, name)| name.to_owned()));
    let name = names.into_iter().find(|name| name.starts_with(&prefix)).expect("the master's socket");
    cluster.stop_master();
    let (said, hears) = std::sync::mpsc::channel();
    let own_user = rustix::process::geteuid();
    std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        // Of this thread alone.
        if rustix::thread::set_thread_res_uid(nobody, nobody, nobody).is_err() || own_user == nobody {
            return;
        }
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        said.send(Vec::new()).unwrap();
        for mut stream in listener.incoming().flatten() {
            let mut bytes = vec![0; 1 << 10];
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            let count = stream.read(&mut bytes).unwrap();
            bytes.truncate(count);
            if said.send(bytes).is_err() {
                return;
            }
        }
    });
    if hears.recv().is_err() {
        eprintln!("no right to become another user: nothing is tested");
        return;
    }
    assert_eq!(store.exists(&["a"]).unwrap_err().kind(), ErrorKind::MasterUnreachable);
    let heard = hears.recv_timeout(Duration::from_secs(5)).expect("the client tries the name");
    assert_eq!(heard, Vec::<u8>::new(), "it hangs up at once");
}
