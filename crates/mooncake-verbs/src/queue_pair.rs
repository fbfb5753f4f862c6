//! Ends of connections.

use std::fmt;
use std::mem::{ManuallyDrop, zeroed};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mooncake_os::forked;

use crate::abi::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, IbvGid, IbvSendWr};
use crate::abi::{
    IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr, QP_ACCESS_FLAGS, QP_AV, QP_DEST_QPN, QP_MAX_DEST_RD_ATOMIC,
    QP_MAX_QP_RD_ATOMIC, QP_MIN_RNR_TIMER, QP_PATH_MTU, QP_PKEY_INDEX, QP_PORT, QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN,
    QP_SQ_PSN, QP_STATE, QP_TIMEOUT, QPS_ERR, QPS_INIT, QPS_RTR, QPS_RTS, QPT_RC,
};
use crate::completion_queue::CompletionQueue;
use crate::context::Mtu;
use crate::domain::Domain;
use crate::error::{PostError, VerbsError};
use crate::gid::Gid;
use crate::request::Chain;

/// One end of a reliable connection: it posts requests, and answers those of its peer in its domain's regions.
///
/// Dropping it destroys it. Where a user must know that this has worked, or may take long, there is
/// [`destroy`](QueuePair::destroy).
pub struct QueuePair {
    domain: Arc<Domain>,
    queue: Arc<CompletionQueue>,
    handle: NonNull<IbvQp>,
    options: QueuePairOptions,
}

// SAFETY: the library locks for itself.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// What a queue pair has room for. The device may give more, never less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// Requests that have not completed.
    pub send_depth: u32,
    /// Pieces of local memory of one request.
    pub pieces: u32,
    /// Bytes that a request takes along.
    pub inline_bytes: u32,
}

/// What a queue pair is connected by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// This side's port, from 1 on.
    pub port: u8,
    /// Which address of this side's port is the sender.
    pub gid_index: u8,
    /// The partition, by its index in the port's table.
    pub partition: u16,
    /// The peer's address.
    pub peer_gid: Gid,
    /// The peer's address in a subnet of InfiniBand.
    pub peer_lid: u16,
    /// The number of the peer's queue pair.
    pub peer_queue_pair: u32,
    /// The same at both ends.
    pub mtu: Mtu,
    /// The first packet's number in each direction, of 24 bits. The peer has them the other way round.
    pub first_packets: (u32, u32),
    /// READs under way that this side asks for, and that it answers.
    pub reads: (u8, u8),
    /// How an operator marks the packets: traffic class and service level.
    pub traffic: (u8, u8),
    /// How long a packet is waited for: 4.096 us times two to the power of it.
    pub timeout: u8,
    /// How often it is sent again, 7 at most.
    pub retries: u8,
}

impl QueuePair {
    /// A new one that is not connected.
    pub fn new(
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        options: QueuePairOptions,
    ) -> Result<QueuePair, VerbsError> {
        let context = domain.context();
        context.alive("ibv_create_qp")?;
        assert!(Arc::ptr_eq(context, queue.context()), "a queue of another device");
        // SAFETY: numbers and pointers, for which 0 is a value.
        let mut init: IbvQpInitAttr = unsafe { zeroed() };
        init.send_cq = queue.handle().as_ptr();
        init.recv_cq = queue.handle().as_ptr();
        init.cap = IbvQpCap {
            max_send_wr: options.send_depth,
            // Nothing is ever received; some devices take no 0.
            max_recv_wr: 1,
            max_send_sge: options.pieces,
            max_recv_sge: 1,
            max_inline_data: options.inline_bytes,
        };
        init.qp_type = QPT_RC;
        // SAFETY: a domain and a queue of the same context, both alive.
        let handle = unsafe { (context.library().calls.create_qp)(domain.handle().as_ptr(), &raw mut init) };
        let handle = NonNull::new(handle).ok_or_else(|| context.refused("ibv_create_qp"))?;
        let given = QueuePairOptions {
            send_depth: init.cap.max_send_wr.max(options.send_depth),
            pieces: init.cap.max_send_sge.max(options.pieces),
            inline_bytes: init.cap.max_inline_data.max(options.inline_bytes),
        };
        Ok(QueuePair { domain: domain.clone(), queue: queue.clone(), handle, options: given })
    }

    /// What it has room for.
    pub fn options(&self) -> QueuePairOptions {
        self.options
    }

    /// Its number at this device. A number comes again when its queue pair is gone.
    pub fn number(&self) -> u32 {
        // SAFETY: the library has set it, and does not change it.
        unsafe { (*self.handle.as_ptr()).qp_num }
    }

    /// Whose memory it reaches.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Where its completions are told.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Connects it, for once. Behind this the peer's requests are answered, and own ones may be posted.
    pub fn connect(&self, to: &Connection) -> Result<(), VerbsError> {
        // SAFETY: numbers, for which 0 is a value.
        let mut attr: IbvQpAttr = unsafe { zeroed() };
        attr.qp_state = QPS_INIT;
        attr.pkey_index = to.partition;
        attr.port_num = to.port;
        attr.qp_access_flags = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;
        self.modify("ibv_modify_qp to INIT", attr, QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS)?;

        attr.qp_state = QPS_RTR;
        attr.path_mtu = to.mtu.code();
        attr.dest_qp_num = to.peer_queue_pair;
        attr.rq_psn = to.first_packets.1;
        attr.max_dest_rd_atomic = to.reads.1;
        attr.min_rnr_timer = 12;
        attr.ah_attr.grh.dgid = IbvGid(to.peer_gid.0);
        attr.ah_attr.grh.sgid_index = to.gid_index;
        attr.ah_attr.grh.hop_limit = 16;
        attr.ah_attr.grh.traffic_class = to.traffic.0;
        attr.ah_attr.dlid = to.peer_lid;
        attr.ah_attr.sl = to.traffic.1;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = to.port;
        let ready_to_receive = QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", attr, QP_STATE | ready_to_receive)?;

        attr.qp_state = QPS_RTS;
        attr.timeout = to.timeout;
        attr.retry_cnt = to.retries;
        attr.rnr_retry = 7;
        attr.sq_psn = to.first_packets.0;
        attr.max_rd_atomic = to.reads.0;
        let ready_to_send = QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", attr, QP_STATE | ready_to_send)
    }

    /// Moves it to the error state: what has not completed is flushed, each with a completion.
    pub fn stop(&self) -> Result<(), VerbsError> {
        // SAFETY: numbers, for which 0 is a value.
        let mut attr: IbvQpAttr = unsafe { zeroed() };
        attr.qp_state = QPS_ERR;
        self.modify("ibv_modify_qp to ERR", attr, QP_STATE)
    }

    /// Whether it is in the error state, by the device's word.
    pub fn has_failed(&self) -> Result<bool, VerbsError> {
        let context = self.domain.context();
        context.alive("ibv_query_qp")?;
        // SAFETY: numbers and pointers, for which 0 is a value.
        let (mut attr, mut init): (IbvQpAttr, IbvQpInitAttr) = unsafe { (zeroed(), zeroed()) };
        // SAFETY: a queue pair that is alive, and room for both answers.
        let rc =
            unsafe { (context.library().calls.query_qp)(self.handle.as_ptr(), &raw mut attr, QP_STATE, &raw mut init) };
        context.check("ibv_query_qp", rc)?;
        Ok(attr.qp_state == QPS_ERR)
    }

    /// Posts a chain's requests, in their order, and empties it. The device works on them from now on: their memory is
    /// its own until they have completed, or the queue pair is destroyed.
    pub fn post(&self, chain: &mut Chain) -> Result<(), PostError> {
        let context = self.domain.context();
        if let Err(source) = context.alive("ibv_post_send") {
            return Err(PostError { posted: 0, source });
        }
        let first = chain.link();
        if first.is_null() {
            return Ok(());
        }
        // SAFETY: the provider has set its call when it made the context.
        let call = unsafe { (*context.handle().as_ptr()).ops.post_send }.expect("every provider has it");
        let mut refused: *mut IbvSendWr = ptr::null_mut();
        // SAFETY: a queue pair that is alive, and a list whose requests and pieces stay where they are meanwhile. What
        // the device may touch its regions' makers have allowed, and it checks each piece by its key.
        let rc = unsafe { call(self.handle.as_ptr(), first, &raw mut refused) };
        let done = context.check("ibv_post_send", rc).map_err(|source| {
            // One that does not say which it refused may have taken all.
            let posted = if refused.is_null() { chain.len() } else { chain.position(refused) };
            PostError { posted, source }
        });
        chain.clear();
        done
    }

    /// Destroys it: behind this its peer's packets are refused, nothing of it is sent, and it touches no memory. It may
    /// take as long as the device does.
    pub fn destroy(self) -> Result<(), (QueuePair, VerbsError)> {
        if let Err(error) = self.domain.context().alive("ibv_destroy_qp").and_then(|()| self.destroy_handle()) {
            return Err((self, error));
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: each read once, of a value that is never dropped.
        unsafe {
            drop(ptr::read(&raw const this.queue));
            drop(ptr::read(&raw const this.domain));
        }
        Ok(())
    }

    fn destroy_handle(&self) -> Result<(), VerbsError> {
        let context = self.domain.context();
        // SAFETY: made once, destroyed once that this has worked.
        let rc = unsafe { (context.library().calls.destroy_qp)(self.handle.as_ptr()) };
        context.check("ibv_destroy_qp", rc)
    }

    fn modify(&self, verb: &'static str, mut attr: IbvQpAttr, mask: i32) -> Result<(), VerbsError> {
        let context = self.domain.context();
        context.alive(verb)?;
        // SAFETY: a queue pair that is alive, and what the mask says is set.
        let rc = unsafe { (context.library().calls.modify_qp)(self.handle.as_ptr(), &raw mut attr, mask) };
        context.check(verb, rc)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        if let Err(error) = self.destroy_handle() {
            // It may touch its domain's memory still.
            std::mem::forget((self.domain.clone(), self.queue.clone()));
            tracing::error!(%error, number = self.number(), "a queue pair stays until this process ends");
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair {}", self.number())
    }
}
