"""``python -m sizing validate``: every claim of accuracy checked again, in one table."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from sizing.analyses.parallel import Machines, bar
from sizing.cli.study import cluster_option, processes_option
from sizing.errors import ScenarioError
from validation.evidence.claim import Claim, Setup, check
from validation.evidence.coverage import COVERAGE
from validation.evidence.gpu_counts import GPU_COUNTS
from validation.evidence.largest_rate import LARGEST_RATE
from validation.evidence.measured_arrivals import ARRIVALS
from validation.evidence.measured_estimates import ESTIMATES
from validation.evidence.measured_guidellm import GUIDELLM
from validation.evidence.measured_levels import LEVELS
from validation.evidence.measured_one_point import ONE_POINT
from validation.evidence.measured_sessions import VLLM_SESSIONS
from validation.evidence.measured_silicon import SILICON
from validation.evidence.measured_stages import STAGES
from validation.evidence.measured_static import STATIC
from validation.evidence.measured_trace import TRACE
from validation.evidence.page import as_page, lines_of
from validation.evidence.table import as_json, cells, drawn, verdict
from validation.evidence.theory import THEORY

CLAIMS: tuple[Claim, ...] = (
    SILICON,
    ONE_POINT,
    ESTIMATES,
    STAGES,
    LEVELS,
    ARRIVALS,
    VLLM_SESSIONS,
    GUIDELLM,
    TRACE,
    STATIC,
    THEORY,
    LARGEST_RATE,
    GPU_COUNTS,
    COVERAGE,
)
EXAMPLE = """\b
Examples:
  python -m sizing validate --quick
  python -m sizing validate --only theory --json
  python -m sizing validate --only estimates-on-silicon --markdown docs/accuracy.md
  python -m sizing validate --cluster tcp://10.0.0.5:8786 --markdown docs/accuracy.md
"""


@click.command("validate", epilog=EXAMPLE)
@click.option("--quick", is_flag=True, help="A few cases of each claim: shows that all works, judges little.")
@click.option("--only", multiple=True, metavar="NAME", help="Check this claim; may be given again.")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Folder of measured data.")
@processes_option
@cluster_option
@click.option(
    "--markdown",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the table here too; of a page that is there, --only replaces its own claims.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON for machines.")
def validate_command(
    quick: bool, only: tuple[str, ...], data: Path | None, processes: int, cluster: str, page: Path | None, json_: bool
) -> None:
    """Check what this planner claims: against simulated engines, queueing theory and measured data.

    The same with any number of processes: random numbers follow from the cases alone. On another kind of processor a
    fit may settle elsewhere by rounding, and a few figures move.
    """
    if page and not page.parent.is_dir():
        raise ScenarioError(f"--markdown {page}: there is no folder {page.parent}; make it first")
    before = page.read_text(encoding="utf-8") if page and only and page.is_file() else ""
    if quick and lines_of(before):
        raise ScenarioError(f"--markdown {page}: rows by --quick would stand among its own; give another file")
    started_s = time.perf_counter()
    rows = check(chosen(only), Setup(quick, data), Machines(processes, cluster), bar("cases"))
    seconds = time.perf_counter() - started_s
    if json_:
        click.echo(json.dumps({"quick": quick, "seconds": round(seconds, 1), "rows": as_json(rows)}, indent=2))
    else:
        console = Console(width=None if Console().is_terminal else 120)
        console.print(drawn(rows))
        console.print(f"{verdict(map(cells, rows))} {sum(row.n for row in rows):,} answers in {seconds:.0f} s.")
    if page:
        page.write_text(as_page(rows, quick, before), encoding="utf-8")


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, all where none is given."""
    known = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in known:
            raise ScenarioError(f"--only {name!r}: the claims are {', '.join(known)}")
    return [claim for name, claim in known.items() if not names or name in names]
