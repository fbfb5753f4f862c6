"""torch, for the tests that need it; without it their file is skipped, and says so."""

from __future__ import annotations

import pytest

torch = pytest.importorskip(
    "torch", reason="the tests of tensors need torch, which is not installed here: `make e2e` runs them with its own"
)
