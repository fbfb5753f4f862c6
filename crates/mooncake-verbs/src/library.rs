//! The library itself, and the table of its calls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;

use mooncake_os::{forked, watch_forks};

use crate::abi::{
    FORK_UNNEEDED, IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvGid, IbvMr, IbvPd,
    IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr,
};
use crate::error::LoadError;

const NAME: &CStr = c"libibverbs.so.1";

/// Declares [`Calls`], and how each is found: a symbol at the version whose layout [`abi`](crate::abi) has. Some exist
/// at an older version, too, which is of another layout, so that the plain name would not do.
macro_rules! calls {
    (
        required { $($call:ident = $symbol:literal $version:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
        optional { $($opt:ident = $opt_symbol:literal $opt_version:literal: fn($($opt_arg:ty),*) $(-> $opt_ret:ty)?;)* }
    ) => {
        /// The library's functions.
        pub(crate) struct Calls {
            $(pub(crate) $call: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub(crate) $opt: Option<unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>,)*
        }

        impl Calls {
            /// # Safety
            /// A handle of libibverbs, which is never closed.
            unsafe fn find(handle: NonNull<c_void>) -> Result<Calls, LoadError> {
                let missing = |symbol: &str, version: &str| LoadError::TooOld {
                    symbol: symbol.to_owned(),
                    version: version.to_owned(),
                };
                Ok(Calls {
                    $($call: {
                        let found = versioned(handle, $symbol, $version).ok_or_else(|| missing($symbol, $version))?;
                        // SAFETY: the symbol at that version has this signature (infiniband/verbs.h).
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(
                                found.as_ptr(),
                            )
                        }
                    },)*
                    $($opt: versioned(handle, $opt_symbol, $opt_version).map(|found| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>(
                                found.as_ptr(),
                            )
                        }
                    }),)*
                })
            }
        }
    };
}

calls! {
    required {
        get_device_list = "ibv_get_device_list" "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut IbvDevice;
        free_device_list = "ibv_free_device_list" "IBVERBS_1.1": fn(*mut *mut IbvDevice);
        open_device = "ibv_open_device" "IBVERBS_1.1": fn(*mut IbvDevice) -> *mut IbvContext;
        close_device = "ibv_close_device" "IBVERBS_1.1": fn(*mut IbvContext) -> c_int;
        query_device = "ibv_query_device" "IBVERBS_1.1": fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
        query_port = "ibv_query_port" "IBVERBS_1.1": fn(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
        query_gid = "ibv_query_gid" "IBVERBS_1.1": fn(*mut IbvContext, u8, c_int, *mut IbvGid) -> c_int;
        alloc_pd = "ibv_alloc_pd" "IBVERBS_1.1": fn(*mut IbvContext) -> *mut IbvPd;
        dealloc_pd = "ibv_dealloc_pd" "IBVERBS_1.1": fn(*mut IbvPd) -> c_int;
        reg_mr = "ibv_reg_mr" "IBVERBS_1.1": fn(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
        dereg_mr = "ibv_dereg_mr" "IBVERBS_1.1": fn(*mut IbvMr) -> c_int;
        create_comp_channel = "ibv_create_comp_channel" "IBVERBS_1.0": fn(*mut IbvContext) -> *mut IbvCompChannel;
        destroy_comp_channel = "ibv_destroy_comp_channel" "IBVERBS_1.0": fn(*mut IbvCompChannel) -> c_int;
        create_cq = "ibv_create_cq" "IBVERBS_1.1":
            fn(*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
        destroy_cq = "ibv_destroy_cq" "IBVERBS_1.1": fn(*mut IbvCq) -> c_int;
        get_cq_event = "ibv_get_cq_event" "IBVERBS_1.1":
            fn(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
        ack_cq_events = "ibv_ack_cq_events" "IBVERBS_1.1": fn(*mut IbvCq, u32);
        create_qp = "ibv_create_qp" "IBVERBS_1.1": fn(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
        modify_qp = "ibv_modify_qp" "IBVERBS_1.1": fn(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
        query_qp = "ibv_query_qp" "IBVERBS_1.1": fn(*mut IbvQp, *mut IbvQpAttr, c_int, *mut IbvQpInitAttr) -> c_int;
        destroy_qp = "ibv_destroy_qp" "IBVERBS_1.1": fn(*mut IbvQp) -> c_int;
        get_async_event = "ibv_get_async_event" "IBVERBS_1.1": fn(*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
        ack_async_event = "ibv_ack_async_event" "IBVERBS_1.1": fn(*mut IbvAsyncEvent);
        fork_init = "ibv_fork_init" "IBVERBS_1.1": fn() -> c_int;
    }
    optional {
        // It alone takes relaxed ordering.
        reg_mr_iova2 = "ibv_reg_mr_iova2" "IBVERBS_1.8": fn(*mut IbvPd, *mut c_void, usize, u64, u32) -> *mut IbvMr;
        is_fork_initialized = "ibv_is_fork_initialized" "IBVERBS_1.13": fn() -> c_int;
    }
}

/// The host's libibverbs, loaded for the rest of the process's life.
pub struct Library {
    pub(crate) calls: Calls,
}

impl Library {
    /// Loads it when first called. What it needs is looked for once; an answer stays.
    pub fn load() -> Result<&'static Library, LoadError> {
        static LOADED: OnceLock<Result<Library, LoadError>> = OnceLock::new();
        if forked() {
            return Err(LoadError::Forked);
        }
        watch_forks();
        LOADED.get_or_init(Library::find).as_ref().map_err(Clone::clone)
    }

    fn find() -> Result<Library, LoadError> {
        // SAFETY: the constructors of the host's own library run, as in every program that is linked with it.
        let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(|| LoadError::Missing { reason: linker_error() })?;
        // SAFETY: a handle of that library, which is never closed.
        let library = Library { calls: unsafe { Calls::find(handle) }? };
        library.survive_forks()?;
        Ok(library)
    }

    /// Kernels from 5.12 on copy registered private pages at a fork, so that the parent keeps those that the card
    /// knows. On older ones the library has to keep them from children, from the first registration on.
    fn survive_forks(&self) -> Result<(), LoadError> {
        // SAFETY: no argument; it may be called at any time.
        let is_unneeded = self.calls.is_fork_initialized.is_some_and(|call| unsafe { call() } == FORK_UNNEEDED);
        if is_unneeded {
            return Ok(());
        }
        // SAFETY: as above; of what was registered before, by others of this process, it says an error.
        match unsafe { (self.calls.fork_init)() } {
            0 => Ok(()),
            errno => Err(LoadError::ForksUnsafe { source_text: io::Error::from_raw_os_error(errno).to_string() }),
        }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

fn versioned(handle: NonNull<c_void>, symbol: &str, version: &str) -> Option<NonNull<c_void>> {
    let [symbol, version] = [symbol, version].map(|name| CString::new(name).expect("no NUL in a symbol's name"));
    // SAFETY: a handle that is never closed, and two strings.
    NonNull::new(unsafe { libc::dlvsym(handle.as_ptr(), symbol.as_ptr(), version.as_ptr()) })
}

fn linker_error() -> String {
    // SAFETY: a string of this thread until its next call of the linker, or null.
    let said: *mut c_char = unsafe { libc::dlerror() };
    if said.is_null() {
        return "no reason".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
}
