//! Where a device tells what it has done.

use std::fmt;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mooncake_os::forked;
use rustix::fs::{OFlags, fcntl_setfl};

use crate::abi::{IbvCompChannel, IbvCq, IbvWc};
use crate::context::Context;
use crate::error::VerbsError;
use crate::forks::LentFd;

/// A queue of completions, with a channel of its own that says when there is one.
pub struct CompletionQueue {
    context: Arc<Context>,
    handle: NonNull<IbvCq>,
    channel: NonNull<IbvCompChannel>,
    notices: LentFd,
}

// SAFETY: the library locks for itself.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// One with room for so many completions that nobody has taken. More than that is an error of the queue, and of
    /// all its queue pairs: requests are to be counted.
    pub fn new(context: &Arc<Context>, room: u32) -> Result<Arc<CompletionQueue>, VerbsError> {
        context.alive("ibv_create_cq")?;
        let calls = &context.library().calls;
        // SAFETY: an open context.
        let channel = unsafe { (calls.create_comp_channel)(context.handle().as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| context.refused("ibv_create_comp_channel"))?;
        let room = i32::try_from(room).unwrap_or(i32::MAX);
        // SAFETY: an open context and its channel.
        let handle =
            unsafe { (calls.create_cq)(context.handle().as_ptr(), room, ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(handle) = NonNull::new(handle) else {
            let error = context.refused("ibv_create_cq");
            // SAFETY: made above, and no queue uses it.
            unsafe { (calls.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        // SAFETY: open as long as the channel is, which is destroyed after it is given back.
        let notices = unsafe { LentFd::new((*channel.as_ptr()).fd) };
        let queue = CompletionQueue { context: context.clone(), handle, channel, notices };
        fcntl_setfl(queue.notices.get(), OFlags::NONBLOCK).map_err(|error| VerbsError::Refused {
            verb: "fcntl",
            device: context.device().name().to_owned(),
            errno: error.raw_os_error(),
        })?;
        Ok(Arc::new(queue))
    }

    /// Takes what is there, as much as `into` has room for, in the order in which it was done. It never waits.
    pub fn poll<'a>(&self, into: &'a mut Completions) -> Result<&'a [Completion], VerbsError> {
        self.context.alive("ibv_poll_cq")?;
        into.taken = 0;
        // SAFETY: the provider has set its call when it made the context.
        let call = unsafe { (*self.context.handle().as_ptr()).ops.poll_cq }.expect("every provider has it");
        let room = into.entries.len() as i32;
        // SAFETY: a queue that is alive, and room for so many.
        let count = unsafe { call(self.handle.as_ptr(), room, into.entries.as_mut_ptr().cast()) };
        if count < 0 {
            let errno = if count == -1 { crate::context::last_errno() } else { -count };
            let device = self.context.device().name().to_owned();
            return Err(VerbsError::Refused { verb: "ibv_poll_cq", device, errno });
        }
        into.taken = (count as usize).min(into.entries.len());
        Ok(&into.entries[..into.taken])
    }

    /// Asks for a notice at the next completion. One that came before is not told: poll again behind this, then wait.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.context.alive("ibv_req_notify_cq")?;
        // SAFETY: as above.
        let call = unsafe { (*self.context.handle().as_ptr()).ops.req_notify_cq }.expect("every provider has it");
        // SAFETY: a queue that is alive.
        let rc = unsafe { call(self.handle.as_ptr(), 0) };
        self.context.check("ibv_req_notify_cq", rc)
    }

    /// Readable, for `poll(2)`, once there is a notice.
    pub fn notices_fd(&self) -> BorrowedFd<'_> {
        self.notices.get()
    }

    /// Takes the notices that are there, without waiting; how many.
    pub fn take_notices(&self) -> Result<u32, VerbsError> {
        self.context.alive("ibv_get_cq_event")?;
        let calls = &self.context.library().calls;
        let mut taken = 0;
        loop {
            let [mut queue, mut user] = [ptr::null_mut::<IbvCq>(), ptr::null_mut()];
            // SAFETY: a channel that does not block, and room for both answers.
            let rc = unsafe { (calls.get_cq_event)(self.channel.as_ptr(), &raw mut queue, (&raw mut user).cast()) };
            if rc != 0 {
                return match crate::context::last_errno() {
                    libc::EAGAIN => Ok(taken),
                    libc::EINTR => continue,
                    _ => Err(self.context.refused("ibv_get_cq_event")),
                };
            }
            // SAFETY: this queue, the channel's only one. Acknowledged at once: to destroy it waits for that.
            unsafe { (calls.ack_cq_events)(self.handle.as_ptr(), 1) };
            taken += 1;
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn handle(&self) -> NonNull<IbvCq> {
        self.handle
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let calls = &self.context.library().calls;
        // SAFETY: made once, destroyed once; its queue pairs held it, and are gone.
        let rc = unsafe { (calls.destroy_cq)(self.handle.as_ptr()) };
        if let Err(error) = self.context.check("ibv_destroy_cq", rc) {
            // Its channel stays with it.
            tracing::warn!(%error, "a queue of completions stays until this process ends");
            return;
        }
        self.notices.give_back();
        // SAFETY: no queue uses it any more.
        unsafe { (calls.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionQueue").field(&self.context).finish()
    }
}

/// Room for completions, used again and again.
pub struct Completions {
    entries: Box<[Completion]>,
    taken: usize,
}

impl Completions {
    /// For so many at a time.
    pub fn with_room(room: usize) -> Completions {
        // SAFETY: plain numbers, for which 0 is one.
        let none = Completion { wc: unsafe { zeroed() } };
        Completions { entries: vec![none; room.clamp(1, 1 << 16)].into_boxed_slice(), taken: 0 }
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.entries[..self.taken]).finish()
    }
}

/// That a request is over.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Completion {
    wc: IbvWc,
}

impl Completion {
    /// The [request's number](crate::Request::id).
    pub fn id(&self) -> u64 {
        self.wc.wr_id
    }

    /// How it ended. Of one that failed nothing else is told but its queue pair.
    pub fn status(&self) -> Status {
        Status(self.wc.status)
    }

    /// The number of its queue pair at this end.
    pub fn queue_pair(&self) -> u32 {
        self.wc.qp_num
    }

    /// What the device's maker says about a failure.
    pub fn vendor_error(&self) -> u32 {
        self.wc.vendor_err
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Completion { wc } = self;
        write!(f, "Completion {{ id: {}, queue_pair: {}, {} }}", wc.wr_id, wc.qp_num, self.status())
    }
}

/// How a request ended, as the library's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub i32);

impl Status {
    /// All of it was done.
    pub const SUCCESS: Status = Status(0);
    /// It was waiting when its queue pair failed, or was moved to the error state.
    pub const FLUSHED: Status = Status(5);
    /// The peer has no such memory, or does not allow it.
    pub const REMOTE_ACCESS: Status = Status(10);
    /// The peer does not answer.
    pub const RETRIES_EXCEEDED: Status = Status(12);

    /// A short name of it, for counters.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "success",
            1 => "local_length",
            2 => "local_queue_pair_operation",
            4 => "local_protection",
            5 => "flushed",
            7 => "bad_response",
            8 => "local_access",
            9 => "remote_invalid_request",
            10 => "remote_access",
            11 => "remote_operation",
            12 => "retries_exceeded",
            13 => "receiver_not_ready",
            16 => "remote_aborted",
            19 => "fatal",
            20 => "response_timeout",
            21 => "general",
            _ => "other",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match *self {
            Status::SUCCESS => "done",
            Status::FLUSHED => "flushed: its queue pair had failed or was closed",
            Status::REMOTE_ACCESS => {
                "the peer refuses the memory: its key is old, or the range is not registered there"
            }
            Status::RETRIES_EXCEEDED => "the peer does not answer: it is gone, or the link is down",
            Status(1) => "longer than the local memory or than a message may be",
            Status(4) => "the local memory is not registered for it",
            Status(9) => "the peer takes it for invalid",
            Status(11) => "the peer's device failed",
            Status(13) => "the peer was not ready",
            Status(19) => "the device has failed",
            Status(other) => return write!(f, "{} (status {other})", self.name().replace('_', " ")),
        };
        f.write_str(words)
    }
}
