"""The planner's command line: plan, predict, fit, simulate.

Exit 0 answered, 2 bad input, 3 no configuration meets the SLA.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from sizing import answer, candidates, planner
from sizing.candidates import Choice
from sizing.curves import Point, read_points
from sizing.errors import NoFeasiblePlan, PointsError, ScenarioError, SizingError
from sizing.fitting import fit
from sizing.json_shapes import finite_only, fit_json, prediction_json
from sizing.plan import Question
from sizing.printing import print_fit, print_plan, print_prediction, print_rejections
from sizing.queueing import predict as predict_analytically
from sizing.replica import POLICIES, Batching, Replica
from sizing.simulator import simulate as run_simulation
from sizing.steptime import COEFFICIENTS, StepLaw
from sizing.workload import METRICS, ROUTINGS, Arrivals, Lengths, Limit, Sla, Workload, parse_seconds

F = TypeVar("F", bound=Callable[..., Any])

PLAN_EXAMPLE = """\b
Example:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms
"""


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several click options as one decorator, in the order given."""

    def apply(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for machines.")
workload_options = options(
    click.option("--isl", type=float, required=True, help="Mean input tokens of a request."),
    click.option("--osl", type=float, required=True, help="Mean output tokens of a request."),
    click.option("--isl-cv", type=float, default=0.0, show_default=True, help="Spread of ISL: deviation over mean."),
    click.option("--osl-cv", type=float, default=0.0, show_default=True, help="Spread of OSL: deviation over mean."),
    click.option("--rate", type=float, required=True, help="Requests per second offered to the fleet."),
    click.option("--arrivals", default="poisson", show_default=True, help="poisson, constant or gamma:cv=NUMBER."),
    click.option("--routing", type=click.Choice(ROUTINGS), default="random", show_default=True),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """How many GPUs for N requests/s of this model under this latency SLA?"""


@cli.command("plan", epilog=PLAN_EXAMPLE)
@click.option("--model", required=True, help="Model name, for instance Qwen/Qwen3-32B.")
@click.option("--gpu", default="", help="GPUs to compare, comma-separated. Without it: those in --points.")
@click.option("--precision", default="any", show_default=True, help="Precisions, comma-separated, or any.")
@click.option("--tp", default="any", show_default=True, help="Tensor parallel sizes, comma-separated, or any.")
@workload_options
@click.option("--ttft", help="Limit on time to first token, for instance p95:1s.")
@click.option("--itl", help="Limit on inter-token latency, for instance p95:30ms.")
@click.option("--e2e", help="Limit on end-to-end latency, for instance p99:20s.")
@click.option("--headroom", type=float, default=0.2, show_default=True, help="Share of a replica's capacity kept free.")
@click.option("--spare", type=int, default=1, show_default=True, help="Spare replicas beside the working ones.")
@click.option("--points", type=click.Path(), help="Measured points (CSV); without: day-zero estimates.")
@click.option("--basis", type=click.Choice(["measured", "any"]), default="any", show_default=True)
@click.option("--price", type=float, help="Price of one GPU-hour, any currency.")
@as_json
def plan_command(json_: bool, **given: Any) -> None:
    """The smallest fleet whose latency percentiles meet the SLA at the planned load."""
    question = Question(
        model=given["model"],
        workload=workload_of(given),
        sla=Sla(**{metric: Limit.parse(metric, given[metric]) for metric in METRICS if given[metric]}),
        routing=given["routing"],
        headroom=given["headroom"],
        spare=given["spare"],
        price_per_gpu_hour=given["price"],
    )
    choice = Choice(words(given["gpu"]), words(given["precision"]), tensor_parallel(given["tp"]), given["basis"])
    points = read_points(given["points"]) if given["points"] else []
    found, left_out = candidates.find(question.model, question.workload.lengths, choice, points)
    plan = planner.plan(question, found, left_out)
    if json_:
        write_json(answer.as_json(plan))
    else:
        print_plan(plan)


deployment_options = options(
    click.option("--points", type=click.Path(), required=True, help="Measured points (CSV)."),
    click.option("--model", default="", help="Take this model's points, where the file holds several."),
    click.option("--gpu", default="", help="Take this GPU's points."),
    click.option("--precision", default="", help="Take this precision's points."),
    click.option("--tp", type=int, help="Take the points of this TP."),
)


@cli.command(
    "predict", epilog="\b\nExample:\n  python -m sizing predict --points points.csv --isl 1000 --osl 200 --rate 3.0\n"
)
@deployment_options
@workload_options
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True)
@click.option("--method", type=click.Choice(["analytic", "simulate"]), default="analytic", show_default=True)
@as_json
def predict_command(json_: bool, replicas: int, method: str, **given: Any) -> None:
    """Latency percentiles of one deployment at a load, from a law fitted to its closed-loop points."""
    fitted, workload = fit(points_of_one_deployment(given)), workload_of(given)
    routing = given["routing"]
    if method == "analytic":
        prediction = predict_analytically(fitted.replica, workload, replicas=replicas, routing=routing)
    else:
        prediction = run_simulation(fitted.replica, workload, replicas=replicas, routing=routing).prediction()
    in_flight = workload.rate_per_s / replicas * prediction.e2e.mean_s
    basis = "fitted" if fitted.covers(workload.lengths, in_flight) else "extrapolated"
    if json_:
        write_json({**prediction_json(prediction), "basis": basis, "warnings": list(fitted.warnings)})
    else:
        print_prediction(prediction, f"{fitted.deployment.label} ({basis})")


@cli.command("fit", epilog="\b\nExample:\n  python -m sizing fit --points points.csv --json\n")
@deployment_options
@as_json
def fit_command(json_: bool, **given: Any) -> None:
    """Coefficients of the iteration-time law with 90 % intervals, error per point, leave-one-out error."""
    fitted = fit(points_of_one_deployment(given))
    if json_:
        write_json(fit_json(fitted))
    else:
        print_fit(fitted)


@cli.command(
    "simulate",
    epilog="\b\nExample:\n  python -m sizing simulate --weights 4.8ms --overhead 1ms --token 20us --sequence 10us \\\n"
    "      --kv-token 49ns --isl 1000 --osl 200 --rate 3 --policy chunked --seed 7\n",
)
@options(
    *(
        click.option(f"--{name.removesuffix('_s').replace('_', '-')}", name, default="0s", help="Time with unit.")
        for name in COEFFICIENTS
    )
)
@workload_options
@click.option("--policy", type=click.Choice(POLICIES), default="chunked", show_default=True)
@click.option("--max-batch-size", type=int, default=256, show_default=True)
@click.option("--token-budget", type=int, default=8192, show_default=True, help="Tokens of one iteration.")
@click.option("--kv-tokens", type=int, default=1_000_000, show_default=True, help="Tokens that fit in the KV cache.")
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True)
@click.option("--requests", type=click.IntRange(100), default=100_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@as_json
def simulate_command(json_: bool, replicas: int, requests: int, seed: int, **given: Any) -> None:
    """The simulator itself: a law, lengths, a load, a policy and a seed in; percentiles out."""
    law = StepLaw(**{name: parse_seconds(f"--{name}", given[name]) for name in COEFFICIENTS})
    if law.overhead_s + law.weights_s + law.token_s <= 0 or min(given_times(law)) < 0:
        raise ScenarioError("the law's times must not be negative, and one of --overhead, --weights, --token above 0")
    batching = Batching(given["policy"], given["max_batch_size"], given["token_budget"], given["kv_tokens"])
    workload, routing = workload_of(given), given["routing"]
    run = run_simulation(
        Replica(law, batching), workload, replicas=replicas, routing=routing, requests=requests, seed=seed
    )
    if json_:
        extra = {"requests_per_s": run.requests_per_s, "mean_in_flight": run.mean_in_flight, "seed": seed}
        write_json({**prediction_json(run.prediction()), **extra})
    else:
        print_prediction(run.prediction(), f"{requests:,} requests, seed {seed}")


def given_times(law: StepLaw) -> list[float]:
    """The eight coefficients in their order."""
    return [float(getattr(law, name)) for name in COEFFICIENTS]


def workload_of(given: dict[str, Any]) -> Workload:
    """The workload that the common options describe."""
    lengths = Lengths(given["isl"], given["osl"], given["isl_cv"], given["osl_cv"])
    return Workload(lengths, given["rate"], Arrivals.parse(given["arrivals"]))


def words(text: str) -> tuple[str, ...]:
    """A comma-separated list; empty for "any"."""
    return () if text == "any" else tuple(word.strip() for word in text.split(",") if word.strip())


def tensor_parallel(text: str) -> tuple[int, ...]:
    """TPs of a comma-separated list; empty for "any"."""
    if not all(word.isdigit() and int(word) > 0 for word in words(text)):
        raise ScenarioError(f"--tp {text!r}: give whole numbers such as 1,2,4, or any")
    return tuple(int(word) for word in words(text))


def points_of_one_deployment(given: dict[str, Any]) -> list[Point]:
    """The points of the file that the options select; PointsError if they belong to several deployments or none."""
    wanted = {name: given[name] for name in ("model", "gpu", "precision", "tp") if given[name]}
    points = [
        point
        for point in read_points(given["points"])
        if all(getattr(point, name) == value for name, value in wanted.items())
    ]
    groups = candidates.by_deployment(points)
    if len(groups) != 1:
        labels = "; ".join(deployment.label for deployment in groups) or "no points match"
        raise PointsError(
            f"{given['points']}: choose one deployment with --model, --gpu, --precision, --tp (found: {labels})"
        )
    return points


def write_json(value: dict[str, Any]) -> None:
    """JSON on standard output; infinite and unknown numbers become null."""
    click.echo(json.dumps(finite_only(value), indent=2))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every expected error is one line on standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(arguments, prog_name="python -m sizing", standalone_mode=False)
    except NoFeasiblePlan as error:
        if "--json" in arguments:
            write_json(
                {"feasible": False, "why": str(error), "rejected": [*map(answer.rejection_json, error.rejected)]}
            )
        else:
            print_rejections(error.rejected)
        fail(error, 3)
    except (SizingError, click.ClickException) as error:
        fail(error, 2)
    except click.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def fail(error: Exception, code: int) -> NoReturn:
    """One line on standard error, then the exit code."""
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)
