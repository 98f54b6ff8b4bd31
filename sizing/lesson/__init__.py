"""A batching lesson in ticks: slots, a queue, prompts that add up and tokens that share; four ways to batch.

A teaching model with three numbers instead of a law of iteration times. For sizing use `sizing.simulator`.
"""

from sizing.lesson.loop import draws, run
from sizing.lesson.outcome import Figures, Mark, Outcome, Step, figures
from sizing.lesson.setting import BATCHINGS, Batching, Load, LoadKind, Setting

__all__ = [
    "BATCHINGS",
    "Batching",
    "Figures",
    "Load",
    "LoadKind",
    "Mark",
    "Outcome",
    "Setting",
    "Step",
    "draws",
    "figures",
    "run",
]
