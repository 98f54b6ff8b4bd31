"""What ``python -m sizing course`` prints for people."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from learn.course import CourseSizing, example
from learn.course.beside import Terms, compared
from learn.course.corrections import LIMITS_OF_THE_METHOD, corrections
from learn.course.shapes import Cost, Load
from sizing.cli.tables import console
from sizing.numbers import milliseconds, significant
from sizing.plans import Plan


def print_course(sizing: CourseSizing, load: Load, cost: Cost | None, plan: Plan | str | None, terms: Terms) -> None:
    out = console()
    out.print(f"[bold]{escape(sizing.sentence)}[/bold]", soft_wrap=True)
    if load.mean_per_s is not None:
        out.print(
            f"Peak: {significant(load.peak_per_s, 5)} requests/s, {load.how}; mean {significant(load.mean_per_s, 4)}."
        )
    out.print(throughput_table(sizing))
    for line in cost_lines(cost):
        out.print(line, soft_wrap=True)
    if isinstance(plan, str):
        out.print(f"Our planner has no answer: {escape(plan)}.", soft_wrap=True)
    elif plan:
        out.print(f"{escape(compared(sizing, plan, terms))}.", soft_wrap=True)
    print_why()


def print_why() -> None:
    out = console()
    for line in LIMITS_OF_THE_METHOD:
        out.print(f"- {line.replace('**', '')}", soft_wrap=True)


def throughput_table(sizing: CourseSizing) -> Table:
    """The chosen point, per instance and per GPU."""
    measured, gpus = sizing.throughput, sizing.gpus_per_server
    table = Table("requests/s", "", "concurrency", title=escape(measured.label))
    table.add_row("per instance", significant(measured.per_instance, 4), significant(measured.concurrency))
    table.add_row("per GPU", significant(measured.per_gpu, 4), significant(measured.concurrency_per_gpus(1)))
    table.add_row(
        f"per {gpus} GPUs", significant(measured.per_gpus(gpus)), significant(measured.concurrency_per_gpus(gpus))
    )
    for name in ("ttft", "itl", "e2e"):
        value = getattr(measured.point, f"{name}_mean_s")
        if value is not None:
            table.add_row(f"mean {name.upper()}", milliseconds(value), "")
    return table


def cost_lines(cost: Cost | None) -> list[str]:
    """What the servers cost, in sentences."""
    if cost is None:
        return []
    lines = [
        f"{name}: {cost_.per_year:,.0f} a year; per 1,000 requests {significant(cost_.per_1000_at_mean)} at the mean "
        f"load, "
        f"{significant(cost_.per_1000_at_peak)} if every second were the peak."
        for name, cost_ in (("Whole servers", cost.whole), ("Fractions of a server", cost.fractional))
    ]
    if cost.api_per_1000 is not None and cost.per_million is not None:
        per_in, per_out = map(significant, cost.per_million)
        lines.append(
            f"An API: {significant(cost.api_per_1000)} per 1,000 requests. Whole servers per million tokens at its "
            f"ratio of prices: {per_in} in, {per_out} out."
        )
    return lines


def print_example() -> None:
    """The worked example, and the course's wrong figures."""
    out = console()
    out.print(
        f"A call centre: {example.CALLS_PER_YEAR:,.0f} calls a year of {example.MINUTES_PER_CALL} minutes with "
        f"{example.REQUESTS_PER_MINUTE} requests a minute are {example.mean_per_s():.2f} requests/s on average, "
        f"{example.peak_per_s():.2f} at a peak of {example.PEAK_FACTOR} times that.",
        soft_wrap=True,
    )
    for limit, sizing in zip(example.LIMITS, example.sizings(), strict=True):
        out.print(f"Mean TTFT <= {limit}: {sizing.throughput.label}. [bold]{sizing.sentence}.[/bold]", soft_wrap=True)
    table = Table("figure", "course", "ours", "why", title="Where the course's figures are off")
    for error in corrections():
        table.add_row(error.what, error.course, error.ours, error.why)
    out.print(table)
    print_why()
