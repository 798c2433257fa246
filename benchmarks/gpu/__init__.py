"""The suite that checks stretto on an NVIDIA GPU, then measures it.

`python3 -m benchmarks.gpu.lease --out DIR` runs stages, one after the other:

    facts        the GPU, and a check that programs made at home have the same texts there
    smoke        a check that launches work at all, and in which form
    sanitizer    races and accesses outside of memory, by compute-sanitizer
    correctness  the zoo, types and launches, against float64
    ceilings     the GPU's best rates, and the costs of waits, launches and loops on it
    peers        stretto against its peers on the models with control flow
    graphs       ways to enqueue models with parallel branches, captured graphs among them
    profile      hardware counters, and when each unit waits

`lease` runs the stages; `engine` runs their jobs, each in a separate process (`worker`)
that may crash or hang without harm to the rest. A job names the module whose `run` a worker
calls; the module's `jobs` are listed in the parent process, which runs nothing on the GPU.
`saved` makes programs at home for a GPU that is elsewhere, `rehearsal` replaces the GPU in
a dry run, and `report` turns rows into tables and pictures.

Works from the source tree with torch, triton and numpy.
"""
