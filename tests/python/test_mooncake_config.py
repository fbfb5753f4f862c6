"""`mooncake.json` and the `MOONCAKE_*` variables mean what they mean elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from mooncake import _native
from mooncake.mooncake_config import MooncakeConfig, _parse_bool, _parse_segment_size
from mooncake.store import MooncakeDistributedStore

LEAST = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in list(os.environ):
        if name.startswith("MOONCAKE_"):
            monkeypatch.delenv(name)


def written(tmp_path, **more):
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({**LEAST, **more}))
    return path


def test_a_file_gives_values_and_defaults(tmp_path):
    config = MooncakeConfig.from_file(written(tmp_path, protocol="RDMA", device_name=None, vllm_own_key=1))
    assert (config.local_hostname, config.metadata_server, config.master_server_address) == ("h", "P2PHANDSHAKE", "m:1")
    assert (config.global_segment_size, config.local_buffer_size) == (3355443200, 1073741824)
    assert (config.protocol, config.device_name, config.tenant_id) == ("rdma", "", "default")
    assert (config.enable_ssd_offload, config.client_http_port) == (False, 9300)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 << 30),
        ("1.5 g", 3 << 29),
        ("512mb", 512 << 20),
        ("64k", 65536),
        ("7", 7),
        (8, 8),
        ("3b", 3),
        ("1T", 1 << 40),
        (1.5, 1),
        ("1.5", 1),
        ("1e9", 10**9),
        ("1.5e3 KB", 1536000),
        (str((1 << 62) + 1), (1 << 62) + 1),
    ],
)
def test_sizes_are_powers_of_1024(tmp_path, text, size):
    assert MooncakeConfig.from_file(written(tmp_path, global_segment_size=text)).global_segment_size == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("global_segment_size", "many"),
        ("global_segment_size", -1),
        ("local_buffer_size", "1PB"),
        ("global_segment_size", ""),
        ("global_segment_size", " gb"),
        ("global_segment_size", "1e400"),
        ("global_segment_size", "nan"),
        ("global_segment_size", True),
        ("enable_ssd_offload", "perhaps"),
        ("protocol", ""),
        ("protocol", "  "),
        ("protocol", 7),
        ("protocol", None),
        ("client_http_port", "x"),
        ("local_hostname", ""),
        ("master_server_address", None),
    ],
)
def test_what_means_nothing_is_named(tmp_path, name, value):
    path = written(tmp_path, **{name: value})
    with pytest.raises(ValueError, match=name) as refused:
        MooncakeConfig.from_file(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{\n"protocol": tcp}', "line 2 column 13"),
        (b"", "line 1"),
        (b"[1]", "object"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"local_hostname": "h"}', "Missing required config field: metadata_server"),
        pytest.param(b"[" * 100_000, "nested too deep", id="lists"),
        pytest.param(b'{"a":' * 100_000, "nested too deep", id="objects"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, content, reason):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as refused:
        MooncakeConfig.from_file(path)
    assert str(path) in str(refused.value)


def test_keys_that_are_no_settings_are_told_and_one_that_is_nearly_one_is_a_warning(tmp_path, caplog):
    caplog.set_level("INFO", "mooncake")
    MooncakeConfig.from_file(written(tmp_path, vllm_own_key=1, globl_segment_size=1))
    told = {record.levelname: record.getMessage() for record in caplog.records}
    assert "'vllm_own_key'" in told["INFO"]
    assert "did you mean 'global_segment_size'" in told["WARNING"]
    assert all(record.name == "mooncake.mooncake_config" for record in caplog.records)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    path = written(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert MooncakeConfig.from_file(path) == MooncakeConfig.from_file(written(tmp_path))


@pytest.mark.parametrize("given", ["", "  "])
def test_a_protocol_that_is_set_to_nothing_is_none(monkeypatch, given):
    monkeypatch.setenv("MOONCAKE_MASTER", "m:1")
    assert MooncakeConfig.load_from_env().protocol == "tcp"
    monkeypatch.setenv("MOONCAKE_PROTOCOL", given)
    with pytest.raises(ValueError, match="protocol"):
        MooncakeConfig.load_from_env()


def test_an_unknown_protocol_is_only_a_warning_of_the_modules_logger(tmp_path, caplog):
    assert MooncakeConfig.from_file(written(tmp_path, protocol=" Pigeon")).protocol == "pigeon"
    [told] = caplog.records
    assert (told.name, told.levelname) == ("mooncake.mooncake_config", "WARNING")
    assert "'pigeon'" in told.getMessage()


def test_the_environment_serves_where_there_is_no_file(monkeypatch, tmp_path):
    words = "^Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set"
    with pytest.raises(ValueError, match=words):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "m:2")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "2gb")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "Yes")
    config = MooncakeConfig.load_from_env()
    assert (config.local_hostname, config.metadata_server) == ("localhost", "P2PHANDSHAKE")
    assert (config.master_server_address, config.global_segment_size, config.enable_ssd_offload) == (
        "m:2",
        2 << 30,
        True,
    )
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(written(tmp_path)))
    assert MooncakeConfig.load_from_env().master_server_address == "m:1"


def test_without_variables_the_class_and_the_registry_have_the_same_defaults(monkeypatch):
    monkeypatch.setenv("MOONCAKE_MASTER", "m:1")
    of_the_registry = {attribute: default for attribute, _, default in _native._config_values()}
    of_the_class = {field.name: field.default for field in dataclasses.fields(MooncakeConfig)}
    config = MooncakeConfig.load_from_env()
    for name, default in of_the_class.items():
        if default is not dataclasses.MISSING:
            assert getattr(config, name) == default, name
        elif name != "master_server_address":
            assert str(getattr(config, name)) == of_the_registry[name], name


def test_every_attribute_has_a_variable_that_the_page_of_settings_lists(monkeypatch):
    registry = {attribute: variable for attribute, variable, _ in _native._config_values()}
    assert list(registry) == [field.name for field in dataclasses.fields(MooncakeConfig)]
    page = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    for attribute, variable in registry.items():
        assert f"| `{attribute}` | `{variable}` |" in page
    monkeypatch.setenv("MOONCAKE_MASTER", "m:1")
    numbers = {"global_segment_size": 5, "local_buffer_size": 6, "client_http_port": 7}
    for attribute, variable in registry.items():
        value = numbers.get(
            attribute, attribute.startswith("enable_") or ("tcp" if attribute == "protocol" else "text")
        )
        monkeypatch.setenv(variable, str(value))
        assert getattr(MooncakeConfig.load_from_env(), attribute) == value


def test_a_store_is_set_up_from_it(shared_cluster, monkeypatch):
    monkeypatch.setenv("MOONCAKE_MASTER", shared_cluster.master.addr)
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", "127.0.0.1")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")
    c = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(
        c.local_hostname,
        c.metadata_server,
        c.global_segment_size,
        c.local_buffer_size,
        c.protocol,
        c.device_name,
        c.master_server_address,
    )
    assert code == 0, store.last_error()
    store.close()


def test_fields_stand_in_the_order_of_the_configs_that_callers_have():
    names = [field.name for field in dataclasses.fields(MooncakeConfig)]
    assert names == [
        "local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "device_name",
        "master_server_address", "enable_ssd_offload", "ssd_offload_path", "tenant_id", "enable_client_http_server",
        "client_http_port",
    ]  # fmt: skip
    config = MooncakeConfig("h", "m", "1kb", 2, "tcp", None, "x:1")
    assert (config.global_segment_size, config.device_name, config.master_server_address) == (1024, "", "x:1")
    with pytest.raises(TypeError):
        MooncakeConfig("h", "m", 1, 2)


def test_sizes_and_switches_are_parsed_by_the_names_that_siblings_use():
    assert _parse_segment_size("4 GB") == 4 << 30
    assert _parse_segment_size(5) == 5
    assert [_parse_bool(text) for text in (True, 1, "Yes", "on", False, 0, None, "", "off")] == [True] * 4 + [False] * 5
    with pytest.raises(ValueError, match="perhaps"):
        _parse_bool("perhaps")
    with pytest.raises(ValueError, match="much"):
        _parse_segment_size("much")
