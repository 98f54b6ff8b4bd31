"""``python -m sizing report``: a saved plan as a report to send on."""

from __future__ import annotations

from pathlib import Path

import click

from sizing.commands.options import options, write_json
from sizing.report.json import with_cover
from sizing.report.saved import read
from sizing.report.words import line
from sizing.report.write import suffix_of, write

EXAMPLES = """\b
Examples:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision fp8 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms --json > plan.json
  python -m sizing report --plan plan.json --out sizing.pdf --title "Chat, autumn" --author "A. Planner"
  python -m sizing report --plan plan.json --out sizing.xlsx
  python -m sizing report --plan sizing.json --out sizing.html
"""
NO_PLAN = 3


@click.command("report", epilog=EXAMPLES)
@options(
    click.option("--plan", "plan", type=click.Path(path_type=Path), required=True, help="What `plan --json` printed."),
    click.option("--out", type=click.Path(path_type=Path), required=True, help="x.html, x.pdf, x.xlsx or x.json."),
    click.option("--title", help="Title of the report."),
    click.option("--author", help="Who made it."),
    click.option("--notes", help="Notes, one paragraph a line."),
    click.option("--link", help="Link to the scenario."),
    click.option("--json", "json_", is_flag=True, help="Print the file's name as JSON."),
)
def report_command(plan: Path, out: Path, json_: bool, **cover: str | None) -> int:
    """A saved plan as HTML, PDF, XLSX or JSON, the same numbers in each.

    --plan takes what `plan --json` printed, or the JSON of a report. Where no configuration meets the SLA the report
    says why, holds no count of GPUs, and the exit status is 3.
    """
    suffix = suffix_of(out)
    found = with_cover(read(plan), **cover)
    write(found, out)
    if json_:
        write_json({"file": str(out), "format": suffix, "answered": found.answer is not None})
    if found.answer is None:
        click.echo(f"error: {line(found.reason or found.sentence)}; {line(str(out))} says why", err=True)
        return NO_PLAN
    return 0
