"""Write docs/gpu-measurements.md from the measurements: python -m lab.gpu.page NAME... [--data data]."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import sizing
from lab.gpu.home import DATA
from lab.gpu.steps import DecodeSteps, read_steps
from sizing.analyses.verification import compared
from sizing.candidates import catalogued, from_fit
from sizing.errors import FitError
from sizing.estimate import estimate
from sizing.fitting import Fit, fit
from sizing.numbers import count_of, percent, with_unit
from sizing.points import Deployment, Point, read_points
from sizing.question import Question
from sizing.text import cautions
from sizing.workload import Arrivals, Limit, Sla, Workload
from validation.evidence.measured_arrivals import sent

OUT = DATA.parent / "docs" / "gpu-measurements.md"
WHAT_IT_IS = """\
The engine behind a real Triton server on a real GPU is this project's own. It is **not TensorRT-LLM**, and its speed is
not TensorRT-LLM's. These curves show what this engine does, and how well the planner's laws describe it.

- *Engine*: the reference engine's scheduler and paged KV cache, kernels of its own for attention, vendor libraries for
  matrix products, and CUDA graphs to decode.
- *Model*: a published shape with random weights. Timing does not depend on the weights; prompts and output lengths are
  forced.
- *Clients*: unless stated otherwise, they called `tensorrt_llm` itself, because the ensemble's two further hops for
  each token are slower than the GPU. Tokens that wait to be sent go out together in one response."""


WITH_VLLM = """\
vLLM on a real GPU: every measured point, then the planner's law fitted to the closed loops. The fit is compared with
decode steps where they are known, with Poisson arrivals that it has not seen, and with the estimate made before any
measurement.

- *Server*: `vllm serve` with its own defaults (chunked prefill, prefix caching, asynchronous scheduling, CUDA graphs,
  FlashAttention 3), at most 256 sequences and 8,192 tokens of context, without FlashInfer's sampler.
- *Models*: published shapes with random weights. An MoE model with random weights spreads its tokens over all experts
  about evenly, which a trained one does not.
- *Load*: clients on the same machine use the OpenAI protocol. Lengths are lognormal with coefficients of variation 0.3
  (prompt) and 0.5 (output); outputs are forced to their length.
- *Time*: each level was measured for 8 to 10 s (closed loops) or 25 to 35 s (Poisson arrivals), because there were
  twenty minutes, then half an hour."""


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--out", type=click.Path(path_type=Path), default=OUT)
def page(names: Sequence[str], data: Path, out: Path) -> None:
    """Write the page for the measurements called NAMES: what each measured, then what follows from all of them."""
    facts = {name: read_facts(data / "gpu" / name) for name in names}
    origin = {point: name for name in names for point in read_points(data / "curves" / f"{name}.csv")}
    is_vllm = any("runs" in known for known in facts.values())
    parts = ["# Measured", WITH_VLLM if is_vllm else WHAT_IT_IS]
    measured = 0
    for name, known in facts.items():
        points = read_points(data / "gpu" / name / "points.csv")
        measured += len(points)
        parts += [f"## {name}", environment(known), table(points), spread(points), engine_alone(known)]
        parts.append(passes(data / "gpu" / name / "passes.csv"))
    steps = [step for name in names for step in read_steps(data / "gpu" / name / "steps.csv")]
    for deployment, own in by_deployment(origin):
        seen = [step for step in steps if (step.model, step.precision) == (deployment.model, deployment.precision)]
        parts.append(quality(deployment, own, facts[origin[own[0]]], seen))
    parts.append(answers(list(origin)) if is_vllm else "")
    out.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    click.echo(f"{count_of(measured, 'point')} on {out}")


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of a measurement, without its points. Raises UsageError if there is no such measurement."""
    if not (folder / "facts.json").is_file():
        raise click.UsageError(
            f"{folder} holds no measurements: bring them with python -m lab.gpu.home ARCHIVE --name {folder.name}"
        )
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return facts


def environment(facts: Mapping[str, Any]) -> str:
    """The card, its ceilings, the versions."""
    found = facts["ceilings"]
    said = "; ".join(f"{key} {value}" for key, value in found["environment"].items())
    ceilings = (
        f"copies {found['copy_bytes_per_s'] / 1e12:.2f} TB/s (bytes read and written), "
        f"reads {found['read_bytes_per_s'] / 1e12:.2f} TB/s, bf16 products of {found['product_size']} cubed "
        f"{found['bf16_flops_per_s'] / 1e12:.3g} TFLOP/s"
    )
    return f"### The card\n\n{said}.\n\nCeilings measured on it: {ceilings}."


OF_POINTS = "TTFT, ITL and E2E are means. *Little* is requests/s × E2E over the concurrency held: 1 by Little's law."


def table(points: Sequence[Point]) -> str:
    """Every point."""
    head = "model, batching | ISL/OSL | load | requests/s | tokens/s | TTFT ms | ITL ms | E2E ms | Little | verdict"
    rows = [
        (
            f"{point.model} {point.batching}, {point.source.partition('; ')[2] or _asked(point)}",
            f"{point.isl:g}/{point.osl:g}",
            _load(point),
            f"{point.requests_per_s:.3g}",
            f"{point.output_tokens_per_s or 0:.0f}",
            _ms(point.ttft_mean_s),
            _ms(point.itl_mean_s),
            _ms(point.e2e_mean_s),
            "" if point.little is None else f"{point.little:.3f}",
            point.verdict,
        )
        for point in points
    ]
    return f"### Points\n\n{OF_POINTS}\n\n{markdown(head, rows)}"


def _asked(point: Point) -> str:
    return "ensemble" if ", ensemble at" in point.source else "tensorrt_llm"


def spread(points: Sequence[Point]) -> str:
    """The levels that were measured twice, as a table."""
    twice: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        asked = "" if "; " in point.source else point.source.rpartition(", ")[2].split(" at ")[0]
        twice[point.deployment, point.lengths, point.load_kind, point.load_value, asked].append(point)
    rows = [
        (f"{a.isl:g}/{a.osl:g}", _load(a), *(_change(a, b, name) for name in SPREAD))
        for a, b in (same for same in twice.values() if len(same) == 2)
    ]
    return f"### The same level again\n\n{markdown('ISL/OSL | load | requests/s | TTFT | ITL', rows)}" if rows else ""


SPREAD = ("requests_per_s", "ttft_mean_s", "itl_mean_s")


def quality(
    deployment: Deployment, points: Sequence[Point], facts: Mapping[str, Any], steps: Sequence[DecodeSteps]
) -> str:
    """The law fitted to the closed loops, compared with what the card allows, with the decode steps seen in the times
    of tokens, and with the random arrivals that it has not seen, next to the estimate made before any measurement."""
    title = f"## Fit: {deployment.model} in {deployment.precision}, {deployment.gpu}, {deployment.engine}"
    closed = [point for point in points if point.closed and not point.void]
    try:
        fitted = fit(closed)
    except FitError as error:
        return f"{title}\n\nNo law: {error}."
    told = (
        f"{len(closed)} closed loops. Median and worst error of requests/s {_errors(fitted, 'requests_per_s_error')}, "
        f"of ITL {_errors(fitted, 'itl_error')}, of TTFT {_errors(fitted, 'ttft_error')}; of points left out singly "
        f"{percent(fitted.leave_one_out, 1)} (median of requests/s and ITL). " + " ".join(cautions(fitted.warnings))
    )
    open_loops = [point for point in points if point.load_kind == "poisson_rate" and not point.void]
    rows = list(_predicted(fitted, open_loops))
    head = (
        "ISL/OSL | requests/s | metric | measured ms | fitted ms | error | 90 % band, ms | inside | estimate ms | error"
    )
    random = f"{OF_RANDOM}\n\n{markdown(head, rows)}" if rows else ""
    parts = [title, told, coefficients(fitted, facts), decoding(fitted, points, steps), random]
    return "\n\n".join(filter(None, parts))


def decoding(fitted: Fit, points: Sequence[Point], steps: Sequence[DecodeSteps]) -> str:
    """Decode steps by their number of sequences, compared with the fitted law."""
    rows = []
    lengths = {(point.isl, point.osl): point.lengths for point in points}
    for step in steps:
        law = from_fit(fitted, lengths[step.isl, step.osl]).replica.law
        fitted_s = law.decode_s(step.sequences, step.sequences * (step.isl + step.osl / 2))
        which = f"{step.most}" if step.most == step.above + 1 else f"{step.above + 1} to {step.most}"
        off = percent(fitted_s / step.median_s - 1, 1, sign=True)
        rows.append((f"{step.isl:g}/{step.osl:g}", which, f"{step.tokens:,}", _ms(step.median_s), _ms(fitted_s), off))
    note = (
        "Decode steps: the time between two tokens of a request while no other request got its first token; medians of "
        "all levels. The fit knows only what closed loops show of them: mean ITL, and the p50 and p95 of gaps."
    )
    head = "ISL/OSL | sequences | tokens | measured ms | fitted ms | error"
    return f"{note}\n\n{markdown(head, rows)}" if rows else ""


OF_RANDOM = (
    "Poisson arrivals, which the fit has not seen. Where it is known which of the requests sent were counted, the very "
    "requests sent are simulated."
)


def _errors(fitted: Fit, name: str) -> str:
    values = [abs(getattr(error, name)) for error in fitted.errors]
    return f"{percent(statistics.median(values), 1)} and {percent(max(values), 1)}"


def coefficients(fitted: Fit, facts: Mapping[str, Any]) -> str:
    """What a step of a dense model costs by the law, compared with the least that the ceilings of the card allow."""
    model, found, precision = catalogued(fitted.deployment.model), facts["ceilings"], fitted.deployment.precision
    if model is None or model.kind != "dense" or precision not in WEIGHT_BYTES:
        return ""
    law, copied_per_s = fitted.law, found["copy_bytes_per_s"]
    computed_s = 2 * model.parameters / found["bf16_flops_per_s"] if precision == "bf16" else None
    sequences, tokens = EXAMPLE
    weights_s = WEIGHT_BYTES[precision] * model.parameters / copied_per_s
    context_s = KV_BYTES * model.kv_values_per_token / copied_per_s
    step_s = law.decode_s(sequences, sequences * tokens)
    rows = [
        ("reading the weights, once a step", law.weights_s + law.overhead_s, weights_s),
        ("a token computed", law.token_s, computed_s),
        ("a sequence that decodes, beside its context", law.sequence_s, None),
        ("a token of context read", law.kv_token_s, context_s),
        (f"a step of {sequences} sequences of {tokens:,} tokens", step_s, weights_s + sequences * tokens * context_s),
        ("a step with prompts in it", law.prefill_s, None),
        ("a request, before its first step", law.request_s, None),
        ("a token sent, in the API server", law.send_s, None),
    ]
    cells = [
        (
            name,
            f"{_unit(cost_s)}",
            "" if least_s is None else _unit(least_s),
            percent(least_s / cost_s) if least_s else "",
        )
        for name, cost_s, least_s in rows
    ]
    note = (
        "The least is bytes over the bandwidth of a copy, or operations over the rate of a bf16 product, the only one "
        "measured. It counts all weights. "
        "The points show what a sequence and its context cost together better than what each costs: one may lie below "
        "its limit."
    )
    return markdown("what | fitted | least by the ceilings | reached", cells) + f"\n\n{note}"


def _unit(seconds: float) -> str:
    size, name = next((size, name) for size, name in UNITS if seconds >= size or name == "ns")
    return f"{seconds / size:.3g} {name}"


WEIGHT_BYTES, KV_BYTES = {"bf16": 2, "fp8": 1}, 2
EXAMPLE = (128, 1100)
"""Sequences and context tokens of a step whose total time is compared."""
UNITS = ((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def _predicted(fitted: Fit, points: Iterable[Point]) -> Iterator[tuple[str, ...]]:
    for point in points:
        question = Question(
            point.model,
            Workload(point.lengths, point.load_value, Arrivals(), point.prefix),
            Sla(Limit("ttft", 95, 1e6)),
        )
        on = fitted.deployment
        before = estimate(on.model, on.gpu, on.tp, on.precision, point.lengths, engine=on.engine)
        candidates = from_fit(fitted, point.lengths), before
        both = (compared(candidate, question, point, sent=sent(point)).figures for candidate in candidates)
        for law, day_zero in zip(*both, strict=False):
            if law.measured_s:
                yield (
                    f"{point.isl:g}/{point.osl:g}",
                    f"{point.load_value:.3g}",
                    f"{law.of.metric.upper()} p{law.of.percentile}",
                    _ms(law.measured_s),
                    _ms(law.predicted_s),
                    percent(law.predicted_s / law.measured_s - 1, 1, sign=True),
                    f"{_ms(law.low_s)} to {_ms(law.high_s)}" if math.isfinite(law.high_s) else "no upper end",
                    "yes" if law.verdict == "in" else "no",
                    _ms(day_zero.predicted_s),
                    percent(day_zero.predicted_s / law.measured_s - 1, 1, sign=True),
                )


def answers(points: Sequence[Point]) -> str:
    """The planner's answer for the first mix of each deployment, and its answer from the estimate alone."""
    rows = []
    for deployment, own in by_deployment(points):
        mix, rate = own[0].lengths, ANSWERED_PER_S
        asked: dict[str, Any] = {"gpus": deployment.gpu, "precisions": deployment.precision, "tps": deployment.tp}
        asked |= {"isl": mix.isl, "osl": mix.osl, "isl_cv": mix.isl_cv, "osl_cv": mix.osl_cv, "rate": rate}
        for of in (own, []):
            try:
                fleet = sizing.plan(deployment.model, points=of, engines=deployment.engine, **asked, **ANSWERED).answer
            except sizing.NoFeasiblePlan as error:
                rows.append((deployment.model, "measured" if of else "estimated", f"none: {error}", "", ""))
                continue
            low, high = fleet.gpus_low, fleet.gpus_high
            band = f"{low} to {high}" if high else f"{low} or more"
            cells = (fleet.basis, f"{fleet.gpus}", band, f"{fleet.requests_per_s_per_gpu:.3g}")
            rows.append((deployment.model, *cells))
    limits = " and ".join(f"{name.upper()} {limit}" for name, limit in ANSWERED.items())
    head = "model | basis | GPUs | 90 % band | requests/s per GPU"
    about = f"{ANSWERED_PER_S} requests/s of the first mix under {limits}, 20 % headroom and a spare replica."
    return f"## The planner's answer\n\n{about}\n\n{markdown(head, rows)}"


ANSWERED_PER_S = 60
ANSWERED: Mapping[str, Any] = {"ttft": "p95:500ms", "itl": "p95:50ms"}


def engine_alone(facts: Mapping[str, Any]) -> str:
    """Passes without Triton, compared with what the ceilings allow."""
    found = facts["ceilings"]
    rows = []
    for name, told in facts.items():
        if name.startswith("engine ") and "passes" in told:
            for one in told["passes"]:
                least_s = max(
                    one["least_bytes"] / found["read_bytes_per_s"], one["least_flops"] / found["bf16_flops_per_s"]
                )
                held = f"{one['context_tokens']:.0f}"
                work = f"{one['decoding']:.0f} decoding" if one["decoding"] else f"{one['reading']:.0f} of a prompt"
                rows.append((name[7:], work, held, _ms(one["pass_s"]), _ms(least_s), percent(least_s / one["pass_s"])))
    head = "model | pass | context tokens | ms | least by the ceilings, ms | reached"
    return f"### The engine alone\n\nCUDA events, medians of ten passes.\n\n{markdown(head, rows)}" if rows else ""


def passes(file: Path) -> str:
    """Passes while serving: their time on the card, and the time from one pass to the next."""
    if not file.exists():
        return ""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    with file.open(newline="") as read:
        for row in csv.DictReader(read):
            batch, since_s = int(row["decoding"]), float(row["since_last_s"])
            if not int(row["reading"]) and batch and 0 < since_s < 1:
                groups[row["served"], 2 ** (batch - 1).bit_length()].append((float(row["pass_s"]), since_s))
    rows = []
    for (served, batch), times in sorted(groups.items()):
        if len(times) >= 10:
            card_s, since_s = (statistics.median(column) for column in zip(*times, strict=True))
            rows.append((served, f"≤ {batch}", str(len(times)), _ms(card_s), _ms(since_s), percent(card_s / since_s)))
    head = "served | decoding | passes | on the card, ms | pass to pass, ms | share"
    note = "Decoding passes only. The time off the card goes to scheduling, packing, Triton and Python."
    return f"### While serving\n\n{note}\n\n{markdown(head, rows)}" if rows else ""


def by_deployment(points: Iterable[Point]) -> list[tuple[Deployment, list[Point]]]:
    groups: dict[Deployment, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.deployment].append(point)
    return list(groups.items())


def markdown(head: str, rows: Iterable[Sequence[str]]) -> str:
    """A table; `head` are its column names between bars."""
    line = "|" + "---|" * len(head.split("|"))
    return "\n".join([f"| {head} |", line, *("| " + " | ".join(row) + " |" for row in rows)])


def _load(point: Point) -> str:
    if not point.closed:
        return f"{point.load_value:.4g} /s Poisson"
    return with_unit(f"{point.load_value:.0f}", "users")


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:.0f}"


def _change(first: Point, second: Point, name: str) -> str:
    before, after = getattr(first, name), getattr(second, name)
    return percent(after / before - 1, 1, sign=True) if before and after is not None else ""


if __name__ == "__main__":
    page()
