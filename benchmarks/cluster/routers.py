"""Ray Serve's prefix-affinity router, over our orders: `TextPrefixRouter`. Imports Ray.

Ray has it as `ray.serve.llm.request_router.PrefixCacheAffinityRouter`. That module also loads what
`ray.serve.llm` needs to run vLLM (pyarrow and more); the class itself needs none of it, so it is
taken from where it is written. It looks for a text in the arguments of a call. Ours have an order
of tokens: one character for each makes the text.
"""

from typing import Any  # Any: Ray has no types for requests

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor

from jitney_cluster.replica_messages import Order, decode_request


class TextPrefixRouter(PrefixCacheAffinityRouter):  # type: ignore[misc]
    """With its own defaults, but for the tree: a new one for each server."""

    def initialize_state(self, **given: Any) -> None:
        """Called by Serve once. By default the tree outlives the server, with its dead replicas."""
        tree = PrefixTreeActor.options(num_cpus=0).remote()
        super().initialize_state(tree_actor=tree, **given)

    def _extract_text_from_request(self, pending_request: Any) -> str | None:
        """The prompt of an order; None for other calls, which then go by power of two."""
        order: Order | None = pending_request.kwargs.get("order")
        return None if order is None else "".join(map(chr, decode_request(order.request).prompt))
