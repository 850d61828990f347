"""Privacy mechanisms by name: the last thing that is done to an update before it leaves a client, for any method."""

from ..core.types import PrivacyStep

PRIVACY: dict[str, type[PrivacyStep]] = {}
