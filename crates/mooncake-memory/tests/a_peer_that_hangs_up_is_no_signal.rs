//! Alone in its process: it changes what a signal does.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;

use mooncake_memory::{Source, Splice};

#[test]
fn a_peer_that_hangs_up_is_an_error_of_the_call_and_no_signal_to_the_program() {
    // As in a program that is not Rust's or Python's: the signal ends it.
    // SAFETY: the default action, which runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    out.shutdown(Shutdown::Write).unwrap();
    let bytes = vec![1; 8 << 20];
    let parts = [Source::new(&bytes)];
    let mut splice = Splice::of_sources(&parts).expect("a pipe");
    let error = splice.send_sources(out.as_fd(), &parts, 0, false).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    // What came is taken away before the thread hears signals again.
    drop(splice);
}
