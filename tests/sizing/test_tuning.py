"""What may be changed and what it costs: engine settings, sensitivities, prices and energy, remarks of the planner."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing import planner
from sizing.analyses import sensitivity
from sizing.analyses.sensitivity import sensitivities, tune
from sizing.catalog import Layout, gpus
from sizing.cli.tables import quantity
from sizing.edge import BY_FORMULA, BY_SIMULATION, Method
from sizing.engine import Batching
from sizing.errors import ScenarioError
from sizing.plans import Candidate, Fleet, cost_of, energy_of
from sizing.question import Question, Setting
from sizing.text import tuned_line
from sizing.trace import Trace
from sizing.workload import Lengths, Limit, Sla, Workload
from tests.sizing.engines import BATCHING, LAW, SLA, candidate, question


def fleet_of(asked: Question, batching: Batching = BATCHING, gpu: str = "g") -> Fleet:
    sized = planner.size(asked, candidate(gpu=gpu, batching=batching), BY_FORMULA)
    assert isinstance(sized, Fleet)
    return sized


def test_tuning_undoes_settings_that_were_chosen_badly() -> None:
    """Four slots starve an engine that decodes 100 sequences in nearly the time of one."""
    asked = question(60.0)
    tuned = tune(asked, candidate(batching=replace(BATCHING, max_batch_size=4)))
    good = planner.size(asked, candidate(), BY_SIMULATION)
    assert isinstance(tuned.fleet, Fleet)
    assert isinstance(tuned.before, Fleet)
    assert isinstance(good, Fleet)
    assert tuned.batching.max_batch_size > 32
    assert tuned.fleet.gpus <= good.gpus < tuned.before.gpus
    assert tuned.gain == pytest.approx(tuned.fleet.capacity_per_s / tuned.before.capacity_per_s - 1)


def test_limits_of_several_ranks_are_said_to_be_of_all() -> None:
    """An engine takes those of one."""
    asked = question(60.0)
    for layout, said in ((Layout(), False), (Layout(dp=2, ep=2), True)):
        line = tuned_line(tune(asked, replace(candidate(batching=replace(BATCHING, max_batch_size=4)), layout=layout)))
        assert ("of its 2 ranks and stages together" in line) == said


def test_a_count_that_stays_is_said_to_stay() -> None:
    """A batch limit that one replica with few requests hardly feels: it carries more, and the fleet is as small."""
    tuned = tune(question(1.0), candidate(batching=replace(BATCHING, max_batch_size=64)))
    assert isinstance(tuned.fleet, Fleet) and isinstance(tuned.before, Fleet)
    assert tuned.fleet.gpus == tuned.before.gpus == 2 and tuned.gain > 0
    assert f": still 2 GPUs, a replica carries {100 * tuned.gain:.0f} % more" in tuned_line(tuned)


def test_tuning_never_makes_it_worse() -> None:
    tuned = tune(question(60.0), candidate())
    assert isinstance(tuned.fleet, Fleet)
    assert isinstance(tuned.before, Fleet)
    assert tuned.gain >= 0
    assert tuned.fleet.gpus <= tuned.before.gpus
    assert max(trial.capacity_per_s for trial in tuned.tried) > 0


@pytest.mark.parametrize(("layout", "ranks"), [(Layout(dp=4, ep=4), 4), (Layout(1, pp=4), 1)])
def test_what_is_tried_is_the_setting_of_a_rank_or_stage(layout: Layout, ranks: int) -> None:
    """Up to 512 sequences in each rank, which stages share, and up to 16,384 tokens in each of four ranks or stages."""
    tried = [trial.batching for trial in tune(question(60.0), replace(candidate(), layout=layout)).tried]
    assert max(batching.max_batch_size for batching in tried) == 512 * ranks
    assert max(batching.token_budget for batching in tried) == 16_384 * 4


def test_sensitivities_go_the_way_they_must() -> None:
    """Longer requests, more load, more headroom and tighter limits never need fewer GPUs."""
    asked = question(200.0)
    rows = {row.name: row for row in sensitivities(asked, fleet_of(asked))}
    assert set(rows) == {"ISL", "OSL", "rate", "p95 TTFT limit", "p95 ITL limit", "headroom"}
    for name, row in rows.items():
        counts = [math.inf if effect.gpus is None else effect.gpus for effect in row.effects]
        assert counts == sorted(counts, reverse=name.endswith("limit")), name
    assert rows["rate"].unit == "requests/s"
    assert [effect.value for effect in rows["rate"].effects] == pytest.approx([150, 180, 220, 250])
    # one replica fewer or more comes from rounding up
    assert rows["rate"].effects[-1].gpus == pytest.approx(1.25 * fleet_of(asked).gpus, abs=2)


def test_a_changed_limit_gives_what_the_planner_gives_for_it() -> None:
    asked = question(200.0)
    (row,) = (row for row in sensitivities(asked, fleet_of(asked)) if row.name == "p95 ITL limit")
    for effect in row.effects:
        direct = fleet_of(replace(asked, sla=Sla(SLA.ttft, Limit("itl", 95, effect.value))))
        assert effect.gpus == pytest.approx(direct.gpus, abs=1)


def test_a_limit_that_no_fleet_meets_gives_no_count() -> None:
    floor_s = LAW.decode_s(1, 1000)
    asked = question(sla=Sla(Limit("itl", 50, 1.15 * floor_s)))
    (row,) = (row for row in sensitivities(asked, fleet_of(asked)) if row.unit == "s")
    assert row.effects[0].gpus is None
    assert row.effects[-1].gpus is not None


@settings(max_examples=20, deadline=None)
@given(price=st.floats(0.1, 50), peak=st.floats(1, 5))
def test_cost_by_hand(price: float, peak: float) -> None:
    asked = question(40.0, price_per_gpu_hour=price, peak_factor=peak)
    fleet = fleet_of(question(40.0))
    cost = cost_of(asked, fleet)
    assert cost is not None
    assert cost.per_hour == pytest.approx(price * fleet.gpus)
    assert cost.per_month == pytest.approx(cost.per_hour * 730)
    requests_an_hour = 40.0 / peak * 3600
    assert cost.per_1000_requests * requests_an_hour / 1000 == pytest.approx(cost.per_hour)
    assert cost.per_million_output_tokens * requests_an_hour * 200 / 1e6 == pytest.approx(cost.per_hour)


def test_energy_is_known_where_the_power_is() -> None:
    asked = question(40.0)
    fleet = fleet_of(asked, gpu="h200_sxm")
    energy = energy_of(asked, fleet)
    assert energy is not None
    assert energy.power_kw == pytest.approx(0.7 * fleet.gpus)  # 700 W by the data sheet
    assert energy.kwh_per_million_output_tokens == pytest.approx(energy.power_kw / (40 * 200 * 3600) * 1e6)
    assert energy_of(asked, fleet_of(asked)) is None
    assert cost_of(asked, fleet) is None


def test_every_gpu_of_the_catalogue_has_a_plausible_power() -> None:
    known = [gpu.power_w for gpu in gpus().values() if gpu.power_w is not None]
    assert all(70 <= power_w <= 1500 for power_w in known)
    assert len(known) >= len(gpus()) - 1  # Google does not tell the power of a TPU


def test_with_prices_the_cheapest_is_the_answer_not_the_smallest() -> None:
    fast, slow = candidate(gpu="fast"), candidate(gpu="slow", law=LAW.scaled(1.3))
    asked = question(100.0)
    assert planner.plan(asked, [fast, slow]).answer.candidate.gpu == "fast"
    dear = replace(asked, prices=(("fast", 10.0), ("slow", 1.0)))
    assert planner.plan(dear, [fast, slow]).answer.candidate.gpu == "slow"


def test_near_the_floor_the_plan_says_that_more_gpus_do_not_help() -> None:
    """Prompts that vary: the p99 of an idle replica is the longest prompts' own time."""
    lengths = Lengths(4000, 100, isl_cv=0.8)
    loose = Question("m", Workload(lengths, 5.0), Sla(Limit("ttft", 99, 20.0)))
    idle_s = BY_FORMULA.predict(candidate().replica, Setting(loose.workload, loose.sla, "random"), 0.01)
    floor_s = idle_s.ttft.p99_s
    near = replace(loose, sla=Sla(Limit("ttft", 99, 1.15 * floor_s)))
    far = replace(loose, sla=Sla(Limit("ttft", 99, 6 * floor_s)))
    assert "near_floor" in [each.kind for each in fleet_of(near).warnings]
    assert "near_floor" not in [each.kind for each in fleet_of(far).warnings]


def test_stability_binds_where_the_limits_are_generous() -> None:
    generous = fleet_of(question(sla=Sla(Limit("e2e", 50, 1000.0))))
    assert generous.stability_binds
    assert generous.binding_name == "stable rate"
    strict = fleet_of(question())
    assert strict.binding_name == str(strict.binding)


def test_what_cannot_win_is_left_out_with_a_reason() -> None:
    """Eight GPUs that are no faster than one: even at its stable rate the replica needs eight times as many."""
    plan = planner.plan(question(), [candidate(8), candidate(1)])
    assert [fleet.candidate.layout for fleet in plan.fleets] == [Layout()]
    assert [(miss.layout, miss.kind) for miss in plan.rejected] == [(Layout(8), "cost")]


@pytest.mark.parametrize("values", [{"peak_factor": 0.5}, {"peak_factor": math.inf}, {"prices": (("g", -1.0),)}])
def test_impossible_peaks_and_prices_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ScenarioError):
        question(**values)


def test_a_limit_on_rejected_requests_moves_what_a_replica_carries() -> None:
    """By simulation: by formula none is ever rejected."""
    load = Workload(Lengths(1000, 200), 40.0, queue_limit=4)
    sla = Sla(Limit("ttft", 95, 5.0)).with_limits(Limit.rejected(0.5))
    asked = replace(question(), workload=load, sla=sla)
    fleet = planner.size(asked, candidate(), BY_SIMULATION)
    assert isinstance(fleet, Fleet) and fleet.binding.metric == "rejected"
    (row,) = (row for row in sensitivities(asked, fleet) if row.name == "rejected limit")
    carried = [each.capacity_per_s for each in row.effects if each.capacity_per_s is not None]
    assert len(carried) == 4 and carried == sorted(carried) and carried[0] < fleet.capacity_per_s < carried[-1]
    assert quantity(row.value, row.unit) == "0.5 %"


def test_limits_are_varied_by_simulation_where_the_formula_has_another_one_fail_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its times would move what does not bind. Of a trace, which is not replayed for each, there are no such rows."""
    asked, asked_by = question(), list[str]()
    fleet = planner.size(asked, candidate(), BY_SIMULATION)
    assert isinstance(fleet, Fleet)
    ttft, itl = asked.sla.limits
    of_other = replace(fleet, binding=itl if fleet.binding == ttft else ttft)

    def noted(changed: Question, one: Candidate, method: Method) -> Fleet:
        asked_by.append(method.name)
        return fleet

    monkeypatch.setattr(sensitivity, "size", noted)
    names = [row.name for row in sensitivities(asked, fleet)]
    assert "p95 TTFT limit" in names and not asked_by
    sensitivities(asked, of_other)
    assert asked_by == ["simulation"] * 8
    whole = Trace(np.arange(10.0), np.full(10, 100), np.full(10, 10))
    classes = replace(whole, classes=("chat",), of_class=np.zeros(10, np.uint8))
    for trace, of, told in ((whole, fleet, True), (whole, of_other, False), (classes, fleet, False)):
        rows = [row.name for row in sensitivities(asked, of, trace)]
        assert ("p95 TTFT limit" in rows) == told and {"ISL", "rate", "headroom"} < {*rows}
