"""Checks of positions that nobody reads."""

from stretto.passes.check_unused import CheckUnused
from tests.support import check_pass, check_unchanged

CHECK = "stretto.check_positions.default"


def test_a_position_that_a_live_op_checks_needs_no_check() -> None:
    check_pass(
        f"""
        func @main(%x: f32[8], %y: f32[5], %c: bool[]) -> (f32[]) {{
          %n = aten.sum.default(%c) : i64[]
          {CHECK}(%n, 8, 1, "aten.select.int", 0, True)
          {CHECK}(%n, 5, 1, "aten.select.int", 0, True)
          %a = aten.select.int(%x, 0, %n) : f32[]
          if %c {{
            {CHECK}(%n, 8, 1, "aten.select.int", 0, True)
            yield
          }} else {{
            yield
          }}
          return %a
        }}
        """,
        CheckUnused(),
        f"""
        func @main(%x: f32[8], %y: f32[5], %c: bool[]) -> (f32[]) {{
          %n = aten.sum.default(%c) : i64[]
          {CHECK}(%n, 5, 1, "aten.select.int", 0, True)
          %a = aten.select.int(%x, 0, %n) : f32[]
          if %c {{
            yield
          }} else {{
            yield
          }}
          return %a
        }}
        """,
    )


def test_a_dead_op_gets_a_check_and_an_arm_is_no_substitute() -> None:
    check_pass(
        f"""
        func @main(%x: f32[8], %k: i64[2], %c: bool[]) -> (f32[]) {{
          %n = aten.sum.default(%c) : i64[]
          {CHECK}(%n, 8, 1, "aten.select.int", 0, True)
          %d = aten.mul.Tensor(%k, 0) : i64[2]
          %b = aten.index_select.default(%x, 0, %d) : f32[2]
          %r = if %c {{
            %a = aten.select.int(%x, 0, %n) : f32[]
            yield %a
          }} else {{
            %s = aten.sum.default(%x) : f32[]
            yield %s
          }} : f32[]
          return %r
        }}
        """,
        CheckUnused(),
        f"""
        func @main(%x: f32[8], %k: i64[2], %c: bool[]) -> (f32[]) {{
          %n = aten.sum.default(%c) : i64[]
          {CHECK}(%n, 8, 1, "aten.select.int", 0, True)
          %d = aten.mul.Tensor(%k, 0) : i64[2]
          {CHECK}(%d, 8, 1, "aten.index_select.default", 0, False)
          %b = aten.index_select.default(%x, 0, %d) : f32[2]
          %r = if %c {{
            %a = aten.select.int(%x, 0, %n) : f32[]
            yield %a
          }} else {{
            %s = aten.sum.default(%x) : f32[]
            yield %s
          }} : f32[]
          return %r
        }}
        """,
    )


def test_the_index_of_a_loop_within_the_size_needs_no_check() -> None:
    check_pass(
        f"""
        func @main(%x: f32[8]) -> (f32[8]) {{
          %r = for %i in (0, 8, 1) carry (%a = %x) {{
            {CHECK}(%i, 8, 1, "aten.select.int", 0, True)
            {CHECK}(%i, 9, 2, "stretto.narrow", 0, True)
            {CHECK}(%i, 9, 1, "aten.select.int", 0, True)
            %b = aten.sin.default(%a) : f32[8]
            yield %b
          }} : f32[8]
          return %r
        }}
        """,
        CheckUnused(),
        """
        func @main(%x: f32[8]) -> (f32[8]) {
          %r = for %i in (0, 8, 1) carry (%a = %x) {
            %b = aten.sin.default(%a) : f32[8]
            yield %b
          } : f32[8]
          return %r
        }
        """,
    )


def test_a_check_in_a_recursive_function_stays() -> None:
    check_unchanged(
        f"""
        func @down(%x: f32[4], %n: i64[]) -> (f32[4]) {{
          %go = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %go {{
            %m = aten.sub.Tensor(%n, 1) : i64[]
            {CHECK}(%m, 4, 1, "aten.select.int", 0, True)
            %s = call @down(%x, %m) : f32[4]
            yield %s
          }} else {{
            yield %x
          }} : f32[4]
          return %r
        }}
        func @main(%x: f32[4], %c: bool[]) -> (f32[4]) {{
          %n = aten.sum.default(%c) : i64[]
          %r = call @down(%x, %n) : f32[4]
          return %r
        }}
        """,
        CheckUnused(),
    )


def test_the_results_of_a_function_that_a_dead_call_is_to_are_dead() -> None:
    text = """
        func @down(%x: f32[4], %n: i64[]) -> (f32[]) {{
          %go = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %go {{
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %s = call @down(%x, %m) : f32[]
            yield %s
          }} else {{
            %k = aten.mul.Tensor(%n, 3) : i64[]{check}
            %a = aten.select.int(%x, 0, %k) : f32[]
            yield %a
          }} : f32[]
          return %r
        }}
        func @main(%x: f32[4], %c: bool[]) -> (f32[]) {{
          %n = aten.sum.default(%c) : i64[]
          %r = call @down(%x, %n) : f32[]
          %s = call @down(%x, %n) : f32[]
          return %{result}
        }}
        """
    check = f'\n            {CHECK}(%k, 4, 1, "aten.select.int", 0, True)'
    once = text.replace("%r = call @down(%x, %n) : f32[]\n          %s", "%s", 1)
    check_unchanged(once.format(check="", result="s"), CheckUnused())
    before, after = text.format(check="", result="r"), text.format(check=check, result="r")
    check_pass(before, CheckUnused(), after)


def test_an_op_that_only_its_own_check_needs_is_no_substitute_for_the_check() -> None:
    """What the loop carries is used by the check alone: without it the whole loop would go."""
    check_unchanged(
        f"""
        func @main(%x: f32[8], %n: i64[]) -> (f32[8]) {{
          %c = aten.mul.Tensor(%n, 1) : i64[]
          %r = for %i in (0, 5, 1) carry (%p = %c) {{
            {CHECK}(%p, 8, 1, "aten.select.int", 0, True)
            %a = aten.select.int(%x, 0, %p) : f32[]
            %b = aten._to_copy.default(%a, dtype=torch.int64) : i64[]
            yield %b
          }} : i64[]
          return %x
        }}
        """,
        CheckUnused(),
    )
