"""The model card of an exported model: how to use it, and the run's own card."""

from pathlib import Path

from ..report.model_card import about, backbone
from .base import Format
from .source import Source

OWN = (
    "It was learned from one client's pictures as well as from what all share, and may tell of them: "
    "keep it where that should not be seen."
)


def card(source: Source, to: str, written: Format, folder: Path, notes: list[str]) -> str:
    """As Markdown."""
    facts = source.facts
    calibrated = source.tuned.calibration(source.client)
    inside = "CLIP's weights are inside." if written.has_clip else "CLIP's weights are not inside."
    parts = [
        f"# {facts.method['name']} on {backbone(facts)}, for {to}",
        f"A CLIP tuned by fedtailor {facts.versions['fedtailor']} to tell {len(source.tuned.classes)} classes apart: "
        f"{source.title}, {facts.rounds} rounds. This is {source.whose}, as {written.what}. It was made from the CLIP "
        f"{backbone(facts)}, whose weights have the hash {facts.backbone.digest[:12]}. {inside}",
    ]
    if source.client is not None and source.tuned.has_own(source.client):
        parts.append(OWN)
    temperature = (
        f"Divide logits by {calibrated.temperature:.4g} before a softmax: the probabilities are then calibrated."
        if calibrated
        else "The model is not calibrated: probabilities are the softmax of the logits."
    )
    files = sorted(path.name for path in folder.iterdir())
    lines = [f"files: {', '.join(f'`{name}`' for name in files)}", *notes]
    return "\n\n".join([
        *parts,
        "## How to use it",
        "`folder` is this folder, `picture` the path of a picture; classes are in `export.json`, in the logits' order. "
        + temperature,
        written.usage(),
        "## What is in it",
        "\n".join(f"* {line}" for line in lines),
        *about(facts, source.tuned.classes),
    ]) + "\n"  # fmt: skip
