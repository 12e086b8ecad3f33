"""`python -m jitney` is the program `jitney`."""

from jitney.cli.main import run

if __name__ == "__main__":
    run()
