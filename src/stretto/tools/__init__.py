"""What people see: the command line, `explain`, timelines, profiles, fuzzing."""
