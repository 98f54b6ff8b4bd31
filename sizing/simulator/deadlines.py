"""When requests in the line give up: a pairing heap whose links are in the request records; compiled by numba.

Insertion takes constant time, removal logarithmic time on average (Fredman, Sedgewick, Sleator, Tarjan 1986). A request
that starts stays in the heap; whoever takes the first entry out looks whether it still holds.
"""

from __future__ import annotations

import math

from sizing.simulator.heap import compiled, compiled_apart
from sizing.simulator.records import NOBODY, Requests, State


@compiled
def insert_deadline(state: State, requests: Requests, request: int, deadline_s: float) -> None:
    """Note that a request in the line gives up at `deadline_s`; one that never does, inf, is not noted."""
    requests[request].deadline_s = deadline_s
    if deadline_s == math.inf:
        return
    requests[request].below = NOBODY
    requests[request].beside = NOBODY
    set_first(state, requests, merged(requests, state.first_deadline, request))


@compiled_apart
def pop_deadline(state: State, requests: Requests) -> int:
    """Take out the request with the earliest deadline and return it."""
    first = state.first_deadline
    pairs = NOBODY
    child = requests[first].below
    while child != NOBODY:
        partner = requests[child].beside
        rest = NOBODY
        requests[child].beside = NOBODY
        if partner != NOBODY:
            rest = requests[partner].beside
            requests[partner].beside = NOBODY
        pair = merged(requests, child, partner)
        requests[pair].beside = pairs
        pairs = pair
        child = rest
    root = NOBODY
    while pairs != NOBODY:
        pair = pairs
        pairs = requests[pair].beside
        requests[pair].beside = NOBODY
        root = merged(requests, root, pair)
    requests[first].deadline_s = math.inf
    set_first(state, requests, root)
    return int(first)


@compiled
def merged(requests: Requests, one: int, other: int) -> int:
    """The root of two heaps made one; NOBODY is the empty heap."""
    if one == NOBODY:
        return other
    if other == NOBODY:
        return one
    if requests[other].deadline_s < requests[one].deadline_s:
        one, other = other, one
    requests[other].beside = requests[one].below
    requests[one].below = other
    return one


@compiled
def set_first(state: State, requests: Requests, root: int) -> None:
    """Keep the root of the heap and its key."""
    state.first_deadline = root
    state.next_deadline_s = math.inf if root == NOBODY else requests[root].deadline_s
