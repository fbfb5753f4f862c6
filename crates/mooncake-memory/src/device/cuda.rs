//! CUDA, by its driver's interface.
//!
//! The library is used where the process has it loaded: a process that holds a pointer to CUDA memory has. A process
//! without CUDA pays nothing, and needs nothing.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::library::{Library, Lookout};
use super::{Copy, Direction, Driver, Location, Stream};
use crate::error::DeviceError;
use mooncake_os::watch_forks;

/// `CUDA_ERROR_INVALID_VALUE`.
pub(super) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_NOT_INITIALIZED` and `CUDA_ERROR_DEINITIALIZED`: before `cuInit`, and while the process ends.
const NOT_THERE: [c_int; 2] = [3, 4];

/// `CUDA_ERROR_INVALID_CONTEXT`: the thread has none.
const INVALID_CONTEXT: c_int = 201;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_IS_MANAGED` and `_DEVICE_ORDINAL`. The ordinal and not the context:
/// memory that was mapped by pieces (`cuMemMap`, as PyTorch's expandable segments do) has none.
const ATTRIBUTES: [c_int; 3] = [2, 8, 9];
/// `CU_MEMORYTYPE_HOST`.
const HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context.
const PORTABLE: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`: one of the other kind would wait, at every copy, for whatever the legacy default stream
/// has got by then, and make what is queued there later wait for the copies.
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_LEGACY`: the default stream that a plain `cudaMemcpy` is on.
const LEGACY: usize = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIMING: c_uint = 2;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// A context of the driver's.
type Context = *mut c_void;

/// Defines the table of the driver's functions by name and signature.
macro_rules! calls {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// The driver's functions. Each gives 0 or an error's number.
        #[derive(Debug)]
        struct Calls {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Calls {
            fn load(library: &Library) -> Option<Calls> {
                $(
                    let name = CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()).ok()?;
                    let $field = library.symbol(name)?;
                )*
                Some(Calls {
                    // SAFETY: the functions of these names have these signatures since CUDA 10.1 (cuda.h).
                    $($field: unsafe {
                        std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) -> c_int>($field)
                    },)*
                })
            }
        }
    };
}

calls! {
    get_error_name = "cuGetErrorName": fn(c_int, *mut *const c_char);
    pointer_get_attributes = "cuPointerGetAttributes": fn(c_uint, *const c_int, *const *mut c_void, u64);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut c_int, c_int);
    primary_ctx_state = "cuDevicePrimaryCtxGetState": fn(c_int, *mut c_uint, *mut c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain": fn(*mut Context, c_int);
    ctx_push = "cuCtxPushCurrent_v2": fn(Context);
    ctx_pop = "cuCtxPopCurrent_v2": fn(*mut Context);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut c_int);
    mem_host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    mem_free_host = "cuMemFreeHost": fn(*mut c_void);
    stream_create = "cuStreamCreate": fn(*mut *mut c_void, c_uint);
    stream_destroy = "cuStreamDestroy_v2": fn(*mut c_void);
    stream_synchronize = "cuStreamSynchronize": fn(*mut c_void);
    event_create = "cuEventCreate": fn(*mut *mut c_void, c_uint);
    event_record = "cuEventRecord": fn(*mut c_void, *mut c_void);
    event_destroy = "cuEventDestroy_v2": fn(*mut c_void);
    stream_wait_event = "cuStreamWaitEvent": fn(*mut c_void, *mut c_void, c_uint);
    stream_is_capturing = "cuStreamIsCapturing": fn(*mut c_void, *mut c_int);
    memcpy_to_host = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, *mut c_void);
    memcpy_to_device = "cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, *mut c_void);
}

#[derive(Debug)]
pub(super) struct Cuda {
    calls: Calls,
    /// Primary contexts by ordinal, retained for the life of the process: the one that CUDA's runtime, and so
    /// every framework, uses.
    contexts: Mutex<Vec<(i32, usize)>>,
}

/// The driver, if this process has it loaded by now.
pub(super) fn loaded() -> Option<&'static Cuda> {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    static LOOKOUT: Lookout = Lookout::new();
    if let Some(cuda) = CUDA.get() {
        return Some(cuda);
    }
    let calls = LOOKOUT.look(|| Calls::load(&Library::find(c"libcuda.so.1")?))?;
    watch_forks();
    Some(CUDA.get_or_init(|| Cuda { calls, contexts: Mutex::default() }))
}

/// What CUDA says about an address.
#[derive(Debug)]
struct Answer {
    /// 0, or why it says nothing.
    code: c_int,
    kind: c_uint,
    managed: bool,
    ordinal: c_int,
}

/// What a call was about.
#[derive(Debug, Clone, std::marker::Copy)]
struct About {
    device: i32,
    addr: usize,
    len: usize,
}

impl About {
    const fn device(device: i32) -> About {
        About { device, addr: 0, len: 0 }
    }
}

impl Cuda {
    fn check(&self, code: c_int, call: &'static str, about: About) -> Result<(), DeviceError> {
        if code == 0 {
            return Ok(());
        }
        let About { device, addr, len } = about;
        Err(DeviceError { call, name: self.name_of(code), code, addr, len, device })
    }

    fn name_of(&self, code: c_int) -> &'static str {
        let mut name = std::ptr::null();
        // SAFETY: stores a pointer to a constant of the driver's, or null.
        let rc = unsafe { (self.calls.get_error_name)(code, &raw mut name) };
        if rc != 0 || name.is_null() {
            return "an unknown error";
        }
        // SAFETY: a constant string of a library that is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("an unknown error")
    }

    fn ask(&self, addr: usize) -> Answer {
        let (mut kind, mut managed, mut ordinal): (c_uint, c_uint, c_int) = (0, 0, -1);
        let values: [*mut c_void; 3] = [(&raw mut kind).cast(), (&raw mut managed).cast(), (&raw mut ordinal).cast()];
        // SAFETY: three attributes of four bytes and room for each. Any address may be asked about; of one that
        // CUDA does not know it says zeros.
        let code = unsafe { (self.calls.pointer_get_attributes)(3, ATTRIBUTES.as_ptr(), values.as_ptr(), addr as u64) };
        Answer { code, kind, managed: managed != 0, ordinal }
    }

    fn context(&self, device: i32) -> Result<Context, DeviceError> {
        let mut contexts = self.contexts.lock();
        if let Some((_, context)) = contexts.iter().find(|(ordinal, _)| *ordinal == device) {
            return Ok(std::ptr::with_exposed_provenance_mut(*context));
        }
        let about = About::device(device);
        let (mut handle, mut context) = (0, std::ptr::null_mut());
        // SAFETY: stores a number.
        self.check(unsafe { (self.calls.device_get)(&raw mut handle, device) }, "cuDeviceGet", about)?;
        // SAFETY: stores a handle.
        let rc = unsafe { (self.calls.primary_ctx_retain)(&raw mut context, handle) };
        self.check(rc, "cuDevicePrimaryCtxRetain", about)?;
        contexts.push((device, context.expose_provenance()));
        Ok(context)
    }

    /// Runs calls with a device's context as this thread's, and leaves the thread's own as it was.
    fn within<T>(&self, device: i32, calls: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let context = self.context(device)?;
        // SAFETY: a primary context that is never released.
        self.check(unsafe { (self.calls.ctx_push)(context) }, "cuCtxPushCurrent", About::device(device))?;
        // What another thread captures into a graph at this moment is none of ours, and ours does not spoil it.
        let mut mode = RELAXED;
        // SAFETY: exchanges a number of this thread's.
        unsafe { (self.calls.exchange_capture_mode)(&raw mut mode) };
        let outcome = calls();
        // SAFETY: as above.
        unsafe { (self.calls.exchange_capture_mode)(&raw mut mode) };
        let mut popped = std::ptr::null_mut();
        // SAFETY: takes away what was pushed above; nothing between leaves anything on top of it.
        unsafe { (self.calls.ctx_pop)(&raw mut popped) };
        outcome
    }
}

impl Driver for Cuda {
    fn location_of(&self, addr: usize) -> Result<Location, DeviceError> {
        let mut answer = self.ask(addr);
        if answer.code == INVALID_CONTEXT {
            let Some(device) = self.device_in_use() else { return Ok(Location::Unknown) };
            answer = self.within(device, || Ok(self.ask(addr)))?;
        }
        if [INVALID_VALUE, INVALID_CONTEXT].contains(&answer.code) || NOT_THERE.contains(&answer.code) {
            return Ok(Location::Unknown);
        }
        self.check(answer.code, "cuPointerGetAttributes", About { device: -1, addr, len: 1 })?;
        Ok(match answer.kind {
            DEVICE if answer.managed => Location::Host,
            DEVICE => Location::Device(answer.ordinal),
            HOST => Location::Host,
            _ => Location::Unknown,
        })
    }

    /// One whose primary context is active. A thread without one needs any to ask about an address.
    fn device_in_use(&self) -> Option<i32> {
        if let Some((device, _)) = self.contexts.lock().first() {
            return Some(*device);
        }
        let mut count = 0;
        // SAFETY: stores a number.
        unsafe { (self.calls.device_count)(&raw mut count) };
        (0..count).find(|device| {
            let (mut handle, mut flags, mut active) = (0, 0, 0);
            // SAFETY: store numbers.
            unsafe {
                (self.calls.device_get)(&raw mut handle, *device) == 0
                    && (self.calls.primary_ctx_state)(handle, &raw mut flags, &raw mut active) == 0
                    && active != 0
            }
        })
    }

    fn pin(&self, device: i32, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        self.within(device, || {
            let mut memory = std::ptr::null_mut();
            // SAFETY: stores an address.
            let rc = unsafe { (self.calls.mem_host_alloc)(&raw mut memory, bytes, PORTABLE) };
            // An error about no device memory: `len` stays 0.
            self.check(rc, "cuMemHostAlloc", About::device(device))?;
            Ok(NonNull::new(memory.cast()).expect("CUDA reported memory at address 0"))
        })
    }

    unsafe fn unpin(&self, device: i32, memory: NonNull<u8>) {
        let freed = self.within(device, || {
            // SAFETY: from `pin`, and not used any more, by the caller's word.
            self.check(
                unsafe { (self.calls.mem_free_host)(memory.as_ptr().cast()) },
                "cuMemFreeHost",
                About::device(device),
            )
        });
        // The device is beyond use, or the process at its end.
        let _ = freed;
    }

    fn open(&self, device: i32) -> Result<Stream, DeviceError> {
        self.within(device, || {
            let mut stream = std::ptr::null_mut();
            // SAFETY: stores a handle.
            let rc = unsafe { (self.calls.stream_create)(&raw mut stream, NON_BLOCKING) };
            self.check(rc, "cuStreamCreate", About::device(device))?;
            Ok(Stream { device, handle: stream.expose_provenance() })
        })
    }

    fn close(&self, stream: Stream) {
        let closed = self.within(stream.device, || {
            // SAFETY: a stream of ours, closed once.
            let rc = unsafe { (self.calls.stream_destroy)(handle(stream)) };
            self.check(rc, "cuStreamDestroy", About::device(stream.device))
        });
        // As in `unpin`.
        let _ = closed;
    }

    fn follow_default(&self, device: i32, streams: &[Stream]) -> Result<(), DeviceError> {
        let about = About::device(device);
        let legacy = std::ptr::without_provenance_mut(LEGACY);
        self.within(device, || {
            // While a thread captures a stream that waits for the default one, nothing may be queued on the default
            // one: it would end the capture. To ask does not.
            let mut status = 0;
            // SAFETY: stores a number.
            let rc = unsafe { (self.calls.stream_is_capturing)(legacy, &raw mut status) };
            self.check(rc, "cuStreamIsCapturing", about)?;
            let mut event = std::ptr::null_mut();
            // SAFETY: stores a handle.
            self.check(unsafe { (self.calls.event_create)(&raw mut event, WITHOUT_TIMING) }, "cuEventCreate", about)?;
            // SAFETY: the event made above, and the name of a stream that is always there.
            let recorded = self.check(unsafe { (self.calls.event_record)(event, legacy) }, "cuEventRecord", about);
            let follow = |stream: &Stream| {
                // SAFETY: a stream of ours, and the event made above.
                let rc = unsafe { (self.calls.stream_wait_event)(handle(*stream), event, 0) };
                self.check(rc, "cuStreamWaitEvent", about)
            };
            let following = recorded.and_then(|()| streams.iter().try_for_each(follow));
            // SAFETY: made above. Streams that wait for it go on doing so.
            let rc = unsafe { (self.calls.event_destroy)(event) };
            following.and(self.check(rc, "cuEventDestroy", about))
        })
    }

    unsafe fn copy(&self, stream: Stream, way: Direction, copies: &[Copy]) -> Result<(), DeviceError> {
        self.within(stream.device, || {
            for &Copy { device: addr, host, len } in copies {
                let about = About { device: stream.device, addr, len };
                match way {
                    Direction::ToHost => {
                        // SAFETY: pinned memory that is ours until the stream was waited for, by the caller's word.
                        let rc = unsafe { (self.calls.memcpy_to_host)(host.cast(), addr as u64, len, handle(stream)) };
                        self.check(rc, "cuMemcpyDtoHAsync", about)?;
                    }
                    Direction::ToDevice => {
                        // SAFETY: as above; the device memory was given away by the maker of a `ForeignRange`.
                        let rc =
                            unsafe { (self.calls.memcpy_to_device)(addr as u64, host.cast(), len, handle(stream)) };
                        self.check(rc, "cuMemcpyHtoDAsync", about)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn wait(&self, stream: Stream) -> Result<(), DeviceError> {
        self.within(stream.device, || {
            // SAFETY: a stream of ours, or one that the caller has vouched for.
            let rc = unsafe { (self.calls.stream_synchronize)(handle(stream)) };
            self.check(rc, "cuStreamSynchronize", About::device(stream.device))
        })
    }
}

fn handle(stream: Stream) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(stream.handle)
}
