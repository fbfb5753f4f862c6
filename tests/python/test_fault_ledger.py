"""The ledger that tests of faults judge reads by tells apart what a reader may get and what it must not."""

from __future__ import annotations

import pytest
from ledger import EXCUSED, SETTLES, Ledger

KEY = "key"


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "ledger", [KEY, "other"])


def reads(ledger: Ledger, version: int) -> str | None:
    return ledger.wrong(KEY, version, ledger.before_read(KEY))


def test_a_version_is_read_from_its_beginning_until_it_is_replaced_or_removed(ledger):
    assert "future" in reads(ledger, 1)
    first = ledger.begins(KEY)
    assert reads(ledger, first) is None, "a write under way may be seen"
    ledger.is_stored(KEY, replaces=False)
    before = ledger.before_read(KEY)
    second = ledger.begins(KEY)
    assert reads(ledger, first) is None, "until the one that replaces it is acknowledged"
    ledger.is_stored(KEY, replaces=True)
    assert "resurrected" in reads(ledger, first)
    assert ledger.wrong(KEY, first, before) is None, "a read that began before may be of then"
    assert reads(ledger, second) is None
    ledger.is_removed(KEY, since=0)
    assert "resurrected" in reads(ledger, second)


def test_what_came_to_no_known_end_is_excused_until_it_has_settled(ledger, monkeypatch):
    now = 10**12
    monkeypatch.setattr("ledger.time.monotonic_ns", lambda: now)
    unsure = ledger.begins(KEY)
    ledger.is_unsure(KEY)
    ledger.is_removed(KEY, since=now + 10**9)
    assert reads(ledger, unsure) is None, "it may still come"
    ledger.is_removed(KEY, since=now + int(SETTLES * 1e9) + 1)
    assert "resurrected" in reads(ledger, unsure)
    for _ in range(EXCUSED):
        assert ledger.may_write(KEY)
        ledger.begins(KEY)
        ledger.takes_over([KEY])
    assert not ledger.may_write(KEY)


def test_a_removal_of_everything_ends_what_had_ended_when_it_began(ledger):
    stored = ledger.begins(KEY)
    ledger.is_stored(KEY, replaces=False)
    under_way = ledger.begins("other")
    floors = ledger.before_sweep()
    ledger.is_swept(floors)
    assert "resurrected" in reads(ledger, stored)
    assert ledger.wrong("other", under_way, ledger.before_read("other")) is None


class Interrupted:
    """The numbers of a ledger: behind the first look at all keys something else happens."""

    def __init__(self, words, happens):
        self.words, self.happens = words, happens

    def __getitem__(self, at):
        found = self.words[at]
        if isinstance(at, tuple) and at[0] == slice(None) and self.happens:
            found, happens, self.happens = found.copy(), self.happens, None
            happens()
        return found


@pytest.mark.parametrize("is_over", [False, True])
def test_a_write_that_begins_while_a_removal_of_everything_is_noted_is_not_ended_by_it(ledger, is_over):
    stored, written = ledger.begins(KEY), []
    ledger.is_stored(KEY, replaces=False)
    words = ledger._words

    def writes():
        ledger._words = words
        written.append(ledger.begins(KEY))
        if is_over:
            ledger.is_stored(KEY, replaces=False)

    ledger._words = Interrupted(words, writes)
    floors = ledger.before_sweep()
    ledger._words = words
    ledger.is_swept(floors)
    assert written == [stored + 1]
    assert "resurrected" in reads(ledger, stored)
    assert reads(ledger, stored + 1) is None, "it may have come behind the removal"
