"""How tokens are chosen: the written meaning of every parameter, and fast code that agrees."""
