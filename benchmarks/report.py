"""A benchmark record as a table for the terminal and as a picture."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .harness import Observer
from .record import OWN_SYSTEM, ModelResult, Record, SystemResult

BAR_COLORS = {
    "eager": "#9e9e9e",
    "compile": "#e07a3f",
    "script": "#c9a227",
    "onnxruntime": "#4c78a8",
    "openvino": "#5aa6a0",
    "jax": "#7b5aa6",
    "stretto_each": "#8fd0a9",
    "hand": "#4c78a8",
    "hand_compile": "#e07a3f",
    "stretto_calibrated": "#1d6b43",
    "stretto": "#2a9d5c",
}


@contextmanager
def shown_progress(console: Console) -> Iterator[Observer]:
    """Show a progress bar in the terminal; yields the `observe` callback for `harness.run`."""
    columns = (SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def observe(text: str, done: float) -> None:
            progress.update(task, description=text, completed=done)

        yield observe


def publish(
    record: Record, console: Console, json: Path | None = None, plot: Path | None = None
) -> None:
    """Print the tables; write the JSON record and the picture where a path is given."""
    if not console.is_terminal:
        console.width = max(console.width, 120)  # so that a file has whole names and reasons
    console.print(summary_table(record))
    if any(model.median_ms(OWN_SYSTEM) for model in record.models):
        console.print(ratio_table(record))
    for line in reasons(record):
        console.print(line, style="dim", highlight=False, markup=False)
    console.print(record.machine, style="dim", highlight=False, markup=False)
    if json is not None:
        record.write_json(json)
        console.print(f"wrote {json}", highlight=False, markup=False)
    if plot is not None:
        draw(record, plot)
        console.print(f"wrote {plot}", highlight=False, markup=False)


def summary_table(record: Record) -> Table:
    """Per model its floor, and a row per system: times, ratios, error, time to compile."""
    title = f"threads {record.threads}, batch {record.batch}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("system", no_wrap=True)
    for name in ("median ms", "IQR ms", "x eager", "x floor", "error", "compile s"):
        table.add_column(name, justify="right", no_wrap=True)
    for model in record.models:
        floor = f"{model.floor_ms:.3f}" if model.floor_ms is not None else "unknown"
        table.add_row(f"[bold]{model.model}[/bold]", floor, "(floor)")
        for result in model.systems:
            table.add_row(f"  {result.system}", *_cells(model, result))
        table.add_section()
    return table


def _cells(model: ModelResult, result: SystemResult) -> list[str]:
    if result.timing is None:
        return [result.status]
    speedup = model.speedup(result.system)
    over_floor = result.timing.median_ms / model.floor_ms if model.floor_ms else None
    return [
        f"{result.timing.median_ms:.3f}",
        f"{result.timing.iqr_ms:.3f}",
        f"{speedup:.2f}" if speedup else "",
        f"{over_floor:.2f}" if over_floor else "",
        f"{result.error:.1e}",
        f"{result.compile_s:.2f}",
    ]


def ratio_table(record: Record) -> Table:
    """stretto against the fastest of all others, and against its own simulator, model by model."""
    table = Table(
        title="stretto against the fastest peer",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("model")
    table.add_column("fastest peer")
    for title in ("peer ms", "stretto ms", "ratio", "predicted ms", "off by"):
        table.add_column(title, justify="right")
    for model in record.models:
        fastest, own = model.fastest_peer(), model.median_ms(OWN_SYSTEM)
        if own is None:
            continue
        cells = [model.model, "none", "", f"{own:.3f}", ""]
        if fastest is not None:
            peer = model.median_ms(fastest) or 0.0
            cells = [model.model, fastest, f"{peer:.3f}", f"{own:.3f}", f"{peer / own:.2f}"]
        table.add_row(*cells, *_prediction(model))
    return table


def _prediction(model: ModelResult) -> tuple[str, str]:
    """Show stretto's predicted time of a call, and its error."""
    own = next(result for result in model.systems if result.system == OWN_SYSTEM)
    if own.predicted_ms is None or own.prediction_error is None:
        return "unknown", ""
    return f"{own.predicted_ms:.3f}", f"{own.prediction_error:+.0%}"


def reasons(record: Record) -> list[str]:
    """Return the reasons why systems have no time, one line per model and system."""
    return [
        f"{model.model}: {result.system} {result.status}: {result.reason}"
        for model in record.models
        for result in model.systems
        if result.status != "ok"
    ]


def draw(record: Record, path: Path) -> None:
    """Bars of speed-up over eager, grouped by model, on a logarithmic axis."""
    ran = (r.system for m in record.models for r in m.systems if r.timing is not None)
    systems = list(dict.fromkeys(ran))
    figure = Figure(figsize=(max(6.0, 1.5 * len(record.models) + 1.5), 4.8))
    axes = figure.subplots()
    width = 0.84 / max(len(systems), 1)
    for place, system in enumerate(systems):
        points = [
            (x + (place - (len(systems) - 1) / 2) * width, speedup)
            for x, model in enumerate(record.models)
            if (speedup := model.speedup(system)) is not None
        ]
        color = BAR_COLORS.get(system)
        bars = axes.bar([x for x, _ in points], [y for _, y in points], width * 0.94, color=color)
        bars.set_label(system)
        if system != "eager":
            axes.bar_label(bars, fmt="%.3g", fontsize=7, rotation=90, padding=2)
    _mark_floors(axes, record)
    axes.axhline(1.0, color="#444444", linewidth=0.8)
    axes.set_yscale("log")
    axes.margins(y=0.18)
    axes.set_ylabel("speed-up over eager")
    axes.set_xticks(range(len(record.models)), [model.model for model in record.models])
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.text(0.01, 0.005, record.machine, fontsize=6, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _mark_floors(axes, record: Record) -> None:
    """Mark, per model, the height of a system at the physical floor with a short line."""
    label: str | None = "physical floor"
    for x, model in enumerate(record.models):
        eager = model.median_ms("eager")
        if not eager or not model.floor_ms:
            continue
        best = eager / model.floor_ms
        axes.plot([x - 0.45, x + 0.45], [best, best], "k--", linewidth=1.0, label=label)
        label = None
