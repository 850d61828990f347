"""The same targets by atheris, which looks for bytes that reach code that none has reached before.

    pip install atheris
    python tests/fuzz/fuzz.py TARGET [-runs=100000] [-max_total_time=600] [any other option of libFuzzer]

What breaks a target is kept as crash-… in the working folder, and `python tests/fuzz/fuzz.py TARGET crash-…` tries it
again.
"""

import sys
import tempfile
from pathlib import Path

import atheris

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(Path(__file__).parent)]
with atheris.instrument_imports(include=["fedtailor"], enable_loader_override=False):
    from targets import TARGETS, try_out


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"which? {', '.join(TARGETS)}")
    target, options = sys.argv[1], sys.argv[2:]
    corpus = Path(tempfile.mkdtemp(prefix="fedtailor-corpus-"))
    for i, seed in enumerate(TARGETS[target][1]()):
        (corpus / str(i)).write_bytes(seed)
    files = [option for option in options if not option.startswith("-")]
    limits = ["-rss_limit_mb=4096", "-timeout=30", "-max_len=20000"]
    atheris.Setup(
        [sys.argv[0], *limits, *options, *([] if files else [str(corpus)])], lambda data: try_out(target, data)
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
