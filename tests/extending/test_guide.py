"""The Python of the guide runs as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "user-kernels.md"


@pytest.mark.whole
def test_the_guide_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    pytest.importorskip("triton", reason="triton is not installed")
    pytest.importorskip("greenlet", reason="greenlet is not installed")
    file = tmp_path / "guide.py"
    file.write_text("\n".join(blocks))
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    for function in (names["layer"], names["scores"], names["layer_on_gpu"]):
        (signature,) = function.signatures
        assert all(kernel.call is None for kernel in signature.stages.device.kernels)
    x, w, table = torch.randn(5, 4), torch.randn(4, 6), torch.randn(2, 5, 3)
    wanted = torch.nn.functional.gelu(x @ w + 1, approximate="tanh") * 2
    torch.testing.assert_close(names["layer"](x, w), wanted, rtol=1e-4, atol=1e-5)
    turned = names["rotary"](wanted / 2, *table) * 2
    torch.testing.assert_close(names["layer_on_gpu"](x, w, *table), turned, rtol=1e-4, atol=1e-5)
