"""Weights of the zoo's loops: all on chip, in what ptxas makes of the programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.machines.cuda.machine import gpu_program
from stretto.machines.cuda.toolchain import GpuTarget
from stretto.options import Debug, Options
from stretto.tools.models import find_model
from stretto.tools.simulate import compile_model, target_machine
from tests.sampling import sampled

pytest.importorskip("triton", reason="triton is not installed")


@pytest.mark.whole
@pytest.mark.parametrize("name", sampled(["lstm", "nasrnn", "rae", "seq2seq"], ["rae"]))
def test_all_weights_on_chip_and_no_spill(name: str, tmp_path: Path) -> None:
    machine = target_machine("sm_90", 132)
    # By levels RAE would read its weights once for each level, and keep none.
    options = Options(cache_dir=tmp_path, debug=Debug(recursion="calls"))
    _, stages = compile_model(find_model(name), machine, options)
    made = gpu_program(stages)
    (source,), (compiled,) = made.sources, made.compiled
    assert source.kept and not source.lacking
    assert {part for parts in source.shares.values() for part in parts.values()} == {1.0}
    needs = compiled.resources
    assert needs.spill_bytes == 0 and needs.units_per_sm >= 1
    multiprocessor = GpuTarget.parse("sm_90").multiprocessor
    assert multiprocessor is not None
    assert source.shared_bytes < compiled.shared_bytes <= multiprocessor.most_shared_bytes
