"""Settings of a store as ``mooncake.json`` or the environment give them."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from mooncake import _native

# What there is to say, attribute by attribute: the variable and the default. One registry has all settings.
_REGISTRY = {attribute: (variable, default) for attribute, variable, default in _native._config_values()}

DEFAULT_GLOBAL_SEGMENT_SIZE = int(_REGISTRY["global_segment_size"][1])
DEFAULT_LOCAL_BUFFER_SIZE = int(_REGISTRY["local_buffer_size"][1])

# What a file need not name.
_DEFAULTS = {
    name: _REGISTRY[name][1] for name in ("global_segment_size", "local_buffer_size", "protocol", "device_name")
}

_PROTOCOLS = frozenset(
    "tcp rdma efa nvmeof nvlink musa nvlink_intra hip barex cxl ascend ub ubshmem maca sunrise_link rpc_only".split()
)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TRUE = frozenset({"true", "1", "yes", "on", "enable"})
_FALSE = frozenset({"false", "0", "no", "off", "disable", ""})


@dataclass
class MooncakeConfig:
    """What ``setup`` needs to know. Sizes are bytes, or texts such as ``"4GB"`` (powers of 1024)."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = _REGISTRY["tenant_id"][1]
    enable_client_http_server: bool = False
    client_http_port: int = int(_REGISTRY["client_http_port"][1])

    def __post_init__(self) -> None:
        for name in ("local_hostname", "metadata_server", "master_server_address"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} is {value!r}: a text that is not empty is needed")
        for name in ("global_segment_size", "local_buffer_size"):
            setattr(self, name, _named(name, _parse_segment_size, getattr(self, name)))
        self.protocol = str(self.protocol).strip().lower()
        if self.protocol not in _PROTOCOLS:
            warnings.warn(f"protocol {self.protocol!r} is unknown", stacklevel=3)
        self.device_name = "" if self.device_name is None else str(self.device_name)
        self.ssd_offload_path = "" if self.ssd_offload_path is None else str(self.ssd_offload_path)
        self.tenant_id = str(self.tenant_id or "default")
        for name in ("enable_ssd_offload", "enable_client_http_server"):
            setattr(self, name, _named(name, _parse_bool, getattr(self, name)))
        try:
            self.client_http_port = int(self.client_http_port)
        except (TypeError, ValueError):
            raise ValueError(f"client_http_port is {self.client_http_port!r}: a port is needed") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> MooncakeConfig:
        """Reads a JSON file. Keys that are no attributes belong to somebody else and are left alone."""
        with open(path, encoding="utf-8-sig") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise ValueError(f"{os.fspath(path)}: an object with names and values is needed")
        missing = [
            name for name in ("local_hostname", "metadata_server", "master_server_address") if not found.get(name)
        ]
        if missing:
            raise ValueError(f"{os.fspath(path)}: {', '.join(missing)} must be given")
        given = {field.name: found[field.name] for field in fields(cls) if found.get(field.name) is not None}
        return cls(**{**_DEFAULTS, **given})

    @classmethod
    def load_from_env(cls) -> MooncakeConfig:
        """Reads the file that ``MOONCAKE_CONFIG_PATH`` names, or else the ``MOONCAKE_*`` variables."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path:
            return cls.from_file(path)
        found = {name: os.environ.get(variable, "") for name, (variable, _) in _REGISTRY.items()}
        if not found["master_server_address"].strip():
            raise ValueError("neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER (host:port of the master) is set")
        return cls(**{name: value if value.strip() else _REGISTRY[name][1] for name, value in found.items()})


def _named(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as reason:
        raise ValueError(f"{name} is {reason}") from None


def _parse_segment_size(value: Any) -> int:
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value!r}: a number of bytes is needed")
    if isinstance(value, (int, float)):
        size = int(value)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", str(value).lower())
        if not match:
            raise ValueError(f"{value!r}: a number of bytes is needed, or one with KB, MB, GB or TB")
        size = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    if size < 0:
        raise ValueError(f"{value!r}: it cannot be negative")
    return size


def _parse_bool(value: Any) -> bool:
    text = "" if value is None else str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{value!r}: true or false is needed")
