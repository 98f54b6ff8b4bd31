"""Fill the placeholders of a configuration, as the TensorRT-LLM backend's fill_template.py does."""

from __future__ import annotations

from pathlib import Path
from string import Template

from calibration.errors import RepositoryError


def substitutions(pairs: str) -> dict[str, str]:
    """The pairs in `key:value,key:value`, split as in the original: at every comma, then at the only colon.

    >>> substitutions("decoupled_mode:True,engine_dir:/engines/1-gpu")
    {'decoupled_mode': 'True', 'engine_dir': '/engines/1-gpu'}

    Raises:
        RepositoryError: a pair has no colon or several; the original raises ValueError.
    """
    found = {}
    for pair in pairs.split(","):
        parts = pair.split(":")
        if len(parts) != 2:
            raise RepositoryError(
                f"cannot split {pair!r}: expected key:value with exactly one colon, pairs separated by commas"
            )
        found[parts[0]] = parts[1]
    return found


def filled(text: str, values: dict[str, str]) -> str:
    """`text` with its placeholders replaced; those without a value stay, and keys without a placeholder are ignored.

    >>> filled("path: ${engine_dir} policy: ${policy}", {"engine_dir": "/e", "other": "1"})
    'path: /e policy: ${policy}'
    """
    return Template(text).safe_substitute(values)


def fill(file: Path, pairs: str, in_place: bool) -> str | None:
    """Fill the placeholders of `file`: the text, or None if it was rewritten in place.

    Raises:
        RepositoryError: a wrong pair, or a file that cannot be read or written.
    """
    values = substitutions(pairs)
    try:
        text = filled(file.read_text(encoding="utf-8"), values)
        if not in_place:
            return text
        file.write_text(text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RepositoryError(f"cannot fill {file}: {getattr(error, 'strerror', None) or error}") from error
    return None
