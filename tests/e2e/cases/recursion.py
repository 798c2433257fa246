"""Functions that call themselves and each other."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "one call",
        """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4], i64[]) {
          %y, %k = call @f(%x, %n) : f32[4], i64[]
          return %y, %k
        }
        func @f(%x: f32[4], %n: i64[]) -> (f32[4], i64[]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %y, %k = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %a, %j = call @f(%x, %m) : f32[4], i64[]
            %b = aten.mul.Tensor(%a, 0.9) : f32[4]
            %d = aten.add.Tensor(%b, %x) : f32[4]
            %j2 = aten.add.Tensor(%j, %n) : i64[]
            yield %d, %j2
          } else {
            %z = literal 0 : i64[]
            yield %x, %z
          } : f32[4], i64[]
          return %y, %k
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 10},
    ),
    Case(
        "two calls, one feeds the other",
        """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4]) {
          %y = call @fib(%x, %n) : f32[4]
          return %y
        }
        func @fib(%x: f32[4], %n: i64[]) -> (f32[4]) {
          %w = constant "w" : f32[4, 4]
          %c = aten.gt.Scalar(%n, 1) : bool[]
          %y = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %m2 = aten.sub.Tensor(%n, 2) : i64[]
            %x2 = aten.mul.Tensor(%x, 0.5) : f32[4]
            %a = call @fib(%x2, %m) : f32[4]
            %s = aten.sin.default(%a) : f32[4]
            %b = call @fib(%s, %m2) : f32[4]
            %d = aten.add.Tensor(%b, %a) : f32[4]
            %r = aten.unsqueeze.default(%d, 0) : f32[1, 4]
            %mm = aten.mm.default(%r, %w) : f32[1, 4]
            %v = aten.view.default(%mm, (4,)) : f32[4]
            %e = aten.tanh.default(%v) : f32[4]
            yield %e
          } else {
            %e2 = aten.cos.default(%x) : f32[4]
            yield %e2
          } : f32[4]
          return %y
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 5},
        {"n": 7},
    ),
    Case(
        "two functions",
        """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4], bool[]) {
          %y, %e = call @even(%x, %n) : f32[4], bool[]
          return %y, %e
        }
        func @even(%x: f32[4], %n: i64[]) -> (f32[4], bool[]) {
          %c = aten.eq.Scalar(%n, 0) : bool[]
          %y, %r = if %c {
            %true = literal True : bool[]
            yield %x, %true
          } else {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %x2 = aten.mul.Tensor(%x, 1.5) : f32[4]
            %a, %b = call @odd(%x2, %m) : f32[4], bool[]
            yield %a, %b
          } : f32[4], bool[]
          return %y, %r
        }
        func @odd(%x: f32[4], %n: i64[]) -> (f32[4], bool[]) {
          %c = aten.eq.Scalar(%n, 0) : bool[]
          %y, %r = if %c {
            %false = literal False : bool[]
            yield %x, %false
          } else {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %x2 = aten.sub.Tensor(%x, 1.5) : f32[4]
            %a, %b = call @even(%x2, %m) : f32[4], bool[]
            yield %a, %b
          } : f32[4], bool[]
          return %y, %r
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 5},
        {"n": 8},
    ),
    Case(
        "loop in branch in recursion in loop",
        """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4], f32[]) {
          %y = for %i in (0, 3, 1) carry (%a = %x) {
            %c = aten.gt.Scalar(%i, 0) : bool[]
            %b = if %c {
              %q, %w = call @f(%a, %n) : f32[4], f32[]
              %q2 = aten.add.Tensor(%q, %w) : f32[4]
              yield %q2
            } else {
              yield %a
            } : f32[4]
            yield %b
          } : f32[4]
          %z, %v = call @f(%y, %n) : f32[4], f32[]
          return %z, %v
        }
        func @f(%x: f32[4], %n: i64[]) -> (f32[4], f32[]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %y, %s = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %r, %s3 = for %i in (0, 2, 1) carry (%a = %x, %acc = %x) {
              %b, %s2 = call @f(%a, %m) : f32[4], f32[]
              %b2 = aten.add.Tensor(%b, %acc) : f32[4]
              %b3 = aten.sin.default(%b2) : f32[4]
              %b4 = aten.mul.Tensor(%acc, %s2) : f32[4]
              yield %b3, %b4
            } : f32[4], f32[4]
            %s4 = aten.sum.default(%s3) : f32[]
            yield %r, %s4
          } else {
            %s5 = aten.mean.default(%x) : f32[]
            yield %x, %s5
          } : f32[4], f32[]
          return %y, %s
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ),
    Case(
        "arguments that are views",
        """
        func @main(%x: f32[6, 4], %n: i64[]) -> (f32[4]) {
          %y = call @f(%x, %n) : f32[4]
          return %y
        }
        func @f(%x: f32[6, 4], %n: i64[]) -> (f32[4]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %y = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %row = aten.select.int(%x, 0, %n) : f32[4]
            %g = call @g(%row, %m) : f32[4]
            %sl = aten.slice.Tensor(%x, 1, 0, 2) : f32[6, 2]
            %sr = aten.slice.Tensor(%x, 1, 2, 4) : f32[6, 2]
            %ct = aten.cat.default((%sr, %sl), 1) : f32[6, 4]
            %r = call @f(%ct, %m) : f32[4]
            %o = aten.add.Tensor(%r, %g) : f32[4]
            yield %o
          } else {
            %o2 = aten.select.int(%x, 0, 0) : f32[4]
            yield %o2
          } : f32[4]
          return %y
        }
        func @g(%r: f32[4], %n: i64[]) -> (f32[4]) {
          %e = aten.exp.default(%r) : f32[4]
          %c = aten.gt.Scalar(%n, 1) : bool[]
          %o = if %c {
            %m = aten.sub.Tensor(%n, 2) : i64[]
            %q = call @g(%e, %m) : f32[4]
            yield %q
          } else {
            yield %e
          } : f32[4]
          return %o
        }
        """,
        {
            "x": [
                [-0.17, -0.06, 0.26, 0.39],
                [0.0, -0.05, 0.08, -0.18],
                [0.04, 0.04, -0.24, -0.22],
                [0.01, 0.03, -0.1, 0.14],
                [0.16, -0.16, -0.35, 0.51],
                [0.09, 0.32, 0.27, 0.09],
            ],
            "n": 0,
        },
        {
            "x": [
                [-0.31, -0.08, 0.06, -0.23],
                [0.0, -0.17, 0.25, 0.17],
                [-0.07, 0.24, 0.43, -0.31],
                [0.15, 0.06, -0.04, 0.06],
                [-0.15, 0.08, 0.24, -0.01],
                [0.01, -0.09, -0.48, 0.08],
            ],
            "n": 1,
        },
        {
            "x": [
                [0.27, -0.13, 0.48, 0.11],
                [-0.1, -0.02, 0.36, -0.18],
                [0.05, -0.01, -0.12, -0.29],
                [0.04, -0.12, -0.16, -0.18],
                [0.0, -0.05, -0.08, -0.4],
                [0.41, -0.32, -0.11, -0.18],
            ],
            "n": 2,
        },
        {
            "x": [
                [0.17, 0.03, -0.23, 0.16],
                [-0.3, -0.08, 0.16, 0.28],
                [0.14, -0.39, 0.08, 0.12],
                [0.12, 0.42, -0.08, 0.18],
                [0.52, -0.02, -0.11, 0.1],
                [0.01, -0.05, -0.08, 0.16],
            ],
            "n": 3,
        },
    ),
    Case(
        "arguments trade places",
        """
        func @main(%x: f32[4], %y: f32[4], %n: i64[]) -> (f32[4], f32[4]) {
          %a, %b = call @f(%x, %y, %n) : f32[4], f32[4]
          return %b, %a
        }
        func @f(%x: f32[4], %y: f32[4], %n: i64[]) -> (f32[4], f32[4]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %a, %b = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %p, %q = call @f(%y, %x, %m) : f32[4], f32[4]
            %p2 = aten.add.Tensor(%p, 1.0) : f32[4]
            yield %p2, %q
          } else {
            yield %y, %x
          } : f32[4], f32[4]
          return %b, %a
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
        {"n": 4},
    ),
    Case(
        "one result twice",
        """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4], f32[4], f32[4]) {
          %a, %b, %d = call @f(%x, %n) : f32[4], f32[4], f32[4]
          return %b, %a, %d
        }
        func @f(%x: f32[4], %n: i64[]) -> (f32[4], f32[4], f32[4]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %a = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %p, %q, %r = call @f(%x, %m) : f32[4], f32[4], f32[4]
            %p2 = aten.add.Tensor(%p, %r) : f32[4]
            yield %p2
          } else {
            yield %x
          } : f32[4]
          return %a, %a, %x
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
        {"n": 4},
    ),
    Case(
        "list in a frame",
        """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4]) {
          %a = call @f(%x, %n) : f32[4]
          return %a
        }
        func @f(%x: f32[4], %n: i64[]) -> (f32[4]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %a = if %c {
            %l0 = list.new(%x) : list<f32[4]>
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %l = for %i in (0, 2, 1) carry (%l1 = %l0) {
              %xi = aten.add.Tensor(%x, %i) : f32[4]
              %p = call @f(%xi, %m) : f32[4]
              %l2 = list.push(%l1, %p) : list<f32[4]>
              yield %l2
            } : list<f32[4]>
            %st = list.stack(%l) : f32[3, 4]
            %s = aten.mean.dim(%st, (0,), False) : f32[4]
            yield %s
          } else {
            %e = aten.cos.default(%x) : f32[4]
            yield %e
          } : f32[4]
          return %a
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 3},
        {"n": 4},
    ),
    Case(
        "cache passed down",
        """
        func @main(%x: f32[4], %cache: f32[8, 4], %n: i64[]) -> (f32[4], f32[8, 4]) {
          %a, %b = call @f(%x, %cache, %n) : f32[4], f32[8, 4]
          return %a, %b
        }
        func @f(%x: f32[4], %cache: f32[8, 4], %n: i64[]) -> (f32[4], f32[8, 4]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %a, %b = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %u = aten.unsqueeze.default(%x, 0) : f32[1, 4]
            %c2 = stretto.narrow_scatter(%cache, %u, 0, %n) : f32[8, 4]
            %old = aten.select.int(%cache, 0, %n) : f32[4]
            %x2 = aten.sub.Tensor(%old, %x) : f32[4]
            %p, %q = call @f(%x2, %c2, %m) : f32[4], f32[8, 4]
            yield %p, %q
          } else {
            yield %x, %cache
          } : f32[4], f32[8, 4]
          return %a, %b
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 7},
        {"n": 8},
    ),
    Case(
        "argument at a computed position",
        """
        func @main(%x: f32[4, 3], %i: i64[], %n: i64[]) -> (f32[3]) {
          %iv = aten.view.default(%i, (1,)) : i64[1]
          %g = aten.embedding.default(%x, %iv) : f32[1, 3]
          %s = aten.view.default(%g, (3,)) : f32[3]
          %r = call @f(%s, %n) : f32[3]
          return %r
        }
        func @f(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %o = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %x2 = aten.mul.Tensor(%x, 2.0) : f32[3]
            %q = call @f(%x2, %m) : f32[3]
            yield %q
          } else {
            yield %x
          } : f32[3]
          return %o
        }
        """,
        {"i": 0, "n": 2},
        {"i": 3, "n": 2},
        {"i": 4, "n": 2},
    ),
    Case(
        "independent calls",
        """
        func @main(%x: f32[7, 4], %left: i64[7], %right: i64[7], %n: i64[]) -> (f32[4], f32[2]) {
          %y, %z = call @tree(%n, %x, %left, %right) : f32[4], f32[2]
          return %y, %z
        }
        func @tree(%n: i64[], %x: f32[7, 4], %left: i64[7], %right: i64[7]) -> (f32[4], f32[2]) {
          %w = constant "w" : f32[8, 4]
          %l = aten.select.int(%left, 0, %n) : i64[]
          %o = aten.select.int(%x, 0, %n) : f32[4]
          %c = aten.lt.Scalar(%l, 7) : bool[]
          %y, %z = if %c {
            %a, %b = call @tree(%l, %x, %left, %right) : f32[4], f32[2]
            %r = aten.select.int(%right, 0, %n) : i64[]
            %d, %e = call @tree(%r, %x, %left, %right) : f32[4], f32[2]
            %j = aten.cat.default((%a, %d)) : f32[8]
            %k = aten.unsqueeze.default(%j, 0) : f32[1, 8]
            %m = aten.mm.default(%k, %w) : f32[1, 4]
            %v = aten.squeeze.dim(%m, 0) : f32[4]
            %t = aten.tanh.default(%v) : f32[4]
            %p = aten.add.Tensor(%t, %o) : f32[4]
            %q = aten.div.Tensor(%b, %e) : f32[2]
            yield %p, %q
          } else {
            %s = aten.sin.default(%o) : f32[4]
            %h = aten.slice.Tensor(%s, 0, 1, 3) : f32[2]
            yield %s, %h
          } : f32[4], f32[2]
          return %y, %z
        }
        """,
        {"left": [7] * 7, "right": [0] * 7, "n": 3},
        {"left": [1, 3, 5, 7, 7, 7, 7], "right": [2, 4, 6, 0, 0, 0, 0], "n": 0},
        {"left": [1, 2, 3, 4, 5, 6, 7], "right": [6, 6, 6, 6, 6, 6, 0], "n": 0},
        {"left": [7, 0, 0, 1, 1, 3, 2], "right": [7, 0, 1, 1, 2, 4, 5], "n": 6},
        {"left": [7, 7, 0, 2, 7, 3, 5], "right": [7, 7, 1, 1, 7, 2, 4], "n": 6},
    ),
    Case(
        "independent calls, of which one counts",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %y = call @three(%x, %n) : f32[3]
          return %y
        }
        func @three(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %one = literal 1 : i64[]
          %c = aten.le.Tensor(%n, %one) : bool[]
          %s = aten.sin.default(%x) : f32[3]
          %y = if %c {
            yield %x
          } else {
            %m = aten.sub.Tensor(%n, %one) : i64[]
            %h = aten.div.Tensor_mode(%n, 2, rounding_mode="floor") : i64[]
            %u = aten.mul.Tensor(%x, %n) : f32[3]
            %a = call @three(%s, %m) : f32[3]
            %b = call @three(%u, %h) : f32[3]
            %d = call @three(%x, %h) : f32[3]
            %e = aten.mul.Tensor(%a, %b) : f32[3]
            %f = aten.sub.Tensor(%e, %d) : f32[3]
            %g = aten.add.Tensor(%f, %u) : f32[3]
            yield %g
          } : f32[3]
          return %y
        }
        """,
        {"n": 0},
        {"n": 2},
        {"n": 3},
        {"n": 7},
    ),
    Case(
        "library call in recursion",
        """
        func @main(%x: f32[3, 3], %n: i64[]) -> (f32[3, 3]) {
          %y = call @f(%x, %n) : f32[3, 3]
          return %y
        }
        func @f(%x: f32[3, 3], %n: i64[]) -> (f32[3, 3]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %y = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %s, %i = aten.sort.default(%x, 1, False) : f32[3, 3], i64[3, 3]
            %v = aten.linalg_matrix_exp.default(%s) : f32[3, 3]
            %t = aten.tanh.default(%v) : f32[3, 3]
            %r = call @f(%t, %m) : f32[3, 3]
            yield %r
          } else {
            yield %x
          } : f32[3, 3]
          return %y
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 3},
    ),
)
