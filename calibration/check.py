"""``python -m calibration check``: does an old calibration still hold? Two of its levels are measured again."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from calibration import run as sweep
from calibration.commands import as_json, heed_signals, load_text
from calibration.errors import CalibrationError, StoreError, Undecided
from calibration.plan import PlanFile, level_key, parse_plan
from calibration.progress import Bar
from calibration.records import Measurement
from calibration.store import LIVE, Run, Store
from calibration.store.work import discard
from sizing.engine import Batching
from sizing.files import parse_yaml, yaml_of
from sizing.fitting.levels import granted
from sizing.lazy_group import BAD_INPUT, INTERRUPTED, fail
from sizing.numbers import percent, significant, with_unit
from sizing.points import Point

CHANGED = 4
NORMAL_95 = 1.96
FIGURES = ("requests_per_s", "ttft_mean_s", "itl_mean_s")
"""Columns of a point that are compared, in the order of `granted`."""
NAMES = {"requests_per_s": "requests/s", "ttft_mean_s": "mean TTFT", "itl_mean_s": "mean ITL"}
LOOSER = {"ttft_mean_s": 2.0}
"""Factor of the tolerance for figures that vary more from run to run."""
UNLIMITED = 10**9
Verdict = Literal["holds", "changed", "unsure"]


@click.command(
    "check",
    epilog="""\b
Examples:
  python -m calibration check 3
  python -m calibration check Qwen/Qwen3-32B --url http://gpu-7:8001 --tolerance 0.05
""",
)
@click.argument("name", metavar="RUN|DEPLOYMENT")
@click.option("--url", help="Server to measure; default: that of the run.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0.01, 0.5),
    default=0.1,
    show_default=True,
    help="Allowed change of requests/s and ITL, as a fraction; twice as much is allowed for TTFT.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Minutes of load, both levels together; default: as in the run.",
)
@as_json
def check_command(name: str, url: str | None, tolerance: float, minutes: float | None, as_json: bool) -> None:
    """Does an old calibration still hold? Measure its lowest and its highest closed loop again, and compare.

    RUN is a number in `list`. DEPLOYMENT is the name of a model, of a run as in `list`, or of a deployment as in the
    points; its newest run whose points are used in answers is taken.

    Exit code 0: it holds; 4: something changed; 2: undecided, or an error.
    """
    store = Store()
    run = found_run(store, name)
    before = levels_of(store, run)
    file = again(run, before, url, minutes)
    bar = Bar(Console(stderr=True))
    heed_signals()
    try:
        with bar:
            now_id = sweep.run(file, store, bar, label=f"check of run {run.id}: {run.label}", reviewed=True)
    except KeyboardInterrupt:
        click.echo("interrupted: undecided; run the same command again", err=True)
        sys.exit(INTERRUPTED)
    except CalibrationError as error:
        if bar.run_id is None:
            raise error.named({"server.url": "--url"}) from None
        why = store.run(bar.run_id).error  # without the hint to resume, which makes no sense for a check
        raise type(error)(f"{why}; undecided: run the same command again") from None
    finally:
        if bar.run_id is not None and store.run(bar.run_id).points:
            discard(store, bar.run_id)  # a check's points are used nowhere else, unless somebody accepts them
    found = Check(run, store.run(now_id), tuple(compared(before, store.measurements(now_id), tolerance)), tolerance)
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    if found.verdict == "unsure":
        fail(Undecided(found.sentence), BAD_INPUT)
    sys.exit(CHANGED if found.verdict == "changed" else 0)


# --- Which levels, and the plan that measures them again


def found_run(store: Store, name: str) -> Run:
    """The run of this number, or a deployment's newest run whose points are used in answers, with a plan and a level to
    compare.

    Raises StoreError.
    """
    if name.isdecimal():
        run = store.run(int(name))
        if run.state in LIVE:
            raise StoreError(f"run {run.id} is {run.state}: wait until it ends, then check it")
        if not run.plan:
            raise StoreError(f"run {run.id} was imported and has no plan: name a run that was measured here")
        return run
    for run in store.runs():
        if run.plan and run.state not in LIVE and not (run.pending or run.discarded):
            deployments = {point.deployment for point in store.points(run.id) if comparable(point)}
            names = {run.label, *(each for one in deployments for each in (one.model, one.label))}
            if deployments and name.casefold() in (each.casefold() for each in names):
                return run
    raise StoreError(f"no measured run of {name!r} whose points are used in answers: see python -m calibration list")


def comparable(point: Point) -> bool:
    """Whether a level can be measured again and compared: a closed loop that is not void."""
    return point.closed and not point.void


def levels_of(store: Store, run: Run) -> list[Measurement]:
    """The lowest and the highest closed loop of the run that are not void, at the lengths of most of its levels.

    Raises Undecided if there is none.
    """
    closed = [item for item in store.measurements(run.id) if comparable(item.point)]
    if not closed:
        raise Undecided(
            f"run {run.id} has no usable closed loop to compare with: see python -m calibration show {run.id}"
        )
    lengths = [item.point.lengths for item in closed]
    most = max(lengths, key=lengths.count)
    alike = sorted((item for item in closed if item.point.lengths == most), key=lambda item: item.point.load_value)
    return alike if len(alike) < 2 else [alike[0], alike[-1]]


def again(run: Run, before: Sequence[Measurement], url: str | None, minutes: float | None) -> PlanFile:
    """The plan of `run` for the levels in `before` alone, which take all of the `minutes` if given.

    Raises PlanError, and Undecided if the plan lacks the lengths.
    """
    folder = Path(run.folder)
    plan = parse_plan(run.plan, f"plan of run {run.id}", folder).plan
    wanted = level_key(before[0].point)[:4]
    entries = [level.entry for level in plan.levels() if level.key[:4] == wanted] or [0] * (len(plan.lengths) == 1)
    if not entries:
        raise Undecided(f"run {run.id}: the lengths of its points are not in its plan: calibrate again")
    content: dict[str, Any] = dict(parse_yaml(run.plan, f"plan of run {run.id}"))
    for name in ("adaptive", "rates", "schedule", "replay", "arrivals"):
        content.pop(name, None)
    lengths = {name: value for name, value in content["lengths"][entries[0]].items() if name != "concurrency"}
    content |= {"lengths": [lengths], "check_load": 0.0}
    content["concurrency"] = [round(item.point.load_value) for item in before]
    if url is not None:
        content["server"] = {**content.get("server", {}), "url": url}
        content["server"].pop("metrics_url", None)  # of the other server
    if minutes is not None:
        content.pop("requests_per_level", None)
        content |= {"budget_s": 60 * minutes / len(before), "until": {"requests_min": UNLIMITED}}
    return parse_plan(yaml_of(content), f"plan of run {run.id}", folder)


# --- The comparison


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one level, then and now: `change` as a fraction, `low` to `high` its 95 % interval, `p_value` the
    probability of such a change if nothing changed. `tellable`: False if the old run alone is too short for this
    figure, however long the new one is."""

    concurrency: float
    figure: str
    before: float
    now: float
    change: float
    low: float
    high: float
    p_value: float
    verdict: Verdict
    tellable: bool = True

    def __str__(self) -> str:
        scale, unit = (1.0, "") if self.figure == "requests_per_s" else (1000.0, " ms")
        users = with_unit(f"{self.concurrency:g}", "users")
        values = f"{significant(scale * self.before)}{unit} then, {significant(scale * self.now)}{unit} now"
        return f"{users}, {NAMES[self.figure]}: {values}, {self.moved}: {self.verdict}"

    @property
    def moved(self) -> str:
        """The change with its interval."""
        low, high = (percent(value, sign=True) for value in (self.low, self.high))
        return f"{percent(self.change, sign=True)} ({low} to {high})"


def compared(before: Sequence[Measurement], now: Sequence[Measurement], tolerance: float) -> Iterator[Change]:
    """Each figure of each level, then and now. Raises Undecided for a level that is void now."""
    for old in before:
        new = next((item for item in now if level_key(item.point) == level_key(old.point)), None)
        users = load_text(old.point)
        if new is None or new.point.void:
            why = "it was not measured" if new is None else f"its point is void ({new.point.notes})"
            raise Undecided(f"whether the calibration holds is undecided: {users}: {why}")
        for place, figure in enumerate(FIGURES):
            then_value, now_value = getattr(old.point, figure), getattr(new.point, figure)
            if then_value and now_value:
                errors = error_of(old, place), error_of(new, place)
                allowed = tolerance * LOOSER.get(figure, 1.0)
                found = change(old.point.load_value, figure, (then_value, now_value), math.hypot(*errors), allowed)
                yield replace(found, tellable=math.expm1(NORMAL_95 * errors[0]) <= allowed)


def change(users: float, figure: str, values: tuple[float, float], error: float, tolerance: float) -> Change:
    """`error`: standard error of the log of the ratio of the two `values`, then and now.

    A figure has *changed* if it moved by more than the tolerance and the interval excludes no change. It *holds* if it
    moved by less and the interval extends no further than the tolerance to either side, so that twice that change would
    have been seen. Anything else is *unsure*.
    """
    ratio = values[1] / values[0]
    log, reach = math.log(ratio), NORMAL_95 * error
    moved = abs(ratio - 1) > tolerance
    verdict: Verdict = "unsure"
    if moved and abs(log) > reach:  # both at 95 %; the tolerance allows for looking at six figures
        verdict = "changed"
    elif not moved and math.expm1(reach) <= tolerance:
        verdict = "holds"
    low, high = math.expm1(log - reach), math.expm1(log + reach)
    p_value = math.erfc(abs(log) / error / math.sqrt(2))
    return Change(users, figure, values[0], values[1], ratio - 1, low, high, p_value, verdict)


def error_of(found: Measurement, place: int) -> float:
    """Relative standard error of a figure from run to run: that of the instrument, and the scatter within the level.

    The scatter is that of the batch means stored with the point or, if the level was too short for them, that of the
    lengths drawn, as in the fit.
    """
    width = found.facts.get(f"{FIGURES[place].removesuffix('_s') if place else FIGURES[0]}_half_width")
    if width is None:
        return granted(found.point, batching_of(found.point))[place]
    steady = replace(found.point, requests=UNLIMITED)
    return math.hypot(granted(steady, batching_of(found.point))[place], width / NORMAL_95)


def batching_of(point: Point) -> Batching:
    """The point's batch limit, else the usual one."""
    return Batching() if point.max_batch_size is None else Batching(max_batch_size=point.max_batch_size)


@dataclass(frozen=True, slots=True)
class Check:
    """Run `before` against run `now`, figure by figure."""

    before: Run
    now: Run
    changes: tuple[Change, ...]
    tolerance: float

    @property
    def verdict(self) -> Verdict:
        """The verdict over all figures: changed if one changed, else unsure if one is unsure."""
        verdicts = {each.verdict for each in self.changes}
        return "changed" if "changed" in verdicts else "unsure" if "unsure" in verdicts or not verdicts else "holds"

    @property
    def sentence(self) -> str:
        """The verdict with its figures."""
        allowed = f"{percent(self.tolerance)} (TTFT {percent(2 * self.tolerance)})"
        said = [
            f"{NAMES[each.figure]} at {with_unit(f'{each.concurrency:g}', 'users')} {each.moved}"
            for each in self.changes
            if each.verdict == self.verdict
        ]
        if self.verdict == "changed":
            return f"run {self.before.id} no longer holds: {'; '.join(said)}"
        if self.verdict == "unsure":
            told = all(each.tellable for each in self.changes if each.verdict == "unsure")
            remedy = "give more --minutes" if told else f"run {self.before.id} was too short: calibrate anew"
            return f"whether run {self.before.id} holds is undecided, {remedy}: {'; '.join(said)}"
        return f"run {self.before.id} holds: no figure moved by more than {allowed}"

    def as_dict(self) -> dict[str, Any]:
        """The JSON."""
        return {
            "holds": {"holds": True, "changed": False, "unsure": None}[self.verdict],
            "why": self.sentence,
            "run": self.before.id,
            "measured_at": self.before.created,
            "now": self.now.id,
            "tolerance": self.tolerance,
            "figures": [asdict(each) for each in self.changes],
        }

    def __str__(self) -> str:
        kept = f"stored as run {self.now.id}, whose points are used in no answer"
        said = f"{self.sentence}; {kept}" if self.verdict != "unsure" else kept  # in that case the error says it
        return "\n".join([*map(str, self.changes), f"{said[:1].upper()}{said[1:]}."])
