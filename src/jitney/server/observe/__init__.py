"""What is seen of the engine from outside: metrics, the recorder, traces, explanations."""
