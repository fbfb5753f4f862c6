//! What lies between clients and a master: it carries bytes, loses and holds some, and looks at others.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mooncake_wire::message::{Hello, Request, hello, request};
use prost::Message;

/// Carries bytes between clients and a master, and loses replies when told to.
pub struct Proxy {
    pub address: String,
    pub losses: Arc<Losses>,
}

#[derive(Default)]
pub struct Losses {
    /// Replies to calls seen so far, hellos not counted.
    pub seen: AtomicU64,
    /// The connection is cut in the place of the reply with this number.
    pub lose: AtomicI64,
    pub lost: AtomicU64,
    /// So is every connection in the place of this reply and those behind it, if it is not negative.
    pub lose_from: AtomicI64,
    /// Calls come to their end before the master has heard them; anchors are left alone.
    pub no_calls: AtomicBool,
    /// Nothing is carried any more, and nothing is closed.
    pub frozen: AtomicBool,
    /// So many of the next requests but those about memory lie on the way until `holding` ends.
    pub hold: AtomicU64,
    /// The same with replies.
    pub hold_replies: AtomicU64,
    /// So many requests pass before those that `hold` is about.
    pub pass: AtomicU64,
    pub holding: AtomicBool,
    pub held: AtomicU64,
    /// So many of those that were held first go on before `holding` ends.
    pub let_go: AtomicU64,
    /// Hellos do not say what their senders have seen: a master that believes nobody.
    pub hide_positions: AtomicBool,
    /// So many anchors are cut as soon as they say something.
    pub cut_anchors: AtomicU64,
    /// The same with the hellos of anchors that come back as with requests.
    pub hold_resumes: AtomicU64,
    /// What those that gave placements up said: whether nothing of the writer can land there any more.
    pub writer_done: Mutex<Vec<bool>>,
}

impl Proxy {
    pub fn to(master: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let losses = Arc::new(Losses { lose: AtomicI64::new(-1), lose_from: AtomicI64::new(-1), ..Losses::default() });
        let shared = losses.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&master) else { continue };
                carry(client, server, shared.clone());
            }
        });
        Self { address, losses }
    }

    pub fn lose_next(&self) {
        self.losses.lose.store(self.losses.seen.load(Ordering::SeqCst) as i64, Ordering::SeqCst);
    }

    pub fn lost(&self) -> u64 {
        self.losses.lost.load(Ordering::SeqCst)
    }
}

impl Losses {
    fn hold_one(&self, hold: &AtomicU64) {
        if !take_one(hold) {
            return;
        }
        let ticket = self.held.fetch_add(1, Ordering::SeqCst);
        while self.holding.load(Ordering::SeqCst) && ticket >= self.let_go.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn take_one(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn read_request(frame: &[u8]) -> Option<request::Body> {
    Request::decode(frame.get(4..)?).ok()?.body
}

/// What a store's own thread asks for in a new session, whenever that is.
fn is_of_memory(request: &Option<request::Body>) -> bool {
    matches!(request, Some(request::Body::Mount(_) | request::Body::Unmount(_)))
}

fn carry(client: TcpStream, server: TcpStream, losses: Arc<Losses>) {
    let (mut client_in, mut server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let up = losses.clone();
    let is_call = Arc::new(AtomicBool::new(false));
    let role = is_call.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 64 << 10];
        let mut first = true;
        while let Ok(mut count) = client_in.read(&mut buffer) {
            while up.frozen.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if std::mem::take(&mut first) {
                // Behind the preface and the length of the frame.
                let hello = buffer.get(12..count).and_then(|hello| Hello::decode(hello).ok()).unwrap_or_default();
                role.store(matches!(hello.role, Some(hello::Role::Attach(_))), Ordering::SeqCst);
                if up.hide_positions.load(Ordering::SeqCst) && count > 12 {
                    let hello = Hello { highest: None, ..hello }.encode_to_vec();
                    count = 12 + hello.len();
                    buffer[8..12].copy_from_slice(&(hello.len() as u32).to_le_bytes());
                    buffer[12..count].copy_from_slice(&hello);
                }
                if !role.load(Ordering::SeqCst) {
                    up.hold_one(&up.hold_resumes);
                }
            } else if !role.load(Ordering::SeqCst) && take_one(&up.cut_anchors) {
                let _ = client_in.shutdown(Shutdown::Both);
                break;
            } else if role.load(Ordering::SeqCst) && count > 0 {
                let request = read_request(&buffer[..count]);
                if let Some(request::Body::Abort(abort)) = &request {
                    up.writer_done.lock().unwrap().push(abort.writer_done);
                }
                if !is_of_memory(&request) && !take_one(&up.pass) {
                    up.hold_one(&up.hold);
                }
            }
            if role.load(Ordering::SeqCst) && up.no_calls.load(Ordering::SeqCst) {
                break;
            }
            if count == 0 || server_out.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // What was on the way arrives although its sender has hung up.
        let _ = server_out.shutdown(Shutdown::Write);
    });
    let (mut server_in, mut client_out) = (server, client);
    std::thread::spawn(move || {
        let mut hello = true;
        loop {
            let mut header = [0; 4];
            if server_in.read_exact(&mut header).is_err() {
                break;
            }
            let mut body = vec![0; u32::from_le_bytes(header) as usize];
            if server_in.read_exact(&mut body).is_err() {
                break;
            }
            while losses.frozen.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !std::mem::take(&mut hello) && is_call.load(Ordering::SeqCst) {
                let number = losses.seen.fetch_add(1, Ordering::SeqCst) as i64;
                let from = losses.lose_from.load(Ordering::SeqCst);
                if losses.lose.load(Ordering::SeqCst) == number || (0..=number).contains(&from) {
                    losses.lost.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                losses.hold_one(&losses.hold_replies);
            }
            if client_out.write_all(&header).and_then(|()| client_out.write_all(&body)).is_err() {
                break;
            }
        }
        let _ = client_out.shutdown(Shutdown::Both);
        let _ = server_in.shutdown(Shutdown::Both);
    });
}
