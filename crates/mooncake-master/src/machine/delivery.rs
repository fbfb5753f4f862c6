//! Where messages and the answers to parked requests go, once their cause is in the log.

use mooncake_core::{Push, StartOutcome, Ticket};
use mooncake_ids::SessionId;

use super::anchors;

/// What goes out once its cause is in the log.
#[derive(Debug)]
pub enum Delivery {
    /// A message to an anchor.
    Push(SessionId, Push),
    /// A message to all anchors.
    Broadcast(Push),
    /// The answer to a parked request.
    Wake(Ticket, Vec<StartOutcome>),
}

/// What deliveries need of their master.
pub trait DeliveryDriver {
    /// What is sent down an anchor.
    type Queue;

    /// The session's anchor, if it has one now.
    fn anchor(&mut self, session: SessionId) -> Option<Self::Queue>;

    /// All anchors that there are now.
    fn anchors(&mut self) -> Vec<Self::Queue>;

    /// Has a message sent.
    fn send(&mut self, anchor: &Self::Queue, push: Push);

    /// Has an anchor closed when everything is sent.
    fn finish(&mut self, anchor: &Self::Queue);

    /// Answers the request that waits for a ticket, if one does still.
    fn wake(&mut self, ticket: Ticket, outcomes: Vec<StartOutcome>);
}

/// Sends one thing where it belongs. A session without an anchor misses it: what matters is sent again when it comes
/// back.
pub fn deliver<D: DeliveryDriver>(driver: &mut D, delivery: Delivery) {
    match delivery {
        Delivery::Push(session, push) => {
            let Some(anchor) = driver.anchor(session) else { return };
            let last = anchors::is_last(&push);
            driver.send(&anchor, push);
            if last {
                driver.finish(&anchor);
            }
        }
        Delivery::Broadcast(push) => {
            for anchor in driver.anchors() {
                driver.send(&anchor, push.clone());
            }
        }
        Delivery::Wake(ticket, outcomes) => driver.wake(ticket, outcomes),
    }
}

#[cfg(test)]
mod tests {
    use mooncake_core::Epoch;

    use super::*;

    /// Only the session 1 has an anchor.
    #[derive(Default)]
    struct Script {
        did: Vec<&'static str>,
    }

    impl DeliveryDriver for Script {
        type Queue = ();

        fn anchor(&mut self, session: SessionId) -> Option<()> {
            (session == SessionId(1)).then_some(())
        }

        fn anchors(&mut self) -> Vec<()> {
            vec![(), ()]
        }

        fn send(&mut self, (): &(), _: Push) {
            self.did.push("send");
        }

        fn finish(&mut self, (): &()) {
            self.did.push("finish");
        }

        fn wake(&mut self, _: Ticket, _: Vec<StartOutcome>) {
            self.did.push("wake");
        }
    }

    fn delivered(delivery: Delivery) -> Vec<&'static str> {
        let mut script = Script::default();
        deliver(&mut script, delivery);
        script.did
    }

    #[test]
    fn an_anchor_closes_behind_the_last_message_and_a_session_without_one_misses_it() {
        let over = || Push::SessionOver("over".into());
        let epoch = || Push::TakeEpoch(Epoch { number: 2, id: 7 });
        assert_eq!(delivered(Delivery::Push(SessionId(1), epoch())), ["send"]);
        assert_eq!(delivered(Delivery::Push(SessionId(1), over())), ["send", "finish"]);
        assert_eq!(delivered(Delivery::Push(SessionId(2), over())), [""; 0]);
        assert_eq!(delivered(Delivery::Broadcast(epoch())), ["send", "send"]);
        assert_eq!(delivered(Delivery::Wake(Ticket(1), Vec::new())), ["wake"]);
    }
}
