//! Descriptors that could kill this process are refused, and TCP is used.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use mooncake_memory::{Destination, SegmentMemory, Source, crc32c};
use mooncake_os::send_fds;
use mooncake_segment::{LinkError, Path, Paths, SegmentAddress, ServerOptions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::support::*;

/// A socket that answers a hello with its own descriptors, whatever they are.
fn impostor(address: &SegmentAddress, seals: SealFlags, size: u64) -> SegmentAddress {
    let name = format!("mooncake-test-impostor-{}-{}", std::process::id(), seals.bits());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let (uuid, bytes) = (address.uuid, address.bytes);
    std::thread::spawn(move || {
        let make = |size| {
            let fd = memfd_create("impostor", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, size).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let (data, control) = (make(size), make(4096 + bytes / 1024 * 8));
        while let Ok((mut stream, _)) = listener.accept() {
            stream.read_exact(&mut [0; 64]).unwrap();
            let mut reply = [0; 64];
            reply[..8].copy_from_slice(&mooncake_wire::LANE_PREFACE);
            reply[8] = 1;
            reply[16..24].copy_from_slice(&bytes.to_le_bytes());
            reply[24..40].copy_from_slice(&uuid.0);
            let crc = crc32c(&reply[..60]);
            reply[60..].copy_from_slice(&crc.to_le_bytes());
            send_fds(&stream, &reply, &[data.as_fd(), control.as_fd()]).unwrap();
        }
    });
    SegmentAddress { unix_socket: name, ..address.clone() }
}

#[test]
fn unsealed_or_resized_memory_falls_back_to_tcp_and_says_why() {
    let owner = Owner::new(MIB);
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for (seals, size, why) in [
        (SealFlags::empty(), MIB, "not a sealed memfd"),
        (SealFlags::GROW | SealFlags::SEAL, MIB, "not a sealed memfd"),
        (all, 4096, "4096 bytes instead of"),
    ] {
        let address = impostor(&owner.address(), seals, size);
        let (links, _noticed) = links(Paths { local: false, ..Paths::ALL });
        let link = links.link(&address, &soon()).unwrap();
        assert_eq!(link.path(), Path::Tcp);
        assert!(link.reason().contains(why), "{}", link.reason());
        link.write(rid(1, 1), 0, &[Source::new(b"by tcp")], &soon()).unwrap();
    }
}

#[test]
fn memory_over_a_file_is_given_to_nobody() {
    let path = std::path::PathBuf::from(format!("/dev/shm/mooncake-test-file-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().set_len(MIB).unwrap();
    let memory = SegmentMemory::over_file(&path, 0, MIB).unwrap();
    std::fs::remove_file(&path).unwrap();
    let owner = Owner::of(memory, ServerOptions::new("127.0.0.1".parse().unwrap(), 0, OWNER));
    // Even to somebody who was told where to ask.
    let (links, _noticed) = links(Paths { local: false, ..Paths::ALL });
    let link = links.link(&owner.address(), &soon()).unwrap();
    assert_eq!(link.path(), Path::Tcp);
    assert!(link.reason().contains("no shared memory: the peer gives its memory only"), "{}", link.reason());
    let written = link.write(rid(1, 1), 0, &[Source::new(b"by tcp")], &soon()).unwrap();
    assert_eq!(written, crc32c(b"by tcp"));
    let mut read = [0; 6];
    link.read(rid(1, 1), 0, &mut [Destination::new(&mut read)], Some(written), &soon()).unwrap();
    assert_eq!(&read, b"by tcp");
    assert_eq!(owner.server.attached(), 0);
}

#[test]
fn forced_shared_memory_fails_with_the_reason_instead() {
    let owner = Owner::new(MIB);
    let address = SegmentAddress { unix_socket: "nobody-listens-here".into(), ..owner.address() };
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    match links.link(&address, &soon()) {
        Err(LinkError::NoPath { reason, .. }) => {
            assert!(reason.contains("Unix socket") && reason.contains("TCP is switched off"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
