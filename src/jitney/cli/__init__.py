"""The command line: `jitney run`, `chat`, `demo`, `pull` and `config show`."""
