"""Everything measured so far in one archive, which is rewritten after every point and given to the next call."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

log = logging.getLogger("gpu")
ARCHIVE = "measured.tar.gz"
DATABASE = "calibration.db"
RECORDS = "calibration-records"


class Kept:
    """A working folder with the store, its records, `facts.json` and CSV files; and its archive in `out`.

    Facts are what is not a point: ceilings, environment, step times, failures. The archive of an earlier call is
    unpacked first, if the working folder has no store of its own.
    """

    def __init__(self, work: Path, out: Path, earlier: Path | None) -> None:
        self.work, self.archive = work, out / ARCHIVE
        work.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        if earlier is not None and earlier.exists() and not self.database.exists():
            with tarfile.open(earlier) as file:
                file.extractall(work, filter="data")
        self._facts: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def start_log(self) -> None:
        """Write the log to standard output, and into the working folder."""
        handlers: list[logging.Handler] = [
            logging.StreamHandler(sys.stdout),
            logging.FileHandler(self.work / "measure.log"),
        ]
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", handlers=handlers)

    @property
    def database(self) -> Path:
        return self.work / DATABASE

    @property
    def _file(self) -> Path:
        return self.work / "facts.json"

    def fact(self, name: str) -> Any:
        """The fact called `name`; None if there is none."""
        return self._facts.get(name)

    def learn(self, name: str, value: Any) -> None:
        """Store `value` as the fact called `name`."""
        self._facts[name] = value
        self._file.write_text(json.dumps(self._facts, indent=1))

    def save(self) -> None:
        """Write the archive; an existing one stays intact until the new one is complete."""
        new = self.archive.with_suffix(".new")
        copy = self.work / "copy.db"
        with tarfile.open(new, "w:gz", compresslevel=3) as file:
            if self.database.exists():
                with closing(sqlite3.connect(self.database)) as source, closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
                file.add(copy, DATABASE)
                copy.unlink()
            for path in sorted(self.work.iterdir()):
                if path.name == RECORDS or path.suffix in (".json", ".csv", ".log"):
                    file.add(path, path.name)
        os.replace(new, self.archive)
