"""What is fast, measured: `python -m benchmarks`. Each part is a file, `registry.py` names them all."""
