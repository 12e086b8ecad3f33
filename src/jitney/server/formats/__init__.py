"""How families of models write their answers: reasoning, content and calls of tools. Pure."""
