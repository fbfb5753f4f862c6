"""vLLM's MooncakeConnector: prompts' KV go from a prefill to a decode server; each is killed in mid-transfer."""

from prefill_decode import DecodeServer, PrefillServer, hand_over, hand_over_at_once, kill, stopped_in_mid_transfer
from recorded import recording, unknown_transfers
from server import prompt

# Less than a block of 32 tokens, whole blocks, and a bit more or less.
LENGTHS = (7, 32, 33, 95, 1_501, 4_003)
# Enough that the kernel cannot hold it for a reader that reads nothing.
LONG = 4_000
TCP_ONLY = {"MC_SHM": "0"}


def run(rig):
    folder = rig.new_folder()
    texts = {path: [prompt(f"{path} {tokens}", tokens) for tokens in LENGTHS] for path in ("same host", "tcp")}
    long = [prompt(f"long {number}", LONG) for number in range(7)]
    expected = {}

    def moved(prefill, decode, texts, path, how=hand_over):
        total = sum(len(text) for text in texts)
        came = [how(prefill, decode, text) for text in texts]
        tokens = sum(hits for _, hits in came)
        same, taken = [ids for ids, _ in came] == [expected[text] for text in texts], prefill.path()
        yield f"{path}: {tokens} of {total} prompt tokens came from the prefill server", tokens == total
        yield f"{path}: the same tokens as from a server alone", same
        yield f"{path}: that was the path ({taken})", taken == path

    def next_one(prefill, decode, text, path):
        ids, hits = hand_over(prefill, decode, text)
        right = ids == expected[text] and hits == len(text)
        yield f"{path}: the next request's {hits} tokens come, and its answer is the same", right

    prefill = PrefillServer(rig, folder, "prefill", recording(folder, "prefill"))
    decode = DecodeServer(rig, folder, "decode", recording(folder, "decode"))
    with prefill, decode:
        # Asked as any server alone, and then for prompts that it has never seen.
        expected |= {text: prefill.complete(text) for text in [*texts["same host"], *texts["tcp"], *long]}
        prefill.forget()
        yield "nothing came from elsewhere so far", decode.hits() == 0

        yield from moved(prefill, decode, texts["same host"], "same host")
        yield from moved(prefill, decode, long[:1], "same host", hand_over_at_once)
        unknown = unknown_transfers(folder, "vllm_prefill_decode")
        yield f"every call of theirs is among the recorded ones {unknown}", not unknown

        with stopped_in_mid_transfer(prefill, decode, long[1]) as answer:
            kill(decode)
        failed = answer.result() is None
        yield f"same host: decode killed in mid-transfer: its request fails ({answer.error!r})", failed
        yield "prefill answers the same", prefill.complete(long[1]) == expected[long[1]]

        with DecodeServer(rig, folder, "decode-tcp", TCP_ONLY) as decode:
            yield from moved(prefill, decode, texts["tcp"], "tcp")
            with stopped_in_mid_transfer(prefill, decode, long[2]) as answer:
                kill(prefill)
            right = answer.result() == expected[long[2]]
            yield (
                f"tcp: prefill killed in mid-transfer: decode answers the same ({answer.error!r})",
                right,
            )

            with PrefillServer(rig, folder, "prefill-again", bootstrap_port=prefill.bootstrap_port) as prefill:
                yield from next_one(prefill, decode, long[3], "tcp")
                failures = prefill.failed_writes()
                with stopped_in_mid_transfer(prefill, decode, long[4]) as answer:
                    kill(decode)
                failed = answer.result() is None
                yield f"tcp: decode killed in mid-transfer: its request fails ({answer.error!r})", failed
                yield "prefill answers the same", prefill.complete(long[4]) == expected[long[4]]
                yield "and its write had failed", prefill.failed_writes() == failures + 1

                with DecodeServer(rig, folder, "decode-again") as decode:
                    yield from next_one(prefill, decode, long[5], "same host")
                    with stopped_in_mid_transfer(prefill, decode, long[6]) as answer:
                        kill(prefill)
                    right = answer.result() == expected[long[6]]
                    yield (
                        f"same host: prefill killed in mid-transfer: the same answer ({answer.error!r})",
                        right,
                    )
