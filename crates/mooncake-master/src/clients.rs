//! Clients as people know them: what each said of itself, and what it asks of the pool. No log has it: a client says it
//! again with each anchor, and it is counted from then on that this master knows the client.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use mooncake_ids::SessionId;
use mooncake_metrics::Samples;
use mooncake_wire::message::hello::Role;
use mooncake_wire::message::{ClientInfo, Hello};
use parking_lot::Mutex;

use crate::metrics::{Op, add, get};

/// Longest text that a client may say of itself, bytes: the rest is left out.
const NAME_BYTES_MAX: usize = 255;

/// What a client said of itself. Nothing of it is proven.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Its host's name.
    pub host: String,
    /// The user that it runs as.
    pub user: String,
    /// The Kubernetes pod that it is in; empty elsewhere.
    pub pod: String,
    /// Its program.
    pub program: String,
    /// Its version.
    pub software: String,
    /// Process id in its own namespace; 0: not said.
    pub pid: u32,
}

impl About {
    /// What a hello says.
    pub fn of(hello: &Hello) -> About {
        let said = hello.client.as_ref();
        let name = |of: fn(&ClientInfo) -> &String| said.map(|said| short(of(said))).unwrap_or_default();
        let process = match &hello.role {
            Some(Role::Open(open)) => open.process.as_ref(),
            Some(Role::Resume(resume)) => resume.process.as_ref(),
            Some(Role::Attach(_) | Role::Ask(_)) | None => None,
        };
        About {
            host: name(|said| &said.host),
            user: name(|said| &said.user),
            pod: name(|said| &said.pod),
            program: name(|said| &said.program),
            software: short(&hello.software),
            pid: process.map_or(0, |process| process.pid),
        }
    }
}

/// A copy that takes no more memory than it may, however long what was said is.
fn short(name: &str) -> String {
    name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned()
}

/// What one client has asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects that it looked up.
    pub gets: u64,
    /// Those of them that there were.
    pub hits: u64,
    /// Bytes of these.
    pub got_bytes: u64,
    /// Objects that it stored.
    pub puts: u64,
    /// Bytes that it got room for.
    pub put_bytes: u64,
    /// Existence queries, by keys.
    pub exists: u64,
}

/// The same a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Objects that it looked up.
    pub gets: f64,
    /// Bytes of those that there were.
    pub got_bytes: f64,
    /// Objects that it stored.
    pub puts: f64,
    /// Bytes that it got room for.
    pub put_bytes: f64,
    /// Existence queries, by keys.
    pub exists: f64,
}

/// One client.
#[derive(Debug, Default)]
pub struct Client {
    about: Mutex<About>,
    gets: AtomicU64,
    hits: AtomicU64,
    got_bytes: AtomicU64,
    puts: AtomicU64,
    put_bytes: AtomicU64,
    exists: AtomicU64,
    samples: Mutex<Samples<Usage>>,
}

impl Client {
    /// What it said of itself last.
    pub fn about(&self) -> About {
        self.about.lock().clone()
    }

    /// Counts a request about `items` keys, of which `failed` failed, with so many bytes of objects that were found.
    pub fn count(&self, op: Op, items: usize, failed: usize, hit_bytes: u64) {
        let done = items.saturating_sub(failed) as u64;
        match op {
            Op::GetReplicaList => {
                add(&self.gets, items as u64);
                add(&self.hits, done);
                add(&self.got_bytes, hit_bytes);
            }
            Op::ExistKey => add(&self.exists, items as u64),
            Op::PutEnd => add(&self.puts, done),
            _ => {}
        }
    }

    /// Counts an object that got room.
    pub fn placed(&self, bytes: u64) {
        add(&self.put_bytes, bytes);
    }

    /// What it has asked for so far.
    pub fn usage(&self) -> Usage {
        Usage {
            gets: get(&self.gets),
            hits: get(&self.hits),
            got_bytes: get(&self.got_bytes),
            puts: get(&self.puts),
            put_bytes: get(&self.put_bytes),
            exists: get(&self.exists),
        }
    }

    /// What it asks for now.
    pub fn rates(&self, now: Instant) -> Rates {
        let samples = self.samples.lock();
        let Some((seconds, then)) = samples.recent(now) else { return Rates::default() };
        let (usage, then) = (self.usage(), *then);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Rates {
            gets: rate(usage.gets, then.gets),
            got_bytes: rate(usage.got_bytes, then.got_bytes),
            puts: rate(usage.puts, then.puts),
            put_bytes: rate(usage.put_bytes, then.put_bytes),
            exists: rate(usage.exists, then.exists),
        }
    }

    fn sample(&self, now: Instant) {
        self.samples.lock().take(now, self.usage());
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Clients(Mutex<HashMap<SessionId, Arc<Client>>>);

impl Clients {
    /// The client of a session. The first connection of one that comes back may be one for calls.
    pub fn of(&self, session: SessionId, now: Instant) -> Arc<Client> {
        let mut clients = self.0.lock();
        let client = clients.entry(session).or_insert_with(|| {
            let client = Client::default();
            client.sample(now);
            Arc::new(client)
        });
        client.clone()
    }

    /// It says what it is.
    pub fn says(&self, session: SessionId, about: About, now: Instant) {
        *self.of(session, now).about.lock() = about;
    }

    /// Whose sessions are known here.
    pub fn sessions(&self) -> BTreeSet<SessionId> {
        self.0.lock().keys().copied().collect()
    }

    /// Sessions that are over leave nothing.
    pub fn forget(&self, is_over: impl Fn(SessionId) -> bool) {
        self.0.lock().retain(|session, _| !is_over(*session));
    }

    /// Takes a sample of each.
    pub fn sample(&self, now: Instant) {
        let all: Vec<Arc<Client>> = self.0.lock().values().cloned().collect();
        all.iter().for_each(|client| client.sample(now));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooncake_metrics::SAMPLE_EVERY;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rates_are_of_the_last_ten_seconds() {
        let (clients, began) = (Clients::default(), Instant::now());
        let client = clients.of(SessionId(1), began);
        client.count(Op::GetReplicaList, 40, 10, 3_000);
        assert_eq!(client.rates(began + 2 * SECOND).gets, 20.0);
        assert_eq!(client.rates(began + 2 * SECOND).got_bytes, 1_500.0);
        (1..=6).for_each(|nth| clients.sample(began + nth * SAMPLE_EVERY));
        assert_eq!(client.rates(began + 12 * SECOND), Rates::default(), "that was before");
        client.count(Op::PutEnd, 10, 0, 0);
        assert_eq!(client.rates(began + 12 * SECOND).puts, 1.0);
    }

    #[test]
    fn a_client_that_has_just_come_has_no_rate_of_thousands() {
        let (clients, began) = (Clients::default(), Instant::now());
        let client = clients.of(SessionId(1), began);
        client.count(Op::ExistKey, 10, 0, 0);
        assert_eq!(client.rates(began + Duration::from_millis(1)).exists, 10.0);
    }

    #[test]
    fn what_failed_is_no_put_and_no_hit() {
        let client = Client::default();
        client.count(Op::PutEnd, 5, 2, 0);
        client.count(Op::GetReplicaList, 5, 4, 7);
        client.count(Op::Remove, 5, 0, 0);
        client.placed(9);
        let usage = client.usage();
        assert_eq!(usage, Usage { gets: 5, hits: 1, got_bytes: 7, puts: 3, put_bytes: 9, exists: 0 });
    }

    #[test]
    fn however_much_a_client_says_of_itself_little_is_kept() {
        let long = "\u{4e2d}".repeat(100_000);
        let said = ClientInfo { host: long.clone(), user: long.clone(), pod: "p".to_owned(), program: long.clone() };
        let about = About::of(&Hello { client: Some(said), software: long, ..Hello::default() });
        for name in [&about.host, &about.user, &about.program, &about.software] {
            assert_eq!(name, &"\u{4e2d}".repeat(85));
            assert!(name.capacity() <= NAME_BYTES_MAX);
        }
        assert_eq!((about.pod.as_str(), about.pid), ("p", 0));
    }

    #[test]
    fn a_session_that_is_over_leaves_nothing() {
        let (clients, now) = (Clients::default(), Instant::now());
        clients.says(SessionId(1), About { host: "h".to_owned(), ..About::default() }, now);
        _ = clients.of(SessionId(2), now);
        assert_eq!(clients.of(SessionId(1), now).about().host, "h");
        clients.forget(|session| session == SessionId(1));
        assert_eq!(clients.sessions(), BTreeSet::from([SessionId(2)]));
    }
}
