//! Offsets and sizes of what is shared with libibverbs: those of a checked-in list, which are those of the headers
//! where they are installed (Debian: libibverbs-dev).

use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use mooncake_verbs::abi;

const LIST: &str = include_str!("layouts.txt");

/// Lines of a list: `structure.field offset`; and what a program in C has to say for them.
macro_rules! layouts {
    ($($rust:ident = $c:literal { $($field:ident = $member:literal),* $(,)? } $(size $size:literal)?;)*) => {
        fn of_this_crate() -> Vec<(String, usize)> {
            vec![
                $($((concat!($c, ".", $member).to_owned(), offset_of!(abi::$rust, $field)),)*
                $((concat!($c, " ", $size).to_owned(), size_of::<abi::$rust>()),)?)*
            ]
        }
    };
}

layouts! {
    IbvDevice = "ibv_device" {
        name = "name", dev_name = "dev_name", dev_path = "dev_path", ibdev_path = "ibdev_path",
    };
    IbvContext = "ibv_context" {
        device = "device", ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd", num_comp_vectors = "num_comp_vectors",
    };
    IbvContextOps = "ibv_context_ops" {
        poll_cq = "poll_cq", req_notify_cq = "req_notify_cq", post_send = "post_send", post_recv = "post_recv",
    } size "size";
    IbvPd = "ibv_pd" { context = "context", handle = "handle" };
    IbvMr = "ibv_mr" {
        context = "context", pd = "pd", addr = "addr", length = "length", handle = "handle", lkey = "lkey",
        rkey = "rkey",
    };
    IbvCompChannel = "ibv_comp_channel" { context = "context", fd = "fd", refcnt = "refcnt" };
    IbvCq = "ibv_cq" { context = "context", channel = "channel", cq_context = "cq_context", cqe = "cqe" };
    IbvQp = "ibv_qp" {
        context = "context", pd = "pd", send_cq = "send_cq", recv_cq = "recv_cq", handle = "handle", qp_num = "qp_num",
        state = "state", qp_type = "qp_type",
    };
    IbvDeviceAttr = "ibv_device_attr" {
        max_mr_size = "max_mr_size", max_qp = "max_qp", max_qp_wr = "max_qp_wr", max_cqe = "max_cqe",
        max_qp_rd_atom = "max_qp_rd_atom", max_qp_init_rd_atom = "max_qp_init_rd_atom", atomic_cap = "atomic_cap",
        max_pkeys = "max_pkeys", phys_port_cnt = "phys_port_cnt",
    } size "size";
    IbvPortAttr = "ibv_port_attr" {
        state = "state", active_mtu = "active_mtu", gid_tbl_len = "gid_tbl_len", lid = "lid",
        active_width = "active_width", active_speed = "active_speed", link_layer = "link_layer",
        port_cap_flags2 = "port_cap_flags2",
    } size "size";
    IbvGid = "ibv_gid" {} size "size";
    IbvGlobalRoute = "ibv_global_route" {
        dgid = "dgid", flow_label = "flow_label", sgid_index = "sgid_index", hop_limit = "hop_limit",
        traffic_class = "traffic_class",
    } size "size";
    IbvAhAttr = "ibv_ah_attr" {
        grh = "grh", dlid = "dlid", sl = "sl", is_global = "is_global", port_num = "port_num",
    } size "size";
    IbvQpCap = "ibv_qp_cap" { max_send_wr = "max_send_wr", max_inline_data = "max_inline_data" } size "size";
    IbvQpInitAttr = "ibv_qp_init_attr" {
        send_cq = "send_cq", recv_cq = "recv_cq", srq = "srq", cap = "cap", qp_type = "qp_type",
        sq_sig_all = "sq_sig_all",
    } size "size";
    IbvQpAttr = "ibv_qp_attr" {
        qp_state = "qp_state", path_mtu = "path_mtu", rq_psn = "rq_psn", sq_psn = "sq_psn", dest_qp_num = "dest_qp_num",
        qp_access_flags = "qp_access_flags", cap = "cap", ah_attr = "ah_attr", alt_ah_attr = "alt_ah_attr",
        pkey_index = "pkey_index", max_rd_atomic = "max_rd_atomic", max_dest_rd_atomic = "max_dest_rd_atomic",
        min_rnr_timer = "min_rnr_timer", port_num = "port_num", timeout = "timeout", retry_cnt = "retry_cnt",
        rnr_retry = "rnr_retry", rate_limit = "rate_limit",
    } size "size";
    IbvSge = "ibv_sge" { addr = "addr", length = "length", lkey = "lkey" } size "size";
    IbvSendWr = "ibv_send_wr" {
        wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
        send_flags = "send_flags", imm_data = "imm_data", remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey",
        qp_type = "qp_type", bind_mw = "bind_mw",
    } size "size";
    IbvWc = "ibv_wc" {
        wr_id = "wr_id", status = "status", opcode = "opcode", vendor_err = "vendor_err", byte_len = "byte_len",
        qp_num = "qp_num", wc_flags = "wc_flags", sl = "sl",
    } size "size";
    IbvAsyncEvent = "ibv_async_event" { element = "element", event_type = "event_type" } size "size";
}

fn of_the_list() -> Vec<(String, usize)> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| line.rsplit_once(' ').map(|(name, at)| (name.to_owned(), at.parse().unwrap())).unwrap();
    lines.map(entry).collect()
}

#[test]
fn structures_are_laid_out_as_the_list_says() {
    assert_eq!(of_this_crate(), of_the_list());
}

#[test]
fn the_list_is_what_the_headers_say() {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    if !header.exists() {
        eprintln!("skipped: no {} (Debian: libibverbs-dev)", header.display());
        return;
    }
    let mut program =
        String::from("#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n");
    for (name, _) in of_the_list() {
        let (kind, value) = match name.split_once('.') {
            Some((structure, field)) => (structure, format!("offsetof({} {structure}, {field})", tag(structure))),
            None => {
                let structure = name.strip_suffix(" size").unwrap();
                (structure, format!("sizeof({} {structure})", tag(structure)))
            }
        };
        assert!(!kind.is_empty());
        writeln!(program, "printf(\"{name} %zu\\n\", {value});").unwrap();
    }
    program.push_str("return 0;\n}\n");
    let folder = tempfile::tempdir().unwrap();
    let (source, made) = (folder.path().join("layouts.c"), folder.path().join("layouts"));
    std::fs::write(&source, program).unwrap();
    let built = Command::new("cc").arg(&source).arg("-o").arg(&made).output().expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = Command::new(&made).output().unwrap();
    let list: String = LIST.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    assert_eq!(String::from_utf8(said.stdout).unwrap(), list);
}

fn tag(structure: &str) -> &'static str {
    if structure == "ibv_gid" { "union" } else { "struct" }
}
