"""Who looks at what was recorded: with keys, each key sees its own requests. Pure; any thread."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Viewer:
    """With a tenant, only that tenant's requests have a name, a text and a story."""

    tenant: str | None = None

    def may_read(self, tenant: str | None) -> bool:
        """Whether a request of this tenant is theirs; None stands for one that is forgotten."""
        return self.tenant is None or tenant == self.tenant


EVERYONE = Viewer()
"""Where there are no keys, everyone sees everything."""
