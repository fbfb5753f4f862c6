"""Tensors to and from safetensors files."""

from __future__ import annotations

import os

from mooncake import _native
from mooncake.store._entry import entries
from mooncake.store._tensor_memory import INSTALL_TORCH

INVALID_PARAMS, FILE_NOT_FOUND, FILE_READ_FAIL, FILE_WRITE_FAIL = -600, -1100, -1102, -1103


@entries
class TensorFileCalls:
    """The calls of a store that read and write files."""

    __slots__ = ()

    def save_tensor_to_safetensor(self, key, file_name=None):
        try:
            from safetensors.torch import save_file
        except ModuleNotFoundError as missing:
            return _native._fail(self, INVALID_PARAMS, _without("save_tensor_to_safetensor", missing))
        tensor = self.get_tensor(key)
        if tensor is None:
            reason = self.last_error() or "no such tensor"
            return _native._fail(self, FILE_NOT_FOUND, f"save_tensor_to_safetensor: {key!r}: {reason}")
        name = key if isinstance(key, str) else key.decode(errors="replace")
        path = os.fspath(file_name or name)
        try:
            save_file({name: tensor}, path)
        except Exception as error:
            return _native._fail(self, FILE_WRITE_FAIL, f"save_tensor_to_safetensor: {path}: {error}")
        return 0

    def load_tensor_from_safetensor(self, key=None, file_name=None):
        call = "load_tensor_from_safetensor"
        try:
            import safetensors.torch
        except ModuleNotFoundError as missing:
            _native._fail(self, INVALID_PARAMS, _without(call, missing))
            return None
        if file_name is None:
            _native._fail(self, INVALID_PARAMS, f"{call}: file_name is needed")
            return None
        path = os.fspath(file_name)
        name = path if key is None else key
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                entries = list(file.keys())
                if not entries:
                    _native._fail(self, FILE_READ_FAIL, f"{call}: {path}: there is no tensor in it")
                    return None
                tensor = file.get_tensor(name if name in entries else entries[0])
        except FileNotFoundError as error:
            _native._fail(self, FILE_NOT_FOUND, f"{call}: {path}: {error}")
            return None
        except Exception as error:
            _native._fail(self, FILE_READ_FAIL, f"{call}: {path}: {error}")
            return None
        return tensor if self.put_tensor(name, tensor) == 0 else None


def _without(call: str, missing: ModuleNotFoundError) -> str:
    return f"{call}: {missing.name} is not installed here: {INSTALL_TORCH}"
