"""`python -m cortiq` is the command line."""

from cortiq.cli.main import main

if __name__ == "__main__":
    main()
