"""A batching lesson in ticks: slots, a queue, prompts that add up and tokens that share; four ways to batch.

A teaching model with three numbers instead of a law of iteration times. For sizing use `sizing.simulator`.
"""

from learn.lesson.loop import draws, run
from learn.lesson.outcome import Figures, Mark, Outcome, Step, figures
from learn.lesson.setting import BATCHINGS, Batching, Load, LoadKind, Setting

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
