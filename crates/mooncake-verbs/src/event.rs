//! What a device tells by itself.

use std::mem::zeroed;

use crate::abi::IbvAsyncEvent;
use crate::context::{Context, last_errno};
use crate::error::VerbsError;

/// Something happened to a device, or to what was made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// To what.
    pub subject: Subject,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// More completions than a queue had room for.
    QueueOverrun,
    /// A queue pair can do nothing any more.
    QueuePairFatal,
    /// A request of a peer that made no sense, or for memory that it may not touch.
    PeerRefused,
    /// The device can do nothing any more.
    DeviceFatal,
    /// A port carries again.
    PortActive,
    /// A port carries nothing any more.
    PortDown,
    /// A port has other addresses: LIDs, GIDs or partitions.
    AddressChange,
    /// One that asks for nothing; the library's number.
    Other(i32),
}

/// To what it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The queue pair of that number.
    QueuePair(u32),
    /// Some queue of completions.
    Queue,
    /// The port of that number.
    Port(u8),
    /// All of it.
    Device,
}

impl Context {
    /// Takes one event, without waiting for it, and acknowledges it before it is told: what is destroyed waits for
    /// acknowledgements without a limit.
    pub fn next_event(&self) -> Result<Option<Event>, VerbsError> {
        self.alive("ibv_get_async_event")?;
        let calls = &self.library().calls;
        // SAFETY: a number and a pointer, for which 0 is a value.
        let mut told: IbvAsyncEvent = unsafe { zeroed() };
        // SAFETY: an open context whose descriptor does not block, and room for the event.
        if unsafe { (calls.get_async_event)(self.handle().as_ptr(), &raw mut told) } != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(self.refused("ibv_get_async_event")),
            };
        }
        let event = Event { kind: kind(told.event_type), subject: subject(&told) };
        // SAFETY: the event above, once.
        unsafe { (calls.ack_async_event)(&raw mut told) };
        Ok(Some(event))
    }
}

fn kind(code: i32) -> EventKind {
    match code {
        0 => EventKind::QueueOverrun,
        1 | 19 => EventKind::QueuePairFatal,
        2 | 3 => EventKind::PeerRefused,
        8 => EventKind::DeviceFatal,
        9 => EventKind::PortActive,
        10 => EventKind::PortDown,
        11 | 12 | 18 => EventKind::AddressChange,
        other => EventKind::Other(other),
    }
}

fn subject(told: &IbvAsyncEvent) -> Subject {
    match told.event_type {
        0 => Subject::Queue,
        1..=7 | 16 => {
            let queue_pair = told.element.cast::<crate::abi::IbvQp>();
            // SAFETY: a queue pair that cannot be destroyed before this event is acknowledged.
            Subject::QueuePair(unsafe { (*queue_pair).qp_num })
        }
        // Events of shared receive queues and work queues, of which none are made here, have a pointer, too.
        9..=13 | 17 | 18 => Subject::Port(told.element.addr() as u32 as u8),
        _ => Subject::Device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_event_names_the_port_whatever_stands_behind_its_number() {
        for (code, expected) in [(9, EventKind::PortActive), (10, EventKind::PortDown), (18, EventKind::AddressChange)]
        {
            let element = std::ptr::without_provenance_mut(0x7fff_0000_0002);
            let told = IbvAsyncEvent { element, event_type: code };
            assert_eq!((kind(code), subject(&told)), (expected, Subject::Port(2)));
        }
        let told = IbvAsyncEvent { element: std::ptr::null_mut(), event_type: 8 };
        assert_eq!((kind(8), subject(&told)), (EventKind::DeviceFatal, Subject::Device));
    }
}
