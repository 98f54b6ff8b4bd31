"""Fleets that AIConfigurator and aisimulate recommend, and the planner's, under the same Poisson arrivals.

python -m validation.evidence.recommended                           (this table: two minutes)
python -m validation.evidence.recommend --out answers.json          (their answers anew: an hour)
python -m validation.evidence.recommended --answers answers.json    (the table of these)

Both are asked for the same ten questions (see recommend): they find the fewest GPUs whose mean TTFT and ITL are within
the limits, the planner the fewest whose 95th percentiles are, without headroom and spares. Every fleet is then
simulated with the planner's law of its engine and layout, requests going to the replica with the fewest outstanding,
and batches as large as the planner's own. What is compared is the rule by which a fleet is chosen as much as the laws
behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from sizing import planner
from sizing.analyses.pools import Pools, pools_of, transfer_s
from sizing.candidates import Choice, find
from sizing.catalog import Layout
from sizing.catalog import model as model_named
from sizing.errors import SizingError
from sizing.estimate import estimate
from sizing.plans import Candidate, NoFeasiblePlan
from sizing.prediction import Prediction
from sizing.question import Question
from sizing.simulator import simulate, simulate_disaggregated
from sizing.workload import Lengths, Limit, Sla, Workload
from validation.evidence import recommend

REQUESTS = 60_000
KEPT = Path(__file__).with_name("recommended.json")
"""What aisimulate 0.13.0 answered by enumeration, without the Bayesian searches, which take most of the hour."""


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: GPUs (None: no answer), in words what they are, seconds to find it, and what users would see."""

    source: str
    gpus: int | None
    workers: str
    seconds: float
    seen: Prediction | None


def question_of(asked: recommend.Question) -> Question:
    """The same question about 95th percentiles, for the planner."""
    limits = Limit("ttft", 95, asked.ttft_s), Limit("itl", 95, asked.itl_s)
    workload = Workload(Lengths(asked.isl, asked.osl), asked.rate_per_s)
    model = model_named(asked.model).id
    return Question(model, workload, Sla(*limits), routing="least_outstanding", headroom=0.0, spare=0)


def ours(asked: recommend.Question) -> Iterator[Told]:
    """The planner's one fleet and its two pools."""
    question = question_of(asked)
    precision = model_named(asked.model).checkpoint
    started_s = time.perf_counter()
    choice = Choice((asked.gpu,), (precision,), engines=(asked.engine,))
    candidates, _ = find(question.model, question.workload.lengths, choice)
    try:
        best = planner.plan(question, candidates).answer
        words = f"{best.replicas} × {best.candidate.layout}"
        yield Told("planner, one fleet", best.gpus, words, time.perf_counter() - started_s, best.predicted)
    except NoFeasiblePlan:
        yield Told("planner, one fleet", None, "", time.perf_counter() - started_s, None)
    started_s = time.perf_counter()
    found = pools_of(question, candidates)
    seconds = time.perf_counter() - started_s
    if not isinstance(found, Pools):
        yield Told("planner, two pools", None, "", seconds, None)
        return
    roles = (found.prefill, found.decode)
    words = " + ".join(f"{fleet.replicas} × {fleet.candidate.layout}" for fleet in roles)
    yield Told("planner, two pools", found.gpus, words, seconds, found.predicted)


def theirs(answer: recommend.Answer) -> Told:
    """Their recommended fleet as the planner's laws see it."""
    source = f"{answer.search}, {answer.mode}"
    if not answer.fleets:
        return Told(source, None, "", answer.seconds, None)
    fleet = answer.fleets[0]
    words = " + ".join(f"{pool.workers} × {layout_of(pool)}" for pool in fleet.pools)
    try:
        seen = simulated(answer.question, fleet.pools)
    except SizingError as error:
        return Told(source, fleet.gpus, f"{words} ({error})", answer.seconds, None)
    return Told(source, fleet.gpus, words, answer.seconds, seen)


def layout_of(pool: recommend.Pool) -> Layout:
    """Their layout in the planner's words; of a dense model the split of experts says nothing."""
    return Layout(pool.tp, pool.pp, pool.attention_dp, pool.moe_ep)


def simulated(asked: recommend.Question, pools: Sequence[recommend.Pool]) -> Prediction:
    """Latencies of a recommended fleet. Raises SizingError where one of its layouts has no estimate or no room."""
    question = question_of(asked)
    workload, routing = question.workload, question.routing
    each = [_candidate(asked, question, pool) for pool in pools]
    if len(pools) == 1:
        (pool,) = pools
        whole = simulate(each[0].replica, workload, replicas=pool.workers, routing=routing, requests=REQUESTS)
        return whole.prediction()
    prefill, decode = pools
    return simulate_disaggregated(
        each[0].replica,
        each[1].replica,
        workload,
        prefill_replicas=prefill.workers,
        decode_replicas=decode.workers,
        transfer_token_s=transfer_s(each[0], question) / asked.isl,
        routing=routing,
        requests=REQUESTS,
    ).prediction()


def _candidate(asked: recommend.Question, question: Question, pool: recommend.Pool) -> Candidate:
    precision = model_named(asked.model).checkpoint
    names = question.model, asked.gpu, layout_of(pool), precision
    return estimate(*names, question.workload.lengths, engine=asked.engine)


def table(asked: recommend.Question, rows: Sequence[Told]) -> Iterator[str]:
    """Markdown rows of one question."""
    name = f"{asked.model.rpartition('/')[2]}, {asked.gpu}, {asked.isl:,}/{asked.osl:,}, {asked.rate_per_s:g}/s"
    limits = f"{asked.ttft_s:g} s, {asked.itl_s * 1e3:g} ms"
    for row in rows:
        cells = [name, limits, row.source, "none" if row.gpus is None else str(row.gpus), row.workers]
        yield "| " + " | ".join([*cells, f"{row.seconds:.1f}", *_seen(asked, row.seen)]) + " |"


def _seen(asked: recommend.Question, seen: Prediction | None) -> tuple[str, str, str]:
    if seen is None:
        return "", "", ""
    if seen.saturated:
        return "grows", "grows", "queues grow"
    values = seen.ttft.mean_s, seen.ttft.p95_s, seen.itl.mean_s, seen.itl.p95_s
    limits = asked.ttft_s, asked.ttft_s, asked.itl_s, asked.itl_s
    means, tails = (
        all(value <= limit for value, limit in list(zip(values, limits, strict=True))[k::2]) for k in (0, 1)
    )
    ttft, itl = f"{values[0]:.2f} / {values[1]:.2f} s", f"{values[2] * 1e3:.1f} / {values[3] * 1e3:.1f} ms"
    return ttft, itl, "p95 holds" if tails else "only means hold" if means else "misses means"


HEADER = (
    "| question | limits | answer by | GPUs | workers | s | TTFT mean / p95 | ITL mean / p95 | under Poisson |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


@click.command()
@click.option(
    "--answers",
    "path",
    default=KEPT,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Of the program `recommend`; those that are kept here by default.",
)
def main(path: Path) -> None:
    """Print a table of every question: their fleets and ours."""
    answers = recommend.read_answers(path)
    verdicts: dict[str, list[str]] = {}
    click.echo(HEADER)
    for asked in recommend.QUESTIONS:
        told = [theirs(answer) for answer in answers if answer.question == asked]
        rows = [*ours(asked), *told]
        for row, line in zip(rows, table(asked, rows), strict=True):
            verdicts.setdefault(row.source, []).append("no answer" if row.gpus is None else _seen(asked, row.seen)[2])
            click.echo(line)
    for source, found in verdicts.items():
        counts = ", ".join(f"{found.count(each)} {each or 'not simulated'}" for each in dict.fromkeys(found))
        click.echo(f"{source}: {counts} (of {len(found)})")


if __name__ == "__main__":
    main()
