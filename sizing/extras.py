"""Libraries that not every installation has, and the extra that brings each: ``pip install 'sizing[report]'``."""

from __future__ import annotations

from sizing.errors import SizingError

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
"""Library, as it is imported, to extra of pyproject.toml."""
PACKAGE_OF = {"google": "protobuf", "grpc": "grpcio"}
"""Names under which a reader knows a library, where it is imported by another."""


class MissingExtra(SizingError):
    """A library that this command needs is not installed; the line names the extra that brings it."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtra:
    """What to install for an import that failed. Raises `error` itself where no extra brings the library: a fault."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA_OF:
        raise error
    extra = EXTRA_OF[library]
    return MissingExtra(
        f"this needs {PACKAGE_OF.get(library, library)}, which is not installed: pip install 'sizing[{extra}]'"
    )
