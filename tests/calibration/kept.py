"""What the tests of store, records and bundles keep: points, logs and measurements, drawn or plain."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from calibration.records import Measurement, RequestLog
from calibration.store.database import WHOLE
from sizing.engine import MOST_INTERVAL, MOST_LOOKAHEAD, POLICIES
from sizing.points import COLUMNS, LoadKind, Point, Start, Verdict
from tests.calibration.timings import Timing, logged

POINT = Point(
    model="toy",
    precision="fp32",
    gpu="cpu",
    tp=1,
    isl=64,
    osl=32,
    load_kind="concurrency",
    load_value=4,
    requests_per_s=9.5,
)

positive = st.floats(1e-9, 1e6)
text = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Zl", "Zp")), max_size=20)
named = text.filter(bool)
_NEEDED: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("model", "precision", "gpu"), named),
    **dict.fromkeys(("tp", "pp"), st.integers(1, 1024)),
    **dict.fromkeys(("isl", "osl"), st.floats(1, 1e9)),
    **dict.fromkeys(("load_value", "requests_per_s"), st.floats(1e-9, 1e9)),
    **dict.fromkeys(("isl_cv", "osl_cv"), st.floats(0, 10)),
    **dict.fromkeys(("engine", "engine_version", "batching", "source", "measured_at", "notes"), text),
    "load_kind": st.sampled_from(get_args(LoadKind)),
    "verdict": st.sampled_from(get_args(Verdict)),
    "protocol": st.sampled_from(get_args(Start)),
    "policy": st.sampled_from(["", *POLICIES]),
}
_UNKNOWN_OR = {name: st.none() | positive for name in COLUMNS if name not in _NEEDED}
_UNKNOWN_OR |= {"prefix_tokens": st.none() | st.floats(0, 1e6), "prefix_hit": st.none() | st.floats(0, 1)}
_UNKNOWN_OR |= {"lookahead_steps": st.none() | st.floats(0, MOST_LOOKAHEAD)}
_UNKNOWN_OR |= {name: st.none() | st.integers(0, 2**31 - 1) for name in WHOLE[2:]}
_UNKNOWN_OR |= {"receive_interval_steps": st.none() | st.integers(1, MOST_INTERVAL)}
_UNKNOWN_OR |= {"batch_wait_steps": st.none() | st.integers(0, MOST_INTERVAL)}
_UNKNOWN_OR |= {"batch_wait_ratio": st.none() | st.floats(0.01, 1)}
points = st.fixed_dictionaries(_NEEDED | _UNKNOWN_OR).map(lambda values: Point(**values))
facts = st.dictionaries(text, st.floats(allow_nan=False, allow_infinity=False), max_size=4)

times = st.floats(0, 1e6)
timings = st.builds(
    Timing,
    intended_s=times,
    sent_s=times,
    end_s=times,
    tokens=st.lists(st.tuples(times, st.integers(1, 9)), max_size=5).map(tuple),
    isl=st.integers(1, 10**6),
    osl=st.integers(1, 10**6),
    error=text,
    turn=st.integers(0, 2),
)
logs = st.lists(timings, max_size=6).map(logged)


def some_log(requests: int = 3, tokens: int = 4) -> RequestLog:
    """A plain log: a request a second, a token each 0.1 s."""
    return logged(
        Timing(float(i), float(i), i + 1.0, tuple((i + 0.1 * k, 1) for k in range(1, tokens + 1)), 64, tokens)
        for i in range(requests)
    )


def measurement(point: Point = POINT, log: RequestLog | None = None) -> Measurement:
    """A point with facts and a log."""
    facts = {"late_p99_s": 0.001, "window_start_s": 0.5, "window_stop_s": 2.5}
    return Measurement(point, facts, {"queue_mean_s": 0.01}, log or some_log())


def same(one: RequestLog, other: RequestLog) -> bool:
    """Whether two logs hold the same requests, bit for bit."""
    arrays = [name for name in RequestLog.__dataclass_fields__ if name != "error"]
    return one.error == other.error and all(np.array_equal(getattr(one, n), getattr(other, n)) for n in arrays)
