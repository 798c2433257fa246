"""Compiled functions as files: `Compiled.save` and `stretto.load`.

`file` is the format, `values` what Python values are in it. `describe` writes what a signature is,
`restore` reads it back and checks every part of it, `vet` says which programs are refused, `loaded`
is the function that the caller gets.
"""
