//! Memory that processors cannot load from: an accelerator's.
//!
//! Its bytes are copied by the device's driver, to and from pinned host memory,
//! and by the processor from there on. A call that meets such memory takes a
//! `Ring` of pinned slots: while the driver fills or empties some of them, the
//! processor copies and checksums another. When a call has returned, whether it
//! succeeded or not, nothing of it is under way on the device any more.

mod cuda;
mod library;
mod ring;
mod staging;

use std::fmt::Debug;
use std::ptr::NonNull;

pub(crate) use staging::Staging;

use crate::error::DeviceError;
use crate::range::ForeignRange;
use mooncake_os::forked;

/// What a driver knows about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// Nothing: it is ordinary memory, or none.
    Unknown,
    /// Memory of the driver's that processors use as their own: pinned or managed.
    Host,
    /// Memory of this device.
    Device(i32),
}

impl DeviceError {
    /// Whether the driver holds that the range given is not one of its own: the
    /// caller's mistake, after which the device is as good as before.
    pub fn is_wrong_range(&self) -> bool {
        self.code == cuda::INVALID_VALUE && self.len > 0
    }
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToHost,
    ToDevice,
}

/// One copy between a device and pinned memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    pub device: usize,
    pub host: *mut u8,
    pub len: usize,
}

/// An order of copies on one device: each begins after those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    pub device: i32,
    pub handle: usize,
}

/// The driver of a kind of devices.
pub(crate) trait Driver: Debug + Send + Sync {
    /// What is at an address.
    fn location_of(&self, addr: usize) -> Result<Location, DeviceError>;

    /// Pinned memory that every device of this driver can copy to and from.
    fn pin(&self, device: i32, bytes: usize) -> Result<NonNull<u8>, DeviceError>;

    /// Gives pinned memory back.
    ///
    /// # Safety
    /// It came from [`Driver::pin`] for that device, and nothing uses it any more.
    unsafe fn unpin(&self, device: i32, memory: NonNull<u8>);

    /// A stream that waits for no other by itself.
    fn open(&self, device: i32) -> Result<Stream, DeviceError>;

    /// Closes a stream on which nothing is under way.
    fn close(&self, stream: Stream);

    /// Queues copies, in order. After an error some of them may be queued.
    ///
    /// # Safety
    /// All host ranges are pinned memory, which nothing else uses until [`Driver::wait`] has succeeded. Device
    /// addresses may be wrong: the driver says so.
    unsafe fn copy(&self, stream: Stream, way: Direction, copies: &[Copy]) -> Result<(), DeviceError>;

    /// Lets what is queued on these streams from now on begin after what others have queued on the device's default
    /// stream until now. What they queue there later is not waited for, nor does it wait.
    fn follow_default(&self, device: i32, streams: &[Stream]) -> Result<(), DeviceError>;

    /// A device that this process uses.
    fn device_in_use(&self) -> Option<i32>;

    /// Waits for all that is queued on a stream.
    fn wait(&self, stream: Stream) -> Result<(), DeviceError>;
}

/// The driver whose memory this process may hold, if there is one by now.
pub(crate) fn driver() -> Option<&'static dyn Driver> {
    if forked() {
        // A driver is of no use in a child, not even to be asked.
        return None;
    }
    cuda::loaded().map(|cuda| cuda as &dyn Driver)
}

/// Waits until all that was queued on a stream of the caller's is done. `near`: memory of the device that it is on,
/// where 0 and the other names of default streams mean something; of any device for other streams. An error too if this
/// process has no driver: then there is no stream.
///
/// # Safety
/// `stream` is 0, the driver's name of a default stream, or a stream that no thread destroys meanwhile.
pub unsafe fn wait_for_stream(stream: usize, near: &[ForeignRange]) -> Result<(), DeviceError> {
    let Some(driver) = driver() else {
        let (call, name) = ("cuStreamSynchronize", "this process has loaded no driver");
        return if stream == 0 {
            Ok(())
        } else {
            Err(DeviceError { call, name, code: -1, addr: 0, len: 0, device: -1 })
        };
    };
    let mut device = None;
    for range in near {
        if let Location::Device(found) = location_of(range.addr, range.len)? {
            device = Some(found);
            break;
        }
    }
    match device.or_else(|| driver.device_in_use()) {
        Some(device) => driver.wait(Stream { device, handle: stream }),
        // No device has been used yet: nothing is queued anywhere.
        None => Ok(()),
    }
}

/// Where a range lies: [`Location::Host`] and [`Location::Device`] only if both its ends do. The copy finds out what is
/// between them.
pub(crate) fn location_of(addr: usize, len: usize) -> Result<Location, DeviceError> {
    let Some(driver) = driver() else { return Ok(Location::Unknown) };
    let Some(last) = addr.checked_add(len.saturating_sub(1)) else { return Ok(Location::Unknown) };
    let location = driver.location_of(addr)?;
    if location == Location::Unknown || len <= 1 || driver.location_of(last)? == location {
        return Ok(location);
    }
    Ok(Location::Unknown)
}
