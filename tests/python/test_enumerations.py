"""Enumerations behave as those of Mooncake, which pybind11 makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

import mooncake.store as ms

KINDS = {
    "ObjectDataType": "UNKNOWN KVCACHE TENSOR WEIGHT SAMPLE ACTIVATION GRADIENT OPTIMIZER_STATE METADATA GENERAL",
    "SoftPinAction": "PRESERVE ENABLE DISABLE",
    "ReplicaStatus": "UNDEFINED INITIALIZED PROCESSING COMPLETE REMOVED FAILED",
    "TaskType": "REPLICA_COPY REPLICA_MOVE",
    "TaskStatus": "PENDING PROCESSING FAILED SUCCESS",
}


@pytest.mark.parametrize("kind", KINDS)
def test_members_have_the_names_and_numbers_of_the_reference(kind):
    of = getattr(ms, kind)
    assert list(of.__members__) == KINDS[kind].split()
    for number, (name, member) in enumerate(of.__members__.items()):
        assert member == getattr(of, name) == of(number) == of(value=number) == of(member)
        assert member.name == name
        assert member.value == int(member) == number
        assert str(member) == f"{kind}.{name}"
        assert repr(member) == f"<{kind}.{name}: {number}>"


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_indexes_and_keys(kind):
    for number, member in enumerate(getattr(ms, kind).__members__.values()):
        assert list(range(20))[member] == number
        assert hash(member) == hash(number)
        assert {member: "it"}[copy.copy(member)] == "it"


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_copied_and_pickled(kind):
    @dataclasses.dataclass
    class Config:
        field: object

    for member in getattr(ms, kind).__members__.values():
        assert copy.deepcopy(member) == copy.copy(member) == member
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(member, protocol)) == member
        assert dataclasses.asdict(Config(member)) == {"field": member}


def test_members_are_equal_to_their_own_kind_only():
    assert ms.ObjectDataType.TENSOR != ms.SoftPinAction.DISABLE
    assert ms.ObjectDataType.TENSOR != 2
    assert ms.ObjectDataType.TENSOR is not None
    assert ms.ObjectDataType.TENSOR != "TENSOR"
    assert ms.ObjectDataType.UNKNOWN


@pytest.mark.parametrize("wrong", [None, "TENSOR", 2.0, -1, [2]], ids=repr)
def test_what_is_no_number_makes_no_member(wrong):
    with pytest.raises(TypeError):
        ms.ObjectDataType(wrong)
    with pytest.raises(TypeError):
        ms.ReplicateConfig().data_type = wrong


def test_numbers_that_no_member_has_are_told():
    with pytest.raises(ValueError, match="77 is no member of ObjectDataType"):
        ms.ObjectDataType(77)


def test_a_config_takes_members_that_were_made_from_numbers():
    config = ms.ReplicateConfig()
    config.data_type = ms.ObjectDataType(3)
    assert config.data_type == ms.ObjectDataType.WEIGHT
    assert copy.deepcopy(config).data_type == ms.ObjectDataType.WEIGHT


def test_members_are_exported_by_themselves():
    assert ms.TENSOR == ms.ObjectDataType.TENSOR
    assert ms.COMPLETE == ms.ReplicaStatus.COMPLETE
    assert (ms.FAILED, ms.PROCESSING) == (ms.TaskStatus.FAILED, ms.TaskStatus.PROCESSING)
