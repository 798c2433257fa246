"""A decoder that feeds its words back until it says "stop", all inside of the native program.

Run it: `python examples/while_decoder.py`

The number of steps is known only at the end: the loop's condition is a tensor.
"""

import torch
from torch import Tensor, nn

import stretto

STOP = 0
MOST_STEPS = 40


class Decoder(nn.Module):
    """h [1, width] -> words [MOST_STEPS], STOP from the end on, and the number of steps []."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        words = torch.full((MOST_STEPS,), STOP)
        word = torch.ones(1, dtype=torch.int64)
        step = torch.zeros((), dtype=torch.int64)
        while (word != STOP).all() and step < MOST_STEPS:
            h = self.cell(self.embedding(word), h)
            word = self.output(h).argmax(dim=-1)
            words[step] = word[0]
            step = step + 1
        return words, step


def main() -> None:
    torch.manual_seed(0)
    model = Decoder(vocabulary=12, width=32).eval()
    with torch.no_grad():  # weights with which an untrained decoder says "stop" now and then
        model.embedding.weight.mul_(4.0)
        model.output.bias[STOP] += 0.6
    fast = stretto.compile(model)
    with torch.no_grad():
        for seed in range(5):
            h = 3.0 * torch.randn(1, 32, generator=torch.Generator().manual_seed(seed))
            words, steps = fast(h)
            expected, expected_steps = model(h)
            assert torch.equal(words, expected) and torch.equal(steps, expected_steps)
            print(f"{int(steps):2} steps: {words[: int(steps)].tolist()}")
    print(f"programs compiled: {len(fast.signatures)}")


if __name__ == "__main__":
    main()
