"""The machines that programs run on, a folder each, and how all others know them.

`machine` is the record of one, `registry` finds it by name. Its stages lead from a captured Program
to an executable; `stages` has those that machines share, `forms` what lies between them.

`cpu` prints C++ for native threads, `cuda` Triton for one persistent kernel (also interpreted
without a GPU), `emulator` runs the schedule itself, task by task, `interpreter` the Program, op by
op. They do not know each other.

Both printers build the same statements (`statements`, of `terms`), by the same walks over control
trees (`control`) and expressions (`expressions`); `dialects` writes them down as C++ or Python.
"""
