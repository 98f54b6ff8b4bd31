"""``sizing-mcp``, or ``python -m api``: the planner as tools of a language model."""

from __future__ import annotations

import os
from importlib import import_module

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in `sizing.__main__`

import click

from sizing.lazy_group import BAD_INPUT, fail, missing_extra


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The planner as tools of a language model: an MCP server on standard input and output.

    An MCP client starts it, for instance by {"mcpServers": {"sizing": {"command": "sizing-mcp"}}} in its settings.
    """
    try:
        served = import_module("api.mcp_server")
    except ModuleNotFoundError as error:
        fail(missing_extra(error), BAD_INPUT)
    served.run()


if __name__ == "__main__":
    main()
