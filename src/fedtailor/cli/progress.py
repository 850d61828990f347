"""Live progress on stderr, if that is a terminal."""

from __future__ import annotations

from threading import Timer
from typing import TYPE_CHECKING, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from ..base.terminal import Terminal, visible
from ..runs.callback import Callback, ComparisonCallback

if TYPE_CHECKING:
    from ..evaluation.metrics import Score
    from ..simulation.build import Experiment
    from ..simulation.loop import RoundRecord

SPEEDS = {"encoding images": "images/s"}  # bars that show one


class Speed(ProgressColumn):
    """How fast it has gone of late, where that says something."""

    def render(self, task: Task) -> Text:
        unit, speed = SPEEDS.get(task.description), task.speed
        return Text(f"{speed:,.{0 if speed >= 10 else 1}f} {unit}" if unit and speed else "")


class Words(TextColumn):
    """As they are."""

    def render(self, task: Task) -> Text:
        return Text(visible(self.text_format.format(task=task)))


class Progress(Callback):
    def __init__(self, enabled: bool) -> None:
        console = Terminal(stderr=True)
        work = Words("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), Speed()
        time = Words("{task.fields[note]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
        disable = not enabled or not console.is_terminal
        self.bars = Bars(*work, *time, console=console, disable=disable, transient=True)
        self.tasks: dict[str, TaskID] = {}
        self.accuracy = ""

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *what: object) -> None:
        self.bars.stop()

    def on_progress(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            # Beginning where it is: what an earlier run has done says nothing about the speed.
            self.tasks[what] = self.bars.add_task(what, total=total, completed=done, note="")
        self.bars.update(self.tasks[what], completed=done, total=total)
        if done >= total:
            self.bars.remove_task(self.tasks.pop(what))

    def on_start(self, experiment: Experiment, zero_shot: Score, done: int) -> None:
        if rounds := experiment.rounds:
            name, note = experiment.run.method.name, f"zero-shot {zero_shot.overall:.1f}%"
            self.tasks["rounds"] = self.bars.add_task(f"{name}: round", total=rounds, completed=done, note=note)

    def on_round(self, record: RoundRecord, rounds: int) -> None:
        self.bars.update(self.tasks["rounds"], completed=record.round)
        tested = [score.overall for score in (record.shared, record.personal) if score and score.overall is not None]
        if tested:
            self.accuracy = f"accuracy {tested[0]:.1f}%"
        spent = record.privacy and record.privacy["epsilon"]
        note = ", ".join(filter(None, (self.accuracy, f"ε {spent:.2f}" if spent else "")))
        if note:
            self.bars.update(self.tasks["rounds"], note=note)


class Comparing(Progress, ComparisonCallback):
    """A bar for all runs, and below it those of the current run."""

    def on_run(self, title: str, seed: int, done: int, total: int) -> None:
        if "rounds" in self.tasks:
            self.bars.remove_task(self.tasks.pop("rounds"))
        self.on_progress("runs", done, total)
        self.bars.update(self.tasks["runs"], note=f"{title}, seed {seed}")


class Late(Progress):
    """Bars that show only once the work has taken a while: most pictures are looked at before anybody asks."""

    AFTER = 2.0  # seconds

    def __enter__(self) -> Self:
        self.timer = Timer(self.AFTER, self.bars.start)
        self.timer.daemon = True
        self.timer.start()
        return self

    def __exit__(self, *what: object) -> None:
        self.timer.cancel()
        self.timer.join()  # so that none shows after the end
        super().__exit__(*what)
