"""What aisimulate recommends: the fewest GPUs for ten questions, colocated and with prefill apart.

python -m validation.evidence.recommend --out answers.json
python -m validation.evidence.recommend --out answers.json --only gpt-oss --trials 80

aisimulate is the successor of AIConfigurator. What it has for the fewest GPUs is asked in an environment of its own:

- `aiconfigurator cli recommend`: every layout and batch size, at a steady batch without a queue, as many of the best
  as the rate divides into. A worker, and a cell of prefill and decode workers, has no more GPUs than a node, unless
  nothing was found;
- `Task` and `pick_load_match`, which that command is made of, with cells of up to 128 GPUs. For each decode layout only
  the cell with the most tokens/s per GPU is kept, whatever the rate, so that a small load may get more GPUs than above:
  the smaller of the two is the tool's answer;
- `aisimulate recommend` with the target `min_gpus`: a Bayesian search that simulates Poisson arrivals at every trial
  and takes fleets whose mean TTFT and mean ITL are within the limits.

All are about means. The last also demands a rate of requests that are within both limits one by one: `--good` of the
offered rate, so low that the means decide. Its trials begin and end with an empty fleet, so that its means are a little
short.

An answer is written as soon as it is there, and what FILE has is not asked again. `read_answers` gives it to who
compares.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lab.environment import Environment, Recipe, Step, ensure
from sizing.estimate.kernels import REQUIREMENT

ENUMERATED, WIDER, SEARCHED = "aiconfigurator cli recommend", "Task and pick_load_match", "aisimulate recommend"
SEARCHES = (ENUMERATED, WIDER, SEARCHED)
MODES = {"agg": "aggregated", "disagg": "disaggregated"}
"""Their names in results and in the first tool's configuration."""
SEED = 42
SPAN = 5
"""Arrivals last so many times the latency that the limits allow one request."""
CELL_GPUS = 128
"""Of a cell of prefill and decode workers; the default of AIConfigurator's replicas."""
KEPT = 5
"""Fleets of an answer."""
LAYOUT = {
    "tp": "tensor",
    "pp": "pipeline",
    "attention_dp": "attention_data",
    "moe_tp": "moe_tensor",
    "moe_ep": "moe_expert",
}
"""The sizes of a worker's layout, and what the first tool's configuration calls them."""
ENUMERATE = """
import json, sys
from aisimulate.legacy_cli.api import cli_recommend
tables = cli_recommend(**json.load(sys.stdin)).best_configs
print("\\n" + json.dumps({name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}))
"""
WIDE = """
import json, sys
from aisimulate.sdk.picking import pick_load_match
from aisimulate.sdk.task_v2 import Task
asks = json.load(sys.stdin)
task = asks["task"]
found = Task(**task).run()
within = found[(found["ttft"] <= task["ttft"]) & (found["tpot"] <= task["tpot"])] if len(found) else found
table = pick_load_match(within, task["serving_mode"], **asks["pick"])["best_config_df"]
print("\\n" + table.to_json(orient="records"))
"""


def _steps(requirements: Path) -> Sequence[Step]:
    """One set of pins that is complete: some are development builds, which pip would not choose."""
    return [("aisimulate and its optimiser (about 420 MB)", ["--no-deps", "--requirement", str(requirements)])]


RECIPE = Recipe(
    "aisimulate", Path(__file__).with_name("aisimulate.txt"), ".cache/aisimulate", "SIZING_AISIMULATE_ENV", _steps
)


@dataclass(frozen=True, slots=True)
class Question:
    """Requests of fixed lengths at a rate, and limits of the means. `gpus`: the most that a search may use."""

    model: str
    gpu: str
    isl: int
    osl: int
    rate_per_s: float
    ttft_s: float
    itl_s: float
    gpus: int = 32
    engine: str = "trtllm"

    @property
    def requests(self) -> int:
        """Of one trial."""
        return round(SPAN * (self.ttft_s + self.osl * self.itl_s) * self.rate_per_s)


QUESTIONS = (
    Question("Qwen/Qwen3-8B", "h200_sxm", 2000, 256, 40, 1.0, 0.030),
    Question("Qwen/Qwen3-32B", "h200_sxm", 2000, 256, 20, 1.0, 0.030),
    Question("Qwen/Qwen3-32B-FP8", "h100_sxm", 4000, 500, 20, 0.5, 0.020),
    Question("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 3000, 300, 20, 2.0, 0.050),
    Question("Qwen/Qwen3-30B-A3B", "h100_sxm", 1000, 1000, 50, 0.5, 0.020),
    Question("Qwen/Qwen3-235B-A22B-FP8", "h200_sxm", 4000, 1000, 20, 2.0, 0.040, 64),
    Question("openai/gpt-oss-120b", "b200_sxm", 2000, 500, 50, 1.0, 0.015),
    Question("deepseek-ai/DeepSeek-R1", "h200_sxm", 4000, 1000, 20, 2.0, 0.050, 128),
    Question("deepseek-ai/DeepSeek-V3", "b200_sxm", 8000, 1000, 20, 5.0, 0.030, 128),
    Question("moonshotai/Kimi-K2-Instruct", "b200_sxm", 4000, 500, 20, 3.0, 0.050, 128),
)


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers of one role ("agg", "prefill", "decode") and layout. `batch`: sequences of a worker, or with attention
    data parallelism of one of its ranks, at a time: the most of a scheduler where the search simulates, else the steady
    batch."""

    role: str
    workers: int
    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    batch: int
    token_budget: int | None = None

    @property
    def gpus(self) -> int:
        return self.workers * self.tp * self.pp * self.attention_dp

    def __str__(self) -> str:
        names = (("tp", self.tp), ("pp", self.pp), ("dp", self.attention_dp), ("etp", self.moe_tp), ("ep", self.moe_ep))
        layout = " ".join(f"{name}{size}" for name, size in names if size > 1) or "tp1"
        return f"{self.workers} × {layout} b{self.batch}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A recommended fleet and the means predicted of it. `requests_per_s`: what it can serve where it was enumerated,
    else what it served of the offered rate; `good_per_s`: those within both limits, where that was simulated."""

    gpus: int
    pools: tuple[Pool, ...]
    ttft_s: float
    itl_s: float
    requests_per_s: float
    good_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Fleets, the recommended one first, or the problem in one line. `seconds`: wall time of the search, start of the
    program included; of the enumeration for both modes together. `tried` and `met`: trials, and those within limits."""

    question: Question
    search: str
    mode: str
    version: str
    seconds: float
    fleets: tuple[Fleet, ...]
    tried: int | None = None
    met: int | None = None
    problem: str = ""


def read_answers(path: Path) -> list[Answer]:
    """The answers in a file that this program wrote; none where there is no file."""
    if not path.exists():
        return []
    return [_answer(entry) for entry in json.loads(path.read_text(encoding="utf-8"))["answers"]]


def _answer(entry: Mapping[str, Any]) -> Answer:
    fleets = tuple(
        Fleet(**{**fleet, "pools": tuple(Pool(**pool) for pool in fleet["pools"])}) for fleet in entry["fleets"]
    )
    return Answer(**{**entry, "question": Question(**entry["question"]), "fleets": fleets})


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """All at once, so that an interruption leaves the old file."""
    new = path.with_suffix(".new")
    text = json.dumps({"library": REQUIREMENT, "answers": [asdict(answer) for answer in answers]}, indent=1)
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(path)


def asked(
    question: Question, search: str, known: Sequence[Answer], environment: Environment, trials: int, good: float
) -> Iterator[Answer]:
    """The answers of one search that are not known, each as it comes."""
    have = {answer.mode for answer in known if (answer.question, answer.search) == (question, search)}
    lacking = [mode for mode in MODES if mode not in have]
    if not lacking:
        return
    with TemporaryDirectory() as folder:
        model = _model_path(question.model, environment, Path(folder))
        if search == ENUMERATED:
            yield from enumerated(question, model, environment)
            return
        for mode in lacking:
            if search == WIDER:
                yield wider(question, model, mode, environment)
            else:
                yield searched(question, model, mode, environment, trials, good, Path(folder) / mode)


def _model_path(model: str, environment: Environment, folder: Path) -> str:
    """The model's name, or a folder with its bundled config.json where the library does not list the name: it would
    look for it on the network."""
    config = environment.site_packages / "aisimulate_core/model_configs" / f"{model.replace('/', '--')}_config.json"
    code = (
        "import sys; from aisimulate_core.sdk.common import DefaultHFModels; sys.exit(sys.argv[1] in DefaultHFModels)"
    )
    if subprocess.run([environment.python, "-c", code, model], check=False).returncode or not config.exists():
        return model
    here = folder / model
    here.mkdir(parents=True)
    (here / "config.json").write_text(config.read_text())
    return str(here)


def _run(command: Sequence[str | Path], told: str = "") -> tuple[subprocess.CompletedProcess[str], float]:
    """The finished program and its seconds. One thread each: linear algebra here is small."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    started_s = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in command],
        input=told,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **threads},
    )
    return done, time.perf_counter() - started_s


def _problem(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that the program said."""
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {done.returncode}"


def searched(
    question: Question, model: str, mode: str, environment: Environment, trials: int, good: float, folder: Path
) -> Answer:
    """The answer of `aisimulate recommend`."""
    folder.mkdir()
    config = folder / "question.yaml"
    config.write_text(json.dumps(configuration(question, model, mode, trials, good)))
    out = folder / "answer"
    program = environment.venv / "bin" / "aisimulate"
    done, seconds = _run([program, "recommend", "--config", config, "--format", "json", "--output-dir", out])
    result = out / "recommendation.json"
    if not result.exists():
        return Answer(question, SEARCHED, mode, "", seconds, (), problem=_problem(done))
    found = json.loads(result.read_text())
    counts, trials_of = found["counts"], {trial["candidate_id"]: trial for trial in found["candidates"]}
    best = [trials_of[name] for name in found["views"]["top_n"][:KEPT]]
    versions = {trial["provenance"]["backend_version"] for trial in found["candidates"]}
    return Answer(
        question,
        SEARCHED,
        mode,
        ", ".join(sorted(str(version) for version in versions)),
        seconds,
        tuple(_searched_fleet(trial) for trial in best),
        counts["evaluated"],
        counts["feasible"],
        "" if best else _reasons(found["candidates"]),
    )


def _reasons(candidates: Sequence[Mapping[str, Any]]) -> str:
    reasons = [f"{candidate['used_gpus']} GPUs: {candidate['reason']}" for candidate in candidates]
    return max(reasons, key=reasons.count) if reasons else "no trial"


def configuration(question: Question, model: str, mode: str, trials: int, good: float) -> dict[str, Any]:
    """The question in the words of `aisimulate recommend`; what is not named is as the tool chooses."""
    roles = ("aggregated",) if mode == "agg" else ("prefill", "decode")
    return {
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": question.isl, "output_tokens": question.osl},
            "load": {"type": "poisson", "requests_per_second": float(question.rate_per_s), "seed": SEED},
            "stop": {"requests": question.requests},
        },
        "engine": {
            "mode": MODES[mode],
            "model": model,
            "hardware": question.gpu,
            "backend": question.engine,
            "context_length": question.isl + question.osl,
            "workers": {role: {} for role in roles},
        },
        "evaluation": {"sla": {"ttft_ms": question.ttft_s * 1e3, "itl_ms": question.itl_s * 1e3}},
        "optimization": {
            "target": "min_gpus",
            "constraints": {"max_candidate_gpus": question.gpus, "min_goodput_rps": good * question.rate_per_s},
        },
        "optimizer": {"max_trials": trials, "parallelism": 1, "seed": SEED},
    }


def _searched_fleet(trial: Mapping[str, Any]) -> Fleet:
    workers = trial["prediction_config"]["engine"]["workers"]
    metrics = trial["metrics"]
    return Fleet(
        trial["used_gpus"],
        tuple(
            Pool(
                "agg" if role == "aggregated" else role,
                worker["parallelism"]["replicas"],
                **{size: worker["parallelism"][name] for size, name in LAYOUT.items()},
                batch=worker["scheduler"]["max_sequences"],
                token_budget=worker["scheduler"]["max_batched_tokens"],
            )
            for role, worker in workers.items()
        ),
        metrics["mean_ttft_ms"] / 1e3,
        metrics["mean_tpot_ms"] / 1e3,
        metrics["request_throughput_rps"],
        metrics["goodput_request_throughput_rps"],
    )


def enumerated(question: Question, model: str, environment: Environment) -> Iterator[Answer]:
    """The answers of `aiconfigurator cli recommend` in both modes, from one run of its function."""
    asks = {
        "model_path": model,
        "system": question.gpu,
        "backend": question.engine,
        "target_request_rate": question.rate_per_s,
        "isl": question.isl,
        "osl": question.osl,
        "ttft": question.ttft_s * 1e3,
        "tpot": question.itl_s * 1e3,
        "strict_sla": True,
        "top_n": KEPT,
    }
    done, seconds = _run([environment.python, "-c", ENUMERATE], json.dumps(asks))
    tables = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    for mode in MODES:
        rows: list[dict[str, Any]] = next((rows for name, rows in tables.items() if name.startswith(mode)), [])
        yield _enumerated(question, ENUMERATED, mode, seconds, rows, "" if tables else _problem(done))


def wider(question: Question, model: str, mode: str, environment: Environment) -> Answer:
    """The answer of the same enumeration with cells, and workers, of more than a node."""
    server = {"model_path": model, "system_name": question.gpu, "backend_name": question.engine}
    roles = ("",) if mode == "agg" else ("prefill_", "decode_")
    task = {
        "serving_mode": mode,
        "isl": question.isl,
        "osl": question.osl,
        "ttft": question.ttft_s * 1e3,
        "tpot": question.itl_s * 1e3,
        "total_gpus": CELL_GPUS,
        "database_mode": "HYBRID",
        **{f"{role}{name}": value for role in roles for name, value in server.items()},
    }
    pick = {"target_tpot": task["tpot"], "target_request_rate": question.rate_per_s, "top_n": KEPT}
    done, seconds = _run([environment.python, "-c", WIDE], json.dumps({"task": task, "pick": pick}))
    rows = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else []
    return _enumerated(question, WIDER, mode, seconds, rows, _problem(done) if done.returncode else "")


def _enumerated(
    question: Question, search: str, mode: str, seconds: float, rows: Sequence[Mapping[str, Any]], problem: str
) -> Answer:
    fleets = tuple(_enumerated_fleet(row, mode) for row in rows)
    version = next((str(row.get("version", row.get("(d)version"))) for row in rows), "")
    problem = "" if fleets else problem or "nothing within the limits"
    return Answer(question, search, mode, version, seconds, fleets, problem=problem)


def _enumerated_fleet(row: Mapping[str, Any], mode: str) -> Fleet:
    replicas = int(row["replicas_needed"])
    roles = (("agg", ""),) if mode == "agg" else (("prefill", "(p)"), ("decode", "(d)"))
    return Fleet(
        int(row["total_gpus_needed"]),
        tuple(
            Pool(
                role,
                replicas * int(row.get(f"{sign}workers", 1)),
                *(int(row[f"{sign}{name}"]) for name in ("tp", "pp", "dp", "moe_tp", "moe_ep", "bs")),
            )
            for role, sign in roles
        ),
        float(row["ttft"]) / 1e3,
        float(row["tpot"]) / 1e3,
        replicas * float(row["seq/s"]),
    )


def drawn(answers: Sequence[Answer]) -> Table:
    """A line for each answer: its first fleet."""
    names = ("Question", "Search", "Mode", "GPUs", "Workers", "TTFT s", "ITL ms", "Requests/s", "Good/s", "Trials", "s")
    table = Table(*names, title=f"Fewest GPUs by {REQUIREMENT}")
    for answer in answers:
        question = answer.question
        name = question.model.rpartition("/")[2]
        load = f"{question.isl}/{question.osl}, {question.rate_per_s:g}/s"
        limits = f"{question.ttft_s:g} s, {question.itl_s * 1e3:g} ms"
        trials = f"{answer.met}/{answer.tried}" if answer.tried is not None else ""
        head = (f"{name} on {question.gpu}: {load}, {limits}", answer.search, answer.mode)
        if not answer.fleets:
            table.add_row(*head, "–", answer.problem[:120], "", "", "", "", trials, f"{answer.seconds:.0f}")
            continue
        fleet = answer.fleets[0]
        good = "" if fleet.good_per_s is None else f"{fleet.good_per_s:.1f}"
        table.add_row(
            *head,
            str(fleet.gpus),
            ", ".join(f"{pool.role[0]} {pool}" for pool in fleet.pools),
            f"{fleet.ttft_s:.2f}",
            f"{fleet.itl_s * 1e3:.1f}",
            f"{fleet.requests_per_s:.1f}",
            good,
            trials,
            f"{answer.seconds:.0f}",
        )
    return table


@click.command()
@click.option("--out", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="File of answers.")
@click.option("--only", multiple=True, metavar="TEXT", help="Questions with this in the model's name; again for more.")
@click.option("--trials", default=20, show_default=True, type=click.IntRange(1), help="Of each Bayesian search.")
@click.option(
    "--good", default=0.1, show_default=True, type=click.FloatRange(0, 1, min_open=True), help="Share within limits."
)
def main(path: Path, only: tuple[str, ...], trials: int, good: float) -> None:
    """Ask what FILE lacks, and print its answers."""
    console = Console(stderr=True)
    answers = read_answers(path)
    environment = ensure(RECIPE)
    for search, question in product(SEARCHES, QUESTIONS):
        if not only or any(text in question.model for text in only):
            for answer in asked(question, search, tuple(answers), environment, trials, good):
                answers.append(answer)
                write_answers(path, answers)
                console.print(f"{question.model}, {search}, {answer.mode}: {answer.seconds:.0f} s")
    Console(width=None if Console().is_terminal else 200).print(drawn(answers))


if __name__ == "__main__":
    main()
