"""A vLLM worker whose steps last as long as in a table: those of a GPU, on a machine without one.

Run by vLLM in its own environment (``--worker-cls vllm_worker.PacedWorker``). Scheduler, KV cache, sampling and
servers are vLLM's own, and a small model is computed in each step; what remains of the step's time is slept. PACE names
the JSON file that `lab.pace` wrote. With asynchronous scheduling the engine chooses the next step meanwhile, as it
does beside a GPU, where a step queues behind the one before it.
"""

from __future__ import annotations

import time
from typing import Any

from step_times import StepTimes
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker


class PacedWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not in the environment that is checked
    """The CPU worker, at the pace of a GPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._times = StepTimes()
        self._prompt_tokens: dict[str, int] = {}
        self._until_s = 0.0
        self._ahead = self.scheduler_config.async_scheduling

    def init_device(self) -> None:
        """The model runner computes each step synchronously: it needs nothing of what runs alongside a GPU."""
        self.scheduler_config.async_scheduling = False
        super().init_device()
        self.scheduler_config.async_scheduling = self._ahead

    def execute_model(self, scheduler_output: Any) -> Any:
        """Begin a step: vLLM's own computing, before the tokens are drawn."""
        begun_s = time.perf_counter()
        result = super().execute_model(scheduler_output)
        queued_s = max(begun_s, self._until_s) if self._ahead else begun_s
        self._until_s = queued_s + self.step_s(scheduler_output)
        return result

    def sample_tokens(self, grammar_output: Any) -> Any:
        """End the step, not before the GPU would have; if the engine schedules ahead, it waits for the result."""
        output = Awaited(super().sample_tokens(grammar_output), self._until_s)
        return output if self._ahead else output.get_output()

    def step_s(self, step: Any) -> float:
        """Seconds that the GPU would take for the scheduler's tokens, a vLLM SchedulerOutput."""
        before = step.scheduled_cached_reqs
        computed = dict(zip(before.req_ids, before.num_computed_tokens, strict=True))
        for request in step.scheduled_new_reqs:
            self._prompt_tokens[request.req_id] = len(request.prompt_token_ids)
            computed[request.req_id] = request.num_computed_tokens
        decodes, prompts, prompt_tokens = [], [], 0
        for name, tokens in step.num_scheduled_tokens.items():
            if computed[name] >= self._prompt_tokens[name]:
                decodes.append(computed[name])
            else:
                prompts.append(computed[name] + tokens)
                prompt_tokens += tokens
        for name in step.finished_req_ids:
            self._prompt_tokens.pop(name, None)
        if prompts:
            return float(self._times.mixed_s(prompt_tokens, len(decodes), prompts))
        return float(self._times.decode_s(decodes))


class Awaited(AsyncModelRunnerOutput):  # type: ignore[misc]
    """The result of a step, available from a given time on."""

    def __init__(self, output: Any, until_s: float) -> None:
        self._output, self._until_s = output, until_s

    def get_output(self) -> Any:
        """The output, once the GPU would have it."""
        time.sleep(max(0.0, self._until_s - time.perf_counter()))
        return self._output
