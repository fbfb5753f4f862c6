//! Views: objects borrowed in place, pinned as long as somebody looks.

use std::ops::Deref;
use std::sync::Arc;

use mooncake_memory::forked;
use mooncake_wire::message::{Object, Pin, reply, request};
use mooncake_wire::pack_keys;

use crate::control::Control;
use crate::error::StoreError;
use crate::get::doubt_of;
use crate::machine::call::Abandoned;
use crate::machine::get::report_doubt;
use crate::machine::numbering::Numbering;
use crate::put::link_error;
use crate::rounds::rounds;
use crate::store::{Inner, check_key};

/// Keys pinned with one request.
const ROUND_KEYS: usize = 32_768;

/// Pins are asked for again this often when the session was resumed meanwhile.
const ATTEMPTS: usize = 3;

/// The bytes of an object, read-only.
///
/// Where the pool's memory is mapped here they are that memory itself, pinned;
/// elsewhere a private copy. They do not change, whatever becomes of the object
/// or of the store meanwhile.
#[derive(Debug)]
pub struct View {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Private(Vec<u8>),
    Pinned {
        // Ends before the pin does.
        view: Option<mooncake_transfer::View>,
        pin: PinGuard,
    },
}

impl View {
    /// False: these are the pinned bytes of the pool itself.
    pub fn is_private_copy(&self) -> bool {
        matches!(self.bytes, Bytes::Private(_))
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Private(bytes) => bytes,
            Bytes::Pinned { view, .. } => view.as_deref().unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // In a forked child neither the mapping's holder nor the pin is ours.
        if let Bytes::Pinned { view, pin } = &mut self.bytes {
            drop(view.take());
            pin.release();
        }
    }
}

#[derive(Debug)]
struct PinGuard {
    control: Arc<Control>,
    era: u64,
    rid: u64,
    /// Counted against the bytes that views may hold.
    bytes: u64,
    released: bool,
}

impl PinGuard {
    fn release(&mut self) {
        if std::mem::replace(&mut self.released, true) || forked() {
            return;
        }
        self.control.pins.lock().forget_bytes(self.bytes);
        if self.control.pins.lock().release(self.era, self.rid) {
            self.control.bell.ring();
        }
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        self.release();
    }
}

/// Room for views that are asked for; given back when dropped.
struct Room<'a> {
    control: &'a Control,
    views: usize,
}

impl<'a> Room<'a> {
    fn take(control: &'a Control, wanted: usize) -> Self {
        Room { control, views: control.pins.lock().take_room(wanted) }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.control.pins.lock().give_room_back(self.views);
    }
}

/// A view, a miss, or nothing where a copy has to do.
type Borrowed = Option<Result<Option<View>, StoreError>>;

impl Inner {
    pub(crate) fn view_batch(&self, keys: &[&[u8]]) -> Vec<Result<Option<View>, StoreError>> {
        let mut views: Vec<Borrowed> = keys.iter().map(|_| None).collect();
        if self.settings.shared_views && self.settings.local_buffer_size > 0 {
            let valid: Vec<usize> = (0..keys.len()).filter(|&index| check_key(keys[index]).is_ok()).collect();
            let names: Vec<&[u8]> = valid.iter().map(|&index| keys[index]).collect();
            let mut rest = &valid[..];
            for names in rounds(&names, ROUND_KEYS) {
                let (round, others) = rest.split_at(names.len());
                rest = others;
                // Beyond it they are copies, as beyond the bytes that views may hold.
                let room = Room::take(&self.shared.control, names.len());
                let (names, round) = (&names[..room.views], &round[..room.views]);
                if names.is_empty() {
                    continue;
                }
                match self.pinned(names) {
                    Ok(pinned) => round.iter().zip(pinned).for_each(|(&index, view)| views[index] = view),
                    Err(error) => round.iter().for_each(|&index| views[index] = Some(Err(error.clone()))),
                }
            }
        }
        // Whatever could not be borrowed is copied.
        let rest: Vec<usize> = (0..keys.len()).filter(|&index| views[index].is_none()).collect();
        let names: Vec<&[u8]> = rest.iter().map(|&index| keys[index]).collect();
        let (copies, _) = self.get_batch_with(&names, |_, size| Ok(vec![0u8; size as usize]));
        for (index, copy) in rest.into_iter().zip(copies) {
            views[index] = Some(copy.map(|bytes| bytes.map(|bytes| View { bytes: Bytes::Private(bytes) })));
        }
        views.into_iter().map(|view| view.unwrap_or(Ok(None))).collect()
    }

    /// Pins what is there.
    fn pinned(&self, keys: &[&[u8]]) -> Result<Vec<Borrowed>, StoreError> {
        const WHAT: &str = "a pin";
        let control = &self.shared.control;
        for _ in 0..ATTEMPTS {
            let generation = control.pins.lock().generation();
            let body = request::Body::Pin(Pin { keys: Some(pack_keys(keys)) });
            let answer = control.mutate(WHAT, body, control.lookup_timeout, Abandoned::VoidsPins)?;
            let objects = match answer.body {
                reply::Body::Lookup(found) if found.objects.len() == keys.len() => found.objects,
                _ => return Err(control.confused(WHAT)),
            };
            let pinned = objects.iter().filter_map(|object| object.replicas.first()).map(|replica| replica.rid);
            let Some(era) = control.pins.lock().adopt(generation, pinned) else {
                // The master was told meanwhile what this store holds, and these
                // pins were not on the list; whichever of them came after it must go.
                control.resume_anew();
                continue;
            };
            let guards: Vec<Option<PinGuard>> = objects
                .iter()
                .map(|object| {
                    let rid = object.replicas.first()?.rid;
                    Some(PinGuard { control: control.clone(), era, rid, bytes: 0, released: false })
                })
                .collect();
            let replicas = objects.iter().flat_map(|object| &object.replicas);
            self.shared.directory.meet(control, answer.numbering, replicas)?;
            let views = keys.iter().zip(&objects).zip(guards).map(|((key, object), guard)| match guard {
                None => Some(Ok(None)),
                Some(guard) => self.borrow(key, object, answer.numbering, guard).map(|view| Ok(Some(view))),
            });
            return Ok(views.collect());
        }
        // The session comes and goes: copies will do.
        Ok(keys.iter().map(|_| None).collect())
    }

    /// A view of a pinned object, where its memory is mapped and there is room for it.
    fn borrow(&self, key: &[u8], object: &Object, numbering: Numbering, mut pin: PinGuard) -> Option<View> {
        let replica = object.replicas.first()?;
        let [extent] = &replica.extents[..] else { return None };
        let address = self.shared.directory.find(numbering, extent.segment)?;
        let interrupted = || self.is_interrupted();
        let wait = self.transfer_wait(0, &interrupted);
        let link = match self.shared.links.link(&address, &wait) {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(error = %link_error(&error), "no view");
                return None;
            }
        };
        // The pin is counted since before the link was made: from here on nobody is told that this store obeys an epoch in
        // which no master knows it.
        let kept = self.shared.links.vouch_for(&link) && self.shared.control.pins.lock().is_known(pin.era, pin.rid);
        if link.path() == mooncake_transfer::Path::Tcp
            || !kept
            || !self.shared.control.pins.lock().admit(object.size, self.settings.local_buffer_size)
        {
            return None;
        }
        pin.bytes = object.size;
        let crc = self.settings.verify.then_some(object.crc32c);
        match link.view(replica.rid, extent.offset, object.size, crc) {
            Ok(view) => Some(View { bytes: Bytes::Pinned { view: Some(view?), pin } }),
            Err(error) => {
                report_doubt(self, key, object, replica.rid, doubt_of(&error), &error.to_string());
                None
            }
        }
    }
}
