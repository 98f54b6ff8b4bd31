"""Check a whole repository: read every model's folder, then ask core, wiring and backend for faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from calibration.errors import RepositoryError
from triton_tools.repository import legal
from triton_tools.repository.check.backend import backend_faults, contract_of, missing_models
from triton_tools.repository.check.core import core_faults
from triton_tools.repository.check.faults import Fault, ModelFolder
from triton_tools.repository.check.wiring import wiring_faults
from triton_tools.repository.contracts import CONTRACTS
from triton_tools.repository.messages import CONFIG_FILE
from triton_tools.repository.source import read_source


def check(folder: Path, contract: str | None = None) -> list[Fault]:
    """Every fault of the repository in `folder`, in the order of files and lines; empty: nothing is wrong.

    A fault with severity "error" makes the repository unfit; a "warning" says what the backend will do instead of what
    is written. Triton loads models with errors that have `is_ours` all the same, and they fail later. Nothing in the
    repository is run. `contract` (v0.8 or v0.5) is detected if not given.

    Raises:
        RepositoryError: the folder does not exist, has no model, or cannot be read.
    """
    try:
        if not folder.is_dir():
            raise RepositoryError(f"{folder} is not a folder: name a model repository")
        models = {path.name: _open(path) for path in sorted(folder.iterdir()) if path.is_dir()}
        if not models:
            raise RepositoryError(f"{folder} holds no model: every model is a folder with {CONFIG_FILE} and a version")
        found = list(_faults(folder, models, contract))
    except OSError as error:
        raise RepositoryError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
    return sorted(found, key=lambda fault: (str(fault.path), fault.line))


def _faults(folder: Path, models: dict[str, ModelFolder], contract: str | None) -> Iterator[Fault]:
    for model in models.values():
        yield from _unreadable(model) if not model.is_read else core_faults(model)
        if model.is_read and model.config.platform == "ensemble":
            yield from wiring_faults(model, models)
    if "tensorrt_llm" in models:
        known = CONTRACTS[contract] if contract else contract_of(models)
        yield from backend_faults(models, known)
        for name in missing_models(models, known):
            yield Fault(folder, 0, "error", f"the model {name} is missing", is_ours=True)


def _open(path: Path) -> ModelFolder:
    file = path / CONFIG_FILE
    try:
        return ModelFolder(path, read_source(file) if file.is_file() else None)
    except UnicodeDecodeError as error:
        raise RepositoryError(f"{file} is not text in UTF-8: byte {error.start} ({error.reason})") from error


def _unreadable(model: ModelFolder) -> Iterator[Fault]:
    source = model.source
    if source is None:
        yield Fault(model.path, 0, "error", f"no {CONFIG_FILE}")
        return
    lines = source.path.read_text(encoding="utf-8").splitlines()
    text = lines[source.problem_line - 1] if 0 < source.problem_line <= len(lines) else ""
    left = legal.placeholders(text)
    why = f"${{{left[0]}}} is not filled in" if left else source.problem
    yield Fault(source.path, source.problem_line, "error", why)
