"""``python -m calibration mock``: the mock on the command line; at Ctrl-C it prints the timings that it kept."""

from __future__ import annotations

import asyncio
import re
import signal

import click
import numpy as np

from lab.mock.server import Serving, run, serve
from lab.mock.service import Script, Truth

UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Duration(click.ParamType[float]):
    """A time with its unit, such as 20ms or 0.5s; without a unit, seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(us|ms|s)?", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a time such as 20ms or 0.5s", param, ctx)
        return float(found[1]) * UNITS_S[found[2] or "s"]


@click.command()
@click.option(
    "--ttft", type=Duration(), default="20ms", show_default=True, help="Time to the first token, such as 20ms or 0.5s."
)
@click.option("--itl", type=Duration(), default="5ms", show_default=True, help="Time between two tokens.")
@click.option(
    "--tokens-per-response", type=click.IntRange(1), default=1, show_default=True, help="Tokens in each response."
)
@click.option("--empty-first", is_flag=True, help="Send a response without tokens at once, before the first token.")
@click.option(
    "--late-final", type=Duration(), default="0s", show_default=True, help="Delay of the final, empty response."
)
@click.option("--slots", type=click.IntRange(1), help="Most requests served at once, the others wait; default: all.")
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    default=8001,
    show_default=True,
    help="Port of Triton's gRPC service; 0: any free one.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port of Triton's HTTP service and of /v1; 0: any free one.",
)
def main(
    ttft: float,
    itl: float,
    tokens_per_response: int,
    empty_first: bool,
    late_final: float,
    slots: int | None,
    grpc_port: int,
    http_port: int,
) -> None:
    """Start a mock of Triton and of an OpenAI server with known timings, to test load generators against.

    Its model is `ensemble`. It prints a line that begins with READY once it answers; on Ctrl-C it prints the timings
    that it kept.

    \b
    Example: python -m calibration mock --ttft 20ms --itl 5ms
    """
    script = Script(ttft, itl, tokens_per_response, empty_first, late_final, slots=slots)
    try:
        run(serve(script, _until_interrupted, (grpc_port, http_port)))
    except OSError as error:
        raise click.ClickException(f"ports {grpc_port} and {http_port}: {error.strerror}; choose others") from None


async def _until_interrupted(serving: Serving) -> None:
    click.echo(f"READY grpc {serving.grpc_url} http {serving.http_url} model ensemble")
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    click.echo(_summary(serving.service.truth()))


def _summary(truth: Truth) -> str:
    answered = truth.between(-np.inf, np.inf)
    if not len(answered):
        return "no request was answered"
    line = f"{len(truth)} requests, {len(answered)} answered: TTFT {1e3 * answered.ttft_s.mean():.2f} ms"
    if not np.isnan(answered.itl_s).all():
        line += f", ITL {1e3 * np.nanmean(answered.itl_s):.3f} ms"
    return f"{line}, {1e6 * truth.cpu_s / truth.responses:.1f} us of CPU a response"


if __name__ == "__main__":
    main()
