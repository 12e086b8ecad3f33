"""Anthropic's Messages: bodies, errors and replies of its form, made of OpenAI's."""
