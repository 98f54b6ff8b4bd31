"""vLLM's OpenAI server, run as a program in vLLM's environment, with the options of `vllm serve`.

To inspect a model's class without initialising a GPU, vLLM starts another process, which imports vLLM and torch once
more: ten seconds of CPU at every start. There is no GPU here, so the server inspects the class itself.

vLLM's platform for CPUs always turns asynchronous scheduling off. At the pace of a GPU it makes a difference, so here
the option decides.
"""

import runpy
from typing import Any

from vllm.model_executor.models import registry
from vllm.platforms.cpu import CpuPlatform


def keep_scheduling(configured: Any) -> None:
    """The platform's settings, except for the requested scheduling."""
    asked = configured.scheduler_config.async_scheduling
    _check_and_update(configured)
    configured.scheduler_config.async_scheduling = asked


_check_and_update = CpuPlatform.check_and_update_config

if __name__ == "__main__":
    registry._run_in_subprocess = lambda inspect: inspect()
    CpuPlatform.check_and_update_config = staticmethod(keep_scheduling)
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
