"""Points in a terminal: a table, and what stands behind each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibration.records import Measurement
from calibration.server_view.latency_split import split
from sizing.curves import Point, doubts

_HEAD = (
    "   ISL    OSL        load   req/s   TTFT ms      p95    ITL ms      p95    E2E ms      p95  Little  errors"
    "  verdict\n"
    "                                      mean               mean               mean\n"
)


def table(points: Sequence[Point]) -> str:
    """The points as text, one line each, times in milliseconds; what speaks against a point follows below."""
    lines = [_HEAD, *(_row(point) for point in points)]
    for point in points:
        remarks = [*doubts(point), *([point.notes] if point.notes else [])]
        if remarks:
            lines.append(f"ISL {point.isl:g}, OSL {point.osl:g}, {load_text(point)}: {'; '.join(remarks)}\n")
    return "".join(lines)


def _row(point: Point) -> str:
    times = "".join(
        f"{_ms(mean_s):>10}{_ms(p95_s):>9}"
        for mean_s, p95_s in (
            (point.ttft_mean_s, point.ttft_p95_s),
            (point.itl_mean_s, point.itl_p95_s),
            (point.e2e_mean_s, point.e2e_p95_s),
        )
    )
    little = "" if point.little is None else f"{point.little:.3f}"
    head = f"{point.isl:6g} {point.osl:6g} {load_text(point):>11} {point.requests_per_s:7.2f}"
    errors = "" if point.errors is None else point.errors
    return f"{head}{times}  {little:>6}  {errors:>6}  {point.verdict}".rstrip() + "\n"


def load_text(point: Point) -> str:
    """For people: ``4 users``, ``3.5 req/s``."""
    return f"{point.load_value:g} users" if point.load_kind == "concurrency" else f"{point.load_value:.4g} req/s"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.0f}" if seconds >= 1 else f"{seconds * 1000:.4g}"


def details(found: Measurement) -> str:
    """What stands behind a point, a line each: how well its means are known, the client's health, the server's view."""
    point = found.point
    lines = [f"ISL {point.isl:g}, OSL {point.osl:g}, {load_text(point)}: {point.verdict or 'not judged'}"]
    for name, text in (
        ("means known to", _precision(found.facts)),
        ("from sending", _from_sending(found.facts)),
        ("client", _client(found.facts)),
        ("server", _server(found)),
        ("", _gauges(found.server)),
    ):
        if text:
            lines.append(f"  {name:15} {text}")
    return "\n".join(lines) + "\n"


def _precision(facts: Mapping[str, float]) -> str:
    names = {"ttft_mean": "TTFT", "itl_mean": "ITL", "e2e_mean": "E2E", "requests_per_s": "requests/s"}
    known = [
        f"{text} ±{facts[f'{name}_half_width']:.1%}" for name, text in names.items() if f"{name}_half_width" in facts
    ]
    return f"{', '.join(known)} (95 % confidence)" if known else ""


def _from_sending(facts: Mapping[str, float]) -> str:
    """The latencies of an open loop as the server had them, without the client's lateness."""
    shown = []
    for metric in ("ttft", "e2e"):
        if f"{metric}_sent_mean_s" in facts:
            p95_s = facts.get(f"{metric}_sent_p95_s")
            p95 = "" if p95_s is None else f", p95 {_ms(p95_s)} ms"
            shown.append(f"{metric.upper()} mean {_ms(facts[f'{metric}_sent_mean_s'])} ms{p95}")
    return "; ".join(shown)


def _client(facts: Mapping[str, float]) -> str:
    if not {"processes", "client_cores", "loop_lag_p99_s", "achieved_per_s"} <= set(facts):
        return ""  # measured by another tool
    many = "" if facts["processes"] == 1 else "es"
    parts = [
        f"{facts['processes']:.0f} process{many} on {facts['client_cores']:.2f} cores",
        f"event loop late by {_ms(facts['loop_lag_p99_s'])} ms (p99)",
    ]
    if {"offered_per_s", "sent_per_s", "late_p50_s", "late_p99_s"} <= set(facts):
        parts.append(f"offered {facts['offered_per_s']:.4g}, sent {facts['sent_per_s']:.4g} requests/s")
        parts.append(f"sent late by {_ms(facts['late_p50_s'])} ms (p50), {_ms(facts['late_p99_s'])} ms (p99)")
    return f"{', '.join(parts)}; answered {facts['achieved_per_s']:.4g} requests/s"


def _server(found: Measurement) -> str:
    """Where a mean request's time went, by the server's metrics, beside the client's view."""
    if found.point.verdict == "overloaded":
        return ""  # without a steady state the parts do not add up
    parts = split(found.point, found.server)
    seconds = {
        "queue": parts.queue_s,
        "prefill": parts.prefill_s,
        "decode": parts.decode_s,
        "network and client": parts.network_and_client_s,
        "rest": parts.other_s,
    }
    known = [f"{name} {_ms(value)}" for name, value in seconds.items() if value is not None]
    of = f"of E2E {_ms(parts.e2e_s)} ms: " if known else ""
    return f"{of}{', '.join(known)}"


SHOWN = (
    ("pending_requests_mean", "{:.3g} requests in Triton"),
    ("batcher_generation_requests_mean", "{:.3g} decoding"),
    ("engine_requests_waiting_mean", "{:.3g} waiting for the engine"),
    ("kv_cache_used_share_mean", "KV cache {:.0%} full"),
    ("gpu_power_mean_w", "GPU {:.0f} W"),
    ("gpu_utilization_mean", "GPU busy {:.0%}"),
    ("gpu_energy_per_request_j", "{:.3g} J a request"),
)


def _gauges(server: Mapping[str, float]) -> str:
    return ", ".join(text.format(server[name]) for name, text in SHOWN if name in server)
