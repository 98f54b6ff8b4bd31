"""The reference server needs a Python that its binary supports; elsewhere its tests say so instead of failing."""

from __future__ import annotations

import sys

import pytest

from calibration.reference.environment import PYTHON_VERSION, SUPPORTED

collect_ignore = ["engine_trace.py"]  # runs in the reference environment, where torch is


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.version_info[:2] in SUPPORTED:
        return
    reason = f"the reference server's Python backend has no build for Python {PYTHON_VERSION}"
    for item in items:
        if item.get_closest_marker("triton"):
            item.add_marker(pytest.mark.skip(reason=reason))
