"""The sans-IO core: requests in, batches out, outcomes in, events out. Standard library only."""
