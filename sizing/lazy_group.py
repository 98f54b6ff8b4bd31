"""A group of commands loaded on use, behind ``python -m sizing`` and ``python -m calibration``.

If a command lacks a library, it names the extra that provides it: ``pip install 'sizing[report]'``.
"""

from __future__ import annotations

import codecs
import errno
import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from sizing.errors import SizingError, one_line

EXTRA_OF = {
    "jinja2": "report",
    "markupsafe": "report",
    "matplotlib": "report",
    "typst": "report",
    "xlsxwriter": "report",
    "google": "measure",
    "grpc": "measure",
    "hpack": "measure",
    "httptools": "measure",
    "prometheus_client": "measure",
    "pyarrow": "measure",
    "sqlalchemy": "measure",
    "tokenizers": "measure",
    "tritonclient": "measure",
    "uvloop": "measure",
    "psycopg": "postgres",
    "distributed": "cluster",
    "jsonschema": "mcp",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "authlib": "app",
    "pandas": "app",
    "plotly": "app",
    "streamlit": "app",
}
"""Library, by its import name, to extra of pyproject.toml."""
PACKAGE_OF = {"google": "protobuf", "grpc": "grpcio"}
"""Names by which readers know a library, if its import name differs."""


class MissingExtra(SizingError):
    """A library that this command needs is not installed; the line names the extra that provides it."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtra:
    """What to install for an import that failed. Raises `error` itself if no extra provides the library: a bug."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA_OF:
        raise error
    extra = EXTRA_OF[library]
    return MissingExtra(
        f"this needs {PACKAGE_OF.get(library, library)}, which is not installed: pip install 'sizing[{extra}]'"
    )


BAD_INPUT = 2
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
INTERRUPTED = 130


class Commands(click.Group):
    """`table`: name -> location of the command (``module:name``) and its help line, which loads none of them.

    Run as a program, a click error, one of `errors` or a missing library becomes one line on standard error and exit
    code 2.
    """

    def __init__(
        self, *args: Any, table: Mapping[str, tuple[str, str]], errors: tuple[type[Exception], ...] = (), **extra: Any
    ) -> None:
        super().__init__(*args, **{"context_settings": {"help_option_names": ["-h", "--help"]}, **extra})
        self._table, self._errors = table, errors

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._table:
            return None
        module, _, command = self._table[name][0].partition(":")
        found = getattr(import_module(module), command)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._table.items()])

    def main(self, *args: Any, **extra: Any) -> Any:
        if extra.get("standalone_mode") is False:
            return self._whole(*args, **extra)
        try:
            code = self._whole(*args, **(extra | {"standalone_mode": False}))
        except click.ClickException as error:
            fail(error, BAD_INPUT)
        except self._errors as error:
            fail(error, BAD_INPUT)
        except ModuleNotFoundError as error:
            fail(missing_extra(error), BAD_INPUT)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)

    def _whole(self, *args: Any, **extra: Any) -> Any:
        """Click's `main`. Raises ClickException where the disk, or the room for a file, ends before the output does."""
        make_writable(sys.stdout)
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if error.errno not in NO_ROOM or error.filename is not None:
                raise
            raise click.ClickException(f"the output cannot be written: {error.strerror}") from None


def make_writable(stream: object) -> None:
    """Let a stream take any text: as UTF-8 if its encoding is ASCII, as click does with what it prints itself, else
    with a question mark for what its encoding lacks."""
    if not isinstance(stream, TextIOWrapper) or stream.errors not in ("strict", "surrogateescape"):
        return
    if codecs.lookup(stream.encoding).name == "ascii":
        stream.reconfigure(encoding="utf-8", errors=stream.errors)
    elif not stream.encoding.lower().startswith("utf"):
        stream.reconfigure(errors="replace")


def fail(error: Exception, code: int) -> NoReturn:
    """One line on standard error, then the exit code."""
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    click.echo(f"error: {one_line(message)}", err=True)
    sys.exit(code)
