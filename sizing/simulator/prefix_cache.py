"""The prefix cache of a replica: blocks that no request holds, kept for the next turn of their session; compiled.

Sessions share nothing with each other except the tokens that the engine holds once (`shared_tokens`), and a session has
one request at a time. Its blocks then enter the queue of free blocks together, the last of them first, and leave it
from that end or all at once: vLLM's queue in order of eviction is a list of sessions with a number of blocks each, and
every operation takes constant time. docs/simulator.md has the rules.

Blocks are evicted when memory is needed, so the queue is `trim`med before it is read, and before memory is freed: in
between, requests only grow.
"""

from __future__ import annotations

from sizing.compiled import compiled_apart
from sizing.simulator.state import BLOCKS, NEWER, NOBODY, OLDER, Engine, Requests, State, Workspace
from sizing.simulator.waiting import prompt_tokens_of, room_tokens


@compiled_apart
def look_up(engine: Engine, state: State, work: Workspace, requests: Requests, request: int) -> None:
    """Set the tokens that a waiting request of a session finds cached; those that a paused one had count as its prompt.

    At least one token is left to compute, which costs a whole block.
    """
    trim(engine, state, work)
    tokens = requests[request].isl + requests[request].generated
    most = (tokens - 1 - engine.shared_tokens) // engine.kv_block_tokens
    found = min(work.cached[requests[request].session, BLOCKS], most)
    requests[request].cached_tokens = engine.shared_tokens + found * engine.kv_block_tokens


@compiled_apart
def hold(state: State, work: Workspace, requests: Requests, request: int) -> None:
    """A request that is admitted holds what it found; blocks of its session beyond that are given up."""
    if requests[request].generated == 0:
        requests[request].found_tokens = requests[request].cached_tokens
    forget(state, work, requests[request].session)


@compiled_apart
def keep(engine: Engine, state: State, work: Workspace, requests: Requests, request: int, memory_tokens: float) -> None:
    """The whole blocks of a request that is about to free `memory_tokens` are cached, as those to be evicted last."""
    trim(engine, state, work)
    session = requests[request].session
    if session == NOBODY:
        return
    computed = memory_tokens
    if request == state.prefilling:
        computed += state.prefilled_tokens - prompt_tokens_of(requests, request)
    # Recorded turns may overlap: a later one that has left holds more of the session than one that was before it.
    blocks = max(int(computed + 1e-6) // engine.kv_block_tokens, work.cached[session, BLOCKS])
    forget(state, work, session)
    if blocks == 0:
        return
    work.cached[session, BLOCKS] = blocks
    work.cached[session, OLDER] = state.newest
    work.cached[session, NEWER] = NOBODY
    if state.newest == NOBODY:
        state.oldest = session
    else:
        work.cached[state.newest, NEWER] = session
    state.newest = session
    state.cached_blocks += blocks


@compiled_apart
def trim(engine: Engine, state: State, work: Workspace) -> None:
    """Evict cached blocks until the rest fits beside what requests hold: the oldest session's first, from its end."""
    # What requests that have left are still taken to hold is cached already.
    room = max(int((room_tokens(engine, state) + state.late_tokens) // engine.kv_block_tokens), 0)
    while state.cached_blocks > room:
        session, spare = state.oldest, state.cached_blocks - room
        if work.cached[session, BLOCKS] > spare:
            work.cached[session, BLOCKS] -= spare
            state.cached_blocks = room
        else:
            forget(state, work, session)


@compiled_apart
def forget(state: State, work: Workspace, session: int) -> None:
    """Take the blocks of a session, if there are any, out of the queue."""
    if work.cached[session, BLOCKS] == 0:
        return
    older, newer = work.cached[session, OLDER], work.cached[session, NEWER]
    state.cached_blocks -= work.cached[session, BLOCKS]
    work.cached[session, BLOCKS] = 0
    if older == NOBODY:
        state.oldest = newer
    else:
        work.cached[older, NEWER] = newer
    if newer == NOBODY:
        state.newest = older
    else:
        work.cached[newer, OLDER] = older


@compiled_apart
def forget_all(state: State, work: Workspace) -> None:
    """The replica fails, and its memory with it."""
    work.cached[:, BLOCKS] = 0
    state.cached_blocks, state.oldest, state.newest = 0, NOBODY, NOBODY
