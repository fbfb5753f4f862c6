//! What a service manager is told of a process: that it serves, or that it ends (systemd's `Type=notify`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// It serves from here on.
pub fn is_ready() {
    tell("READY=1");
}

/// It ends, and takes its time.
pub fn is_stopping() {
    tell("STOPPING=1");
}

/// Says nothing where no manager wants to know.
fn tell(state: &str) {
    let Some(name) = std::env::var("NOTIFY_SOCKET").ok().filter(|name| !name.is_empty()) else { return };
    if let Err(error) = tell_at(&name, state) {
        tracing::warn!(%error, "NOTIFY_SOCKET={name}: the service manager is not told {state}");
    }
}

/// A path, or an abstract name behind an `@`.
fn tell_at(name: &str, state: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = path.to_str().unwrap();
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let mut heard = [0; 64];
        for (manager, name) in [(&at_path, name.to_owned()), (&at_name, format!("@{name}"))] {
            tell_at(&name, "READY=1").unwrap();
            let length = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1", "{name}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(tell_at(name, "READY=1").is_err());
    }
}
