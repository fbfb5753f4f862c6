"""Any sequence of calls agrees with a dict, whatever the keys and the sizes are."""

from __future__ import annotations

import contextlib
import ctypes

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

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

        @initialize()
        def empty(self):
            store.remove_all(True)
            self.model: dict[bytes, bytes] = {}

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


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
CALLS = [
    ("put", 2), ("put_parts", 2), ("put_batch", 2), ("get", 1), ("get_batch", 1), ("get_buffer", 1),
    ("batch_get_buffer", 1), ("is_exist", 1), ("batch_is_exist", 1), ("get_size", 1), ("remove", 1),
    ("batch_remove", 1), ("register_buffer", 2), ("unregister_buffer", 1), ("put_from", 3), ("get_into", 3),
    ("batch_put_from", 3), ("batch_get_into", 3), ("batch_put_from_multi_buffers", 3),
    ("batch_get_into_multi_buffers", 3), ("setup", 1), ("setup", 7),
    ("put_tensor", 2), ("batch_put_tensor", 2), ("pub_tensor", 3), ("get_tensor", 1), ("batch_get_tensor", 1),
    ("put_tensor_from", 3), ("batch_put_tensor_from", 3), ("get_tensor_into", 3), ("batch_get_tensor_into", 3),
    ("get_tensor_into_cuda", 2), ("put_tensor_with_tp", 5), ("batch_put_tensor_with_tp_from", 6),
    ("get_tensor_with_tp", 4), ("batch_get_tensor_with_tp", 3), ("batch_get_tensor_with_tp_into", 5),
    ("put_tensor_with_parallelism", 5), ("put_tensor_with_parallelism_from", 6), ("get_tensor_with_parallelism", 2),
    ("batch_put_tensor_with_parallelism", 5), ("batch_get_tensor_with_parallelism_into", 4), ("upsert_tensor", 2),
]  # fmt: skip


@given(st.sampled_from(CALLS), st.data())
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_argument_raises_anything_but_type_errors(call, data):
    """On a store that is not set up: addresses made of noise must not be written to."""
    from mooncake.store import MooncakeDistributedStore

    s = MooncakeDistributedStore()
    name, count = call
    arguments = [data.draw(JUNK) for _ in range(count)]
    if name == "setup":  # nowhere, so that no real master is asked for anything
        arguments = [a for a in arguments if not isinstance(a, dict)] + [1.5]
    with contextlib.suppress(TypeError):
        getattr(s, name)(*arguments)
