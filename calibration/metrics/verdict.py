"""The verdict on a measured level: steady and fit for use, or void, with every reason and its numbers.

Rules are in an order in which causes come before their effects; the verdict is that of the first rule broken, and the
reasons of all broken rules are given:

    client_limited  the load generator was late or busy: the numbers are not the server's
    shared          other clients loaded the server: the load was not the planned one
    overloaded      an open loop whose queue grew: there is no steady state to measure
    errors          more than 1 % of requests failed: the load was not the planned one
    wrong_lengths   answers with another number of tokens than requested: the workload was not the planned one
    unsteady        TTFT or E2E drifted, or had not settled, by more than 5 % beyond their noise
    little          users x time does not add up to the requests seen: users were idle, or requests are missing

A level that breaks no rule but is too short to judge steadiness, or varies by plan (schedule, trace), has no verdict:
"".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from calibration.metrics.precision import FEWEST_BATCHES, Answers, Mean, series, waves
from calibration.metrics.window import Sample, answered, failed_inside, over_s, within, wrong_inside
from calibration.plan import Level
from calibration.records import Load
from sizing.numbers import Floats, count_of, milliseconds, per_second, significant
from sizing.points import Verdict
from sizing.stats import inflation, t_quantile

# --- Does a series change over its window beyond its noise? t-intervals of a drift and of a settling.
#
# The noise is widened by the correlation of neighbouring residuals, like that of a mean (`sizing.stats.half_width`), so
# that the slow fluctuation of a queue does not count as a change.


class Change(NamedTuple):
    """How much higher a series ends than it began, and the half width of that difference, in its unit."""

    amount: float
    half_width: float

    @property
    def least(self) -> float:
        """The smallest change in the interval, with its sign; 0 if the interval contains 0."""
        return math.copysign(max(0.0, abs(self.amount) - self.half_width), self.amount)


def drift(series: Floats, confidence: float) -> Change:
    """The change of `series`, shape (n,) with n >= 4, equally spaced, along a line from its first value to its last.

    Degrees of freedom are not reduced for correlation: the residuals of a change that is not linear look correlated
    too, and that must not hide it.
    """
    n = len(series)
    at = np.linspace(-0.5, 0.5, n)
    spread = float(at @ at)
    slope = float(at @ series) / spread
    residuals = series - series.mean() - slope * at
    error = math.sqrt(float(residuals @ residuals) / (n - 2) / spread * inflation(residuals, fitted=2))
    return Change(slope, _reach(n - 2, confidence) * error)


def settling(series: Floats, first: int, confidence: float) -> Change:
    """The change from the mean of the `first` values of `series` to that of the rest, at least 4: a late warm-up.

    After Geweke (1992); the noise is that of the rest, which a warm-up does not affect.
    """
    begun, rest = series[:first], series[first:]
    residuals = rest - rest.mean()
    factor = inflation(residuals, fitted=1)
    error = math.sqrt(float(residuals @ residuals) / (len(rest) - 1) * factor * (1 / first + 1 / len(rest)))
    freedom = max(1.0, (len(rest) - 1) / factor)
    return Change(float(rest.mean() - begun.mean()), _reach(freedom, confidence) * error)


def _reach(freedom: float, confidence: float) -> float:
    return t_quantile(freedom, (1 + confidence) / 2)


# --- Do requests of an open loop leave as fast as they come, or does the queue grow more than by chance?

SERVED_SHARE = 0.98
CONFIDENCE = 0.95
STEPS = 20


def fell_behind(load: Load, sample: Sample) -> bool:
    """True if fewer than 98 % of the requests due in the window, including failed ones, left in it.

    Requests that the client never sent count as due.
    """
    came, left = _came_and_left(load, sample)
    return left < SERVED_SHARE * came


def behind(load: Load, sample: Sample) -> str:
    """By how much it fell behind, in words."""
    came, left = _came_and_left(load, sample)
    return (
        f"{significant(left / load.duration_s, 4)} of {per_second(came / load.duration_s, 4)} finished, "
        f"{left / came:.1%}, {SERVED_SHARE:.0%} are needed"
    )


def _came_and_left(load: Load, sample: Sample) -> tuple[int, int]:
    given_up = ~answered(load.log) & within(load, load.log.end_s)
    return load.issued, sample.completed + int(given_up.sum())


def growth(load: Load) -> Change:
    """Growth of the requests in flight over the window, with the one-sided half width of a 95 % interval.

    The steps of a queue exactly at capacity are independent, so that their mean has Student's t interval; below
    capacity, steps up are followed by steps down, and the growth is smaller.
    """
    edges_s = np.linspace(load.start_s, load.stop_s, STEPS + 1)
    came = np.searchsorted(np.sort(load.log.intended_s), edges_s)
    left = np.searchsorted(np.sort(over_s(load.log)), edges_s)
    steps = np.diff(came - left)
    reach = t_quantile(STEPS - 1, CONFIDENCE) * float(steps.std(ddof=1)) * math.sqrt(STEPS)
    return Change(float(steps.sum()), reach)


LATE_SHARE_OF_TTFT = 0.05
SENT_SHARE = 0.98
LAG_ALLOWED_S = 0.005
LAG_SHARE = 0.05
BUSY_CORE = 0.9
ERROR_SHARE = 0.01
OTHERS_SHARE = 0.01
STRAY = 1
"""A single request of another client, such as a health check, does not void a short level."""
CHANGE_ALLOWED = 0.05
WARM_UP_SHARES = (0.1, 0.25)
LITTLE_ALLOWED = 0.05
LENGTHS_ALLOWED = 0.1
"""Of the mean answer, where single ones may have any length: counted again from its text, one is a token or two off."""
FALSE_ALARMS = 0.005
Rule = Callable[[Load, Level, Sample], Iterator[str]]
_JUDGED: tuple[tuple[Mean, str], ...] = (("ttft_mean", "TTFT"), ("e2e_mean", "E2E"))


def judge(load: Load, level: Level, sample: Sample) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on a level and its reasons, one line each, starting with the name of the broken rule.

    `sample` are the answered requests of `load` in its window (`window.sample`), at least one.
    """
    broken = [(verdict, reason) for verdict, rule in RULES for reason in rule(load, level, sample)]
    if broken:
        return broken[0][0], tuple(f"{verdict}: {reason}" for verdict, reason in broken)
    undecided = _undecided(load, level, sample)
    return ("", (f"not judged: {undecided}",)) if undecided else ("steady", ())


def _undecided(load: Load, level: Level, sample: Sample) -> str:
    """Why a level that breaks no rule still cannot be called steady; empty if it can."""
    if varies(level):
        return "the load varies by plan"
    window_s = (load.start_s, load.stop_s)
    if not series(answers(sample), window_s):
        seen = waves(answers(sample), window_s)
        lasts = f"{significant(load.duration_s)} s lasts {seen:.1f} mean E2Es"
        return f"the window of {lasts}, steadiness needs {FEWEST_BATCHES}"
    if not level.closed and fell_behind(load, sample):
        return f"{behind(load, sample)}, but a queue may fluctuate this much: measure longer"
    return ""


def answers(sample: Sample) -> Answers:
    """The requests of `sample` as columns for intervals and trends."""
    return Answers(sample.due_s, sample.last_s, sample.ttft_s, sample.itl_s)


def varies(level: Level) -> bool:
    """True if the plan itself changes the load over time."""
    return level.kind in ("schedule", "trace")


def _client_limited(load: Load, level: Level, sample: Sample) -> Iterator[str]:
    if level.kind != "concurrency":
        yield from _late(load, sample)
        yield from _too_few_sent(load)
    yield from _lagging(load, sample)
    if load.client.busiest_core > BUSY_CORE:
        yield f"the client's busiest process used {load.client.busiest_core:.0%} of a core, more than {BUSY_CORE:.0%}"


def _late(load: Load, sample: Sample) -> Iterator[str]:
    late_s = float(np.percentile(lateness_s(load), 99))
    ttft_s = float((sample.log.first_token_s - sample.log.sent_s).mean())
    if late_s > LATE_SHARE_OF_TTFT * ttft_s:
        yield (
            f"requests were sent {milliseconds(late_s)} late (p99), more than {LATE_SHARE_OF_TTFT:.0%} of the mean "
            f"TTFT from sending, {milliseconds(ttft_s)}"
        )


def lateness_s(load: Load) -> Floats:
    """How late each request due in the window was sent, in seconds, shape (requests due,)."""
    log = load.log
    due = within(load, log.intended_s)
    return np.asarray(log.sent_s - log.intended_s)[due] if due.any() else np.zeros(1)


def _too_few_sent(load: Load) -> Iterator[str]:
    """If fewer requests were sent in the window than were due, the client was late: nothing else delays an open loop,
    or a user after the think time.

    Due requests are the planned ones: the log lacks requests that were not sent before the level ended.
    """
    due, sent = load.issued, int(within(load, load.log.sent_s).sum())
    if sent < SENT_SHARE * due:
        yield (
            f"{significant(sent / load.duration_s, 4)} of {per_second(due / load.duration_s, 4)} due were sent, "
            f"{sent / due:.1%}, {SENT_SHARE:.0%} are needed"
        )


def _lagging(load: Load, sample: Sample) -> Iterator[str]:
    """An event loop that lags by L stamps responses up to L late: TTFT and the time from first to last token are off.

    Up to 5 ms are accepted, as much as the self-check allows in TTFT. A mean ITL is off by L / (OSL - 1) only; gaps
    between tokens are off by L, which the point's notes mention.
    """
    lag_s = load.client.loop_lag_p99_s
    decoding_s = float((sample.last_s - sample.log.first_token_s).mean())
    for name, time_s in (
        ("mean TTFT", float(sample.ttft_s.mean())),
        ("mean time from first to last token", decoding_s),
    ):
        if lag_s > max(LAG_ALLOWED_S, LAG_SHARE * time_s) and time_s > 0:
            yield (
                f"the client's event loop lagged by {milliseconds(lag_s)} (p99), more than {LAG_SHARE:.0%} of the "
                f"{name}, {milliseconds(time_s)}, and than {milliseconds(LAG_ALLOWED_S)}"
            )


def _shared(load: Load, level: Level, sample: Sample) -> Iterator[str]:
    if load.served and load.of_others > others_allowed(load.served):
        yield (
            f"other clients sent {load.of_others} of the {load.served} requests that the server answered, "
            f"{load.of_others / load.served:.1%}, more than {OTHERS_SHARE:.0%}: measure while nobody else uses it"
        )


def others_allowed(served: int) -> float:
    """Most requests of other clients, out of `served`, with which a point is still fit for use."""
    return max(STRAY, OTHERS_SHARE * served)


def _overloaded(load: Load, level: Level, sample: Sample) -> Iterator[str]:
    """More requests came than left, by more than the fluctuation of a queue at its capacity explains."""
    if level.closed or varies(level) or not fell_behind(load, sample):
        return
    grown = growth(load)
    if grown.least > 0:
        yield f"{behind(load, sample)}; requests in flight grew by {grown.amount:.0f} ± {grown.half_width:.0f}"


def _errors(load: Load, level: Level, sample: Sample) -> Iterator[str]:
    failed = failed_inside(load)
    share = failed.sum() / (failed.sum() + sample.completed) if failed.any() else 0.0
    if share > ERROR_SHARE:
        first = load.log.error[int(np.argmax(failed))]
        count = count_of(int(failed.sum()), "request")
        yield f"{count} failed, {share:.1%}, more than {ERROR_SHARE:.0%}; the first with: {first}"


def _wrong_lengths(load: Load, level: Level, sample: Sample) -> Iterator[str]:
    wrong = wrong_inside(load)
    if wrong.any():
        first = load.log.error[int(np.argmax(wrong))]
        yield f"{wrong.sum()} of {len(sample)} answers; the first: {first}"
        return
    had, asked = (float(np.average(tokens, weights=sample.weight)) for tokens in (sample.log.tokens, sample.log.osl))
    if load.counts_tokens and abs(had / asked - 1) > LENGTHS_ALLOWED:
        yield f"the answers had {significant(had, 4)} tokens on average, {significant(asked, 4)} were asked for"


def _unsteady(load: Load, level: Level, sample: Sample) -> Iterator[str]:
    """Batch means of TTFT and E2E are tested for a drift and a warm-up, with one false alarm per hundred levels.

    The rate needs no test of its own: in a closed loop it is users / E2E; an open loop has the arrival rate, or is
    overloaded. Warm-ups are tested on logarithms, because queueing times are skewed, and a burst near the beginning
    would look like a warm-up.
    """
    if varies(level):
        return
    found = series(answers(sample), (load.start_s, load.stop_s))
    for name, label in _JUDGED:
        means = found.get(name, np.zeros(0))
        if means.size and means.min() > 0:
            yield from _changes(label, means, load.duration_s)


def _changes(label: str, means: Floats, duration_s: float) -> Iterator[str]:
    confidence = 1 - FALSE_ALARMS / (len(_JUDGED) * (1 + len(WARM_UP_SHARES)))
    tests = [("drifted", drift(means / means.mean(), confidence))]
    for share in WARM_UP_SHARES:
        first = max(1, round(share * len(means)))
        tests.append((f"of the first {share:.0%} differs from the rest", settling(np.log(means), first, confidence)))
    for how, found in tests:
        if abs(found.least) > CHANGE_ALLOWED:
            yield (
                f"{label} {how}: {found.amount:+.0%} ± {found.half_width:.0%} over {significant(duration_s)} s, "
                f"more than {CHANGE_ALLOWED:.0%} beyond the noise"
            )
            return


def _little(load: Load, level: Level, sample: Sample) -> Iterator[str]:
    if level.kind != "concurrency":
        return
    plain, whole = little(load, level.value)
    if abs(whole - 1) > LITTLE_ALLOWED:
        users = count_of(int(level.value), "user")
        yield (
            f"completions/s x mean E2E is {plain:.3f} x the {users}, {whole:.3f} if requests at the "
            f"window's edges count in part; it must be 1 ± {LITTLE_ALLOWED:g}"
        )


def little(load: Load, users: float) -> tuple[float, float]:
    """Completions/s x their mean E2E over the users of a closed loop; and the same without the window's edges.

    Here E2E is the time that a user waits: to the end of the answer, including an empty final response, because only
    then the next request is sent. Completions include time before the window and leave out requests in flight at its
    end. In lockstep, that makes the first figure miss 1 by a wave's length over the window's, so the second counts each
    request's time inside the window. That is the time users spent waiting over the time they had. It checks the log
    against the planned load, unlike weighted figures, which equal the requests in flight by construction.
    """
    log = load.log.where(answered(load.log))
    user_s = users * load.duration_s
    spent_s = (log.end_s - log.intended_s)[within(load, log.end_s)]
    inside_s = np.minimum(log.end_s, load.stop_s) - np.maximum(log.intended_s, load.start_s)
    return float(spent_s.sum()) / user_s, float(np.maximum(0.0, inside_s).sum()) / user_s


RULES: tuple[tuple[Verdict, Rule], ...] = (
    ("client_limited", _client_limited),
    ("shared", _shared),
    ("overloaded", _overloaded),
    ("errors", _errors),
    ("wrong_lengths", _wrong_lengths),
    ("unsteady", _unsteady),
    ("little", _little),
)
