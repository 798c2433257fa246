"""Every form that the models of the zoo take on their way to C++ and Triton, as text.

Nothing is compiled or run, and choices go by the costs of fixed devices, so that the texts are the
same on every machine.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.models import build as build_model
from benchmarks.models.instances import build as build_instances
from stretto.batching.frontend import Evaluation, evaluate
from stretto.batching.host.printer import print_program as print_host
from stretto.batching.host.tables import layout
from stretto.batching.instances.observe import Observer
from stretto.batching.levels.level_program import level_code
from stretto.batching.passes.pipeline import run_passes
from stretto.batching.printer import print_program as print_instance_program
from stretto.call.compiler import begin
from stretto.frontends.python import capture
from stretto.ir.core import Program
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.cuda.machine import gpu_program
from stretto.machines.cuda.printer.triton_module import library_text, print_plan
from stretto.machines.machine import HOST, Machine, Stages
from stretto.machines.registry import known_machines
from stretto.machines.stages import CAPTURED
from stretto.options import Options

OPTIONS = Options(threads=2, tune="off")
_ROOT = f"{Path(__file__).parents[2]}/"
_UNUSED = ("pack", "compile", "load")
"""Stages that make no text."""


def model_forms(name: str, preset: str, machine: str) -> str:
    """The forms of a model of `benchmarks.models` on the machine "cpu" or "cuda"."""
    model, inputs = build_model(name, preset)
    captured = capture(model, inputs, {}, OPTIONS)
    return _forms(captured.program, _machine(machine), machine)


def instance_forms(name: str) -> str:
    """The forms of a model of `benchmarks.models.instances`: the program of one instance, the C++
    that walks instances, and the forms of the program that runs their blocks."""
    model, instances = build_instances(name, "small", count=5)
    evaluation = Evaluation()
    observed = Observer(evaluation).observe(instances, 0, "instance")
    program = evaluate(model, [("instance", observed)], evaluation, [], {})
    texts = [_section("evaluated", print_instance_program(program))]
    run_passes(program, None)
    texts.append(_section("passed", print_instance_program(program)))
    texts.append(_section("host", print_host(program, layout(program)).text))
    code = level_code(program.blocks, OPTIONS, layout(program).pools, set(), (), frozenset())
    return "".join(texts) + _forms(code.program, _machine("cpu"), "cpu")


def _machine(name: str) -> Machine:
    if name == "cpu":
        return CpuMachine("cpu", costs=CPU_COSTS)
    return known_machines()["cuda"].for_target("h100", None)


def _forms(program: Program, machine: Machine, name: str) -> str:
    stages = begin(program, machine, OPTIONS, HOST)
    texts = [_section(CAPTURED.name, "\n".join(CAPTURED.texts(stages)))]
    for step in machine.stages:
        if step.name in _UNUSED:
            continue
        step.run(stages)
        if step.form is not None:
            texts.append(_section(step.form.name, "\n".join(step.form.texts(stages))))
    if name == "cuda":
        texts.append(_section("triton", _triton(stages)))
    return "".join(texts)


def _triton(stages: Stages) -> str:
    """The launches as first printed, without the library that each of them begins with."""
    sources = print_plan(gpu_program(stages).plan)
    return "\n".join(source.text.replace(library_text(), "") for source in sources)


def _section(title: str, text: str) -> str:
    return f"======== {title}\n{text.rstrip()}\n".replace(_ROOT, "")
