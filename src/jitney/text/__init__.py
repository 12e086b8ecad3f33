"""From tokens to text and from messages to prompts; no engine, no model."""
