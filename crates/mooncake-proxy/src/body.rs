//! Bodies of requests: each of a bounded length, all of them in bounded memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use bytes::BytesMut;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time;

use crate::fault::Fault;

/// What memory is counted in, bytes.
const UNIT: usize = 1 << 10;

/// A body that is refused is read on for a while, so many times the longest: its sender reads the answer only then.
const DISCARDED: usize = 4;

/// What the bodies under way may be.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// Longest, bytes.
    most: usize,
    /// For the whole of one to come.
    timeout: Duration,
    free: Arc<Semaphore>,
    all: usize,
}

/// A body; until it is dropped it counts.
#[derive(Debug)]
pub(crate) struct Held {
    pub bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Bodies {
    /// `most` bytes each, `all` together.
    pub fn new(most: usize, all: usize, timeout: Duration) -> Bodies {
        let free = Arc::new(Semaphore::new((all / UNIT).clamp(1, Semaphore::MAX_PERMITS)));
        Bodies { most, timeout, free, all }
    }

    /// The whole of one.
    pub async fn read(&self, mut body: Body) -> Result<Held, Fault> {
        let read = match time::timeout(self.timeout, self.collect(&mut body)).await {
            Ok(read) => read,
            Err(_) => Err(Fault::TooSlow { seconds: self.timeout.as_secs() }),
        };
        if let Err(Fault::TooLong { .. } | Fault::NoRoom { .. }) = read
            && body.size_hint().lower() <= (DISCARDED * self.most) as u64
        {
            tokio::spawn(discard(body, DISCARDED * self.most, self.timeout));
        }
        read
    }

    async fn collect(&self, body: &mut Body) -> Result<Held, Fault> {
        let too_long = Fault::TooLong { most: self.most };
        if body.size_hint().lower() > self.most as u64 {
            return Err(too_long);
        }
        let mut room = self.free.clone().try_acquire_many_owned(0).expect("nothing is always free");
        let mut whole = Parts::None;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| Fault::BrokeOff(error.to_string()))?.into_data() else { continue };
            let length = whole.len() + data.len();
            if length > self.most {
                return Err(too_long);
            }
            let wanted = length.div_ceil(UNIT) - room.num_permits();
            let more = self.free.clone().try_acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX));
            room.merge(more.map_err(|_| Fault::NoRoom { all: self.all })?);
            whole = whole.and(data);
        }
        Ok(Held { bytes: whole.into_bytes(), _room: room })
    }
}

/// Most bodies come in one piece, which is not copied.
enum Parts {
    None,
    One(Bytes),
    Many(BytesMut),
}

impl Parts {
    fn len(&self) -> usize {
        match self {
            Parts::None => 0,
            Parts::One(one) => one.len(),
            Parts::Many(many) => many.len(),
        }
    }

    fn and(self, data: Bytes) -> Parts {
        let mut many = match self {
            Parts::None => return Parts::One(data),
            Parts::One(one) => BytesMut::from(one),
            Parts::Many(many) => many,
        };
        many.extend_from_slice(&data);
        Parts::Many(many)
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Parts::None => Bytes::new(),
            Parts::One(one) => one,
            Parts::Many(many) => many.freeze(),
        }
    }
}

async fn discard(mut body: Body, most: usize, timeout: Duration) {
    let all = async {
        let mut left = most;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            if length > left {
                break;
            }
            left -= length;
        }
    };
    // A sender that takes longer is not waited for.
    let _ = time::timeout(timeout, all).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Bodies {
        Bodies::new(10 * UNIT, 16 * UNIT, Duration::from_secs(30))
    }

    #[tokio::test]
    async fn all_bodies_together_take_no_more_than_they_may() {
        let bodies = bodies();
        let first = bodies.read(vec![b'a'; 10 * UNIT].into()).await.unwrap();
        assert_eq!(first.bytes.len(), 10 * UNIT);
        let second = bodies.read(vec![b'b'; 6 * UNIT].into()).await.unwrap();
        assert!(matches!(bodies.read("c".into()).await, Err(Fault::NoRoom { .. })));
        drop(first);
        assert!(bodies.read(vec![b'd'; 10 * UNIT].into()).await.is_ok());
        assert!(bodies.read(vec![b'e'; 10 * UNIT].into()).await.is_ok(), "what is not read any more does not count");
        drop(second);
    }

    #[tokio::test]
    async fn a_body_has_a_longest_length_whether_it_says_its_own_or_not() {
        let bodies = bodies();
        assert!(matches!(bodies.read(vec![0; 10 * UNIT + 1].into()).await, Err(Fault::TooLong { .. })));
        let in_pieces = |pieces: usize| Body::new(Repeated { pieces });
        assert_eq!(bodies.read(in_pieces(10)).await.unwrap().bytes, vec![7; 10 * UNIT]);
        assert!(matches!(bodies.read(in_pieces(11)).await, Err(Fault::TooLong { .. })));
        assert_eq!(bodies.free.available_permits(), 16);
    }

    /// So many pieces of one unit, and no word of how many there are.
    struct Repeated {
        pieces: usize,
    }

    impl HttpBody for Repeated {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            let more = self.pieces > 0;
            self.pieces = self.pieces.saturating_sub(1);
            std::task::Poll::Ready(more.then(|| Ok(hyper::body::Frame::data(vec![7; UNIT].into()))))
        }
    }
}
