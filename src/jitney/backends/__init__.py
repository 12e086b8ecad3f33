"""Whatever runs the model: one package for each backend, what they share, and their list (`kinds`).

What belongs to one backend stands in its own package. Which one a model gets is for `loading`.
"""
