//! Links that are closed, forgotten or let go of lead nowhere any more, and keep nothing.

use std::time::{Duration, Instant};

use mooncake_memory::{Destination, Source};
use mooncake_os::Deadline;
use mooncake_segment::{LinkError, Path, Paths, TransferError};

use crate::support::*;

#[test]
fn whoever_still_has_a_link_of_closed_links_moves_no_byte_over_it() {
    for path in [Path::Local, Path::SharedMemory, Path::Tcp] {
        for dropped in [false, true] {
            let owner = Owner::new(MIB);
            let (links, _noticed) = links(Paths::only(path));
            let link = links.link(&owner.address(), &soon()).unwrap();
            link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
            let kept = if dropped {
                drop(links);
                None
            } else {
                links.close();
                assert!(matches!(links.link(&owner.address(), &soon()), Err(LinkError::Closed)));
                Some(links)
            };
            let is_gone = |e: &TransferError| matches!(e, TransferError::Gone { .. });
            let read = link.read(rid(1, 1), 0, &mut [Destination::new(&mut [0])], None, &soon());
            assert!(read.is_err_and(|e| is_gone(&e)), "{path}");
            let write = link.write(rid(1, 2), 0, &[Source::new(b"x")], &soon());
            assert!(write.is_err_and(|e| e.settled && is_gone(&e.error)), "{path}");
            assert!(link.view(rid(1, 1), 0, 1, None).is_err_and(|e| is_gone(&e)), "{path}");
            drop(link);
            eventually("nothing is mapped", || kept.as_ref().is_none_or(|links| links.are_over()));
        }
    }
}

#[test]
fn a_link_that_is_made_while_the_links_close_is_ended() {
    let (owner, address) = start_owner(MIB);
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    let ended = while_connecting(&links, &owner, &address, |_| links.close());
    assert!(matches!(ended, Err(LinkError::Closed)));
    eventually("it is unmapped", || links.are_over());
}

#[test]
fn a_caller_without_time_keeps_no_other_from_a_link() {
    let (owner, address) = start_owner(MIB);
    let (links, _noticed) = links(Paths::ALL);
    owner.stop();
    let short = Deadline::at(Instant::now() + Duration::from_millis(60));
    assert!(matches!(links.link(&address, &short), Err(LinkError::Timeout { .. })));
    let interrupted = Deadline { interrupted: &|| true, ..soon() };
    assert!(matches!(links.link(&address, &interrupted), Err(LinkError::Interrupted)));
    owner.go_on();
    links.link(&address, &soon()).unwrap();
}

#[test]
fn the_lanes_of_a_forgotten_segment_close_though_its_link_is_kept() {
    let owner = Owner::new(MIB);
    let (links, _noticed) = links(Paths::only(Path::Tcp));
    let link = links.link(&owner.address(), &soon()).unwrap();
    eventually("a lane is open", || owner.server.lanes() == 1);
    links.forget(owner.memory.uuid(), &[], FIRST);
    eventually("it is closed", || owner.server.lanes() == 0);
    drop(link);
}

#[test]
fn an_owner_hears_that_nothing_is_mapped_once_the_last_view_has_ended() {
    let owner = Owner::new(MIB);
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    let link = links.link(&owner.address(), &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
    let view = link.view(rid(1, 1), 0, 1, None).unwrap().unwrap();
    drop(link);
    links.close();
    assert_eq!(owner.server.attached(), 1);
    drop(view);
    eventually("it hears of it", || owner.server.attached() == 0);
}

#[test]
fn a_link_to_an_owner_that_hung_up_is_let_go_of_where_no_other_is_to_be_had() {
    let owner = Owner::new(MIB);
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    drop(links.link(&owner.address(), &soon()).unwrap());
    assert_eq!(links.report().len(), 1);
    owner.server.shutdown();
    eventually("the end of the connection is seen", || links.link(&owner.address(), &soon()).is_err());
    assert!(links.report().is_empty(), "its memory is still mapped");
}

#[test]
fn an_earlier_epoch_that_is_told_later_brings_no_older_write_back() {
    let owner = Owner::new(MIB);
    let (links, _noticed) = links(Paths::ALL);
    let link = links.link(&owner.address(), &soon()).unwrap();
    links.raise_epoch(3);
    links.raise_epoch(2);
    let e = link.write(rid(2, 1), 0, &[Source::new(b"x")], &soon()).unwrap_err();
    assert!(e.settled && matches!(e.error, TransferError::Superseded { .. }), "{e}");
    link.write(rid(3, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
}
