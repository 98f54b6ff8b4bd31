"""What a command line written for one of the clients asks for; flags are checked, and none is ignored silently."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import ValidationError

from calibration.errors import PlanError
from calibration.plan import ServerPlan
from triton_tools.clients.dataset import TOKENS_PER_WORD
from triton_tools.clients.pacing import Pacing
from triton_tools.clients.replay import HTTP_CONNECTIONS
from triton_tools.clients.synthetic import NormalLengths

Protocol = Literal["grpc", "http"]
PORTS: Mapping[Protocol, int] = {"grpc": 8001, "http": 8000}
MODEL_OF = {
    "benchmark_core_model": "tensorrt_llm",
    "identity_test": "tensorrt_llm",
    "identity_test_python_vs_trtllm": "ensemble",
    "end_to_end_test": "ensemble",
}
WORKLOADS = ("dataset", "token_norm_dist", "token_from_histogram")

SETTLED = {
    "verbose": "-v: no effect, everything that is done is printed anyway",
    "exclude_input_in_output": "--exclude_input_in_output: no effect, only new tokens are counted here",
    "decoupled": "--decoupled: no effect, the model's own config says whether it streams",
    "tokenizer_type": "--tokenizer_type: no effect, the tokenizer.json says of which type it is",
}
REFUSED = {
    "check_perf_json": "compare the rows of --op_stats_csv, or the output of --json, instead",
    "check_perf_key": "compare the rows of --op_stats_csv, or the output of --json, instead",
    "check_perf_atol": "compare the rows of --op_stats_csv, or the output of --json, instead",
    "check_perf_rtol": "compare the rows of --op_stats_csv, or the output of --json, instead",
    "test_llmapi": "name the model with --model_name; its inputs are read from its config",
    "histogram_key": "use token_norm_dist or dataset",
}
IDLE_SEED = "--seed: no effect, neither the prompts nor the times when they are sent are drawn"
ONLY_OF = {
    "dataset": ("dataset", "tokenizer_type", "op_tokens_per_word"),
    "token_norm_dist": ("input_mean", "input_stdev", "output_mean", "output_stdev", "vocab_size"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One run that a client was asked for. `data` is a data set, or the lengths of random prompts.

    `requests` is None for the whole data set. `connections` limit how many requests of a burst are in flight over HTTP.
    `notes`: flags that have no effect here.
    """

    script: str
    server: ServerPlan
    pacing: Pacing
    data: Path | NormalLengths
    requests: int | None
    max_input_len: int | None
    tokenizer_dir: Path | None
    op_tokens_per_word: float
    vocab_size: int | None
    op_stats_csv: Path | None
    perfetto: bool
    seed: int
    processes: int
    connections: int
    notes: tuple[str, ...]


def asked(words: Sequence[str], values: Mapping[str, Any], given: Collection[str]) -> Asked:
    """The run that `words` (client and workload; either may be left out) and the flags' `values` ask for.

    `given` names the flags on the command line. Raises PlanError, one line, for flags that contradict each
    other, do not belong to the workload, or cannot be served.
    """
    script, workload = _words(words, values)
    _check_flags(workload, given)
    server = server_plan(values["url"], values["protocol"], _model(script, values), values["stream_timeout"])
    pacing = Pacing.of(values["request_rate"], values["time_delay_dist"], tuple(values["time_bet_reqs"]))
    return Asked(
        script=script,
        server=server,
        pacing=pacing,
        data=_lengths(values) if workload == "token_norm_dist" else _dataset(values),
        requests=values["num_requests"],
        max_input_len=values["max_input_len"],
        tokenizer_dir=values["tokenizer_dir"],
        op_tokens_per_word=TOKENS_PER_WORD if values["op_tokens_per_word"] is None else values["op_tokens_per_word"],
        vocab_size=values["vocab_size"],
        op_stats_csv=values["op_stats_csv"],
        perfetto=values["dump_perfetto_trace"],
        seed=values["seed"],
        processes=values["processes"],
        connections=HTTP_CONNECTIONS if values["concurrency"] is None else values["concurrency"],
        notes=tuple(_notes(script, given) + _idle(workload, server, pacing, given)),
    )


def server_plan(url: str | None, protocol: Protocol, model: str, timeout_s: float | None = None) -> ServerPlan:
    """The server at `url`, host:port (None: the protocol's usual port here). Raises PlanError for a wrong address."""
    place = url or f"localhost:{PORTS[protocol]}"
    try:
        server = ServerPlan(url=place, protocol=protocol, model=model)
        return server if timeout_s is None else server.model_copy(update={"timeout_s": timeout_s})
    except ValidationError as error:
        key = error.errors()[0]["loc"][0]
        hint = "write it as host:port, for instance localhost:8001" if key == "url" else error.errors()[0]["msg"]
        raise PlanError(f"{'-u ' + place if key == 'url' else key}: {hint}") from None


def _words(words: Sequence[str], values: Mapping[str, Any]) -> tuple[str, str]:
    """The client and the workload; a path before the client's name and ``.py`` after it are ignored."""
    scripts: list[str] = []
    workloads: list[str] = []
    for word in words:
        name = PurePosixPath(word).name.removesuffix(".py").replace("-", "_")
        if name not in (*MODEL_OF, *WORKLOADS):
            known = ", ".join((*MODEL_OF, "dataset", "token_norm_dist"))
            raise PlanError(f"{word!r} is neither a client nor a workload; known are {known}")
        (scripts if name in MODEL_OF else workloads).append(name)
    if len(scripts) > 1 or len(workloads) > 1:
        raise PlanError(f"{' '.join(words)}: name one client and one workload at most")
    if workloads == ["token_from_histogram"]:
        raise PlanError(
            "token_from_histogram has a single example and is not supported: use token_norm_dist or dataset"
        )
    script = scripts[0] if scripts else "benchmark_core_model" if workloads else "identity_test"
    if workloads and script != "benchmark_core_model":
        raise PlanError(f"{script} takes no {workloads[0]}: its prompts come from --dataset")
    if workloads:
        return script, workloads[0]
    return script, "token_norm_dist" if values["input_mean"] is not None and not values["dataset"] else "dataset"


def _check_flags(workload: str, given: Collection[str]) -> None:
    for name in given:
        if name in REFUSED:
            raise PlanError(f"--{name} is not supported here: {REFUSED[name]}")
        for owner, names in ONLY_OF.items():
            if owner != workload and name in names:
                raise PlanError(f"--{name} belongs to {owner}, this is {workload}")


def _model(script: str, values: Mapping[str, Any]) -> str:
    models = values["model_name"]
    if len(models) > 1:
        raise PlanError(
            f"--model_name {' '.join(models)}: one model per run; for two, see `python -m calibration compare`"
        )
    return str(models[0]) if models else MODEL_OF[script]


def _dataset(values: Mapping[str, Any]) -> Path:
    if values["dataset"] is None:
        raise PlanError("no prompts: give --dataset FILE, or token_norm_dist with its --input_mean and --output_mean")
    return Path(values["dataset"])


def _lengths(values: Mapping[str, Any]) -> NormalLengths:
    names = ("input_mean", "input_stdev", "output_mean", "output_stdev")
    missing = [f"--{name}" for name in names if values[name] is None]
    if missing:
        raise PlanError(f"token_norm_dist needs {', '.join(missing)} too")
    return NormalLengths(*(float(values[name]) for name in names))


def _notes(script: str, given: Collection[str]) -> list[str]:
    notes = [text for name, text in SETTLED.items() if name in given]
    if script == "end_to_end_test":
        notes.append("end_to_end_test: only its benchmark is run, not its comparison of the ensemble with its parts")
    if "stream_timeout" in given:
        notes.append("--stream_timeout: applies to each request, not to the whole stream")
    return notes


def _idle(workload: str, server: ServerPlan, pacing: Pacing, given: Collection[str]) -> list[str]:
    """Notes on the flags in `given` that have no effect in such a run."""
    idle = []
    if "concurrency" in given and server.protocol == "grpc":
        idle.append("-c: not a limit over gRPC, where requests are sent when due, however many are unanswered")
    elif "concurrency" in given and not pacing.at_once:
        idle.append(
            "-c: limits only requests that are sent all at once; at a rate or with gaps, connections open as needed"
        )
    if "seed" in given and workload == "dataset" and not pacing.random:
        idle.append(IDLE_SEED)
    if {"vocab_size", "tokenizer_dir"} <= set(given):
        idle.append("--tokenizer_dir: not read, because --vocab_size says how many token ids there are")
    return idle
