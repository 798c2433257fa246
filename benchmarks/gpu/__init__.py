"""The GPU suite: one command that checks stretto on an NVIDIA GPU, then measures it.

`python3 -m benchmarks.gpu --out DIR` runs five parts, one after the other:

    correctness  the zoo and the launches, against float64
    ceilings     what the GPU can do at best, and what waits, launches and loops cost on it
    models       stretto against its peers on the models with control flow
    graphs       ways to enqueue models with parallel branches, captured graphs among them
    traces       pictures and traces of what was measured

`suite` runs parts; `engine` runs their jobs, each in a process of its own (`worker`) that may crash
or hang without harm to the rest. The part `x` has a module `x`: its `jobs` are listed in the parent
process, which runs nothing on the GPU, and its `run` is what a worker does. `turns` is what the
parts have in common whose systems take turns.

Works from the source tree with torch, triton and numpy; pictures need matplotlib.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise SystemExit("benchmarks.gpu needs torch and triton; this Python has no torch")
