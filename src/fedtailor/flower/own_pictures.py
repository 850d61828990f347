"""A site looks its own pictures over when it starts, before it joins: here, in its own log, all may be named."""

import logging
from pathlib import Path

from ..base.errors import UserError
from ..base.files import make_folder, write_atomic
from ..base.folders import user_path
from ..data import open_dataset
from ..data.check import UNREADABLE, Finding, check
from ..data.datasets.own import layout_of

log = logging.getLogger("fedtailor.site")
SEEN = "pictures.seen"  # in the site's state: the fingerprint of pictures that could all be read
ANY = ("any",)  # class names come with a run


def look_over(data: str, state: Path) -> None:
    """What `fedtailor data check` finds. An error where there is nothing to train on, or nothing of it can be read."""
    dataset = open_dataset(data, otherwise=ANY)
    train, test = len(dataset.train), len(dataset.test)
    if not train:
        raise UserError(f"{data} has no pictures to train on; give this site's own with --data")
    counted = f"{train} to train on, {test} to test on"
    seen, now = state / SEEN, f"{dataset.train.images.fingerprint} {dataset.test.images.fingerprint}"
    if seen.is_file() and seen.read_text() == now:
        log.info("pictures: %s, as they were when they were last looked over", counted)
        return
    log.info("pictures: %s; looking them over", counted)
    form, _, path = data.partition(":")
    layout = layout_of(user_path(path), ANY) if form == "folder" else None
    findings = [one for one in check(dataset, layout=layout).findings if one.wrong and one.examples]
    findings = [one for one in findings if one.examples != dataset.classes]  # a site may have one class only
    for one in findings:
        log.warning("%s", in_short(one))
    unreadable = sum(one.count for one in findings if one.what == UNREADABLE)
    if unreadable == train + test:
        raise UserError(f"none of the {unreadable} pictures of {data} can be read; this site's log names some")
    if unreadable:
        log.warning("runs leave them out with data.broken=skip; in others this site cannot take part")
    else:
        make_folder(state)
        write_atomic(seen, now.encode())


def in_short(finding: Finding) -> str:
    more = ", …" if finding.count > len(finding.examples) else ""
    return f"{finding.count} {finding.what}: {', '.join(finding.examples)}{more}"
