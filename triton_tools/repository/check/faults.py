"""Faults of a repository: what is wrong, where, and how severe it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from triton_tools.repository.legal import Severity
from triton_tools.repository.source import Source


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `line` is 0 for a folder; with `is_ours`, Triton would load it, and the message says why not to."""

    path: Path
    line: int
    severity: Severity
    message: str
    is_ours: bool = False

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.severity}: {self.message}"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model of the repository: its folder, and its configuration, None if there is none that can be read."""

    path: Path
    source: Source | None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> pb.ModelConfig:
        """The configuration; an empty one if it could not be parsed."""
        return self.source.config if self.source else pb.ModelConfig()

    @property
    def is_read(self) -> bool:
        return self.source is not None and not self.source.problem

    @property
    def file(self) -> Path:
        return self.path / "config.pbtxt"

    def refused(self, message: str, *steps: str | int) -> Fault:
        """A fault at the field that `steps` lead to, for which Triton refuses the model too."""
        return Fault(self.file, self._line(*steps), "error", message)

    def wrong(self, message: str, *steps: str | int) -> Fault:
        """A fault at the field that `steps` lead to, of which Triton's core says nothing."""
        return Fault(self.file, self._line(*steps), "error", message, is_ours=True)

    def wrong_parameter(self, key: str, message: str, severity: Severity = "error") -> Fault:
        """A fault in the parameter `key`."""
        line = self.source.line_of_key(key, "parameters") if self.source else 0
        return Fault(self.file, line, severity, message, is_ours=True)

    def _line(self, *steps: str | int) -> int:
        return self.source.line(*steps) if self.source else 0
