"""Several workloads as people write them: a YAML file, or `--workload name:isl=...,osl=...,rate=...` several times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sizing.errors import ScenarioError
from sizing.faults import first_fault
from sizing.fleets.sharing import Share, Terms
from sizing.workload import METRICS, Arrivals, Lengths, Limit, Prefix, Routing, Sla, Workload
from sizing.yaml_file import read_yaml

STRICT = ConfigDict(extra="forbid", frozen=True)


class StreamFile(BaseModel):
    """One workload of a scenario; limits as on the command line, for instance ``ttft: p95:1s``."""

    model_config = STRICT

    name: str
    isl: float
    osl: float
    rate: float
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    correlation: float = 0.0
    arrivals: str = "poisson"
    prefix_tokens: int = 0
    prefix_hit: float = 0.0
    priority: int = 0
    ttft: str | None = None
    itl: str | None = None
    gap: str | None = None
    e2e: str | None = None

    def share(self) -> Share:
        """The workload and SLA that this describes; ScenarioError for what they cannot be."""
        lengths = Lengths(self.isl, self.osl, self.isl_cv, self.osl_cv, self.correlation)
        prefix = Prefix(self.prefix_tokens, self.prefix_hit)
        workload = Workload(lengths, self.rate, Arrivals.parse(self.arrivals), prefix)
        limits = {metric: Limit.parse(metric, text) for metric in METRICS if (text := getattr(self, metric))}
        return Share(self.name, workload, Sla(**limits), self.priority)


class ScenarioFile(BaseModel):
    """A fleet that several workloads share: what may be bought, the terms, the workloads."""

    model_config = STRICT

    model: str
    gpu: list[str] = Field(default_factory=list)
    precision: list[str] = Field(default_factory=list)
    tp: list[int] = Field(default_factory=list)
    routing: Routing = "random"
    headroom: float = 0.2
    spare: int = 1
    workloads: list[StreamFile] = Field(min_length=1)

    @property
    def terms(self) -> Terms:
        """What all workloads have in common."""
        return Terms(self.routing, self.headroom, self.spare)


def read_scenario(path: Path | str) -> ScenarioFile:
    """The scenario of a YAML file. Raises ScenarioError, one line with file and key, for anything that is not one."""
    return scenario_of(read_yaml(path, "scenario file"), str(path))


def scenario_of(content: Any, where: str) -> ScenarioFile:
    """A checked scenario out of a mapping; `where` begins the message of the ScenarioError it may raise."""
    if not isinstance(content, dict):
        raise ScenarioError(f"{where}: expected a mapping with model and workloads, got {type(content).__name__}")
    try:
        return ScenarioFile.model_validate(content)
    except ValidationError as error:
        raise ScenarioError(f"{where}, {first_fault(error)}") from None


def parse_workload(text: str) -> dict[str, str]:
    """The keys of one ``--workload``.

    >>> parse_workload("chat:isl=1000,osl=200,rate=5,ttft=p95:1s")
    {'name': 'chat', 'isl': '1000', 'osl': '200', 'rate': '5', 'ttft': 'p95:1s'}
    """
    name, colon, rest = text.partition(":")
    pairs = [word.partition("=") for word in rest.split(",")]
    if not colon or not name or not all(equals for _, equals, _ in pairs):
        raise ScenarioError(
            f"--workload {text!r}: write it as NAME:isl=1000,osl=200,rate=5,ttft=p95:1s with a name of your own"
        )
    return {"name": name.strip()} | {key.strip(): value.strip() for key, _, value in pairs}
