"""User-facing tools: the command line, `explain`, timelines, profiles, simulation, tuning."""
