//! The transfer engine for C, under the names, types and codes of Mooncake's `transfer_engine_c.h`.
//!
//! The header, `include/transfer_engine_c.h`, is made of this file (`make reference`): of its constants, types,
//! `#[repr(C)]` structures and functions, each with its text up to the word on safety. A test compiles a program with
//! it.
//!
//! A caller's mistake is a code where it can be found out: null pointers are, and batches and peers of no engine.
//! Engines that were destroyed are not. A panic never crosses into C.

#![allow(non_camel_case_types, reason = "the names are C's")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use mooncake_memory::ForeignRange;
use mooncake_settings::environment;
use mooncake_transfer_engine::{
    BatchId, Engine, EngineError, EngineOptions, Notify, Opcode, PeerId, Protocol, Request, Status, Topology,
};
use tracing::Dispatch;
use tracing::level_filters::LevelFilter;

/// An engine, of `createTransferEngine`.
pub type transfer_engine_t = *mut c_void;
/// What `installTransport` gives: nothing that a caller could use.
pub type transport_t = *mut c_void;
/// A peer's segment.
pub type segment_id_t = i32;
/// The same.
pub type segment_handle_t = i32;
/// A batch.
pub type batch_id_t = u64;

/// The engine's own segment.
pub const LOCAL_SEGMENT: segment_id_t = 0;
/// No batch.
pub const INVALID_BATCH: batch_id_t = u64::MAX;

/// From the peer's memory to this process's.
pub const OPCODE_READ: c_int = 0;
/// From this process's memory to the peer's.
pub const OPCODE_WRITE: c_int = 1;

/// Not done yet.
pub const STATUS_WAITING: c_int = 0;
/// Mooncake's; never given here.
pub const STATUS_PENDING: c_int = 1;
/// Mooncake's; never given here.
pub const STATUS_INVALID: c_int = 2;
/// Mooncake's; never given here.
pub const STATUS_CANCELED: c_int = 3;
/// All its bytes are in place.
pub const STATUS_COMPLETED: c_int = 4;
/// Mooncake's; never given here: callers take it for a success.
pub const STATUS_TIMEOUT: c_int = 5;
/// It failed, or was not done by its deadline. Nothing touches its memory any more.
pub const STATUS_FAILED: c_int = 6;

const _: () = assert!(
    OPCODE_READ == Opcode::Read as c_int
        && OPCODE_WRITE == Opcode::Write as c_int
        && STATUS_WAITING == Status::Waiting as c_int
        && STATUS_COMPLETED == Status::Completed as c_int
        && STATUS_TIMEOUT == Status::Timeout as c_int
        && STATUS_FAILED == Status::Failed as c_int
        && LOCAL_SEGMENT == PeerId::SELF.0 as segment_id_t
);

/// What a `transfer_engine_t` points at.
pub struct Handle {
    engine: Engine,
}

/// What is to be moved.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TransferRequest {
    opcode: c_int,
    /// This process's end.
    source: *mut c_void,
    /// Of `openSegment`; 0 is the own segment.
    target_id: segment_id_t,
    /// Address in the peer's process.
    target_offset: u64,
    length: u64,
}

/// How far a request is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TransferStatus {
    status: c_int,
    transferred_bytes: u64,
}

/// A range of memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BufferEntry {
    addr: *mut c_void,
    length: usize,
}

/// A message, of two C strings.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NotifyMsg {
    name: *mut c_char,
    msg: *mut c_char,
}

/// A network device's load.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NicLoadStat {
    device_name: [c_char; 64],
    inflight_bytes: u64,
    ewma_bandwidth_bps: f64,
}

const INVALID_ARGUMENT: c_int = -1;

/// Most entries of a list: a longer one is a mistake, and no memory of a process holds what it would take.
const ENTRIES_MAX: usize = 1 << 24;

type Outcome<T> = Result<T, EngineError>;

fn missing(what: &str) -> EngineError {
    EngineError::InvalidArgument(format!("{what} is NULL"))
}

/// Runs the body of a call; says why it failed.
fn call<T>(name: &str, failed: impl FnOnce(c_int) -> T, body: impl FnOnce() -> Outcome<T>) -> T {
    match catch_unwind(AssertUnwindSafe(|| tracing::dispatcher::with_default(log(), body))) {
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
    if level() != "off" {
        // A closed stderr is no reason for a panic.
        let _ = writeln!(std::io::stderr(), "mooncake: {line}");
    }
}

/// What the engine says of its own accord goes to stderr, as Mooncake's does; the process's own log is its
/// application's.
fn log() -> &'static Dispatch {
    static LOG: OnceLock<Dispatch> = OnceLock::new();
    LOG.get_or_init(|| {
        let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
        // It would say on stderr that it could not write to stderr, and panic.
        let lines = lines.log_internal_errors(false);
        lines.with_max_level(level().parse().unwrap_or(LevelFilter::INFO)).finish().into()
    })
}

fn level() -> &'static str {
    environment::log_level(&environment::variable("MC_LOG_LEVEL").unwrap_or_default()).unwrap_or("info")
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
        (_, len) if len > ENTRIES_MAX => {
            Err(EngineError::InvalidArgument(format!("{what}: {len} entries, of at most {ENTRIES_MAX} in one call")))
        }
        // SAFETY: the caller's word.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(list, len) }),
    }
}

fn range(addr: *mut c_void, len: usize) -> ForeignRange {
    // SAFETY: callers of the C interface vouch for what they name: memory of theirs that stays mapped while it is
    // registered or moved, and that nothing else uses meanwhile.
    unsafe { ForeignRange::new(addr.expose_provenance(), len) }
}

/// Starts an engine. metadata_conn_string: P2PHANDSHAKE, or a URL of http:// or https://. ip_or_host_name: address or
/// name that peers reach this host by, where the metadata tells them; may be NULL or "". The ports are taken from
/// MC_MIN_RPC_PORT to MC_MAX_RPC_PORT whatever rpc_port says; getLocalIpAndPort tells which. NULL on failure.
///
/// # Safety
/// The texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn createTransferEngine(
    metadata_conn_string: *const c_char,
    local_server_name: *const c_char,
    ip_or_host_name: *const c_char,
    _rpc_port: u64,
    _auto_discover: c_int,
) -> transfer_engine_t {
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
            EngineOptions::warn_ignored_variables();
            let mut options = EngineOptions::default().from_env(environment::variable)?;
            if options.advertise.is_none() && !address.is_empty() {
                options.advertise = Some(address);
            }
            let cluster = environment::variable("MC_METADATA_CLUSTER_ID").unwrap_or_default();
            let engine = Engine::connect(&metadata, &name, options, &cluster)?;
            Ok(Box::into_raw(Box::new(Handle { engine })).cast())
        },
    )
}

/// Ends it. Nothing else may use it meanwhile or afterwards.
///
/// # Safety
/// `engine` is null, or of `createTransferEngine`; nothing uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn destroyTransferEngine(engine: transfer_engine_t) {
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
/// As for every call below: `engine` is null, or of `createTransferEngine` and not destroyed; texts are null or C
/// strings; lists have as many elements as is said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn discoverTopology(engine: transfer_engine_t) -> c_int {
    // SAFETY: the caller's word.
    call("discoverTopology", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`]; `buf_out` has `buf_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getLocalIpAndPort(engine: transfer_engine_t, buf_out: *mut c_char, buf_len: usize) -> c_int {
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

/// Copies a text and a NUL, cut to the room that there is.
///
/// # Safety
/// `into` is null, or has `room` bytes.
unsafe fn put_text(text: &str, into: *mut c_char, room: usize) -> Outcome<()> {
    if into.is_null() || room == 0 {
        return Err(missing("the buffer for the text"));
    }
    let len = text.len().min(room - 1);
    // SAFETY: `len + 1` bytes at most `room`, and texts of ours do not lie in buffers of the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, len);
        *into.add(len) = 0;
    }
    Ok(())
}

/// Transports are chosen for each peer by themselves; "tcp" and "rdma" are taken, others give NULL. Of "rdma", which
/// this version has not, a line on stderr says that TCP is used instead. args may be NULL; if it is not, its first
/// element is NULL, or the matrix of devices as JSON, which takes the place of what is discovered. A text that is no
/// matrix gives NULL.
///
/// # Safety
/// See [`discoverTopology`]; `args` is null or has one element at least, null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn installTransport(
    engine: transfer_engine_t,
    proto: *const c_char,
    args: *mut *mut c_void,
) -> transport_t {
    call(
        "installTransport",
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller's word.
            let (handle, proto) = unsafe { (handle(engine)?, text(proto, "proto")?) };
            match Protocol::named(&proto)?.first() {
                Some(Protocol::Tcp) => {}
                Some(Protocol::Rdma) => say("installTransport: this version has no RDMA; tcp is used instead"),
                None => return Err(EngineError::InvalidArgument("proto is empty".into())),
            }
            // SAFETY: as above.
            let matrix = unsafe { args.as_ref() }.copied().unwrap_or(std::ptr::null_mut());
            if !matrix.is_null() {
                // SAFETY: as above.
                let matrix = unsafe { text(matrix.cast(), "the matrix")? };
                let matrix = Topology::parse(&matrix);
                let matrix = matrix.map_err(|error| EngineError::InvalidArgument(format!("the topology: {error}")))?;
                handle.engine.set_topology(matrix);
            }
            // Not null, and nothing that a caller could use.
            Ok(engine)
        },
    )
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uninstallTransport(engine: transfer_engine_t, _proto: *const c_char) -> c_int {
    // SAFETY: the caller's word.
    call("uninstallTransport", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// A peer by its name, -1 on failure.
///
/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openSegment(engine: transfer_engine_t, segment_name: *const c_char) -> segment_id_t {
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
pub unsafe extern "C" fn openSegmentNoCache(engine: transfer_engine_t, segment_name: *const c_char) -> segment_id_t {
    // SAFETY: the caller's word.
    unsafe { openSegment(engine, segment_name) }
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closeSegment(engine: transfer_engine_t, _segment_id: segment_id_t) -> c_int {
    // SAFETY: the caller's word.
    call("closeSegment", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn removeLocalSegment(engine: transfer_engine_t, _segment_name: *const c_char) -> c_int {
    // SAFETY: the caller's word.
    call("removeLocalSegment", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncSegmentCache(engine: transfer_engine_t) -> c_int {
    // SAFETY: the caller's word.
    call("syncSegmentCache", |code| code, || unsafe { handle(engine) }.map(|_| 0))
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warmupEfaSegment(engine: transfer_engine_t, segment_name: *const c_char) -> c_int {
    // SAFETY: the caller's word.
    if unsafe { openSegment(engine, segment_name) } < 0 { INVALID_ARGUMENT } else { 0 }
}

/// 0, or a negative code. Memory that is not remote_accessible is the local end of transfers alone: peers do not learn
/// of it, and are refused.
///
/// # Safety
/// See [`discoverTopology`]; the memory stays until it is unregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn registerLocalMemory(
    engine: transfer_engine_t,
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
            let ranges = [range(addr, length)];
            match remote_accessible {
                0 => handle.engine.register_local(&ranges, &location)?,
                _ => handle.engine.register(&ranges, &location)?,
            }
            Ok(0)
        },
    )
}

/// When it returns, neither this engine nor a peer touches that memory any more.
///
/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregisterLocalMemory(engine: transfer_engine_t, addr: *mut c_void) -> c_int {
    call(
        "unregisterLocalMemory",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let handle = unsafe { handle(engine)? };
            handle.engine.unregister(addr.addr()).map(|()| 0)
        },
    )
}

/// # Safety
/// See [`registerLocalMemory`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn registerLocalMemoryBatch(
    engine: transfer_engine_t,
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

/// The same for several; all that can be are given up.
///
/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregisterLocalMemoryBatch(
    engine: transfer_engine_t,
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

/// A batch for so many requests. The calls on batches give 0, or a positive code; one that was freed, or never given
/// out, is an error of its own.
///
/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allocateBatchID(engine: transfer_engine_t, batch_size: usize) -> batch_id_t {
    // SAFETY: the caller's word.
    call("allocateBatchID", |_| INVALID_BATCH, || Ok(unsafe { handle(engine)? }.engine.allocate(batch_size).0))
}

/// # Safety
/// See [`discoverTopology`]; the memory of the requests stays until they have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submitTransfer(
    engine: transfer_engine_t,
    batch_id: batch_id_t,
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
    engine: transfer_engine_t,
    batch_id: batch_id_t,
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
                    OPCODE_READ => Opcode::Read,
                    OPCODE_WRITE => Opcode::Write,
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
    engine: transfer_engine_t,
    batch_id: batch_id_t,
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
            let now = TransferStatus { status: number_of(found.status), transferred_bytes: found.transferred };
            // SAFETY: the caller's word.
            unsafe { *status = now };
            Ok(0)
        },
    )
}

/// A caller that polls asks whether it has failed, and then whether it is under way: a third answer would be read as
/// bytes that have come.
fn number_of(status: Status) -> c_int {
    match status {
        Status::Waiting => STATUS_WAITING,
        Status::Completed => STATUS_COMPLETED,
        Status::Timeout | Status::Failed => STATUS_FAILED,
    }
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeBatchID(engine: transfer_engine_t, batch_id: batch_id_t) -> c_int {
    call(
        "freeBatchID",
        |code| -code,
        || {
            // SAFETY: the caller's word.
            unsafe { handle(engine)? }.engine.free(BatchId(batch_id)).map(|()| 0)
        },
    )
}

/// Messages of peers, oldest first; freeNotifsMsgBuf gives them back. NULL if there is none.
///
/// # Safety
/// See [`discoverTopology`]; `size` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getNotifsFromEngine(engine: transfer_engine_t, size: *mut c_int) -> *mut NotifyMsg {
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

/// 0.
///
/// # Safety
/// `msgs` and `size` are of `getNotifsFromEngine`, and are not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeNotifsMsgBuf(msgs: *mut NotifyMsg, size: c_int) -> c_int {
    let len = usize::try_from(size).unwrap_or(0);
    if msgs.is_null() || len == 0 {
        return 0;
    }
    // SAFETY: as it was made there, texts included.
    unsafe {
        let all = Box::from_raw(std::ptr::slice_from_raw_parts_mut(msgs, len));
        for message in &all {
            drop(CString::from_raw(message.name));
            drop(CString::from_raw(message.msg));
        }
    }
    0
}

/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn genNotifyInEngine(engine: transfer_engine_t, target_id: u64, notify_msg: NotifyMsg) -> c_int {
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

/// The load of each network device. count: how many there is room for; then how many there are, which is none in this
/// version. All three are needed: -1 without.
///
/// # Safety
/// See [`discoverTopology`]; `stats` has room for `count`, which is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getNicLoadStats(
    engine: transfer_engine_t,
    stats: *mut NicLoadStat,
    count: *mut usize,
) -> c_int {
    call(
        "getNicLoadStats",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let (_, count) = unsafe { (handle(engine)?, count.as_mut().ok_or_else(|| missing("count"))?) };
            if stats.is_null() {
                return Err(missing("stats"));
            }
            *count = 0;
            Ok(0)
        },
    )
}

/// An engine's entries in the metadata service are replaced by its successor; nothing has to be caught.
///
/// # Safety
/// See [`discoverTopology`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enableGracefulShutdown(engine: transfer_engine_t) {
    // SAFETY: the caller's word.
    call("enableGracefulShutdown", |_| (), || unsafe { handle(engine) }.map(|_| ()));
}

/// How bytes go to each peer, as JSON or as a table, cut to the room that there is. 0.
///
/// # Safety
/// See [`discoverTopology`]; `buf_out` has `buf_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn showLinks(
    engine: transfer_engine_t,
    buf_out: *mut c_char,
    buf_len: usize,
    json: c_int,
) -> c_int {
    call(
        "showLinks",
        |code| code,
        || {
            // SAFETY: the caller's word.
            let handle = unsafe { handle(engine)? };
            let shown = handle.engine.show_links(json != 0);
            // SAFETY: the caller's word.
            unsafe { put_text(&shown, buf_out, buf_len)? };
            Ok(0)
        },
    )
}
