"""``python -m sizing report``: a saved plan as a report to send on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from sizing.cli.options import options, write_json
from sizing.report.model import Report, ReportError, with_cover
from sizing.report.tables import line
from sizing.report.write import read, suffix_of, write

EXAMPLES = """\b
Examples:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision fp8 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms --json > plan.json
  python -m sizing report --plan plan.json --out sizing.pdf --title "Chat, autumn" --author "A. Planner"
  python -m sizing report --plan plan.json --out sizing.xlsx
  python -m sizing report --plan sizing.json --out sizing.html
  python -m sizing plan --model Qwen/Qwen3-8B --gpu h100_sxm --isl 1000 --osl 200 --ttft p95:1s --json \\
      --daily 2,1,1,1,1,2,4,8,15,20,22,21,18,20,22,21,18,14,10,8,6,5,4,3 > day.json
  python -m sizing report --plan day.json --daily --out day.pdf
"""
NO_PLAN = 3


@click.command("report", epilog=EXAMPLES)
@options(
    click.option("--plan", "plan", type=click.Path(path_type=Path), required=True, help="What `plan --json` printed."),
    click.option("--out", type=click.Path(path_type=Path), required=True, help="x.html, x.pdf, x.xlsx or x.json."),
    click.option("--title", help="Title of the report."),
    click.option("--author", help="Who made it."),
    click.option("--notes", help="Notes, one paragraph per line."),
    click.option("--link", help="Link to the scenario."),
    click.option("--daily/--no-daily", default=None, help="Require or omit GPUs over a day; default: as in the plan."),
    click.option("--json", "json_", is_flag=True, help="Print the file's name as JSON."),
)
def report_command(plan: Path, out: Path, daily: bool | None, json_: bool, **cover: str | None) -> int:
    """A saved plan as HTML, PDF, XLSX or JSON, the same numbers in each.

    --plan takes what `plan --json` printed, or the JSON of a report. Where no configuration meets the SLA the report
    says why, holds no count of GPUs, and the exit status is 3. GPUs over a day are in it where the plan was made with
    its own --daily.
    """
    suffix = suffix_of(out)
    found = with_daily(with_cover(read(plan), **cover), plan, daily)
    write(found, out)
    if json_:
        write_json({"file": str(out), "format": suffix, "answered": found.answer is not None})
    if found.answer is None:
        click.echo(f"error: {line(found.reason or found.sentence)}; {line(str(out))} says why", err=True)
        return NO_PLAN
    return 0


def with_daily(found: Report, plan: Path, daily: bool | None) -> Report:
    """The report with its day, or without; None leaves it as it is. Raises ReportError where there is none to show."""
    if daily and found.answer and found.day is None:
        raise ReportError(f"{line(str(plan))}: no day in it; make the plan with --daily and its 24 hourly rates")
    return dataclasses.replace(found, day=None) if daily is False else found
