use super::*;
use crate::log::Log;
use crate::shared::Shared;

impl Idle {
    /// Of a connection that nobody looks at.
    pub fn of_one() -> Idle {
        Idle { time_origin: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl Connections {
    /// Those that are counted as such.
    pub fn strangers(&self) -> usize {
        let table = self.table.lock();
        table.strangers.count + table.greeted
    }
}

const ANNE: SessionId = SessionId(7);
const BERT: SessionId = SessionId(8);

fn address(last: u8) -> Peer {
    Peer::Ip([10, 0, 0, last].into())
}

fn shared(limits: Limits) -> Arc<Shared> {
    Arc::new(Shared::limited(Arc::new(Log::new(1, 0, None, false)), limits))
}

/// A connection, and its task, which ends with it as the master's do.
struct Guest {
    entry: Option<Entry>,
    task: tokio::task::JoinHandle<()>,
}

impl Guest {
    fn new(shared: &Arc<Shared>, peer: Peer) -> Result<Guest, Full> {
        let entry = Entry::new(&shared.connections, peer)?;
        let task = endless();
        Entry::set_first_task(&shared.connections, entry.number(), task.abort_handle());
        Ok(Guest { entry: Some(entry), task })
    }

    fn entry(&self) -> &Entry {
        self.entry.as_ref().unwrap()
    }

    fn calls(shared: &Arc<Shared>, session: SessionId) -> Result<(Guest, Arc<Idle>), Full> {
        let guest = Guest::new(shared, address(1)).unwrap();
        let idle = guest.entry().is_for_calls(session)?;
        Ok((guest, idle))
    }

    /// True: it makes room for others.
    async fn has_to_go(&mut self) -> bool {
        // As the runtime does with what is aborted.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        let goes = self.task.is_finished();
        if goes {
            self.entry = None;
        }
        goes
    }
}

fn endless() -> tokio::task::JoinHandle<()> {
    tokio::spawn(std::future::pending())
}

fn age(idle: &[&Arc<Idle>]) {
    std::thread::sleep(IDLE_FROM);
    // The first is idle for longest.
    for idle in idle {
        idle.begins();
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(IDLE_FROM);
}

#[tokio::test]
async fn where_calls_fill_their_share_the_one_goes_that_rests_longest_of_the_client_with_the_most() {
    let shared = shared(Limits { strangers: 8, calls: 4 });
    let [(mut a1, first), (mut a2, second), (mut a3, third)] = [(); 3].map(|()| Guest::calls(&shared, ANNE).unwrap());
    let (mut b, of_other) = Guest::calls(&shared, BERT).unwrap();
    age(&[&of_other, &second, &first, &third]);
    second.ends();
    let (_b2, _) = Guest::calls(&shared, BERT).unwrap();
    assert!(a1.has_to_go().await, "the second has a call, and Bert has fewer");
    assert!(!a2.has_to_go().await && !a3.has_to_go().await && !b.has_to_go().await);
    assert_eq!((shared.connections.len(), shared.connections.displaced()), (4, 1));
}

#[tokio::test]
async fn who_has_a_call_under_way_never_makes_room() {
    let shared = shared(Limits { strangers: 8, calls: 2 });
    let [(mut a, first), (mut b, second)] = [(); 2].map(|()| Guest::calls(&shared, ANNE).unwrap());
    age(&[&first, &second]);
    [&first, &second].into_iter().for_each(|idle| idle.ends());
    assert!(Guest::calls(&shared, BERT).is_err());
    assert!(!a.has_to_go().await && !b.has_to_go().await);
    second.begins();
    assert!(Guest::calls(&shared, BERT).is_err(), "its next call may be on its way");
    age(&[&second]);
    let (mut newcomer, idle) = Guest::calls(&shared, BERT).unwrap();
    assert!(b.has_to_go().await);
    // What is on its way to be served may have to go too: the task that it goes to is told.
    age(&[&idle]);
    let _next = Guest::calls(&shared, ANNE).unwrap();
    assert!(newcomer.has_to_go().await);
    let calls = endless();
    Entry::set_task(&shared.connections, 3, calls.abort_handle());
}

#[tokio::test]
async fn of_strangers_the_oldest_goes_of_the_address_with_the_most_and_anchors_stay() {
    let shared = shared(Limits { strangers: 4, calls: 1 });
    let mut one = Guest::new(&shared, address(1)).unwrap();
    let mut anchor = Guest::new(&shared, address(2)).unwrap();
    anchor.entry().asks_for_anchor();
    let mut flood = [(); 2].map(|()| Guest::new(&shared, address(2)).unwrap());
    let mut next = Guest::new(&shared, address(3)).unwrap();
    assert!(flood[0].has_to_go().await);
    assert!(!one.has_to_go().await && !anchor.has_to_go().await && !flood[1].has_to_go().await);
    let _more = Guest::new(&shared, address(3)).unwrap();
    assert!(!next.has_to_go().await && one.has_to_go().await, "all have one: the oldest");
    // An anchor that is one does not count any more.
    anchor.entry().is_anchor(ANNE);
    let _place = Guest::new(&shared, address(4)).unwrap();
    assert!(!next.has_to_go().await && !anchor.has_to_go().await && !flood[1].has_to_go().await);
}

#[tokio::test]
async fn where_all_strangers_are_anchors_to_be_the_next_one_waits_outside() {
    let shared = shared(Limits { strangers: 2, calls: 1 });
    let mut guests = [(); 2].map(|()| Guest::new(&shared, address(1)).unwrap());
    guests.iter().for_each(|guest| guest.entry().asks_for_anchor());
    assert!(Guest::new(&shared, address(2)).is_err());
    guests[0].entry().is_anchor(ANNE);
    let _next = Guest::new(&shared, address(2)).unwrap();
    assert!(!guests[0].has_to_go().await && !guests[1].has_to_go().await);
}

#[tokio::test]
async fn without_descriptors_calls_at_rest_make_room_then_strangers_and_never_anchors() {
    let shared = shared(Limits::default());
    let mut anchor = Guest::new(&shared, address(1)).unwrap();
    anchor.entry().is_anchor(ANNE);
    let mut stranger = Guest::new(&shared, address(1)).unwrap();
    let (mut calls, idle) = Guest::calls(&shared, ANNE).unwrap();
    age(&[&idle]);
    assert!(shared.connections.make_room() && calls.has_to_go().await && !stranger.has_to_go().await);
    assert!(shared.connections.make_room() && stranger.has_to_go().await);
    assert!(!shared.connections.make_room() && !anchor.has_to_go().await);
}

#[test]
fn a_process_with_few_descriptors_leaves_some_for_anchors() {
    let few = Limits::default().within(1_024);
    assert_eq!((few.strangers, few.calls), (128, 512));
    assert_eq!(Limits::default().within(1 << 20), Limits::default());
}

#[tokio::test]
async fn a_session_that_is_over_ends_the_task_that_answers_its_calls_whoever_said_last_which_that_is() {
    let shared = shared(Limits::default());
    let entry = Entry::new(&shared.connections, address(1)).unwrap();
    let (hello, calls) = (endless(), endless());
    entry.is_for_calls(ANNE).unwrap();
    Entry::set_task(&shared.connections, entry.number(), calls.abort_handle());
    Entry::set_first_task(&shared.connections, entry.number(), hello.abort_handle());
    shared.connections.end_where(|session| session == ANNE);
    assert!(calls.await.unwrap_err().is_cancelled());
    hello.abort();
}

#[tokio::test]
async fn what_is_handed_over_while_all_connections_end_ends_too() {
    let shared = shared(Limits::default());
    let entry = Entry::new(&shared.connections, address(1)).unwrap();
    shared.connections.end_all();
    let calls = endless();
    Entry::set_task(&shared.connections, entry.number(), calls.abort_handle());
    assert!(calls.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_connections_alone_and_a_connection_that_ended_is_forgotten() {
    let shared = shared(Limits::default());
    let mut guests = [(); 2].map(|()| Guest::new(&shared, address(1)).unwrap());
    guests[0].entry().is_anchor(ANNE);
    guests[1].entry().is_anchor(BERT);
    shared.connections.end_where(|session| session == ANNE);
    assert!(guests[0].has_to_go().await && !guests[1].has_to_go().await);
    assert_eq!(shared.connections.len(), 1);
    guests[1].entry = None;
    assert_eq!(shared.connections.len(), 0);
}

/// More clients than a machine of tests has descriptors for, with more connections than there are places.
#[test]
fn of_thousands_of_clients_and_a_flood_of_strangers_none_loses_its_anchor_or_a_call_under_way() {
    const CLIENTS: u64 = 8_192;
    let limits = Limits::default();
    let connections = Arc::new(Connections::new(limits));
    std::thread::sleep(2 * IDLE_FROM);
    let newcomer = |number: u64| Entry::new(&connections, address(number as u8)).unwrap();
    let anchors: Vec<Entry> = (0..CLIENTS)
        .map(|client| {
            let entry = newcomer(client);
            entry.asks_for_anchor();
            entry.is_anchor(SessionId(client));
            entry
        })
        .collect();
    let is_displaced = |entry: &Entry| matches!(connections.table.lock().all[&entry.number].kind, Kind::Displaced);
    // Three connections a client, in waves, where there are two places for each: every fourth has a call under way.
    let (mut random, mut calls) = (7_u64, Vec::new());
    for turn in 0..3 * CLIENTS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let entry = newcomer(turn);
        let idle = entry.is_for_calls(SessionId(turn % CLIENTS)).unwrap();
        let works = random >> 62 == 0;
        idle.since.store(if works { 0 } else { 1 + (random >> 40) % 1_000 }, Ordering::Relaxed);
        calls.push((entry, works));
        let places = connections.table.lock().calls.count;
        assert!(places <= limits.calls, "{places} places");
    }
    assert_eq!(connections.displaced(), 3 * CLIENTS - limits.calls as u64);
    assert!(calls.iter().all(|(entry, works)| !works || !is_displaced(entry)), "one of them has a call under way");
    // Each client keeps a connection, for those with the most lose theirs first.
    let mut kept: HashMap<u64, u64> = HashMap::new();
    for (turn, (entry, _)) in calls.iter().enumerate() {
        *kept.entry(turn as u64 % CLIENTS).or_default() += u64::from(!is_displaced(entry));
    }
    assert!(kept.values().all(|kept| *kept > 0));
    let before = connections.displaced();
    let lone = Entry::new(&connections, Peer::Ip([10, 0, 1, 0].into())).unwrap();
    let flood: Vec<Entry> = (0..4 * limits.strangers).map(|_| newcomer(1)).collect();
    assert!(!is_displaced(&lone), "it is the only one of its address");
    assert_eq!(connections.displaced() - before, (flood.len() + 1 - limits.strangers) as u64);
    assert!(!anchors.iter().any(is_displaced));
    drop((anchors, calls, flood, lone));
    let table = connections.table.lock();
    assert_eq!((table.all.len(), table.calls.count, table.strangers.count, table.greeted), (0, 0, 0, 0));
}
