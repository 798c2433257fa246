"""Lists that grow and shrink."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "grows at run time",
        """
        func @main(%x: f32[3], %lim: f32[]) -> (list<f32[3]>, i64[]) {
          %l0 = list.new() : list<f32[3]>
          %y, %l = while (%a = %x, %l1 = %l0) {
            %s = aten.sum.default(%a) : f32[]
            %c = aten.lt.Tensor(%s, %lim) : bool[]
            yield %c
          } do (%b, %l2) {
            %b2 = aten.add.Tensor(%b, 1.0) : f32[3]
            %l3 = list.push(%l2, %b2) : list<f32[3]>
            yield %b2, %l3
          } : f32[3], list<f32[3]>
          %n = list.length(%l) : i64[]
          return %l, %n
        }
        """,
        {"x": [0.0, 0.0, 0.0], "lim": -1.0},
        {"x": [0.0, 0.0, 0.0], "lim": 0.5},
        {"x": [0.0, 0.0, 0.0], "lim": 30.0},
        {"x": [0.0, 0.0, 0.0], "lim": 400.0},
    ),
    Case(
        "stack of known length",
        """
        func @main(%x: f32[3]) -> (f32[6, 3], f32[3]) {
          %l0 = list.new(%x) : list<f32[3]>
          %y, %l = for %i in (0, 5, 1) carry (%b = %x, %l2 = %l0) {
            %b2 = aten.add.Tensor(%b, 1.0) : f32[3]
            %l3 = list.push(%l2, %b2) : list<f32[3]>
            yield %b2, %l3
          } : f32[3], list<f32[3]>
          %s = list.stack(%l) : f32[6, 3]
          %m = aten.sum.dim_IntList(%s, (0,), False) : f32[3]
          return %s, %m
        }
        """,
    ),
    Case(
        "pop",
        """
        func @main(%x: f32[3], %n: i64[], %m: i64[]) -> (f32[3], list<f32[3]>, i64[]) {
          %l0 = list.new() : list<f32[3]>
          %y, %l = for %i in (0, %n, 1) carry (%b = %x, %l2 = %l0) {
            %b2 = aten.add.Tensor(%b, 1.0) : f32[3]
            %l3 = list.push(%l2, %b2) : list<f32[3]>
            yield %b2, %l3
          } : f32[3], list<f32[3]>
          %acc, %rest = for %j in (0, %m, 1) carry (%s = %x, %k = %l) {
            %k2, %it = list.pop(%k) : list<f32[3]>, f32[3]
            %s2 = aten.mul.Tensor(%s, 0.5) : f32[3]
            %s3 = aten.add.Tensor(%s2, %it) : f32[3]
            yield %s3, %k2
          } : f32[3], list<f32[3]>
          %c = list.length(%rest) : i64[]
          return %acc, %rest, %c
        }
        """,
        {"n": 0, "m": 0},
        {"n": 1, "m": 1},
        {"n": 5, "m": 3},
        {"n": 100, "m": 100},
        {"n": 3, "m": 4},
        {"n": 0, "m": 1},
    ),
    Case(
        "popped and pushed",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3], i64[], i64[]) {
          %z = literal 0 : i64[]
          %l0 = list.new(%x) : list<f32[3]>
          %acc, %rest, %steps = while (%s = %x, %k = %l0, %ii = %z) {
            %len = list.length(%k) : i64[]
            %c = aten.gt.Scalar(%len, 0) : bool[]
            yield %c
          } do (%s1, %k1, %i1) {
            %k2, %it = list.pop(%k1) : list<f32[3]>, f32[3]
            %s2 = aten.mul.Tensor(%s1, 0.75) : f32[3]
            %s3 = aten.add.Tensor(%s2, %it) : f32[3]
            %c2 = aten.lt.Tensor(%i1, %n) : bool[]
            %k3 = if %c2 {
              %a = aten.mul.Tensor(%it, 0.5) : f32[3]
              %k4 = list.push(%k2, %a) : list<f32[3]>
              %b = aten.cos.default(%it) : f32[3]
              %k5 = list.push(%k4, %b) : list<f32[3]>
              yield %k5
            } else {
              yield %k2
            } : list<f32[3]>
            %i2 = aten.add.Tensor(%i1, 1) : i64[]
            yield %s3, %k3, %i2
          } : f32[3], list<f32[3]>, i64[]
          %c9 = list.length(%rest) : i64[]
          return %acc, %c9, %steps
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 70},
        {"n": 80},
    ),
    Case(
        "set",
        """
        func @main(%x: f32[3], %n: i64[]) -> (list<f32[3]>, f32[3], f32[3]) {
          %z = literal 0 : i64[]
          %y = aten.exp.default(%x) : f32[3]
          %l0 = list.new(%x, %y, %x, %y) : list<f32[3]>
          %old = list.get(%l0, %n) : f32[3]
          %old2 = aten.mul.Tensor(%old, 2.0) : f32[3]
          %l = for %i in (0, 3, 1) carry (%k = %l0) {
            %a = list.get(%k, %i) : f32[3]
            %j = aten.add.Tensor(%i, 1) : i64[]
            %b = list.get(%k, %j) : f32[3]
            %k2 = list.set(%k, %i, %b) : list<f32[3]>
            %k3 = list.set(%k2, %j, %a) : list<f32[3]>
            yield %k3
          } : list<f32[3]>
          %l9 = list.set(%l, %n, %old2) : list<f32[3]>
          return %l9, %old, %old2
        }
        """,
        {"n": 0},
        {"n": 3},
        {"n": -1},
        {"n": -4},
        {"n": 4},
        {"n": -5},
    ),
    Case(
        "pushed in nested loops",
        """
        func @main(%x: f32[2], %n: i64[]) -> (list<f32[2]>, i64[]) {
          %l0 = list.new() : list<f32[2]>
          %y, %l = for %i in (0, %n, 1) carry (%b = %x, %l2 = %l0) {
            %b5, %l5 = for %j in (0, %i, 1) carry (%b3 = %b, %l3 = %l2) {
              %b4 = aten.add.Tensor(%b3, 1.0) : f32[2]
              %l4 = list.push(%l3, %b4) : list<f32[2]>
              yield %b4, %l4
            } : f32[2], list<f32[2]>
            %l6 = list.push(%l5, %b) : list<f32[2]>
            yield %b5, %l6
          } : f32[2], list<f32[2]>
          %c = list.length(%l) : i64[]
          return %l, %c
        }
        """,
        {"x": [0.0, 0.0], "n": 0},
        {"x": [0.0, 0.0], "n": 1},
        {"x": [0.0, 0.0], "n": 5},
        {"x": [0.0, 0.0], "n": 20},
    ),
    Case(
        "pushed in nested loops of known length",
        """
        func @main(%x: f32[2]) -> (list<f32[2]>, i64[], f32[2]) {
          %l0 = list.new() : list<f32[2]>
          %y, %l = for %i in (0, 3, 1) carry (%b = %x, %l2 = %l0) {
            %b5, %l5 = for %j in (0, 4, 1) carry (%b3 = %b, %l3 = %l2) {
              %b4 = aten.add.Tensor(%b3, 1.0) : f32[2]
              %l4 = list.push(%l3, %b4) : list<f32[2]>
              yield %b4, %l4
            } : f32[2], list<f32[2]>
            %l6 = list.push(%l5, %b) : list<f32[2]>
            yield %b5, %l6
          } : f32[2], list<f32[2]>
          %k0 = list.new() : list<f32[2]>
          %k = for %i9 in (0, 3, 1) carry (%k2 = %k0) {
            %k5 = for %j9 in (0, 4, 1) carry (%k3 = %k2) {
              %k4 = list.push(%k3, %y) : list<f32[2]>
              yield %k4
            } : list<f32[2]>
            %k6 = list.push(%k5, %x) : list<f32[2]>
            yield %k6
          } : list<f32[2]>
          %m = literal -1 : i64[]
          %g = list.get(%k, %m) : f32[2]
          %c = list.length(%k) : i64[]
          return %l, %c, %g
        }
        """,
    ),
    Case(
        "made anew in each iteration",
        """
        func @main(%x: f32[2], %n: i64[]) -> (f32[2], i64[]) {
          %z = literal 0 : i64[]
          %r, %tot = for %i in (0, %n, 1) carry (%b = %x, %c = %z) {
            %l0 = list.new() : list<f32[2]>
            %b5, %l5 = for %j in (0, %i, 1) carry (%b3 = %b, %l3 = %l0) {
              %b4 = aten.add.Tensor(%b3, 1.0) : f32[2]
              %l4 = list.push(%l3, %b4) : list<f32[2]>
              yield %b4, %l4
            } : f32[2], list<f32[2]>
            %n5 = list.length(%l5) : i64[]
            %c2 = aten.add.Tensor(%c, %n5) : i64[]
            %l6 = list.push(%l5, %b) : list<f32[2]>
            %st = list.stack(%l6) : f32[s1, 2]
            %su = aten.sum.dim_IntList(%st, (0,), False) : f32[2]
            yield %su, %c2
          } : f32[2], i64[]
          return %r, %tot
        }
        """,
        {"x": [0.0, 0.0], "n": 0},
        {"x": [0.0, 0.0], "n": 1},
        {"x": [0.0, 0.0], "n": 5},
    ),
    Case(
        "of integers",
        """
        func @main(%n: i64[]) -> (list<i64[]>, i64[], i64[]) {
          %l0 = list.new() : list<i64[]>
          %l = for %i in (0, %n, 1) carry (%l1 = %l0) {
            %l3 = list.push(%l1, %i) : list<i64[]>
            yield %l3
          } : list<i64[]>
          %z = literal 0 : i64[]
          %tot = for %i2 in (0, %n, 1) carry (%a = %z) {
            %g = list.get(%l, %i2) : i64[]
            %b = aten.add.Tensor(%a, %g) : i64[]
            yield %b
          } : i64[]
          %m = literal -1 : i64[]
          %last = list.get(%l, %m) : i64[]
          return %l, %tot, %last
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 100},
    ),
    Case(
        "started again",
        """
        func @main(%x: f32[2], %n: i64[]) -> (list<f32[2]>) {
          %l0 = list.new() : list<f32[2]>
          %l = for %i in (0, %n, 1) carry (%l1 = %l0) {
            %r = aten.remainder.Scalar(%i, 3) : i64[]
            %c = aten.eq.Scalar(%r, 0) : bool[]
            %l5 = if %c {
              %l2 = list.new(%x) : list<f32[2]>
              yield %l2
            } else {
              %xi = aten.add.Tensor(%x, %i) : f32[2]
              %l3 = list.push(%l1, %xi) : list<f32[2]>
              yield %l3
            } : list<f32[2]>
            yield %l5
          } : list<f32[2]>
          return %l
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 5},
        {"n": 7},
    ),
)
