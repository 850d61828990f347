"""`fedtailor`, and `python -m fedtailor` where the script is not on the path."""


def main() -> None:
    try:
        from .cli import main as cli  # here: whoever presses Ctrl-C while it is loaded gets no traceback either

        cli()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
