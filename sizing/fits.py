"""What would fit where a model does not: memory lacking per GPU, a larger TP, a smaller precision, another GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing import catalog
from sizing.candidates import Choice, estimated
from sizing.catalog import BITS
from sizing.errors import DoesNotFit, SizingError
from sizing.estimate import estimate
from sizing.plan import Candidate, Rejection
from sizing.workload import Lengths


@dataclass(frozen=True, slots=True)
class Misfit:
    """A configuration that does not fit: bytes lacking on each GPU, and what would fit on the same GPU.

    `larger`: the smallest TP at the same precision. `smaller`: the smallest TP at a precision of fewer bits, the most
    bits among these. None where there is none up to the GPUs of one server.
    """

    gpu: str
    tp: int
    precision: str
    missing_bytes: float
    larger: Candidate | None
    smaller: Candidate | None


def misfits(model: str, lengths: Lengths, rejected: Sequence[Rejection]) -> tuple[Misfit, ...]:
    """Of the configurations left out for memory each with what would fit instead, the least lacking first."""
    too_large = [rejection for rejection in rejected if rejection.kind == "memory"]
    fitting = {gpu: fits_on(model, gpu, lengths) for gpu in {rejection.gpu for rejection in too_large}}
    found = (_misfit(model, lengths, rejection, fitting[rejection.gpu]) for rejection in too_large)
    return tuple(sorted(found, key=lambda misfit: misfit.missing_bytes))


def fits_on(model: str, gpu: str, lengths: Lengths) -> list[Candidate]:
    """Every estimated candidate of the model on one GPU type, at any precision and TP; empty where none fits."""
    return estimated(model, lengths, Choice(), [gpu], set())[0]


def elsewhere(model: str, lengths: Lengths, besides: Sequence[str]) -> Candidate | None:
    """The candidate of the fewest GPUs per replica on any other GPU of the catalogue; of equals the least memory."""
    found = [
        candidate
        for gpu in catalog.gpus().values()
        if gpu.id not in besides
        for candidate in fits_on(model, gpu.id, lengths)
    ]
    return min(found, key=lambda each: (each.gpus, catalog.gpu(each.gpu).memory_bytes), default=None)


def _misfit(model: str, lengths: Lengths, rejection: Rejection, fitting: Sequence[Candidate]) -> Misfit:
    gpu, tp, precision = rejection.gpu, rejection.tp, rejection.precision
    larger = min((each for each in fitting if each.precision == precision), key=lambda each: each.tp, default=None)
    bits: dict[str, float] = dict(BITS.items())
    smaller = min(
        (each for each in fitting if bits[each.precision] < bits.get(precision, 0)),
        key=lambda each: (each.tp, -bits[each.precision]),
        default=None,
    )
    return Misfit(gpu, tp, precision, _missing_bytes(model, lengths, rejection), larger, smaller)


def _missing_bytes(model: str, lengths: Lengths, rejection: Rejection) -> float:
    """Bytes lacking per GPU, 0 where the estimate that left it out cannot be asked again."""
    try:
        estimate(model, rejection.gpu, rejection.tp, rejection.precision, lengths)
    except DoesNotFit as error:
        return error.missing_bytes
    except SizingError:
        return 0.0
    return 0.0
