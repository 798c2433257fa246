"""`python -m checks.fuzz`."""

from checks.fuzz.command import app

app()
