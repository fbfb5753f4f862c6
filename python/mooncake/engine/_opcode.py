"""Which way bytes go."""

import enum


class TransferOpcode(enum.IntEnum):
    """Read from a peer, or write to it: as Mooncake's code spells it, and as its documentation does."""

    Read = 0
    Write = 1
    READ = 0
    WRITE = 1

    # As pybind11's enumerations show themselves, not as the numbers that they are.

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __bool__(self) -> bool:
        return True

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
