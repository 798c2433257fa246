"""Calls into ATen."""

from tests.e2e.cases.case import Case

CASES = (
    Case(
        "in a branch of a loop",
        """
        func @main(%x: f32[4, 4], %n: i64[]) -> (f32[4, 4], f32[4]) {
          %y = for %i in (0, %n, 1) carry (%a = %x) {
            %c = aten.gt.Scalar(%i, 1) : bool[]
            %b = if %c {
              %v = aten.linalg_pinv.default(%a, 1e-10) : f32[4, 4]
              yield %v
            } else {
              %s2 = aten.sin.default(%a) : f32[4, 4]
              yield %s2
            } : f32[4, 4]
            yield %b
          } : f32[4, 4]
          %s, %i2 = aten.sort.default(%y, 1, True) : f32[4, 4], i64[4, 4]
          %r = aten.select.int(%s, 0, 1) : f32[4]
          return %y, %r
        }
        """,
        {
            "x": [
                [1.75, -0.44, 0.78, -0.22],
                [0.01, 4.49, -1.22, -0.99],
                [0.34, -0.91, 3.9, 0.68],
                [-0.56, -1.23, -1.14, 3.73],
            ],
            "n": 0,
        },
        {
            "x": [
                [2.39, -2.64, 0.14, -0.9],
                [0.13, 2.72, -0.89, -0.04],
                [-0.11, -0.29, 2.25, -0.22],
                [-0.3, -0.91, 0.15, 3.84],
            ],
            "n": 1,
        },
        {
            "x": [
                [3.86, 0.63, -0.88, 0.57],
                [-0.28, 3.98, -0.02, -0.09],
                [0.44, 1.91, 2.11, 1.61],
                [-1.43, -0.08, 0.08, 2.08],
            ],
            "n": 2,
        },
        scale=10,
    ),
    Case(
        "scalar number",
        """
        func @main(%x: f32[3, 5], %n: i64[], %f: f32[]) -> (f32[3, 5], f32[3, 5]) {
          %m = aten.add.Tensor(%n, 1) : i64[]
          %v = aten.polygamma.default(%m, %x) : f32[3, 5]
          %g = aten.mul.Tensor(%f, 2.0) : f32[]
          %w = aten.mvlgamma.default(%x, %m) : f32[3, 5]
          return %v, %w
        }
        """,
        {
            "x": [
                [3.34, 3.76, 3.01, 3.7, 3.03],
                [3.14, 3.48, 3.08, 3.86, 3.76],
                [3.29, 3.83, 3.05, 3.96, 3.32],
            ],
            "n": 1,
            "f": 2.5,
        },
        {
            "x": [
                [3.72, 3.39, 3.3, 3.87, 3.67],
                [3.56, 3.17, 3.59, 3.37, 3.3],
                [3.79, 3.86, 3.08, 3.91, 3.51],
            ],
            "n": 2,
            "f": 2.5,
        },
    ),
    Case(
        "float number",
        """
        func @main(%x: f32[3, 5], %f: f32[]) -> (f32[3, 5]) {
          %g = aten.mul.Tensor(%f, 1.5) : f32[]
          %v = aten.renorm.default(%x, %g, 0, %f) : f32[3, 5]
          return %v
        }
        """,
        {
            "x": [
                [3.96, 3.67, 3.63, 3.1, 3.93],
                [3.02, 3.59, 3.92, 3.15, 3.98],
                [3.08, 3.47, 3.08, 3.96, 3.22],
            ],
            "f": 2.5,
        },
        {
            "x": [
                [3.42, 3.73, 3.08, 3.38, 3.06],
                [3.91, 3.42, 3.68, 3.96, 3.85],
                [3.45, 4.0, 3.62, 3.84, 3.73],
            ],
            "f": 1.25,
        },
    ),
    Case(
        "error",
        """
        func @main(%x: f32[3, 3]) -> (f32[3, 3]) {
          %y = aten.linalg_cholesky.default(%x) : f32[3, 3]
          return %y
        }
        """,
        {"x": [[-1.0, -0.0, -0.0], [-0.0, -1.0, -0.0], [-0.0, -0.0, -1.0]]},
        {"x": [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]},
    ),
    Case(
        "view arg",
        """
        func @main(%x: f32[4, 6]) -> (f32[6, 4], f32[4, 3]) {
          %tt = aten.t.default(%x) : f32[6, 4]
          %e = aten.special_i0.default(%tt) : f32[6, 4]
          %sl = aten.slice.Tensor(%x, 1, 2, 5) : f32[4, 3]
          %e2 = aten.special_i0.default(%sl) : f32[4, 3]
          return %e, %e2
        }
        """,
    ),
    Case(
        "const",
        """
        func @main(%x: f32[2, 2]) -> (f32[2, 2], f32[0, 2]) {
          %w = constant "w" : f32[2, 2]
          %z = constant "z" : f32[0, 2]
          %e = aten.special_i0.default(%w) : f32[2, 2]
          %q = aten.special_i0.default(%z) : f32[0, 2]
          %r = aten.mul.Tensor(%e, %x) : f32[2, 2]
          return %r, %q
        }
        """,
    ),
    Case(
        "bf16",
        """
        func @main(%x: bf16[2, 3], %b: bool[4], %i: i32[3]) -> (bf16[2, 3], i64[3]) {
          %e = aten.special_i0.default(%x) : bf16[2, 3]
          %s, %k = aten.sort.default(%i) : i32[3], i64[3]
          return %e, %k
        }
        """,
    ),
)
