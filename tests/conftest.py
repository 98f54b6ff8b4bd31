"""Settings of all tests: where CI is set, hypothesis draws the same examples every time, so that a run repeats."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
