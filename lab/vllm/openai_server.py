"""vLLM's OpenAI server, run as a program in vLLM's environment, with the options of `vllm serve`.

To look at a model's class vLLM starts a process of its own, so that no GPU is initialised, and that process imports
vLLM and torch once more: ten seconds of CPU at every start. Here is no GPU, so the server looks at the class itself.

Its platform for CPUs turns asynchronous scheduling off, whatever it was told. At the pace of a GPU it means something.
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
