//! A metadata service whose requests come in an order that the test wants.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mooncake_transfer_engine::{EngineError, Metadata};

use crate::memory_metadata::MemoryMetadata;

/// What is asked about engines' addresses is numbered: `one get 2` is the second look of `one`.
#[derive(Clone)]
pub struct OrderedMetadata {
    metadata: MemoryMetadata,
    /// Of each pair the first waits for the second.
    order: &'static [(&'static str, &'static str)],
    done: Arc<(Mutex<Vec<String>>, Condvar)>,
}

/// The service as one engine has it.
pub struct Service {
    ordered: OrderedMetadata,
    who: &'static str,
    asked: Mutex<HashMap<&'static str, usize>>,
}

impl OrderedMetadata {
    pub fn new(metadata: MemoryMetadata, order: &'static [(&'static str, &'static str)]) -> OrderedMetadata {
        OrderedMetadata { metadata, order, done: Arc::default() }
    }

    pub fn service(&self, who: &'static str) -> Service {
        Service { ordered: self.clone(), who, asked: Mutex::default() }
    }
}

impl Service {
    fn in_turn<T>(&self, what: &'static str, key: &str, ask: impl FnOnce() -> T) -> T {
        if !key.contains("rpc_meta") {
            return ask();
        }
        let nth = {
            let mut asked = self.asked.lock().unwrap();
            let nth = asked.entry(what).or_default();
            *nth += 1;
            *nth
        };
        let event = format!("{} {what} {nth}", self.who);
        let (done, changed) = &*self.ordered.done;
        for (_, before) in self.ordered.order.iter().filter(|(after, _)| *after == event) {
            let is_missing = |done: &mut Vec<String>| !done.iter().any(|event| event == before);
            let wait = changed.wait_timeout_while(done.lock().unwrap(), Duration::from_secs(20), is_missing);
            assert!(!wait.unwrap().1.timed_out(), "{event} waits for {before}");
        }
        let answer = ask();
        done.lock().unwrap().push(event);
        changed.notify_all();
        answer
    }
}

impl Metadata for Service {
    fn get(&self, key: &str) -> Result<Option<String>, EngineError> {
        self.in_turn("get", key, || self.ordered.metadata.get(key))
    }

    fn put(&self, key: &str, document: &str) -> Result<bool, EngineError> {
        self.in_turn("put", key, || self.ordered.metadata.put(key, document))
    }

    fn remove(&self, key: &str) -> Result<(), EngineError> {
        self.in_turn("del", key, || self.ordered.metadata.remove(key))
    }

    fn own_address(&self) -> Result<IpAddr, EngineError> {
        self.ordered.metadata.own_address()
    }
}
