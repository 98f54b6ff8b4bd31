"""`calibration` where a late load generator voids no level: for tests of what becomes of levels that count.

A busy machine delays the load generator and its waking, whose levels are then void and in no answer. That they are is
proved in tests/calibration/metrics, on clocks of their own. Elsewhere the fixture `unhurried` lifts these rules, and
``python -m tests.calibration.unhurried ARGUMENTS`` is ``python -m calibration ARGUMENTS`` without them.
"""

from __future__ import annotations

from calibration.metrics import verdict

OF_A_BUSY_MACHINE = ("client_limited", "unsteady", "little")
RULES = tuple(rule for rule in verdict.RULES if rule[0] not in OF_A_BUSY_MACHINE)
"""Those that speak of the server alone, whose times are constant here."""


if __name__ == "__main__":
    from calibration.__main__ import main

    verdict.RULES = RULES
    main()
