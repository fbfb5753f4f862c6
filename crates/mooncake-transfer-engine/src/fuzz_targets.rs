//! All that reads bytes of others, each as a function of bytes: one list for the fuzzers in `fuzz/` and for the tests
//! here.
//!
//! None may panic, and what is read must be written as it was.

use mooncake_net::join_host_port;
use mooncake_test_support::FuzzTarget;

use mooncake_rdma::Topology;

use crate::metadata::read_rpc_meta;
use crate::protocol::handshake::{Message, NotifyBody, missing};
use crate::protocol::peer_name;
use crate::protocol::same_host::{
    self, ANSWER_LEN, Answer, BOUNDS_LEN, Bounds, HELLO_LEN, Hello, HelloReply, Piece, REPLY_HELLO_LEN, REQUEST_LEN,
};
use crate::protocol::segment_document::SegmentDocument;
use crate::protocol::tcp::{Frame, HEADER_LEN, STATUS_LEN, Status};
use crate::shared_segment::Ticket;

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 8] = [
    FuzzTarget { name: "handshake", read: handshake, seeds: handshake_seeds },
    FuzzTarget { name: "segment_document", read: segment_document, seeds: segment_document_seeds },
    FuzzTarget { name: "data_frame", read: data_frame, seeds: data_frame_seeds },
    FuzzTarget { name: "host_frame", read: host_frame, seeds: host_frame_seeds },
    FuzzTarget { name: "topology", read: topology, seeds: topology_seeds },
    FuzzTarget { name: "rpc_meta", read: rpc_meta, seeds: rpc_meta_seeds },
    FuzzTarget { name: "peer_name", read: peer_name, seeds: peer_name_seeds },
    FuzzTarget { name: "segment_ticket", read: segment_ticket, seeds: segment_ticket_seeds },
];

fn handshake(bytes: &[u8]) {
    let wanted = missing(bytes, 1 << 20);
    assert!(wanted.is_err() || wanted.is_ok_and(|wanted| wanted <= (1 << 20) + 8));
    if let Some(message) = Message::decode(bytes.to_vec()) {
        let again = message.encode();
        assert_eq!(u64::from_le_bytes(std::array::from_fn(|at| again[at])) as usize, again.len() - 8);
        assert_eq!(&again[8..], bytes);
        if let Ok(body) = serde_json::from_slice::<NotifyBody>(&message.json) {
            assert!(body.name.len() + body.notify_msg.len() <= bytes.len());
        }
    }
}

fn handshake_seeds() -> Vec<Vec<u8>> {
    let kinds = [0, 1, 2, 3, 0xfe, b'{'];
    let json = br#"{"name":"a","notify_msg":"\u00e9 done"}"#;
    kinds.iter().map(|kind| [&[*kind][..], json].concat()).chain([9_u64.to_le_bytes().to_vec()]).collect()
}

fn segment_document(bytes: &[u8]) {
    if let Ok(read) = SegmentDocument::decode("a peer", bytes) {
        for buffer in &read.buffers {
            assert!(buffer.addr.checked_add(buffer.length).is_some() && buffer.addr > 0 && buffer.length > 0);
        }
        let _ = (read.engine_id(), read.protocol.has("tcp"));
        assert_eq!(SegmentDocument::decode("a peer", read.encode().as_bytes()).expect("it was read before"), read);
    }
}

fn segment_document_seeds() -> Vec<Vec<u8>> {
    let ours = r#""mooncake_rs":{"id":"00112233445566778899aabbccddeeff","boot":"b","unix":"u"}"#;
    let text = format!(
        r#"{{"name":"10.0.0.1:15001","protocol":["tcp","hip"],"tcp_data_host":"h","tcp_data_port":15999,
        "tcp_proto_version":2,"timestamp":"t","buffers":[{{"name":"n","addr":4096,"length":4096}}],{ours}}}"#
    );
    vec![text.into_bytes(), br#"{"name":"a","protocol":"tcp"}"#.to_vec()]
}

fn data_frame(bytes: &[u8]) {
    if let Some(raw) = bytes.first_chunk::<HEADER_LEN>()
        && let Some(frame) = Frame::decode(raw)
    {
        assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        if let Frame::Request(header) = frame {
            assert!(header.addr.checked_add(header.size).is_some());
        }
    }
    if let Some(raw) = bytes.first_chunk::<STATUS_LEN>()
        && let Some(status) = Status::decode(raw)
    {
        assert_eq!(Status::decode(&status.encode()), Some(status));
    }
}

fn data_frame_seeds() -> Vec<Vec<u8>> {
    use crate::protocol::tcp::Header;
    use crate::request::Opcode;

    let request = |opcode, v2| Frame::Request(Header { size: 4096, addr: 0x7f00_0000_1000, opcode, v2 });
    let extras = [Frame::Hello, Frame::Name, Frame::Sever].map(|frame| frame([7; 16]));
    let frames = [&[request(Opcode::Read, false), request(Opcode::Write, true)][..], &extras].concat();
    let statuses = [Status::Ok, Status::Rejected].map(|status| status.encode().to_vec());
    frames.iter().map(|frame| frame.encode().to_vec()).chain(statuses).collect()
}

fn host_frame(bytes: &[u8]) {
    if let Some(hello) = bytes.first_chunk::<HELLO_LEN>().and_then(Hello::decode) {
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
    if let Some(reply) = bytes.first_chunk::<REPLY_HELLO_LEN>().and_then(HelloReply::decode) {
        assert_eq!(HelloReply::decode(&reply.encode()), Some(reply));
    }
    if let Some(answer) = bytes.first_chunk::<ANSWER_LEN>().and_then(Answer::decode) {
        assert!(answer != Answer::Done || Answer::decode(&answer.encode()) == Some(answer));
    }
    if let Some(bounds) = bytes.first_chunk::<BOUNDS_LEN>().and_then(Bounds::decode) {
        assert_eq!(Bounds::decode(&bounds.encode()), Some(bounds));
        let end = bounds.start.checked_add(bounds.len).expect("a buffer ends");
        if let Some(block) = bounds.block {
            let block_end = block.start.checked_add(block.len).expect("a block ends");
            assert!(block.id != 0 && block.start <= bounds.start && end <= block_end);
        }
    }
    if let Some((wish, count)) = bytes.first_chunk::<REQUEST_LEN>().and_then(same_host::head) {
        assert!((1..=same_host::PIECES_MAX).contains(&count));
        let pieces = same_host::pieces(&bytes[REQUEST_LEN..]);
        if pieces.len() == count {
            assert!(bytes.starts_with(&same_host::request(wish, &pieces)));
        }
    }
}

fn host_frame_seeds() -> Vec<Vec<u8>> {
    let secret = same_host::Secret { addr: 4096, bytes: [3; same_host::SECRET_LEN] };
    let hello = Hello { target: [9; 16], secret }.encode().to_vec();
    let reply = HelloReply { welcome: same_host::Welcome::CanPull, secret }.encode().to_vec();
    let pieces = [Piece { to: 4096, from: 8192, len: 100 }, Piece { to: 1, from: 2, len: u64::MAX }];
    let request = same_host::request(same_host::Wish::Look, &pieces);
    let block = same_host::BlockBounds { id: 9, start: 4096, len: 8192 };
    let bounds = [None, Some(block)].map(|block| Bounds { start: 5000, len: 7288, block }.encode().to_vec());
    [hello, reply, request, Answer::NotRegistered(3).encode().to_vec()].into_iter().chain(bounds).collect()
}

fn topology(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(read) = Topology::parse(text)
    {
        let _ = read.devices();
        assert_eq!(Topology::parse(&read.to_json()).expect("it was read before"), read);
    }
}

fn topology_seeds() -> Vec<Vec<u8>> {
    vec![br#"{"cpu:0":[["mlx5_0"],["mlx5_1"]],"cuda:0":[["mlx5_1"],[]]}"#.to_vec()]
}

fn rpc_meta(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok((host, _)) = read_rpc_meta("a peer", text)
    {
        assert!(host.len() <= bytes.len());
    }
}

fn rpc_meta_seeds() -> Vec<Vec<u8>> {
    vec![br#"{"ip_or_host_name":"10.0.0.1","rpc_port":15321}"#.to_vec()]
}

fn peer_name(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Some((host, port)) = peer_name::split_peer(text)
            && !host.contains(['[', ']'])
        {
            assert_eq!(peer_name::split_peer(&join_host_port(host, port)), Some((host, port)));
        }
        let (host, port) = peer_name::split(text);
        if let Some(port) = port
            && !host.contains(['[', ']'])
        {
            assert_eq!(peer_name::split(&join_host_port(host, port)), (host, Some(port)));
        }
    }
}

fn peer_name_seeds() -> Vec<Vec<u8>> {
    ["10.0.0.1:15000", "[fe80::1%eth0]:12", "host", "::1", "::1:15000"].map(|name| name.as_bytes().to_vec()).to_vec()
}

fn segment_ticket(bytes: &[u8]) {
    if let Some(ticket) = Ticket::decode(bytes) {
        let again = ticket.encode();
        assert_eq!((again.len(), Ticket::decode(&again)), (bytes.len(), Some(ticket)));
    }
}

fn segment_ticket_seeds() -> Vec<Vec<u8>> {
    vec![Ticket { fingerprint: 0x1234_5678_9abc_def0, rank: 3, place: [5; 16], secret: [6; 16] }.encode()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_others_send_is_read_or_refused_and_never_a_panic() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
