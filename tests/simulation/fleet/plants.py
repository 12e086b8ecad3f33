"""Bugs of a fleet that are put into the source on purpose, each with the checker that must find
it."""

from tests.simulation.planting import Plant, planted

_REQUEST = "jitney_cluster/cluster_request.py"
_ROUTING = "jitney_cluster/routing.py"
_SCHEDULER = "jitney/core/scheduler.py"


def _planted(name: str, checker: str, file: str, old: str, new: str) -> Plant:
    return planted(name, checker, (file, old, new), simulation="fleet")


OF_THE_FLEET = (
    _planted(
        "a moved request goes on one token too early",
        "resume",
        _REQUEST,
        "None if each.last else tuple(each.tokens) for",
        "None if each.last else tuple(each.tokens[:-1]) for",
    ),
    _planted(
        "a moved request begins again",
        "stream",
        "jitney/core/sequence.py",
        "[*self.request.prompt, *self.request.resumed_tokens[self.index]]",
        "[*self.request.prompt]",
    ),
    _planted(
        "a completion whose end was lost gets another token",
        "stream",
        _SCHEDULER,
        "if sequence.known_count >= sequence.known_max:\n                # It was resumed",
        "if sequence.known_count > sequence.known_max:\n                # It was resumed",
    ),
    _planted(
        "a completion that ended before the move is made again",
        "resume",
        _REQUEST,
        "None if each.last else tuple(each.tokens) for",
        "tuple(each.tokens) for",
    ),
    _planted(
        "usage is what the last engine made",
        "usage",
        "jitney/core/registry.py",
        "            sequence.completion_count,\n",
        "            sequence.completion_count\n"
        "            - len(sequence.request.resumed_tokens[sequence.index]),\n",
    ),
    _planted(
        "a request may kill as many replicas as there are",
        "quarantine",
        _REQUEST,
        "self._losses += self._has_run",
        "self._losses += 0",
    ),
    _planted(
        "a lost replica stays in the table",
        "ending",
        _ROUTING,
        "self._replicas = {name: self._replicas.get(name)",
        "self._replicas |= {name: self._replicas.get(name)",
    ),
    _planted(
        "what has ended stays in the sums of the table",
        "recount",
        _ROUTING,
        "sent = self._sent.pop(request_id, None)",
        "sent = None",
    ),
    _planted(
        "the keys of a head do not depend on the scope",
        "scope",
        _ROUTING,
        'Chain("scope " + scope, known)',
        'Chain("scope", known)',
    ),
    _planted(
        "a replica takes whatever it is sent",
        "bounds",
        "jitney/core/rules/queue.py",
        "if before.count == 0 or (count",
        "if before.count >= 0 or (count",
    ),
)
