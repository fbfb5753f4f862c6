//! Proof that a process of this host is the peer that it says it is, and that it still runs.

use mooncake_memory::{Destination, PeerProcess, PullError};

use crate::protocol::same_host::{SECRET_LEN, Secret};

/// The peer, if its memory holds the secret that it sent.
pub(crate) fn proven(peer: PeerProcess, secret: &Secret) -> Result<Option<PeerProcess>, PullError> {
    Ok(holds(&peer, secret)?.then_some(peer))
}

/// Whether the program that has proven itself by the secret still runs, as far as is known.
pub(crate) fn is_there(process: &PeerProcess, secret: &Secret) -> bool {
    match holds(process, secret) {
        Ok(holds) => holds,
        // The process called `exec`, which ends all threads of the program before.
        Err(PullError::Fault { .. }) => false,
        // The memory of a process that is being killed cannot be read once its first thread has gone, while another of
        // its threads may still copy.
        Err(PullError::Ended { .. } | PullError::Refused { .. }) => !process.has_ended(),
    }
}

/// Whether that process's memory holds the secret.
fn holds(peer: &PeerProcess, secret: &Secret) -> Result<bool, PullError> {
    let mut found = [0; SECRET_LEN];
    peer.pull(secret.addr, &mut Destination::new(&mut found))?;
    Ok(found == secret.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_is_there_as_long_as_one_of_its_threads_is() {
        let name = format!("first-thread-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let script = format!(
            "
import ctypes, socket, struct, threading, time
door = socket.socket(socket.AF_UNIX)
door.connect('\\0{name}')
secret = ctypes.create_string_buffer(b'7' * {SECRET_LEN}, {SECRET_LEN})
threading.Thread(target=time.sleep, args=(60,)).start()
door.send(struct.pack('<Q', ctypes.addressof(secret)))
door.recv(1)
ctypes.CDLL(None).syscall({}, 0)
",
            libc::SYS_exit
        );
        let mut child = Command::new("python3").args(["-c", &script]).spawn().unwrap();
        let (mut door, _) = listener.accept().unwrap();
        let mut addr = [0; 8];
        door.read_exact(&mut addr).unwrap();
        let secret = Secret { addr: u64::from_le_bytes(addr), bytes: [b'7'; SECRET_LEN] };
        let process = proven(PeerProcess::of_socket(&door).unwrap(), &secret).unwrap().unwrap();
        assert!(is_there(&process, &secret));
        // As in a process that is killed, its first thread goes before another one, which may be in the midst of a
        // copy.
        door.write_all(b"x").unwrap();
        let began = Instant::now();
        while !matches!(holds(&process, &secret), Err(PullError::Ended { .. })) {
            assert!(began.elapsed() < Duration::from_secs(20), "it does not go");
        }
        assert!(!process.has_ended(), "it has ended altogether");
        assert!(is_there(&process, &secret));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_there(&process, &secret));
    }
}
