//! Borrowed bytes of a mapped segment.

use std::ops::Deref;
use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{MappedView, ReadError, Verify};
use mooncake_os::forked;

use super::Attachment;
use crate::local::Insider;

/// The bytes of a pinned object, in place, verified when the view was made.
///
/// The pin is the caller's: it must be held before the view is asked for, and
/// until it is dropped. The view keeps its mapping alive through everything
/// else: links closed, segment gone, owner dead.
#[derive(Debug)]
pub struct View {
    /// Dropped first: the rest may give its pages back.
    bytes: MappedView,
    _hold: Hold,
}

impl View {
    /// A view of this process's own segment.
    pub(in crate::link) fn local(insider: &Arc<Insider>, bytes: MappedView) -> View {
        View { bytes, _hold: Hold::Insider(insider.clone()) }
    }

    /// A view of another process's segment.
    pub(in crate::link) fn shared(
        attachment: &Arc<Attachment>,
        rid: Rid,
        offset: u64,
        len: u64,
        verify: Verify,
    ) -> Result<View, ReadError> {
        // On the list before the look at the bytes, off it again if they are wrong.
        attachment.view_made(offset, len);
        let hold = Attached { attachment: attachment.clone(), offset, len };
        let bytes = attachment.readable().view(rid, offset, len, verify)?;
        Ok(View { bytes, _hold: Hold::Attached(hold) })
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What the owner of the memory waits for when it asks for an epoch.
#[derive(Debug)]
#[expect(dead_code, reason = "held, and let go of")]
enum Hold {
    Attached(Attached),
    Insider(Arc<Insider>),
}

#[derive(Debug)]
struct Attached {
    attachment: Arc<Attachment>,
    offset: u64,
    len: u64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // In a forked child the parent's locks may be held for ever.
        if !forked() {
            self.attachment.view_ended(self.offset, self.len);
        }
    }
}
