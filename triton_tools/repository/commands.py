"""`python -m calibration repository build | fill | check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sizing.lazy_group import BAD_INPUT
from sizing.numbers import count_of
from triton_tools.repository import legal, template
from triton_tools.repository.builder import build_repository
from triton_tools.repository.check import Fault, check
from triton_tools.repository.contracts import CONTRACTS
from triton_tools.repository.options import BATCHINGS, TIMEOUT_ACTIONS, Options, Queueing, warnings

Command = TypeVar("Command", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")

BUILD_EPILOG = """\b
Examples:
  python -m calibration repository build models --engine /engines/llama-7b --tokenizer /tokenizers/llama-7b --decoupled
  python -m calibration repository build static-v0.5 --contract v0.5 --batching static --engine /e --tokenizer /t
  python -m calibration repository build queued --engine /e --tokenizer /t --max-queue-size 64 --max-delay-us 100
"""
CHECK_EPILOG = """\b
Example:
  python -m calibration repository check models
  models/postprocessing/config.pbtxt:70: error: postprocessing has more than 1 instance and the engine streams: ...
"""
FILL_EPILOG = """\b
Example:
  python -m calibration repository fill -i models/tensorrt_llm/config.pbtxt "decoupled_mode:True,engine_dir:/e"
"""


@click.group(no_args_is_help=False)
def repository() -> None:
    """Build, fill and check Triton model repositories in the TensorRT-LLM layout."""


def _number(name: str, meaning: str, kind: Any = int, default: object = None) -> Callable[[Command], Command]:
    """An option with the name of the field; without a value, the field keeps its default."""
    shown = default not in (None, "")
    return click.option(
        "--" + name.replace("_", "-"), name, type=kind, default=default, show_default=shown, help=meaning
    )


def _flag(name: str, meaning: str) -> Callable[[Command], Command]:
    """Three states: on, off, and not given, which leaves the choice to the backend."""
    option = name.replace("_", "-")
    return click.option(f"--{option}/--no-{option}", name, default=None, help=meaning)


@repository.command("build", epilog=BUILD_EPILOG, short_help="Write a model repository into a folder.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--engine", "engine_dir", required=True, help="Folder of the engine on the serving machine.")
@click.option("--tokenizer", "tokenizer_dir", required=True, help="Folder of the tokenizer on the serving machine.")
@_number("tokenizer_type", "Type of the tokenizer.", click.Choice(legal.TOKENIZER_TYPES), "auto")
@_number("contract", "Release of the TensorRT-LLM backend.", click.Choice(tuple(CONTRACTS)), "v0.8")
@_number("batching", "Batching of the engine: in flight, or static (V1).", click.Choice(BATCHINGS), "in_flight")
@_number("policy", "Scheduling policy: guaranteed_no_evict or max_utilization.", str, "guaranteed_no_evict")
@click.option("--decoupled", is_flag=True, help="Allow streaming; the models then refuse unary calls.")
@_number("max_batch_size", "Most requests in one batch.", int, 128)
@_number("max_beam_width", "Largest beam width of a request.", int, 1)
@_number("max_num_sequences", "v0.5: most requests in flight.")
@_number(
    "max_tokens_in_paged_kv_cache",
    "KV cache in tokens; the smaller of this and --kv-cache-free-gpu-mem-fraction applies.",
)
@_number(
    "kv_cache_free_gpu_mem_fraction", "Fraction of the free GPU memory for the KV cache, above 0 and at most 1.", float
)
@_number("max_attention_window_size", "Most earlier tokens that each token attends to.")
@_number("gpu_device_ids", "Ids of the GPUs, separated by commas, such as 0,1.", str)
@_flag("enable_kv_cache_reuse", "Reuse the KV cache of prompts that begin alike.")
@_flag("enable_trt_overlap", "Overlap the execution of batches.")
@_flag("enable_chunked_context", "Prefill long prompts in chunks.")
@_flag("exclude_input_in_output", "Leave the prompt out of the answer.")
@_flag("normalize_log_probs", "Normalise log-probabilities.")
@click.option("--accumulate-tokens", is_flag=True, help="BLS: each response of a stream holds the whole text so far.")
@_number("preprocessing_instances", "Instances of preprocessing.", int, 1)
@_number("postprocessing_instances", "Instances of postprocessing; must be 1 with --decoupled.", int, 1)
@_number("bls_instances", "Instances of tensorrt_llm_bls.", int, 1)
@_number("preferred_batch_sizes", "Queue: preferred batch sizes, separated by commas.", str)
@_number("max_delay_us", "Queue: microseconds to wait for a preferred batch.", int, 0)
@_number("max_queue_size", "Queue: most waiting requests; 0: no limit.", int, 0)
@_number("timeout_us", "Queue: microseconds a request may wait; 0: no limit.", int, 0)
@_number(
    "timeout_action", "Queue: what happens to a request after --timeout-us.", click.Choice(TIMEOUT_ACTIONS), "REJECT"
)
@click.option("--allow-timeout-override", is_flag=True, help="Queue: allow requests to set a shorter timeout.")
@click.option("--preserve-ordering", is_flag=True, help="Queue: answer in the order of arrival.")
@_number("priority_levels", "Queue: priority levels; 0: none.", int, 0)
@_number("default_priority_level", "Queue: priority level of requests that name none; 0 without levels.", int, 0)
@_number("text_model", "Also write a text model of this name on the Python backend, such as llama-python.", str, "")
@_number("text_model_dir", "Folder of the text model's weights.", str, "")
def build_command(folder: Path, **given: Any) -> None:
    """Write a TensorRT-LLM model repository into FOLDER.

    FOLDER must be new or empty. Options without a default here stay empty in the configuration, so that the backend's
    own defaults apply.
    """
    queue = {name: given.pop(name) for name in Queueing.__dataclass_fields__}
    queue["preferred_batch_sizes"] = _numbers("preferred_batch_sizes", queue["preferred_batch_sizes"])
    given["gpu_device_ids"] = _numbers("gpu_device_ids", given["gpu_device_ids"])
    options = Options(**given, queueing=Queueing(**queue))
    written = build_repository(folder, options)
    for warning in warnings(options):
        click.echo(f"warning: {warning}", err=True)
    names = sorted(path.name for path in written.iterdir())
    click.echo(f"{written}: {', '.join(names)}")


def _numbers(name: str, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        option = "--" + name.replace("_", "-")
        raise click.UsageError(f"{option} takes whole numbers separated by commas, got {text!r}") from error


@repository.command("fill", epilog=FILL_EPILOG, short_help="Fill the placeholders of a config.pbtxt.")
@click.option(
    "-i", "--in_place", "--in-place", "in_place", is_flag=True, help="Rewrite FILE instead of printing the result."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("pairs")
def fill_command(file: Path, pairs: str, in_place: bool) -> None:
    """Fill the placeholders of FILE, a config.pbtxt, from PAIRS, written as "key:value,key:value".

    It works like the backend's fill_template.py: placeholders without a pair stay, pairs without a placeholder are
    ignored.
    """
    text = template.fill(file, pairs, in_place)
    if text is not None:
        click.echo(text)


@repository.command("check", epilog=CHECK_EPILOG, short_help="Report every fault of a model repository.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--contract", type=click.Choice(tuple(CONTRACTS)), help="Release of the TensorRT-LLM backend; default: detected."
)
@as_json
def check_command(folder: Path, contract: str | None, as_json: bool) -> None:
    """Read the model repository FOLDER as Triton would, and report every fault with its file and line.

    Exit code 2: there is an error; 0: none, or warnings only.
    """
    faults = check(folder, contract)
    if as_json:
        click.echo(json.dumps([_facts(fault) for fault in faults]))
    else:
        for fault in faults:
            click.echo(str(fault))
        click.echo(_verdict(faults))
    if any(fault.severity == "error" for fault in faults):
        sys.exit(BAD_INPUT)


def _facts(fault: Fault) -> dict[str, object]:
    return {
        "path": str(fault.path),
        "line": fault.line,
        "severity": fault.severity,
        "message": fault.message,
        "triton_loads_it": fault.is_ours,
    }


def _verdict(faults: list[Fault]) -> str:
    errors = sum(fault.severity == "error" for fault in faults)
    if not faults:
        return "nothing wrong"
    return f"{count_of(errors, 'error')}, {count_of(len(faults) - errors, 'warning')}"
