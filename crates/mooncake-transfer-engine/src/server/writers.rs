//! Connections that have names, which their initiators gave them. An initiator that gave a write up can have its
//! connection severed, even if the reset has not reached the connection itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::protocol::ids::ConnectionName;

/// All that have a name.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    by_name: Mutex<HashMap<ConnectionName, Arc<Writer>>>,
}

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Its thread is in the midst of a system call that takes bytes in.
    inside: AtomicBool,
    severed: AtomicBool,
}

impl Writer {
    /// Lets one system call take bytes in; none if the connection has been severed. Only the thread that has the
    /// connection calls this. It stores first and looks second, while [`Writers::sever`] stores first and its caller
    /// looks second, at [`Writer::is_out`]: at least one of them sees the other.
    pub fn enter(&self) -> Option<WriteGuard<'_>> {
        self.inside.store(true, Ordering::SeqCst);
        let inside = WriteGuard(self);
        (!self.severed.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Whether nothing lands by it any more.
    pub fn is_out(&self) -> bool {
        self.severed.load(Ordering::SeqCst) && !self.inside.load(Ordering::SeqCst)
    }
}

/// Bytes may land as long as this lives.
pub(crate) struct WriteGuard<'a>(&'a Writer);

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::SeqCst);
    }
}

/// Listed under its name as long as this lives.
pub(crate) struct NamedWriter {
    writers: Arc<Writers>,
    name: ConnectionName,
    writer: Arc<Writer>,
}

impl NamedWriter {
    pub fn writer(&self) -> &Writer {
        &self.writer
    }
}

impl Drop for NamedWriter {
    fn drop(&mut self) {
        self.writers.by_name.lock().remove(&self.name);
    }
}

impl Writers {
    /// None if there is one of that name.
    pub fn name(self: &Arc<Self>, name: ConnectionName) -> Option<NamedWriter> {
        let mut by_name = self.by_name.lock();
        if by_name.contains_key(&name) {
            return None;
        }
        let writer = Arc::<Writer>::default();
        by_name.insert(name, writer.clone());
        Some(NamedWriter { writers: self.clone(), name, writer })
    }

    /// The connection of that name takes nothing in from now on, and [is out](Writer::is_out) soon. None: it has ended.
    pub fn sever(&self, name: &ConnectionName) -> Option<Arc<Writer>> {
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
