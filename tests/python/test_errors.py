"""Failures as exceptions, for those who ask for them."""

from __future__ import annotations

import pytest

from mooncake import errors
from mooncake.store import MooncakeDistributedStore


def test_a_failure_is_raised_with_its_code_and_reason(store):
    raising = errors.checked(store)
    assert raising.put("k", b"v") == 0
    assert raising.get("k") == b"v"
    assert raising.get("no") == b""
    assert raising.is_exist("no") == 0
    with pytest.raises(errors.NotFound) as missing:
        raising.get_size("no")
    assert missing.value.code == -704
    with pytest.raises(errors.InvalidKey, match="65536") as bad:
        raising.put("k" * 70_000, b"v")
    assert bad.value.code == -400


def test_the_first_bad_key_of_a_batch_is_named(store):
    raising = errors.checked(store)
    assert raising.put("there", b"v") == 0
    with pytest.raises(errors.NotFound) as missing:
        raising.batch_remove(["there", "gone"], True)
    assert missing.value.key == "gone"
    assert isinstance(missing.value, KeyError)


def test_every_exception_is_a_store_error_and_knows_its_code():
    for code, kind in errors.BY_CODE.items():
        raised = errors.error(code, "because")
        assert type(raised) is kind
        assert isinstance(raised, errors.StoreError)
        assert raised.code == code
        assert "because" in str(raised)
    assert type(errors.error(-12345)) is errors.StoreError


def test_a_store_that_is_not_set_up_says_so():
    with pytest.raises(errors.InvalidParams, match="setup"):
        errors.checked(MooncakeDistributedStore()).get_size("k")
