//! The fake CUDA driver of `tests/fake_cuda/fake_cuda.c`, built and loaded into a test's process. Python's tests use
//! the same.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CString, c_char, c_int, c_long, c_uint, c_void};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use mooncake_memory::ForeignRange;

const SOURCE: &str = include_str!("../../../tests/fake_cuda/fake_cuda.c");

/// CUDA's code of an argument that is wrong.
pub const INVALID_VALUE: i32 = 1;
/// CUDA's code of a device that has no memory left.
pub const OUT_OF_MEMORY: i32 = 2;
/// CUDA's code of an address that is no memory's.
pub const ILLEGAL_ADDRESS: i32 = 700;

/// The loaded driver. One test of a process has it at a time: what it counts and
/// lets fail is the process's.
pub struct FakeCuda {
    library: usize,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl FakeCuda {
    /// Loads the driver, once for a process, as it is at the start: nothing fails, and copies take no time.
    pub fn load() -> FakeCuda {
        static ONE: Mutex<()> = Mutex::new(());
        static LIBRARY: OnceLock<usize> = OnceLock::new();
        let one_at_a_time = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let library = *LIBRARY.get_or_init(|| {
            let path = CString::new(build().into_os_string().into_encoded_bytes()).unwrap();
            // SAFETY: a library of this repository's own, without constructors.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            assert!(!handle.is_null(), "the fake driver cannot be loaded");
            handle.expose_provenance()
        });
        let fake = FakeCuda { library, _one_at_a_time: one_at_a_time };
        // SAFETY: the signature of fake_cuda.c.
        unsafe { fake.function::<unsafe extern "C" fn(c_uint) -> c_int>(c"cuInit")(0) };
        fake.mend();
        fake.delay(0);
        fake
    }

    /// # Safety
    /// `F` is the signature that `fake_cuda.c` has for it.
    unsafe fn function<F: Copy>(&self, name: &std::ffi::CStr) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        let handle = std::ptr::with_exposed_provenance_mut(self.library);
        // SAFETY: a handle that is never closed; the signature is the caller's word.
        unsafe {
            let symbol = libc::dlsym(handle, name.as_ptr());
            assert!(!symbol.is_null(), "{name:?}");
            std::mem::transmute_copy(&symbol)
        }
    }

    /// Lets a call fail so many times (-1: always) after so many successes.
    pub fn fail(&self, call: &str, code: i32, after: i32, times: i32) {
        let call = CString::new(call).unwrap();
        // SAFETY: the signature of fake_cuda.c.
        unsafe {
            let fail = self.function::<unsafe extern "C" fn(*const c_char, c_int, c_int, c_int)>(c"fake_cuda_fail");
            fail(call.as_ptr(), code, after, times);
        }
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        self.fail("", 0, 0, 0);
    }

    /// Every copy is done so much later.
    pub fn delay(&self, microseconds: u32) {
        // SAFETY: the signature of fake_cuda.c.
        unsafe { self.function::<unsafe extern "C" fn(c_uint)>(c"fake_cuda_delay")(microseconds) };
    }

    /// How often the driver was asked for something, by the name that `fake_cuda.c` has for it.
    pub fn count(&self, what: &str) -> i64 {
        self.counter(what)()
    }

    /// The same for those that outlive this handle: the library stays.
    pub fn counter(&self, what: &str) -> impl Fn() -> i64 + Send + Sync + 'static {
        let what = CString::new(what).unwrap();
        // SAFETY: the signature of fake_cuda.c.
        let count = unsafe { self.function::<unsafe extern "C" fn(*const c_char) -> c_long>(c"fake_cuda_count") };
        // SAFETY: as above, and it locks for itself.
        move || unsafe { count(what.as_ptr()) }
    }

    /// Zeroed memory of a device.
    pub fn alloc(&self, device: i32, len: usize) -> DeviceMemory<'_> {
        self.make(device, len, false)
    }

    /// Managed memory, which the processor may touch.
    pub fn alloc_managed(&self, len: usize) -> DeviceMemory<'_> {
        self.make(0, len, true)
    }

    /// Memory of a device that begins with these bytes.
    pub fn holding(&self, device: i32, bytes: &[u8]) -> DeviceMemory<'_> {
        let memory = self.alloc(device, bytes.len());
        memory.write(0, bytes);
        memory
    }

    fn make(&self, device: i32, len: usize, managed: bool) -> DeviceMemory<'_> {
        // SAFETY: the signature of fake_cuda.c.
        let addr = unsafe {
            let alloc = self.function::<unsafe extern "C" fn(c_int, usize, c_int) -> usize>(c"fake_cuda_alloc");
            alloc(device, len, managed.into())
        };
        assert_ne!(addr, 0);
        DeviceMemory { fake: self, addr, len }
    }

    /// Work of a framework on the default stream that ends so much later.
    pub fn fill_later(&self, memory: &DeviceMemory<'_>, value: u8, microseconds: u32) {
        // SAFETY: the signature of fake_cuda.c.
        unsafe {
            let fill = self.function::<unsafe extern "C" fn(usize, c_int, usize, c_uint) -> c_int>(
                c"fake_cuda_default_stream_fill",
            );
            fill(memory.addr, value.into(), memory.len, microseconds);
        }
    }
}

/// Given back when dropped, whatever is still under way on it.
pub struct DeviceMemory<'a> {
    fake: &'a FakeCuda,
    /// Its first byte, which no processor may touch unless it is managed.
    pub addr: usize,
    /// Its bytes.
    pub len: usize,
}

impl DeviceMemory<'_> {
    /// All of it.
    pub fn range(&self) -> ForeignRange {
        self.part(0, self.len)
    }

    /// A range from a byte of it on; it may go beyond its end.
    pub fn part(&self, from: usize, len: usize) -> ForeignRange {
        // SAFETY: memory that the tests only name, and that nobody borrows.
        unsafe { ForeignRange::new(self.addr + from, len) }
    }

    /// Its bytes at this moment, without a wait for what is under way.
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the signature of fake_cuda.c; room for all.
        let rc = unsafe {
            let peek = self.fake.function::<unsafe extern "C" fn(usize, *mut u8, usize) -> c_int>(c"fake_cuda_peek");
            peek(self.addr, bytes.as_mut_ptr(), self.len)
        };
        assert_eq!(rc, 0);
        bytes
    }

    /// Changes its bytes at this moment, without a wait for what is under way.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the signature of fake_cuda.c.
        let rc = unsafe {
            let poke = self.fake.function::<unsafe extern "C" fn(usize, *const u8, usize) -> c_int>(c"fake_cuda_poke");
            poke(self.addr + at, bytes.as_ptr(), bytes.len())
        };
        assert_eq!(rc, 0);
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: the signature of fake_cuda.c.
        unsafe { self.fake.function::<unsafe extern "C" fn(usize) -> c_int>(c"cuMemFree_v2")(self.addr) };
    }
}

// SAFETY: numbers only, and functions that lock for themselves.
unsafe impl Sync for FakeCuda {}

/// The shared object; built by the first test that wants it.
fn build() -> PathBuf {
    let mut hash = DefaultHasher::new();
    SOURCE.hash(&mut hash);
    // Beside the test's program: that lies where cargo builds, wherever that is.
    let test = std::env::current_exe().expect("the path of the test's program");
    let folder = test.parent().expect("its folder");
    let path = folder.join(format!("fake-cuda-{:016x}.so", hash.finish()));
    if path.exists() {
        return path;
    }
    let mine = folder.join(format!("fake-cuda-{}", std::process::id()));
    let source = mine.with_extension("c");
    std::fs::write(&source, SOURCE).unwrap();
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&mine, &source])
        .output()
        .expect("a C compiler, which Rust's linker needs too");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::remove_file(source).unwrap();
    // Whole or not at all: other tests build it at the same time.
    std::fs::rename(mine, &path).unwrap();
    path
}
