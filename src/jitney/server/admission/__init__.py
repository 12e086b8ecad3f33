"""Who may call, how much and when: keys, rates, turns, worker threads, live calls."""
