"""Start, watch and stop the same vLLM behind the real tritonserver, run by a vLLM backend like Triton's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from lab.environment import Environment, ensure
from lab.pace import PACED
from lab.reference.server import TRITON
from lab.tritonserver import TritonServer, check_python, spawn
from lab.vllm.server import MODEL, RECIPE, arguments, variables, write_model
from lab.vllm.settings import BehindTriton

MODEL_BEHIND_TRITON = "vllm_model"
"""Name under which the model is served."""
CONFIG = 'backend: "vllm"\ninstance_group [{ count: 1, kind: KIND_MODEL }]\n'


class VllmBehindTriton(TritonServer[BehindTriton]):
    """A running tritonserver as a context manager, ready when vLLM has loaded its model.

        with VllmBehindTriton(BehindTriton(grpc_port=0, http_port=0, metrics_port=0)) as server:
            client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    The tritonserver is the reference server's; the backend, lab/vllm/triton_backend.py, runs in vLLM's environment.

    Raises:
        ServerError: on entering, in one line: a port in use, no usable environment, or a server that did not start.
    """

    recipe = replace(RECIPE, server="vLLM behind Triton", check_python=check_python)
    ready_within_s = 240.0

    @property
    def tokenizer(self) -> Path:
        """Folder of the model's tokenizer; it exists while the server does."""
        return self.work / MODEL

    def _start(self, ready: Environment, work: Path) -> subprocess.Popen[bytes]:
        triton = ensure(TRITON, console=self._console)
        write_model(self.tokenizer, self.settings)
        version = work / "repository" / MODEL_BEHIND_TRITON / "1"
        version.mkdir(parents=True)
        (version / "model.json").write_text(json.dumps(arguments(self.settings, self.tokenizer)))
        (version.parent / "config.pbtxt").write_text(CONFIG)
        backend = work / "backends" / "vllm"
        shutil.copytree(PACED, backend)  # the stub imports from its backend's folder, and ignores PYTHONPATH
        shutil.copyfile(Path(__file__).with_name("triton_backend.py"), backend / "model.py")
        path = f"{ready.venv / 'bin'}:{os.environ.get('PATH', '')}"
        given = variables(self.settings, work) | {"PATH": path}
        return spawn(triton, self.settings, version.parent.parent, work, self.log, given)
