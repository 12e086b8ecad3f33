"""Whether the server can do its work: `Health`. Any thread.

Tests: tests/unit/server/test_service.py and tests/e2e/server/test_service.py.
"""

from dataclasses import dataclass

from jitney.engine.engine import Engine, EngineState


@dataclass(frozen=True, slots=True)
class Health:
    """A status and, unless it is ok, the reason in a sentence."""

    status: str
    reason: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the server can do its work."""
        return self.status == "ok"


def health_of(engine: Engine, stall_timeout: float) -> Health:
    """Whether work gets done. A server that drains is healthy."""
    if engine.state is EngineState.STOPPED:
        return Health("stopped", "The engine has stopped; its log says why.")
    if not engine.is_backend_ready:
        return Health("restarting", "The backend was lost and is being started again.")
    stalled_s = engine.stalled_s
    if stalled_s > stall_timeout:
        return Health(
            "stalled",
            f"No forward pass has ended for {stalled_s:.0f} s, "
            f"and {engine.stats().live_requests} requests wait for one.",
        )
    return Health("ok")
