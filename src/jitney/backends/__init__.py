"""What runs the model: a package for each backend, what all of them share, and a list (`kinds`).

Code for one backend belongs into its own package. `loading` chooses a backend for a model.
"""
