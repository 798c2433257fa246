"""Encode a sentence's parse tree by recursion; one compiled program serves trees of any shape.

Run it: `python examples/recursive_tree.py`

The tree is data, not Python objects: the numbers of each node's children. So its shape may
change from call to call, and the recursion runs inside the native program.
"""

import torch
from torch import Tensor, nn

import stretto

SLOTS = 31  # room for this many nodes; shorter trees are padded


class TreeEncoder(nn.Module):
    """(word vectors [SLOTS, width], children [SLOTS, 2], root []) -> [width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * width, width)

    def encode(self, node: Tensor, words: Tensor, children: Tensor) -> Tensor:
        if children[node, 0] < 0:  # a leaf
            return words[node]
        left = self.encode(children[node, 0], words, children)
        right = self.encode(children[node, 1], words, children)
        return torch.tanh(self.join(torch.cat([left, right])))

    def forward(self, words: Tensor, children: Tensor, root: Tensor) -> Tensor:
        return self.encode(root, words, children)


def chain(leaves: int) -> tuple[Tensor, Tensor]:
    """Return the tree (((w0 w1) w2) ... ), as children and root."""
    children = torch.full((SLOTS, 2), -1)
    root = 0
    for leaf in range(1, leaves):
        children[leaves + leaf - 1] = torch.tensor([root, leaf])
        root = leaves + leaf - 1
    return children, torch.tensor(root)


def balanced(leaves: int) -> tuple[Tensor, Tensor]:
    """Return the tree that halves its words recursively, as children and root."""
    children = torch.full((SLOTS, 2), -1)
    level = list(range(leaves))
    free = leaves
    while len(level) > 1:
        above: list[int] = []
        for left, right in zip(level[::2], level[1::2], strict=True):
            children[free] = torch.tensor([left, right])
            above.append(free)
            free += 1
        level = above
    return children, torch.tensor(level[0])


def main() -> None:
    torch.manual_seed(0)
    model = TreeEncoder(width=64).eval()
    fast = stretto.compile(model)
    words = torch.randn(SLOTS, 64)
    with torch.no_grad():
        for name, (children, root) in {"chain": chain(12), "balanced": balanced(16)}.items():
            result, expected = fast(words, children, root), model(words, children, root)
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
            print(f"{name}: {int((children[:, 0] >= 0).sum())} inner nodes, same as eager")
    print(f"programs compiled: {len(fast.signatures)}")


if __name__ == "__main__":
    main()
