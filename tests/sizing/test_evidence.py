"""How evidence is judged: goals, verdicts, seeds; and a small piece of each study end to end."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import SeedSequence

from sizing.analyses.parallel import Machines
from sizing.engine import Batching, Replica
from sizing.errors import ScenarioError
from sizing.question import Setting
from sizing.report.build import TABLE
from sizing.report.build import cells as cells_of
from sizing.workload import Arrivals, Lengths, Limit, Sla, Workload
from validation.evidence import command, coverage, gpu_counts, largest_rate
from validation.evidence.claim import Claim, Setup, check
from validation.evidence.page import as_page, lines_of, merged
from validation.evidence.server import CONTRASTING, LAW, POLICIES, calibrate, true_rate_per_s
from validation.evidence.table import (
    HEADER,
    EvidenceRow,
    Goal,
    as_json,
    cells,
    markdown,
    missing,
    row_of_errors,
    shown,
    verdict,
)

ALONE = Machines(processes=1)
BAND = coverage.Case(Replica(LAW, coverage.BATCHING), next(iter(coverage.DESIGNS)), True, 1)
INSIDE = coverage.Answer(10.0, 11.0, 9.0, 13.0)
"""A calibration, and an answer whose band holds the truth."""


def test_every_claim_finds_its_cases() -> None:
    """Without a folder of data too; those that need none have some."""
    found = {claim.name: claim.cases(Setup(quick=True, data=None)) for claim in command.CLAIMS}
    assert all(found[name] for name in ("theory", "largest_rate", "gpu_counts", "coverage", "measured-arrivals"))
    tabled = [case.server.law for case in found["coverage"] if case.group == coverage.TABLED]
    assert len(tabled) == 2 and tabled[0] != tabled[1]


@given(st.lists(st.floats(-0.9, 3.0), min_size=20, max_size=60))
def test_a_goal_holds_exactly_when_each_part_does(errors: list[float]) -> None:
    goal = Goal(0.1, 0.5, 0.25)
    row = row_of_errors("a", "b", "c", errors, goal)
    size = sorted(map(abs, errors))
    assert row.median <= row.p90 <= row.worst == size[-1]
    assert row.holds == (row.median <= 0.1 and row.p90 <= 0.5 and sum(e > 0.05 for e in errors) / len(errors) <= 0.25)


def test_too_few_answers_are_not_judged() -> None:
    assert row_of_errors("a", "b", "c", [0.0] * 5, Goal(0.1)).holds is None
    assert row_of_errors("a", "b", "c", [0.0] * 25, Goal(0.1)).holds is True
    none = row_of_errors("a", "b", "c", [], Goal(0.1))
    assert none.n == 0 and none.holds is None and none.note


def test_the_table_for_people_and_for_machines() -> None:
    row = EvidenceRow("a | b", "truth", 3, "rate", 0.012, float("nan"), 0.5, "≤ 2 %", False, "note")
    head, rule, line = markdown([cells(row)]).splitlines()
    assert head.count("|") == rule.count("|") == line.replace("\\|", "").count("|") == len(HEADER) + 1
    assert cells(row)[4:7] == ("1.2 %", "", "50.0 %")
    told = json.loads(json.dumps(as_json([dataclasses.replace(row, worst=math.inf)]), allow_nan=False))[0]
    assert told["p90"] is None and float(told["worst"]) == math.inf


def test_the_page_is_written_as_the_table_is() -> None:
    """A page of an older way to write would differ from the next one in every line."""
    lines = [cells_of(line) for line in TABLE.read_text().splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 30 and all(len(row) == len(HEADER) for row in lines)
    for row in lines:
        for cell in filter(None, row[4:7]):
            assert cell == shown(math.inf if cell == "∞" else float(cell.removesuffix(" %")) / 100)
    assert not re.search(r"\d%", TABLE.read_text())
    goals = {row[7] for row in lines}
    assert {
        coverage.rows([BAND], [[INSIDE, INSIDE]])[0].goal,
        gpu_counts.rows([], [gpu_counts.Answer(1, 1)])[0].goal,
    } <= goals


def draw(case: int, seed: SeedSequence) -> float:
    return case + np.random.default_rng(seed).random()


def listed(cases: Sequence[int], answers: Sequence[float]) -> list[EvidenceRow]:
    return [row_of_errors("draws", "", "", answers, note=repr(answers))]


def test_a_claim_gives_the_same_alone_and_with_others() -> None:
    one, other = (Claim(name, lambda setup: range(4), draw, listed) for name in ("one", "other"))
    both = check([other, one], Setup(), ALONE)
    assert check([one], Setup(), ALONE) == both[1:]
    assert check([other], Setup(), ALONE) == both[:1]
    assert both[0].note != both[1].note  # their seeds differ


@given(needed=st.integers(1, 400), guess=st.integers(1, 500))
def test_the_fewest_replicas_are_found_from_any_guess(needed: int, guess: int) -> None:
    asked: list[int] = []

    def meets(count: int) -> bool:
        asked.append(count)
        return count >= needed

    assert gpu_counts.fewest(meets, guess, 500) == needed
    assert len(asked) <= 4 + 4 * np.log2(2 + abs(needed - guess))  # long simulations: few questions
    assert gpu_counts.fewest(lambda count: False, guess, 500) is None


def test_the_true_rate_of_a_server_that_takes_a_second_for_each() -> None:
    """Evenly spaced arrivals: nobody waits up to one request a second, beyond it the queue grows."""
    server = Replica(dataclasses.replace(LAW.scaled(0.0), overhead_s=1.0), Batching("prefill_first", 1, 10**6))
    workload = Workload(Lengths(1, 1), 1.0, Arrivals("constant", 0.0))
    setting = Setting(workload, Sla(Limit("ttft", 95, 1.5)), "random")
    assert true_rate_per_s(server, setting, 5_000, 0) == pytest.approx(1.0, rel=0.01)


def test_calibrations_repeat_and_differ_by_seed() -> None:
    server = Replica(LAW, POLICIES[1])
    one, again, other = (calibrate(server, CONTRASTING, True, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == again
    assert [(point.isl, point.load_value) for point in one] == [(i, n) for i in (128, 4000) for n in (1, 8, 64, 256)]
    gaps = [np.log(a.requests_per_s / b.requests_per_s) for a, b in zip(one, other, strict=True)]
    assert all(gaps) and np.std(gaps) < 0.25


def test_one_question_of_each_kind_end_to_end() -> None:
    """A calibration, its fit and a largest rate: within 15 % of the engine itself."""
    sla = largest_rate.SLAS[3]
    case = largest_rate.Case(Replica(LAW, POLICIES[1]), Lengths(1000, 1000), (sla,), 40_000)
    (found,) = largest_rate.answer(case, SeedSequence(3))
    assert found.truth == pytest.approx(found.simulated, rel=0.15)
    assert 0 < found.truth < found.stable
    assert found.by_means > found.truth  # means promise more than percentiles allow
    rows = largest_rate.rows([case], [[found]])
    assert [row.n for row in rows] == [1, 1, 1, 1, 1, 0, 0]


def test_wrong_verdicts_are_errors_and_agreed_ones_are_not() -> None:
    case = largest_rate.Case(Replica(LAW), Lengths(1, 1), (), 1)
    answer = largest_rate.Answer(
        truth=50.0, simulated=51.0, apart=51.0, analytic=0.0, formula=49.0, by_means=60.0, stable=100.0
    )
    never = answer._replace(truth=1.0, simulated=0.0, by_means=40.0)
    simulated, _, analytic, _, by_means, *_ = largest_rate.rows([case], [[answer, never]])
    assert simulated.n == 1 and simulated.worst == pytest.approx(0.02)
    assert analytic.n == 1 and analytic.worst == pytest.approx(1.0)
    assert by_means.n == 2 and by_means.worst == pytest.approx(39.0)
    hopeless = answer._replace(truth=0.0)
    assert largest_rate.rows([case], [[hopeless]])[0].worst == math.inf
    assert "not met by either: 1" in simulated.note and "infeasible: 0" in simulated.note
    assert "wrongly called feasible: 1" in by_means.note


def test_counts_are_judged_by_replicas() -> None:
    def row(planned: int, exact: int) -> EvidenceRow:
        return gpu_counts.rows([], [gpu_counts.Answer(planned, exact)] * 30)[0]

    assert row(10, 10).holds and row(11, 10).holds and row(103, 100).holds
    assert not row(9, 10).holds and not row(12, 10).holds and not row(104, 100).holds


def test_wrong_verdicts_count_against_the_counts() -> None:
    right = [gpu_counts.Answer(5, 5)] * 97
    hopeful, strict = gpu_counts.Answer(5, None), gpu_counts.Answer(None, 5)
    assert gpu_counts.rows([], [*right, strict, strict])[0].holds
    assert not gpu_counts.rows([], [*right, hopeful, hopeful])[0].holds
    assert not gpu_counts.rows([], [*right, *[strict] * 6])[0].holds
    assert gpu_counts.rows([], [*right, gpu_counts.Answer(None, None)])[0].n == 97


def test_a_scenario_is_planned_and_checked() -> None:
    """Scenarios are real questions: most can be met, and the planner's count is near that of a simulation."""
    found = [gpu_counts.answer(gpu_counts.Case(n, 20_000), SeedSequence(1, spawn_key=(n,))) for n in (0, 1, 3)]
    for one in found:
        assert one.planned is not None and one.exact is not None
        assert abs(one.planned - one.exact) <= 1 + 0.1 * one.exact


def test_a_band_is_judged_by_how_often_it_holds_the_truth() -> None:
    outside = coverage.Answer(10.0, 8.0, 7.0, 9.0)
    for share, holds in ((0.9, True), (0.8, False), (1.0, False)):
        answers = [[one, one] for one in [INSIDE] * round(40 * share) + [outside] * round(40 * (1 - share))]
        assert coverage.rows([BAND] * 40, answers)[0].holds is holds


def test_the_command_checks_its_names_and_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScenarioError, match="largest_rate, gpu_counts"):
        CliRunner().invoke(command.validate_command, ["--only", "magic"], catch_exceptions=False)
    monkeypatch.setattr(command, "CLAIMS", (Claim("draws", lambda setup: range(3), draw, listed),))
    page = tmp_path / "accuracy.md"
    done = CliRunner().invoke(command.validate_command, ["--processes", "1", "--json", "--markdown", str(page)])
    assert json.loads(done.stdout)["rows"][0]["n"] == 3
    text = page.read_text()
    assert "| draws |" in text and "What is not shown" in text and "{" not in text
    page.write_text(text.replace("| draws |", "| another |"))
    asked = ["--processes", "1", "--json", "--markdown", str(page)]
    with pytest.raises(ScenarioError, match="--quick would stand among"):
        CliRunner().invoke(command.validate_command, [*asked, "--only", "draws", "--quick"], catch_exceptions=False)
    CliRunner().invoke(command.validate_command, [*asked, "--only", "draws"], catch_exceptions=False)
    assert [line[0] for line in lines_of(page.read_text())] == ["another", "draws"]
    CliRunner().invoke(command.validate_command, asked, catch_exceptions=False)
    assert page.read_text() == text


def test_the_verdict_counts_goals_not_rows() -> None:
    good, bad, few, none = (
        EvidenceRow("a", "b", 9, "c", 0.0, 0.0, 0.0, goal, holds)
        for goal, holds in (("g", True), ("g", False), ("g", None), ("", None))
    )
    assert verdict(map(cells, [good, good, bad, none])) == "Goals: 2 of 3 hold, 1 missed."
    assert "not judged" in verdict([cells(few)]) and "not judged" not in verdict(map(cells, [none, good]))


names = st.sampled_from("abcdef")
pages = st.lists(names, unique=True).flatmap(
    lambda known: st.tuples(*(st.tuples(st.just(name), st.integers(1, 3)) for name in known))
)


@given(pages, pages)
def test_a_page_keeps_the_claims_that_were_not_checked(
    kept: tuple[tuple[str, int], ...], found: tuple[tuple[str, int], ...]
) -> None:
    """Those that were stand once, with their new rows, where they stood; the same rows again change nothing."""
    old = [(name, f"old {k}") for name, count in kept for k in range(count)]
    new = [(name, f"new {k}") for name, count in found for k in range(count)]
    lines = merged(old, new)
    checked = {name for name, _ in found}
    assert [line for line in lines if line[0] not in checked] == [line for line in old if line[0] not in checked]
    assert sorted(line for line in lines if line[0] in checked) == sorted(new)
    order = list(dict.fromkeys(line[0] for line in lines))
    assert [name for name in order if name in dict(kept)] == list(dict(kept))
    assert [line[0] for line in lines] == sorted((line[0] for line in lines), key=order.index)
    assert merged(lines, new) == lines and merged([], new) == new


def test_a_claim_that_is_new_follows_the_one_before_it() -> None:
    old = [("a", "1"), ("b", "1"), ("c", "1")]
    assert [line[0] for line in merged(old, [("a", "2"), ("new", "2"), ("c", "2")])] == ["a", "new", "b", "c"]
    assert [line[0] for line in merged(old, [("new", "2"), ("c", "2")])] == ["a", "b", "c", "new"]


def test_the_page_is_the_same_with_its_own_rows_again() -> None:
    page = TABLE.read_text(encoding="utf-8")
    lines = lines_of(page)
    assert len(lines) > 200 and f"{markdown(lines)}\n{verdict(lines)}\n" in page
    assert as_page([], quick=False, page=page) == page
    unchecked = missing(lines[0][0], "data", "rate", "the data are not here")
    assert as_page([unchecked], quick=False, page=page) == page
    assert "the data are not here" in as_page([unchecked], quick=False)
    checked = dataclasses.replace(unchecked, n=3, metric="another")
    told = [
        line[9] for line in lines_of(as_page([unchecked, checked], quick=False, page=page)) if line[0] == lines[0][0]
    ]
    assert told == ["the data are not here"] * 2, "a claim that was checked in part stands as it was found"
    assert lines_of("no table") == lines_of("| a | b |\n| --- | --- |\n| c | d |\n") == []
