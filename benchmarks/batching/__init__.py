"""What `stretto.batch` is worth: all its figures in benchmarks/results/README.md, by one command.

    python -m benchmarks.batching measure   # runs what has no record yet; `--fresh`: everything
    python -m benchmarks.batching report    # writes pictures, and the tables into the page

`suite.py` lists the jobs: each is a process of its own with a time limit, and leaves one record in
`benchmarks/results/batching/`. `parts.py` has what such a process measures, other than the
comparison with peers, which is `benchmarks/batched.py`. `tables.py` and `pictures.py` show records.
"""
