"""Tensors whose size the run decides."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "attn",
        """
        func @main(%x: f32[3], %n: i64[])
            -> (f32[1, 3], f32[1, s0], f32[s0, 1], f32[s0, 3], f32[s0], i64[]) {
          %l0 = list.new(%x) : list<f32[3]>
          %y, %l = for %i in (0, %n, 1) carry (%b = %x, %l2 = %l0) {
            %b2 = aten.mul.Tensor(%b, 0.9) : f32[3]
            %b3 = aten.add.Tensor(%b2, %i) : f32[3]
            %l3 = list.push(%l2, %b3) : list<f32[3]>
            yield %b3, %l3
          } : f32[3], list<f32[3]>
          %s = list.stack(%l) : f32[s0, 3]
          %q = aten.unsqueeze.default(%y, 0) : f32[1, 3]
          %st = aten.t.default(%s) : f32[3, s0]
          %sc = aten.mm.default(%q, %st) : f32[1, s0]
          %p = aten._softmax.default(%sc, 1, False) : f32[1, s0]
          %o = aten.mm.default(%p, %s) : f32[1, 3]
          %pt = aten.t.default(%p) : f32[s0, 1]
          %ps = aten.mul.Tensor(%s, %pt) : f32[s0, 3]
          %am = aten.argmax.default(%sc) : i64[]
          %su = aten.sum.dim_IntList(%s, (1,), False) : f32[s0]
          %ex = aten.exp.default(%su) : f32[s0]
          %cs = aten.cumsum.default(%ex, 0) : f32[s0]
          return %o, %p, %pt, %ps, %cs, %am
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 65},
        scale=10,
    ),
    Case(
        "gemm",
        """
        func @main(%x: f32[3], %n: i64[])
            -> (f32[s0, 5], f32[s0, 4], f32[3, 3], f32[3], f32[3], f32[5], f32[s0, 3]) {
          %w = constant "w" : f32[3, 5]
          %w2 = constant "w2" : f32[4, 3]
          %b4 = constant "b" : f32[4]
          %l0 = list.new(%x) : list<f32[3]>
          %y, %l = for %i in (0, %n, 1) carry (%b = %x, %l2 = %l0) {
            %b2 = aten.mul.Tensor(%b, 0.9) : f32[3]
            %b3 = aten.add.Tensor(%b2, %i) : f32[3]
            %l3 = list.push(%l2, %b3) : list<f32[3]>
            yield %b3, %l3
          } : f32[3], list<f32[3]>
          %s = list.stack(%l) : f32[s0, 3]
          %m = aten.mm.default(%s, %w) : f32[s0, 5]
          %r = aten.relu.default(%m) : f32[s0, 5]
          %li = aten.linear.default(%s, %w2, %b4) : f32[s0, 4]
          %st = aten.t.default(%s) : f32[3, s0]
          %g = aten.mm.default(%st, %s) : f32[3, 3]
          %mx = aten.amax.default(%s, (0,), False) : f32[3]
          %me = aten.mean.dim(%s, (0,), False) : f32[3]
          %mr = aten.mean.dim(%r, (0,), False) : f32[5]
          %ln = aten.flip.default(%s, (0,)) : f32[s0, 3]
          return %r, %li, %g, %mx, %me, %mr, %ln
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 65},
        scale=10,
    ),
    Case(
        "loop over",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3], f32[s0, 3], f32[s0, 3]) {
          %l0 = list.new(%x) : list<f32[3]>
          %y, %l = for %i in (0, %n, 1) carry (%b = %x, %l2 = %l0) {
            %b2 = aten.mul.Tensor(%b, 0.9) : f32[3]
            %b3 = aten.add.Tensor(%b2, %i) : f32[3]
            %l3 = list.push(%l2, %b3) : list<f32[3]>
            yield %b3, %l3
          } : f32[3], list<f32[3]>
          %s = list.stack(%l) : f32[s0, 3]
          %len = list.length(%l) : i64[]
          %e = aten.sin.default(%s) : f32[s0, 3]
          %z, %a3 = for %j in (0, %len, 1) carry (%a = %x, %q = %e) {
            %row = aten.select.int(%e, 0, %j) : f32[3]
            %a2 = aten.add.Tensor(%a, %row) : f32[3]
            %q2 = aten.mul.Tensor(%q, 0.5) : f32[s0, 3]
            %q3 = aten.add.Tensor(%q2, %a2) : f32[s0, 3]
            yield %a2, %q3
          } : f32[3], f32[s0, 3]
          %c = aten.gt.Scalar(%len, 3) : bool[]
          %f = if %c {
            %g = aten.neg.default(%e) : f32[s0, 3]
            yield %g
          } else {
            yield %a3
          } : f32[s0, 3]
          return %z, %a3, %f
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 17},
        scale=10,
    ),
    Case(
        "nested stack",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %r = for %o in (0, 4, 1) carry (%acc = %x) {
            %l0 = list.new(%acc) : list<f32[3]>
            %y, %l = for %i in (0, %n, 1) carry (%b = %acc, %l2 = %l0) {
              %b2 = aten.mul.Tensor(%b, 0.9) : f32[3]
              %b3 = aten.add.Tensor(%b2, %o) : f32[3]
              %l3 = list.push(%l2, %b3) : list<f32[3]>
              yield %b3, %l3
            } : f32[3], list<f32[3]>
            %s = list.stack(%l) : f32[s0, 3]
            %e = aten.tanh.default(%s) : f32[s0, 3]
            %m = aten.mean.dim(%e, (0,), False) : f32[3]
            yield %m
          } : f32[3]
          return %r
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 17},
    ),
    Case(
        "grow stack",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[s0, 3], f32[3], f32[3, s0], f32[s0]) {
          %l0 = list.new(%x) : list<f32[3]>
          %y, %l = for %i in (0, %n, 1) carry (%b = %x, %l2 = %l0) {
            %b2 = aten.add.Tensor(%b, 1.0) : f32[3]
            %l3 = list.push(%l2, %b2) : list<f32[3]>
            yield %b2, %l3
          } : f32[3], list<f32[3]>
          %s = list.stack(%l) : f32[s0, 3]
          %m = aten.sum.dim_IntList(%s, (0,), False) : f32[3]
          %tt = aten.t.default(%s) : f32[3, s0]
          %e = aten.exp.default(%tt) : f32[3, s0]
          %r = aten.sum.dim_IntList(%s, (1,), False) : f32[s0]
          return %s, %m, %e, %r
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 65},
    ),
    Case(
        "dynamic",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[s0, 3]) {
          %l0 = list.new(%x) : list<f32[3]>
          %y, %l = for %i in (0, %n, 1) carry (%b = %x, %l2 = %l0) {
            %b2 = aten.mul.Tensor(%b, 0.9) : f32[3]
            %l3 = list.push(%l2, %b2) : list<f32[3]>
            yield %b2, %l3
          } : f32[3], list<f32[3]>
          %s = list.stack(%l) : f32[s0, 3]
          %v = aten.special_bessel_j0.default(%s) : f32[s0, 3]
          return %v
        }
        """,
        {"n": 0},
        {"n": 1},
        {"n": 5},
        {"n": 65},
    ),
)
