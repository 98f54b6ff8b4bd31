"""The figures of `python -m sizing bench`: simulator, formula, fit, plans, a fresh process."""

from __future__ import annotations

from rich.console import Console

from validation.bench import drawn, figures


def main() -> None:
    """Print them beside their goals."""
    Console(width=130).print(drawn(list(figures())))


if __name__ == "__main__":
    main()
