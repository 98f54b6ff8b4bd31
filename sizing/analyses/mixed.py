"""Several GPU types in one fleet: the cheapest whole numbers of replicas that carry the load, within what there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sizing.edge import BY_FORMULA, BY_SIMULATION, SlaMissed
from sizing.errors import ScenarioError
from sizing.numbers import per_second
from sizing.plans import Fleet, NoFeasiblePlan
from sizing.question import Question

ROUNDS = 6
"""Rounds of choosing a mix and asking again what its groups can carry; two or three are enough."""
TIE = 1e-6
"""Weight of the number of GPUs beside the price: of two mixes at one price the smaller is taken."""
GAP = 1e-7
"""Of the cost, by which a mix may be off: less than one GPU of any fleet. HiGHS allows 1e-4 by itself."""


@dataclass(frozen=True, slots=True)
class Supply:
    """GPUs of one type: price of an hour, how many are owned (no price to pay), how many there are in all."""

    price_per_hour: float
    owned: int = 0
    available: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.price_per_hour < math.inf or self.owned < 0 or self.available < self.owned:
            raise ScenarioError(
                f"a GPU's price must be 0 or more, and of those available ({self.available:g}) "
                f"no more owned ({self.owned}) than there are"
            )


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    """One kind of replica a mix may hold: GPUs it takes, of which type, and requests/s it is planned for. A mix that
    has some of it has `least` or more: fewer miss the SLA."""

    gpu: str
    gpus: int
    rate_per_s: float
    least: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas of one candidate in a mix, those that stand by included, and the load they get together."""

    fleet: Fleet
    replicas: int
    rate_per_s: float
    load_per_s: float

    @property
    def gpus(self) -> int:
        """GPUs of the group."""
        return self.replicas * self.fleet.candidate.gpus


@dataclass(frozen=True, slots=True)
class Mix:
    """The cheapest mix: its groups, what it costs an hour (owned GPUs cost nothing), and what one type alone costs.

    The load is split in proportion to what the groups carry; the mix carries the whole load, headroom kept, also with
    the question's number of spares failed, whichever replicas these are.
    """

    groups: tuple[Group, ...]
    cost_per_hour: float
    alone: tuple[tuple[str, float | None], ...]

    @property
    def gpus(self) -> int:
        """GPUs of all groups."""
        return sum(group.gpus for group in self.groups)


def cheapest_counts(
    kinds: Sequence[ReplicaKind], supplies: Mapping[str, Supply], rate_per_s: float, spare: int
) -> tuple[tuple[int, ...], float] | None:
    """Replicas of each kind at the lowest cost an hour, and that cost; None if the GPUs available cannot do it. Of two
    at one cost the one of fewer GPUs.

    With any `spare` replicas failed the rest still carry `rate_per_s`. Let s be what the weakest of those that fail
    carries, the strongest ones: each of the rest carries s at most, and each of the failed s or more. So min(s, its
    own) summed over all replicas is `rate_per_s` and spare x s, and where that holds for any s, the rest carry enough:
    one integer program for each kind that may be the weakest to fail.
    """

    def cost_and_gpus(found: tuple[tuple[int, ...], float]) -> tuple[float, int]:
        counts, cost = found
        return round(cost, 9), sum(count * kind.gpus for count, kind in zip(counts, kinds, strict=True))

    each = (
        _solve(
            [replace(kind, rate_per_s=min(kind.rate_per_s, most_per_s)) for kind in kinds],
            supplies,
            rate_per_s + spare * most_per_s,
        )
        for most_per_s in {kind.rate_per_s for kind in kinds}
    )
    return min(filter(None, each), key=cost_and_gpus, default=None)


def _solve(
    kinds: Sequence[ReplicaKind], supplies: Mapping[str, Supply], rate_per_s: float
) -> tuple[tuple[int, ...], float] | None:
    """The integer program: variables are replicas of each kind, GPUs paid for of each type, and whether there are some
    of each kind."""
    # Costs a quarter of a second, which a plan without a mix does without.
    from scipy.optimize import Bounds, LinearConstraint, milp

    types = sorted({kind.gpu for kind in kinds})
    of_type = np.array([[kind.gpus * (kind.gpu == name) for kind in kinds] for name in types], float)
    prices = np.array([supplies[name].price_per_hour for name in types])
    gpus = np.array([kind.gpus for kind in kinds], float)
    rates = np.array([kind.rate_per_s for kind in kinds])
    owned = np.array([supplies[name].owned for name in types], float)
    available = np.array([supplies[name].available for name in types])
    least = np.array([kind.least for kind in kinds], float)
    most = np.maximum(np.ceil(rate_per_s / rates) + 1, least)
    each, of_each, none = np.eye(len(kinds)), np.eye(len(types)), np.zeros((len(types), len(kinds)))
    carried = LinearConstraint(np.concatenate([rates, 0 * prices, 0 * rates])[None], rate_per_s * (1 - 1e-9), np.inf)
    paid = LinearConstraint(np.hstack([of_type, -of_each, none]), -np.inf, owned)
    there = LinearConstraint(np.hstack([of_type, 0 * of_each, none]), -np.inf, available)
    enough = LinearConstraint(np.hstack([each, none.T, -np.diag(least)]), 0, np.inf)
    some = LinearConstraint(np.hstack([each, none.T, -np.diag(most)]), -np.inf, 0)
    cost = np.concatenate([TIE * max(prices.max(), 1.0) * gpus, prices, 0 * gpus])
    bounds = Bounds(np.zeros(len(cost)), np.concatenate([most, np.full(len(types), np.inf), np.ones(len(kinds))]))
    rules = [carried, paid, there, enough, some]
    exactly = {"mip_rel_gap": GAP}
    found = milp(cost, constraints=rules, bounds=bounds, integrality=np.ones(len(cost)), options=exactly)
    if found.x is None:
        return None
    counts = tuple(int(count) for count in np.rint(found.x[: len(kinds)]))
    return counts, float(prices @ np.maximum(of_type @ np.array(counts) - owned, 0))


def worth_mixing(fleets: Sequence[Fleet]) -> list[Fleet]:
    """Of each GPU type the fleets that carry more per GPU than all whose replicas are as small or smaller, and those
    that are verified, the plan's answer among them: a small replica costs less as a spare and fits the load better."""
    kept: list[Fleet] = []
    for fleet in sorted(fleets, key=lambda fleet: -fleet.requests_per_s_per_gpu):
        own = fleet.candidate
        if fleet.verified or all(own.gpus < each.candidate.gpus for each in kept if each.candidate.gpu == own.gpu):
            kept.append(fleet)
    return kept


def cheapest_mix(question: Question, fleets: Sequence[Fleet], supplies: Mapping[str, Supply]) -> Mix:
    """The cheapest mix of the fleets' candidates that carries the question's load; each group keeps the SLA by itself.

    A group in a mix is smaller than the fleet of its candidate alone, and balanced routing makes the capacity of a
    replica depend on the number of its like: after each choice the groups are asked again (see `asked_again`), until
    nothing changes. Raises ScenarioError for a GPU without a supply, NoFeasiblePlan when there are too few GPUs.
    """
    missing = {fleet.candidate.gpu for fleet in fleets} - set(supplies)
    if missing:
        raise ScenarioError(f"a mix needs the price of every GPU: --price {min(missing)}=PRICE is missing")
    kinds = [
        (fleet, ReplicaKind(fleet.candidate.gpu, fleet.candidate.gpus, fleet.requests_per_s_per_replica))
        for fleet in fleets
    ]
    for _ in range(ROUNDS):
        counts, _ = chosen(question, [kind for _, kind in kinds], supplies)
        found = zip(kinds, counts, strict=True)
        again = [(fleet, now) for (fleet, kind), count in found for now in asked_again(question, fleet, kind, count)]
        if again == kinds:
            break
        kinds = again
    counts, cost_per_hour = chosen(question, [kind for _, kind in kinds], supplies)
    groups = groups_of(question, kinds, counts)
    return Mix(groups, cost_per_hour, alone(question, [kind for _, kind in kinds], supplies))


def chosen(
    question: Question, kinds: Sequence[ReplicaKind], supplies: Mapping[str, Supply]
) -> tuple[tuple[int, ...], float]:
    """`cheapest_counts` for the question's load and spares; raises NoFeasiblePlan when there are too few GPUs."""
    load_per_s = question.workload.rate_per_s
    found = cheapest_counts(kinds, supplies, load_per_s, question.spare)
    if found is None:
        raise NoFeasiblePlan(f"too few GPUs for {per_second(load_per_s)}: {in_words(supplies)}", ())
    return found


def asked_again(question: Question, fleet: Fleet, kind: ReplicaKind, replicas: int) -> list[ReplicaKind]:
    """The kind, where a replica carries as much in a group of `replicas` of which the spares have failed.

    Else with what it carries there, and as it was in groups no smaller than its own fleet; these alone where the SLA
    is missed, as by a burst that few replicas cannot take.
    """
    if replicas == 0:
        return [kind]
    large = [replace(kind, least=fleet.replicas)] if replicas < fleet.replicas else []
    try:
        rate_per_s = carried(question, fleet, max(1, replicas - question.spare))
    except SlaMissed:
        return large or [kind]
    return [kind] if rate_per_s >= kind.rate_per_s * (1 - 1e-9) else [*large, replace(kind, rate_per_s=rate_per_s)]


def carried(question: Question, fleet: Fleet, replicas: int) -> float:
    """Requests/s a replica is planned for in a group of `replicas`, by the fleet's method. Raises SlaMissed."""
    method = BY_SIMULATION if fleet.verified else BY_FORMULA
    return method.capacity_per_s(fleet.candidate.replica, question.setting(replicas)) * (1 - question.headroom)


def groups_of(
    question: Question, kinds: Sequence[tuple[Fleet, ReplicaKind]], counts: Sequence[int]
) -> tuple[Group, ...]:
    """The groups of a mix, each with its share of the load, strongest first."""
    in_all = sum(count * kind.rate_per_s for (_, kind), count in zip(kinds, counts, strict=True))
    share = question.workload.rate_per_s / in_all
    groups = [
        Group(fleet, count, kind.rate_per_s, count * kind.rate_per_s * share)
        for (fleet, kind), count in zip(kinds, counts, strict=True)
        if count
    ]
    return tuple(sorted(groups, key=lambda group: -group.load_per_s))


def alone(
    question: Question, kinds: Sequence[ReplicaKind], supplies: Mapping[str, Supply]
) -> tuple[tuple[str, float | None], ...]:
    """Cost an hour with each GPU type alone; None where there are too few of it."""
    costs = []
    for name in dict.fromkeys(kind.gpu for kind in kinds):
        of_it = [kind for kind in kinds if kind.gpu == name]
        found = cheapest_counts(of_it, supplies, question.workload.rate_per_s, question.spare)
        costs.append((name, None if found is None else found[1]))
    return tuple(costs)


def in_words(supplies: Mapping[str, Supply]) -> str:
    """What there is of each GPU."""
    return ", ".join(
        f"{supply.available:g} {name}" if supply.available < math.inf else f"any number of {name}"
        for name, supply in sorted(supplies.items())
    )
