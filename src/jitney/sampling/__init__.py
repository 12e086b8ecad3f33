"""How tokens are chosen: what every parameter means, constraints, logprobs."""
