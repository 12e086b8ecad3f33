"""Who may join, wait and go: the rules that the scheduler asks. Standard library only."""
