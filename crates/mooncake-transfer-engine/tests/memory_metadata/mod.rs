//! A metadata service inside the test.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mooncake_transfer_engine::{EngineError, Metadata};

/// Documents by key. Putting one takes as long as it is.
#[derive(Clone, Default)]
pub struct MemoryMetadata {
    documents: Arc<Mutex<HashMap<String, String>>>,
    mute: Arc<AtomicBool>,
    changes: Arc<AtomicUsize>,
    keeps_addresses: bool,
}

impl MemoryMetadata {
    /// An engine's address that is there is not replaced: most of Mooncake's services are so.
    pub fn that_keeps_addresses() -> MemoryMetadata {
        MemoryMetadata { keeps_addresses: true, ..MemoryMetadata::default() }
    }

    /// From now on nothing is answered, until it is taken back.
    pub fn mute(&self, on: bool) {
        self.mute.store(on, Ordering::SeqCst);
    }

    /// All that is there, by key.
    pub fn all(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.documents.lock().unwrap().clone().into_iter().collect();
        all.sort();
        all
    }

    /// How often a document was put or removed.
    pub fn changes(&self) -> usize {
        self.changes.load(Ordering::SeqCst)
    }

    /// All is lost, as with a service that starts again.
    pub fn forget(&self) {
        self.documents.lock().unwrap().clear();
    }
}

impl Metadata for MemoryMetadata {
    fn get(&self, key: &str) -> Result<Option<String>, EngineError> {
        while self.mute.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.documents.lock().unwrap().get(key).cloned())
    }

    fn put(&self, key: &str, document: &str) -> Result<bool, EngineError> {
        std::thread::sleep(Duration::from_nanos(10 * document.len() as u64));
        self.changes.fetch_add(1, Ordering::SeqCst);
        let mut documents = self.documents.lock().unwrap();
        if self.keeps_addresses && key.contains("rpc_meta") && documents.contains_key(key) {
            return Ok(false);
        }
        documents.insert(key.to_owned(), document.to_owned());
        Ok(true)
    }

    fn remove(&self, key: &str) -> Result<(), EngineError> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.documents.lock().unwrap().remove(key);
        Ok(())
    }

    fn own_address(&self) -> Result<IpAddr, EngineError> {
        Ok([127, 0, 0, 1].into())
    }
}
