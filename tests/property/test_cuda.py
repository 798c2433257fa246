"""Random Programs through the kernels of a GPU, interpreted, against the interpreter."""

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from stretto.errors import CodegenError
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.schedule.plan import MOST_KERNELS
from tests.backends import assert_close, built_cuda
from tests.property.programs import Features, programs
from tests.support import random_inputs

FEATURES = Features(ops=4, list_results=True, list_arguments=False)


@pytest.mark.whole
@settings(
    max_examples=15,
    derandomize=True,  # what CI runs is the same every time
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    program=programs(FEATURES),
    units=st.sampled_from((1, 2, 5)),
    fuse=st.booleans(),
    most_kernels=st.sampled_from((MOST_KERNELS, MOST_KERNELS, 1)),
)
def test_a_program_gives_what_the_interpreter_gives(
    program: Program, units: int, fuse: bool, most_kernels: int
) -> None:
    try:
        built = built_cuda(program, units, fuse)
    except CodegenError as error:  # has no place in a frame
        assert "is recursive, and makes a" in str(error)
        reject()
    executable = built.cuda(most_kernels=most_kernels)
    for seed in (0, 1):
        inputs = random_inputs(program, seed)
        assert_close(executable(inputs), run(program, inputs))
