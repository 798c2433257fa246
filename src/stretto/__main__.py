"""`python -m stretto` is the command line."""

from stretto.tools.cli import app

app(prog_name="stretto")
