"""Lists of which several are alive, so that they must not share memory."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "pushed in both arms",
        """
        func @main(%x: f32[3], %c: bool[], %d: bool[]) -> (list<f32[3]>, f32[3], i64[]) {
          %l0 = list.new(%x) : list<f32[3]>
          %l = if %c {
            %y = aten.exp.default(%x) : f32[3]
            %l1 = list.push(%l0, %y) : list<f32[3]>
            yield %l1
          } else {
            %l5 = if %d {
              %l2 = list.new() : list<f32[3]>
              yield %l2
            } else {
              yield %l0
            } : list<f32[3]>
            %z = aten.neg.default(%x) : f32[3]
            %l6 = list.push(%l5, %z) : list<f32[3]>
            %l7 = list.push(%l6, %z) : list<f32[3]>
            yield %l7
          } : list<f32[3]>
          %m1 = literal -1 : i64[]
          %g = list.get(%l, %m1) : f32[3]
          %n = list.length(%l) : i64[]
          return %l, %g, %n
        }
        """,
        {"c": True, "d": True},
        {"c": True, "d": False},
        {"c": False, "d": True},
        {"c": False, "d": False},
    ),
    Case(
        "made in both arms",
        """
        func @main(%x: f32[3], %c: bool[]) -> (list<f32[3]>) {
          %l = if %c {
            %l1 = list.new(%x) : list<f32[3]>
            yield %l1
          } else {
            %l2 = list.new(%x, %x, %x) : list<f32[3]>
            yield %l2
          } : list<f32[3]>
          return %l
        }
        """,
        {"c": True},
        {"c": False},
    ),
    Case(
        "old list used after a branch",
        """
        func @main(%x: f32[3], %c: bool[]) -> (list<f32[3]>, list<f32[3]>) {
          %l0 = list.new(%x) : list<f32[3]>
          %l = if %c {
            %l1 = list.push(%l0, %x) : list<f32[3]>
            yield %l1
          } else {
            yield %l0
          } : list<f32[3]>
          return %l, %l0
        }
        """,
        {"c": True},
        {"c": False},
    ),
    Case(
        "old list used in the other arm",
        """
        func @main(%x: f32[3], %c: bool[]) -> (list<f32[3]>, list<f32[3]>) {
          %l0 = list.new(%x) : list<f32[3]>
          %l, %k = if %c {
            %y = aten.exp.default(%x) : f32[3]
            %l1 = list.push(%l0, %y) : list<f32[3]>
            %e = list.new() : list<f32[3]>
            yield %l1, %e
          } else {
            yield %l0, %l0
          } : list<f32[3]>, list<f32[3]>
          return %l, %k
        }
        """,
        {"c": True},
        {"c": False},
    ),
    Case(
        "set in arms",
        """
        func @main(%x: f32[3], %c: bool[]) -> (list<f32[3]>, list<f32[3]>) {
          %z = literal 0 : i64[]
          %y = aten.exp.default(%x) : f32[3]
          %l0 = list.new(%x, %x) : list<f32[3]>
          %l, %k = if %c {
            %l1 = list.set(%l0, %z, %y) : list<f32[3]>
            yield %l1, %l0
          } else {
            %l2 = list.set(%l0, %z, %y) : list<f32[3]>
            yield %l0, %l2
          } : list<f32[3]>, list<f32[3]>
          return %l, %k
        }
        """,
        {"c": True},
        {"c": False},
    ),
    Case(
        "pushed after the loop",
        """
        func @main(%x: f32[2], %n: i64[]) -> (list<f32[2]>, list<f32[2]>, list<f32[2]>, f32[2]) {
          %l0 = list.new() : list<f32[2]>
          %l = for %i in (0, %n, 1) carry (%l2 = %l0) {
            %b4 = aten.add.Tensor(%x, %i) : f32[2]
            %l4 = list.push(%l2, %b4) : list<f32[2]>
            yield %l4
          } : list<f32[2]>
          %l5 = list.push(%l, %x) : list<f32[2]>
          %y = aten.exp.default(%x) : f32[2]
          %l6 = list.push(%l, %y) : list<f32[2]>
          %z = literal 0 : i64[]
          %g = list.get(%l6, %z) : f32[2]
          return %l5, %l6, %l5, %g
        }
        """,
        {"x": [0.0, 0.0], "n": 0},
        {"x": [0.0, 0.0], "n": 1},
        {"x": [0.0, 0.0], "n": 5},
        {"x": [0.0, 0.0], "n": 64},
        {"x": [0.0, 0.0], "n": 65},
    ),
    Case(
        "one list pushed to twice",
        """
        func @main(%x: f32[2]) -> (list<f32[2]>, list<f32[2]>, list<f32[2]>) {
          %l0 = list.new(%x) : list<f32[2]>
          %y = aten.exp.default(%x) : f32[2]
          %l1 = list.push(%l0, %x) : list<f32[2]>
          %l2 = list.push(%l0, %y) : list<f32[2]>
          return %l0, %l1, %l2
        }
        """,
    ),
    Case(
        "pushed to but not carried",
        """
        func @main(%x: f32[2], %n: i64[]) -> (list<f32[2]>, f32[2]) {
          %y = aten.exp.default(%x) : f32[2]
          %l0 = list.new(%x, %y) : list<f32[2]>
          %one = literal 1 : i64[]
          %r = for %i in (0, %n, 1) carry (%b = %x) {
            %l1 = list.push(%l0, %b) : list<f32[2]>
            %g = list.get(%l1, %one) : f32[2]
            %b4 = aten.add.Tensor(%b, %g) : f32[2]
            yield %b4
          } : f32[2]
          return %l0, %r
        }
        """,
        {"x": [0.0, 0.0], "n": 0},
        {"x": [0.0, 0.0], "n": 1},
        {"x": [0.0, 0.0], "n": 5},
    ),
    Case(
        "lists trade places and grow",
        """
        func @main(%x: f32[2], %n: i64[]) -> (list<f32[2]>, list<f32[2]>) {
          %y = aten.exp.default(%x) : f32[2]
          %l0 = list.new(%x) : list<f32[2]>
          %k0 = list.new(%y, %y) : list<f32[2]>
          %l, %k = for %i in (0, %n, 1) carry (%l1 = %l0, %k1 = %k0) {
            %l2 = list.push(%l1, %x) : list<f32[2]>
            yield %k1, %l2
          } : list<f32[2]>, list<f32[2]>
          return %l, %k
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 5},
    ),
    Case(
        "lists trade places",
        """
        func @main(%x: f32[2], %n: i64[]) -> (list<f32[2]>, list<f32[2]>) {
          %y = aten.exp.default(%x) : f32[2]
          %l0 = list.new(%x) : list<f32[2]>
          %k0 = list.new(%y, %y) : list<f32[2]>
          %l, %k = for %i in (0, %n, 1) carry (%l1 = %l0, %k1 = %k0) {
            yield %k1, %l1
          } : list<f32[2]>, list<f32[2]>
          return %l, %k
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 5},
    ),
    Case(
        "one list carried twice",
        """
        func @main(%x: f32[2], %n: i64[]) -> (list<f32[2]>, list<f32[2]>) {
          %l0 = list.new(%x) : list<f32[2]>
          %l, %k = for %i in (0, %n, 1) carry (%l1 = %l0, %k1 = %l0) {
            %l2 = list.push(%l1, %x) : list<f32[2]>
            yield %l2, %l2
          } : list<f32[2]>, list<f32[2]>
          return %l, %k
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"n": 5},
    ),
    Case(
        "item read before it is set",
        """
        func @main(%x: f32[2], %n: i64[]) -> (f32[2], list<f32[2]>) {
          %y = aten.exp.default(%x) : f32[2]
          %z = literal 0 : i64[]
          %l0 = list.new(%x, %y) : list<f32[2]>
          %g = list.get(%l0, %z) : f32[2]
          %h = aten.neg.default(%g) : f32[2]
          %l1 = list.set(%l0, %z, %y) : list<f32[2]>
          %q = aten.add.Tensor(%g, %h) : f32[2]
          %q2 = aten.add.Tensor(%q, %g) : f32[2]
          return %q2, %l1
        }
        """,
    ),
)
