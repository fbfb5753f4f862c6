"""Objects of many layers, moved whole and layer after layer, in turn with a memcpy of the same bytes."""

import collections
import ctypes
import itertools
import statistics
import time

import numpy as np

# Buffers of one key in the multi-buffer calls: the layers of a model.
LAYERS = 32
# Times that one layer is loaded over and over.
AGAIN = 16


class Layers:
    """`sets` lists of `batch` objects each, which the store has; object `block` of set `at` is `{prefix}-{at}-{block}`.

    `places` has for each block the address of its part in each layer. Between two operations on a set lie as many bytes
    as the operations on it move, and those of `sets` - 1 others: no cache holds what is moved, but for `_again`.
    """

    def __init__(self, store, places, piece, prefix, sets):
        self.store, self.places, self.piece, self.prefix, self.sets = store, places, piece, prefix, sets
        self.batch, self.size = len(places), piece * LAYERS
        self.sizes = [[piece] * LAYERS] * self.batch
        self.names = [[f"{prefix}-{at}-{block}" for block in range(self.batch)] for at in range(sets)]
        # Where they lie in the pool, through the mapping that a get copies from.
        self.views = [[store.get_buffer(name) for name in names] for names in self.names]
        self.starts = [[view.ptr() for view in views] for views in self.views]
        self.parts = [
            ([[own[layer]] for own in places], [[piece]] * self.batch, [[layer * piece]] * self.batch)
            for layer in range(LAYERS)
        ]
        self.numbers = itertools.count()
        self.spent = collections.defaultdict(list)

    def measure(self, seconds):
        """Median time of each operation, seconds; which is first changes from round to round."""
        operations = [self.get_multi, self.get_ranges, self.copy_ranges, self.get_layer_again, self.copy_layer_again]
        if hasattr(self.store, "batch_put_session_start"):
            operations += [self.put_multi, self.put_ranges]
        for turn in range(self.sets):
            for operation in operations:
                operation(turn)
        self.spent.clear()
        end, turn = time.monotonic() + seconds, 0
        while turn < len(operations) or time.monotonic() < end:
            first = turn % len(operations)
            for operation in operations[first:] + operations[:first]:
                operation(turn % self.sets)
            turn += 1
        return {what: statistics.median(spent) for what, spent in self.spent.items()}

    # ---- loads

    def get_multi(self, turn):
        get = self.store.batch_get_into_multi_buffers
        found = self._timed("get_multi", get, self.names[turn], self.places, self.sizes)
        expect("get_multi", found, [self.size] * self.batch)

    def get_ranges(self, turn):
        """As SGLang's layer-wise loader asks: a session, and layer after layer."""
        begin = time.perf_counter()
        self._start(turn)
        found = [self._get("get_layer", turn, layer) for layer in range(LAYERS)]
        self._end(turn)
        self.spent["get_ranges"].append(time.perf_counter() - begin)
        expect("get_ranges", found, [[self.piece] * self.batch] * LAYERS)

    def copy_ranges(self, turn):
        """What `get_ranges` copies, from the same memory to the same, by memcpy."""
        for layer in range(LAYERS):
            self._timed("copy_layer", self._copy, turn, layer)

    def get_layer_again(self, turn):
        """One layer over and over, so that a cache holds it."""
        self._start(turn)
        for nth in range(AGAIN):
            self._get("get_layer_again" if nth > 1 else "first", turn, 0)
        self._end(turn)

    def copy_layer_again(self, turn):
        for nth in range(AGAIN):
            self._timed("copy_layer_again" if nth > 1 else "first", self._copy, turn, 0)

    def _start(self, turn):
        expect("batch_get_session_start", self.store.batch_get_session_start(self.names[turn]), [0] * self.batch)

    def _end(self, turn):
        expect("batch_get_session_end", self.store.batch_get_session_end(self.names[turn]), 0)

    def _get(self, what, turn, layer):
        return self._timed(what, self.store.batch_get_into_multi_buffer_ranges, self.names[turn], *self.parts[layer])

    def _copy(self, turn, layer):
        offset, piece, copy = layer * self.piece, self.piece, ctypes.memmove
        for (to,), start in zip(self.parts[layer][0], self.starts[turn], strict=True):
            copy(to, start + offset, piece)

    # ---- stores

    def put_multi(self, turn):
        names = self._new_names()
        found = self._timed("put_multi", self.store.batch_put_from_multi_buffers, names, self.places, self.sizes)
        expect("put_multi", found, [0] * self.batch)
        self._remove(names)

    def put_ranges(self, turn):
        """A session whose layers are written one after the other, as they are computed."""
        names, store, begin = self._new_names(), self.store, time.perf_counter()
        started = store.batch_put_session_start(names, [self.size] * self.batch)
        put = store.batch_put_from_multi_buffer_ranges
        found = [self._timed("put_layer", put, names, *parts) for parts in self.parts]
        ended = store.batch_put_session_end(names)
        self.spent["put_ranges"].append(time.perf_counter() - begin)
        expect("put_ranges", found, [[self.piece] * self.batch] * LAYERS)
        expect("start and end", [started, ended], [[0] * self.batch] * 2)
        self._remove(names)

    def _new_names(self):
        number = next(self.numbers)
        return [f"{self.prefix}-put{number}-{block}" for block in range(self.batch)]

    def _remove(self, names):
        expect("batch_remove", self.store.batch_remove(names, True), [0] * self.batch)

    # ---- both

    def _timed(self, what, call, *arguments):
        begin = time.perf_counter()
        result = call(*arguments)
        self.spent[what].append(time.perf_counter() - begin)
        return result


def expect(what, found, expected):
    if found != expected:
        raise RuntimeError(f"{what} gave {found}, not {expected}")


def contents(size, batch):
    """What a batch of such objects is put from, layer by layer."""
    return np.random.default_rng(size).integers(0, 256, size * batch, dtype=np.uint8)
