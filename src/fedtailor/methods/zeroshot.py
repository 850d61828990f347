"""Zero-shot CLIP: nothing is trained; the class names in a hand-written sentence are the classifier.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.
Departures: none (one sentence a class, no ensemble of templates).
"""

from ..core import Method


class ZeroShot(Method):
    trains = False
