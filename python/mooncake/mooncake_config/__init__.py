"""Settings of a store as ``mooncake.json`` or the environment give them."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
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

_log = logging.getLogger(__name__)


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
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"protocol is {self.protocol!r}: a text that is not empty is needed, such as 'tcp'")
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in _PROTOCOLS:
            _log.warning("protocol %r is unknown; known are %s", self.protocol, ", ".join(sorted(_PROTOCOLS)))
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
        """Reads a JSON file. ValueError, with its name, if it is not what is needed.

        Keys that are no attributes belong to the program around the store and are left alone; the log names them.
        """
        name = os.fspath(path)
        with open(path, encoding="utf-8-sig") as file:
            try:
                found = json.load(file)
            except json.JSONDecodeError as error:
                raise json.JSONDecodeError(f"{name}: {error.msg}", error.doc, error.pos) from None
            except UnicodeDecodeError as error:
                raise ValueError(f"{name}: no text in UTF-8: {error}") from None
            except RecursionError:
                raise ValueError(f"{name}: lists and objects nested too deep for a file of settings") from None
        if not isinstance(found, dict):
            raise ValueError(f"{name}: an object with names and values is needed")
        # Scripts look for the words before the name.
        for required in ("local_hostname", "metadata_server", "master_server_address"):
            if not found.get(required):
                raise ValueError(f"Missing required config field: {required} (in {name})")
        known = [field.name for field in fields(cls)]
        _tell_others(name, [key for key in found if key not in known], known)
        # A protocol that is there has to be one; null is as good as absent for the others.
        given = {key: found[key] for key in known if found.get(key) is not None or (key == "protocol" and key in found)}
        try:
            return cls(**{**_DEFAULTS, **given})
        except ValueError as reason:
            raise ValueError(f"{name}: {reason}") from None

    @classmethod
    def load_from_env(cls) -> MooncakeConfig:
        """Reads the file that ``MOONCAKE_CONFIG_PATH`` names, or else the ``MOONCAKE_*`` variables."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path:
            return cls.from_file(path)
        found = {name: os.environ.get(variable, "") for name, (variable, _) in _REGISTRY.items()}
        if not found["master_server_address"].strip():
            # The words that scripts look for.
            raise ValueError(
                "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set. "
                "The latter is host:port of the master"
            )
        given = {name: value if value.strip() else _REGISTRY[name][1] for name, value in found.items()}
        # As in a file: one that is set to nothing is no protocol.
        given["protocol"] = os.environ.get(_REGISTRY["protocol"][0], given["protocol"])
        return cls(**given)


def _tell_others(file: str, keys: list[str], known: list[str]) -> None:
    for key in keys:
        meant = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if meant:
            _log.warning("%s: %r is no setting of a store and has no effect; did you mean %r?", file, key, meant[0])
        else:
            _log.info("%s: %r is no setting of a store and is left alone", file, key)


def _named(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as reason:
        raise ValueError(f"{name}: {reason}") from None


def _parse_segment_size(value: Any) -> int:
    size = value
    if not isinstance(value, (int, float)) and value is not None:
        text = str(value).strip().lower()
        number, unit = re.fullmatch(r"(.*?)\s*([kmgt]?)b?", text, re.DOTALL).groups()
        if not text:
            raise ValueError("Invalid segment size: empty string")
        if not number:
            raise ValueError(f"Invalid segment size: missing number before {text!r}")
        try:
            # A whole number stays exact where a float would not.
            size = (int if number.isdecimal() else float)(number) * _UNITS[unit]
        except ValueError:
            size = None
    # Comparisons with what is no number are false.
    if size is None or isinstance(value, bool) or not 0 <= size < 1 << 64:
        raise ValueError(f"Invalid segment size: {value!r}, a number of bytes is needed, or one with KB, MB, GB or TB")
    return int(size)


def _parse_bool(value: Any) -> bool:
    text = "" if value is None else str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"Invalid boolean value: {value!r}, true or false is needed")
