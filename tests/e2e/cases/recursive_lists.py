"""Lists that functions take and return.

`L` in a text is the type of a list. A function that calls itself begins with `BEGIN`.
"""

import re

from tests.e2e.cases.case import Case

BEGIN = """%c = aten.gt.Scalar(%n, 0) : bool[]
          %m = aten.sub.Tensor(%n, 1) : i64[]
          %h = aten.mul.Tensor(%x, 0.5) : f32[3]
          %q = aten.sub.Tensor(%x, 0.25) : f32[3]"""


def case(name: str, text: str) -> Case:
    text = re.sub(r"\bL\b", "list<f32[3]>", text.replace("BEGIN", BEGIN))
    return Case(name, text, {"n": 0}, {"n": 1}, {"n": 3})


CASES = (
    case(
        "a list handed on",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L, i64[]) {
          %l0 = list.new(%x) : L
          %l = call @f(%x, %n, %l0) : L
          %k = list.length(%l) : i64[]
          return %l, %k
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (L) {
          BEGIN
          %r = if %c {
            %l1 = list.push(%l, %h) : L
            %l2 = call @f(%h, %m, %l1) : L
            %l3 = list.push(%l2, %q) : L
            %l4 = call @f(%q, %m, %l3) : L
            yield %l4
          } else {
            yield %l
          } : L
          return %r
        }
        """,
    ),
    case(
        "a list read after the call that it was handed to",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L, L, L) {
          %l0 = list.new(%x, %x) : L
          %l = call @f(%x, %n, %l0) : L
          %p = call @f(%x, %n, %l0) : L
          return %l, %l0, %p
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (L) {
          BEGIN
          %r = if %c {
            %l1 = list.push(%l, %h) : L
            %l2 = call @f(%h, %m, %l1) : L
            %l3 = call @f(%q, %m, %l) : L
            %one = literal -1 : i64[]
            %a = list.get(%l2, %one) : f32[3]
            %b = list.get(%l3, %one) : f32[3]
            %d = list.get(%l1, %one) : f32[3]
            %s = aten.add.Tensor(%a, %b) : f32[3]
            %t = aten.add.Tensor(%s, %d) : f32[3]
            %l4 = list.push(%l2, %t) : L
            yield %l4
          } else {
            yield %l
          } : L
          return %r
        }
        """,
    ),
    case(
        "a path that grows downwards",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %l = list.new(%x) : L
          %y = call @f(%x, %n, %l) : f32[3]
          return %y
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (f32[3]) {
          BEGIN
          %r = if %c {
            %l1 = list.push(%l, %h) : L
            %a = call @f(%h, %m, %l1) : f32[3]
            %l2 = list.push(%l, %a) : L
            %b = call @f(%q, %m, %l2) : f32[3]
            %s = list.stack(%l) : f32[s0, 3]
            %t = aten.sum.dim_IntList(%s, (0,), False) : f32[3]
            %u = aten.add.Tensor(%a, %b) : f32[3]
            %v = aten.add.Tensor(%u, %t) : f32[3]
            yield %v
          } else {
            %s2 = list.stack(%l) : f32[s1, 3]
            %t2 = aten.sum.dim_IntList(%s2, (0,), False) : f32[3]
            yield %t2
          } : f32[3]
          return %r
        }
        """,
    ),
    case(
        "lists of the leaves joined",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L) {
          %l = call @f(%x, %n) : L
          return %l
        }
        func @f(%x: f32[3], %n: i64[]) -> (L) {
          BEGIN
          %r = if %c {
            %a = call @f(%h, %m) : L
            %b = call @f(%q, %m) : L
            %k = list.length(%b) : i64[]
            %all = for %i in (0, %k, 1) carry (%l = %a) {
              %item = list.get(%b, %i) : f32[3]
              %l1 = list.push(%l, %item) : L
              yield %l1
            } : L
            yield %all
          } else {
            %one = list.new(%x) : L
            yield %one
          } : L
          return %r
        }
        """,
    ),
    case(
        "two lists that trade places",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L, L) {
          %l0 = list.new(%x) : L
          %p0 = list.new() : L
          %l, %p = call @f(%x, %n, %l0, %p0) : L, L
          return %l, %p
        }
        func @f(%x: f32[3], %n: i64[], %l: L, %p: L) -> (L, L) {
          BEGIN
          %r, %t = if %c {
            %l1 = list.push(%l, %h) : L
            %p1, %l2 = call @f(%h, %m, %p, %l1) : L, L
            %p2 = list.push(%p1, %q) : L
            %l3, %p3 = call @f(%q, %m, %l2, %p2) : L, L
            yield %p3, %l3
          } else {
            yield %l, %p
          } : L, L
          return %r, %t
        }
        """,
    ),
    case(
        "one list twice",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L, L) {
          %l0 = list.new(%x) : L
          %l, %p = call @f(%x, %n, %l0, %l0) : L, L
          return %l, %p
        }
        func @f(%x: f32[3], %n: i64[], %l: L, %p: L) -> (L, L) {
          BEGIN
          %r, %t = if %c {
            %l1 = list.push(%l, %h) : L
            %l2, %p2 = call @f(%h, %m, %l1, %l1) : L, L
            %p3 = list.push(%p2, %q) : L
            yield %p3, %p
          } else {
            yield %p, %p
          } : L, L
          return %r, %t
        }
        """,
    ),
    case(
        "a list that is only read",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3], f32[3], L) {
          %y = aten.cos.default(%x) : f32[3]
          %l = list.new(%x, %y, %x) : L
          %p = list.new(%y, %y, %x, %y, %x, %x) : L
          %a = call @f(%x, %n, %l) : f32[3]
          %b = call @f(%a, %n, %p) : f32[3]
          %d = call @f(%b, %n, %l) : f32[3]
          return %d, %b, %l
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (f32[3]) {
          BEGIN
          %r = if %c {
            %i = aten.remainder.Scalar(%n, 3) : i64[]
            %e = list.get(%l, %i) : f32[3]
            %a = call @f(%h, %m, %l) : f32[3]
            %b = call @f(%e, %m, %l) : f32[3]
            %k = list.length(%l) : i64[]
            %s = aten.add.Tensor(%a, %b) : f32[3]
            %t = aten.mul.Tensor(%s, %k) : f32[3]
            yield %t
          } else {
            %z = literal -1 : i64[]
            %e2 = list.get(%l, %z) : f32[3]
            %s2 = aten.add.Tensor(%x, %e2) : f32[3]
            yield %s2
          } : f32[3]
          return %r
        }
        """,
    ),
    case(
        "a stack machine",
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3], L) {
          %l0 = list.new(%x, %x) : L
          %y, %l = call @f(%x, %n, %l0) : f32[3], L
          return %y, %l
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (f32[3], L) {
          BEGIN
          %r, %t = if %c {
            %l1, %top = list.pop(%l) : L, f32[3]
            %z = literal 0 : i64[]
            %first = list.get(%l1, %z) : f32[3]
            %s = aten.add.Tensor(%top, %h) : f32[3]
            %l2 = list.push(%l1, %s) : L
            %a, %l3 = call @f(%first, %m, %l2) : f32[3], L
            %l4 = list.push(%l3, %a) : L
            %l5 = list.set(%l4, %z, %s) : L
            %b, %l6 = call @f(%q, %m, %l5) : f32[3], L
            %d = aten.add.Tensor(%b, %first) : f32[3]
            %e = aten.add.Tensor(%d, %top) : f32[3]
            yield %e, %l6
          } else {
            yield %x, %l
          } : f32[3], L
          return %r, %t
        }
        """,
    ),
    case(
        "lists in loops of a recursion",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L) {
          %l0 = list.new() : L
          %l = for %i in (0, %n, 1) carry (%k = %l0) {
            %k1 = call @f(%x, %i, %k) : L
            yield %k1
          } : L
          return %l
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (L) {
          BEGIN
          %r = if %c {
            %own0 = list.new() : L
            %l2, %own = for %i in (0, %n, 1) carry (%k = %l, %o = %own0) {
              %k1 = list.push(%k, %h) : L
              %k2 = call @f(%q, %i, %k1) : L
              %o1 = list.push(%o, %q) : L
              %o2 = call @f(%h, %i, %o1) : L
              yield %k2, %o2
            } : L, L
            %s = list.stack(%own) : f32[s0, 3]
            %t = aten.sum.dim_IntList(%s, (0,), False) : f32[3]
            %l3 = list.push(%l2, %t) : L
            yield %l3
          } else {
            yield %l
          } : L
          return %r
        }
        """,
    ),
    case(
        "a list between two functions",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L, L) {
          %l0 = list.new() : L
          %l = call @f(%x, %n, %l0) : L
          %e, %p = call @g(%x, %l, %n) : f32[3], L
          return %l, %p
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (L) {
          BEGIN
          %r = if %c {
            %l1 = list.push(%l, %h) : L
            %e, %l2 = call @g(%q, %l1, %m) : f32[3], L
            %l3 = list.push(%l2, %e) : L
            %e2, %l4 = call @g(%e, %l3, %m) : f32[3], L
            yield %l4
          } else {
            yield %l
          } : L
          return %r
        }
        func @g(%x: f32[3], %l: L, %n: i64[]) -> (f32[3], L) {
          BEGIN
          %o, %r = if %c {
            %l1 = list.push(%l, %q) : L
            %l2 = call @f(%h, %m, %l1) : L
            %z = literal -1 : i64[]
            %e = list.get(%l2, %z) : f32[3]
            %l3 = call @f(%e, %m, %l2) : L
            yield %e, %l3
          } else {
            yield %x, %l
          } : f32[3], L
          return %o, %r
        }
        """,
    ),
    case(
        "a list in the condition of a loop",
        """
        func @main(%x: f32[3], %n: i64[]) -> (L) {
          %l0 = list.new(%x) : L
          %l = while (%k = %l0) {
            %z = literal 1 : i64[]
            %k1 = call @f(%x, %z, %k) : L
            %i = literal 0 : i64[]
            %k2 = list.set(%k1, %i, %x) : L
            %j = list.length(%k2) : i64[]
            %go = aten.le.Tensor(%j, %n) : bool[]
            yield %go
          } do (%b) {
            %last = literal -1 : i64[]
            %e = list.get(%b, %last) : f32[3]
            %d = aten.cos.default(%e) : f32[3]
            %b1 = list.push(%b, %d) : L
            yield %b1
          } : L
          return %l
        }
        func @f(%x: f32[3], %n: i64[], %l: L) -> (L) {
          BEGIN
          %r = if %c {
            %i = literal 0 : i64[]
            %l1 = list.set(%l, %i, %q) : L
            %l2 = list.push(%l1, %h) : L
            %l3 = call @f(%h, %m, %l2) : L
            yield %l3
          } else {
            yield %l
          } : L
          return %r
        }
        """,
    ),
)
