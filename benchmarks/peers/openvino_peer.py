"""OpenVINO, on the same ONNX programs as ONNX Runtime."""

import io
from typing import Any, ClassVar

from .base import Case, Peer, Prepared, arrays_to_numpy
from .onnxruntime_peer import onnx_program, require_packages


class OpenVinoPeer(Peer):
    name: ClassVar[str] = "openvino"

    def prepare(self, case: Case) -> Prepared:
        require_packages("onnx", "openvino")
        program, note = onnx_program(case)
        import openvino

        core = openvino.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": case.threads,
            # By default it computes in bfloat16 if the processor can.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = core.compile_model(core.read_model(io.BytesIO(program)), "CPU", settings)
        request = compiled.create_infer_request()
        inputs = [tensor.numpy() for tensor in case.inputs]

        def call() -> Any:
            found = request.infer(inputs, share_inputs=True, share_outputs=True)
            return [found[output] for output in compiled.outputs]

        return Prepared(call, arrays_to_numpy, note)
