"""Privacy mechanisms by name: the last thing that is done to an update before it leaves a client, for any method."""

from .base import PrivacyStep
from .gaussian import Gaussian

PRIVACY: dict[str, type[PrivacyStep]] = {"gaussian": Gaussian}
