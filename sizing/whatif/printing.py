"""What ``python -m sizing whatif`` prints for people: both fleets, what changed between them, and what that assumes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rich.markup import escape
from rich.table import Table

from sizing.answer import binding
from sizing.numbers import milliseconds, percent, significant
from sizing.plan import Fleet, Rejection
from sizing.printing import console
from sizing.whatif.comparison import Comparison
from sizing.whatif.pools import Pools

BANDS = "An error of the law moves both counts the same way: the change between them is surer than either band says."


def print_comparison(found: Comparison, changes: tuple[str, ...]) -> None:
    """Both fleets side by side, then what binds, then the assumptions; one fleet where nothing is changed."""
    say = partial(console().print, soft_wrap=True)
    say(f"[bold]{escape(headline(found, changes))}[/bold]")
    if changes:
        console().print(table_of(found))
    for name, side in (("Before", found.before), ("After", found.after))[: 2 if changes else 1]:
        if isinstance(side, Rejection):
            say(f"{name}: no fleet; {escape(side.why)}.")
        else:
            say(f"{name}, binding: {escape(binding(side))}.")
            for warning in side.warnings:
                say(f"[yellow]warning, {name.lower()}:[/yellow] {escape(warning)}")
    if changes:
        say(BANDS)
        _print_assumptions(found.assumptions)
        say(f"Nobody has measured this: calibrate before buying. Both fleets are sized by {found.sized_by}.")


def headline(found: Comparison, changes: tuple[str, ...]) -> str:
    """For instance: With precision=fp8: 10 GPUs instead of 14 (h200_sxm) for 20 requests/s of Qwen/Qwen3-32B."""
    question, gpu = found.question, found.setup.candidate.gpu
    load = f"({gpu}) for {significant(question.workload.rate_per_s)} requests/s of {question.model}"
    if not changes:
        return f"As it is: {_gpus(found.before)} {load}"
    return f"With {', '.join(changes)}: {_instead(_gpus(found.after), _gpus(found.before))} {load}"


def _instead(now: str, before: str) -> str:
    return f"still {now}" if now == before else f"{now} instead of {before}"


def _gpus(side: Fleet | Rejection) -> str:
    return f"{side.gpus} GPUs" if isinstance(side, Fleet) else "no fleet"


def table_of(found: Comparison) -> Table:
    """GPUs, what each carries and the latencies of the SLA at the planned load: before, after, and the change."""
    table = Table("", "before", "after", "change", caption="Latencies at the planned load, each fleet on its own GPUs")
    table.caption_justify = "left"
    sides = (found.before, found.after)

    def said(name: str, cell: Callable[[Fleet], str]) -> None:
        table.add_row(name, *(escape(cell(side)) if isinstance(side, Fleet) else "-" for side in sides), "")

    def counted(name: str, value: Callable[[Fleet], float], show: Callable[[float], str]) -> None:
        values = [value(side) if isinstance(side, Fleet) else None for side in sides]
        before, after = values
        change = percent(after / before - 1, sign=True) if before and after is not None else ""
        change = "same" if change in ("+0%", "-0%") else change
        table.add_row(name, *("-" if each is None else show(each) for each in values), change)

    said("replica", lambda fleet: fleet.candidate.label)
    said("working + spare replicas", lambda fleet: f"{fleet.working} + {fleet.spare}")
    counted("GPUs, spares included", lambda fleet: fleet.gpus, str)
    said("90 % band of the GPUs", lambda fleet: f"{fleet.gpus_low} to {fleet.gpus_high or 'no limit'}")
    counted("requests/s per GPU", lambda fleet: fleet.requests_per_s_per_gpu, significant)
    for limit in found.question.sla.limits:
        counted(str(limit), lambda fleet, limit=limit: fleet.predicted.value_s(limit), milliseconds)  # type: ignore[misc]
    said("basis", lambda fleet: fleet.basis)
    return table


def print_pools(pools: Pools | Rejection, found: Comparison) -> None:
    """The two pools in a sentence, what users see of both, then the assumptions beyond those of the changes."""
    say = partial(console().print, soft_wrap=True)
    if isinstance(pools, Rejection):
        say(f"Disaggregated: no fleet; {escape(pools.why)}.")
        return
    say(f"[bold]Disaggregated: {_instead(f'{pools.gpus} GPUs', f'{_gpus(found.after)} in one fleet')}[/bold]")
    for name, fleet in (("Prompts", pools.prefill), ("Tokens", pools.decode)):
        replicas = f"{fleet.working} + {fleet.spare} spare replicas of {fleet.candidate.label}"
        say(
            f"  {name}: {fleet.gpus} GPUs, {escape(replicas)}, {percent(fleet.predicted.utilization)} of the stable "
            "rate."
        )
    if pools.predicted:
        seen = [
            f"{limit.name} {milliseconds(pools.predicted.value_s(limit))} of {milliseconds(limit.limit_s)}"
            for limit in found.question.sla.limits
        ]
        say(f"Both together at the planned load: {', '.join(seen)}. Verified by {pools.verified_by}, headroom kept.")
    _print_assumptions(pools.assumptions[len(found.assumptions) :])


def _print_assumptions(lines: tuple[str, ...]) -> None:
    out = console()
    out.print("This assumes:")
    for line in lines:
        out.print(f"  - {escape(line)}", soft_wrap=True)
