"""What the mock is told to do: when the tokens of an answer come, and what is odd about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from calibration.errors import PlanError


@dataclass(frozen=True, slots=True)
class Script:
    """How the mock answers a request for `osl` tokens (its ``max_tokens``). Times in seconds.

    The first response with tokens leaves `ttft_s` after the request came, or after one of the `slots` became free for
    it; each carries `tokens_per_response` tokens, the last what is left, and is followed by the next after `itl_s` for
    each of its tokens. `slots` None: any number of requests are served at once.

    `empty_first`: a response without tokens leaves at once. `late_final_s`: the last tokens are not marked final, an
    empty response that long after them is. `final_flag` False: nothing is marked. `short_by`: so many tokens are
    withheld. `error_every`, `hang_up_every` (0 never, n every n-th request): an error message in place of an answer;
    the stream ends after the first token. Over HTTP nothing is ever marked final, and the end of the body is the end.

    Raises PlanError if a value is not possible.
    """

    ttft_s: float = 0.02
    itl_s: float = 0.005
    tokens_per_response: int = 1
    empty_first: bool = False
    late_final_s: float = 0.0
    final_flag: bool = True
    slots: int | None = None
    short_by: int = 0
    error_every: int = 0
    hang_up_every: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise PlanError(f"mock: {field.name} must be a number of 0 or more, got {value}")
        for name in ("tokens_per_response", "slots"):
            if getattr(self, name) == 0:
                raise PlanError(f"mock: {name} must be 1 or more, got 0")

    def e2e_s(self, osl: int) -> float:
        """Seconds from a request to the last of its `osl` tokens, where no slot has to be waited for.

        >>> Script(ttft_s=0.02, itl_s=0.005).e2e_s(64)
        0.335
        """
        responses = math.ceil(max(1, osl - self.short_by) / self.tokens_per_response)
        return self.ttft_s + (responses - 1) * self.tokens_per_response * self.itl_s

    def requests_per_s(self, users: int, osl: int) -> float:
        """Requests/s that a client without delay of its own gets in a closed loop of `users`, by Little's law.

        >>> round(Script(ttft_s=0.02, itl_s=0.005).requests_per_s(users=256, osl=64))
        764
        """
        served = users if self.slots is None else min(users, self.slots)
        return served / (self.e2e_s(osl) + self.late_final_s)
