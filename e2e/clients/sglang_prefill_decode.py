"""One half of SGLang's prefill and decode apart, with the caches in host memory, told by lines on stdin what to do.

    sglang_prefill_decode.py prefill|decode BOOTSTRAP_PORT

The managers of the caches, the senders, the receivers, the bootstrap server and the engine are SGLang's own. Stand-ins
are what a server around them would give: the pools of a model, and the topology of one process. A line is a JSON list,
a call and its arguments. Page n of the prefill half always has the same content.

    ["send", ROOM, FIRST, COUNT]       null; prefill: pages as the cache of a request, in two chunks
    ["receive", ROOM, FIRST, COUNT]    [what came of it, "right" or "wrong" for each page]; decode: into pages from 0 on
    ["outcome", ROOM]                  what came of it; prefill
"""

import sys
import time

import commands
import engine_watch

PAGES, PAGE_TOKENS, LAYERS = 32, 16, 4
# Bytes of a page in one layer: of its keys, and as many of its values.
PAGE_BYTES = PAGE_TOKENS * 512
# Bytes of a row of the metadata that a request has beside its cache.
AUX_BYTES = 256
LIMIT_S = 60


class Client:
    def __init__(self, role, port):
        import torch
        from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
        from sglang.srt.disaggregation.mooncake import conn
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import init_mooncake_transfer_engine
        from sglang.srt.runtime_context import get_context, get_parallel

        fields = {"host": "127.0.0.1", "disaggregation_mode": role, "disaggregation_transfer_backend": "mooncake"}
        settings = get_context().override_server_args(disaggregation_bootstrap_port=port, **fields).install()
        alone = {name: 0 for name in ("attn_tp_rank", "attn_cp_rank", "attn_dcp_rank", "attn_dp_rank")}
        get_parallel().override_permanently(**alone, pp_group=None)
        self.torch, self.conn, self.address = torch, conn, f"127.0.0.1:{port}"
        self.names = {number: name for name, number in vars(KVPoll).items() if isinstance(number, int)}
        self.layers = [torch.zeros((PAGES, PAGE_BYTES), dtype=torch.uint8) for _ in range(2 * LAYERS)]
        self.aux = torch.zeros((PAGES, AUX_BYTES), dtype=torch.uint8)
        init_mooncake_transfer_engine("127.0.0.1")
        if role == "prefill":
            self.bootstrap = conn.MooncakeKVBootstrapServer("127.0.0.1", port)
        self.manager = conn.MooncakeKVManager(self._describe(KVArgs()), DisaggregationMode(role), settings)
        self.requests = {}

    def _describe(self, args):
        """The pools, as a model's memory tells of them."""
        args.kv_data_ptrs = [layer.data_ptr() for layer in self.layers]
        args.kv_data_lens = [layer.nbytes for layer in self.layers]
        args.kv_item_lens = [PAGE_BYTES] * len(self.layers)
        args.kv_layer_ids = [*range(LAYERS)] * 2
        args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = (
            [self.aux.data_ptr()],
            [self.aux.nbytes],
            [AUX_BYTES],
        )
        for field in (
            "types",
            "data_ptrs",
            "data_lens",
            "item_lens",
            "layer_ids",
            "dim_per_tensor",
            "slice_outer_counts",
        ):
            setattr(args, f"state_{field}", [])
        args.state_conv_shard_groups = []
        args.engine_rank = args.pp_rank = args.gpu_id = args.system_dp_rank = args.prefill_start_layer = 0
        args.kv_head_num = args.total_kv_head_num = 1
        args.page_size, args.kv_cache_dtype_str, args.prefill_end_layer = PAGE_TOKENS, "uint8", LAYERS
        args.ib_device, args.rust_http_port = "", None
        args.mla_compression_ratios = args.swa_kv_cache_layout = None
        return args

    def _rows(self, number):
        """A page in each layer, with what it is to be."""
        for at, layer in enumerate(self.layers):
            generator = self.torch.Generator().manual_seed(number * 1_000 + at)
            yield layer, self.torch.randint(0, 256, (PAGE_BYTES,), dtype=self.torch.uint8, generator=generator)

    def _until(self, request, *wanted):
        end = time.monotonic() + LIMIT_S
        while (found := self.names[request.poll()]) not in (*wanted, "Success", "Failed"):
            if time.monotonic() > end:
                return f"still {found}"
            time.sleep(0.01)
        return found

    def send(self, room, first, count):
        import numpy

        for number in range(first, first + count):
            for layer, content in self._rows(number):
                layer[number].copy_(content)
        self.aux[room % PAGES].fill_(room % 251)
        sender = self.requests[room] = self.conn.MooncakeKVSender(self.manager, self.address, room)
        self._until(sender, "WaitingForInput")
        sender.init(count, room % PAGES)
        pages = numpy.arange(first, first + count, dtype=numpy.int32)
        for chunk in (pages[: count // 2], pages[count // 2 :]):
            if len(chunk):
                sender.send(chunk)

    def outcome(self, room):
        return self._until(self.requests[room])

    def receive(self, room, first, count):
        import numpy

        for layer in self.layers:
            layer.zero_()
        self.aux.zero_()
        end = time.monotonic() + LIMIT_S
        while not self.manager.try_ensure_parallel_info(self.address) and time.monotonic() < end:
            time.sleep(0.1)
        receiver = self.conn.MooncakeKVReceiver(self.manager, self.address, room)
        receiver.init(0)
        self._until(receiver, "WaitingForInput")
        receiver.send_metadata(numpy.arange(count, dtype=numpy.int32), aux_index=room % PAGES)
        outcome = self._until(receiver)
        same = [
            all(self.torch.equal(layer[at], content) for layer, content in self._rows(first + at))
            for at in range(count)
        ]
        aux = bool((self.aux[room % PAGES] == room % 251).all())
        receiver.clear()
        return [outcome, aux, *("right" if one else "wrong" for one in same)]


if __name__ == "__main__":
    engine_watch.install()
    commands.obey(lambda: Client(sys.argv[1], int(sys.argv[2])))
