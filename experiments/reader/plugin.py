from experiments.reader import entry

entry.install()
