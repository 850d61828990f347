"""Two small CLIPs of our own that know photographs: `python -m lab`, see README.md here."""
