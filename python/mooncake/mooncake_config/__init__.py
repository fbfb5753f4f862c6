"""Settings of a store as ``mooncake.json`` or the environment give them."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200  # 3.125 GiB
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824  # 1 GiB

_PROTOCOLS = frozenset(
    "tcp rdma efa nvmeof nvlink musa nvlink_intra hip barex cxl ascend ub ubshmem maca sunrise_link rpc_only".split()
)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TRUE = frozenset({"true", "1", "yes", "on", "enable"})
_FALSE = frozenset({"false", "0", "no", "off", "disable", ""})

# What files and the environment need not name.
_DEFAULTS: dict[str, Any] = {
    "global_segment_size": DEFAULT_GLOBAL_SEGMENT_SIZE,
    "local_buffer_size": DEFAULT_LOCAL_BUFFER_SIZE,
    "protocol": "tcp",
    "device_name": "",
}

# Attributes, and what they are called in the environment.
_ENVIRONMENT = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "master_server_address": "MOONCAKE_MASTER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


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
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

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
        with open(path, encoding="utf-8") as file:
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
        found: dict[str, Any] = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **_DEFAULTS}
        for name, variable in _ENVIRONMENT.items():
            value = os.environ.get(variable)
            if value is not None and value.strip():
                found[name] = value
        if "master_server_address" not in found:
            raise ValueError("neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER (host:port of the master) is set")
        return cls(**found)


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
