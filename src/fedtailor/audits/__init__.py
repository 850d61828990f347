"""Attacks on one's own run, by name: `fedtailor audit RUN`. A new one is a file with an `Audit`, and a line here.

What a curious server, or whoever is given a model, could learn; not what bad clients do, which is `attacks/`. Nor the
log that sites keep of what left them, which is `remote/audit.py`.
"""

from .base import Audit
from .features import Features
from .labels import Labels
from .membership import Membership
from .pictures import Pictures

AUDITS: dict[str, type[Audit]] = {
    "pictures": Pictures,
    "features": Features,
    "labels": Labels,
    "membership": Membership,
}
