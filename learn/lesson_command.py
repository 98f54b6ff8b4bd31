"""``python -m sizing lesson``: what batching does, slot by slot and tick by tick, as text or JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import click
from rich.table import Table

from learn.lesson import BATCHINGS, Load, Outcome, Setting, figures, run
from learn.lesson.guide import Guide, guides
from learn.lesson.picture import LEGEND, picture
from learn.lesson.words import known, sentence
from sizing.cli.options import F, as_json, options, options_as_typed, refuse, set_by_hand, write_json
from sizing.cli.tables import console
from sizing.errors import ScenarioError

EXAMPLES = """\b
Examples:
  python -m sizing lesson
  python -m sizing lesson --step in-flight
  python -m sizing lesson --batching one_prefill --chunks 2 --load concurrency:6 --ticks 200
  python -m sizing lesson --all
"""
LATENCIES = {"TTFT": ("ttft_mean", "ttft_p50"), "ITL": ("itl_mean", "itl_p50"), "E2E": ("e2e_mean", "e2e_p50")}


USUAL = Setting()


def setting_option(name: str, kind: Any, about: str) -> Callable[[F], F]:
    """The option of a setting of the lesson, with what it is without one."""
    return click.option(
        f"--{name.replace('_', '-')}", type=kind, help=f"{about} [default: that of --step, or {getattr(USUAL, name)}]"
    )


@click.command("lesson", epilog=EXAMPLES)
@options(
    click.option("--step", help="Start from this guided step; --all lists their names."),
    click.option("--all", "all_", is_flag=True, help="Print the figures of all guided steps side by side."),
    setting_option("batching", click.Choice(BATCHINGS), "How slots are filled."),
    setting_option("load", str, "batch:100 requests at once, concurrency:3 users, or rate:0.46 requests per tick."),
    setting_option("slots", int, "Requests that run at once."),
    setting_option("prefill_ticks", float, "Ticks that a prompt takes alone."),
    setting_option("itl_ticks", float, "Ticks per output token after the first."),
    setting_option("chunks", int, "Equal parts into which a prompt is cut."),
    setting_option("mean_tokens", float, "Mean output tokens per request."),
    setting_option("std_tokens", float, "Standard deviation of the output tokens."),
    setting_option("ticks", int, "Length of the run in ticks."),
    setting_option("seed", int, "Seed of the output lengths."),
    click.option(
        "--show", type=click.IntRange(1, 1000), default=100, show_default=True, help="Ticks to draw in the picture."
    ),
    as_json,
)
@click.pass_context
def lesson_command(
    context: click.Context, /, step: str | None, all_: bool, show: int, json_: bool, **given: Any
) -> None:
    """What batching does: one small engine, drawn slot by slot, with static or in-flight batches, one prompt at a time,
    or prompts in chunks.

    Without options: a hundred requests at once on four slots, in static batches.
    """
    if all_:
        others = options_as_typed(context).keys() - {"all_", "json_"}
        refuse(context, sorted(others), "does not go with --all: the guided steps have their own settings")
        _side_by_side(json_)
        return
    guide = _guide(step) if step else None
    changed = {name: given[name] for name in set_by_hand(context) if name in given}
    if "load" in changed:
        changed["load"] = Load.parse(changed["load"])
    setting = replace(guide.setting if guide else Setting(), **changed)
    outcome = run(setting)
    if json_:
        write_json(lesson_json(setting, outcome))
    else:
        _print(guide, setting, outcome, show)


def _guide(name: str) -> Guide:
    if name not in guides():
        raise ScenarioError(f"--step {name!r}: choose one of {', '.join(guides())}")
    return guides()[name]


def lesson_json(setting: Setting, outcome: Outcome) -> dict[str, Any]:
    """The run for machines: setting, figures, steps, first and last tokens."""
    return {
        "setting": {**asdict(setting), "load": str(setting.load)},
        "figures": asdict(figures(outcome)),
        "steps": [
            {"start": step.start, "ticks": step.ticks, "slots": step.letters, "queue": step.queue}
            for step in outcome.steps
        ],
        "ttft": [mark._asdict() for mark in outcome.first],
        "e2e": [mark._asdict() for mark in outcome.last],
        "itl_ticks": list(outcome.itl_ticks),
    }


def _print(guide: Guide | None, setting: Setting, outcome: Outcome, show: int) -> None:
    out = console()
    if guide:
        out.print(f"[bold]{guide.title}[/bold]\n\n{guide.text.replace('**', '').replace('`', '')}\n", markup=True)
    click.echo("\n".join(picture(outcome.steps, min(show, setting.ticks), out.width - 12)))
    click.echo(f"\n{LEGEND}\n")
    found = figures(outcome)
    table = Table("latency (ticks)", "mean", "p50")
    for name, fields in LATENCIES.items():
        table.add_row(name, *(known(getattr(found, field)) for field in fields))
    out.print(table)
    out.print(sentence(found), soft_wrap=True)


COLUMNS = {
    "completed": "completed",
    "requests_per_1k": "requests per 1,000 ticks",
    "tokens_per_1k": "tokens per 1,000 ticks",
    "ttft_mean": "TTFT mean",
    "e2e_mean": "E2E mean",
    "e2e_p50": "E2E p50",
    "itl_mean": "ITL mean",
    "queue": "queue at the end",
}


def _side_by_side(json_: bool) -> None:
    found = {name: figures(run(guide.setting)) for name, guide in guides().items()}
    if json_:
        write_json({name: asdict(row) for name, row in found.items()})
        return
    table = Table("step", *COLUMNS.values(), title="The guided steps side by side (latencies in ticks)")
    for name, row in found.items():
        table.add_row(name, *(known(getattr(row, column)) for column in COLUMNS))
    console().print(table)
