"""Predicted against measured at random arrivals: fit the closed-loop points of a file, predict its open-loop ones.

python -m validation.speed.accuracy data/curves/reference-cpu.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from sizing.candidates import by_deployment
from sizing.engine import Replica
from sizing.fitting import fit
from sizing.numbers import milliseconds, significant
from sizing.points import Point, read_points
from sizing.prediction import Prediction
from sizing.queueing import predict
from sizing.simulator import simulate
from sizing.workload import OF_REQUESTS, Arrivals, Workload

SHOWN = (("mean", "mean_s"), ("p50", "p50_s"), ("p95", "p95_s"))


def predictions(replica: Replica, point: Point) -> Iterator[Prediction]:
    """By formula, then by simulation, at the load of an open-loop point."""
    arrivals = Arrivals.parse("poisson" if point.load_kind == "poisson_rate" else "constant")
    workload = Workload(point.lengths, point.load_value, arrivals)
    yield predict(replica, workload)
    yield simulate(replica, workload).prediction()


def compare(points: list[Point]) -> Table:
    """One row for each open-loop point, metric and quantile."""
    table = Table("ISL/OSL", "requests/s", "metric", "measured", "formula", "error", "simulation", "error")
    fitted = fit([point for point in points if point.closed])
    for point in points:
        if point.closed:
            continue
        both = list(predictions(fitted.replica, point))
        for metric in OF_REQUESTS:
            for name, field in SHOWN:
                measured = getattr(point, f"{metric}_{field}")
                if measured is None:
                    continue
                cells = []
                for prediction in both:
                    value = getattr(prediction.of(metric), field)
                    cells += [milliseconds(value), f"{value / measured - 1:+.1%}"]
                where = (f"{point.isl:g}/{point.osl:g}", significant(point.load_value), f"{metric.upper()} {name}")
                table.add_row(*where, milliseconds(measured), *cells)
    table.title = f"{fitted.deployment.label}: leave-one-out error {fitted.leave_one_out:.1%}"
    return table


def main() -> None:
    """Print a table for each deployment of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", help="points table (CSV) with closed-loop and open-loop points")
    for points in by_deployment(read_points(parser.parse_args().points)).values():
        Console(width=130).print(compare(points))


if __name__ == "__main__":
    main()
