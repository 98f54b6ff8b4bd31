"""``python -m calibration serve``: a real Triton server, vLLM or SGLang, with a small real model, on this machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from calibration.errors import RepositoryError, ServerError
from lab.life import Server
from lab.pace import FORM, SMALLEST, Pace
from lab.reference.server import ReferenceServer
from lab.reference.settings import BATCHINGS, DEVICES, POLICIES, Settings, option
from lab.sglang.server import SglangServer
from lab.tritonserver import TritonServer
from lab.vllm.behind_triton import MODEL_BEHIND_TRITON, VllmBehindTriton
from lab.vllm.server import MODEL, VllmServer
from lab.vllm.settings import BehindTriton
from lab.vllm.settings import Settings as VllmSettings
from sizing.numbers import count_of
from triton_tools.repository.check import check

Command = TypeVar("Command", bound=Callable[..., Any])
ServerOf = TypeVar("ServerOf", bound=Server)

WATCH_S = 0.5
DEFAULTS = Settings()
NOT_TRITONS = ("experts", "pace", "chunked_prefill", "look_ahead", "receive_interval_steps")
"""Settings that the reference server lacks."""
SAID_BY_REPOSITORY = ("batching", "policy", "kv_reuse")

EPILOG = """\b
Examples:
  python -m calibration serve --batching static --grpc-port 9001
  READY grpc=127.0.0.1:9001 http=127.0.0.1:8000 metrics=127.0.0.1:8002/metrics
  python -m calibration serve --repository models
  python -m calibration serve --engine vllm --experts 8
  READY url=http://127.0.0.1:8000 model=small metrics=http://127.0.0.1:8000/metrics
  python -m calibration serve --engine vllm --pace Qwen/Qwen3-32B,h100_sxm,2,bf16
  READY url=http://127.0.0.1:8000 model=small metrics=http://127.0.0.1:8000/metrics
  python -m calibration serve --engine sglang --pace Qwen/Qwen3-32B,h100_sxm,2,bf16
  READY url=http://127.0.0.1:8000 model=small metrics=http://127.0.0.1:8000/metrics
  python -m calibration serve --engine vllm --behind triton
  READY grpc=127.0.0.1:8001 http=127.0.0.1:8000 metrics=127.0.0.1:8002/metrics model=vllm_model
"""


def _number(name: str, meaning: str, kind: type = int) -> Callable[[Command], Command]:
    """An option of the same name and default as the field of Settings."""
    return click.option(option(name), type=kind, default=getattr(DEFAULTS, name), show_default=True, help=meaning)


@click.command(epilog=EPILOG)
@click.option(
    "--engine",
    type=click.Choice(["triton", "vllm", "sglang"]),
    default="triton",
    show_default=True,
    help="Triton with a small engine behind a TensorRT-LLM style ensemble, or the OpenAI server of vLLM or SGLang.",
)
@click.option(
    "--behind",
    type=click.Choice(["triton"]),
    help="vLLM only: run it behind Triton, in its vLLM backend, instead of as vLLM's own server.",
)
@click.option(
    "--batching",
    type=click.Choice(BATCHINGS),
    default=DEFAULTS.batching,
    show_default=True,
    help="Batching of the engine.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default=DEFAULTS.policy,
    show_default=True,
    help="Start a request when the KV cache has room for its longest sequence, or for its prompt (it may pause later).",
)
@click.option(
    "--kv-reuse/--no-kv-reuse",
    default=DEFAULTS.kv_reuse,
    show_default=True,
    help="Reuse the KV cache of prompts that begin alike.",
)
@click.option(
    "--chunked-prefill/--no-chunked-prefill",
    default=True,
    show_default=True,
    help="Not of Triton: prefill long prompts in chunks; else one waits until --token-budget has room for it.",
)
@click.option(
    "--look-ahead/--no-look-ahead",
    default=False,
    show_default=True,
    help="Not of Triton, with --pace: choose each step while the one before it runs (asynchronous or overlapped).",
)
@click.option(
    "--receive-interval-steps",
    type=int,
    default=1,
    show_default=True,
    help="SGLang only: decode steps from one look at new requests to the next.",
)
@_number("grpc_port", "Port of the gRPC service; 0: any free one.")
@_number("http_port", "Port of the HTTP service; 0: any free one.")
@_number("metrics_port", "Port of the Prometheus metrics; 0: any free one.")
@_number("max_batch_size", "Most requests in one batch.")
@_number("kv_tokens", "Capacity of the KV cache in tokens.")
@_number("max_sequence_tokens", "Longest prompt plus output, in tokens.")
@_number("token_budget", "Most tokens in one forward pass.")
@_number("batch_delay_s", "Static batching: seconds that a free engine waits for more requests.", float)
@_number("hidden", "Hidden size of the model.")
@_number("layers", "Layers of the model.")
@_number("heads", "Attention heads of the model.")
@_number("kv_heads", "Key and value heads of the model.")
@_number("vocab_size", "Vocabulary size of the tokenizer.")
@click.option(
    "--experts", type=int, default=0, show_default=True, help="vLLM only: experts of each layer; 0: a dense model."
)
@click.option(
    "--pace",
    metavar=FORM,
    help="Not of Triton: run at the speed of a model on GPUs, by kernel timings; see the example.",
)
@_number("threads", "CPU threads of the engine.")
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default=DEFAULTS.device,
    show_default=True,
    help="Where the engine computes.",
)
@_number("seed", "Seed of the model's random weights.")
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    help="Serve a copy of this TensorRT-LLM model repository, made by `repository build`, with the small model in it.",
)
@click.pass_context
def serve(context: click.Context, /, engine: str, behind: str | None, repository: Path | None, **options: Any) -> None:
    """Start a real server with a small real model of random weights on this machine's CPU, until Ctrl-C or SIGTERM.

    It prints one line that begins with READY when all models are loaded. On first use it creates an environment of its
    own: Triton's in .cache/triton or SIZING_TRITON_ENV (a download of about 250 MB with a CPU build of PyTorch, several
    GB where pip finds only the CUDA build), vLLM's in .cache/vllm or SIZING_VLLM_ENV (about 500 MB, CPU build only),
    SGLang's in .cache/sglang or SIZING_SGLANG_ENV. vLLM behind Triton needs those of both.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    if engine == "sglang":
        _refuse(context, ("behind", "experts"), "vllm")
    else:
        _refuse(context, ("receive_interval_steps",), "sglang")
    if engine != "triton":
        kind = VllmSettings if behind is None else BehindTriton
        names = [field.name for field in fields(kind)]
        _refuse(context, set(context.params) - {"engine", "behind", *names}, "triton")
        if options["pace"]:
            options |= {name: size for name, size in SMALLEST.items() if not _was_given(context, name)}
            options["pace"] = Pace.parse(options["pace"])
        settings = kind(**{name: options[name] for name in names})
        if isinstance(settings, BehindTriton):
            _wait(VllmBehindTriton(settings), lambda server: f"{_ports(server)} model={MODEL_BEHIND_TRITON}")
        else:
            server = VllmServer(settings) if engine == "vllm" else SglangServer(settings)
            _wait(server, lambda server: f"url={server.url} model={MODEL} metrics={server.metrics_url}")
        return
    _refuse(context, ("experts", "behind"), "vllm")
    _refuse(context, NOT_TRITONS, "vllm or sglang")
    if repository is not None:
        _refuse_what_it_says_itself(context)
        _look_through(repository)
    for name in NOT_TRITONS:
        del options[name]
    _wait(ReferenceServer(Settings(**options), repository=repository), _ports)


def _ports(server: TritonServer[Any]) -> str:
    return f"grpc={server.grpc_url} http={server.http_url} metrics={server.metrics_url}"


def _refuse(context: click.Context, names: Collection[str], other: str) -> None:
    """Raises ServerError if one of the options `names` was given, which only the other engine has."""
    for name in context.params:
        if name in names and _was_given(context, name):
            raise ServerError(f"{option(name)} is for --engine {other}: leave it out, or give that engine")


def _refuse_what_it_says_itself(context: click.Context) -> None:
    """Raises UsageError if an option was given that the repository itself determines."""
    for name in SAID_BY_REPOSITORY:
        if _was_given(context, name):
            raise click.UsageError(f"{option(name)} and --repository exclude each other: the repository determines it")


def _look_through(repository: Path) -> None:
    """Print the faults of `repository`, one line each, as `repository check` does.

    Raises RepositoryError where Triton would not load it.
    """
    faults = check(repository)
    for fault in faults:
        click.echo(str(fault), err=True)
    fatal = [fault for fault in faults if fault.severity == "error" and not fault.is_ours]
    if fatal:
        raise RepositoryError(f"tritonserver would not load {repository}: {count_of(len(fatal), 'error')}, named above")


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _wait(server: ServerOf, addresses: Callable[[ServerOf], str]) -> None:
    """Run the server until it is interrupted."""
    try:
        with server:
            click.echo(f"READY {addresses(server)}")
            while True:
                time.sleep(WATCH_S)
                server.check()
    except KeyboardInterrupt:
        sys.exit(0)


def _interrupt(*_: object) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # let the server stop in peace
    raise KeyboardInterrupt
