"""What the tests of the calibration share: databases to test a store on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from calibration.metrics import verdict
from calibration.store import DATABASE_VARIABLE, Store
from calibration.store.database import RECORDS_VARIABLE
from tests.calibration import unhurried as rules
from tests.calibration.postgres import new_schema, postgres, wheel

collect_ignore = [
    "engine_answers.py",
    "engine_trace.py",
    "policies_trace.py",
    "timed_model.py",
]  # they run in the reference environment: torch, Triton


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No level is void because this machine is busy."""
    monkeypatch.setattr(verdict, "RULES", rules.RULES)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database that does not exist yet, which commands use."""
    url = f"sqlite:///{tmp_path / 'points.db'}"
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    return url


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[str]:
    """A PostgreSQL server, started when the first test needs it: the folder of its socket."""
    package = wheel()
    if package is None:
        pytest.skip("there is no PostgreSQL in a wheel for this system")
    with postgres(package) as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database of each kind, with a folder of its own for records."""
    monkeypatch.setenv(RECORDS_VARIABLE, str(tmp_path / "records"))
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'points.db'}"
    return new_schema(request.getfixturevalue("postgres_folder"), f"test_{uuid4().hex}")


@pytest.fixture
def store(database_url: str) -> Store:
    """A store on an empty database of each kind."""
    return Store(database_url)
