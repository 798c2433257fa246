"""The host program against the interpreter, with tables that are run row by row."""

from __future__ import annotations

import torch

from stretto.batching.host.host_program import HostProgram
from stretto.batching.interpreter import interpret
from tests.batching.host.execution import Executor
from tests.batching.programs import tree, tree_lstm


def test_recursion_over_trees() -> None:
    program = tree_lstm()
    executor = Executor(HostProgram(program))
    trees = [tree(depth, 3 * depth + 1) for depth in (0, 3, 1, 4, 2)]
    results = executor([trees])
    for result, instance in zip(results, trees, strict=True):
        torch.testing.assert_close(result, interpret(program, [instance]))
    assert executor.steps == 5  # a step per depth: leaves are one, whatever their depth in the tree
