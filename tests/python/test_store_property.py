"""Any sequence of calls agrees with a dict, whatever the keys and the sizes are."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import wrong_calls
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from mooncake.store import MooncakeDistributedStore

KEYS = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
    st.binary(min_size=1, max_size=40),
)
VALUES = st.one_of(
    st.binary(min_size=1, max_size=5000),
    st.builds(lambda b, n: bytes([b]) * n, st.integers(0, 255), st.sampled_from([16384, 262143, 262144, 300001])),
)


def raw(key) -> bytes:
    return key if isinstance(key, bytes) else key.encode()


def test_any_sequence_of_calls_agrees_with_a_dict(store):
    class Machine(RuleBasedStateMachine):
        keys = Bundle("keys")

        # With one key from the beginning no sequence is thrown away for having none.
        @initialize(target=keys, key=KEYS)
        def empty(self, key):
            store.remove_all(True)
            self.model: dict[bytes, bytes] = {}
            return key

        @rule(target=keys, key=KEYS)
        def name(self, key):
            return key

        @rule(key=keys, value=VALUES)
        def put(self, key, value):
            assert store.put(key, value) == 0
            self.model.setdefault(raw(key), value)

        @rule(key=keys, parts=st.lists(st.binary(max_size=2000), max_size=5))
        def put_parts(self, key, parts):
            assert store.put_parts(key, *parts) == 0
            if whole := b"".join(parts):
                self.model.setdefault(raw(key), whole)

        @rule(batch=st.lists(st.tuples(keys, VALUES), min_size=1, max_size=6))
        def put_batch(self, batch):
            assert store.put_batch([k for k, _ in batch], [v for _, v in batch]) == 0
            for key, value in batch:
                self.model.setdefault(raw(key), value)

        @rule(key=keys, value=VALUES, cut=st.floats(0, 1))
        def put_pieces(self, key, value, cut):
            data = ctypes.create_string_buffer(value, len(value))
            at, n = ctypes.addressof(data), int(len(value) * cut)
            pieces = [at, at + n], [n, len(value) - n]
            assert store.batch_put_from_multi_buffers([key], [pieces[0]], [pieces[1]]) == [0]
            self.model.setdefault(raw(key), value)

        @rule(key=keys)
        def remove(self, key):
            assert store.remove(key, True) == (0 if self.model.pop(raw(key), None) is not None else -704)

        @rule(wanted=st.lists(keys, max_size=6))
        def read(self, wanted):
            want = [self.model.get(raw(k)) for k in wanted]
            assert store.batch_is_exist(wanted) == [int(v is not None) for v in want]
            assert store.get_batch(wanted) == ([v or b"" for v in want] or [b""])
            handles = store.batch_get_buffer(wanted)
            assert [h and bytes(h) for h in handles] == want
            for key, value in zip(wanted, want, strict=True):
                assert store.get_size(key) == (len(value) if value else -704)
                room = ctypes.create_string_buffer(len(value) if value else 1)
                assert store.get_into(key, ctypes.addressof(room), len(room)) == (len(value) if value else -704)
                assert value is None or room.raw == value

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=40, stateful_step_count=30, deadline=None, print_blob=True)
    )


@pytest.mark.parametrize("subject", [subject.__name__ for subject in wrong_calls.SUBJECTS])
def test_wrong_calls_have_the_documented_answer_and_nothing_hangs_or_dies(shared_cluster, tmp_path, subject):
    last = tmp_path / "last-call"
    done = subprocess.run(
        [sys.executable, wrong_calls.__file__, subject, shared_cluster.master.addr],
        env={**os.environ, "WRONG_CALLS_LOG": str(last), "MC_LOG_LEVEL": "OFF"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100,
    )
    called = last.read_text(errors="replace") if last.exists() else "nothing"
    assert done.returncode == 0, f"exit {done.returncode}, last call {called}\n{done.stderr[-6000:]}"
    assert done.stdout.endswith("all of it\n")


def test_every_public_method_is_called_wrongly():
    public = {name for name in dir(MooncakeDistributedStore) if not name.startswith("_")}
    assert public == set(wrong_calls.CALLS) | set(wrong_calls.BEGINS) | wrong_calls.OTHERS
