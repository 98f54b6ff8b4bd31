"""Which load level to measure next, for one question: Bayesian design of experiments on the fitted law.

Read `next_point` first: start, choose, stop. `belief` is what the points so far say of the question; `worth` is what
each level not measured yet would add to that, and how long it would take.
"""

from sizing.design.belief import Belief, believe
from sizing.design.next_point import Choice, Stop, choose
from sizing.design.worth import Option, expected_s, spent_s, stretch

__all__ = ["Belief", "Choice", "Option", "Stop", "believe", "choose", "expected_s", "spent_s", "stretch"]
