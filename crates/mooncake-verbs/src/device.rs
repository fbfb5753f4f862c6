//! What the library lists.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use mooncake_os::forked;

use crate::abi::IbvDevice;
use crate::error::VerbsError;
use crate::library::Library;

/// A network card, or another device with verbs.
#[derive(Debug, Clone)]
pub struct Device {
    list: Arc<List>,
    handle: NonNull<IbvDevice>,
    name: String,
    path: PathBuf,
}

// SAFETY: an entry of a list that lives as long as this; the library changes none.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// All devices that there are now, in the library's order.
pub fn devices(library: &'static Library) -> Result<Vec<Device>, VerbsError> {
    let device = || "this host".to_owned();
    if forked() {
        return Err(VerbsError::Forked { verb: "ibv_get_device_list", device: device() });
    }
    let mut count: c_int = 0;
    // SAFETY: room for the count.
    let list = unsafe { (library.calls.get_device_list)(&raw mut count) };
    let Some(list) = NonNull::new(list) else {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        // A kernel without RDMA has no device, which is no fault.
        if errno == libc::ENOSYS || errno == libc::ENOENT {
            return Ok(Vec::new());
        }
        return Err(VerbsError::Refused { verb: "ibv_get_device_list", device: device(), errno });
    };
    let list = Arc::new(List { library, list });
    let entries = (0..usize::try_from(count).unwrap_or(0)).filter_map(|nth| {
        // SAFETY: the library's list has so many entries.
        let handle = NonNull::new(unsafe { *list.list.as_ptr().add(nth) })?;
        // SAFETY: an entry lives as long as its list.
        let (name, path) = unsafe { (&(*handle.as_ptr()).name, &(*handle.as_ptr()).ibdev_path) };
        Some(Device { list: list.clone(), handle, name: text(name), path: PathBuf::from(text(path)) })
    });
    Ok(entries.collect())
}

impl Device {
    /// Its name, as `ibv_devices` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the kernel tells facts about it: its node, the ports, their addresses.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.list.library
    }

    pub(crate) fn handle(&self) -> NonNull<IbvDevice> {
        self.handle
    }
}

#[derive(Debug)]
struct List {
    library: &'static Library,
    list: NonNull<*mut IbvDevice>,
}

// SAFETY: nothing changes it between its making and its end.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        if !forked() {
            // SAFETY: the library's list, freed once; devices that are open are counted by the library itself.
            unsafe { (self.library.calls.free_device_list)(self.list.as_ptr()) };
        }
    }
}

/// The text of a field that ends with a NUL, or is full.
fn text(field: &[c_char]) -> String {
    // SAFETY: characters are bytes.
    let bytes = unsafe { std::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    match CStr::from_bytes_until_nul(bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}
