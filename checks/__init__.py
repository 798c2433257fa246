"""Checks of stretto that are not part of the package.

Random programs and torch's own databases against eager PyTorch (`fuzz`), mutants of device
programs against the verifier (`mutants`), and rules on the machine code of waits and
signals (`machine_code`).
"""
