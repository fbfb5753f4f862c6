//! The transfer engine for C, under the names, types and codes of Mooncake's `transfer_engine_c.h`.
//!
//! The header is `include/transfer_engine_c.h`; a test compiles a program with it. What a caller can be told is wrong is
//! a code: null pointers, engines that were destroyed are not found out, batches and peers of no engine are. A panic
//! never crosses into C.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mooncake_engine::{BatchId, Engine, EngineError, EngineOptions, Notify, Opcode, PeerId, Request};
use mooncake_memory::ForeignRange;
use mooncake_settings::environment;
use parking_lot::Mutex;

/// What a `transfer_engine_t` points at.
pub struct Handle {
    engine: Engine,
    /// Registered for this process alone: nothing is lent.
    private: Mutex<HashSet<usize>>,
}

/// `transfer_request_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TransferRequest {
    opcode: c_int,
    source: *mut c_void,
    target_id: i32,
    target_offset: u64,
    length: u64,
}

/// `transfer_status_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TransferStatus {
    status: c_int,
    transferred_bytes: u64,
}

/// `buffer_entry_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BufferEntry {
    addr: *mut c_void,
    length: usize,
}

/// `notify_msg_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NotifyMsg {
    name: *mut c_char,
    msg: *mut c_char,
}

/// `nic_load_stat_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NicLoadStat {
    name: [c_char; 64],
    queued_bytes: u64,
    bandwidth: f64,
}

const INVALID_ARGUMENT: c_int = -1;

type Outcome<T> = Result<T, EngineError>;

fn missing(what: &str) -> EngineError {
    EngineError::InvalidArgument(format!("{what} is NULL"))
}

/// Runs the body of a call; says why it failed.
fn call<T>(name: &str, failed: impl FnOnce(c_int) -> T, body: impl FnOnce() -> Outcome<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            say(&format!("{name}: {error}"));
            failed(error.code())
        }
        Err(_) => {
            say(&format!("{name}: internal error, please report it"));
            failed(INVALID_ARGUMENT)
        }
    }
}

fn say(line: &str) {
    let level = environment::variable("MC_LOG_LEVEL").unwrap_or_default();
    if environment::log_level(&level) != Some("off") {
        eprintln!("mooncake: {line}");
    }
}

/// # Safety
/// `engine` is null, or of `createTransferEngine` and not destroyed.
unsafe fn handle<'a>(engine: *mut c_void) -> Outcome<&'a Handle> {
    // SAFETY: the caller's word.
    unsafe { engine.cast::<Handle>().as_ref() }.ok_or_else(|| missing("the engine"))
}

/// # Safety
/// `text` is null, or a C string that stays as it is during the call.
unsafe fn text(text: *const c_char, what: &str) -> Outcome<String> {
    if text.is_null() {
        return Err(missing(what));
    }
    // SAFETY: the caller's word.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// # Safety
/// `list` has `len` elements that stay as they are during the call.
unsafe fn slice<'a, T>(list: *const T, len: usize, what: &str) -> Outcome<&'a [T]> {
    match (list.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(missing(what)),
        // SAFETY: the caller's word.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(list, len) }),
    }
}

fn range(addr: *mut c_void, len: usize) -> ForeignRange {
    // SAFETY: callers of the C interface vouch for what they name: memory of theirs that stays mapped while it is registered
    // or moved, and that nobody else uses meanwhile.
    unsafe { ForeignRange::new(addr.expose_provenance(), len) }
}

/// # Safety
/// The texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn createTransferEngine(
    metadata_conn_string: *const c_char,
    local_server_name: *const c_char,
    ip_or_host_name: *const c_char,
    _rpc_port: u64,
    _auto_discover: c_int,
) -> *mut c_void {
    call(
        "createTransferEngine",
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller's word, for all three.
            let (metadata, name) = unsafe {
                (text(metadata_conn_string, "metadata_conn_string")?, text(local_server_name, "local_server_name")?)
            };
            // SAFETY: as above.
            let address = unsafe { text(ip_or_host_name, "ip_or_host_name") }.unwrap_or_default();
            let mut options = EngineOptions::default().from_env(environment::variable)?;
            if options.advertise.is_none() {
                options.advertise = address.parse().ok();
            }
            let cluster = environment::variable("MC_METADATA_CLUSTER_ID").unwrap_or_default();
            let engine = Engine::connect(&metadata, &name, options, &cluster)?;
            Ok(Box::into_raw(Box::new(Handle { engine, private: Mutex::default() })).cast())
        },
    )
}

/// # Safety
/// `engine` is null, or of `createTransferEngine`; nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn destroyTransferEngine(engine: *mut c_void) {
    call(
        "destroyTransferEngine",
        |_| (),
        || {
            if !engine.is_null() {
                // SAFETY: made by `Box::into_raw`, and given up by the caller.
                drop(unsafe { Box::from_raw(engine.cast::<Handle>()) });
            }
            Ok(())
        },
    );
}

/// # Safety
/// As for every call below: `engine` is null, or of `createTransferEngine` and not destroyed; texts are null or C strings;
/// lists have as many elements as is said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn discoverTopology(engine: *mut c_void) -> c_int {
    // SAFETY: the caller's word.
    call("discoverTopology", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`]; `buf_out` has `buf_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getLocalIpAndPort(engine: *mut c_void, buf_out: *mut c_char, buf_len: usize) -> c_int {
    call(
        "getLocalIpAndPort",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let handle = unsafe { handle(engine)? };
            let address = handle.engine.address();
            // SAFETY: the caller's word.
            unsafe { put_text(&address, buf_out, buf_len)? };
            Ok(0)
        },
    )
}

/// Copies a text and a NUL, cut to the room that there is; gives its whole length.
///
/// # Safety
/// `into` is null, or has `room` bytes.
unsafe fn put_text(text: &str, into: *mut c_char, room: usize) -> Outcome<usize> {
    if into.is_null() || room == 0 {
        return Err(missing("the buffer for the text"));
    }
    let len = text.len().min(room - 1);
    // SAFETY: `len + 1` bytes at most `room`, and texts of ours do not lie in buffers of the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, len);
        *into.add(len) = 0;
    }
    Ok(text.len())
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn installTransport(
    engine: *mut c_void,
    proto: *const c_char,
    _args: *mut *mut c_void,
) -> *mut c_void {
    call(
        "installTransport",
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller's word.
            let (_, proto) = unsafe { (handle(engine)?, text(proto, "proto")?) };
            match proto.as_str() {
                // Not null, and nothing that anybody could use.
                "tcp" | "rdma" => Ok(engine),
                other => Err(EngineError::InvalidArgument(format!("protocol {other:?}: this version has tcp"))),
            }
        },
    )
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uninstallTransport(engine: *mut c_void, _proto: *const c_char) -> c_int {
    // SAFETY: the caller's word.
    call("uninstallTransport", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openSegment(engine: *mut c_void, segment_name: *const c_char) -> i32 {
    call(
        "openSegment",
        |_| -1,
        || {
            // SAFETY: the caller's word.
            let (handle, name) = unsafe { (handle(engine)?, text(segment_name, "segment_name")?) };
            handle.engine.open(&name).map(|peer| peer.0 as i32)
        },
    )
}

/// As `openSegment`: what turns out old is fetched anew by itself.
///
/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openSegmentNoCache(engine: *mut c_void, segment_name: *const c_char) -> i32 {
    // SAFETY: the caller's word.
    unsafe { openSegment(engine, segment_name) }
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closeSegment(engine: *mut c_void, _segment_id: i32) -> c_int {
    // SAFETY: the caller's word.
    call("closeSegment", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn removeLocalSegment(engine: *mut c_void, _segment_name: *const c_char) -> c_int {
    // SAFETY: the caller's word.
    call("removeLocalSegment", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncSegmentCache(engine: *mut c_void) -> c_int {
    // SAFETY: the caller's word.
    call("syncSegmentCache", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warmupEfaSegment(engine: *mut c_void, segment_name: *const c_char) -> c_int {
    // SAFETY: the caller's word.
    if unsafe { openSegment(engine, segment_name) } < 0 { INVALID_ARGUMENT } else { 0 }
}

/// # Safety
/// See [`discoverTopology`]; the memory stays until it is unregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn registerLocalMemory(
    engine: *mut c_void,
    addr: *mut c_void,
    length: usize,
    location: *const c_char,
    remote_accessible: c_int,
) -> c_int {
    call(
        "registerLocalMemory",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let (handle, location) = unsafe { (handle(engine)?, text(location, "location")?) };
            if remote_accessible == 0 {
                // A transfer's own end needs no registration.
                handle.private.lock().insert(addr.addr());
                return Ok(0);
            }
            handle.engine.register(&[range(addr, length)], &location).map(|()| 0)
        },
    )
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregisterLocalMemory(engine: *mut c_void, addr: *mut c_void) -> c_int {
    call(
        "unregisterLocalMemory",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let handle = unsafe { handle(engine)? };
            if handle.private.lock().remove(&addr.addr()) {
                return Ok(0);
            }
            handle.engine.unregister(addr.addr()).map(|()| 0)
        },
    )
}

/// # Safety
/// See [`registerLocalMemory`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn registerLocalMemoryBatch(
    engine: *mut c_void,
    buffer_list: *mut BufferEntry,
    buffer_len: usize,
    location: *const c_char,
) -> c_int {
    call(
        "registerLocalMemoryBatch",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let (handle, location, list) = unsafe {
                (handle(engine)?, text(location, "location")?, slice(buffer_list, buffer_len, "buffer_list")?)
            };
            let ranges: Vec<ForeignRange> = list.iter().map(|entry| range(entry.addr, entry.length)).collect();
            handle.engine.register(&ranges, &location).map(|()| 0)
        },
    )
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregisterLocalMemoryBatch(
    engine: *mut c_void,
    addr_list: *mut *mut c_void,
    addr_len: usize,
) -> c_int {
    call(
        "unregisterLocalMemoryBatch",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let (handle, list) = unsafe { (handle(engine)?, slice(addr_list, addr_len, "addr_list")?) };
            let addresses: Vec<usize> = list.iter().map(|addr| addr.addr()).collect();
            handle.engine.unregister_all(&addresses).map(|()| 0)
        },
    )
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allocateBatchID(engine: *mut c_void, batch_size: usize) -> u64 {
    // SAFETY: the caller's word.
    call("allocateBatchID", |_| u64::MAX, || Ok(unsafe { handle(engine)? }.engine.allocate(batch_size).0))
}

/// # Safety
/// See [`discoverTopology`]; the memory of the requests stays until they have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submitTransfer(
    engine: *mut c_void,
    batch_id: u64,
    entries: *mut TransferRequest,
    count: usize,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe { submit("submitTransfer", engine, batch_id, entries, count, None) }
}

/// # Safety
/// See [`submitTransfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submitTransferWithNotify(
    engine: *mut c_void,
    batch_id: u64,
    entries: *mut TransferRequest,
    count: usize,
    notify_msg: NotifyMsg,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe { submit("submitTransferWithNotify", engine, batch_id, entries, count, Some(notify_msg)) }
}

/// # Safety
/// See [`submitTransfer`].
unsafe fn submit(
    name: &str,
    engine: *mut c_void,
    batch_id: u64,
    entries: *mut TransferRequest,
    count: usize,
    message: Option<NotifyMsg>,
) -> c_int {
    call(
        name,
        |code| -code,
        || {
            // SAFETY: the caller's word.
            let (handle, entries) = unsafe { (handle(engine)?, slice(entries, count, "entries")?) };
            let mut requests = Vec::with_capacity(entries.len());
            for entry in entries {
                let opcode = match entry.opcode {
                    0 => Opcode::Read,
                    1 => Opcode::Write,
                    other => {
                        return Err(EngineError::InvalidArgument(format!("opcode {other} is neither read nor write")));
                    }
                };
                let local = range(entry.source, entry.length as usize);
                requests.push((peer(entry.target_id)?, Request { opcode, local, remote: entry.target_offset }));
            }
            let notify = match (message, requests.first()) {
                // SAFETY: the caller's word.
                (Some(message), Some((peer, _))) => Some((*peer, unsafe { notify(message)? })),
                _ => None,
            };
            handle.engine.submit(BatchId(batch_id), requests, notify).map(|()| 0)
        },
    )
}

fn peer(id: i32) -> Outcome<PeerId> {
    u32::try_from(id).map(PeerId).map_err(|_| EngineError::InvalidArgument(format!("{id} is no segment")))
}

/// # Safety
/// The texts are null or C strings.
unsafe fn notify(message: NotifyMsg) -> Outcome<Notify> {
    // SAFETY: the caller's word.
    unsafe {
        Ok(Notify { name: text(message.name, "notify_msg.name")?, message: text(message.msg, "notify_msg.msg")? })
    }
}

/// # Safety
/// See [`discoverTopology`]; `status` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getTransferStatus(
    engine: *mut c_void,
    batch_id: u64,
    task_id: usize,
    status: *mut TransferStatus,
) -> c_int {
    call(
        "getTransferStatus",
        |code| -code,
        || {
            // SAFETY: the caller's word.
            let handle = unsafe { handle(engine)? };
            let found = handle.engine.task_status(BatchId(batch_id), task_id)?;
            if status.is_null() {
                return Err(missing("status"));
            }
            // SAFETY: the caller's word.
            unsafe { *status = TransferStatus { status: found.status as c_int, transferred_bytes: found.transferred } };
            Ok(0)
        },
    )
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeBatchID(engine: *mut c_void, batch_id: u64) -> c_int {
    call(
        "freeBatchID",
        |code| -code,
        || {
            // SAFETY: the caller's word.
            unsafe { handle(engine)? }.engine.free(BatchId(batch_id)).map(|()| 0)
        },
    )
}

/// # Safety
/// See [`discoverTopology`]; `size` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getNotifsFromEngine(engine: *mut c_void, size: *mut c_int) -> *mut NotifyMsg {
    call(
        "getNotifsFromEngine",
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller's word.
            let (handle, size) = unsafe { (handle(engine)?, size.as_mut().ok_or_else(|| missing("size"))?) };
            let owned = |text: String| CString::new(text.replace('\0', "")).unwrap_or_default().into_raw();
            let taken = handle.engine.take_notifies().into_iter();
            let all: Box<[NotifyMsg]> =
                taken.map(|notify| NotifyMsg { name: owned(notify.name), msg: owned(notify.message) }).collect();
            *size = c_int::try_from(all.len()).unwrap_or(c_int::MAX);
            Ok(if all.is_empty() { std::ptr::null_mut() } else { Box::into_raw(all).cast() })
        },
    )
}

/// # Safety
/// `msgs` and `size` are of `getNotifsFromEngine`, and are not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeNotifsMsgBuf(msgs: *mut NotifyMsg, size: c_int) {
    let len = usize::try_from(size).unwrap_or(0);
    if msgs.is_null() || len == 0 {
        return;
    }
    // SAFETY: as it was made there, texts included.
    unsafe {
        let all = Box::from_raw(std::ptr::slice_from_raw_parts_mut(msgs, len));
        for message in &all {
            drop(CString::from_raw(message.name));
            drop(CString::from_raw(message.msg));
        }
    }
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn genNotifyInEngine(engine: *mut c_void, target_id: u64, notify_msg: NotifyMsg) -> c_int {
    call(
        "genNotifyInEngine",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let (handle, message) = unsafe { (handle(engine)?, notify(notify_msg)?) };
            let peer = peer(i32::try_from(target_id).unwrap_or(-1))?;
            handle.engine.notify(peer, &message).map(|()| 0)
        },
    )
}

/// # Safety
/// See [`discoverTopology`]; `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getNicLoadStats(
    engine: *mut c_void,
    _stats: *mut NicLoadStat,
    _capacity: usize,
    count: *mut usize,
) -> c_int {
    call(
        "getNicLoadStats",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let (_, count) = unsafe { (handle(engine)?, count.as_mut().ok_or_else(|| missing("count"))?) };
            *count = 0;
            Ok(0)
        },
    )
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enableGracefulShutdown(engine: *mut c_void) -> c_int {
    // SAFETY: the caller's word.
    call("enableGracefulShutdown", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`]; `buf_out` has `buf_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn showLinks(engine: *mut c_void, buf_out: *mut c_char, buf_len: usize, json: c_int) -> c_int {
    call(
        "showLinks",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let handle = unsafe { handle(engine)? };
            let shown = handle.engine.show_links(json != 0);
            // SAFETY: the caller's word.
            unsafe { put_text(&shown, buf_out, buf_len) }.map(|len| c_int::try_from(len).unwrap_or(c_int::MAX))
        },
    )
}
