"""What traced code may have read beside its arguments, so that later calls can compare it.

`reach` walks from a function over closures, globals and attributes to what its code may read,
`layout` makes `guards` of that, and `reading` says what a program that changes objects finds in
them at each call.
"""
