//! Connections that peers write by, under the names that they gave them: who has given a write up can have it ended,
//! even where the news of that has not come through to the connection itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::protocol::ids::LaneName;

/// All that have a name.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    by_name: Mutex<HashMap<LaneName, Arc<Writer>>>,
}

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// It is in the midst of a system call.
    inside: AtomicBool,
    severed: AtomicBool,
}

impl Writer {
    /// Nothing is severed while the answer lives; none if it has been. By the one thread that has the connection.
    pub fn enter(&self) -> Option<WriteGuard<'_>> {
        self.inside.store(true, Ordering::SeqCst);
        let inside = WriteGuard(self);
        (!self.severed.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Nothing lands by it any more.
    pub fn is_out(&self) -> bool {
        self.severed.load(Ordering::SeqCst) && !self.inside.load(Ordering::SeqCst)
    }
}

/// Bytes of it may land.
pub(crate) struct WriteGuard<'a>(&'a Writer);

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::SeqCst);
    }
}

/// Known as long as this lasts.
pub(crate) struct Named {
    writers: Arc<Writers>,
    name: LaneName,
    writer: Arc<Writer>,
}

impl Named {
    pub fn writer(&self) -> &Writer {
        &self.writer
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.writers.by_name.lock().remove(&self.name);
    }
}

impl Writers {
    /// None if there is one of that name.
    pub fn name(self: &Arc<Self>, name: LaneName) -> Option<Named> {
        let mut by_name = self.by_name.lock();
        if by_name.contains_key(&name) {
            return None;
        }
        let writer = Arc::<Writer>::default();
        by_name.insert(name, writer.clone());
        Some(Named { writers: self.clone(), name, writer })
    }

    /// The one of that name takes nothing in from now on, and [is out](Writer::is_out) soon. None: it has ended.
    pub fn sever(&self, name: &LaneName) -> Option<Arc<Writer>> {
        let writer = self.by_name.lock().get(name).cloned()?;
        writer.severed.store(true, Ordering::SeqCst);
        Some(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_severed_lets_nothing_in_and_is_out_when_it_comes_out() {
        let writers = Arc::<Writers>::default();
        let named = writers.name([1; 16]).unwrap();
        assert!(writers.name([1; 16]).is_none() && writers.sever(&[2; 16]).is_none());
        let inside = named.writer().enter().unwrap();
        let writer = writers.sever(&[1; 16]).unwrap();
        assert!(!writer.is_out());
        drop(inside);
        assert!(writer.is_out() && named.writer().enter().is_none() && writer.is_out());
        drop(named);
        assert!(writers.sever(&[1; 16]).is_none() && writers.name([1; 16]).is_some());
    }
}
