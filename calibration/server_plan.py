"""The part of a plan that says which server is measured, and what it is where it does not tell itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from calibration.plan_fields import Count, Positive, Strict, Text

Batching = Literal["in_flight", "static"]


class TensorNames(Strict):
    """What a model calls its tensors, where its names are not those of the TensorRT-LLM backend.

    `prompt` (text) or `token_ids` and `prompt_length` go in, with `max_tokens`; `text` or `output_ids` come out.
    `constants` are further inputs and the value that every request gives them.
    """

    prompt: Text | None = None
    token_ids: Text | None = None
    prompt_length: Text | None = None
    max_tokens: Text | None = None
    text: Text | None = None
    output_ids: Text | None = None
    constants: dict[str, str | bool | int | float] = Field(default_factory=dict)


class ServerPlan(Strict):
    """Where requests go: `url` (host:port) of gRPC or, by `protocol`, of HTTP; the Triton `model`.

    A request takes `timeout_s` at most. `metrics_url` (http://host:port/metrics), if set, is read during each level for
    the server's own view, and to check that nobody else loads the server meanwhile.
    """

    url: Annotated[str, Field(pattern=r"^[^/\s]+:\d+$")] = "127.0.0.1:8001"
    protocol: Literal["grpc", "http"] = "grpc"
    model: Text = "ensemble"
    tensors: TensorNames = TensorNames()
    metrics_url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    timeout_s: Positive = 120.0


def is_here(url: str) -> bool:
    """True for an address of this machine itself.

    >>> is_here("127.0.0.1:8001"), is_here("gpu-7:8001")
    (True, False)
    """
    host = url.rpartition(":")[0].lower()
    return host in ("localhost", "[::1]", "0.0.0.0") or host.startswith("127.")


def same_server(one: str, other: str) -> bool:
    """Whether two addresses, each host:port as a plan names it, are one server's, as far as they tell.

    >>> same_server("GPU-7:8001", "gpu-7:8001"), same_server("localhost:8001", "127.0.0.1:08001")
    (True, True)
    """
    hosts, ports = zip(*(address.lower().rpartition(":")[::2] for address in (one, other)), strict=True)
    alike = hosts[0] == hosts[1] or (is_here(one) and is_here(other))
    return alike and ports[0].lstrip("0") == ports[1].lstrip("0")


class DeploymentPlan(Strict):
    """What is written on the points where the server does not say it itself, or says it wrong."""

    model: Text | None = None
    precision: Text | None = None
    gpu: Text | None = None
    tp: Count | None = None
    pp: Count | None = None
    engine: str | None = None
    engine_version: str | None = None
    batching: Batching | None = None
    max_batch_size: Count | None = None
