use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;

use super::*;
use crate::eventually::eventually;
use crate::log::Log;

#[test]
fn a_clock_ticks_until_it_is_dropped_or_nothing_can_be_logged() {
    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    shared.apply(|core, now, effects| core.begin(now, None, effects)).unwrap();
    let ticker = Ticker::start(shared.clone()).unwrap();
    let spec = mooncake_core::SessionSpec { secret: 1, name: "c:1".into(), boot_id: vec![7; 16], process: Vec::new() };
    shared.apply(|core, now, effects| core.open_session(now, spec, effects).unwrap()).unwrap();
    eventually("who never says anything is away", || shared.read(|core, _| core.stats().sessions_away) == 1);
    let (done, ended) = channel();
    std::thread::spawn(move || {
        drop(ticker);
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(10)).expect("it ends when it is told to");
}

#[test]
fn memory_is_given_back_when_all_behind_a_segment_that_is_gone_is_cleared_up() {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    let mut shared = Shared::of(Arc::new(Log::new(1, 0, None, false)));
    shared.purged();
    shared.identity.after_bulk_free = Some(|| _ = FREED.fetch_add(1, Ordering::Relaxed));
    shared.purged();
    assert_eq!(FREED.load(Ordering::Relaxed), 1);
}
