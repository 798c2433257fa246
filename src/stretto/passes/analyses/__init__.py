"""What passes find out about a Program: dependences in loops, affine integers, lengths of lists,
products with constants. Nothing here changes a Program, but `loop_form`, which brings loops into
the form that others expect.
"""
