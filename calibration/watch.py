"""``python -m sizing watch``: the load, lengths and latencies of live servers compared with their plan; a dashboard."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
from rich.markup import escape
from rich.table import Table

from calibration.demand import law_in
from calibration.prometheus import (
    EXPOSITIONS,
    Exposition,
    Family,
    Histogram,
    PrometheusError,
    Source,
    labels_of,
    promql_span,
    selector,
    server_of,
    server_options,
    source_of,
    span_of,
)
from sizing.cli.options import as_json, options, write_json
from sizing.cli.tables import console
from sizing.files import write
from sizing.numbers import milliseconds, percent, significant
from sizing.report.model import Configuration, LimitRow, Report, ReportError
from sizing.report.tables import line
from sizing.report.write import read
from sizing.stats import Z90
from sizing.workload import METRICS, SHARES, Metric, metric_name

EXAMPLES = """\b
Examples:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --isl 2000 --osl 256 --rate 20 \\
      --ttft p95:1s --itl p95:30ms --json > plan.json
  python -m sizing watch --plan plan.json --prometheus http://prometheus:9090
  python -m sizing watch --plan plan.json --prometheus https://metrics.example/prometheus --window 1h --json
  python -m sizing watch --plan plan.json --dashboard dashboard.json
"""
OUTSIDE = 1
"""Exit code: something is worse than planned."""
LENGTHS_WITHIN = 0.1
"""Relative change of a mean length that a plan's margins cover."""
PERCENTILES = (50, 95)
"""Shown of TTFT, ITL and E2E, in addition to those limited by the SLA."""
SHOWN: tuple[Metric, ...] = ("ttft", "itl", "e2e")
Term = Literal["load", "lengths", "latency"]
Verdict = Literal["in", "above", "below", "unclear"]


# --- The plan, from a saved report


@dataclass(frozen=True, slots=True)
class Planned:
    """A saved plan's fleet: `working` replicas for `rate_per_s`; at `capacity_per_s` it no longer meets the SLA."""

    report: Report
    fleet: Configuration
    working: float
    rate_per_s: float
    capacity_per_s: float

    @classmethod
    def of(cls, path: Path) -> Planned:
        """From the output of `plan --json`. Raises ReportError."""
        report = read(path)
        if report.sessions is not None:
            raise ReportError(
                f"{line(str(path))}: a plan of sessions cannot be watched: it has no latencies for other loads"
            )
        if report.answer is None or report.curves is None or not report.limits:
            raise ReportError(f"{line(str(path))}: it holds no answer to compare with: {line(report.sentence)}")
        working = report.answer.working.value or 1.0
        curves = report.curves
        return cls(report, report.answer, working, curves.planned_per_s * working, curves.capacity_per_s * working)

    @property
    def limits(self) -> tuple[LimitRow, ...]:
        """The limits for which servers have histograms: percentiles of TTFT, ITL, gaps and E2E over all requests."""
        return tuple(limit for limit in self.report.limits if limit.metric in METRICS and not limit.subject)

    @property
    def not_compared(self) -> list[str]:
        """A sentence for each limit on a share of requests, and one for those of classes: neither has a histogram."""
        shares = [limit.name for limit in self.report.limits if limit.metric in SHARES]
        found = [f"The plan's limit on {name} is not compared: histograms have no such share" for name in shares]
        if self.report.traffic and self.report.traffic.classes:
            named = ", ".join(f"{limit.name} of {limit.of}" for limit in self.report.traffic.classes)
            found.append(f"The plan's limits of classes are not compared ({named}): histograms hold all requests")
        return found

    def factor(self, limit: LimitRow, per_replica_per_s: float) -> float:
        """The ratio of a limited percentile at a load to that at the planned load, by the curve; infinite beyond."""
        curves = self.report.curves
        assert curves is not None
        for curve in curves.curves:
            if (curve.metric, curve.percentile) == (limit.metric, limit.percentile):
                known = [
                    (load, value)
                    for load, value in zip(curves.load.values, curve.latency.values, strict=True)
                    if load is not None and value is not None
                ]
                if not known or per_replica_per_s > known[-1][0]:
                    return math.inf
                loads, values = zip(*known, strict=True)
                here, there = np.interp([per_replica_per_s, curves.planned_per_s], loads, values)
                return float(here / there)
        return 1.0


# --- Live figures compared with it


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: `planned`, with its band `band_low` to `band_high` at the present load; and `live`, with the interval
    `low` to `high` that counters, buckets and chance allow.

    `unit` is requests/s, tokens or s; None: unknown. `limit` is the SLA's, which `live` must not exceed.
    """

    term: Term
    name: str
    unit: str
    planned: float | None
    band_low: float | None = None
    band_high: float | None = None
    live: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None

    @property
    def verdict(self) -> Verdict | None:
        """Whether `live` is in the band: above or below only if its whole interval is; None if either is unknown."""
        if self.live is None or self.low is None or self.high is None:
            return None
        if self.band_low is None or self.band_high is None:
            return None
        if self.low >= self.band_high:
            return "above"
        if self.high <= self.band_low:
            return "below"
        return "in" if self.band_low <= self.live <= self.band_high else "unclear"

    @property
    def missed(self) -> bool:
        """True if the whole interval exceeds the SLA's limit."""
        return self.limit is not None and self.low is not None and self.low >= self.limit

    @property
    def outside(self) -> bool:
        """True if the figure is worse than planned."""
        return self.verdict == "above" or self.missed


@dataclass(frozen=True, slots=True)
class WatchedLoad:
    """Live servers compared with their plan, over `window_s` seconds up to `at_s` with `requests` answered."""

    source: Source
    at_s: float
    window_s: float
    requests: float
    replicas: float
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def inside(self) -> bool:
        """True if nothing is worse than planned."""
        return not any(row.outside for row in self.rows)

    @property
    def moved(self) -> list[str]:
        """The terms that differ from the plan, a sentence each."""
        found = [_moved(row) for row in self.rows if row.term != "latency" and row.verdict in ("above", "below")]
        slow = [row for row in self.rows if row.term == "latency" and row.outside]
        if slow:
            names = " and ".join(row.name for row in slow)
            found.append(f"latency: {names} {self._because(slow)}")
        if fast := [row.name for row in self.rows if row.term == "latency" and row.verdict == "below"]:
            found.append(f"latency: {' and '.join(fast)} below the band at this load: better than planned")
        return found

    def _because(self, slow: Sequence[Row]) -> str:
        if any(row.term == "load" and row.verdict == "above" for row in self.rows):
            return "above the limit or the band, and so is the load"
        if any(row.term == "lengths" and row.verdict == "above" for row in self.rows):
            return "above the band at this load, and so are the lengths: longer requests take longer steps"
        if all(row.verdict != "above" for row in slow):
            return "above the limit, though in the plan's band"
        if any(row.name.endswith(("ITL", "gap")) for row in slow):
            return "above the band at this load and these lengths: the step time moved"
        return "above the band at this load and these lengths, but steps are not: requests wait, or prompts take longer"


def _moved(row: Row) -> str:
    assert row.live is not None and row.planned
    return f"{row.term}: {row.name} is {percent(row.live / row.planned - 1, sign=True)} off the plan"


def watched(plan: Planned, source: Source, window_s: float, at_s: float, replicas: float | None = None) -> WatchedLoad:
    """The figures of a window compared with the plan's. `replicas`: those serving now, by default the plan's.

    Raises PrometheusError if the server lacks the metrics, or has them for a part of the window only.
    """
    if not source.reaches_across(window_s, at_s):
        raise PrometheusError(
            f"{source.server.url}: samples of {source.exposition.requests} begin or end inside the "
            f"{promql_span(window_s)} asked for, whose rate they do not tell: give a --window that they cover, of four "
            "scrapes or more"
        )
    requests = source.requests(window_s, at_s)
    serving = replicas or plan.working
    rate_per_s = requests / window_s
    rows = [_load(plan, requests, window_s, serving / plan.working)]
    notes = plan.not_compared
    for side in ("isl", "osl"):
        found = source.histogram(side, window_s, at_s)
        mean = found.mean if found else source.mean_tokens(side, window_s, at_s)
        rows.append(_length(plan, side, mean, requests, found))
        if mean is None and requests:
            notes.append(_lacking(source, side.upper()))
    seen = {what: source.histogram(what, window_s, at_s) for what in _metrics(plan)}
    lacking = [what for what, histogram in seen.items() if histogram is None and requests]
    if "itl" in lacking and (gaps := source.histogram("gap", window_s, at_s)):
        lacking.remove("itl")
        notes.append(
            f"There are single gaps between tokens from {source.exposition.title}, not each request's mean (ITL): "
            f"their p50 is {milliseconds(gaps.quantile(0.5))}, their p95 {milliseconds(gaps.quantile(0.95))}"
        )
    notes += [_lacking(source, metric_name(what)) for what in lacking]
    rows += [_limited(plan, limit, seen[metric_of(limit)], rate_per_s / serving) for limit in plan.limits]
    rows += _unlimited(plan, seen)
    if not requests:
        notes.append("No request was answered in this time")
    return WatchedLoad(source, at_s, window_s, requests, serving, tuple(rows), tuple(notes))


def _lacking(source: Source, name: str) -> str:
    return f"There are no metrics of {name} from {source.exposition.title} here"


def _metrics(plan: Planned) -> tuple[Metric, ...]:
    return tuple(dict.fromkeys((*SHOWN, *map(metric_of, plan.limits))))


def metric_of(limit: LimitRow) -> Metric:
    """The metric whose percentile is limited."""
    return next(metric for metric in METRICS if metric == limit.metric)


def _load(plan: Planned, requests: float, window_s: float, share: float) -> Row:
    """Requests/s; the count n of a Poisson process has the standard error sqrt(n). Fewer than planned is fine."""
    rate, error = requests / window_s, Z90 * math.sqrt(requests) / window_s
    most = plan.rate_per_s * share
    return Row("load", "requests/s", "requests/s", most, 0.0, most, rate, max(0.0, rate - error), rate + error)


def _length(plan: Planned, side: str, mean: float | None, requests: float, found: Histogram | None) -> Row:
    """A mean length; the standard error is that of lengths as the histogram has them, or without one as planned."""
    planned = plan.report.given(side)
    if planned is None or mean is None:
        return Row("lengths", f"mean {side.upper()}", "tokens", planned, live=mean)
    cv = law_in(found).cv if found else plan.report.given(f"{side}_cv") or 0.0
    error = Z90 * cv * mean / math.sqrt(max(requests, 1.0))
    band = planned * (1 - LENGTHS_WITHIN), planned * (1 + LENGTHS_WITHIN)
    return Row("lengths", f"mean {side.upper()}", "tokens", planned, *band, mean, max(0.0, mean - error), mean + error)


def _limited(plan: Planned, limit: LimitRow, found: Histogram | None, per_replica_per_s: float) -> Row:
    factor = plan.factor(limit, per_replica_per_s)
    # beyond the stable rate the plan allows any latency; an open end of the band stays open
    low = (limit.low.value or 0.0) * (1.0 if math.isinf(factor) else factor)
    high = math.inf if limit.high.value is None else limit.high.value * factor
    live = _live(found, limit.percentile)
    return Row("latency", limit.name, "s", limit.predicted.value, low, high, *live, limit=limit.limit.value)


def _unlimited(plan: Planned, seen: Mapping[Metric, Histogram | None]) -> list[Row]:
    """Percentiles without a limit in the SLA, with the plan's at its own load; without a band."""
    limited = {(limit.metric, limit.percentile) for limit in plan.limits}
    rows = []
    for latency in plan.fleet.latencies:
        for percentile in PERCENTILES if latency.metric in SHOWN else ():
            if (latency.metric, percentile) not in limited:
                planned = {50: latency.p50, 95: latency.p95}[percentile].value
                live = _live(seen.get(latency.metric), percentile)
                name = f"p{percentile} {metric_name(latency.metric)}"
                rows.append(Row("latency", name, "s", planned, None, None, *live))
    return rows


def _live(found: Histogram | None, percentile: float) -> tuple[float | None, float | None, float | None]:
    if found is None:
        return None, None, None
    return found.quantile(percentile / 100), *found.interval(percentile / 100)


# --- Output for people and programs


def text_of(row: Row, value: float | None) -> str:
    """A figure of a row, for people."""
    if value is None:
        return ""
    return milliseconds(value) if row.unit == "s" else significant(value)


def table(found: WatchedLoad) -> Table:
    """Every figure, planned and live."""
    title = (
        f"{found.source.exposition.title}, model {found.source.model}, last {significant(found.window_s / 60)} "
        f"minutes: {found.requests:,.0f} requests on {significant(found.replicas)} replicas"
    )
    shown = Table("figure", "plan", "band at this load", "limit", "live", "between", "in the band")
    shown.title, shown.title_justify = escape(title), "left"
    for row in found.rows:
        band = "" if row.band_high is None else f"{text_of(row, row.band_low)} to {text_of(row, row.band_high)}"
        between = "" if row.low is None else f"{text_of(row, row.low)} to {text_of(row, row.high)}"
        word = {"in": "yes", None: ""}.get(row.verdict, row.verdict)
        word = ", ".join(filter(None, (word, "over the limit" if row.missed else "")))
        shown.add_row(
            row.name, text_of(row, row.planned), band, text_of(row, row.limit), text_of(row, row.live), between, word
        )
    return shown


def as_dict(found: WatchedLoad) -> dict[str, Any]:
    """The same for programs; null: unknown, or infinite."""
    names = ("term", "name", "unit", "planned", "band_low", "band_high", "live", "low", "high", "limit")
    return {
        "inside": found.inside,
        "model": found.source.model,
        "metrics": found.source.exposition.title,
        "at_s": found.at_s,
        "window_s": found.window_s,
        "requests": found.requests,
        "replicas": found.replicas,
        "rows": [
            {name: getattr(row, name) for name in names} | {"verdict": row.verdict, "missed": row.missed}
            for row in found.rows
        ],
        "moved": found.moved,
        "notes": list(found.notes),
    }


@click.command("watch", epilog=EXAMPLES)
@options(
    click.option(
        "--plan", "plan", type=click.Path(path_type=Path), required=True, help="File with the output of `plan --json`."
    ),
    click.option("--prometheus", "url", metavar="URL", help="The Prometheus that scrapes the servers."),
    click.option(
        "--window",
        default="15m",
        show_default=True,
        help="Length of the time compared, up to now; at least four scrape intervals.",
    ),
    click.option(
        "--replicas", type=click.IntRange(1), help="Replicas that are serving now; default: those of the plan."
    ),
    server_options,
    click.option(
        "--dashboard", type=click.Path(path_type=Path, dir_okay=False), help="File (.json) for a Grafana dashboard."
    ),
    as_json,
)
def watch_command(
    plan: Path, url: str | None, window: str, replicas: int | None, dashboard: Path | None, json_: bool, **given: Any
) -> int:
    """Do live servers behave as planned? Load, lengths and latencies of the last minutes, from Prometheus.

    Latencies are compared with the plan's band at the present load. Exit code 0: nothing is worse than planned; 1: the
    load, a length or a latency is above its band, or a limit of the SLA is exceeded; 2: no answer, one line says why. A
    percentile from a histogram lies somewhere in a bucket: it counts as above only if the whole bucket is.

    --dashboard writes a Grafana dashboard with the plan's limits as lines; it needs no Prometheus.
    """
    planned = Planned.of(plan)
    if url is None and dashboard is None:
        raise click.UsageError("give --prometheus, --dashboard, or both")
    window_s, labels = span_of("--window", window), labels_of(given["labels"])
    found = None
    if url is not None:
        server, at_s, usual = server_of(url, given), time.time(), planned.report.model
        source = source_of(server, given["metrics"], given["model"], labels, window_s, at_s, usual)
        found = watched(planned, source, window_s, at_s, replicas)
    if dashboard is not None:
        exposition = found.source.exposition if found else EXPOSITIONS[given["metrics"] or "vllm"]
        model = found.source.model if found else given["model"] or planned.report.model
        write(dashboard, [dashboard_json(planned, exposition, model, labels, replicas)])
    if found is None:
        if json_:
            write_json({"dashboard": str(dashboard)})
        else:
            click.echo(f"Dashboard: {dashboard}")
        return 0
    if json_:
        write_json(as_dict(found) | ({"dashboard": str(dashboard)} if dashboard else {}))
    else:
        out = console()
        out.print(table(found))
        for text in (*found.moved, *found.notes):
            out.print(f"{text[:1].upper()}{text[1:]}.", soft_wrap=True, markup=False)
        out.print("Inside the plan." if found.inside else "Outside the plan.", markup=False)
        if dashboard:
            out.print(f"Dashboard: {dashboard}", soft_wrap=True, markup=False)
    return 0 if found.inside else OUTSIDE


# --- A dashboard: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/

SCHEMA_VERSION = 39
"""That of Grafana 10.4; newer versions upgrade a dashboard when they read it."""
RED, ORANGE, BLUE, GREEN = "red", "orange", "blue", "green"
WIDTH, HEIGHT = 12, 8
RATE = "$__rate_interval"
Lines = Iterable[tuple[float | None, str]]


def dashboard_json(
    plan: Planned, exposition: Exposition, model: str, labels: Mapping[str, str], replicas: float | None = None
) -> str:
    """A dashboard in Grafana's classic JSON model: a panel for the load, each length and each limit, with the plan's
    values as lines.

    The data source is a variable, so that the dashboard can be imported anywhere.
    """
    picked = {**labels, exposition.model_label: "$model"}
    share = (replicas or plan.working) / plan.working
    panels = [
        _panel(
            "Requests/s",
            "Orange: the planned load. Red: the load beyond which the SLA is missed.",
            "reqps",
            [("requests/s", f"sum(rate({exposition.requests}{selector(picked)}[{RATE}]))")],
            [(plan.rate_per_s * share, ORANGE), (plan.capacity_per_s * share, RED)],
        )
    ]
    panels += [
        _panel(
            f"Mean {side.upper()}",
            f"Blue: as planned. Orange: {percent(LENGTHS_WITHIN)} more.",
            "short",
            [("tokens", promql)],
            [(planned, BLUE), (planned * (1 + LENGTHS_WITHIN), ORANGE)],
        )
        for side in ("isl", "osl")
        if (promql := _mean(exposition, side, picked)) and (planned := plan.report.given(side))
    ]
    panels += [
        _panel(
            limit.name,
            "Blue: predicted at the planned load. Orange: the upper end of its 90 % band. Red: the limit.",
            "s",
            [
                (f"p{each}", _or(_quantile(family, each, picked) for family in exposition.families(metric_of(limit))))
                for each in dict.fromkeys((limit.percentile, 50))
            ],
            [(limit.predicted.value, BLUE), (limit.high.value, ORANGE), (limit.limit.value, RED)],
        )
        for limit in plan.limits
        if exposition.families(metric_of(limit))
    ]
    for place, panel in enumerate(panels):
        x, y = WIDTH * (place % 2), HEIGHT * (place // 2)
        panel |= {"id": place + 1, "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y}}
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0},
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": DATA_SOURCE,
            "query": f"label_values({exposition.requests}{selector(labels)}, {exposition.model_label})",
            "current": {"text": model, "value": model, "selected": True},
            "refresh": 2,
            "hide": 0,
            "includeAll": False,
            "multi": False,
        },
    ]
    whole: dict[str, Any] = {
        "id": None,
        "uid": None,
        "title": f"Plan of {plan.report.model} at {significant(plan.rate_per_s)} requests/s",
        "description": plan.report.sentence,
        "tags": ["sizing"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA_VERSION,
        "version": 0,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "annotations": {"list": []},
        "templating": {"list": variables},
        "links": [],
        "panels": panels,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(title: str, description: str, unit: str, targets: Sequence[tuple[str, str]], lines: Lines) -> dict[str, Any]:
    """A time series; `targets`: legend and PromQL, `lines`: values with colours, None and infinite ones left out."""
    known = sorted((value, colour) for value, colour in lines if value is not None and math.isfinite(value))
    steps: list[dict[str, Any]] = [{"color": GREEN, "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in known]
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": DATA_SOURCE,
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATA_SOURCE, "expr": promql, "legendFormat": legend}
            for place, (legend, promql) in enumerate(targets)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "custom": {"drawStyle": "line", "lineWidth": 2, "thresholdsStyle": {"mode": "line"}},
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


def _quantile(family: Family, percentile: float, labels: Mapping[str, str]) -> str:
    buckets = f"sum by (le) (rate({family.name}_bucket{selector({**labels, **family.labels})}[{RATE}]))"
    scaled = "" if family.unit == 1 else f" * {family.unit:g}"
    return f"histogram_quantile({percentile / 100:g}, {buckets}){scaled}"


def _mean(exposition: Exposition, side: str, labels: Mapping[str, str]) -> str:
    """PromQL of a mean length; empty if there are no metrics of it."""
    pairs = ((total, count, selector({**labels, **own})) for total, count, own in exposition.means(side))
    return _or(f"sum(rate({total}{by}[{RATE}])) / sum(rate({count}{by}[{RATE}]))" for total, count, by in pairs)


def _or(queries: Iterable[str]) -> str:
    return " or ".join(queries)
