"""Updates that could be done in place, with older values still read."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "view alias",
        """
        func @main(%x: f32[6], %s: f32[2]) -> (f32[6], f32[6], f32[6]) {
          %y = aten.exp.default(%x) : f32[6]
          %v = aten.view.default(%y, (2, 3)) : f32[2, 3]
          %z = stretto.narrow_scatter(%y, %s, 0, 2) : f32[6]
          %f = aten.view.default(%v, (6,)) : f32[6]
          %e = aten.alias.default(%z) : f32[6]
          %z2 = stretto.narrow_scatter(%e, %s, 0, 0) : f32[6]
          return %f, %z, %z2
        }
        """,
    ),
    Case(
        "slice kept",
        """
        func @main(%x: f32[6], %s: f32[2]) -> (f32[2], f32[6], f32[6]) {
          %y = aten.exp.default(%x) : f32[6]
          %v = aten.slice.Tensor(%y, 0, 2, 4) : f32[2]
          %z = stretto.narrow_scatter(%y, %s, 0, 2) : f32[6]
          %fl = aten.flip.default(%z, (0,)) : f32[6]
          %g = aten.slice.Tensor(%fl, 0, 0, 2) : f32[2]
          %z2 = stretto.narrow_scatter(%z, %g, 0, 1) : f32[6]
          return %v, %fl, %z2
        }
        """,
    ),
    Case(
        "self src",
        """
        func @main(%x: f32[6]) -> (f32[6], f32[6]) {
          %y = aten.exp.default(%x) : f32[6]
          %g = aten.slice.Tensor(%y, 0, 0, 4) : f32[4]
          %z = stretto.narrow_scatter(%y, %g, 0, 1) : f32[6]
          %a = aten.sin.default(%x) : f32[6]
          %h = aten.flip.default(%a, (0,)) : f32[6]
          %z3 = stretto.narrow_scatter(%a, %h, 0, 0) : f32[6]
          return %z, %z3
        }
        """,
    ),
    Case(
        "cache loop",
        """
        func @main(%x: f32[3], %c: f32[8, 3], %n: i64[]) -> (f32[8, 3], f32[3]) {
          %a, %b = for %i in (0, %n, 1) carry (%cc = %c, %h = %x) {
            %old = aten.select.int(%cc, 0, %i) : f32[3]
            %nh = aten.add.Tensor(%h, %old) : f32[3]
            %u = aten.unsqueeze.default(%nh, 0) : f32[1, 3]
            %c2 = stretto.narrow_scatter(%cc, %u, 0, %i) : f32[8, 3]
            %new = aten.sum.dim_IntList(%c2, (0,), False) : f32[3]
            %m = aten.mul.Tensor(%old, 0.5) : f32[3]
            %nh2 = aten.add.Tensor(%m, %new) : f32[3]
            yield %c2, %nh2
          } : f32[8, 3], f32[3]
          return %a, %b
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 3},
        {"n": 8},
        {"n": 9},
    ),
    Case(
        "cache old view yielded",
        """
        func @main(%x: f32[8, 3], %n: i64[]) -> (f32[8, 3], f32[3], f32[3]) {
          %z = constant "z" : f32[3]
          %a, %b, %d = for %i in (0, %n, 1) carry (%cc = %x, %h = %z, %k = %z) {
            %old = aten.select.int(%cc, 0, %i) : f32[3]
            %u = aten.unsqueeze.default(%h, 0) : f32[1, 3]
            %c2 = stretto.narrow_scatter(%cc, %u, 0, %i) : f32[8, 3]
            %new = aten.select.int(%c2, 0, 1) : f32[3]
            yield %c2, %old, %new
          } : f32[8, 3], f32[3], f32[3]
          return %a, %b, %d
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 3},
        {"n": 8},
    ),
    Case(
        "cache two updates",
        """
        func @main(%x: f32[8, 3], %n: i64[]) -> (f32[8, 3], f32[8, 3]) {
          %z = constant "z" : f32[1, 3]
          %a = for %i in (0, %n, 1) carry (%cc = %x) {
            %old = aten.slice.Tensor(%cc, 0, 0, 1) : f32[1, 3]
            %c2 = stretto.narrow_scatter(%cc, %z, 0, %i) : f32[8, 3]
            %mid = aten.slice.Tensor(%c2, 0, 1, 2) : f32[1, 3]
            %c3 = stretto.narrow_scatter(%c2, %old, 0, 1) : f32[8, 3]
            %c4 = stretto.narrow_scatter(%c3, %mid, 0, 0) : f32[8, 3]
            yield %c4
          } : f32[8, 3]
          return %a, %x
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 3},
        {"n": 8},
    ),
    Case(
        "outer updated in loop",
        """
        func @main(%x: f32[4], %s: f32[1], %n: i64[]) -> (f32[4], f32[4]) {
          %y = aten.exp.default(%x) : f32[4]
          %a = for %i in (0, %n, 1) carry (%h = %x) {
            %y2 = stretto.narrow_scatter(%y, %s, 0, %i) : f32[4]
            %v = aten.view.default(%y, (2, 2)) : f32[2, 2]
            %w = aten.view.default(%v, (4,)) : f32[4]
            %y3 = stretto.narrow_scatter(%w, %s, 0, 1) : f32[4]
            %h1 = aten.mul.Tensor(%h, 0.5) : f32[4]
            %h2 = aten.add.Tensor(%h1, %y2) : f32[4]
            %h3 = aten.add.Tensor(%h2, %y3) : f32[4]
            yield %h3
          } : f32[4]
          return %a, %y
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 4},
    ),
    Case(
        "outer updated in arm",
        """
        func @main(%x: f32[4], %s: f32[1], %c: bool[]) -> (f32[4], f32[2]) {
          %y = aten.exp.default(%x) : f32[4]
          %sl = aten.slice.Tensor(%y, 0, 0, 2) : f32[2]
          %r = if %c {
            %y2 = stretto.narrow_scatter(%y, %s, 0, 1) : f32[4]
            yield %y2
          } else {
            %y3 = stretto.narrow_scatter(%y, %s, 0, 0) : f32[4]
            %y4 = aten.mul.Tensor(%y3, %y3) : f32[4]
            yield %y4
          } : f32[4]
          return %r, %sl
        }
        """,
        {"c": True},
        {"c": False},
    ),
    Case(
        "scatter loop",
        """
        func @main(%x: f32[6], %i: i64[3], %n: i64[]) -> (f32[6]) {
          %y = for %k in (0, %n, 1) carry (%a = %x) {
            %g = aten.gather.default(%a, 0, %i) : f32[3]
            %g2 = aten.add.Tensor(%g, 1.0) : f32[3]
            %z = aten.scatter.src(%a, 0, %i, %g2) : f32[6]
            yield %z
          } : f32[6]
          return %y
        }
        """,
        {"i": [0, 5, 2], "n": 0},
        {"i": [0, 5, 2], "n": 1},
        {"i": [0, 5, 2], "n": 5},
    ),
    Case(
        "in nested",
        """
        func @main(%x: f32[6], %s: f32[2], %n: i64[]) -> (f32[6], f32[6]) {
          %y, %q = for %k in (0, %n, 1) carry (%a = %x, %b = %x) {
            %r = for %j in (0, 3, 1) carry (%a2 = %a) {
              %t = aten.add.Tensor(%s, %j) : f32[2]
              %z = stretto.narrow_scatter(%a2, %t, 0, %j) : f32[6]
              yield %z
            } : f32[6]
            %sl = aten.slice.Tensor(%r, 0, 1, 3) : f32[2]
            %r2 = stretto.narrow_scatter(%r, %sl, 0, 3) : f32[6]
            %b2 = aten.add.Tensor(%a, %b) : f32[6]
            yield %r2, %b2
          } : f32[6], f32[6]
          return %y, %q
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 3},
    ),
    Case(
        "if yield updated",
        """
        func @main(%x: f32[6], %s: f32[2], %n: i64[]) -> (f32[6]) {
          %y = for %k in (0, %n, 1) carry (%a = %x) {
            %o = aten.remainder.Scalar(%k, 2) : i64[]
            %c = aten.eq.Scalar(%o, 0) : bool[]
            %r = if %c {
              %z = stretto.narrow_scatter(%a, %s, 0, %k) : f32[6]
              yield %z
            } else {
              yield %a
            } : f32[6]
            %m = aten.mul.Tensor(%r, 1.5) : f32[6]
            %z2 = stretto.narrow_scatter(%m, %s, 0, 3) : f32[6]
            yield %z2
          } : f32[6]
          return %y
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 3},
        {"n": 5},
    ),
    Case(
        "scalar item",
        """
        func @main(%x: i64[5], %n: i64[]) -> (i64[5], i64[]) {
          %z = literal 0 : i64[]
          %y, %s = for %k in (0, %n, 1) carry (%a = %x, %t = %z) {
            %e = aten.select.int(%a, 0, %k) : i64[]
            %e2 = aten.mul.Tensor(%e, 3) : i64[]
            %e3 = aten.add.Tensor(%e2, %t) : i64[]
            %u = aten.unsqueeze.default(%e3, 0) : i64[1]
            %a2 = stretto.narrow_scatter(%a, %u, 0, %k) : i64[5]
            %t2 = aten.add.Tensor(%e, %t) : i64[]
            yield %a2, %t2
          } : i64[5], i64[]
          return %y, %s
        }
        """,
        {"x": [0, 1, 2, 3, 4], "n": 0},
        {"x": [0, 1, 2, 3, 4], "n": 1},
        {"x": [0, 1, 2, 3, 4], "n": 3},
        {"x": [0, 1, 2, 3, 4], "n": 5},
    ),
)
