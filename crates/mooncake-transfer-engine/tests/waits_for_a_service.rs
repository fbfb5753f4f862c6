//! A metadata service that does not answer: calls that need it end by their callers' wish, or after a while, and leave
//! the engine as they say.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use mooncake_transfer_engine::{Engine, EngineError, EngineOptions};

use crate::memory::Memory;
use crate::memory_metadata::MemoryMetadata;

/// A hook that has had enough after this time, and how long a call may take with it.
const ENOUGH: Duration = Duration::from_millis(20);
const SOON: Duration = Duration::from_millis(500);

fn named(name: &str, metadata: &MemoryMetadata) -> Engine {
    Engine::with_metadata(name, EngineOptions::default(), Box::new(metadata.clone()), "").unwrap()
}

/// What a call gives whose caller has enough at once.
fn interrupted<T>(call: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> T) -> T {
    let began = Instant::now();
    let result = call(&|| began.elapsed() > ENOUGH);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    result
}

/// Waits for what happens in the background.
fn soon(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "it never is so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn names(metadata: &MemoryMetadata, memory: &Memory) -> bool {
    let addr = format!("\"addr\":{}", memory.addr());
    metadata.all().iter().any(|(_, document)| document.contains(&addr))
}

#[test]
fn lending_ends_at_its_callers_wish_and_nothing_is_lent_then() {
    let (metadata, first, second) = (MemoryMetadata::default(), Memory::new(4096), Memory::new(4096));
    let engine = named("node-a", &metadata);
    metadata.mute(true);
    for _ in 0..3 {
        let left = interrupted(|enough| engine.register_with(&[first.range()], "*", enough));
        assert!(matches!(left, Err(EngineError::Interrupted)), "{left:?}");
        assert_eq!(engine.registered(), []);
    }
    metadata.mute(false);
    engine.register(&[second.range()], "*").unwrap();
    // What was left tells what is so when its turn comes.
    soon(|| names(&metadata, &second) && !names(&metadata, &first));
    engine.register(&[first.range()], "*").unwrap();
    soon(|| names(&metadata, &second) && names(&metadata, &first));
}

#[test]
fn giving_up_ends_at_its_callers_wish_and_the_memory_is_given_up_then() {
    let (metadata, memory) = (MemoryMetadata::default(), Memory::new(4096));
    let engine = named("node-a", &metadata);
    engine.register(&[memory.range()], "*").unwrap();
    metadata.mute(true);
    interrupted(|enough| engine.unregister_all_with(&[memory.addr() as usize], enough)).unwrap();
    assert_eq!(engine.registered(), []);
    metadata.mute(false);
    soon(|| !names(&metadata, &memory));
}

#[test]
fn an_engine_ends_at_its_callers_wish_and_takes_leave_of_the_service_in_the_background() {
    let (metadata, memory, more) = (MemoryMetadata::default(), Memory::new(4096), Memory::new(4096));
    let engine = named("node-a", &metadata);
    engine.register(&[memory.range()], "*").unwrap();
    metadata.mute(true);
    // Taking leave has to wait for what is being told.
    interrupted(|enough| engine.register_with(&[more.range()], "*", enough)).unwrap_err();
    interrupted(|enough| engine.close_with(enough)).unwrap();
    assert!(matches!(engine.register(&[memory.range()], "*"), Err(EngineError::Closed)));
    // It has ended: nothing is waited for again.
    let began = Instant::now();
    engine.close().unwrap();
    drop(engine);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    metadata.mute(false);
    soon(|| metadata.all().is_empty());
}

#[test]
fn a_beginning_ends_at_its_callers_wish_and_leaves_no_name_behind() {
    let metadata = MemoryMetadata::default();
    metadata.mute(true);
    let begin = |enough: &(dyn Fn() -> bool + Sync)| {
        Engine::with_metadata_with("node-a", EngineOptions::default(), Box::new(metadata.clone()), "", enough)
    };
    let left = interrupted(begin);
    assert!(matches!(left, Err(EngineError::Interrupted)), "{left:?}");
    metadata.mute(false);
    soon(|| metadata.changes() > 0 && metadata.all().is_empty());
    let _next = named("node-a", &metadata);
}

#[test]
fn without_a_wish_each_call_ends_after_some_seconds() {
    let (metadata, lent, more) = (MemoryMetadata::default(), Memory::new(4096), Memory::new(4096));
    let engines = ["node-a", "node-b", "node-c"].map(|name| named(name, &metadata));
    engines.iter().for_each(|engine| engine.register(&[lent.range()], "*").unwrap());
    metadata.mute(true);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let [first, second, third] = &engines;
        let lending = scope.spawn(|| first.register(&[more.range()], "*"));
        let giving_up = scope.spawn(|| second.unregister(lent.addr() as usize));
        let end = scope.spawn(|| third.close());
        let late = lending.join().unwrap();
        assert!(matches!(late, Err(EngineError::Timeout { .. })), "{late:?}");
        giving_up.join().unwrap().unwrap();
        end.join().unwrap().unwrap();
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    metadata.mute(false);
}

/// A service that accepts and says nothing is one that does not answer.
#[test]
fn a_beginning_with_a_service_over_http_ends_at_its_callers_wish() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", service.local_addr().unwrap());
    let left = interrupted(|enough| Engine::connect_with(&url, "node-a", EngineOptions::default(), "", enough));
    assert!(matches!(left, Err(EngineError::Interrupted)), "{left:?}");
}
