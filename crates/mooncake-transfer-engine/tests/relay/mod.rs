//! A name under which a target's document is found, and between its data port and whoever asks there, a relay.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use mooncake_transfer_engine::Engine;

/// What becomes of the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Passed on.
    Pass,
    /// So many at a time, with a pause after each.
    Trickle(usize, Duration),
    /// After so many the connection ends in order.
    End(usize),
    /// After so many the connection is reset.
    Reset(usize),
    /// After so many nothing is passed on any more.
    Hush(usize),
}

/// The name of a peer that is `target` behind a relay.
pub fn behind(target: &Engine, there: Fate, back: Fate) -> String {
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let document = document_of(target).replace(
        &format!("\"tcp_data_port\":{}", target.data_port()),
        &format!("\"tcp_data_port\":{}", data.local_addr().unwrap().port()),
    );
    let to = target.data_port();
    std::thread::spawn(move || {
        for near in data.incoming() {
            let (near, far) = (Arc::new(near.unwrap()), Arc::new(TcpStream::connect(("127.0.0.1", to)).unwrap()));
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            for (from, into, fate) in [(near.clone(), far.clone(), there), (far, near, back)] {
                std::thread::spawn(move || pump(&from, &into, fate));
            }
        }
    });
    answering(document)
}

/// Answers handshakes with a document.
pub fn answering(document: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 8];
            if stream.read_exact(&mut length).is_err() {
                continue;
            }
            let _ = stream.read_exact(&mut vec![0; u64::from_le_bytes(length) as usize]);
            let mut answer = (document.len() as u64 + 1).to_le_bytes().to_vec();
            answer.push(1);
            answer.extend_from_slice(document.as_bytes());
            let _ = stream.write_all(&answer);
        }
    });
    name
}

/// What a target says of itself.
pub fn document_of(target: &Engine) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", target.port())).unwrap();
    stream.write_all(&[3, 0, 0, 0, 0, 0, 0, 0, 1, b'{', b'}']).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    String::from_utf8(heard[9..].to_vec()).unwrap()
}

fn pump(mut from: &TcpStream, mut into: &TcpStream, fate: Fate) {
    let (most, step) = match fate {
        Fate::Pass => (usize::MAX, 1 << 16),
        Fate::Trickle(step, _) => (usize::MAX, step),
        Fate::End(most) | Fate::Reset(most) | Fate::Hush(most) => (most, 1 << 16),
    };
    let (mut passed, mut some) = (0, vec![0; step]);
    while passed < most {
        let wanted = step.min(most - passed);
        match from.read(&mut some[..wanted]) {
            Ok(count) if count > 0 => {
                if into.write_all(&some[..count]).is_err() {
                    break;
                }
                passed += count;
            }
            _ => break,
        }
        if let Fate::Trickle(_, pause) = fate {
            std::thread::sleep(pause);
        }
    }
    match fate {
        // Taken and thrown away: nobody learns that nothing goes on.
        Fate::Hush(_) if passed == most => while from.read(&mut some).is_ok_and(|count| count > 0) {},
        Fate::Reset(_) if passed == most => {
            for side in [from, into] {
                socket2::SockRef::from(side).set_linger(Some(Duration::ZERO)).unwrap();
                // The socket lives on in the other direction's thread, which this ends.
                let _ = side.shutdown(std::net::Shutdown::Both);
            }
        }
        _ => {
            for side in [from, into] {
                let _ = side.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}
