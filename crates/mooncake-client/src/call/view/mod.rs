//! Views: objects borrowed in place, pinned as long as a view of them lives. [`crate::machine::view`] decides what is
//! borrowed and what is copied.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_os::forked;
use mooncake_segment::{Link, Path};
use mooncake_wire::message::{Extent, Object, Pin, reply, request};
use mooncake_wire::pack_keys;

use crate::call::get::unread;
use crate::call::query::OWNER_AWAY;
use crate::error::StoreError;
use crate::inner::Inner;
use crate::machine::call::IfUnanswered;
use crate::machine::get::Unread;
use crate::machine::numbering::Numbering;
use crate::machine::pins::Pins;
use crate::machine::ready;
use crate::machine::view::{HeldPin, ViewDriver, view};
use crate::session::control::Control;
use crate::transfer_error::link_error;

#[cfg(test)]
mod tests;

/// The bytes of an object, read-only.
///
/// They are pinned bytes of the pool itself where its memory is mapped here, and where `local_buffer_size` and
/// `shared_views` allow; a private copy otherwise. They do not change, whatever becomes of the object or of the store
/// meanwhile.
#[derive(Debug)]
pub struct View {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Private(Vec<u8>),
    Pinned {
        // Fields are dropped in this order: it ends before the pin does.
        view: mooncake_segment::View,
        _pin: PinGuard,
    },
}

impl View {
    /// True for a private copy, false for pinned bytes of the pool.
    pub fn is_private_copy(&self) -> bool {
        matches!(self.bytes, Bytes::Private(_))
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Private(bytes) => bytes,
            Bytes::Pinned { view, .. } => view,
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Holds a pin.
#[derive(Debug)]
pub(crate) struct PinGuard {
    control: Arc<Control>,
    held: HeldPin,
}

impl AsMut<HeldPin> for PinGuard {
    fn as_mut(&mut self) -> &mut HeldPin {
        &mut self.held
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        // In a forked child it is not ours.
        if forked() {
            return;
        }
        let told = self.held.end(&mut self.control.pins.lock());
        if told {
            self.control.waker.wake();
        }
    }
}

impl ViewDriver for Inner {
    type Link = Arc<Link>;
    type Guard = PinGuard;
    type Mapped = mooncake_segment::View;
    type View = View;

    fn pins<R>(&self, step: impl FnOnce(&mut Pins) -> R) -> R {
        step(&mut self.shared.control.pins.lock())
    }

    async fn pin(&self, keys: &[&[u8]]) -> Result<(Vec<Object>, Numbering), StoreError> {
        const WHAT: &str = "a pin";
        let control = &self.shared.control;
        let body = request::Body::Pin(Pin { keys: Some(pack_keys(keys)) });
        let reply = control.mutate(WHAT, body, control.lookup_timeout, IfUnanswered::VoidsPins)?;
        match reply.body {
            reply::Body::Lookup(found) if found.objects.len() == keys.len() => {
                if found.away {
                    self.keep_miss(OWNER_AWAY.to_owned());
                }
                Ok((found.objects, reply.numbering))
            }
            _ => Err(control.confused(WHAT)),
        }
    }

    fn resume_anew(&self) {
        self.shared.control.resume_anew();
    }

    async fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn guard(&self, held: HeldPin) -> PinGuard {
        PinGuard { control: self.shared.control.clone(), held }
    }

    async fn meet(&self, objects: &[Object], numbering: Numbering) -> Result<(), StoreError> {
        let replicas = objects.iter().flat_map(|object| &object.replicas);
        self.shared.directory.meet(&self.shared.control, numbering, replicas)
    }

    async fn link(&self, extent: &Extent, numbering: Numbering) -> Option<Arc<Link>> {
        let address = self.shared.directory.find(numbering, extent.segment)?;
        let interrupted = || self.is_interrupted();
        let deadline = self.transfer_deadline(0, &interrupted);
        let link = self.shared.links.link(&address, &deadline);
        link.inspect_err(|error| tracing::debug!(error = %link_error(error), "no view")).ok()
    }

    fn is_mapped(&self, link: &Arc<Link>) -> bool {
        link.path() != Path::Tcp
    }

    fn vouch_for(&self, link: &Arc<Link>) -> bool {
        self.shared.links.vouch_for(link)
    }

    async fn check(
        &self,
        link: &Arc<Link>,
        object: &Object,
        rid: Rid,
        extent: &Extent,
    ) -> Result<Option<mooncake_segment::View>, Unread> {
        let crc = self.settings.verify.then_some(object.crc32c);
        link.view(rid, extent.offset, object.size, crc).map_err(unread)
    }

    fn borrowed(&self, view: mooncake_segment::View, pin: PinGuard) -> View {
        View { bytes: Bytes::Pinned { view, _pin: pin } }
    }

    async fn copy(&self, keys: &[&[u8]]) -> Vec<Result<Option<View>, StoreError>> {
        let (copies, _) = self.get_batch_with(keys, |_, size| Ok(vec![0u8; size as usize]));
        let private = |bytes| View { bytes: Bytes::Private(bytes) };
        copies.into_iter().map(|copy| copy.map(|bytes| bytes.map(private))).collect()
    }
}

impl Inner {
    pub(crate) fn view_batch(&self, keys: &[&[u8]]) -> Vec<Result<Option<View>, StoreError>> {
        let limit = if self.settings.shared_views { self.settings.local_buffer_size } else { 0 };
        ready(view(self, keys, limit))
    }
}
