"""OpenAI's Responses: a translation above the floor `jitney.server.answer_call`, answers that are
kept in the job store, and answers that go on without a caller.

`response_routes` is the way in. Bodies become those of a chat (`to_chat`), and the deltas of a chat
become items and events (`item_events`).
"""
