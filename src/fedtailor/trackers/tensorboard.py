"""TensorBoard: event files in the run folder, `tensorboard --logdir runs`."""

from collections.abc import Mapping
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from .tracker import Tracker

HEADS = ("global/overall", "personal/overall")  # beside the settings, in the table of all runs


class TensorBoard(Tracker):
    name = "tensorboard"

    def begin(self, settings: Mapping[str, Any]) -> None:
        folder = self.folder / "tensorboard"
        if not folder.is_dir():  # removed, or never there
            self.note.clear()
        self.writer = SummaryWriter(str(folder))
        plain = {key: it if isinstance(it, bool | int | float | str) else str(it) for key, it in settings.items()}
        *begins, self.ended = hparams(plain, dict.fromkeys(HEADS))
        for summary in begins:
            self.writer.file_writer.add_summary(summary)

    def send(self, round: int, numbers: Mapping[str, float]) -> None:  # noqa: A002
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, round)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        if finished:
            self.writer.file_writer.add_summary(self.ended)
        self.writer.close()
