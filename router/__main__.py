"""``python -m router``: the `kvrouter` command."""

from router.cli import main

if __name__ == "__main__":
    main()
