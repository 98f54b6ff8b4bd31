"""vLLM's OpenAI server, run as a program in vLLM's environment, with the options of `vllm serve`.

To look at a model's class vLLM starts a process of its own, so that no GPU is initialised, and that process imports
vLLM and torch once more: ten seconds of CPU at every start. Here is no GPU, so the server looks at the class itself.
"""

import runpy

from vllm.model_executor.models import registry

if __name__ == "__main__":
    registry._run_in_subprocess = lambda inspect: inspect()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
