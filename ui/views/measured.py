"""The points measured on servers, the law fitted to them, and how well it fits."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from math import isfinite

import pandas as pd
import streamlit as st

from sizing.fitting import Fit, PointError
from sizing.numbers import count_of, per_second, percent, significant
from sizing.points import Curve, Deployment, Point, curves, write_points
from sizing.text import cautions
from sizing.workload import Lengths
from ui import answers
from ui.charts.base import Chart
from ui.charts.fit import ComparedSeries, measured_and_law
from ui.look import data_behind, ink, show
from ui.views.runs import rates_within, reasons
from ui.visit import one_picked, visit
from ui.words import plain, sentence_case

REFERENCE_ENGINE = "reference"
CONCURRENCY = "Concurrency (requests in flight)"
HOW_TO_MEASURE = """
Measure a server with a sweep plan:

```
python -m calibration run plan.yaml
```

No GPU available? Start the reference server, a real Triton server with a small model on the CPU, and measure that:

```
python -m calibration serve
```
"""


def draw() -> None:
    """A curve picked, as measured and as the law has it; what to run where nothing has been measured."""
    have = answers.measured_points()
    found = curves(have.points)
    if not found:
        st.title("No points measured yet", anchor=False)
        _void([point for point in have.points if point.void])
        st.markdown(HOW_TO_MEASURE)
        return
    curve = _chosen(found)
    with st.spinner("Fitting the law of this deployment…"):
        fitted = answers.fitted([p for p in have.points if p.deployment == curve.deployment])
    st.title(plain(_title(curve)), anchor=False)
    _provenance(curve)
    _fit_line(fitted)
    _void([p for p in have.points if p.void and p.series == curve.points[0].series])
    _charts(curve, _law(fitted))
    _table(curve, _law(fitted))


def _chosen(found: Sequence[Curve]) -> Curve:
    """The curve picked: deployment, then (ISL, OSL); those of the scenario's model come first."""
    wanted = visit().scenario.model
    deployments = list(dict.fromkeys(curve.deployment for curve in found))
    deployments.sort(key=lambda deployment: (deployment.model != wanted, deployment.label))
    left, right = st.columns([2, 1])
    with left:
        by_name = {_name(deployment): deployment for deployment in deployments}
        names = {name: name for name in by_name}
        deployment = by_name[one_picked("deployment", "Deployment", names, help=DEPLOYMENT_HELP)]
    measured = [curve for curve in found if curve.deployment == deployment]
    measured.sort(key=lambda curve: (astuple(curve.lengths), astuple(curve.prefix)))
    with right:
        by_lengths = {_lengths_in_words(curve.lengths) + curve.prefix.label: curve for curve in measured}
        lengths = {text: text for text in by_lengths}
        return by_lengths[one_picked("lengths", "Lengths (tokens)", lengths, help=LENGTHS_HELP)]


DEPLOYMENT_HELP = "Model, precision, GPU, TP and engine measured."
LENGTHS_HELP = "Mean ISL and OSL measured; varied: requests of different lengths, CV = deviation over mean."


def _name(deployment: Deployment) -> str:
    """What tells it from all others, on screen and in the URL."""
    limit = f", at most {deployment.max_batch_size:,}" if deployment.max_batch_size else ""
    return deployment.label + limit


def _lengths_in_words(lengths: Lengths) -> str:
    varied = "" if lengths.fixed else f", varied (CV {lengths.isl_cv:g} and {lengths.osl_cv:g})"
    return f"{lengths.isl:,g} in, {lengths.osl:,g} out{varied}"


def _title(curve: Curve) -> str:
    best = max(curve.points, key=lambda point: point.requests_per_s)
    per_gpu = significant(best.requests_per_s / best.gpus)
    return f"{per_second(best.requests_per_s)} at most, {per_gpu} per GPU, at concurrency {best.load_value:,g}"


def _provenance(curve: Curve) -> None:
    deployment = curve.deployment
    engine = f"{deployment.engine} {deployment.engine_version}".strip() or "an unnamed engine"
    when = max((point.measured_at for point in curve.points), default="")[:10]
    count = f"{count_of(len(curve.points), 'point')} measured on {engine}{f', last on {when}' if when else ''}"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge("Measured", icon=":material/straighten:", color="green")
        st.caption(plain(count))
    if deployment.engine.startswith(REFERENCE_ENGINE):
        st.info(
            f"The project's reference engine on {plain(deployment.gpu)}: these points show how the method works, "
            "not how fast TensorRT-LLM or a GPU is."
        )


def _fit_line(fitted: Fit | str) -> None:
    if isinstance(fitted, str):
        st.caption(f":material/info: No fitted law: {plain(fitted)}")
        return
    unseen = (
        f"; {percent(fitted.leave_one_out, 1)} median error at points left out"
        if isfinite(fitted.leave_one_out)
        else ""
    )
    st.caption(
        f":material/show_chart: Line: the law fitted to all {len(fitted.errors)} points of this deployment. "
        f"{sentence_case(rates_within(fitted))}{unseen}."
    )
    for warning in cautions(fitted.warnings):
        st.caption(f":material/warning: {plain(sentence_case(warning))}.")


def _void(points: Sequence[Point]) -> None:
    """Levels that were measured and say nothing of the server, each with its verdict and the reasons."""
    if not points:
        return
    with st.expander(f"{len(points)} measured, but void: not drawn, never fitted", icon=":material/block:"):
        for point in points:
            lengths = f"{point.isl:,g} in, {point.osl:,g} out"
            verdict = point.verdict.replace("_", "-")
            st.caption(f"**{lengths}, {point.load_label}: {verdict}.** {plain(reasons(point))}")


def _law(fitted: Fit | str) -> Mapping[Point, PointError]:
    """What the law says of each point it was fitted to."""
    return {} if isinstance(fitted, str) else {error.point: error for error in fitted.errors}


def _charts(curve: Curve, law: Mapping[Point, PointError]) -> None:
    grid = st.grid("auto", min_column_width=300)
    for number, chart in enumerate(_drawn(curve, law)):
        with grid:
            show(chart, f"curve_{number}")


def _drawn(curve: Curve, law: Mapping[Point, PointError]) -> list[Chart]:
    points = curve.points
    said = [law[point] for point in points] if all(point in law for point in points) else []
    levels = [point.load_value for point in points]
    e2e_s = [e.ttft_mean_s + (p.osl - 1) * e.itl_mean_s for e, p in zip(said, points, strict=False)]

    def over_concurrency(title: str, measured: Sequence[float | None], predicted: Sequence[float]) -> Chart:
        return measured_and_law(title, CONCURRENCY, [ComparedSeries("mean", levels, measured, predicted)], ink())

    speed = [(1 / p.itl_mean_s, p.requests_per_s / p.gpus) for p in points if p.itl_mean_s]
    speed_said = [e.requests_per_s / e.point.gpus for e in said if e.point.itl_mean_s]
    tokens_per_s = [p.output_tokens_per_s or p.requests_per_s * p.osl for p in points]
    return [
        over_concurrency("Requests/s", [p.requests_per_s for p in points], [e.requests_per_s for e in said]),
        over_concurrency("Mean TTFT (ms)", [_ms(p.ttft_mean_s) for p in points], [e.ttft_mean_s * 1000 for e in said]),
        over_concurrency("Mean ITL (ms)", [_ms(p.itl_mean_s) for p in points], [e.itl_mean_s * 1000 for e in said]),
        over_concurrency("Mean E2E (s)", [p.e2e_mean_s for p in points], e2e_s),
        over_concurrency("Output tokens/s", tokens_per_s, [e.requests_per_s * e.point.osl for e in said]),
        measured_and_law(
            "Requests/s per GPU",
            "Interactivity (output tokens/s per user)",
            [ComparedSeries("throughput", [x for x, _ in speed], [y for _, y in speed], speed_said)],
            ink(),
        ),
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _table(curve: Curve, law: Mapping[Point, PointError]) -> None:
    rows = [_row(point, law.get(point)) for point in curve.points]
    data_behind(pd.DataFrame(rows), "The measured points of this curve")
    text = io.StringIO()
    write_points(curve.points, text)
    st.download_button(
        "Download as CSV",
        text.getvalue(),
        file_name="points.csv",
        mime="text/csv",
        on_click="ignore",
        icon=":material/download:",
        help="These points with every column of the points table; sizing and calibration can read it.",
    )


def _row(point: Point, error: PointError | None) -> dict[str, str]:
    times = {
        f"{metric.upper()} {name} (ms)": _ms(getattr(point, f"{metric}_{name}_s"))
        for metric in ("ttft", "itl", "e2e")
        for name in ("mean", "p95")
    }
    numbers = {
        CONCURRENCY: point.load_value,
        "Requests/s": point.requests_per_s,
        "Requests/s per GPU": point.requests_per_s / point.gpus,
        **times,
        "Output tokens/s": point.output_tokens_per_s,
        "Law's error in requests/s (%)": error and error.requests_per_s_error * 100,
    }
    return {name: "" if value is None else significant(value) for name, value in numbers.items()}
