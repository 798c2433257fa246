"""Measurements of `stretto.batch`: all figures of benchmarks/results/README.md, by one command.

    python -m benchmarks.batching measure   # runs jobs that have no record; `--fresh`: all jobs
    python -m benchmarks.batching report    # writes pictures, and the tables into the docs

`suite.py` lists the jobs: each is a separate process with a time limit, and leaves one
record in `benchmarks/results/batching/`. `parts.py` has the measurements of such a process,
other than the comparison with peers, which is `benchmarks/batched.py`. `tables.py` and
`pictures.py` show records.
"""
