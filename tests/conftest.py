"""Settings of all tests: where CI is set, hypothesis draws the same examples every time, so that a run repeats."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # how long an example takes on a busy machine says nothing
settings.register_profile("ci", settings.get_profile("unhurried"), derandomize=True, print_blob=True)
settings.load_profile("unhurried")
if os.environ.get("CI"):
    settings.load_profile("ci")
