"""`python -m calibration`, called in this process, and what it says when it refuses."""

from __future__ import annotations

from click.testing import CliRunner, Result

from calibration.__main__ import main


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(result: Result) -> str:
    """The one line on stderr of a command that ended with exit code 2 before it did anything."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == "" and result.stderr.count("\n") == 1
    return failed(result)


def failed(result: Result) -> str:
    """The line of the error, the last on stderr, of a command that ended with exit code 2."""
    assert result.exit_code == 2, (result.output, result.exception)
    *_, line = result.stderr.splitlines()
    assert result.stderr.count("error:") == 1 and line.startswith("error: ") and "Traceback" not in result.output
    return line
