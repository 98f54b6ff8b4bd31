"""Whole runs against a mock server in a process of its own: points, resuming, losing the server, Ctrl-C."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.errors import Cancelled, ClientLimitedError, NothingAnswered, PlanError, ServerError
from calibration.levels import Pace, job_of
from calibration.load import self_check
from calibration.load.contract import Contract
from calibration.load.self_check import Distortion
from calibration.plan import DeploymentPlan, Level, PlanFile, level_key, parse_plan
from calibration.records import Measurement
from calibration.run import Listener, Sweep, resume, run
from calibration.store import Store
from calibration.store.runs import cleaned
from calibration.target import Described, Target, deployment, prepare, scheduling
from sizing.points import Point, Scheduling
from sizing.workload import Lengths
from tests.calibration.mock_server import ENGINE, Script, subprocess_server
from tests.calibration.server_view.test_server_view import serving

pytestmark = pytest.mark.usefixtures("unhurried")
FAST = Script(ttft_s=0.004, itl_s=0.001)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess_server(FAST) as url:
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'points.db'}")


def plan(url: str, more: str = "") -> PlanFile:
    text = f"server: {{url: '{url}'}}\nlengths: [{{isl: 6, osl: 4, isl_cv: 0, osl_cv: 0}}]\n"
    text += "concurrency: [1, 3]\nrequests_per_level: 12\ncheck_load: 0\n"
    return parse_plan(f"{text}client: {{self_check: false}}\n{more}")


class Watcher(Listener):
    """Keeps what it is told; after `stop_after` points it acts like Ctrl-C."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.levels: list[str] = []
        self.lines: list[str] = []
        self.expected: list[tuple[float, float]] = []
        self.shares: list[float] = []

    def says(self, text: str) -> None:
        self.lines.append(text)

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        self.expected.append((seconds, after_s))

    def share(self, done: float) -> None:
        self.shares.append(done)

    def measured(self, level: Level, found: Measurement) -> None:
        self.levels.append(level.label)
        if len(self.levels) == self.stop_after:
            raise KeyboardInterrupt


def test_a_run_measures_every_level_and_keeps_it(url: str, store: Store) -> None:
    watcher = Watcher()
    longer = plan(url, "rates: [40]\n").text.replace("requests_per_level: 12", "requests_per_level: 48")
    run_id = run(parse_plan(longer), store, watcher)
    points = store.points(run_id)
    assert [(point.load_kind, point.load_value) for point in points] == [
        ("concurrency", 1),
        ("concurrency", 3),
        ("poisson_rate", 40),
    ]
    for point in points:
        assert (point.model, point.gpu, point.tp, point.batching, point.max_batch_size) == (
            "toy",
            "cpu",
            1,
            "in_flight",
            8,
        )
        assert point.errors == 0
        assert point.ttft_mean_s > FAST.ttft_s  # type: ignore[operator]
        assert point.itl_mean_s > FAST.itl_s  # type: ignore[operator]
        assert point.source == f"calibration run {run_id}, ensemble at {url}"
        assert point.verdict
    for point in points[:2]:
        assert point.requests >= 48  # type: ignore[operator]
        assert point.mean_in_flight <= point.load_value  # type: ignore[operator]
    assert store.run(run_id).state == "done"
    assert len(watcher.levels) == len(watcher.expected) == 3
    assert [after_s == 0 for _, after_s in watcher.expected] == [False, False, True]
    assert "3 levels, about" in watcher.lines[0]
    assert all(0 <= share <= 1 for share in watcher.shares)


def test_every_request_of_a_level_is_kept_beside_its_point(url: str, store: Store) -> None:
    run_id = run(plan(url), store)
    for found in store.measurements(run_id):
        log = store.log(run_id, level_key(found.point))
        assert log is not None
        inside = (log.last_token_s >= found.facts["window_start_s"]) & (log.last_token_s < found.facts["window_stop_s"])
        assert inside.sum() == found.point.requests
        assert set(log.tokens) == {4}


@pytest.mark.long
def test_open_loops_of_every_kind(url: str, store: Store, tmp_path: Path) -> None:
    """Bursty arrivals, a schedule and a trace replayed at twice its speed: each a point of its own, at its own rate."""
    rows = "".join(f"{n / 10},{5 + n % 3},4\n" for n in range(21))
    (tmp_path / "trace.csv").write_text(f"arrival_s,isl,osl\n{rows}")
    bursty = f"""
        server: {{url: '{url}'}}
        client: {{self_check: false}}
        lengths: [{{isl: 6, osl: 4}}]
        rates: [30]
        arrivals: gamma:cv=2
        schedule: [{{for_s: 0.5, rate: 20}}, {{for_s: 0.5, rate: 40}}]
        requests_per_level: 20
    """
    replayed = f"""
        server: {{url: '{url}'}}
        client: {{self_check: false}}
        lengths: [{{trace: trace.csv}}]
        replay: [2]
    """
    points = [
        point for text in (bursty, replayed) for point in store.points(run(parse_plan(text, folder=tmp_path), store))
    ]
    assert {point.load_kind: point.load_value for point in points} == {"schedule": 30, "gamma_rate": 30, "trace": 20}
    for point in points:
        assert point.isl == pytest.approx(6, rel=0.05)
        assert point.e2e_mean_s > FAST.ttft_s + 3 * FAST.itl_s  # type: ignore[operator]


def test_a_trace_is_replayed_in_its_order(url: str, store: Store, tmp_path: Path) -> None:
    """Whose length falls due when is part of what is replayed; in a closed loop any order will do."""
    rows = "".join(f"{n / 20},{5 + n},4\n" for n in range(20))
    (tmp_path / "trace.csv").write_text(f"arrival_s,isl,osl\n{rows}")
    loads = f"server: {{url: '{url}'}}\nclient: {{self_check: false}}\nlengths: [{{trace: trace.csv}}]\nreplay: [1]"
    run_id = run(parse_plan(loads, folder=tmp_path), store)
    (point,) = store.points(run_id)
    log = store.log(run_id, level_key(point))
    assert log is not None
    assert log.isl[np.argsort(log.intended_s)].tolist() == list(range(5, 25))


def test_levels_that_could_not_be_told_apart_are_refused() -> None:
    assert len(parse_plan("lengths: [{isl: 6, osl: 4}, {isl: [5, 7], osl: 4}]\nconcurrency: [1]").plan.levels()) == 2
    with pytest.raises(PlanError, match="two levels of the plan have the same means and load"):
        parse_plan("lengths: [{isl: 6, osl: 4, isl_cv: 0}, {isl: [6, 6], osl: 4}]\nconcurrency: [1]").plan.levels()


def test_cancelling_ends_the_run_and_keeps_what_was_measured(url: str, store: Store) -> None:
    cancel = threading.Event()

    class Canceller(Watcher):
        def measured(self, level: Level, found: Measurement) -> None:
            cancel.set()

    with pytest.raises(Cancelled, match="resume 1"):
        run(plan(url), store, Canceller(), cancel)
    assert store.run(1).points == 1


def test_a_load_generator_that_cannot_keep_up_is_refused_before_anything_is_measured(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Distortion(3, 1, 0.02, 0.1, 1.0, 2.0, 1.0, 1.0)
    monkeypatch.setattr(self_check, "check", lambda *_, **__: slow)
    file = parse_plan(plan(url).text.replace("self_check: false", "self_check: true"))
    with pytest.raises(ClientLimitedError, match="by more than 5 ms or 1 %"):
        run(file, store)
    assert store.points() == []


def test_as_many_processes_as_the_mock_shows_to_be_needed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process distorts 40 streams, two do not; the heaviest level is the one that is tried."""
    tried: list[tuple[int, int]] = []

    def check(users: int, *_: object, processes: int) -> Distortion:
        tried.append((users, processes))
        return Distortion(users, processes, 0.02 / processes**3, 0.0, 1.0, 1.0, 1.0, 1.0)

    monkeypatch.setattr(self_check, "check", check)
    monkeypatch.setattr(self_check.system, "usable", lambda: {0, 1, 2, 3})
    file = parse_plan("lengths: [{isl: 6, osl: 4}]\nconcurrency: [4, 40, 8]")
    levels = file.plan.levels()
    target = Target(file.plan, DESCRIBED, deployment(DeploymentPlan(), ENGINE), tuple(levels))
    pace = Pace(levels[0].lengths, 1, 0.1, 0.02, 0.01)
    assert Sweep(1, target, store).processes(levels, pace) == 2
    assert tried == [(40, 1), (40, 2)]
    chosen = replace(target, plan=parse_plan(file.text + "\nclient: {processes: 3}").plan)
    assert Sweep(1, chosen, store).processes(levels, pace) == 3
    assert tried[2:] == [(40, 3)]


DESCRIBED = Described(Contract("m", {}, (), batched=False), dict(ENGINE), None, False)


def test_a_server_that_answered_more_than_was_sent_has_a_void_point(url: str, store: Store) -> None:
    """Its counter stands still before the level, and has risen by a thousand requests when that is over."""

    def page(number: int) -> tuple[int, bytes, float]:
        served = 0 if number < 3 else 1000  # one page when the server is prepared, two until the count stands still
        return 200, f'nv_inference_request_success{{model="ensemble",version="1"}} {served}\n'.encode(), 0.0

    with serving(page) as metrics:
        text = plan(url).text.replace("server: {", f"server: {{metrics_url: '{metrics}', ")
        run_id = run(parse_plan(text.replace("[1, 3]", "[3]")), store)
    (point,) = store.points(run_id)
    log = store.log(run_id, level_key(point))
    assert log is not None and store.run(run_id).void == 1
    assert f"shared: other clients sent {1000 - len(log)} of the 1000 requests that the server answered" in point.notes


def test_resume_measures_only_what_is_missing(url: str, store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(plan(url, "rates: [40]\n"), store, Watcher(stop_after=1))
    (interrupted,) = store.runs()
    assert (interrupted.state, interrupted.points) == ("interrupted", 1)
    kept = store.points(interrupted.id)
    watcher = Watcher()
    assert resume(interrupted.id, store, watcher) == interrupted.id
    assert watcher.levels == ["ISL 6, OSL 4, concurrency 3", "ISL 6, OSL 4, 40 requests/s"]
    assert store.points(interrupted.id)[0] == kept[0]
    assert (store.run(interrupted.id).state, store.run(interrupted.id).points) == ("done", 3)
    again = Watcher()
    resume(interrupted.id, store, again)
    assert again.levels == []


def test_a_resumed_run_goes_on_at_the_pace_of_its_last_point(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm-up and arrivals of an open loop follow from it: they are those of a run that nobody stopped."""
    paces: list[Pace] = []
    monkeypatch.setattr("calibration.run.job_of", lambda *given: paces.append(given[2]) or job_of(*given))
    with pytest.raises(KeyboardInterrupt):
        run(plan(url, "rates: [40]\n"), store, Watcher(stop_after=2))
    (begun,) = store.runs()
    paces.clear()
    resume(begun.id, store)
    last = store.points(begun.id, as_measured=True)[1]
    assert [(pace.users, pace.e2e_s) for pace in paces] == [(last.mean_in_flight, last.e2e_mean_s)]


def test_a_probe_tells_the_time_of_a_mean_request_whatever_length_it_drew(url: str, store: Store) -> None:
    file = parse_plan(plan(url).text.replace("osl: 4, isl_cv: 0, osl_cv: 0", "osl: 40, osl_cv: 0.9"))
    target = prepare(file)
    found = Sweep(1, target, store).probe(target.levels[0])
    assert found.e2e_s == pytest.approx(found.ttft_s + 39 * found.itl_s)


def test_resume_refuses_another_deployment(url: str, store: Store) -> None:
    run_id = run(plan(url), store)
    changed = Script(engine=ENGINE | {"batching": "static"})
    with subprocess_server(changed) as other_url:
        moved = store.create_run(plan(other_url).text, levels=2)
        store.add_point(moved, store.points(run_id)[0])
        with pytest.raises(PlanError, match="start a new run"):
            resume(moved, store)


@pytest.mark.long
def test_losing_the_server_keeps_the_points_and_says_how_to_go_on(store: Store) -> None:
    """The first level sends some 220 requests: 204, and what goes out until the users are told to stop."""
    script = Script(ttft_s=0.004, itl_s=0.001, die_after=300)
    with subprocess_server(script) as url, pytest.raises(ServerError, match="python -m calibration resume 1"):
        run(parse_plan(plan(url).text.replace("requests_per_level: 12", "requests_per_level: 200")), store)
    (lost,) = store.runs()
    assert (lost.state, lost.points) == ("failed", 1)
    assert lost.error


def test_a_server_that_is_lost_between_two_levels_was_at_the_plan_s_url(store: Store) -> None:
    class Ending(Listener):
        def measured(self, level: Level, found: Measurement) -> None:
            server.close()

    with ExitStack() as server:
        url = server.enter_context(subprocess_server(FAST))
        said = f"{url}: the server stopped answering; points are kept; continue with: python -m calibration resume 1"
        with pytest.raises(ServerError, match=f"^{re.escape(said)}$"):
            run(plan(url), store, Ending())
    assert store.run(1).error == f"{url}: the server stopped answering"


def test_a_run_that_ends_before_its_first_point_keeps_none(store: Store) -> None:
    class Ending(Listener):
        def started(self, run_id: int) -> None:
            server.close()

    said = r"; nothing is measured yet; continue with: python -m calibration resume 1$"
    with ExitStack() as server, pytest.raises(ServerError, match=said):
        run(plan(server.enter_context(subprocess_server(FAST))), store, Ending())


def test_a_level_without_answers_has_no_point_and_the_others_go_on(store: Store) -> None:
    """An OSL that the server refuses: what comes before and after it is measured, and the run says what is missing."""
    with subprocess_server(Script(ttft_s=0.004, itl_s=0.001, error_osl=5)) as url:
        text = plan(url).text.replace(
            "osl_cv: 0}]", "osl_cv: 0}, {isl: 6, osl: 5, osl_cv: 0}, {isl: 6, osl: 7, osl_cv: 0}]"
        )
        watcher = Watcher()
        with pytest.raises(NothingAnswered, match=r"OSL 5.*out of blocks.*resume 1"):
            run(parse_plan(text), store, watcher)
        assert [(point.osl, point.load_value) for point in store.points(1)] == [(4, 1), (4, 3), (7, 1), (7, 3)]
        assert store.run(1).state == "failed"
        with pytest.raises(ServerError, match="out of blocks"):
            resume(1, store)


def test_nobody_there_leaves_no_run_behind(store: Store) -> None:
    with pytest.raises(ServerError, match="no Triton server answers"):
        run(plan("127.0.0.1:1"), store)
    assert store.runs() == []


def test_a_missing_tokenizer_leaves_no_run_behind(url: str, store: Store) -> None:
    with pytest.raises(PlanError, match=r"no such tokenizer\.json"):
        run(plan(url, "tokenizer: absent.json\n"), store)
    assert store.runs() == []


def test_a_model_that_is_not_served_is_named(url: str, store: Store) -> None:
    file = parse_plan(plan(url).text.replace("server: {", "server: {model: nemo, "))
    with pytest.raises(ServerError, match="a model 'nemo'"):
        run(file, store)


def test_what_nobody_says_of_the_deployment_must_be_added() -> None:
    with pytest.raises(PlanError, match=r"precision, gpu: add deployment: \{precision: \.\.\., gpu: \.\.\.\}"):
        deployment(DeploymentPlan(tp=2), {"model": "toy"})
    with pytest.raises(PlanError, match="tp = 'two'"):
        deployment(DeploymentPlan(), ENGINE | {"tp": "two"})


def test_the_plans_word_goes_before_the_servers() -> None:
    found = deployment(DeploymentPlan(gpu="h200_sxm", max_batch_size=64), ENGINE | {"max_batch_size": "8"})
    assert (found.model, found.gpu, found.max_batch_size, found.pp) == ("toy", "h200_sxm", 64, 1)


def test_the_plans_word_on_the_scheduler_goes_before_the_servers_too() -> None:
    said = Scheduling("prefill_first", 8192, 1.0)
    assert scheduling(DeploymentPlan(), said) == said
    small = scheduling(DeploymentPlan(token_budget=512, lookahead_steps=0), said)
    assert small == said._replace(token_budget=512, lookahead_steps=0)
    waits = {"receive_interval_steps": 30, "batch_wait_steps": 20, "batch_wait_ratio": 0.9}
    assert scheduling(DeploymentPlan(**waits), said) == said._replace(**waits)
    file = parse_plan("lengths: [{isl: 6, osl: 4}]\nconcurrency: [1]\ndeployment: {policy: chunked}\n")
    assert scheduling(file.plan.deployment, said).policy == "chunked"
    with pytest.raises(PlanError, match=r"deployment\.policy"):
        parse_plan("lengths: [{isl: 6, osl: 4}]\nconcurrency: [1]\ndeployment: {policy: in_flight}\n")


def test_a_version_with_a_line_break_is_known_again() -> None:
    """A resumed run compares what the server says with what the store has kept, which is one line."""
    found = deployment(DeploymentPlan(), ENGINE | {"engine_version": "b1234\n"})
    kept = Point(**found._asdict(), isl=6, osl=4, load_kind="concurrency", load_value=1, requests_per_s=1)
    assert cleaned(kept).deployment == found


def test_what_is_assumed_gives_way_to_the_server() -> None:
    """A page that takes TP 1 for granted must not size a server of four GPUs as one."""
    assumed = DeploymentPlan(tp=1, precision="bf16", gpu="h200_sxm", assumed=["tp", "precision"])
    found = deployment(assumed, {"model": "toy", "tp": "4", "gpu": "h100_sxm", "precision": ""})
    assert (found.tp, found.precision, found.gpu) == (4, "bf16", "h200_sxm")
    assert deployment(assumed, {"model": "toy"}).tp == 1


def test_expected_seconds_follow_from_requests_and_users() -> None:
    """By Little's law a level of q requests with N users takes q x E2E / N, and warm-up a few E2E more."""
    pace = Pace(Lengths(6, 4), users=4, e2e_s=2.0)
    sweep = parse_plan("lengths: [{isl: 6, osl: 4}]\nconcurrency: [4]\nrequests_per_level: 100\nwarm_up: 3").plan
    (level,) = sweep.levels()
    assert pace.expected_s(sweep, level) == pytest.approx(100 * 2 / 4 + 5 * 2)
    times = [pace.e2e_at_s(users) for users in (1, 4, 9, 100)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(times))


def test_a_sweep_of_closed_loops_ends_with_random_arrivals(store: Store, url: str) -> None:
    file = parse_plan(plan(url).text.replace("check_load: 0", "check_load: 0.5"))
    run_id = run(file, store)
    first, second, check = store.points(run_id)
    assert (first.load_kind, second.load_kind, check.load_kind) == ("concurrency", "concurrency", "poisson_rate")
    highest = max(first.requests_per_s, second.requests_per_s)
    assert check.load_value == pytest.approx(0.5 * highest, rel=0.05)
    assert [first.protocol, second.protocol, check.protocol] == ["staggered", "staggered", ""]
    assert store.run(run_id).levels == 3


def test_users_told_to_begin_otherwise_are_not_said_to_be_staggered(store: Store, url: str) -> None:
    run(plan(url, "ramp_s: 0\n"), store)
    assert {point.protocol for point in store.points()} == {""}


@pytest.mark.long
def test_a_run_stopped_before_its_random_arrivals_is_resumed_with_them(store: Store, url: str) -> None:
    file = parse_plan(plan(url).text.replace("check_load: 0", "check_load: 0.5"))
    with pytest.raises(KeyboardInterrupt):
        run(file, store, Watcher(stop_after=2))
    (begun,) = store.runs()
    resume(begun.id, store)
    assert [point.load_kind for point in store.points(begun.id)] == ["concurrency", "concurrency", "poisson_rate"]
