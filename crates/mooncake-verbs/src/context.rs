//! A device in use.

use std::fmt;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use mooncake_os::forked;
use rustix::fs::{OFlags, fcntl_setfl};

use crate::abi::{IbvContext, IbvDeviceAttr, IbvGid, IbvPortAttr};
use crate::device::Device;
use crate::error::VerbsError;
use crate::forks::{LentFd, keep_from_children};
use crate::gid::Gid;
use crate::library::Library;

/// A device that this process has opened. All that is made of it ends with the process at the latest, unless a forked
/// child holds the device's descriptors or mappings: it closes the former, and the latter are kept from it.
pub struct Context {
    device: Device,
    handle: NonNull<IbvContext>,
    limits: DeviceLimits,
    commands: LentFd,
    events: LentFd,
}

// SAFETY: the library locks for itself; the structure changes only as it is made.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device can do at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Bytes of one region.
    pub region_bytes: u64,
    /// Queue pairs of all processes together.
    pub queue_pairs: u32,
    /// Requests that wait in one queue pair.
    pub send_depth: u32,
    /// Completions that wait in one queue.
    pub completions: u32,
    /// READs that one queue pair asks for, and answers, at the same time.
    pub reads: u8,
    /// Ports, numbered from 1 on.
    pub ports: u8,
}

/// What a port is at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Whether it carries anything.
    pub state: PortState,
    /// The largest packet that the link takes now.
    pub mtu: Mtu,
    /// Entries of its table of addresses.
    pub gids: u32,
    /// Its address in a subnet of InfiniBand; 0 with RoCE.
    pub lid: u16,
    /// What it is plugged into.
    pub link_layer: LinkLayer,
    /// Lanes of the link, and what each carries, in the codes of the InfiniBand specification.
    pub width_and_speed: (u8, u8),
}

/// Whether a port carries anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// It does.
    Active,
    /// It does not; the library's number.
    Not(i32),
}

/// What a port is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: routed by LID.
    InfiniBand,
    /// Ethernet: RoCE, routed by GID.
    Ethernet,
}

/// Bytes of payload that one packet has at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u8);

impl Mtu {
    /// 256, 512, 1024, 2048 or 4096 bytes, no others.
    pub fn of_bytes(bytes: u32) -> Option<Mtu> {
        (1..=5).map(Mtu).find(|mtu| mtu.bytes() == bytes)
    }

    /// The library's number, 1 for 256 bytes; the least of all for a number that it does not have.
    pub(crate) fn of_code(code: i32) -> Mtu {
        Mtu(u8::try_from(code).ok().filter(|code| (1..=5).contains(code)).unwrap_or(1))
    }

    /// The library's number.
    pub(crate) fn code(self) -> i32 {
        self.0.into()
    }

    /// As bytes.
    pub fn bytes(self) -> u32 {
        128 << self.0
    }
}

impl Context {
    /// Opens a device. It may take as long as the device's firmware does.
    pub fn open(device: &Device) -> Result<Arc<Context>, VerbsError> {
        let refused = |verb| move |errno| VerbsError::Refused { verb, device: device.name().to_owned(), errno };
        if forked() {
            return Err(VerbsError::Forked { verb: "ibv_open_device", device: device.name().to_owned() });
        }
        let library = device.library();
        // SAFETY: an entry of a list that is still there.
        let handle = unsafe { (library.calls.open_device)(device.handle().as_ptr()) };
        let handle = NonNull::new(handle).ok_or_else(|| refused("ibv_open_device")(last_errno()))?;
        // SAFETY: the library has made it, and changes neither of the numbers.
        let [commands, events] = unsafe { [(*handle.as_ptr()).cmd_fd, (*handle.as_ptr()).async_fd] };
        // SAFETY: open as long as the context is, and they are given back before it goes.
        let [commands, events] = unsafe { [LentFd::new(commands), LentFd::new(events)] };
        let mut context = Context { device: device.clone(), handle, limits: DeviceLimits::NONE, commands, events };
        fcntl_setfl(context.events.get(), OFlags::NONBLOCK).map_err(|error| refused("fcntl")(error.raw_os_error()))?;
        context.limits = context.query_limits()?;
        keep_from_children();
        Ok(Arc::new(context))
    }

    /// Which device it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the device can do at most.
    pub fn limits(&self) -> DeviceLimits {
        self.limits
    }

    fn query_limits(&self) -> Result<DeviceLimits, VerbsError> {
        // SAFETY: plain numbers, for which 0 is one.
        let mut attr: IbvDeviceAttr = unsafe { zeroed() };
        // SAFETY: an open context, and room for the answer.
        let rc = unsafe { (self.library().calls.query_device)(self.handle.as_ptr(), &raw mut attr) };
        self.check("ibv_query_device", rc)?;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        Ok(DeviceLimits {
            region_bytes: attr.max_mr_size,
            queue_pairs: count(attr.max_qp),
            send_depth: count(attr.max_qp_wr),
            completions: count(attr.max_cqe),
            reads: attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).clamp(0, 255) as u8,
            ports: attr.phys_port_cnt,
        })
    }

    /// What a port, from 1 on, is at this moment.
    pub fn port(&self, port: u8) -> Result<Port, VerbsError> {
        self.alive("ibv_query_port")?;
        // SAFETY: plain numbers, for which 0 is one. The library may fill less than all of it.
        let mut attr: IbvPortAttr = unsafe { zeroed() };
        // SAFETY: an open context, and room for the answer.
        let rc = unsafe { (self.library().calls.query_port)(self.handle.as_ptr(), port, &raw mut attr) };
        self.check("ibv_query_port", rc)?;
        Ok(Port {
            state: if attr.state == 4 { PortState::Active } else { PortState::Not(attr.state) },
            mtu: Mtu::of_code(attr.active_mtu),
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            lid: attr.lid,
            link_layer: if attr.link_layer == 2 { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
            width_and_speed: (attr.active_width, attr.active_speed),
        })
    }

    /// An address of a port, zero where the entry is not in use.
    pub fn gid(&self, port: u8, index: u32) -> Result<Gid, VerbsError> {
        self.alive("ibv_query_gid")?;
        let mut gid = IbvGid([0; 16]);
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        // SAFETY: an open context, and room for the answer.
        let rc = unsafe { (self.library().calls.query_gid)(self.handle.as_ptr(), port, index, &raw mut gid) };
        self.check("ibv_query_gid", rc)?;
        Ok(gid.into())
    }

    /// Readable, for `poll(2)`, while there is an [event](Context::next_event). It never blocks.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.get()
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.device.library()
    }

    pub(crate) fn handle(&self) -> NonNull<IbvContext> {
        self.handle
    }

    /// Refuses a call in a forked child.
    pub(crate) fn alive(&self, verb: &'static str) -> Result<(), VerbsError> {
        if forked() { Err(VerbsError::Forked { verb, device: self.name() }) } else { Ok(()) }
    }

    /// The answer of a call that says an error number, or -1 and leaves it in `errno`.
    pub(crate) fn check(&self, verb: &'static str, rc: i32) -> Result<(), VerbsError> {
        match rc {
            0 => Ok(()),
            -1 => Err(self.refused(verb)),
            errno => Err(VerbsError::Refused { verb, device: self.name(), errno: errno.abs() }),
        }
    }

    /// What the last call of this thread has left in `errno`.
    pub(crate) fn refused(&self, verb: &'static str) -> VerbsError {
        VerbsError::Refused { verb, device: self.name(), errno: last_errno() }
    }

    fn name(&self) -> String {
        self.device.name().to_owned()
    }
}

impl DeviceLimits {
    const NONE: DeviceLimits =
        DeviceLimits { region_bytes: 0, queue_pairs: 0, send_depth: 0, completions: 0, reads: 0, ports: 0 };
}

impl Drop for Context {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.commands.give_back();
        self.events.give_back();
        // SAFETY: opened once, closed once; whatever was made of it held it, and is gone.
        let rc = unsafe { (self.library().calls.close_device)(self.handle.as_ptr()) };
        if let Err(error) = self.check("ibv_close_device", rc) {
            tracing::warn!(%error, "the device's context stays until this process ends");
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.device.name()).finish()
    }
}

pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().filter(|errno| *errno != 0).unwrap_or(libc::EIO)
}
