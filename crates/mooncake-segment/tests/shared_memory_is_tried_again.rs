//! A peer that hesitates once is not on TCP for ever.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use mooncake_memory::{Destination, Source};
use mooncake_os::Deadline;
use mooncake_segment::{LinkOptions, Path, Paths, SegmentAddress};

use crate::support::*;

#[test]
fn an_owner_that_stood_still_at_the_first_contact_is_mapped_later() {
    let (owner, address) = start_owner(4 * MIB);
    let options = LinkOptions { retry_after: Duration::from_millis(100), ..LinkOptions::new(WRITER) };
    // Let go once the Unix hello has been given up, and TCP waits for its own.
    let freeze = options.connect_timeout + Duration::from_millis(300);
    let (links, _noticed) = links_with(options);
    owner.stop();
    let begun = Instant::now();
    let interrupted = || {
        if begun.elapsed() >= freeze {
            owner.go_on();
        }
        false
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let first = links.link(&address, &Deadline { interrupted: &interrupted, ..Deadline::at(deadline) }).unwrap();
    assert_eq!(first.path(), Path::Tcp);
    let data = pattern(MIB, 3);
    let crc = first.write(rid(1, 1), 0, &[Source::new(&data)], &soon()).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    let link = loop {
        let link = links.link(&address, &soon()).unwrap();
        if link.path() == Path::SharedMemory {
            break link;
        }
        assert!(Instant::now() < until, "{}", link.reason());
        std::thread::sleep(Duration::from_millis(1));
    };
    // What began over the former one goes on there.
    for link in [&first, &link] {
        let mut back = vec![0; data.len()];
        link.read(rid(1, 1), 0, &mut [Destination::new(&mut back)], Some(crc), &soon()).unwrap();
        assert!(back == data);
    }
    assert!(link.view(rid(1, 1), 0, MIB, Some(crc)).unwrap().is_some());
}

/// A Unix socket of the test's own in place of the owner's, which drops every caller.
fn rude_door(name: &str) -> UnixListener {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

#[test]
fn what_may_pass_is_tried_again_and_a_firm_no_is_not() {
    let owner = Owner::new(MIB);
    let retry_after = Duration::from_millis(10);
    let paths = Paths { local: false, ..Paths::ALL };
    let options = LinkOptions { paths, retry_after, ..LinkOptions::new(WRITER) };
    let name = format!("rude-door-{}", std::process::id());
    let address = SegmentAddress { unix_socket: name.clone(), ..owner.address() };
    // Nobody listens: another network namespace, say.
    let (firm, _noticed) = links_with(options.clone());
    assert_eq!(firm.link(&address, &soon()).unwrap().path(), Path::Tcp);
    let door = rude_door(&name);
    for _ in 0..10 {
        std::thread::sleep(retry_after);
        assert_eq!(firm.link(&address, &soon()).unwrap().path(), Path::Tcp);
    }
    assert!(door.accept().is_err(), "tried again");

    let (passing, _noticed) = links_with(options);
    std::thread::scope(|scope| {
        let callers = scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(10);
            let mut callers = 0;
            while callers < 3 && Instant::now() < until {
                match door.accept() {
                    Ok(_hung_up_on) => callers += 1,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            callers
        });
        while !callers.is_finished() {
            assert_eq!(passing.link(&address, &soon()).unwrap().path(), Path::Tcp);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(callers.join().unwrap(), 3);
    });
}
