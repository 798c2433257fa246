"""Loops: carried values of every kind, bounds, nesting."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "swap",
        """
        func @main(%x: f32[5], %y: f32[5], %n: i64[]) -> (f32[5], f32[5]) {
          %a, %b = for %i in (0, %n, 1) carry (%p = %x, %q = %y) {
            yield %q, %p
          } : f32[5], f32[5]
          return %a, %b
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ),
    Case(
        "swap and compute",
        """
        func @main(%x: f32[5], %y: f32[5], %n: i64[]) -> (f32[5], f32[5]) {
          %a, %b = for %i in (0, %n, 1) carry (%p = %x, %q = %y) {
            %s = aten.add.Tensor(%p, %q) : f32[5]
            yield %q, %s
          } : f32[5], f32[5]
          return %a, %b
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ),
    Case(
        "one value yielded twice",
        """
        func @main(%x: f32[5], %y: f32[5], %n: i64[]) -> (f32[5], f32[5], f32[5]) {
          %a, %b, %c = for %i in (0, %n, 1) carry (%p = %x, %q = %y, %r = %y) {
            %s = aten.add.Tensor(%p, %q) : f32[5]
            yield %s, %s, %r
          } : f32[5], f32[5], f32[5]
          return %a, %b, %c
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ),
    Case(
        "one value starts two",
        """
        func @main(%x: f32[5], %n: i64[]) -> (f32[5], f32[5]) {
          %a, %b = for %i in (0, %n, 1) carry (%p = %x, %q = %x) {
            %s = aten.add.Tensor(%p, %q) : f32[5]
            %s2 = aten.mul.Tensor(%p, %q) : f32[5]
            yield %s2, %s
          } : f32[5], f32[5]
          return %a, %a
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ),
    Case(
        "three trade places",
        """
        func @main(%x: f32[5], %y: f32[5], %z: f32[5], %n: i64[]) -> (f32[5], f32[5], f32[5]) {
          %a, %b, %c = for %i in (0, %n, 1) carry (%p = %x, %q = %y, %r = %z) {
            yield %q, %r, %p
          } : f32[5], f32[5], f32[5]
          return %a, %b, %c
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
        {"n": 4},
    ),
    Case(
        "yields a value from outside",
        """
        func @main(%x: f32[5], %y: f32[5], %n: i64[]) -> (f32[5]) {
          %a = for %i in (0, %n, 1) carry (%p = %x) {
            yield %y
          } : f32[5]
          return %a
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
    ),
    Case(
        "carried scalars",
        """
        func @main(%x: f32[], %n: i64[], %b: bool[], %k: i64[]) -> (f32[], i64[], bool[], i64[]) {
          %one = literal 1 : i64[]
          %two = literal 2.5 : f32[]
          %a, %c, %d, %e = for %i in (0, %n, 1) carry (%p = %x, %q = %k, %r = %b, %s = %one) {
            %p2 = aten.mul.Tensor(%p, %two) : f32[]
            %q2 = aten.add.Tensor(%q, %i) : i64[]
            %r2 = aten.logical_not.default(%r) : bool[]
            yield %p2, %s, %r2, %q2
          } : f32[], i64[], bool[], i64[]
          return %a, %c, %d, %e
        }
        """,
        {"x": 1.888, "n": 0, "b": True, "k": 7},
        {"x": -0.25, "n": 1, "b": True, "k": 7},
        {"x": -1.97, "n": 2, "b": True, "k": 7},
        {"x": -0.328, "n": 5, "b": True, "k": 7},
    ),
    Case(
        "scalars trade places",
        """
        func @main(%n: i64[], %p: i64[], %q: i64[], %u: bool[], %v: bool[])
            -> (i64[], i64[], bool[], bool[]) {
          %a, %b, %c, %d = for %i in (0, %n, 1) carry (%x = %p, %y = %q, %g = %u, %h = %v) {
            yield %y, %x, %h, %g
          } : i64[], i64[], bool[], bool[]
          return %a, %b, %c, %d
        }
        """,
        {"n": 0, "p": 5, "q": 9, "u": True, "v": False},
        {"n": 1, "p": 5, "q": 9, "u": True, "v": False},
        {"n": 2, "p": 5, "q": 9, "u": True, "v": False},
        {"n": 3, "p": 5, "q": 9, "u": True, "v": False},
    ),
    Case(
        "steps",
        """
        func @main(%x: f32[7]) -> (f32[7], i64[], i64[], i64[]) {
          %z = literal 0 : i64[]
          %a, %s = for %i in (6, -1, -2) carry (%p = %x, %q = %z) {
            %e = aten.select.int(%p, 0, %i) : f32[]
            %p2 = aten.add.Tensor(%p, %e) : f32[7]
            %q2 = aten.mul.Tensor(%q, 3) : i64[]
            %q3 = aten.add.Tensor(%q2, %i) : i64[]
            yield %p2, %q3
          } : f32[7], i64[]
          %s2 = for %i1 in (1, 12, 5) carry (%q1 = %z) {
            %q12 = aten.mul.Tensor(%q1, 3) : i64[]
            %q13 = aten.add.Tensor(%q12, %i1) : i64[]
            yield %q13
          } : i64[]
          %s3 = for %i2 in (5, 5, 1) carry (%q21 = %z) {
            %q23 = aten.add.Tensor(%q21, %i2) : i64[]
            yield %q23
          } : i64[]
          return %a, %s, %s2, %s3
        }
        """,
    ),
    Case(
        "bounds known at run time",
        """
        func @main(%a: i64[], %b: i64[]) -> (i64[], i64[]) {
          %z = literal 0 : i64[]
          %s = for %i in (%a, %b, 3) carry (%q = %z) {
            %q2 = aten.mul.Tensor(%q, 3) : i64[]
            %q3 = aten.add.Tensor(%q2, %i) : i64[]
            yield %q3
          } : i64[]
          %s3 = for %i1 in (%b, %a, -2) carry (%q1 = %z) {
            %q12 = aten.mul.Tensor(%q1, 3) : i64[]
            %q13 = aten.add.Tensor(%q12, %i1) : i64[]
            yield %q13
          } : i64[]
          return %s, %s3
        }
        """,
        {"a": -3, "b": 9},
        {"a": 4, "b": 4},
        {"a": 9, "b": 1},
    ),
    Case(
        "while",
        """
        func @main(%x: f32[6]) -> (f32[6], i64[]) {
          %z = literal 0 : i64[]
          %lim = literal 100.0 : f32[]
          %y, %c = while (%a = %x, %k = %z) {
            %s = aten.sum.default(%a) : f32[]
            %ab = aten.abs.default(%s) : f32[]
            %t = aten.lt.Tensor(%ab, %lim) : bool[]
            yield %t
          } do (%a1, %k1) {
            %b = aten.mul.Tensor(%a1, 2.0) : f32[6]
            %k2 = aten.add.Tensor(%k1, 1) : i64[]
            yield %b, %k2
          } : f32[6], i64[]
          return %y, %c
        }
        """,
        {"x": [-0.45, -1.41, 0.69, 1.23, 0.74, 1.1]},
        {"x": [100.0, 100.0, 100.0, 100.0, 100.0, 100.0]},
    ),
    Case(
        "while without an iteration",
        """
        func @main(%x: f32[6], %b: bool[]) -> (f32[6]) {
          %f = literal False : bool[]
          %y, %c = while (%a = %x, %k = %b) {
            yield %k
          } do (%a1, %k1) {
            %b2 = aten.mul.Tensor(%a1, 2.0) : f32[6]
            yield %b2, %f
          } : f32[6], bool[]
          return %y
        }
        """,
        {"b": True},
        {"b": False},
    ),
    Case(
        "for in while in if in for",
        """
        func @main(%x: f32[4], %n: i64[], %lim: f32[]) -> (f32[4], i64[]) {
          %z = literal 0 : i64[]
          %y, %cnt = for %i in (0, %n, 1) carry (%a = %x, %c = %z) {
            %s = aten.sum.default(%a) : f32[]
            %cond = aten.gt.Scalar(%s, 0.0) : bool[]
            %a2, %c2 = if %cond {
              %b, %k = while (%p = %a, %q = %c) {
                %ss = aten.sum.default(%p) : f32[]
                %t = aten.lt.Tensor(%ss, %lim) : bool[]
                yield %t
              } do (%p1, %q1) {
                %r = for %j in (0, 3, 1) carry (%u = %p1) {
                  %u2 = aten.mul.Tensor(%u, 1.25) : f32[4]
                  yield %u2
                } : f32[4]
                %q2 = aten.add.Tensor(%q1, 1) : i64[]
                yield %r, %q2
              } : f32[4], i64[]
              yield %b, %k
            } else {
              %b1 = aten.neg.default(%a) : f32[4]
              yield %b1, %c
            } : f32[4], i64[]
            %a3 = aten.sub.Tensor(%a2, 3.0) : f32[4]
            yield %a3, %c2
          } : f32[4], i64[]
          return %y, %cnt
        }
        """,
        {"n": 0, "lim": 1.0},
        {"n": 1, "lim": 10.0},
        {"n": 4, "lim": 20.0},
        {"n": 7, "lim": 30.0},
    ),
    Case(
        "arms that pass values through",
        """
        func @main(%x: f32[4], %y: f32[4], %b: bool[]) -> (f32[4], f32[4], f32[4], i64[]) {
          %one = literal 1 : i64[]
          %two = literal 2 : i64[]
          %p, %q, %r, %s = if %b {
            yield %x, %y, %x, %one
          } else {
            %m = aten.mul.Tensor(%x, %y) : f32[4]
            yield %m, %m, %y, %two
          } : f32[4], f32[4], f32[4], i64[]
          return %p, %q, %r, %s
        }
        """,
        {"b": True},
        {"b": False},
    ),
    Case(
        "a branch feeds a loop",
        """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4]) {
          %z = literal 0 : i64[]
          %c = aten.gt.Scalar(%n, 2) : bool[]
          %init, %lim = if %c {
            %m = aten.exp.default(%x) : f32[4]
            yield %m, %n
          } else {
            yield %x, %z
          } : f32[4], i64[]
          %y = for %i in (0, %lim, 1) carry (%a = %init) {
            %o = aten.remainder.Scalar(%i, 2) : i64[]
            %odd = aten.eq.Scalar(%o, 1) : bool[]
            %r = if %odd {
              %u = aten.add.Tensor(%a, %x) : f32[4]
              yield %u
            } else {
              yield %a
            } : f32[4]
            yield %r
          } : f32[4]
          return %y
        }
        """,
        {"n": 0},
        {"n": 2},
        {"n": 3},
        {"n": 6},
    ),
    Case(
        "carried tensor of size zero",
        """
        func @main(%x: f32[0, 4], %n: i64[]) -> (f32[0, 4], f32[4]) {
          %y = for %i in (0, %n, 1) carry (%a = %x) {
            %b = aten.mul.Tensor(%a, 2.0) : f32[0, 4]
            yield %b
          } : f32[0, 4]
          %s = aten.sum.dim_IntList(%y, (0,), False) : f32[4]
          return %y, %s
        }
        """,
        {"n": 0},
        {"n": 3},
    ),
    Case(
        "position from an argmax",
        """
        func @main(%x: f32[5, 4], %n: i64[]) -> (f32[4], i64[]) {
          %row = aten.select.int(%x, 0, 0) : f32[4]
          %z = literal 0 : i64[]
          %r, %p = for %k in (0, %n, 1) carry (%a = %row, %q = %z) {
            %m = aten.argmax.default(%a, 0, False) : i64[]
            %sel = aten.select.int(%x, 0, %m) : f32[4]
            %b = aten.add.Tensor(%a, %sel) : f32[4]
            %q2 = aten.add.Tensor(%q, %m) : i64[]
            yield %b, %q2
          } : f32[4], i64[]
          return %r, %p
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 3},
        {"n": 9},
    ),
    Case(
        "carried scalars of other dtypes",
        """
        func @main(%x: f32[4], %a: f32[], %d: f64[], %h: bf16[], %i: i32[], %u: u8[])
            -> (f32[4], f64[], bf16[], i32[], u8[], bool[]) {
          %c = aten.gt.Tensor(%a, %d) : bool[]
          %d2 = aten.mul.Tensor(%d, 3) : f64[]
          %i64 = aten._to_copy.default(%i, dtype=torch.int64) : i64[]
          %o = if %c {
            %y = aten.mul.Tensor(%x, %a) : f32[4]
            yield %y
          } else {
            %y2 = aten.add.Tensor(%x, %i) : f32[4]
            yield %y2
          } : f32[4]
          %h2, %i2, %u2, %d3 = for %k in (0, %i64, 1)
              carry (%hh = %h, %ii = %i, %uu = %u, %dd = %d2) {
            %h3 = aten.mul.Tensor(%hh, 1.1) : bf16[]
            %i3 = aten.mul.Tensor(%ii, 3) : i32[]
            %u3 = aten.mul.Tensor(%uu, 7) : u8[]
            %d4 = aten.div.Tensor(%dd, %ii) : f64[]
            yield %h3, %i3, %u3, %d4
          } : bf16[], i32[], u8[], f64[]
          return %o, %d3, %h2, %i2, %u2, %c
        }
        """,
        {"a": 1.5, "d": 0.25, "h": 1.0, "i": 3, "u": 9},
        {"a": 1.5, "d": 7.25, "h": 1.0, "i": 30, "u": 201},
    ),
    Case(
        "control reads what the loop writes",
        """
        func @main(%x: i64[5]) -> (i64[5], i64[]) {
          %z = literal 0 : i64[]
          %y, %s, %st = while (%a = %x, %p = %z, %n = %z) {
            %e = aten.select.int(%a, 0, %p) : i64[]
            %c = aten.gt.Scalar(%e, 0) : bool[]
            yield %c
          } do (%a1, %p1, %n1) {
            %e1 = aten.select.int(%a1, 0, %p1) : i64[]
            %e2 = aten.sub.Tensor(%e1, 1) : i64[]
            %u = aten.unsqueeze.default(%e2, 0) : i64[1]
            %a2 = stretto.narrow_scatter(%a1, %u, 0, %p1) : i64[5]
            %p2 = aten.add.Tensor(%p1, %e1) : i64[]
            %p3 = aten.remainder.Scalar(%p2, 5) : i64[]
            %n2 = aten.add.Tensor(%n1, 1) : i64[]
            yield %a2, %p3, %n2
          } : i64[5], i64[], i64[]
          return %y, %st
        }
        """,
        {"x": [3, 1, 2, 4, 1]},
        {"x": [0, 1, 2, 4, 1]},
    ),
)
