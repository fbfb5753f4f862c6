"""Whether engines still call what is recorded for the replays in tests/python."""

import json
from pathlib import Path

import recorded_transfers

TESTS = Path(__file__).resolve().parent.parent / "tests" / "python"
# Calls into the store for test_engine_calls.py, and into the transfer engine for test_transfer_calls.py.
FOLDER = TESTS / "engine_calls"
TRANSFERS = TESTS / "transfer_calls"


def recording(folder, process):
    """The environment in which a client of e2e/clients, or a server with the plugin, writes down its calls."""
    return {"MOONCAKE_E2E_RECORD": str(folder / f"{process}.calls")}


def unknown_calls(folder, name):
    """The forms of calls that the processes of `folder` made, and that the recorded conversation `name` has not."""
    found = set().union(*(_forms(_lines(file)) for file in folder.glob("*.calls")))
    return sorted(found - _forms(_lines(FOLDER / f"{name}.jsonl")))


def unknown_transfers(folder, name):
    """As `unknown_calls`, of calls into the transfer engine."""
    found = _forms(recorded_transfers.conversation(sorted(folder.glob("*.calls"))))
    return sorted(found - _forms(_lines(TRANSFERS / f"{name}.jsonl")))


def _lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def _forms(calls):
    return {_form(call) for call in calls if "call" in call}


def _form(call):
    arguments = [_kind(value) for value in call["args"]]
    arguments += [f"{name}={_kind(value)}" for name, value in call.get("kwargs", {}).items()]
    return f"{call['call']}({', '.join(arguments)})"


def _kind(value):
    if isinstance(value, list):
        if value and value[0] in ("buffer", "memory", "bytes"):
            return value[0]
        return "[" + " or ".join(sorted({_kind(one) for one in value})) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_kind(one)}" for name, one in sorted(value.items())) + "}"
    return type(value).__name__
