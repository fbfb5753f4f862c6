//! The programs, each with its settings.

use crate::setting::Setting;
use crate::tables;

/// A program with settings.
#[derive(Debug)]
pub struct Program {
    /// What it is called on a command line.
    pub name: &'static str,
    /// How messages speak of one: "this master".
    pub noun: &'static str,
    /// What `--help` begins with.
    pub about: &'static str,
    /// Its settings, in the order of `--help`.
    pub settings: &'static [Setting],
}

/// `mooncake_master`.
pub static MASTER: Program = Program {
    name: "mooncake_master",
    noun: "this master",
    about: "\
mooncake_master: directory of a KV-cache pool. It knows where objects lie; the bytes stay with the clients.

Usage: mooncake_master [--flag=value ...]

A pool on one machine:     mooncake_master --rpc_address=127.0.0.1 --metrics_host=127.0.0.1
A pool in a network:       mooncake_master --rpc_address=10.0.0.5
Without a log on disk:     mooncake_master --wal=off
With a file of settings:   mooncake_master --config_path=master.yaml
What would be in force:    mooncake_master --config_path=master.yaml --check_config

Clients connect to port 50051, metrics are at http://HOST:9003/metrics. The log of what is stored where lies in
$MOONCAKE_STATE_DIR, $XDG_STATE_HOME/mooncake, /var/lib/mooncake (root) or ~/.local/state/mooncake, and a
restarted master goes on from there.",
    settings: tables::master::SETTINGS,
};

/// `mooncake_client`.
pub static CLIENT: Program = Program {
    name: "mooncake_client",
    noun: "this storage node",
    about: "\
mooncake_client: lends memory of this machine to a pool, until SIGTERM.

Usage: mooncake_client [--flag=value ...]

Four gigabytes for a pool: mooncake_client --master_server_address=10.0.0.5:50051 --global_segment_size=4GB
With a tier on a disk:     MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/mnt/nvme/kv mooncake_client --enable_offload ...
Kept over an upgrade:      mooncake_client --keep --keeper=/run/mooncake/keeper ...

The keeper is another process: mooncake keeper --socket=/run/mooncake/keeper. Under systemd --keep needs none
(docs/kept-memory.md).",
    settings: tables::client::SETTINGS,
};
/// `mooncake keeper`.
pub static KEEPER: Program = Program {
    name: "mooncake keeper",
    noun: "this keeper",
    about: "\
mooncake keeper: holds the memory of one storage node of its user from one process of that to the next.

Usage: mooncake keeper --socket=PATH

The storage node:          mooncake client --keep --keeper=PATH ...",
    settings: tables::keeper::SETTINGS,
};

/// `mooncake_http_metadata_server`.
pub static METADATA_SERVER: Program = Program {
    name: "mooncake_http_metadata_server",
    noun: "this metadata server",
    about: "\
mooncake_http_metadata_server: a small store over HTTP in which transfer engines publish how to reach them.

Usage: mooncake_http_metadata_server [--host=ADDRESS] [--port=PORT]

The store needs none: give its clients P2PHANDSHAKE.",
    settings: tables::metadata_server::SETTINGS,
};

/// `mooncake_proxy`.
pub static PROXY: Program = Program {
    name: "mooncake_proxy",
    noun: "this proxy",
    about: "\
mooncake_proxy: front door of disaggregated inference. A prefill instance computes a prompt, a decode instance answers.

Usage: mooncake_proxy --model=MODEL --prefill HOST:PORT ... --decode HOST:PORT ... [--port=PORT]

Through the pool:          mooncake_proxy --model=Qwen3-8B -p 10.0.0.1:8100 10.0.0.2:8100 -d 10.0.0.3:8200
From instance to instance: mooncake_proxy --model=Qwen3-8B -p 10.0.0.1:8100:8998 -d 10.0.0.3:8200

The flags of Mooncake's vllm_v1_proxy_server work as well: --prefiller-host A B --prefiller-port 8100 8100,
--decoder-host, --decoder-port; and those of vLLM's proxy for MooncakeConnector: --prefill http://10.0.0.1:8100 8998.

It answers /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics, /status, and / with a page. With
ADMIN_API_KEY set, POST /instances/add and /instances/remove change the instances. OPENAI_API_KEY is sent to them for
callers that bring no key.",
    settings: tables::proxy::SETTINGS,
};

/// `transfer_engine_bench`.
pub static ENGINE_BENCH: Program = Program {
    name: "transfer_engine_bench",
    noun: "this bench",
    about: "\
transfer_engine_bench: how fast transfer engines move bytes between two processes.

Usage: transfer_engine_bench --mode=target
       transfer_engine_bench --segment_id=NAME [--operation=write] [--block_size=1MB]

The target prints its name and lends memory until Ctrl-C. The initiator's last line says what it reached.",
    settings: tables::engine_tools::BENCH,
};

/// `tebench`.
pub static ENGINE_SWEEP: Program = Program {
    name: "tebench",
    noun: "this bench",
    about: "\
tebench: how fast transfer engines move bytes, over many sizes of requests, of batches, and numbers of threads.

Usage: tebench
       tebench --target_seg_name=NAME [--op_type=write] [--max_batch_size=32] [--max_num_threads=4] [--json]

Without --target_seg_name it is a target: it prints the command of an initiator and lends memory until Ctrl-C. The
initiator prints a line for each combination; latencies are those of batches.",
    settings: tables::engine_tools::SWEEP,
};

/// `show_link`.
pub static SHOW_LINK: Program = Program {
    name: "show_link",
    noun: "this tool",
    about: "\
show_link: by which path a transfer engine of this machine reaches its peers, and why.

Usage: show_link --segment_id=NAME[,NAME] [--json]

It reads a few bytes of each peer that lends memory.",
    settings: tables::engine_tools::LINKS,
};

/// `transfer_engine_topology_dump`.
pub static TOPOLOGY_DUMP: Program = Program {
    name: "transfer_engine_topology_dump",
    noun: "this tool",
    about: "\
transfer_engine_topology_dump: which network devices of this machine are near which memory.

Usage: transfer_engine_topology_dump [--device-name=mlx5_0,mlx5_1]",
    settings: tables::engine_tools::TOPOLOGY,
};

/// `mooncake state ls`.
pub static STATE_LS: Program = Program {
    name: "mooncake state ls",
    noun: "this command",
    about: "\
mooncake state ls: state folders of masters on this machine and the witnesses of their logs, and which are in use.

Usage: mooncake state ls [--state_dir=FOLDER] [--json]",
    settings: tables::state::LS,
};

/// `mooncake state gc`.
pub static STATE_GC: Program = Program {
    name: "mooncake state gc",
    noun: "this command",
    about: "\
mooncake state gc: removes state folders of masters, with the witnesses of their logs. A pool whose folder goes is empty
when its master starts again. What is in use stays.

--older_than also removes witnesses of logs outside --state_dir: those of masters with another --wal_dir and, as root,
of other users' masters. It cannot tell whether such a log is still there. A master that starts with a log whose witness
is gone begins a new epoch, and loses no object.

Usage: mooncake state gc --name=mooncake_cluster-50051 [--dry_run]
       mooncake state gc --older_than=168h [--dry_run]",
    settings: tables::state::GC,
};

/// `mooncake tier list`.
pub static TIER_LIST: Program = Program {
    name: "mooncake tier list",
    noun: "this command",
    about: "\
mooncake tier list: the tiers that a master knows, whether they can be read, and what objects have in them.

Usage: mooncake tier list [--metrics_address=HOST:PORT] [--json]

BYTES are those of its objects, OF is what its files may have, USED is the share. STATE is one of these; docs/tiers.md
says what to do:

  live       it is read and written
  checking   its owner has just mounted it; it is read once the master has dropped what the folder does not prove
  hidden     it is not read, and not forgotten for 7 days: its owner, its folder or its disk is away
  adopted    a folder of an earlier process, which OWNER has beside its own: it is read, and given up first
  read-only  it is read, and not written: its disk fails or does not answer, or it is full and gives nothing up",
    settings: tables::tier::LIST,
};

/// `mooncake tier forget`.
pub static TIER_FORGET: Program = Program {
    name: "mooncake tier forget",
    noun: "this command",
    about: "\
mooncake tier forget: has a master forget a tier that never comes back, or all of them, with the objects that only they
have. One that is in use goes as well: its owner begins another folder. The folder is deleted a day later by a store
with its path; move it away within that time to keep its files.

Usage: mooncake tier forget UUID [--metrics_address=HOST:PORT]
       mooncake tier forget all [--metrics_address=HOST:PORT]",
    settings: tables::tier::FORGET,
};

/// All of them.
pub static PROGRAMS: [&Program; 13] = [
    &MASTER,
    &CLIENT,
    &KEEPER,
    &METADATA_SERVER,
    &PROXY,
    &ENGINE_BENCH,
    &ENGINE_SWEEP,
    &SHOW_LINK,
    &TOPOLOGY_DUMP,
    &STATE_LS,
    &STATE_GC,
    &TIER_LIST,
    &TIER_FORGET,
];

impl Program {
    /// A setting by its name.
    pub fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}
