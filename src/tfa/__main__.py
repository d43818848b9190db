"""`python -m tfa`."""

from tfa.cli.app import main

if __name__ == "__main__":
    main()
