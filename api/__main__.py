"""``sizing-mcp``, or ``python -m api``: the planner as tools of a language model."""

from __future__ import annotations

from importlib import import_module

from sizing.extras import missing_extra
from sizing.lazy_group import BAD_INPUT, fail


def main() -> None:
    """Serve on standard input and output until the client closes it; a missing library is one line."""
    try:
        served = import_module("api.mcp_server")
    except ModuleNotFoundError as error:
        fail(missing_extra(error), BAD_INPUT)
    served.run()


if __name__ == "__main__":
    main()
