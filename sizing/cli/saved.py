"""``python -m sizing report`` and ``deploy``: what becomes of a saved plan.

A report to send on; command lines, Helm values and Kubernetes objects that start its servers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from sizing.cli.options import options, write_json
from sizing.deploy.formats import FORMATS, ONE_FLEET
from sizing.deploy.settings import DeployError, Deployment, deployment_of
from sizing.errors import one_line
from sizing.files import json_object
from sizing.report.model import Report, ReportError, with_cover
from sizing.report.tables import line
from sizing.report.write import read, suffix_of, write

EXAMPLES = """\b
Examples:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision fp8 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms --json > plan.json
  python -m sizing report --plan plan.json --out sizing.pdf --title "Chat, autumn" --author "A. Planner"
  python -m sizing report --plan plan.json --out sizing.xlsx
  python -m sizing report --plan plan.json --out sizing.html
  python -m sizing plan --model Qwen/Qwen3-8B --gpu h100_sxm --isl 1000 --osl 200 --ttft p95:1s --json \\
      --daily 2,1,1,1,1,2,4,8,15,20,22,21,18,20,22,21,18,14,10,8,6,5,4,3 > day.json
  python -m sizing report --plan day.json --daily --out day.pdf
"""
NO_PLAN = 3


@click.command("report", epilog=EXAMPLES)
@options(
    click.option(
        "--plan", "plan", type=click.Path(path_type=Path), required=True, help="File with the output of `plan --json`."
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        required=True,
        help="File to write; its ending, .html, .pdf, .xlsx or .json, selects the format.",
    ),
    click.option("--title", help="Title of the report."),
    click.option("--author", help="Author of the report."),
    click.option("--notes", help="Notes; each line is a paragraph."),
    click.option("--link", help="Link to the scenario, printed in the report."),
    click.option(
        "--daily/--no-daily", default=None, help="Require or omit the GPUs over a day. [default: as in the plan]"
    ),
    click.option("--json", "json_", is_flag=True, help="Print the file's name as JSON."),
)
def report_command(plan: Path, out: Path, daily: bool | None, json_: bool, **cover: str | None) -> int:
    """A saved plan as HTML, PDF, XLSX or JSON, the same numbers in each.

    --plan takes the output of `plan --json`, or the JSON of a report. If no configuration meets the SLA, the report
    says why and has no count of GPUs, and the exit code is 3. It has the GPUs over a day if the plan was made with
    --daily.
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
        raise ReportError(f"{line(str(plan))}: it has no day; make the plan with --daily and 24 hourly rates")
    return dataclasses.replace(found, day=None) if daily is False else found


# --- deploy

MOST_BYTES = 64 * 2**20
DEPLOY_EXAMPLES = """\b
Examples:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision fp8 --engine vllm \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms --json > plan.json
  python -m sizing deploy --plan plan.json --format vllm
  python -m sizing deploy --plan plan.json --format helm --out values.yaml
  python -m sizing deploy --plan plan.json --format kserve --model-path /models/qwen3 --namespace chat --out chat/
  python -m sizing deploy --plan plan.json --format keda --namespace chat --out scaledobject.yaml
"""


@click.command("deploy", epilog=DEPLOY_EXAMPLES)
@options(
    click.option(
        "--plan", "plan", type=click.Path(path_type=Path), required=True, help="File with the output of `plan --json`."
    ),
    click.option(
        "--format", "kind", type=click.Choice(list(FORMATS)), required=True, help="Files to write, see above."
    ),
    click.option(
        "--out", type=click.Path(path_type=Path), help="Folder, or file if there is only one. [default: print]"
    ),
    click.option(
        "--model-path", help="Path or name by which the servers find the weights. [default: the model's name]"
    ),
    click.option("--name", help="Name of the Kubernetes objects. [default: from the model]"),
    click.option("--namespace", default="", help="Namespace of the Kubernetes objects. [default: that of the client]"),
    click.option("--json", "json_", is_flag=True, help="Print the files' names as JSON; needs --out."),
)
def deploy_command(
    plan: Path, kind: str, out: Path | None, model_path: str | None, name: str | None, namespace: str, json_: bool
) -> None:
    """A saved plan as files that start its servers, with the batching limits that were simulated.

    vllm, sglang, trtllm: the command line of one replica. helm: values for vLLM's production-stack. kserve: an
    InferenceService. dynamo: a DynamoGraphDeployment, with prefill and decode workers if the plan was made with
    --disaggregated. keda, hpa: a ScaledObject or HorizontalPodAutoscaler that follows the requests per replica.
    """
    if json_ and out is None:
        raise click.UsageError("--json needs --out: it names the files that are written")
    try:
        deployment = deployment_in(plan, model_path, name, namespace)
        files = FORMATS[kind](deployment)
    except DeployError as error:
        raise DeployError(f"{one_line(str(plan), 80)}: {error}") from None
    if deployment.prefill and kind != "dynamo":
        click.echo(f"note: {ONE_FLEET}", err=True)
    if out is None:
        if len(files) > 1:
            raise click.UsageError(f"{kind} makes {' and '.join(files)}: name a folder with --out")
        click.echo(next(iter(files.values())), nl=False)
        return
    written = write_files(files, out)
    if json_:
        write_json({"format": kind, "files": [str(path) for path in written]})


def deployment_in(path: Path, model_path: str | None, name: str | None, namespace: str) -> Deployment:
    """The plan in a file. Raises DeployError, one line."""
    try:
        with path.open("rb") as file:
            document = json_object(file.read(MOST_BYTES + 1), MOST_BYTES, "plan")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DeployError(f"cannot be read ({reason})") from None
    return deployment_of(document, model_path, name, namespace)


def write_files(files: dict[str, str], out: Path) -> list[Path]:
    """Write the files into the folder `out`, made if missing, or one file under the name `out`. Raises DeployError."""
    single = len(files) == 1 and out.suffix != "" and not out.is_dir()
    paths = [out] if single else [out / name for name in files]
    try:
        if not single:
            out.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, files.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeployError(f"{one_line(str(out), 80)}: cannot be written ({error.strerror or error})") from None
    return paths
