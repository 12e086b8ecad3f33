"""Who may ask, how much, and when: keys, rates, turns, worker threads, calls being answered."""
