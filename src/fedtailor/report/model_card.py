"""The model card of a model folder: its facts in words."""

from pathlib import Path
from typing import Any

from ..evaluation.calibration import Calibration
from ..evaluation.metrics import METRICS
from ..use.model_file import ModelFacts
from .tables import percent, shown_metrics

SHOWN = 60  # names, at most


def card(facts: ModelFacts) -> str:
    """As Markdown."""
    method, tuner = facts.method["name"], facts.tuner["name"]
    own = sum(client.own for client in facts.clients)
    parts = [
        f"# {method} on {backbone(facts)}",
        f"A CLIP tuned by fedtailor {facts.versions['fedtailor']} to tell {len(facts.classes)} classes apart: "
        f"{method} with tuner {tuner}, {facts.rounds} rounds. CLIP itself is not in this folder, only what bends it.",
        "```text\nfedtailor predict THIS-FOLDER photo.jpg\nfedtailor evaluate THIS-FOLDER PICTURES\n```",
        "## What is in it",
        "\n".join(f"* {line}" for line in contents(facts, own)),
        *about(facts, facts.classes),
    ]
    return "\n\n".join(parts) + "\n"


def backbone(facts: ModelFacts) -> str:
    """Without the path, which is nobody's business."""
    name = Path(facts.backbone.name)
    return name.name if name.is_absolute() else facts.backbone.name


def about(facts: ModelFacts, classes: tuple[str, ...]) -> list[str]:
    """What is so in whatever form the model is kept."""
    parts = [
        "## Classes",
        names(classes),
        "## Trained on",
        f"{facts.trained_on}.",
        "## Scores",
        scores(facts),
        "## Calibration",
        "\n\n".join([f"{facts.calibration.why}.".replace("..", "."), *calibration(facts)]),
        "## How it works",
        "\n".join(f"* {line}" for line in workings(facts)),
    ]
    if facts.notes:
        parts += ["## Notes", "\n".join(f"* {note}" for note in facts.notes)]
    return parts


def contents(facts: ModelFacts, own: int) -> list[str]:
    shared = "the shared model" if facts.has_shared else "what clients' models begin from; there is no shared model"
    lines = [f"`shared.safetensors`: {shared}"]
    if own and facts.site:
        lines.append(
            f"`clients/`: what this site's own model has otherwise (`--client {facts.clients[0].name}`). This was "
            "learned from its pictures alone, and may tell of them: leave it out of copies where it should not"
        )
    elif own:
        lines.append(
            f"`clients/`: what {own} of {len(facts.clients)} clients' own models have otherwise. This was learned from "
            "one client's pictures alone, and may tell of them: leave these files out where it should not"
        )
    elif facts.clients:
        lines.append("no client has a model of its own")
    return [*lines, *([facts.without] if facts.without else []), "`model.json`: all of this for programs"]


def names(classes: tuple[str, ...]) -> str:
    more = f" and {len(classes) - SHOWN} more" if len(classes) > SHOWN else ""
    return ", ".join(classes[:SHOWN]) + more + "."


def scores(facts: ModelFacts) -> str:
    """Zero-shot against tuned, in percent, as the run's table has them."""
    found = facts.scores
    if facts.site:
        return site_scores(facts)
    rows = {
        "zero-shot CLIP, whole test set": found["zero_shot"],
        "shared model, whole test set": found["global"],
        "zero-shot CLIP, mean over clients": found["zero_shot_personal"],
        "clients' own models, mean over clients": found["personal"],
    }
    return "In percent, of the last round.\n\n" + metrics_table(rows)


def site_scores(facts: ModelFacts) -> str:
    """The same of one site's own test pictures, and by class."""
    found = facts.scores
    if not (count := sum(found["pictures"].values())):
        return "Not measured: this site has no test pictures of its own."
    rows = {"zero-shot CLIP": found["zero_shot"], "shared model": found["global"], "own model": found["personal"]}
    by_class = [
        [name.replace("|", "\\|"), str(n), *(percent(row["per_class"][name]) for row in rows.values())]
        for name, n in found["pictures"].items()
        if n
    ]
    by_class.insert(0, ["class", "pictures", *rows])
    return f"In percent, on the site's own {count} test pictures.\n\n{metrics_table(rows)}\n\n{markdown(by_class)}"


def metrics_table(rows: dict[str, Any]) -> str:
    shown = shown_metrics(rows.values())
    values = [[title, *(percent(score.get(name)) for name in shown)] for title, score in rows.items()]
    return markdown([["", *(METRICS[name].heading for name in shown)], *values])


def markdown(lines: list[list[str]]) -> str:
    """As a table; the first line is its head."""
    head, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rest])


def calibration(facts: ModelFacts) -> list[str]:
    kinds = {"shared model": facts.calibration.shared, "clients' own models": facts.calibration.personal}
    return [f"{kind[0].upper()}{kind[1:]}: {told(fit)}" for kind, fit in kinds.items() if fit]


def told(fit: Calibration) -> str:
    unsure = (
        f"Below a confidence of {fit.unsure:.2f} it is wrong more often than right: {fit.unsure_share:.1f}% of those "
        f"pictures, {percent(fit.unsure_right)}% of them right."
        if fit.unsure_right is not None
        else "At no confidence is it wrong more often than right."
    )
    return (
        f"temperature {fit.temperature:.3f}; expected calibration error {fit.ece_before:.2f}% before and "
        f"{fit.ece_after:.2f}% after (each half of the pictures by the temperature of the other half). {unsure}"
    )


def workings(facts: ModelFacts) -> list[str]:
    def settings(group: dict[str, Any]) -> str:
        given = {key: value for key, value in group.items() if key != "name"}
        return f" ({', '.join(f'{key}={value}' for key, value in given.items())})" if given else ""

    it = facts.preprocessing
    return [
        f"method {facts.method['name']}{settings(facts.method)}",
        f"tuner {facts.tuner['name']}{settings(facts.tuner)}",
        f"CLIP with the hash {facts.backbone.digest[:12]}, in {facts.backbone.precision}",
        f"pictures: {it.size} pixels, {it.resize}; mean {list(it.mean)}, std {list(it.std)}",
        f"zero-shot sentence: {facts.template!r}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
    ]
