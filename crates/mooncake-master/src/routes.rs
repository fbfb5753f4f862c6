//! Where deliveries go: anchors by session, parked requests by ticket.

use std::collections::HashMap;
use std::sync::Arc;

use mooncake_core::{Core, Push, StartOutcome, Ticket};
use mooncake_ids::{Rid, SessionId};
use mooncake_wire::encode_frame;
use mooncake_wire::message::AnchorDown;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::machine::anchors::{AnchorTable, Anchors};
use crate::machine::convert;
use crate::machine::delivery::DeliveryDriver;

/// An anchor that leaves more than this unread is closed.
const ANCHOR_QUEUE_MAX: usize = 8 << 20;

/// Fences go behind no more than this. The others are found again in the books when it is sent.
const FENCES_BEHIND: usize = 256 << 10;

/// Live anchors and parked requests.
#[derive(Debug, Default)]
pub struct Routes {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    anchors: Anchors<Arc<AnchorQueue>>,
    parked: HashMap<Ticket, oneshot::Sender<Vec<StartOutcome>>>,
}

impl AnchorTable for &Routes {
    type Queue = Arc<AnchorQueue>;

    fn with_anchors<R>(&mut self, step: impl FnOnce(&mut Anchors<Arc<AnchorQueue>>) -> R) -> R {
        step(&mut self.tables.lock().anchors)
    }
}

impl Routes {
    /// The session's anchor connection, if it has one now.
    pub fn anchor(&self, session: SessionId) -> Option<Arc<AnchorQueue>> {
        self.tables.lock().anchors.get(session).cloned()
    }

    /// Number of anchors.
    pub fn anchors(&self) -> usize {
        self.tables.lock().anchors.count()
    }

    /// What the caller waits on for a ticket that the core has just given. The caller still holds the core: the put
    /// that wakes the ticket comes later.
    pub fn park(&self, _held: &Core, ticket: Ticket) -> oneshot::Receiver<Vec<StartOutcome>> {
        let (sender, receiver) = oneshot::channel();
        self.tables.lock().parked.insert(ticket, sender);
        receiver
    }

    /// The caller waits no more.
    pub fn unpark(&self, ticket: Ticket) {
        self.tables.lock().parked.remove(&ticket);
    }
}

impl DeliveryDriver for &Routes {
    type Queue = Arc<AnchorQueue>;

    fn anchor(&mut self, session: SessionId) -> Option<Arc<AnchorQueue>> {
        Routes::anchor(self, session)
    }

    fn anchors(&mut self) -> Vec<Arc<AnchorQueue>> {
        self.tables.lock().anchors.iter().cloned().collect()
    }

    fn send(&mut self, anchor: &Arc<AnchorQueue>, push: Push) {
        if let Push::Fence { replica, .. } = &push
            && anchor.has_to_postpone(replica.rid)
        {
            return;
        }
        anchor.push(&convert::push(push));
    }

    fn finish(&mut self, anchor: &Arc<AnchorQueue>) {
        anchor.finish();
    }

    fn wake(&mut self, ticket: Ticket, outcomes: Vec<StartOutcome>) {
        let waiting = self.tables.lock().parked.remove(&ticket);
        if let Some(waiting) = waiting {
            // The connection may have closed this instant; its guard cancels the ticket.
            let _ = waiting.send(outcomes);
        }
    }
}

/// Messages on their way to one anchor, encoded.
#[derive(Debug, Default)]
pub struct AnchorQueue {
    state: Mutex<QueueState>,
    ready: Notify,
    /// Fences may go on.
    drained: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    bytes: Vec<u8>,
    /// Send what is there, then close.
    finished: bool,
    /// Close now.
    closed: bool,
    /// The lowest of the fences that have not been sent.
    postponed: Option<Rid>,
}

impl AnchorQueue {
    /// Adds a message; an anchor that does not drain is closed.
    pub fn push(&self, message: &AnchorDown) {
        let mut state = self.state.lock();
        if state.closed || state.finished {
            return;
        }
        encode_frame(message, &mut state.bytes);
        if state.bytes.len() > ANCHOR_QUEUE_MAX {
            state.closed = true;
            state.bytes = Vec::new();
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Whether a fence has to wait until others are sent. If so, it and those behind it are [`AnchorQueue::fences`]
    /// later.
    fn has_to_postpone(&self, rid: Rid) -> bool {
        let mut state = self.state.lock();
        let wait = state.postponed.is_some() || state.bytes.len() >= FENCES_BEHIND;
        if wait {
            state.postponed = Some(state.postponed.map_or(rid, |first| first.min(rid)));
        }
        wait
    }

    /// Sends the fences from one on later.
    pub fn postpone_fences(&self, from: Rid) {
        let mut state = self.state.lock();
        state.postponed = Some(state.postponed.map_or(from, |first| first.min(from)));
        drop(state);
        self.drained.notify_one();
    }

    /// Closes the connection at once.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_one();
    }

    /// Closes the connection when everything is sent.
    pub fn finish(&self) {
        self.state.lock().finished = true;
        self.ready.notify_one();
    }

    /// What is to be sent next; `None` when the connection is to close.
    pub async fn next(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut state = self.state.lock();
                if state.closed {
                    return None;
                }
                if !state.bytes.is_empty() {
                    let bytes = std::mem::take(&mut state.bytes);
                    if state.postponed.is_some() {
                        self.drained.notify_one();
                    }
                    return Some(bytes);
                }
                if state.finished {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    /// From which one on fences are to be asked for, once there is room for them: when they were asked for first there
    /// was none.
    pub async fn fences(&self) -> Rid {
        loop {
            {
                let mut state = self.state.lock();
                let ends = state.closed || state.finished;
                if state.bytes.is_empty()
                    && !ends
                    && let Some(from) = state.postponed.take()
                {
                    return from;
                }
            }
            self.drained.notified().await;
        }
    }
}

/// A queue is equal to itself alone.
impl PartialEq for AnchorQueue {
    fn eq(&self, other: &AnchorQueue) -> bool {
        std::ptr::eq(self, other)
    }
}

#[cfg(test)]
mod tests {
    use mooncake_core::{Extent, Replica, SegmentNo};
    use mooncake_ids::{Rid, SegmentUuid};

    use super::*;
    use crate::machine::delivery::{Delivery, deliver};

    impl Routes {
        /// How many requests wait.
        pub fn parked(&self) -> usize {
            self.tables.lock().parked.len()
        }
    }

    fn fence(counter: u64) -> Delivery {
        let extent = Extent { segment: SegmentNo(1), offset: counter * 1024, length: 1024 };
        let replica = Replica { rid: Rid::new(1, counter), extent };
        let fence = Push::Fence { uuid: SegmentUuid([1; 16]), replica, writer: SessionId(1 << 40), writer_done: true };
        Delivery::Push(SessionId(1), fence)
    }

    #[tokio::test]
    async fn an_owner_that_is_asked_for_very_many_fences_keeps_its_anchor() {
        let (routes, queue) = (Routes::default(), Arc::new(AnchorQueue::default()));
        (&routes).with_anchors(|anchors| anchors.set(SessionId(1), queue.clone()));
        (1..=200_000).for_each(|counter| deliver(&mut &routes, fence(counter)));
        assert!(queue.next().await.is_some());
    }

    /// What a sender that has found nothing to send is told, once something is done.
    async fn told_after(act: impl FnOnce(&AnchorQueue)) -> Option<Vec<u8>> {
        let queue = Arc::new(AnchorQueue::default());
        let sender = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        assert!(!sender.is_finished());
        act(&queue);
        tokio::time::timeout(std::time::Duration::from_secs(10), sender).await.expect("it sleeps on").unwrap()
    }

    #[tokio::test]
    async fn a_sender_that_sleeps_is_woken_by_whatever_it_has_to_do() {
        let told = told_after(|queue| queue.push(&AnchorDown::default())).await;
        assert!(told.is_some_and(|bytes| !bytes.is_empty()));
        assert!(told_after(AnchorQueue::close).await.is_none());
        assert!(told_after(AnchorQueue::finish).await.is_none());
    }

    #[tokio::test]
    async fn fences_that_found_no_room_are_asked_for_when_what_is_before_them_is_on_its_way() {
        let queue = Arc::new(AnchorQueue::default());
        queue.push(&AnchorDown::default());
        let asks = tokio::spawn({
            let queue = queue.clone();
            async move { queue.fences().await }
        });
        tokio::task::yield_now().await;
        queue.postpone_fences(Rid::new(1, 5));
        tokio::task::yield_now().await;
        assert!(!asks.is_finished(), "there is something to send");
        assert!(queue.next().await.is_some());
        let from = tokio::time::timeout(std::time::Duration::from_secs(10), asks).await.expect("it sleeps on").unwrap();
        assert_eq!(from, Rid::new(1, 5));
    }

    #[tokio::test]
    async fn what_is_there_is_sent_before_an_anchor_ends_and_nothing_of_one_that_is_cut() {
        let queue = AnchorQueue::default();
        queue.push(&AnchorDown::default());
        queue.finish();
        queue.push(&AnchorDown::default());
        let bytes = queue.next().await.expect("the rest");
        let mut one = Vec::new();
        encode_frame(&AnchorDown::default(), &mut one);
        assert_eq!(bytes, one, "and nothing that came later");
        assert!(queue.next().await.is_none());

        let queue = AnchorQueue::default();
        queue.push(&AnchorDown::default());
        queue.close();
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn an_anchor_that_reads_nothing_is_cut_and_keeps_no_memory() {
        let queue = AnchorQueue::default();
        let mut pushed = 0;
        while !queue.state.lock().closed {
            assert!(pushed <= ANCHOR_QUEUE_MAX, "nothing limits it");
            queue.push(&convert::push(Push::SessionOver("x".repeat(64 << 10))));
            pushed += 64 << 10;
        }
        assert!(pushed >= ANCHOR_QUEUE_MAX - (64 << 10), "cut at {pushed}");
        assert_eq!(queue.state.lock().bytes.capacity(), 0);
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn of_fences_that_wait_the_lowest_is_where_they_go_on() {
        let queue = AnchorQueue::default();
        for counter in [7, 5, 9] {
            queue.postpone_fences(Rid::new(1, counter));
        }
        assert!(queue.has_to_postpone(Rid::new(1, 3)), "it stays behind those that wait");
        assert!(queue.has_to_postpone(Rid::new(1, 8)));
        assert_eq!(queue.fences().await, Rid::new(1, 3));
        assert!(!queue.has_to_postpone(Rid::new(1, 8)), "none waits any more");
    }
}
