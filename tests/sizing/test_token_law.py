"""Laws of lengths other than lognormal: their text, their quantiles, and what formula and simulation make of them."""

from __future__ import annotations

import csv
import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sizing
from sizing.__main__ import main
from sizing.analyses.pools import decode_question, prefill_question
from sizing.analyses.sharing import parse_workload, read_scenario, share_of
from sizing.analyses.study import read_study
from sizing.engine import Batching, Policy, Replica, StepLaw
from sizing.errors import LONGEST, ScenarioError
from sizing.prediction import Prediction
from sizing.question import Question
from sizing.queueing import predict, stable_rate_per_s
from sizing.queueing.demand import demand_of
from sizing.report.sections import inputs
from sizing.simulator import simulate
from sizing.text import lengths_sentence
from sizing.token_law import MOST_CELLS, TokenLaw, with_file
from sizing.workload import Lengths, Workload
from tests.sizing.token_laws import LAWS, law_of, laws

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 48.9e-9, 1.3e-9, 0.5e-3, 4e-3)
UNIFORM = Lengths(1, 1, isl_law=law_of("uniform:100-1900"), osl_law=law_of("uniform:20-500"))
TWO = Lengths(1, 1, isl_law=law_of("points:500@0.8,3000@0.2"), osl_law=law_of("points:100@0.8,900@0.2"))


def own(lengths: Lengths) -> Lengths:
    """Lengths whose means are those of their laws."""
    assert lengths.isl_law and lengths.osl_law
    return replace(lengths, isl=lengths.isl_law.mean, osl=lengths.osl_law.mean)


# the text


@given(laws)
@example(TokenLaw(((1, 2, 2.0),)))
@example(TokenLaw(((3, 3, 0.1),)))
def test_a_law_reads_back_what_it_writes(law: TokenLaw) -> None:
    assert TokenLaw.parse(str(law)) == law
    assert pickle.loads(pickle.dumps(law)) == law
    assert law_of(f"{law.kind}:{law.parameters}") == law


@pytest.mark.parametrize(
    ("text", "mean", "variance"),
    [
        ("uniform:100-300", 200, (201**2 - 1) / 12),
        ("points:200@0.8,4000@0.2", 960, 0.8 * 760**2 + 0.2 * 3040**2),
        ("points:1,2,3", 2, 2 / 3),
        ("points:4000@2,200@8", 960, 0.8 * 760**2 + 0.2 * 3040**2),
        ("histogram:1-3@3,10@1", 4, (3 * ((4 - 2) ** 2 + 2 / 3) + 36) / 4),
    ],
)
def test_mean_and_spread_are_those_of_the_law(text: str, mean: float, variance: float) -> None:
    law = law_of(text)
    assert law.mean == pytest.approx(mean)
    assert law.cv == pytest.approx(math.sqrt(variance) / mean)


def test_the_lognormal_is_no_other_law() -> None:
    assert TokenLaw.parse("lognormal") is None
    asked = {"model": "m", "isl": 100, "osl": 10, "isl_cv": 0.5, "rate": 1, "ttft": "p95:1s"}
    assert Question.of({**asked, "isl_law": "lognormal"}) == Question.of(asked)


BROKEN = [
    *(
        "",
        "gauss:3",
        "uniform:",
        "uniform:300-100",
        "uniform:1-2,3-4",
        "uniform:0-10",
        "uniform:1-2@3",
        "uniform:1.5-3",
    ),
    *("points:1-3@1", "points:200@x", "points:200@0", "points:200@-1", "points:200@nan", "points:200@inf", "points:,"),
    *("points:200,200", "points:1e3", "points:1@1e20", "histogram:10-20,15-30", "histogram:1-99999999999@1", "100-300"),
    *("points:1@1,1000000000@1e-7", "histogram:nofile.csv", "points:" + ",".join(map(str, range(1, 999)))),
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_law_is_told_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ["simulate", "--overhead", "5ms", "--osl", "20", "--rate", "1", "--requests", "100"]
    with pytest.raises(SystemExit) as stopped:
        main([*engine, "--isl-law", text])
    captured = capsys.readouterr()
    assert (stopped.value.code, captured.out) == (2, "")
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert len(captured.err) <= LONGEST + len("error: \n")
    with pytest.raises(ScenarioError):
        TokenLaw.parse(text)


# the quantiles


@given(laws, st.lists(st.floats(0, 1), min_size=2, max_size=50))
def test_quantiles_rise_from_the_shortest_to_the_longest(law: TokenLaw, places: list[float]) -> None:
    found = law.at(np.sort([0.0, *places, 1.0]))
    assert (np.diff(found) >= 0).all()
    assert (found == np.rint(found)).all()
    assert all(any(low <= tokens <= high for low, high, _ in law.cells) for tokens in found)
    assert (found[0], found[-1]) == (law.cells[0][0], law.cells[-1][1])


@given(laws)
def test_evenly_spaced_quantiles_have_shares_mean_and_spread_of_the_law(law: TokenLaw) -> None:
    count = 20_000
    found = law.at((np.arange(count) + 0.5) / count)
    whole = sum(weight for *_, weight in law.cells)
    reach = law.cells[-1][1] - law.cells[0][0]
    for low, high, weight in law.cells:
        assert ((found >= low) & (found <= high)).mean() == pytest.approx(weight / whole, abs=1.01 / count)
    assert found.mean() == pytest.approx(law.mean, abs=len(law.cells) * reach / count + 1e-9)
    assert found.var() == pytest.approx((law.mean * law.cv) ** 2, abs=3 * len(law.cells) * reach**2 / count + 1e-6)


@given(laws, st.integers(0, 2**32))
@settings(max_examples=30)
def test_samples_are_of_the_law(law: TokenLaw, seed: int) -> None:
    """The mean within six standard errors, and the share below each cell's end within five."""
    count = 20_000
    isl, osl = Lengths(law.mean, 10, isl_law=law).sample(count, np.random.default_rng(seed))
    assert (osl == 10).all()
    whole, reached = sum(weight for *_, weight in law.cells), 0.0
    assert abs(isl.mean() - law.mean) <= 6 * law.cv * law.mean / math.sqrt(count) + 1e-9
    for _, high, weight in law.cells:
        reached += weight / whole
        error = math.sqrt(max(reached * (1 - reached), 0) / count)
        assert abs((isl <= high).mean() - reached) <= 5 * error + 10 / count


@given(laws, st.floats(0.3, 30), st.integers(0, 2**32))
def test_a_stretched_law_is_the_law_times_a_factor(law: TokenLaw, factor: float, seed: int) -> None:
    if law.mean * factor < 1:
        return
    normal = np.random.default_rng(seed).standard_normal(500)
    plain = Lengths(10, law.mean, osl_law=law)
    longer = replace(plain, osl=law.mean * factor)
    stretched = law.mean * factor / law.mean
    assert np.array_equal(longer.osl_at(normal), np.maximum(1, np.rint(plain.osl_at(normal) * stretched)))
    assert longer.osl_cv == plain.osl_cv == law.cv


@given(laws)
def test_sums_over_nodes_are_sums_over_the_law(law: TokenLaw) -> None:
    place, share = law.nodes(257)
    tokens = law.at(place)
    widest = max(high - low + 1 for low, high, _ in law.cells)
    assert share.sum() == pytest.approx(1)
    assert share @ tokens == pytest.approx(law.mean, abs=1 + widest / 100)


def test_two_lengths_correlate_by_their_deviates() -> None:
    """+1 and -1 pair the quantiles of equal and of opposite order."""
    both = own(UNIFORM)
    for sign in (1, -1):
        isl, osl = replace(both, correlation=float(sign)).sample(4000, np.random.default_rng(1))
        order = np.argsort(isl, kind="stable")
        assert (np.diff(osl[order][:: 1 if sign == 1 else -1]) >= -1).all()
        assert isl.mean() == pytest.approx(both.isl, rel=0.05)


# lengths as recorded


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
def test_recorded_lengths_are_their_own_law(tokens: list[int]) -> None:
    law = TokenLaw.of(tokens)
    assert law.mean == pytest.approx(np.mean(tokens))
    assert law.mean * law.cv == pytest.approx(np.std(tokens), abs=1e-6 * law.mean)
    assert np.array_equal(law.at((np.arange(len(tokens)) + 0.5) / len(tokens)), np.sort(tokens))


def test_many_recorded_lengths_are_bins_of_a_few_per_cent() -> None:
    tokens, _ = Lengths(2000, 1, 1.0).sample(100_000, np.random.default_rng(3))
    law = TokenLaw.of(tokens)
    assert len(law.cells) <= MOST_CELLS
    assert law.mean == pytest.approx(tokens.mean(), rel=0.005)
    for place in (0.01, 0.5, 0.95, 0.99):
        assert law.at(np.array([place]))[0] == pytest.approx(np.quantile(tokens, place), rel=0.03)


def test_files_of_lengths(tmp_path: Path) -> None:
    files = {
        "list.csv": "tokens\n300\n100\n300\n\n",
        "counts.csv": "tokens,count\n300,2\n100,1\n200,0\n",
        "bins.csv": "low,high,count\n101,300,2\n1,100,1\n301,400,0\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert with_file("histogram:list.csv", tmp_path) == "points:100@1,300@2"
    assert with_file("histogram:counts.csv", tmp_path) == "points:100@1,300@2"
    assert with_file(f"histogram:{tmp_path}/bins.csv") == "histogram:1-100@1,101-300@2"
    assert with_file("histogram:1-100@1", tmp_path) == "histogram:1-100@1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "header"),
        ("isl\n3\n", "header"),
        ("tokens\n", "none was recorded"),
        ("tokens\n3\nx\n", "line 3"),
        ("tokens\n1.5\n", "line 2"),
        ("tokens\n0\n", "line 2"),
        ("tokens,count\n3,-1\n", "line 2"),
        ("tokens,count\n3\n", "line 2"),
        ("tokens,count\n3,0\n", "none was recorded"),
        ("low,high,count\n5,3,1\n", "goes up"),
        ("low,high,count\n1,5,1\n3,8,1\n", "two of its ranges"),
    ],
)
def test_a_broken_file_is_named(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text(content)
    with pytest.raises(ScenarioError, match=said) as told:
        with_file("histogram:h.csv", tmp_path)
    assert "h.csv" in str(told.value) and "\n" not in str(told.value)


# formula and simulation


def engine(policy: Policy = "chunked", **limits: int) -> Replica:
    return Replica(LAW, Batching(policy, **({"kv_tokens": 400_000} | limits)))


def load(utilization: float, replica: Replica, lengths: Lengths) -> Workload:
    return Workload(lengths, utilization * stable_rate_per_s(replica, lengths))


def figures(prediction: Prediction) -> np.ndarray:
    return np.array([list(each.values()) for each in prediction.as_dict().values()])


@pytest.mark.parametrize("text", ["uniform:1000-1000", "points:1000", "points:1000@3", "histogram:1000-1000@2"])
def test_a_law_of_one_length_is_that_length(text: str) -> None:
    one, plain = Lengths(1000, 300, isl_law=law_of(text), osl_law=law_of("points:300")), Lengths(1000, 300)
    assert one.fixed
    assert np.array_equal(one.sample(50, np.random.default_rng(0)), plain.sample(50, np.random.default_rng(0)))
    for policy in ("chunked", "prefill_first", "static"):
        replica = engine(policy)
        assert figures(predict(replica, load(0.6, replica, one))) == pytest.approx(
            figures(predict(replica, load(0.6, replica, plain))), rel=1e-9
        )


@pytest.mark.parametrize("policy", ["chunked", "prefill_first", "whole_prompt"])
@pytest.mark.parametrize("lengths", [UNIFORM, TWO], ids=["uniform", "two lengths"])
@pytest.mark.parametrize("utilization", [0.3, 0.7])
def test_formula_and_simulation_agree(policy: Policy, lengths: Lengths, utilization: float) -> None:
    """p95 and p99 of TTFT, ITL and E2E within 6 %; a lognormal of the same moments misses E2E p99 by over 25 %."""
    lengths, replica = own(lengths), engine(policy)
    workload = load(utilization, replica, lengths)
    true = figures(simulate(replica, workload, requests=100_000, seed=3).prediction())
    np.testing.assert_allclose(figures(predict(replica, workload))[:, 3:], true[:, 3:], rtol=0.06)
    alike = Lengths(lengths.isl, lengths.osl, lengths.isl_cv, lengths.osl_cv)
    assert predict(replica, replace(workload, lengths=alike)).e2e.p99_s > 1.25 * true[2, 4]


def test_static_batches_agree_with_simulation() -> None:
    lengths, replica = own(UNIFORM), engine("static", max_batch_size=32)
    workload = load(0.6, replica, lengths)
    true = figures(simulate(replica, workload, requests=60_000, seed=3).prediction())
    np.testing.assert_allclose(figures(predict(replica, workload))[:, [0, 3]], true[:, [0, 3]], rtol=0.1)


@pytest.mark.parametrize("cv", [0.5, 1.0])
def test_a_histogram_of_lognormal_draws_answers_as_the_lognormal(cv: float) -> None:
    smooth, replica = Lengths(1000, 250, cv, 0.8), engine()
    isl, osl = smooth.sample(200_000, np.random.default_rng(1))
    drawn = own(replace(smooth, isl_law=TokenLaw.of(isl), osl_law=TokenLaw.of(osl)))
    for utilization in (0.3, 0.7):
        workload = load(utilization, replica, smooth)
        found = figures(predict(replica, replace(workload, lengths=drawn)))
        np.testing.assert_allclose(found, figures(predict(replica, workload)), rtol=0.05)


@pytest.mark.parametrize("text", ["uniform:100-1900", "points:500@0.8,3000@0.2", "histogram:1-500@3,501-4000@1"])
@pytest.mark.parametrize("rho", [0.3, 0.6])
def test_prompts_one_by_one_are_m_g_1(text: str, rho: float) -> None:
    """Pollaczek-Khinchine, service in proportion to the prompt: simulation 3 %, formula 15 % (of lognormals: 12)."""
    law = law_of(text)
    replica = Replica(StepLaw(0, 0, 1e-4, 0, 0), Batching("whole_prompt", max_batch_size=1, token_budget=10**6))
    workload, mean_s = Workload(Lengths(law.mean, 1, isl_law=law), rho / (1e-4 * law.mean)), 1e-4 * law.mean
    expected_s = mean_s + rho * mean_s * (1 + law.cv**2) / (2 * (1 - rho))
    assert predict(replica, workload).ttft.mean_s == pytest.approx(expected_s, rel=0.15)
    runs = [simulate(replica, workload, requests=100_000, seed=seed).prediction().ttft.mean_s for seed in range(4)]
    assert np.mean(runs) == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize("text", ["points:200@0.8,4000@0.2", "histogram:1-500@8,501-6000@1"])
def test_moments_of_the_queue_are_those_of_the_law(text: str) -> None:
    law = law_of(text)
    both = demand_of(engine(), Lengths(law.mean, law.mean, isl_law=law, osl_law=law))
    assert (both.prompt_tokens, both.prompt_cv) == pytest.approx((law.mean, law.cv), rel=0.01)
    assert both.decode_steps == pytest.approx(law.mean - 1, rel=0.01)


def test_prompts_that_vary_much_bring_a_caution() -> None:
    """By formula they are rough: a lognormal of CV 1.5 misses p99 TTFT by 15 to 25 %."""
    rare = law_of("points:200@0.95,20000@0.05")
    for wide in (Lengths(rare.mean, 200, isl_law=rare), Lengths(1000, 200, 1.5)):
        (told,) = (each for each in predict(engine(), load(0.3, engine(), wide)).warnings if "wide" in each.kind)
        assert told.facts["cv"] == pytest.approx(wide.isl_cv, rel=0.02)
        assert "simulate" in sizing.caution(told)
    for narrow in (own(TWO), Lengths(1000, 200, 1.0)):
        assert not predict(engine(), load(0.3, engine(), narrow)).warnings


# the question


ASKED = [
    *"--model Qwen/Qwen3-8B --gpu h100_sxm --precision bf16 --tp 1 --engine trtllm".split(),
    *"--rate 4 --ttft p95:1s --itl p95:60ms".split(),
]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert (stopped.value.code, captured.err) == (0, "")
    return json.loads(captured.out)  # type: ignore[no-any-return]


def test_a_plan_says_its_laws_and_the_library_finds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    laws_given = {"isl_law": "uniform:200-1800", "osl_law": "points:100@0.8,400@0.2"}
    said = answer(capsys, "plan", *ASKED, *(f"--{k.replace('_', '-')}={v}" for k, v in laws_given.items()))
    asked = said["question"]
    assert isinstance(asked, dict)
    assert {name: asked[name] for name in laws_given} == laws_given
    assert (asked["isl"], asked["osl"]) == (1000, 160)
    assert asked["osl_cv"] == pytest.approx(120 / 160)
    plan = sizing.plan(
        "Qwen/Qwen3-8B",
        gpus="h100_sxm",
        precisions="bf16",
        tps=1,
        engines="trtllm",
        rate=4,
        ttft="p95:1s",
        itl="p95:60ms",
        **laws_given,
    )
    assert said["gpus"] == plan.answer.gpus
    rows = {row.key: row.value for row in inputs(plan.question)}
    assert {name: rows[name] for name in laws_given} == laws_given
    assert "uniform:200-1800" in lengths_sentence(plan.question.workload.lengths)
    again = Question.of({"ttft": "p95:1s", **{k: v for k, v in asked.items() if k not in ("prices", "sla")}, "rate": 4})
    assert again.workload == plan.question.workload


def test_without_a_law_nothing_is_said_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    asked = answer(capsys, "plan", *ASKED, "--isl", "1000", "--osl", "160", "--osl-cv", "0.5")["question"]
    assert isinstance(asked, dict)
    assert (asked["isl_law"], asked["osl_law"]) == (None, None)
    question = Question.of({"model": "m", "isl": 1000, "osl": 160, "osl_cv": 0.5, "rate": 1, "ttft": "p95:1s"})
    assert not any("law" in row.key for row in inputs(question))
    assert "lognormal" in lengths_sentence(question.workload.lengths)


@pytest.mark.parametrize(
    "given_, said", [(("--isl", "500"), "ISL 500 contradicts the law of ISL"), (("--isl-cv", "0.9"), "CV of ISL 0.9")]
)
def test_what_contradicts_the_law_is_refused(
    given_: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *ASKED, "--osl", "100", "--isl-law", "uniform:100-300", *given_])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and said in err and err.count("\n") == 1


def test_what_agrees_with_the_law_may_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["simulate", "--overhead", "5ms", "--osl", "20", "--rate", "1", "--requests", "200", "--isl-law"]
    first = answer(capsys, *run, "uniform:100-300")
    assert answer(capsys, *run, "uniform:100-300", "--isl", "200", "--isl-cv", "0.29") == first
    assert answer(capsys, *run, "points:200") == answer(capsys, *run, "lognormal", "--isl", "200")


def test_capacity_from_a_histogram_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "h.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("low", "high", "count"), (1, 500, 6), (501, 4000, 1)])
    asked = [word for word in ASKED if word not in ("--rate", "4")]
    by_file = answer(capsys, "capacity", "--gpus", "2", *asked, "--osl", "100", f"--isl-law=histogram:{tmp_path}/h.csv")
    by_text = answer(capsys, "capacity", "--gpus", "2", *asked, "--osl=100", "--isl-law=histogram:1-500@6,501-4000@1")
    assert by_file == by_text


def test_studies_and_shared_fleets_have_laws(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("tokens\n100\n300\n")
    base = "base: {model: m, osl: 100, itl: 'p95:20ms', rate: 1, isl_law: 'histogram:h.csv'}\naxes: {spare: [0, 1]}\n"
    (tmp_path / "study.yaml").write_text(base)
    lengths = {each.question.workload.lengths for each in read_study(tmp_path / "study.yaml")}
    assert lengths == {Lengths(200, 100, isl_law=law_of("points:100,300"))}
    (tmp_path / "study.yaml").write_text(base.replace("h.csv", "g.csv"))
    with pytest.raises(ScenarioError, match=r"study.yaml, scenario 1: .*g.csv"):
        read_study(tmp_path / "study.yaml")
    workload = "{name: a, isl_law: 'histogram:h.csv', osl: 100, rate: 1, ttft: p95:1s}"
    (tmp_path / "fleet.yaml").write_text(f"model: m\nworkloads: [{workload}]\n")
    (stream,) = read_scenario(tmp_path / "fleet.yaml").workloads
    assert share_of(stream).workload.lengths == Lengths(200, 100, isl_law=law_of("points:100,300"))
    (tmp_path / "fleet.yaml").write_text(f"model: m\nworkloads: [{workload.replace('histogram', 'x')}]\n")
    with pytest.raises(ScenarioError, match=r"fleet.yaml: lengths"):
        read_scenario(tmp_path / "fleet.yaml")


def test_a_workload_of_the_command_line_has_a_law_with_commas() -> None:
    assert parse_workload("a:isl_law=points:200@0.8,4000@0.2,osl=100,rate=5") == {
        "name": "a",
        "isl_law": "points:200@0.8,4000@0.2",
        "osl": "100",
        "rate": "5",
    }
    for broken in ("a:osl=1,", "a:osl", "a:,osl=1"):
        with pytest.raises(ScenarioError):
            parse_workload(broken)


def test_pools_keep_the_law_of_what_they_serve() -> None:
    asked = Question.of({"model": "m", "rate": 1, "ttft": "p95:1s", "itl": "p95:30ms", **LAWS})
    prefill, decode = prefill_question(asked).workload.lengths, decode_question(asked, 0.1, 0.01).workload.lengths
    assert (str(prefill.isl_law), prefill.osl, prefill.osl_law, prefill.osl_cv) == (LAWS["isl_law"], 1, None, 0)
    assert (str(decode.osl_law), decode.isl, decode.isl_law, decode.isl_cv) == (LAWS["osl_law"], 1, None, 0)
