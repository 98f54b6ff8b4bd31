"""``python -m calibration size``: from the URL of a server to a GPU count, in one command.

The options become the plan of an adaptive sweep; its points are stored in a run like any other, and the planner answers
from them. A call that finds such a run continues it.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click
import numpy as np
from pydantic import ValidationError
from rich.console import Console

from calibration import run as sweep
from calibration.adapt import Adaptive, Best
from calibration.commands import as_json, heed_signals, load_text
from calibration.errors import CalibrationError, Cancelled, PlanError, StoreError, Undecided
from calibration.levels import adaptive_of, is_at, untried
from calibration.plan import (
    ASKED,
    LENGTHS,
    MOST_USERS,
    USUAL,
    Endpoint,
    Level,
    PlanFile,
    Protocol,
    ServerPlan,
    SweepPlan,
    level_key,
    level_s,
    parse_plan,
    users_of,
)
from calibration.progress import Bar
from calibration.records import Measurement
from calibration.requests.lengths import USUAL_ISL_CV, USUAL_OSL_CV
from calibration.store import Store
from calibration.target import answering, deployment, serving
from sizing import text as answer
from sizing.analyses.next_level import planned, usable
from sizing.analyses.verification import Sent, Verification, compared, verification, void_because
from sizing.cli.options import field_options, margin_options, options, shape_option, sla_options, take_shape, write_json
from sizing.cli.plan import report_json, show
from sizing.cli.shapes import extras_json
from sizing.errors import SizingError, first_fault, one_line
from sizing.files import yaml_of
from sizing.lazy_group import BAD_INPUT, INTERRUPTED, fail
from sizing.numbers import minutes, percent, with_unit
from sizing.plans import NoFeasiblePlan, Plan
from sizing.points import Deployment, Point
from sizing.question import Question
from sizing.text import Extras

EXAMPLES = """\b
Examples:
  python -m calibration size gpu-7:8000 --gpu h200_sxm --tp 2 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms --minutes 10 --verify
  python -m calibration size https://llm.example --model Qwen/Qwen3-32B --api-key-env LLM_KEY --gpu h200_sxm --tp 2 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s
  python -m calibration size gpu-7:8001 --model ensemble --gpu h200_sxm --precision fp8 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s
"""
WORTH = 0.1
"""A further level is recommended if it narrows the band by at least this fraction."""
TRITON_MODEL = str(ServerPlan.model_fields["model"].default)


deployment_options = options(
    click.option("--gpu", help="GPU of the server, such as h200_sxm; needed unless the server reports it."),
    click.option("--precision", help="Precision of the weights; default: as the server reports, else bf16."),
    click.option(
        "--tp", type=click.IntRange(1), help="Tensor parallelism of a replica; default: as the server reports, else 1."
    ),
    click.option(
        "--gpus-per-replica",
        type=click.IntRange(1),
        help="GPUs of a replica in all, over all pipeline stages; default: --tp.",
    ),
)
server_options = options(
    click.option(
        "--protocol",
        type=click.Choice(get_args(Protocol)),
        help="Protocol: Triton's grpc or http, or openai; default: detected.",
    ),
    click.option(
        "--api-key-env", metavar="NAME", help="Environment variable that holds the API key of an OpenAI server."
    ),
    click.option(
        "--endpoint", type=click.Choice(get_args(Endpoint)), help="API of an OpenAI server; default: completions."
    ),
    click.option(
        "--ca-file", type=click.Path(), help="Certificates (PEM) to trust for HTTPS, in addition to the system's."
    ),
    click.option(
        "--metrics-url",
        help="URL of the server's metrics, http://gpu-7:8002/metrics; default: an OpenAI server's own, if any.",
    ),
    click.option(
        "--tokenizer", help="The model's tokenizer.json or its folder; none: count words; default: ask the server."
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        help="Longest time of one request, in seconds.  [default: 120]",
    ),
)


@click.command("size", epilog=EXAMPLES)
@click.argument("url")
@options(
    click.option("--model", help="Model, by the server's name for it; default: the only one it lists."),
    shape_option,
    field_options("isl", "osl"),
    click.option(
        "--isl-cv", type=float, default=USUAL_ISL_CV, show_default=True, help="Coefficient of variation of ISL."
    ),
    click.option(
        "--osl-cv", type=float, default=USUAL_OSL_CV, show_default=True, help="Coefficient of variation of OSL."
    ),
    field_options("rate", required=True),
    field_options("arrivals", "routing"),
    sla_options,
    margin_options,
    click.option(
        "--minutes",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        help="Minutes of load in this call, at most; it ends earlier once the count is certain.",
    ),
    click.option(
        "--most-users",
        type=click.IntRange(2),
        default=MOST_USERS,
        show_default=True,
        help="Users of the highest closed loop.",
    ),
    deployment_options,
    server_options,
    click.option(
        "--verify",
        is_flag=True,
        help="Then offer the planned load of one replica, and compare latencies with the prediction.",
    ),
    click.option(
        "--verify-minutes",
        type=click.FloatRange(min=0, min_open=True),
        default=3.0,
        show_default=True,
        help="Minutes of that load, with --verify.",
    ),
    click.option("--fresh", is_flag=True, help="Start a new run, even if an earlier one could be continued."),
    click.option("--self-check/--no-self-check", default=True, help="Test the load generator against a mock first."),
    as_json,
)
def size_command(url: str, as_json: bool, **given: Any) -> None:
    """How many GPUs? Measure the server at URL at as few load levels as the answer needs, and plan from them.

    URL is host:port, http://host:port or https://host of an OpenAI server (vLLM, SGLang, NIM, llama.cpp ...) or of
    Triton (HTTP or gRPC); the protocol is detected. The points are kept: Ctrl-C prints the answer so far, and the same
    command continues from there. With --verify, the planned load of one replica then arrives at random, and its
    latencies are printed next to those predicted. Exit code 0: answered, whatever the verification showed; 3: no count
    meets the SLA.
    """
    Question.of(given)  # an invalid question is refused before the server is queried
    if not given["verify"]:
        given["verify_minutes"] = 0.0
    store, bar = Store(), Sizing(Console(stderr=True))
    heed_signals()
    with bar:
        with ending(bar) as sweeping:
            site = site_at(url, given, bar)
            take_shape(given, site.replica.model)
            before = None if given["fresh"] else measured_before(store, site, given)
            file = plan_of(site, given, 0.0 if before is None else spent_s(store, before, site, given))
            bar.run_id = before
            if before is None:
                sweep.run(file, store, bar, bar.enough)
            else:
                bar.says(f"continuing run {before}")
                sweep.resume(before, store, bar, bar.enough, file)
        if bar.run_id is None:
            if sweeping.failure is not None:
                raise sweeping.failure
            click.echo("interrupted before anything was measured", err=True)
            sys.exit(INTERRUPTED)
        found = Measured(bar.run_id, site, file, store.points(bar.run_id), sweeping)
        outcome, shown = outcome_of(found), None
        if isinstance(outcome, Plan):
            shown = verified(store, bar, found, outcome) if given["verify_minutes"] else verification(outcome)
    if sweeping.state == "interrupted":
        click.echo("interrupted: the answer so far follows; the same command continues from there", err=True)
    code = tell(found, outcome, shown, as_json, quiet=sweeping.failure is not None)
    if sweeping.failure is not None:
        fail(sweeping.failure, BAD_INPUT)
    sys.exit(INTERRUPTED if sweeping.state == "interrupted" else code)


@dataclass(slots=True)
class Ending:
    """How measuring ended, and its error if it failed."""

    state: Literal["done", "interrupted", "failed"] = "done"
    failure: CalibrationError | None = None


@contextmanager
def ending(bar: Sizing) -> Iterator[Ending]:
    """Catch Ctrl-C and errors of the measuring inside; the value says how it ended."""
    found = Ending()
    try:
        yield found
    except KeyboardInterrupt:
        found.state = "interrupted"
    except CalibrationError as error:
        failure = Undecided(bar.useless) if isinstance(error, Cancelled) and bar.useless else error
        found.state, found.failure = "failed", failure.named(OPTIONS)


class Sizing(Bar):
    """Progress with the minutes left. `enough` ends the sweep if its first answers show that it is `useless`.
    `verifying`: the verification level, once it is reached."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.enough = threading.Event()
        self.useless = ""
        self.verifying: Level | None = None

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        super().expects(level, seconds, after_s)
        self.verifying = level if level.verifies else None
        self.says(f"about {minutes(seconds + after_s)} of measuring left")

    def measured(self, level: Level, found: Measurement) -> None:
        super().measured(level, found)
        # independent of the load, so every level would have them
        if found.point.void and "wrong_lengths: " in found.point.notes:
            self.useless = f"the server's answers have other lengths than requested ({found.point.notes})"
            self.enough.set()


# --- The server, and what is assumed about it


@dataclass(frozen=True, slots=True)
class Site:
    """The server to size: `server` and `facts` as in a plan, its deployment `replica`, and those of its facts that were
    `assumed`."""

    server: Mapping[str, Any]
    facts: Mapping[str, Any]
    replica: Deployment
    assumed: Mapping[str, str]


def site_at(url: str, given: Mapping[str, Any], bar: Bar) -> Site:
    """The server at `url`. Raises ServerError if it cannot be measured, click's errors for missing options."""
    server = {"url": url, "model": given["model"] or TRITON_MODEL, "protocol": given["protocol"] or "openai"}
    named = ("api_key_env", "endpoint", "timeout_s", "metrics_url")
    server |= {name: given[name] for name in named if given[name] is not None}
    if given["ca_file"]:
        server["ca_file"] = str(Path(given["ca_file"]).resolve())
    if given["protocol"] is None or given["model"] is None:
        found = answering(server_plan({**server, "protocol": "openai"}))
        server["protocol"] = given["protocol"] or found.protocol
        server["model"] = given["model"] or only_model(found.models, bar)
    if server["protocol"] != "openai":
        server["url"] = server_plan({**server, "protocol": "openai"}).address
    server_plan(server)
    said = serving(_file(server, {}, {"lengths": [{"isl": given["isl"], "osl": given["osl"]}]}, given)).engine
    facts = facts_of(given, said)
    assumed = {name: value for name, value in USUAL.items() if not (name in facts or said.get(name))}
    facts |= {name: int(value) if name == "tp" else value for name, value in assumed.items()}
    if not (facts.get("gpu") or said.get("gpu")):
        raise click.UsageError("the server does not report its GPU: give --gpu, for instance --gpu h200_sxm")
    for name, value in assumed.items():
        bar.says(f"assumed: {name} {value}, which the server does not report (set it with --{name})")
    plan = _file(server, facts, {"lengths": [{"isl": 1.0, "osl": 1.0}]}, given).plan
    return Site(server, facts, deployment(plan.deployment, said), assumed)


def only_model(models: Sequence[str], bar: Bar) -> str:
    """The one model that the server lists. Raises click.UsageError if it lists none or several."""
    if len(models) != 1:
        which = (
            f"the server lists {', '.join(map(one_line, models[:5]))}"
            if models
            else f"for instance --model {TRITON_MODEL}"
        )
        raise click.UsageError(f"give --model, by the server's name for it: {which}")
    bar.says(f"model {models[0]}, the only one that the server lists")
    return models[0]


def server_plan(server: Mapping[str, Any]) -> ServerPlan:
    """The server of a plan. Raises PlanError, one line, for values that no plan may have."""
    return checked({"server": dict(server), "lengths": [{"isl": 1.0, "osl": 1.0}], "concurrency": [1]}).server


def checked(content: Mapping[str, Any]) -> SweepPlan:
    """The plan in `content`. Raises PlanError, one line that names the option, for values that no plan may have."""
    try:
        return SweepPlan.model_validate(content)
    except ValidationError as error:
        key, reason = first_fault(error, "the options")
    if key == "server":  # of several of its keys: the reason names them
        raise PlanError(re.sub(r"\w+", lambda word: OPTIONS.get(f"server.{word[0]}", word[0]), reason))
    key = re.sub(r"\.\d+", "", key)  # of one among several lengths or levels
    raise PlanError(f"{OPTIONS.get(key, key)}: {reason}")


def facts_of(given: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """The deployment facts in the options. Raises click.UsageError if they contradict each other or the server."""
    facts = {name: given[name] for name in ("gpu", "precision", "tp") if given[name] is not None}
    gpus = given["gpus_per_replica"]
    if gpus is None:
        return facts
    tp = int(facts.get("tp") or said.get("tp") or gpus)
    if gpus % tp:
        raise click.UsageError(f"--gpus-per-replica {gpus} is not a multiple of TP {tp}")
    return facts | {"tp": tp, "pp": gpus // tp}


OPTIONS: Mapping[str, str] = {
    "server.url": "the URL",
    "server.model": "--model",
    "server.api_key_env": "--api-key-env",
    "server.ca_file": "--ca-file",
    "server.metrics_url": "--metrics-url",
    "server.endpoint": "--endpoint",
    "server.timeout_s": "--timeout",
    "tokenizer": "--tokenizer",
    "concurrency": "--most-users",
    "client: {self_check: false}": "--no-self-check",
    **{f"deployment.{name}": f"--{name}" for name in ("gpu", "precision", "tp")},
    **{f"lengths.{name}": f"--{name.replace('_', '-')}" for name in LENGTHS},
    **{f"adaptive.{name}": f"--{name.replace('_', '-')}" for name in (*ASKED, "minutes", "verify_minutes")},
}
"""Keys of a plan, and the corresponding options."""


# --- The plan, and earlier measurements by it


def plan_of(site: Site, given: Mapping[str, Any], before_s: float) -> PlanFile:
    """The adaptive sweep for the options; earlier calls have measured `before_s` seconds of it."""
    budget_s = 60 * given["minutes"]
    asked = {name: given[name] for name in (*ASKED, "verify_minutes") if given.get(name) is not None}
    lengths = {name: asked.pop(name) for name in LENGTHS}
    return _file(
        site.server,
        site.facts,
        {
            "lengths": [lengths],
            "concurrency": users_of(given["most_users"]),
            "budget_s": level_s(budget_s),
            "adaptive": {"minutes": (before_s + budget_s) / 60, **asked},
            "client": {"self_check": given["self_check"]},
        },
        given,
    )


def _file(
    server: Mapping[str, Any], facts: Mapping[str, Any], rest: Mapping[str, Any], given: Mapping[str, Any]
) -> PlanFile:
    """A plan, parsed as if it came from a file. Raises PlanError."""
    tokenizer = given["tokenizer"]
    if tokenizer not in (None, "none"):
        tokenizer = str(Path(tokenizer).resolve())
    told = {"tokenizer": tokenizer} if tokenizer else {}
    content = {"server": dict(server), "deployment": dict(facts), **told, **rest}
    if not {"concurrency", "rates"} & set(content):
        content["concurrency"] = [1]
    checked(content)
    return parse_plan(yaml_of(content), "options")


def measured_before(store: Store, site: Site, given: Mapping[str, Any]) -> int | None:
    """The newest run of the same server, deployment, lengths and levels that has a usable point and only accepted
    points; None if there is none."""
    wanted = _measures(plan_of(site, given, 0.0).plan)
    for run in store.runs():
        if run.pending or run.discarded:  # not used in answers
            continue
        try:
            known = parse_plan(run.plan, folder=Path(run.folder)).plan if run.plan else None
        except PlanError:  # from another version of the program
            continue
        if known is None or known.adaptive is None or _measures(known) != wanted:
            continue
        points = store.points(run.id)
        if usable(tuple(points)) and all(point.deployment == site.replica for point in points):
            return run.id
    return None


def _measures(plan: SweepPlan) -> dict[str, Any]:
    """The part of a plan that must be equal in two plans of one sweep: all but the question, the times, the client and
    the metrics page."""
    apart = dict.fromkeys(("adaptive", "budget_s", "client"), True)
    return plan.model_dump(exclude={**apart, "server": {"metrics_url", "timeout_s"}})


def spent_s(store: Store, run_id: int, site: Site, given: Mapping[str, Any]) -> float:
    """Seconds of load that the points of a run took."""
    return chooser(plan_of(site, given, 0.0), site).summary(store.points(run_id)).spent_s


def chooser(file: PlanFile, site: Site) -> Adaptive:
    """The plan's adaptive sweep, to be asked about measured points: the times of other levels are not guessed."""
    return adaptive_of(file.plan, file.plan.levels(), site.replica, lambda level: 0.0)


# --- Does the server perform at the planned load as predicted?


def verified(store: Store, bar: Sizing, found: Measured, plan: Plan) -> Verification:
    """The planned load of a replica, measured now or in an earlier call, compared with the prediction."""
    question, reached = plan.question, bar.verifying
    rate_per_s = untried(plan.answer.load_per_s, found.points, question) if reached is None else reached.value
    for each in store.measurements(found.run_id):
        if is_at(each.point, rate_per_s, question):
            sent = sent_requests(store, found.run_id, each)
            return compared(plan.answer.candidate, question, each.point, each.facts, sent)
    ended = (
        f"the measuring before it {found.ending.state}" if reached is None else found.ending.failure or "interrupted"
    )
    return Verification(rate_per_s, why_not=str(ended))


def sent_requests(store: Store, run_id: int, measured: Measurement) -> Sent | None:
    """The requests of a level of random arrivals, from its records; None if those are not on this machine."""
    with suppress(StoreError, KeyError):  # a level measured elsewhere may lack its window
        if log := store.log(run_id, level_key(measured.point)):
            order = np.argsort(log.intended_s, kind="stable")
            due_s, first_s = log.intended_s[order], float(log.intended_s.min())
            start_s, stop_s = (measured.facts[f"window_{end}_s"] - first_s for end in ("start", "stop"))
            return Sent(due_s - first_s, start_s, stop_s, log.isl[order], log.osl[order])
    return None


# --- The answer, and its measurements


@dataclass(frozen=True, slots=True)
class Measured:
    """The `points` of run `run_id`, and the `ending` of the call that measured them."""

    run_id: int
    site: Site
    file: PlanFile
    points: Sequence[Point]
    ending: Ending

    @property
    def question(self) -> Question:
        """The plan's question about the server's model."""
        plan = self.file.plan
        assert plan.adaptive is not None
        return plan.adaptive.question(self.site.replica.model, plan.levels()[0].lengths)

    def plan(self) -> Plan:
        """The answer. Raises Undecided while the points give no law, NoFeasiblePlan if no count meets the SLA."""
        good = usable(tuple(self.points))
        try:
            return planned(self.points, self.question)
        except NoFeasiblePlan:
            raise
        except SizingError as error:
            if len({point.load_value for point in good}) > 1:
                raise Undecided(f"no answer from run {self.run_id}: {error}") from None
        void = "; ".join(f"{load_text(point)}: {void_because(point)}" for point in self.points if point.void)
        more = "give more --minutes" if self.ending.state == "done" else "run the same command again"
        remedy = f"void are {void}" if void else more
        raise Undecided(f"no answer yet: a law needs two levels, run {self.run_id} has {len(good)}; {remedy}")

    @property
    def seconds(self) -> float:
        """Seconds of load in all calls."""
        verifying = (point.duration_s or 0.0 for point in self.points if not point.closed)
        return chooser(self.file, self.site).summary(self.points).spent_s + sum(verifying)

    @property
    def best_left(self) -> Best | None:
        """The level that would narrow the band most, if it is worth its time."""
        best = chooser(self.file, self.site).best_left(self.points)
        return best if best is not None and best.narrows >= WORTH else None

    def as_dict(self) -> dict[str, Any]:
        """The key ``measured`` of the JSON."""
        best = self.best_left
        return {
            "run": self.run_id,
            "points": len(self.points),
            "void": sum(point.void for point in self.points),
            "minutes": self.seconds / 60,
            "ended": self.ending.state,
            "error": str(self.ending.failure) if self.ending.failure else None,
            "protocol": self.site.server["protocol"],
            "assumed": dict(self.site.assumed),
            "narrows_most": None
            if best is None
            else {"concurrency": best.level.value, "minutes": best.seconds / 60, "narrows": best.narrows},
        }

    def __str__(self) -> str:
        void = sum(point.void for point in self.points)
        not_fitted = f", {void} of them void and not fitted" if void else ""
        levels = f"{with_unit(str(len(self.points)), 'levels')}{not_fitted}"
        return f"Measured: {levels}, in {minutes(self.seconds)}; see python -m calibration show {self.run_id}."


def outcome_of(found: Measured) -> Plan | NoFeasiblePlan | Undecided:
    """The answer, or why there is none."""
    try:
        return found.plan()
    except (NoFeasiblePlan, Undecided) as error:
        return error


def tell(
    found: Measured,
    outcome: Plan | NoFeasiblePlan | Undecided,
    shown: Verification | None,
    as_json: bool,
    *,
    quiet: bool,
) -> int:
    """Print the answer; its exit code. `quiet`: print nothing if there is none."""
    if not isinstance(outcome, Plan):
        return tell_none(found, outcome, as_json, quiet=quiet)
    extras = Extras(verification=shown)
    if as_json:
        report = report_json(outcome, extras)
        more = extras_json(extras, outcome.question)
        write_json({**answer.as_json(outcome), **more, "measured": found.as_dict(), "report": report})
        return 0
    from sizing.cli.tables import print_plan  # costs rich's tables, which JSON does without

    print_plan(outcome, extras)
    click.echo(str(found))
    if (best := found.best_left) is not None:
        click.echo(
            f"Next: {with_unit(f'{best.level.value:g}', 'users')}, {minutes(best.seconds)}, would narrow the band "
            f"most, by about {percent(best.narrows)}."
        )
    return 0


def tell_none(found: Measured, error: NoFeasiblePlan | Undecided, as_json: bool, *, quiet: bool) -> int:
    """Print why there is no answer; its exit code."""
    rejected = error.rejected if isinstance(error, NoFeasiblePlan) else ()
    if as_json:
        feasible = False if isinstance(error, NoFeasiblePlan) else None
        reasons = [answer.rejection_json(rejection) for rejection in rejected]
        why = {"feasible": feasible, "why": str(error), "rejected": reasons, "verification": None}
        write_json({**why, "measured": found.as_dict()})
    if isinstance(error, NoFeasiblePlan):
        if not as_json:
            show(error, json_=False)
            click.echo(f"{answer.capital(str(error))}: {'; '.join(each.why for each in rejected)}")
            click.echo(str(found))
        return error.exit_code
    if not quiet:
        click.echo(f"{'' if found.ending.state == 'interrupted' else 'error: '}{error}", err=True)
    return BAD_INPUT
