"""The version: run folders of another one are refused, and remote clients of another one waited for."""

__version__ = "0.2.0"


def apart(theirs: str, ours: str) -> str:
    """What a site has whose version is another than the server's, and what to do about it; empty: they are the same."""
    if theirs == ours:
        return ""
    there, here = numbers(theirs), numbers(ours)
    what = "upgrade it" if there < here else "upgrade the server" if there > here else "install the same on both"
    return f"has fedtailor {theirs or '(unknown)'}, this server {ours}: {what}"


def numbers(version: str) -> list[int]:
    """The first three of a version, which a site may have made up: 0.3.0.dev1 is 0.3.0 here."""
    return [int(part) if part.isdecimal() else 0 for part in version.split(".")[:3]]
