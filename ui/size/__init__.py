"""The parts of the Size page: the answer, what is said where there is none, the inverse question, a day."""
