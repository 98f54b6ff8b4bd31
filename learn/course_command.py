"""``python -m sizing course``: the usual method, with what it leaves out, beside our planner's answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from pydantic import ValidationError

from learn.course import (
    ApiPrice,
    CourseSizing,
    Goal,
    ServerPrice,
    best,
    example,
    per_second,
    per_token,
    requests_per_s,
    size,
    tco,
    throughput,
)
from learn.course.beside import Terms, ours
from learn.course.corrections import corrections
from learn.course.demand import PEAK_SHARE, peak_from_mean
from learn.course.shapes import Cost, Load, course_json, sizing_json
from learn.course.throughput import SIX, goals_of
from learn.course_printing import print_course, print_example
from sizing.cli.options import (
    as_json,
    check_companions,
    options,
    options_as_typed,
    refuse,
    set_by_hand,
    write_json,
)
from sizing.errors import ScenarioError, first_fault
from sizing.numbers import percent
from sizing.plans import NoFeasiblePlan, Plan
from sizing.points import Point, read_points
from sizing.workload import OF_REQUESTS

EXAMPLES = """\b
Examples:
  python -m sizing course --example
  python -m sizing course --points data/course/h100-llama3-8b-2000-200.csv --ttft 300ms --peak 200
  python -m sizing course --points data/course/h100-llama3-8b-2000-200.csv --ttft 500ms --mean 28.54 --peak-factor 7 \\
      --server-price 320000 --years 4 --hosting 3000 --licence 4500 --api 1,3
  python -m sizing course --model Llama3-8B --precision fp8 --gpu H100 --tp 1 --isl 2000 --osl 200 --concurrency 10 \\
      --requests-per-s 5.1954 --users 4000 --requests-per-session 30 --session-s 600
"""


COMPANIONS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("points",): ("ttft", "itl", "e2e", "percentile", "headroom", "spare"),
    ("users",): ("requests_per_session", "session_s"),
    ("server_price",): ("years", "hosting", "licence", "api"),
}
"""Parameters of which one must be given -> those that mean nothing without."""


@click.command("course", epilog=EXAMPLES)
@options(
    click.option("--example", "example_", is_flag=True, help="Print the course's worked example, and where it errs."),
    click.option("--points", type=click.Path(), help="CSV file of measured points to choose from."),
    click.option("--model", help="Model; with --points: only this one."),
    click.option("--precision", help="Precision; with --points: only this one."),
    click.option("--gpu", help="GPU; with --points: only this one."),
    click.option("--tp", type=int, help="Tensor parallel size; with --points: only this one."),
    click.option("--isl", type=float, help="Input tokens; with --points: only these."),
    click.option("--osl", type=float, help="Output tokens; with --points: only these."),
    click.option("--concurrency", type=float, help="Concurrency; with --points: only this one."),
    click.option(
        "--requests-per-s",
        "measured_per_s",
        type=float,
        help="Measured requests/s of one instance, instead of --points.",
    ),
    click.option(
        "--ttft", help="With --points: limit on the mean TTFT, for instance 300ms, or on a percentile, p95:300ms."
    ),
    click.option("--itl", help="The same for ITL."),
    click.option("--e2e", help="The same for E2E."),
    click.option("--peak", type=float, help="Requests/s at the peak."),
    click.option("--mean", type=float, help="Requests/s on average, instead of --peak."),
    click.option("--per-year", type=float, help="Requests per year, instead of --mean."),
    click.option("--users", type=float, help="Users in a session at once, instead of --mean."),
    click.option("--requests-per-session", type=float, help="With --users: requests per session."),
    click.option("--session-s", type=float, help="With --users: duration of a session in seconds."),
    click.option(
        "--peak-factor",
        type=float,
        help="Peak over mean load. Default: the 95th percentile of Poisson arrivals in a second.",
    ),
    click.option(
        "--gpus-per-server", type=click.IntRange(1, 1024), default=8, show_default=True, help="GPUs per server."
    ),
    click.option("--server-price", type=float, help="Price of a server, in any currency: also prints the cost."),
    click.option(
        "--years",
        type=float,
        default=4.0,
        show_default=True,
        help="With --server-price: years over which a server is written off.",
    ),
    click.option(
        "--hosting",
        type=float,
        default=0.0,
        show_default=True,
        help="With --server-price: hosting per server and year.",
    ),
    click.option(
        "--licence", type=float, default=0.0, show_default=True, help="With --server-price: licence per GPU and year."
    ),
    click.option(
        "--api", help="With --server-price: prices of an API per million tokens in and out, for instance 1,3."
    ),
    click.option(
        "--percentile",
        type=int,
        default=95,
        show_default=True,
        help="Percentile of the limits in this planner's answer.",
    ),
    click.option("--headroom", type=float, default=0.2, show_default=True, help="Headroom in this planner's answer."),
    click.option("--spare", type=int, default=1, show_default=True, help="Spare replicas in this planner's answer."),
    as_json,
)
@click.pass_context
def course_command(context: click.Context, /, example_: bool, json_: bool, **given: Any) -> None:
    """Highest measured requests/s per GPU within a limit on a mean latency, and the fleet that follows.

    A throughput counts only with its six parameters: model, precision, ISL, OSL, concurrency, TP.
    """
    if example_:
        others = options_as_typed(context).keys() - {"example_", "json_"}
        refuse(context, sorted(others), "does not go with --example: it has its own points, limits and load")
        write_json(example_json()) if json_ else print_example()
        return
    check_companions(context, COMPANIONS)
    if given["points"]:
        refuse(context, ["measured_per_s"], "does not go with --points, which tell it")
    if given["peak"] is not None:
        refuse(context, ["peak_factor"], "does not go with --peak, which is the peak already")
    load, points = load_of(given), points_of(given, set_by_hand(context))
    goals = goals_of(**{metric: given[metric] for metric in OF_REQUESTS}) if given["points"] else ()
    chosen = best(points, goals) if given["points"] else throughput(points[0])
    sizing = size(chosen, load.peak_per_s, given["gpus_per_server"])
    terms = Terms(given["percentile"], given["headroom"], given["spare"])
    plan = our_plan(points, sizing, goals, terms) if given["points"] else None
    cost = cost_of(given, sizing, load)
    if json_:
        write_json(course_json(sizing, load, cost, plan))
    else:
        print_course(sizing, load, cost, plan, terms)


def load_of(given: dict[str, Any]) -> Load:
    """Mean and peak. ScenarioError unless the load is given in exactly one way."""
    ways = [name for name in ("peak", "mean", "per_year", "users") if given[name] is not None]
    if len(ways) != 1:
        raise ScenarioError("give the load once: --peak, --mean, --per-year, or --users with its session")
    if ways == ["peak"]:
        return Load(None, given["peak"], "given")
    mean = mean_of(given)
    factor = given["peak_factor"]
    if factor is not None:
        if factor < 1:
            raise ScenarioError(f"--peak-factor must be 1 or more, got {factor:g}")
        return Load(mean, factor * mean, f"{factor:g} x the mean")
    return Load(mean, float(peak_from_mean(mean)), f"not exceeded in {percent(PEAK_SHARE)} of the seconds, Poisson")


def mean_of(given: dict[str, Any]) -> float:
    """Requests/s on average, from whichever option gives it."""
    if given["mean"] is not None:
        return float(given["mean"])
    if given["per_year"] is not None:
        return per_second(given["per_year"])
    if given["requests_per_session"] is None or given["session_s"] is None:
        raise ScenarioError("--users needs --requests-per-session and --session-s, the seconds of a session")
    return requests_per_s(given["users"], given["requests_per_session"], given["session_s"])


def points_of(given: dict[str, Any], by_hand: Collection[str]) -> list[Point]:
    """The points of the file that have the parameters given, or the one point that the options describe."""
    if given["points"]:
        wanted = {name: given[name] for name in (*SIX, "gpu") if name in by_hand}
        return [point for point in read_points(given["points"]) if has(point, wanted)]
    missing = [f"--{name}" for name in (*SIX, "requests-per-s") if given[NAMES.get(name, name)] is None]
    if missing:
        listed = ", ".join(missing)
        raise ScenarioError(
            f"a throughput says nothing without its six parameters; missing: {listed} (or give --points)"
        )
    return [one_point(given)]


NAMES = {"requests-per-s": "measured_per_s"}


def has(point: Point, wanted: dict[str, Any]) -> bool:
    """True for a point with all these parameters, letter case apart."""
    values = {name: getattr(point, name) for name in ("model", "precision", "isl", "osl", "tp", "gpu")}
    values["concurrency"] = point.load_value
    return all(str(values[name]).casefold() == str(value).casefold() for name, value in wanted.items())


def one_point(given: dict[str, Any]) -> Point:
    """The point that the options describe. ScenarioError for what cannot have been measured."""
    for name in ("isl", "osl", "concurrency", "measured_per_s", "tp"):
        if not 0 < given[name] < float("inf"):
            raise ScenarioError(f"{name.replace('_', ' ')} must be a number above 0, got {given[name]:g}")
    names = ("model", "precision", "isl", "osl", "tp")
    try:
        return Point(
            **{name: given[name] for name in names},
            gpu=given["gpu"] or "GPU not named",
            load_kind="concurrency",
            load_value=given["concurrency"],
            requests_per_s=given["measured_per_s"],
        )
    except ValidationError as error:
        raise ScenarioError(str(first_fault(error))) from None


def our_plan(points: Sequence[Point], sizing: CourseSizing, goals: Sequence[Goal], terms: Terms) -> Plan | str:
    """Our planner's answer, or one line on why there is none."""
    try:
        return ours(points, sizing, goals, terms)
    except NoFeasiblePlan as error:
        return str(error)


def cost_of(given: dict[str, Any], sizing: CourseSizing, load: Load) -> Cost | None:
    """The cost, where a server has a price. At the mean load where it is known, else at the peak."""
    if given["server_price"] is None:
        return None
    price = ServerPrice(
        given["server_price"], given["years"], given["hosting"], given["licence"], given["gpus_per_server"]
    )
    mean = load.mean_per_s or load.peak_per_s
    fractional = tco(sizing.servers, price, load.peak_per_s, mean)
    whole = tco(sizing.whole_servers, price, load.peak_per_s, mean)
    if not given["api"]:
        return Cost(fractional, whole, None, None)
    api, point = api_of(given["api"]), sizing.throughput.point
    ratio = api.per_million_out / api.per_million_in
    split = per_token(whole.per_1000_at_mean, point.isl, point.osl, ratio)
    return Cost(fractional, whole, api.per_1000_requests(point.isl, point.osl), split)


def api_of(text: str) -> ApiPrice:
    """Prices from ``1,3``. ScenarioError for anything else."""
    try:
        per_in, per_out = map(float, text.split(","))
    except ValueError:
        raise ScenarioError(
            f"--api {text!r}: write the prices of a million tokens in and out, for instance 1,3"
        ) from None
    if per_in <= 0:
        raise ScenarioError(f"--api {text!r}: the price of input tokens must be above 0")
    return ApiPrice(per_in, per_out)


def example_json() -> dict[str, Any]:
    """The worked example and the corrections for machines."""
    return {
        "mean_per_s": example.mean_per_s(),
        "peak_per_s": example.peak_per_s(),
        "sizings": [sizing_json(sizing) for sizing in example.sizings()],
        "corrections": [asdict(error) for error in corrections()],
    }
