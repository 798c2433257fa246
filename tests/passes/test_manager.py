"""The pass manager."""

from dataclasses import dataclass

import pytest

from stretto.errors import PassError
from stretto.ir.core import Program
from stretto.ir.text import print_program
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.manager import Repeat, run_passes
from stretto.passes.simplify import Simplify
from tests.support import check_pass, program_of

TEXT = """
    func @main(%x: f32[3]) -> (f32[3]) {
      %a = aten.clone.default(%x) : f32[3]
      %b = aten.neg.default(%a) : f32[3]
      return %b
    }
"""


@dataclass(frozen=True)
class Break:
    """Drops the first op, whoever reads it."""

    name: str = "break"

    def apply(self, program: Program) -> bool:
        del program.main.body.ops[0]
        return True


def test_the_given_program_stays_as_it_is() -> None:
    program = program_of(TEXT)
    before = print_program(program)
    after = run_passes(program, [Simplify(), EliminateDeadCode()])
    assert print_program(program) == before
    assert len(after.main.body.ops) == 1


def test_each_pass_that_changed_something_is_shown() -> None:
    seen: list[tuple[str, int]] = []
    run_passes(
        program_of(TEXT),
        [EliminateDeadCode(), Simplify(), Simplify(), EliminateCommonSubexpressions()],
        dump=lambda name, program: seen.append((name, len(program.main.body.ops))),
    )
    assert seen == [("simplify", 1)]


def test_a_pass_that_breaks_a_rule_is_named() -> None:
    with pytest.raises(PassError, match="the pass `break` left an invalid Program") as caught:
        run_passes(program_of(TEXT), [Break()])
    assert caught.value.op is not None
    run_passes(program_of(TEXT), [Break()], verify=False)


def test_repeat_goes_on_until_nothing_changes() -> None:
    chain = Repeat((FoldConstants(), Simplify(), EliminateDeadCode()))
    check_pass(
        """
        func @main(%x: f32[3]) -> (f32[3]) {
          %l = list.new(%x, %x) : list<f32[3]>
          %n = list.length(%l) : i64[]
          %c = aten.gt.Scalar(%n, 1) : bool[]
          %r = if %c {
            %k = aten.sub.Tensor(%n, 1) : i64[]
            %y = list.get(%l, %k) : f32[3]
            yield %y
          } else {
            %z = aten.neg.default(%x) : f32[3]
            yield %z
          } : f32[3]
          return %r
        }
        """,
        chain,
        "func @main(%x: f32[3]) -> (f32[3]) { return %x }",
    )
    assert not chain.apply(program_of("func @main(%x: f32[3]) -> (f32[3]) { return %x }"))


def test_repeat_has_a_limit_and_its_steps_are_shown_and_verified() -> None:
    seen: list[str] = []

    @dataclass(frozen=True)
    class Always:
        name: str = "always"

        def apply(self, program: Program) -> bool:
            return True

    run_passes(
        program_of(TEXT), [Repeat((Always(),), limit=3)], dump=lambda name, _: seen.append(name)
    )
    assert seen == ["always"] * 3
    with pytest.raises(PassError, match="`break`"):
        run_passes(program_of(TEXT), [Repeat((Break(),))])
