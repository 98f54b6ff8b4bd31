"""A model of Triton's Python backend that takes a set time and says when it ran with whom. Runs inside the server.

Its parameter `service_s` is the time of one execution. A request's STEPS says how many executions an iterative sequence
takes; it is rescheduled until then. A request is answered with four numbers for each of its executions: which one, its
start by the machine's steady clock in ns, the request's place in it, and how many requests it had.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.service_s = float(config["parameters"]["service_s"]["string_value"])
        self.iterative = config.get("sequence_batching", {}).get("iterative_sequence", False)
        self.executions = 0
        self.ran = {}

    def execute(self, requests):
        start = time.monotonic_ns()
        time.sleep(self.service_s)
        answers = [
            self.answer(request, [self.executions, start, place, len(requests)])
            for place, request in enumerate(requests)
        ]
        self.executions += 1
        return answers

    def answer(self, request, said):
        name, steps = (self.tensor(request, tensor) for tensor in ("NAME", "STEPS"))
        rows = pb_utils.get_input_tensor_by_name(request, "STEPS").as_numpy().shape[0]
        if self.iterative and self.tensor(request, "READY"):
            self.ran.setdefault(name, []).extend(said)
            if len(self.ran[name]) < 4 * steps:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return None
            said = self.ran.pop(name)
        return pb_utils.InferenceResponse([pb_utils.Tensor("RAN", np.array([said] * rows, dtype=np.int64))])

    def tensor(self, request, name):
        return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0])
