"""98 prompts at once, V1 against in-flight batching: measured on the local Triton server, and predicted.

Run: python -m validation.speed identity, or python -m validation.speed.identity [--bursts 4] [--budget 12]

First the local server with a small model and a tenth of the published prompt lengths (80 / 41 tokens): both ways of
batching, burst after burst in turn, and beside each what the simulator says from a law fitted to V1's closed loops
alone. Then the published burst on Llama-2-7B and an H100, from the day-zero law.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from sizing.cli.tables import print_fit
from sizing.errors import SizingError
from sizing.fitting import Fit, Protocol, fit
from sizing.points import Point
from validation.speed import identity_llama
from validation.speed.identity_burst import PROMPTS, Answered, Burst, engines, simulated
from validation.speed.identity_server import KV_TOKENS, TOKEN_BUDGET, bursts, servers, static_points

Row = tuple[Burst, Answered, Answered]


@dataclass(frozen=True, slots=True)
class Compared:
    """One burst under V1 and in-flight: seconds measured and predicted.

    `engine_ratio`: V1's processor seconds over in-flight's, a better measurement where others use the machine too.
    """

    static_s: tuple[float, float]
    in_flight_s: tuple[float, float]
    engine_ratio: float

    @property
    def ratios(self) -> tuple[float, float]:
        """V1's time over in-flight's, which is in-flight's requests/s over V1's: measured, predicted."""
        return self.static_s[0] / self.in_flight_s[0], self.static_s[1] / self.in_flight_s[1]


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bursts", type=int, default=4, help="How many bursts each server answers.")
    parser.add_argument("--budget", type=float, default=12.0, help="Seconds for each level of V1's closed loops.")
    options, _ = parser.parse_known_args()
    console = Console(width=150)
    start_s = time.monotonic()
    local(console, options.bursts, options.budget)
    try:
        console.print(identity_llama.table(identity_llama.day_zero_law()))
    except SizingError as error:
        console.print(f"Llama-2-7B is not predicted: {error}")
    console.print(f"{time.monotonic() - start_s:.0f} s")


def local(console: Console, count: int, budget_s: float) -> None:
    """The local server: bursts, V1's points, the law fitted to them, and the comparison."""
    with servers() as pair:
        rows = list(bursts(pair, range(count)))
        points = static_points(pair[0], budget_s)
    try:
        fitted = fit(points, kv_tokens=KV_TOKENS, token_budget=TOKEN_BUDGET, protocol=Protocol("ramp"))
    except SizingError as error:
        console.print(f"no law: {error}")
        return
    print_fit(fitted)
    console.print(levels(points))
    console.print(comparison([compared(fitted, row) for row in rows]))


def compared(fitted: Fit, row: Row) -> Compared:
    """What was measured beside the same burst simulated with the law of V1 under both rules."""
    sent, static, in_flight = row
    static_engine, in_flight_engine = engines(fitted.law, fitted.batching)
    return Compared(
        (static.total_s, simulated(static_engine, sent).total_s),
        (in_flight.total_s, simulated(in_flight_engine, sent).total_s),
        static.engine_s / in_flight.engine_s,
    )


def levels(points: Sequence[Point]) -> Table:
    """V1's closed loops."""
    table = Table("users", "requests", "requests/s", "TTFT mean ms", "ITL mean ms", "verdict", title="V1, closed loops")
    for point in points:
        times_ms = (f"{1000 * (value or np.nan):.1f}" for value in (point.ttft_mean_s, point.itl_mean_s))
        cells = (f"{point.load_value:g}", f"{point.requests}", f"{point.requests_per_s:.2f}", *times_ms, point.verdict)
        table.add_row(*cells)
    return table


def comparison(found: Sequence[Compared]) -> Table:
    """Seconds and ratio of every burst, then the mean requests/s and ratio with their errors."""
    table = Table("burst", "V1 s", "predicted", "in-flight s", "predicted", "ratio", "engine", "predicted", "error")
    table.title = "98 prompts of 80 / 41 tokens at once, local server, at most 8 at once; predicted from V1 alone"
    for number, one in enumerate(found, start=1):
        measured, predicted = one.ratios
        times = (f"{value:.2f}" for value in (*one.static_s, *one.in_flight_s))
        ratios = (f"{value:.3f}" for value in (measured, one.engine_ratio, predicted))
        table.add_row(f"{number}", *times, *ratios, f"{predicted / measured - 1:+.1%}")
    table.add_section()
    rates = PROMPTS / np.array([(*one.static_s, *one.in_flight_s) for one in found])
    every = np.array([(one.ratios[0], one.engine_ratio, one.ratios[1]) for one in found])
    table.add_row("requests/s", *(f"{value:.2f}" for value in rates.mean(axis=0)))
    mean, spread = every.mean(axis=0), every.std(axis=0)
    texts = (f"{value:.3f} ± {width:.3f}" for value, width in zip(mean, spread, strict=True))
    table.add_row("mean", "", "", "", "", *texts, f"{mean[2] / mean[0] - 1:+.1%}")
    table.caption = (
        f"engine: ratio of the engines' processor seconds; the prediction is {mean[2] / mean[1] - 1:+.1%} off it"
    )
    return table


if __name__ == "__main__":
    main()
