"""Machines that programs run on, one folder each, and the interface through which they are used.

`machine` is the record of a machine, `registry` finds it by name. The stages of a machine lead from
a captured Program to an executable; `stages` has those that machines share, with the forms of the
program between them.

`cpu` prints C++ for native threads, `cuda` Triton for one persistent kernel (also interpreted
without a GPU), `emulator` runs the schedule itself, task by task, `interpreter` the Program, op by
op. They do not import each other.

Both printers build the same statements (`statements`, from `terms`), by the same walks over control
trees (`control`) and expressions (`expressions`); `statements` writes them as C++ or Python.
"""
