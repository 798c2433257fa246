"""Straight-line corners: positions known at run time, sizes of zero, results that are inputs."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "select at a position",
        """
        func @main(%x: f32[4, 3], %n: i64[]) -> (f32[3]) {
          %y = aten.select.int(%x, 0, %n) : f32[3]
          return %y
        }
        """,
        {"n": 0},
        {"n": 3},
        {"n": -1},
        {"n": -4},
        {"n": 4},
        {"n": -5},
        {"n": 1099511627776},
    ),
    Case(
        "narrow at a position",
        """
        func @main(%x: f32[6, 3], %n: i64[]) -> (f32[2, 3]) {
          %y = stretto.narrow(%x, 0, %n, 2) : f32[2, 3]
          return %y
        }
        """,
        {"n": 0},
        {"n": 4},
        {"n": -2},
        {"n": -6},
        {"n": 5},
        {"n": -7},
    ),
    Case(
        "embedding",
        """
        func @main(%x: f32[6, 3], %n: i64[4]) -> (f32[4, 3]) {
          %y = aten.embedding.default(%x, %n) : f32[4, 3]
          return %y
        }
        """,
        {"n": [0, 1, 2, 5]},
        {"n": [0, 1, 2, 6]},
        {"n": [0, -1, 2, 3]},
    ),
    Case(
        "zero size",
        """
        func @main(%x: f32[0, 4], %y: f32[4, 0], %w: f32[4, 3])
            -> (f32[0, 4], f32[0, 3], f32[4, 4], f32[4], f32[], f32[0], f32[2, 4]) {
          %a = aten.exp.default(%x) : f32[0, 4]
          %b = aten.mm.default(%x, %w) : f32[0, 3]
          %c = aten.mm.default(%y, %x) : f32[4, 4]
          %d = aten.sum.dim_IntList(%y, (1,), False) : f32[4]
          %e = aten.sum.default(%x) : f32[]
          %f = aten.sum.dim_IntList(%x, (1,), False) : f32[0]
          %z = constant "z" : f32[2, 4]
          %g = aten.cat.default((%x, %z), 0) : f32[2, 4]
          return %a, %b, %c, %d, %e, %f, %g
        }
        """,
    ),
    Case(
        "return input",
        """
        func @main(%x: f32[3, 4], %n: i64[]) -> (f32[3, 4], i64[], f32[4, 3], f32[3, 4], f32[]) {
          %w = constant "w" : f32[3, 4]
          %t = aten.t.default(%x) : f32[4, 3]
          %l = literal 2.5 : f32[]
          return %x, %n, %t, %w, %l
        }
        """,
    ),
    Case(
        "return twice",
        """
        func @main(%x: f32[3, 4]) -> (f32[3, 4], f32[3, 4], f32[4, 3]) {
          %y = aten.exp.default(%x) : f32[3, 4]
          %t = aten.t.default(%y) : f32[4, 3]
          return %y, %y, %t
        }
        """,
    ),
    Case(
        "checked reg",
        """
        func @main(%x: i64[4], %i: i64[1], %y: f32[3]) -> (f32[3], i64[]) {
          %g = aten.index.Tensor(%x, (%i,)) : i64[1]
          %s = aten.view.default(%g, ()) : i64[]
          %r = for %k in (0, %s, 1) carry (%a = %y) {
            %b = aten.mul.Tensor(%a, 1.5) : f32[3]
            yield %b
          } : f32[3]
          %c = aten.gt.Scalar(%s, 1) : bool[]
          %q = if %c {
            yield %s
          } else {
            %z = literal 7 : i64[]
            yield %z
          } : i64[]
          return %r, %q
        }
        """,
        {"x": [0, 1, 2, 3], "i": [0]},
        {"x": [0, 1, 2, 3], "i": [1]},
        {"x": [0, 1, 2, 3], "i": [3]},
        {"x": [0, 1, 2, 3], "i": [-1]},
        {"x": [0, 1, 2, 3], "i": [4]},
        {"x": [0, 1, 2, 3], "i": [-5]},
    ),
    Case(
        "int ops",
        """
        func @main(%n: i64[], %m: i64[])
            -> (i64[], i64[], i64[], i64[], i64[], bool[], i64[], f32[]) {
          %a = aten.remainder.Tensor(%n, %m) : i64[]
          %b = aten.floor_divide.default(%n, %m) : i64[]
          %c = aten.bitwise_and.Tensor(%n, %m) : i64[]
          %d = aten.maximum.default(%n, %m) : i64[]
          %e = aten.neg.default(%d) : i64[]
          %f = aten.logical_and.default(%a, %b) : bool[]
          %w = aten.where.self(%f, %n, %m) : i64[]
          %g = aten.abs.default(%e) : i64[]
          %fl = aten._to_copy.default(%n, dtype=torch.float32) : f32[]
          %sq = aten.sqrt.default(%fl) : f32[]
          return %a, %b, %c, %d, %g, %f, %w, %sq
        }
        """,
        {"n": 7, "m": 3},
        {"n": -7, "m": 3},
        {"n": 7, "m": -3},
        {"n": 9, "m": 9},
    ),
    Case(
        "gather rec neg",
        """
        func @main(%x: f32[5, 4], %i: i64[5, 2]) -> (f32[5, 2], f32[5, 4]) {
          %g = aten.gather.default(%x, 1, %i) : f32[5, 2]
          %s = aten.scatter.src(%x, 1, %i, %g) : f32[5, 4]
          return %g, %s
        }
        """,
        {"i": [[1, 1], [2, 0], [0, 2], [3, 2], [0, 2]]},
        {"i": [[-3, -1], [-2, -2], [-4, -1], [-3, -3], [-2, -2]]},
        {"i": [[4, 4], [4, 4], [4, 4], [4, 4], [4, 4]]},
    ),
    Case(
        "index put",
        """
        func @main(%x: f32[6], %i: i64[3], %v: f32[3]) -> (f32[6], f32[6]) {
          %y = aten.exp.default(%x) : f32[6]
          %z = aten.index_put.default(%y, (%i,), %v, False) : f32[6]
          %w = aten.index_put.default(%x, (%i,), %v, True) : f32[6]
          return %z, %w
        }
        """,
        {"i": [0, 5, 2]},
        {"i": [-1, 1, -6]},
        {"i": [1, 1, 1]},
        {"i": [0, 6, 1]},
    ),
    Case(
        "index put self",
        """
        func @main(%x: i64[5]) -> (i64[5]) {
          %y = aten.remainder.Scalar(%x, 5) : i64[5]
          %v = aten.mul.Tensor(%y, 2) : i64[5]
          %z = aten.index_put.default(%y, (%y,), %v, False) : i64[5]
          return %z
        }
        """,
        {"x": [4, 3, 2, 1, 0]},
        {"x": [1, 2, 3, 4, 0]},
    ),
    Case(
        "scalar tree",
        """
        func @main(%x: f32[3], %k: i64[]) -> (f32[3], i64[]) {
          %a0 = aten.mul.Tensor(%k, %k) : i64[]
          %b0 = aten.remainder.Scalar(%a0, 97) : i64[]
          %a1 = aten.mul.Tensor(%b0, %b0) : i64[]
          %b1 = aten.remainder.Scalar(%a1, 97) : i64[]
          %a2 = aten.mul.Tensor(%b1, %b1) : i64[]
          %b2 = aten.remainder.Scalar(%a2, 97) : i64[]
          %a3 = aten.mul.Tensor(%b2, %b2) : i64[]
          %b3 = aten.remainder.Scalar(%a3, 97) : i64[]
          %a4 = aten.mul.Tensor(%b3, %b3) : i64[]
          %b4 = aten.remainder.Scalar(%a4, 97) : i64[]
          %a5 = aten.mul.Tensor(%b4, %b4) : i64[]
          %b5 = aten.remainder.Scalar(%a5, 97) : i64[]
          %a6 = aten.mul.Tensor(%b5, %b5) : i64[]
          %b6 = aten.remainder.Scalar(%a6, 97) : i64[]
          %a7 = aten.mul.Tensor(%b6, %b6) : i64[]
          %b7 = aten.remainder.Scalar(%a7, 97) : i64[]
          %a8 = aten.mul.Tensor(%b7, %b7) : i64[]
          %b8 = aten.remainder.Scalar(%a8, 97) : i64[]
          %a9 = aten.mul.Tensor(%b8, %b8) : i64[]
          %b9 = aten.remainder.Scalar(%a9, 97) : i64[]
          %a10 = aten.mul.Tensor(%b9, %b9) : i64[]
          %b10 = aten.remainder.Scalar(%a10, 97) : i64[]
          %a11 = aten.mul.Tensor(%b10, %b10) : i64[]
          %b11 = aten.remainder.Scalar(%a11, 97) : i64[]
          %a12 = aten.mul.Tensor(%b11, %b11) : i64[]
          %b12 = aten.remainder.Scalar(%a12, 97) : i64[]
          %a13 = aten.mul.Tensor(%b12, %b12) : i64[]
          %b13 = aten.remainder.Scalar(%a13, 97) : i64[]
          %a14 = aten.mul.Tensor(%b13, %b13) : i64[]
          %b14 = aten.remainder.Scalar(%a14, 97) : i64[]
          %a15 = aten.mul.Tensor(%b14, %b14) : i64[]
          %b15 = aten.remainder.Scalar(%a15, 97) : i64[]
          %a16 = aten.mul.Tensor(%b15, %b15) : i64[]
          %b16 = aten.remainder.Scalar(%a16, 97) : i64[]
          %a17 = aten.mul.Tensor(%b16, %b16) : i64[]
          %b17 = aten.remainder.Scalar(%a17, 97) : i64[]
          %a18 = aten.mul.Tensor(%b17, %b17) : i64[]
          %b18 = aten.remainder.Scalar(%a18, 97) : i64[]
          %a19 = aten.mul.Tensor(%b18, %b18) : i64[]
          %b19 = aten.remainder.Scalar(%a19, 97) : i64[]
          %a20 = aten.mul.Tensor(%b19, %b19) : i64[]
          %b20 = aten.remainder.Scalar(%a20, 97) : i64[]
          %a21 = aten.mul.Tensor(%b20, %b20) : i64[]
          %b21 = aten.remainder.Scalar(%a21, 97) : i64[]
          %a22 = aten.mul.Tensor(%b21, %b21) : i64[]
          %b22 = aten.remainder.Scalar(%a22, 97) : i64[]
          %a23 = aten.mul.Tensor(%b22, %b22) : i64[]
          %b23 = aten.remainder.Scalar(%a23, 97) : i64[]
          %a24 = aten.mul.Tensor(%b23, %b23) : i64[]
          %b24 = aten.remainder.Scalar(%a24, 97) : i64[]
          %a25 = aten.mul.Tensor(%b24, %b24) : i64[]
          %b25 = aten.remainder.Scalar(%a25, 97) : i64[]
          %a26 = aten.mul.Tensor(%b25, %b25) : i64[]
          %b26 = aten.remainder.Scalar(%a26, 97) : i64[]
          %a27 = aten.mul.Tensor(%b26, %b26) : i64[]
          %b27 = aten.remainder.Scalar(%a27, 97) : i64[]
          %a28 = aten.mul.Tensor(%b27, %b27) : i64[]
          %b28 = aten.remainder.Scalar(%a28, 97) : i64[]
          %a29 = aten.mul.Tensor(%b28, %b28) : i64[]
          %b29 = aten.remainder.Scalar(%a29, 97) : i64[]
          %a30 = aten.mul.Tensor(%b29, %b29) : i64[]
          %b30 = aten.remainder.Scalar(%a30, 97) : i64[]
          %a31 = aten.mul.Tensor(%b30, %b30) : i64[]
          %b31 = aten.remainder.Scalar(%a31, 97) : i64[]
          %a32 = aten.mul.Tensor(%b31, %b31) : i64[]
          %b32 = aten.remainder.Scalar(%a32, 97) : i64[]
          %a33 = aten.mul.Tensor(%b32, %b32) : i64[]
          %b33 = aten.remainder.Scalar(%a33, 97) : i64[]
          %a34 = aten.mul.Tensor(%b33, %b33) : i64[]
          %b34 = aten.remainder.Scalar(%a34, 97) : i64[]
          %a35 = aten.mul.Tensor(%b34, %b34) : i64[]
          %b35 = aten.remainder.Scalar(%a35, 97) : i64[]
          %a36 = aten.mul.Tensor(%b35, %b35) : i64[]
          %b36 = aten.remainder.Scalar(%a36, 97) : i64[]
          %a37 = aten.mul.Tensor(%b36, %b36) : i64[]
          %b37 = aten.remainder.Scalar(%a37, 97) : i64[]
          %a38 = aten.mul.Tensor(%b37, %b37) : i64[]
          %b38 = aten.remainder.Scalar(%a38, 97) : i64[]
          %a39 = aten.mul.Tensor(%b38, %b38) : i64[]
          %b39 = aten.remainder.Scalar(%a39, 97) : i64[]
          %y = aten.add.Tensor(%x, %b39) : f32[3]
          return %y, %b39
        }
        """,
    ),
)
