"""A plan against its server: a simulated one that does what the law says, one that is slower, and levels of no use."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sizing import planner, text
from sizing.analyses.next_level import Option
from sizing.analyses.verification import Sent, compared, measurements, verification
from sizing.candidates import from_fit
from sizing.catalog import Layout
from sizing.cli import cli
from sizing.engine import Replica
from sizing.fitting import fit
from sizing.plans import Candidate, Plan
from sizing.points import Point, write_points
from sizing.prediction import Quantiles
from sizing.question import Question
from sizing.simulator import simulate_trace
from sizing.workload import Arrivals, Lengths, Seconds, Tokens
from tests.sizing.simulated_levels import LAW, SERVER, simulated_point

LENGTHS = Lengths(1000, 200, 0.3, 0.5)
ASKED = {"isl": 1000, "osl": 200, "isl_cv": 0.3, "osl_cv": 0.5, "rate": 60, "ttft": "p95:500ms", "itl": "p95:20ms"}
QUESTION = Question.of({**ASKED, "model": "m"})
EXACT = Candidate("m", "g", Layout(1), "bf16", SERVER, "fitted", "the law itself", 0.0)
ENOUGH = 800


@cache
def planned() -> Plan:
    return planner.plan(QUESTION, [EXACT])


def sent(rate_per_s: float, seed: int, requests: int) -> tuple[Seconds, Tokens, Tokens]:
    """When so many requests come, and their lengths."""
    rng = np.random.default_rng(seed)
    return Arrivals().times(requests, rate_per_s, rng), *LENGTHS.sample(requests, rng)


def very(rate_per_s: float, seed: int) -> Sent:
    """The requests behind `shown`."""
    arrival_s, isl, osl = sent(rate_per_s, seed, 2 * ENOUGH)
    return Sent(arrival_s, float(arrival_s[ENOUGH]), float(arrival_s[-1]), isl, osl)


def shown(server: Replica, rate_per_s: float, seed: int = 0, requests: int = ENOUGH, **fields: Any) -> Point:
    """What a measurement of so many requests at random shows of a server, at exactly the rate asked for, after as many
    others; the load goes on meanwhile."""
    arrival_s, isl, osl = sent(rate_per_s, seed, 2 * requests)
    later_s, *later = sent(rate_per_s, seed + 1000, requests)
    requested = zip((arrival_s, isl, osl), (arrival_s[-1] + later_s, *later), strict=True)
    run = simulate_trace(server, *(np.concatenate(both) for both in requested))
    values: dict[str, Any] = {}
    for metric in ("ttft", "itl", "e2e"):
        quantiles = Quantiles.of(run.of(metric)[requests : 2 * requests])
        values |= {f"{metric}_p{each}_s": quantiles.at(each) for each in (50, 90, 95, 99)}
    point = simulated_point(Option(LENGTHS, 1, 50))
    values |= {"load_kind": "poisson_rate", "load_value": rate_per_s, "requests": requests, "verdict": "steady"}
    return dataclasses.replace(point, **values | fields)


def with_levels(*points: Point) -> Plan:
    """The plan when these levels were measured too."""
    fleet = planned().answer
    return dataclasses.replace(
        planned(),
        fleets=(dataclasses.replace(fleet, candidate=dataclasses.replace(EXACT, open_loops=points)),),
    )


def test_measurements_of_a_server_that_follows_the_law_lie_in_the_band_as_often_as_it_says() -> None:
    """Nine in ten of each figure; the instrument's error, which these have not, lets a few more in."""
    load = planned().answer.load_per_s
    found = [compared(EXACT, QUESTION, shown(SERVER, load, seed)) for seed in range(1, 41)]
    figures = [figure for one in found for figure in one.figures]
    assert {(each.of.metric, each.of.percentile) for each in figures} == {
        (metric, percentile) for metric in ("ttft", "itl", "e2e") for percentile in (50, 95)
    }
    assert sum(each.verdict == "in" for each in figures) >= 0.85 * len(figures)
    assert sum(one.verified for one in found) >= 0.8 * len(found)


def test_of_the_very_requests_that_were_sent_a_measurement_shows_what_the_law_says() -> None:
    """With an exact law only where in a decode step requests reach the scheduler is left to chance, and what one run
    differs by from the next: 2 % in all times, which TTFT shows together with the rest of its 4 %, and p95 TTFT with
    another 6 %. Of arrivals whose lengths are unknown the band is wider as a rule. A server one tenth slower is out."""
    load = planned().answer.load_per_s / 2
    inside, off, wider = [], [], []
    for seed in range(1, 11):
        requests, point = very(load, seed), shown(SERVER, load, seed)
        told = compared(EXACT, QUESTION, point, sent=requests)
        alike = compared(EXACT, QUESTION, point, sent=dataclasses.replace(requests, isl=None, osl=None))
        slow, fast = (
            shown(dataclasses.replace(SERVER, law=LAW.scaled(math.exp(drift))), load, seed) for drift in (0.02, -0.02)
        )
        for one, other in zip(told.figures, alike.figures, strict=True):
            assert one.measured_s is not None
            off.append(abs(math.log(one.predicted_s / one.measured_s)))
            inside.append(one.verdict == "in")
            widths = [math.log(each.high_s / each.low_s) for each in (one, other)]
            name = f"{one.of.metric}_p{one.of.percentile}_s"
            moved = math.log(getattr(slow, name) / getattr(fast, name)) / 2
            beside = math.sqrt(0.04**2 - 0.02**2) if one.of.metric == "ttft" else 0.0
            tail = 0.06 if (one.of.metric, one.of.percentile) == ("ttft", 95) else 0.0
            half = widths[0] / 2 / 1.645
            assert math.hypot(0.02, beside, tail) * 0.98 < half < math.hypot(moved, beside, tail, 0.05), "by chance 5 %"
            wider.append(widths[1] / widths[0])
        slower = shown(dataclasses.replace(SERVER, law=LAW.scaled(1.1)), load, seed)
        assert not compared(EXACT, QUESTION, slower, sent=requests).verified
    assert np.mean(inside) >= 0.95, "run-to-run variation and the instrument's error let more in than nine of ten"
    assert np.median(off) < 0.01
    assert np.median(wider) > 1.05


def test_requests_at_the_edges_of_the_window_count_in_part_and_as_under_load() -> None:
    """As `calibration` weighs them; the load goes on after the window, so that the last answers are not those of a
    server that empties."""
    arrival_s, isl, osl = sent(planned().answer.load_per_s, 1, 400)
    window = Sent(arrival_s, float(arrival_s[100]), float(arrival_s[-1]), isl, osl)
    workload = dataclasses.replace(QUESTION.workload, rate_per_s=planned().answer.load_per_s)
    found = measurements(SERVER, workload, 300, 2.0, window, most=3)
    early = [one.run.ttft_s[:50] for one in found]
    assert not np.allclose(early[0], early[1], rtol=1e-3), "where in a step requests come is left to chance"
    for one in found:
        run = one.run
        ended_s = run.arrival_s + run.e2e_s
        assert one.weight[(run.arrival_s >= window.start_s) & (ended_s <= window.stop_s)] == pytest.approx(1)
        assert (one.weight[(ended_s <= window.start_s) | (run.arrival_s >= window.stop_s)] == 0).all()
        cut = (run.arrival_s < window.stop_s) & (ended_s > window.stop_s)
        share = (window.stop_s - run.arrival_s[cut]) / run.e2e_s[cut]
        assert cut.any() and one.weight[cut] == pytest.approx(share)
        assert (run.arrival_s > window.stop_s).sum() > 1, "the load goes on"


def test_the_error_of_the_law_widens_the_band_as_much_as_it_moves_the_very_measurement() -> None:
    """With few requests at once times per token move as the law does, and near saturation by more."""
    off = 0.1
    doubtful = dataclasses.replace(EXACT, relative_sigma=off)
    sigmas = []
    for share in (0.1, 1.2):
        rate_per_s = share * planned().answer.load_per_s
        (itl,) = [
            each
            for each in compared(doubtful, QUESTION, shown(SERVER, rate_per_s, 1), sent=very(rate_per_s, 1)).figures
            if (each.of.metric, each.of.percentile) == ("itl", 50)
        ]
        sigmas.append(math.log(itl.high_s / itl.low_s) / 2 / 1.645)
    assert math.hypot(off, 0.02) <= sigmas[0] < 1.2 * math.hypot(off, 0.02)
    assert sigmas[1] > 1.3 * sigmas[0]


def test_levels_that_come_out_alike_twice_narrow_the_band_of_times_per_token() -> None:
    """The law's error aside, a server that repeats itself to nothing is trusted more than servers are in general."""
    load = planned().answer.load_per_s / 50  # a request alone: times per token move as all times do
    level = simulated_point(Option(QUESTION.workload.lengths, 4, 400))

    def width(measured: int) -> float:
        known = dataclasses.replace(EXACT, fitted_to=(level,) * measured)
        (itl,) = [
            each
            for each in compared(known, QUESTION, shown(SERVER, load, 1), sent=very(load, 1)).figures
            if (each.of.metric, each.of.percentile) == ("itl", 50)
        ]
        return math.log(itl.high_s / itl.low_s) / 2 / 1.645

    assert width(1) == pytest.approx(0.02, rel=0.05)
    assert width(13) == pytest.approx(0.02 * math.sqrt(4 / (4 + 12)), rel=0.05)


def test_a_slower_server_is_found_out_and_by_how_much() -> None:
    load = planned().answer.load_per_s
    slower = compared(EXACT, QUESTION, shown(dataclasses.replace(SERVER, law=LAW.scaled(1.3)), load))
    assert not slower.verified and not slower.why_not
    p95_itl = next(each for each in slower.decisive if each.of.metric == "itl")
    assert p95_itl.verdict == "above" and p95_itl.measured_s is not None
    assert p95_itl.measured_s == pytest.approx(p95_itl.high_s * (1 + p95_itl.off))
    said = text.verified(slower)
    assert said.startswith("Not verified on the server at ") and "p95 ITL was " in said and "above its band of" in said
    faster = compared(EXACT, QUESTION, shown(dataclasses.replace(SERVER, law=LAW.scaled(0.7)), load))
    assert not faster.verified and "below its band" in text.verified(faster)


def test_fewer_requests_make_the_band_wider_and_too_few_leave_it_open() -> None:
    load = planned().answer.load_per_s / 2  # nearer to saturation percentiles grow for minutes, and their bands too
    many, few = (compared(EXACT, QUESTION, shown(SERVER, load, requests=count)) for count in (5000, 150))
    for wide, narrow in zip(few.figures, many.figures, strict=True):
        assert wide.high_s / wide.low_s > narrow.high_s / narrow.low_s > 1
        assert all(each.low_s < each.predicted_s < each.high_s for each in (wide, narrow))
    uncounted = compared(EXACT, QUESTION, dataclasses.replace(shown(SERVER, load), requests=None))
    assert all(math.log(each.high_s / each.predicted_s) > 1.6 * 0.02 for each in uncounted.figures), "runs differ"
    untold = compared(EXACT, QUESTION, shown(SERVER, load, requests=100, ttft_p95_s=None))
    assert not untold.verified and untold.why_not == "100 requests are too few for p95 TTFT: measure longer"


def test_what_cannot_be_judged_is_shown_and_proves_nothing() -> None:
    point = shown(SERVER, planned().answer.load_per_s, verdict="", notes="ended by the time budget; not judged: short")
    found = compared(EXACT, QUESTION, point)
    assert found.figures and not found.verified and found.why_not == "not judged: short"
    void = compared(EXACT, QUESTION, dataclasses.replace(point, verdict="errors", notes="errors: 9 requests failed"))
    assert not void.figures and text.verified(void).endswith("per replica: errors: 9 requests failed")


def test_only_a_level_that_tells_of_the_planned_load_verifies() -> None:
    load = planned().answer.load_per_s
    good = shown(SERVER, load, measured_at="2026-11-20")
    of_no_use = [
        shown(SERVER, 0.7 * load),
        dataclasses.replace(good, isl=1200),
        dataclasses.replace(good, osl_cv=0.0),
        dataclasses.replace(good, prefix_tokens=500, prefix_hit=0.9),
        dataclasses.replace(good, verdict="client_limited"),
        dataclasses.replace(good, verdict=""),
    ]
    assert verification(with_levels()) is None and verification(with_levels(*of_no_use)) is None
    found = verification(with_levels(*of_no_use, good))
    assert found is not None and found.rate_per_s == good.load_value
    late = dataclasses.replace(
        good, verdict="overloaded", measured_at="2026-11-21", notes="overloaded: 7 of 9 requests/s; more"
    )
    overtaken = verification(with_levels(good, late))
    assert overtaken is not None and not overtaken.verified
    assert text.verified(overtaken).endswith("requests/s per replica: overloaded: 7 of 9 requests/s")


def test_a_level_is_judged_by_the_law_that_has_not_seen_it() -> None:
    """A server that slowed down after its closed loops were measured: the level drags the answer's law along."""
    closed = tuple(simulated_point(Option(LENGTHS, users, 400)) for users in (1, 4, 16, 64))
    load = planner.plan(QUESTION, [from_fit(fit(closed), LENGTHS)]).answer.load_per_s
    untold = dict.fromkeys(["ttft_mean_s", "itl_mean_s", "e2e_mean_s", "mean_in_flight"])
    slower = shown(dataclasses.replace(SERVER, law=LAW.scaled(1.3)), load, requests_per_s=load, **untold)
    seen = from_fit(fit((*closed, slower)), LENGTHS, (*closed, slower))
    assert slower in seen.fitted_to and seen.open_loops == (slower,)
    unseen = from_fit(fit(closed), LENGTHS)
    assert seen.replica.law != unseen.replica.law
    answer = dataclasses.replace(planned().answer, candidate=seen)
    found = verification(dataclasses.replace(planned(), fleets=(answer,)))
    assert found == compared(unseen, QUESTION, slower)
    assert found is not None and not found.verified
    alone = dataclasses.replace(answer, candidate=dataclasses.replace(seen, fitted_to=(slower,)))
    assert verification(dataclasses.replace(planned(), fleets=(alone,))) is None, "no other point has a law"


def test_a_later_plan_from_the_points_says_it(tmp_path: Path) -> None:
    closed = [simulated_point(Option(LENGTHS, users, 400)) for users in (1, 4, 16, 64)]
    load = planner.plan(QUESTION, [from_fit(fit(closed), LENGTHS)]).answer.load_per_s
    with (tmp_path / "points.csv").open("w") as file:
        write_points([*closed, shown(SERVER, load)], file)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in ASKED.items()]
    words = ["plan", "--model", "m", "--points", str(tmp_path / "points.csv"), *options]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 0 and "erified on the server at " in told.stdout and "p95 ITL" in told.stdout
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    about = found["verification"]
    assert about["verified"] in (True, False) and about["requests"] == ENOUGH and len(about["figures"]) == 6
    assert {each["limit_s"] for each in about["figures"]} == {None, 0.5, 0.02}
    assert f"{about['why']}." in found["report"]["remarks"]
    changed = json.loads(CliRunner().invoke(cli, [*words, "--json", "--max-tokens=400"]).stdout)
    assert changed["verification"] is None, "that is another engine than the one measured"
