"""What the caller says of an imported measurement: the deployment, and whatever else the file leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibration.errors import FileError
from calibration.importers.edge import Positive, clean, first_fault
from sizing.curves import Deployment, LoadKind

Text = Annotated[str, Field(min_length=1, max_length=200)]
Whole = Annotated[int, Field(ge=1, le=10**6)]
ArrivalsName = Literal["constant", "poisson", "gamma"]

RATE_KINDS: Mapping[str, LoadKind] = {
    "constant": "constant_rate",
    "poisson": "poisson_rate",
    "gamma": "gamma_rate",
}


class Offered(NamedTuple):
    """A load level: `value` users (closed loop) or requests/s (open loop)."""

    kind: LoadKind
    value: float

    @property
    def open_loop(self) -> bool:
        """True where requests come by a clock, not when an answer has come."""
        return self.kind != "concurrency"


class Known(BaseModel):
    """What the caller knows, each value also a flag of the command line: `max_batch_size` is ``--max-batch-size``.

    A value given here goes before what the file says. `isl` and `osl` are mean tokens a request; `concurrency` is users
    of a closed loop, `rate` requests/s of an open one, whose intervals follow `arrivals`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: Text | None = None
    precision: Text | None = None
    gpu: Text | None = None
    tp: Whole | None = None
    pp: Whole | None = None
    engine: str | None = None
    engine_version: str | None = None
    batching: str | None = None
    max_batch_size: Whole | None = None
    isl: Positive | None = None
    osl: Positive | None = None
    concurrency: Whole | None = None
    rate: Positive | None = None
    arrivals: ArrivalsName | None = None

    def deployment(self, model: str | None, name: str) -> Deployment:
        """The deployment, its model from the file where the caller names none.

        Raises FileError naming every flag that is still to be given.
        """
        chosen = self.model or model
        self._need(name, model=chosen, precision=self.precision, gpu=self.gpu, tp=self.tp)
        return Deployment(
            model=chosen or "",
            precision=self.precision or "",
            gpu=self.gpu or "",
            tp=self.tp or 1,
            pp=self.pp or 1,
            engine=self.engine or "",
            engine_version=self.engine_version or "",
            batching=self.batching or "",
            max_batch_size=self.max_batch_size,
        )

    def lengths(self, isl: float | None, osl: float | None, name: str) -> tuple[float, float]:
        """Mean tokens in and out. Raises FileError naming the flags where neither file nor caller says them."""
        chosen = (self.isl or isl, self.osl or osl)
        self._need(name, isl=chosen[0], osl=chosen[1])
        return chosen[0] or 1.0, chosen[1] or 1.0

    def load(self, in_file: Offered | None, name: str, *, arrivals: ArrivalsName = "poisson") -> Offered:
        """The load level; a rate without `arrivals` of its own is taken to be by the tool's usual `arrivals`.

        Raises FileError naming the flags where neither file nor caller says it, or the caller says two.
        """
        if self.concurrency and self.rate:
            raise FileError("--concurrency and --rate: give one of them, a load is either closed or open loop")
        if self.concurrency:
            return Offered("concurrency", float(self.concurrency))
        if self.rate:
            return Offered(RATE_KINDS[self.arrivals or arrivals], self.rate)
        if in_file is None:
            raise FileError(f"{name}: the file does not say the load; give --concurrency N or --rate R")
        if in_file.open_loop and self.arrivals:
            return Offered(RATE_KINDS[self.arrivals], in_file.value)
        return in_file

    @staticmethod
    def _need(name: str, **values: object) -> None:
        lacking = [key for key, value in values.items() if not value]
        if lacking:
            flags = ", ".join(f"--{key}" for key in lacking)
            raise FileError(f"{name}: the file does not say {' or '.join(lacking)}; give {flags}")


def known(values: Mapping[str, object]) -> Known:
    """The caller's values, None meaning unknown, texts made harmless. Raises FileError naming the flag at fault."""
    said = {
        key: clean(value, len(value)) if isinstance(value, str) else value
        for key, value in values.items()
        if value is not None
    }
    try:
        return Known.model_validate(said)
    except ValidationError as error:
        raise FileError(f"what was said of the import, {first_fault(error)}") from None
