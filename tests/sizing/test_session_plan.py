"""Fleets for conversations and agents: the count against all counts, theory, laws, and what the command prints."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sizing.analyses import session_plan
from sizing.analyses.session_plan import (
    Seen,
    SessionLimit,
    SessionLoad,
    SessionPlan,
    SessionRuns,
    TurnsByPlace,
    completed,
    far_missed,
    holding,
    most_turns_per_s,
    plan_sessions,
    session_question,
    session_ways_out,
    settled,
    within_context,
)
from sizing.engine import Batching
from sizing.errors import ScenarioError
from sizing.plans import Candidate, NoFeasiblePlan, Plan
from sizing.report.charts import sessions_chart
from sizing.report.model import Quantity, from_dict
from sizing.report.sections import sections
from sizing.report.tables import latency_band
from sizing.report.write import render
from sizing.report.xlsx import NO_ONE_LENGTH
from sizing.simulator.sessions import SessionRouting, simulate_sessions
from sizing.text import cliff_line
from sizing.workload import Limit, Sessions, Sla
from tests.sizing.engines import BATCHING, LAW, candidate
from tests.sizing.report_cases import Page, pdf_text, rows_below, sheets, squeezed
from tests.sizing.test_cli import run

CHAT = Sessions(
    2.0, 5, 800, 80, 150, first_cv=0.8, user_cv=0.7, output_cv=0.6, think_s=20, system_tokens=208, context_tokens=8000
)
LIMITS = Sla(SessionLimit.on("later_ttft", "p95:150ms"), Limit("itl", 95, 0.02))
ROOMY = replace(BATCHING, kv_tokens=10**8)
TURNS = session_plan.TURNS // 10
SHOWN: dict[tuple[Hashable, ...], Seen] = {}


@dataclass(slots=True)
class ShorterRuns(SessionRuns):
    """A tenth of the turns: what is asked here is how plans follow from runs, not how precise a run is."""

    turns: int = TURNS


@dataclass(slots=True)
class RunsDoneOnce(ShorterRuns):
    """A run that another plan has done is not done again."""

    def run(self, replicas: int, load: SessionLoad, rate_per_s: float) -> Seen:
        how = (self.turns, self.sure, self.seed)
        asked = (self.candidate.replica, load, replicas, rate_per_s, self.question.sla, how)
        if asked not in SHOWN:
            SHOWN[asked] = super(RunsDoneOnce, self).run(replicas, load, rate_per_s)
        return SHOWN[asked]


@pytest.fixture(scope="module", autouse=True)
def shorter_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_plan, "SessionRuns", RunsDoneOnce)
        patch.setattr(session_plan, "CURVE_TURNS", session_plan.CURVE_TURNS // 10)
        yield


def planned(
    load: SessionLoad, *candidates: Candidate, sla: Sla = LIMITS, headroom: float = 0.2, spare: int = 1
) -> SessionPlan:
    question, turns = session_question("m", load, sla, headroom=headroom, spare=spare)
    return plan_sessions(question, load, turns, candidates or [candidate()])


def counted(
    load: SessionLoad, *candidates: Candidate, sla: Sla = LIMITS, headroom: float = 0.2, spare: int = 1
) -> Plan:
    """The count alone, as a plan finds it, without what is then said of the fleet: most of the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_plan, "completed", lambda runs, fleet: fleet)
        for beside in ("by_routing", "rising"):
            patch.setattr(session_plan, beside, lambda runs, working: ())
        return planned(load, *candidates, sla=sla, headroom=headroom, spare=spare).plan


def with_kv(kv_tokens: int) -> Candidate:
    return candidate(batching=replace(BATCHING, kv_tokens=kv_tokens))


# --- The count


@pytest.mark.parametrize("routing", ["affinity", "prefix_aware"])
@pytest.mark.parametrize("rate_per_s", [3.0, 9.0])
def test_the_count_is_that_of_trying_every_fleet(rate_per_s: float, routing: SessionRouting) -> None:
    load = SessionLoad(replace(CHAT, rate_per_s=rate_per_s), routing=routing)
    answer = counted(load, with_kv(60_000)).answer
    replica = answer.candidate.replica
    assert replica.batching.prefix_cache and replica.batching.kv_block_tokens == 16
    busy = replace(load.sessions, rate_per_s=rate_per_s / 0.8)

    def meets(replicas: int) -> bool:
        shown = simulate_sessions(replica, busy, replicas=replicas, routing=routing, requests=TURNS)
        return Seen.of(shown, LIMITS, replicas, busy.rate_per_s).meets

    assert answer.working == next(count for count in range(1, 100) if meets(count))


@pytest.mark.parametrize("load", [SessionLoad(replace(CHAT, rate_per_s=6.0)), SessionLoad(CHAT, users=700)])
def test_the_best_of_several_candidates_is_found(load: SessionLoad) -> None:
    """Bounds leave no candidate out that would have won alone, whatever its memory and GPUs."""
    small, large = with_kv(30_000), candidate(2, LAW.scaled(0.6), batching=ROOMY)
    slow = replace(candidate(law=LAW.scaled(1.4), gpu="slow"), basis="fitted")
    alone = [counted(load, each).answer.gpus for each in (small, large, slow)]
    found = counted(load, small, large, slow)
    assert found.answer.gpus == min(alone)
    assert all(fleet.verified for fleet in found.fleets)
    assert len(found.fleets) + len(found.rejected) == 3


def test_a_miss_of_a_saturated_fleet_has_no_time() -> None:
    """Two sessions/s are no load for ten engines; 200 come to more than one can answer, and wait without end."""
    question, _ = session_question("m", SessionLoad(CHAT), LIMITS)
    runs = SessionRuns(question, SessionLoad(CHAT), holding([candidate()], CHAT)[0][0], 0, lambda _: None, turns=6000)
    missed = far_missed(runs.candidate, runs.run(1, SessionLoad(CHAT), 200.0))
    assert "the queue grows without end with 1 GPU, where" in missed.why
    assert missed.nearest_s is None


def test_a_fleet_that_falls_off_the_cliff_in_another_run_is_too_small() -> None:
    """Five replicas keep the limits throughout a run of 60,000 turns, twice or more inside, and would not carry the
    load if nothing were found; at the same rate of sessions others lose their caches and never catch up."""
    chat = Sessions(
        1.0, 3.5, 296, 296, 441, first_cv=1.0, user_cv=1.0, output_cv=0.7, think_s=0.5, system_tokens=500,
        context_tokens=8000, turn_law="geometric",
    )  # fmt: skip
    load, sla = SessionLoad(chat, users=300), Sla(Limit("ttft", 95, 1.0), Limit("itl", 95, 0.05))
    engine = candidate(batching=replace(BATCHING, kv_tokens=200_000))
    question, _ = session_question("m", load, sla, headroom=0.0)
    runs = SessionRuns(question, load, holding([engine], chat)[0][0], 2, lambda _: None)
    assert runs.meets(5)
    busy = replace(chat, rate_per_s=runs.loaded(5).rate_per_s)
    others = [
        simulate_sessions(runs.candidate.replica, busy, replicas=5, requests=session_plan.TURNS, seed=seed)
        for seed in (10, 11, 12, 13)
    ]
    assert any(run.latencies["first_ttft"].p95_s > 2 for run in others)
    assert settled(runs, 5, 20) == 6


def test_what_one_run_alone_keeps_is_no_answer() -> None:
    """One replica keeps the limit in a run and loses its cache in others; of more, turns find too little at random."""
    limit = SessionLimit.on("later_ttft", "p95:210ms")
    asked = Sessions(2.4, 5, 4000, 40, 60, first_cv=0.5, think_s=1.0, context_tokens=20_000)
    load, engine = SessionLoad(asked, routing="random"), with_kv(160_000)
    question, turns = session_question("m", load, Sla(limit), headroom=0.0)

    def run_of(replicas: int, seed: int) -> Seen:
        replica = holding([engine], asked)[0][0].replica
        shown = simulate_sessions(replica, asked, replicas=replicas, routing="random", requests=TURNS, seed=seed)
        return Seen.of(shown, Sla(limit), replicas, asked.rate_per_s)

    assert run_of(1, seed=1).meets and any(run_of(1, seed).saturated for seed in (2, 3))
    assert not any(run_of(replicas, seed=1).meets for replicas in (2, 3, 4, 5, 8, 16, 64))
    with pytest.raises(NoFeasiblePlan) as error:
        plan_sessions(question, load, turns, [engine], seed=1)
    [missed] = error.value.rejected
    assert missed.kind == "sla" and missed.limit == limit
    assert missed.nearest_s is None or missed.nearest_s > limit.limit_s


def test_turns_that_compute_little_bound_no_candidate_by_the_mean_turn() -> None:
    """Of six turns one computes 4,000 tokens and five compute 30, so that the mean turn just misses what these keep."""
    documents = SessionLoad(Sessions(20.0, 6, 4000, 20, 10, think_s=5, turn_law="fixed"))
    quick = Sla(SessionLimit.on("later_ttft", "p90:26ms"))
    one, two = candidate(batching=ROOMY), candidate(2, LAW.scaled(0.8), batching=ROOMY)
    alone = [counted(documents, each, sla=quick, spare=0).answer.gpus for each in (one, two)]
    assert alone[0] < alone[1]
    assert counted(documents, one, two, sla=quick, spare=0).answer.gpus == alone[0]


def test_a_slower_engine_may_hold_more_users() -> None:
    """Without thinking times, they send less to it than to a quick engine that runs few at once."""
    agents, loose = SessionLoad(Sessions(1.0, 5, 100, 20, 200), users=600), Sla(SessionLimit.on("first_ttft", "p95:1s"))
    quick, slow = (
        candidate(law=LAW.scaled(scale), batching=replace(ROOMY, max_batch_size=slots))
        for scale, slots in ((1, 32), (3, 128))
    )
    alone = counted(agents, slow, sla=loose).answer.gpus
    assert alone < counted(agents, quick, sla=loose).answer.gpus
    assert counted(agents, quick, slow, sla=loose).answer.gpus == alone


def test_users_are_the_sessions_in_flight() -> None:
    found = planned(SessionLoad(CHAT, users=300))
    seen, mean_s = found.seen, found.seen.predicted.parts["session"].mean_s
    assert seen.in_flight == pytest.approx(300, rel=0.02)
    assert seen.rate_per_s * mean_s == pytest.approx(300, rel=0.1)  # Little's law, of sessions that ended
    assert found.gpus_per_100 == pytest.approx(100 * found.plan.answer.gpus / 300, rel=0.02)
    assert found.plan.serves == "for 300 users at once"


def test_spares_and_headroom() -> None:
    load = SessionLoad(replace(CHAT, rate_per_s=12.0))
    bare, kept = counted(load, headroom=0.0, spare=0).answer, counted(load, headroom=0.5, spare=2).answer
    assert bare.gpus == bare.working and kept.gpus == kept.working + 2
    assert kept.working >= 2 * bare.working - 1


def test_the_band_holds_the_count_and_is_open_where_a_slower_engine_cannot() -> None:
    found = planned(SessionLoad(replace(CHAT, rate_per_s=12.0))).plan.answer
    assert found.working_high is not None and found.working_low <= found.working <= found.working_high
    tight = Limit("itl", 95, 1.02 * found.predicted.itl.p95_s)
    unsure = replace(candidate(), relative_sigma=0.5)
    assert planned(SessionLoad(CHAT), unsure, sla=Sla(tight)).plan.answer.working_high is None


def test_the_capacity_of_a_fleet_that_its_cache_keeps_going_holds_in_other_runs() -> None:
    """At 2.8 sessions/s one run keeps the limits twice inside, and of six others five saturate."""
    chat = Sessions(
        2.0, 3.5, 296, 296, 441, first_cv=1.0, user_cv=1.0, output_cv=0.7, think_s=0.5, system_tokens=500,
        context_tokens=8000, turn_law="geometric",
    )  # fmt: skip
    load, sla = SessionLoad(chat), Sla(Limit("ttft", 95, 1.0), Limit("itl", 95, 0.05))
    engine = holding([candidate(batching=replace(BATCHING, kv_tokens=200_000))], chat)[0][0]
    question, _ = session_question("m", load, sla, headroom=0.0)
    runs = SessionRuns(question, load, engine, 2, lambda _: None, turns=20_000)
    capacity_per_s = most_turns_per_s(runs, 1)
    busy = replace(chat, rate_per_s=capacity_per_s / TurnsByPlace.of(chat).each)
    others = [simulate_sessions(engine.replica, busy, requests=20_000, seed=seed) for seed in range(3, 9)]
    assert [run.latencies["first_ttft"].p95_s > 1 for run in others].count(True) <= 1


def test_the_band_of_a_law_known_for_certain_begins_at_the_counts_of_other_seeds() -> None:
    """Of the same question, runs with a tenth of the turns say 11 to 14 replicas."""
    load, engine = SessionLoad(replace(CHAT, rate_per_s=12.0)), replace(with_kv(60_000), relative_sigma=0.0)
    busy = replace(load.sessions, rate_per_s=12.0 / 0.8)
    replica = holding([engine], CHAT)[0][0].replica

    def meets(replicas: int, seed: int) -> bool:
        shown = simulate_sessions(replica, busy, replicas=replicas, requests=TURNS, seed=seed)
        return Seen.of(shown, LIMITS, replicas, busy.rate_per_s).meets

    counts = [next(count for count in range(8, 30) if meets(count, seed)) for seed in range(10, 70, 10)]
    found = planned(load, engine).plan.answer
    assert found.working_low <= min(counts) < found.working == found.working_high


def test_the_band_holds_the_count_where_runs_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the edge a run may miss the SLA that one of a slower engine keeps."""
    question, _ = session_question("m", load := SessionLoad(replace(CHAT, rate_per_s=12.0)), LIMITS)
    fleet = planned(load).plan.answer
    ends = iter([fleet.working + 1, fleet.working - 1])
    monkeypatch.setattr(session_plan, "settled", lambda *_: next(ends))
    found = completed(session_plan.SessionRuns(question, load, candidate(), 0, lambda _: None), fleet)
    assert (found.working_low, found.working_high) == (fleet.working, fleet.working)


# --- Theory and laws


def test_a_quiet_fleet_finds_all_that_was_there_before() -> None:
    """Turns of a fixed number, lengths that do not vary, memory without end: the hit rate is arithmetic."""
    asked = Sessions(0.05, 4, 320, 64, 128, think_s=60, system_tokens=160, turn_law="fixed")
    found = planned(SessionLoad(asked), candidate(batching=ROOMY), headroom=0.0)
    prompts = [480 + number * 192 for number in range(4)]
    cached = [160] + [(prompt - 64 - 1) // 16 * 16 for prompt in prompts[1:]]  # the last token of an answer is not
    assert found.seen.hit_rate == pytest.approx(sum(cached) / sum(prompts), rel=1e-3)
    mean_s = 3 * 60 + 4 * found.seen.predicted.e2e.mean_s
    assert found.seen.predicted.parts["session"].mean_s == pytest.approx(mean_s, rel=0.05)
    thinking = 448 + 192  # the user thinks after the first three answers, and hardly anything else takes time
    assert found.filled(found.seen) * found.kv_tokens / found.seen.in_flight == pytest.approx(thinking, rel=0.02)


def test_what_turns_are_like() -> None:
    turns = TurnsByPlace.of(Sessions(1.0, 4, 300, 50, 100, system_tokens=200, turn_law="fixed"))
    assert turns.each == 4
    assert turns.lengths.isl == pytest.approx(500 + 1.5 * 150) and turns.lengths.osl == 100
    assert turns.known_tokens == pytest.approx((200 + 600 + 750 + 900) / 4)
    assert turns.context_tokens == pytest.approx(500 + 1.5 * 150 + 100 - 200)


def test_answers_of_two_tokens_that_vary_have_an_itl() -> None:
    """Lognormal lengths, rounded to 1 or more, have a mean of their own: 1.99 as they are drawn."""
    question, _ = session_question("m", SessionLoad(Sessions(1.0, 8, 600, 120, 2, output_cv=0.5)), LIMITS)
    assert question.workload.lengths.osl < 2


def test_more_memory_never_takes_more_gpus_and_thrashing_takes_many() -> None:
    load = SessionLoad(replace(CHAT, rate_per_s=8.0))
    counts = [counted(load, with_kv(kv)).answer.working for kv in (16_000, 60_000, 400_000)]
    assert counts == sorted(counts, reverse=True) and counts[0] >= 2 * counts[-1]


def test_routings_that_know_sessions_find_most() -> None:
    found = planned(SessionLoad(replace(CHAT, rate_per_s=12.0)), with_kv(60_000))
    hits = {name: seen.hit_rate for name, seen in found.routings}
    assert min(hits["affinity"], hits["prefix_aware"]) > max(hits["random"], hits["least_outstanding"])
    assert dict(found.routings)["affinity"] == found.seen


def test_a_queue_that_grows_is_no_cache_that_thrashes() -> None:
    """Memory for all: beyond some load the engine computes too little, and what is found stays what it was."""
    found = planned(SessionLoad(replace(CHAT, rate_per_s=12.0)), with_kv(4_000_000))
    assert found.cliff is not None and found.cliff.saturated
    said = cliff_line(found, found.cliff)
    assert "the queue grows without end" in said and "crowd" not in said


def test_the_curve_ends_in_the_cliff() -> None:
    found = planned(SessionLoad(replace(CHAT, rate_per_s=12.0)), with_kv(60_000))
    hits = [seen.hit_rate for seen in found.curve]
    assert found.cliff is not None and min(hits) < 0.9 * found.seen.hit_rate
    assert found.filled(found.cliff) > found.filled(found.seen)
    assert found.none_found is None or found.all_found is None or found.all_found <= found.none_found


# --- What cannot be


@pytest.mark.parametrize(
    ("limit", "subject"),
    [
        (SessionLimit.on("first_ttft", "p95:5ms"), "TTFT of first turns"),
        (SessionLimit.on("session", "p95:1s"), "time of a session"),
        (Limit("itl", 95, 1e-3), "ITL"),
    ],
)
def test_an_sla_that_nothing_meets_has_no_count(limit: Limit, subject: str) -> None:
    with pytest.raises(NoFeasiblePlan) as error:
        planned(SessionLoad(CHAT), sla=Sla(limit))
    [missed] = error.value.rejected
    assert missed.kind == "sla" and missed.limit == limit and subject in missed.why
    assert missed.nearest_s is not None and missed.nearest_s > limit.limit_s


def test_turns_that_the_formula_takes_for_alike_are_judged_by_simulation() -> None:
    """Prompts of first turns are a thousand times as long as what later turns add: the mean prompt is neither."""
    shape = Sessions(0.01, 3, 20_000, 20, 20, turn_law="fixed", think_s=5)
    limit = SessionLimit.on("later_ttft", "p95:200ms")
    assert planned(SessionLoad(shape), with_kv(10**6), sla=Sla(limit)).seen.predicted.value_s(limit) <= 0.2
    with pytest.raises(NoFeasiblePlan) as error:  # which take 10 s to think, whatever the engine does
        planned(SessionLoad(shape), with_kv(10**6), sla=Sla(SessionLimit.on("session", "p95:1ms")))
    assert error.value.rejected[0].nearest_s >= 10


def test_where_turns_scatter_no_fleet_keeps_what_one_replica_does() -> None:
    """Long first prompts: a later turn keeps the limit where they are cached, as on one replica they are."""
    limit, engine = SessionLimit.on("later_ttft", "p95:40ms"), candidate(batching=ROOMY)
    load = SessionLoad(Sessions(20.0, 5, 4000, 40, 100, think_s=5), routing="random")
    question, turns = session_question("m", load, Sla(limit))
    with pytest.raises(NoFeasiblePlan) as error:
        plan_sessions(question, load, turns, [engine])
    [missed] = error.value.rejected
    assert missed.limit == limit and missed.nearest_s is not None and missed.nearest_s > limit.limit_s
    assert "of prompt tokens are found" in missed.why
    (way,), _ = session_ways_out(error.value.rejected, question, load, [engine])
    assert way.smallest is not None and way.smallest.limit_s > 4000 * LAW.token_s
    reached = replace(limit, limit_s=1.2 * way.smallest.limit_s)
    assert counted(load, engine, sla=Sla(reached)).answer.gpus > 1


def test_the_smallest_limit_of_turns_that_the_formula_takes_for_others() -> None:
    """First turns are long, and the formula gives the mean turn 20 times what later ones take."""
    load = SessionLoad(Sessions(0.01, 3, 20_000, 20, 20, turn_law="fixed", think_s=5))
    question, turns = session_question("m", load, Sla(SessionLimit.on("later_ttft", "p95:5ms")))
    with pytest.raises(NoFeasiblePlan) as error:
        plan_sessions(question, load, turns, [with_kv(10**6)])
    (way,), _ = session_ways_out(error.value.rejected, question, load, [with_kv(10**6)])
    assert way.smallest is not None and way.smallest.limit_s < 0.02
    assert counted(load, with_kv(10**6), sla=Sla(way.smallest)).answer.working == 1


def test_engines_without_a_cache_or_its_size_are_left_out() -> None:
    static = candidate(batching=Batching("static", 8))
    unknown = candidate(batching=replace(BATCHING, kv_tokens=10**9))
    with pytest.raises(NoFeasiblePlan) as error:
        planned(SessionLoad(CHAT), static, unknown, with_kv(7000))
    kinds = {missed.why[:30]: missed.kind for missed in error.value.rejected}
    assert sorted(kinds.values()) == ["memory", "no_data", "no_data"]


def test_limits_of_sessions() -> None:
    first, later = SessionLimit.on("first_ttft", "p95:1s"), SessionLimit.on("later_ttft", "p99:200ms")
    assert str(Sla(later, first)) == "p99 TTFT of later turns <= 200 ms and p95 TTFT of first turns <= 1000 ms"
    with pytest.raises(ScenarioError, match="two limits on TTFT of first turns"):
        Sla(first, replace(first, limit_s=2.0))
    with pytest.raises(ScenarioError, match="gaps between tokens"):
        session_question("m", SessionLoad(CHAT), Sla(Limit("gap", 99, 0.1)))
    with pytest.raises(ScenarioError, match=r"^--later-ttft 'soon': write it as percentile:time"):
        SessionLimit.on("later_ttft", "soon", "--later-ttft")
    with pytest.raises(ScenarioError, match="at most 40,960"):
        within_context("Qwen/Qwen3-32B", replace(CHAT, context_tokens=10**6))
    assert within_context("Qwen/Qwen3-32B", replace(CHAT, context_tokens=0)).context_tokens == 40_960


# --- The command


PLAN = [
    *"plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision fp8 --tp 1 --engine trtllm".split(),
    *"--turns 6 --first-tokens 600 --user-tokens 120 --output-tokens 300 --think 30s".split(),
]
LATER = ["--later-ttft", "p95:500ms", "--itl", "p95:40ms"]


@pytest.fixture(scope="module")
def answered() -> dict[str, Any]:
    """The answer for 300 users as JSON."""
    from click.testing import CliRunner

    from sizing.cli import cli

    done = CliRunner().invoke(cli, [*PLAN, *LATER, "--users", "300", "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_servers_of_sessions_take_a_session_to_its_end(answered: dict[str, Any]) -> None:
    """A later turn is longer than the mean prompt: Qwen3-32B takes 40,960 tokens, and so must the engine."""
    assert answered["sessions"]["asked"]["context_tokens"] == 40_960
    assert answered["engine_settings"]["max_model_tokens"] == 40_960


def test_json_has_what_sessions_come_to(answered: dict[str, Any]) -> None:
    told = answered["sessions"]
    assert answered["sentence"].startswith(f"You need {answered['gpus']} × h200_sxm for 300 users at once")
    assert told["users"] == 300 and told["sessions_in_flight"] == pytest.approx(300, rel=0.02)
    assert 0.8 < told["hit_rate"] < 1 and told["meets_sla"]
    assert set(told["latencies"]) == {"ttft", "itl", "e2e", "first_ttft", "later_ttft", "session"}
    assert answered["question"]["sla"] == {"later_ttft": "p95:0.5s", "itl": "p95:0.04s"}
    assert answered["gpus_low"] <= answered["gpus"] <= answered["gpus_high"]
    assert told["rising_load"][-1]["saturated"] is (told["rising_load"][-1]["latencies"]["ttft"]["p50_s"] is None)


def test_rising_loads_hold_the_planned_one_as_it_was_planned(answered: dict[str, Any]) -> None:
    """The row of 100 % has the sessions in flight of the text; loads are named with a space, far ones by multiples."""
    told, found = answered["sessions"], from_dict(answered["report"]).sessions
    assert found is not None
    planned = found.rising[found.planned]
    assert planned.name == "100 % of the load"
    assert planned.in_flight.value == told["sessions_in_flight"]
    assert planned.hit_rate.value == told["hit_rate"]
    assert all(" % of the load" in row.name or " times the load" in row.name for row in found.rising)


def test_the_chart_of_sessions_names_powers_of_ten_in_figures(answered: dict[str, Any]) -> None:
    found = from_dict(answered["report"]).sessions
    assert found is not None
    ends = (replace(found.rising[0], later_ttft=Quantity(value_s, "s", "estimated")) for value_s in (0.05, 50.0))
    drawn = sessions_chart(replace(found, rising=(*ends, *found.rising[2:]))).svg
    assert "<!-- 10,000 -->" in drawn and "mathdefault" not in drawn


def test_reports_hold_the_sessions(answered: dict[str, Any]) -> None:
    found = from_dict(answered["report"])
    assert found.sessions is not None and found.curves is None
    assert [limit.name for limit in found.limits] == ["p95 TTFT of later turns", "p95 ITL"]
    assert "or more" not in "".join(map(latency_band, found.limits)), "no band is not an open one"
    page = Page(render(found, "html").decode())
    for line in found.sessions.lines:
        assert line in page.text
    printed = pdf_text(render(found, "pdf"))
    assert squeezed("Sessions at rising load") in printed and squeezed("Users or agents at once") in printed
    book = sheets(render(found, "xlsx"))
    rows = rows_below(book["Sessions"], "Load")
    assert [row[0] for row in rows][: len(found.sessions.rising)] == [each.name for each in found.sessions.rising]
    routings = {row[0]: row[2] for row in rows_below(book["Routings"], "Routing")}
    assert routings == {each.name.replace("_", " "): each.hit_rate.value for each in found.sessions.routings}
    assert {row[0] for row in book["Answer"]} >= set(found.sessions.lines)
    assert book["Working"][1][0] == found.working and "ask the planner again" in str(book["Working"][2][0])
    assert [row[0] for row in book["TCO rows"]] == [NO_ONE_LENGTH], "turns have no one ISL and OSL"


def test_a_plan_of_sessions_is_none_to_watch(
    answered: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(answered))
    files = ["--plan", str(tmp_path / "plan.json"), "--dashboard", str(tmp_path / "x.json")]
    code, _, err = run(["watch", *files], capsys)
    assert code == 2 and "a plan of sessions cannot be watched" in err and err.count("\n") == 1


def test_the_answer_tells_of_cache_and_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*PLAN, "--session-time", "p95:1200s", "--sessions-per-s", "1"], capsys)
    assert code == 0
    for told in ("to start 1 session/s", "of prompt tokens are found", "whole session", "p95 time of a session"):
        assert told in out


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--users", "5", "--isl", "100", *LATER], 2, "--isl does not go with --users"),
        (["--users", "5", "--sessions-per-s", "1", *LATER], 2, "either --users or --sessions-per-s"),
        (["--users", "5", "--tune", *LATER], 2, "--tune does not go with"),
        (["--users", "5"], 2, "the SLA needs at least one limit"),
        (["--rate", "5", "--isl", "100", "--osl", "10", "--ttft", "p95:1s"], 2, "--turns goes with --users"),
        (["--users", "5", "--later-ttft", "fast"], 2, "--later-ttft 'fast': write it as"),
        (["--users", "5", "--context-tokens", "1000", *LATER], 2, "sessions have no later turn"),
        (["--users", "5", "--later-ttft", "p95:1ms"], 3, "no configuration meets p95 TTFT of later turns"),
    ],
)
def test_what_is_refused(more: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, err = run([*PLAN, *more], capsys)
    assert found == code and told in err and len(err.strip().splitlines()) == 1
    assert "You need" not in out


def test_a_plan_that_cannot_be_has_json_and_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*PLAN, "--users", "5", "--later-ttft", "p95:1ms", "--json"], capsys)
    answer = json.loads(out)
    found = from_dict(answer["report"])
    assert code == 3 and answer["feasible"] is False and "gpus" not in answer
    assert found.answer is None and found.left_out and not found.ways_out and "for 5 users" in found.title
    assert {"users", "turns", "later_ttft_p95_s"} <= {row.key for row in found.inputs}
    ways = [f"{each}." for each in answer["ways_out"]]
    (told,) = (each.bullets for each in sections(found) if each.title == "Ways to meet the SLA")
    assert ways and list(told) == ways
    rows = [row[0] for row in sheets(render(found, "xlsx"))["Answer"]]
    assert rows[rows.index("Ways to meet the SLA") + 1 :][: len(ways)] == ways
