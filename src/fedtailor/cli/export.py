"""`fedtailor export`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..base.sizes import size
from .arguments import Json, Quiet
from .output import emit, say, waiting
from .predict import Client, Clip, ModelPath

TO = "transformers, open_clip, peft, classifier or onnx"


def export(
    model: ModelPath,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=TO)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="a new folder, or an empty one")],
    client: Client = None,
    backbone: Clip = "",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a tuned model for other libraries: fedtailor export runs/mine --to onnx --out mine-onnx"""
    with waiting("starting", quiet):
        from ..exports.export import export as write
    from .progress import Late

    with Late(enabled=not quiet) as progress:
        done = write(model, to, out, client=client, backbone=backbone, progress=progress.on_progress)
    if as_json:
        emit(
            {
                "model": str(model),
                "to": done.to,
                "by": "shared" if client is None else client,
                "folder": str(done.folder),
                "files": done.files,
                "max_difference": done.difference,
                "notes": list(done.notes),
            }
        )
        return
    for note in done.notes:
        say(note, stderr=True)
    say(f"{done.folder}: {done.whose}, for {done.to}")
    for name, count in done.files.items():
        say(f"  {name}  {size(count)}")
    say(f"read back, logits differ by at most {done.difference:.1e} (max difference)")
