"""`python -m atomnative` is `atomnative`."""

from atomnative.cli.main import main

if __name__ == "__main__":
    main()
