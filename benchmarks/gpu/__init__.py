"""What checks stretto on an NVIDIA GPU, then measures it.

`python3 -m benchmarks.gpu.lease --out DIR` runs stages, one after the other:

    facts        what the GPU is, and if programs made at home have the texts that are printed there
    smoke        if launches work at all, and in which form
    sanitizer    races and accesses outside of memory, by compute-sanitizer
    correctness  the zoo, types and launches, against float64
    ceilings     what the GPU can do at best, and what waits, launches and loops cost on it
    peers        stretto against its peers on the models with control flow
    graphs       ways to enqueue models with parallel branches, captured graphs among them
    profile      hardware counters, and when each unit waits

`lease` runs the stages; `engine` runs their jobs, each in a process of its own (`worker`) that may
crash or hang without harm to the rest. A job names the module whose `run` a worker calls; the
module's `jobs` are listed in the parent process, which runs nothing on the GPU. `saved` makes
programs at home for a GPU that is elsewhere, `rehearsal` is what a dry run has in place of one, and
`report` turns rows into tables and pictures.

Works from the source tree with torch, triton and numpy.
"""
