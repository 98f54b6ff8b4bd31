"""``python -m tests.fuzz [--inputs 10000] [--seed N] [--processes 2]``, or one input again: ``--only NUMBER``."""

from __future__ import annotations

import random
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.fuzz.campaign import all_readers, campaign, input_of, summary
from tests.fuzz.readers import prepare


@click.command()
@click.option("--inputs", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--seed", type=int, help="Default: a random one, printed.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--only", type=click.IntRange(0), help="Number of one input: read it here, with its traceback.")
def main(inputs: int, seed: int | None, processes: int, only: int | None) -> None:
    """Hostile input for every reader; exit 1 if one of them fails at it."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    if only is not None:
        _again(seed, only)
        return
    print(f"seed {seed}", flush=True)
    results = campaign(seed, inputs, processes)
    print(summary(seed, results))
    sys.exit(any(result.fault for result in results))


def _again(seed: int, number: int) -> None:
    with TemporaryDirectory(prefix="fuzz-") as name:
        prepare(Path(name) / "made")
        place, raw = input_of(seed, number)
        reader = all_readers()[place]
        print(f"{reader.name}, {len(raw)} bytes, begins {raw[:2000]!r}")
        (Path(name) / "input").mkdir()
        try:
            print("read as", str(reader.read(raw, Path(name) / "input"))[:500])
        except Exception:
            traceback.print_exc()


if __name__ == "__main__":
    main()
