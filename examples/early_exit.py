"""A classifier that stops at the first layer that is confident, so that easy inputs take less
time.

Run it: `python examples/early_exit.py`
"""

import torch
from torch import Tensor, nn

import stretto


class EarlyExit(nn.Module):
    """x [1, width] -> (logits [1, classes], the number of layers that ran [])."""

    def __init__(self, layers: int, width: int, classes: int, sure: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.exits = nn.ModuleList(nn.Linear(width, classes) for _ in range(layers))
        self.sure = sure

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.exits[0](x)
        ran = torch.zeros((), dtype=torch.int64)
        for layer, leave in zip(self.layers, self.exits, strict=True):
            x = x + torch.relu(layer(x))
            logits = leave(x)
            ran = ran + 1
            if logits.softmax(dim=-1).max() > self.sure:
                break
        return logits, ran


def main() -> None:
    torch.manual_seed(0)
    model = EarlyExit(layers=8, width=64, classes=5, sure=0.8).eval()
    fast = stretto.compile(model)
    with torch.no_grad():
        for scale in (0.5, 1.0, 2.0, 4.0):
            x = scale * torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
            (logits, ran), (expected, expected_ran) = fast(x), model(x)
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
            assert ran == expected_ran
            print(f"input of size {scale}: {int(ran)} of 8 layers, same as eager")
    print(f"programs compiled: {len(fast.signatures)}")


if __name__ == "__main__":
    main()
