"""Slots as llama-server tells them, from a detail of the engine. Pure; any thread.

As many rows as sequences may run at once, each with the number of a slot of the backend's memory,
which has a few more for cached prefixes. Of a request that is another's there are numbers and no
name. Fields that llama-server has and nobody here knows are left out; `jitney` holds what it has
no word for.
"""

from collections.abc import Callable
from itertools import islice

from jitney.core.request import RequestId
from jitney.core.settings import SchedulerSettings
from jitney.core.snapshot import Detail, SlotState, SlotView
from jitney.server.observe.recorder import Origin
from jitney.server.observe.viewer import Viewer

# A value that JSON can carry.
Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
Fields = dict[str, Value]

NOBODY = -1
"""In llama-server's numbers: no task, and no limit."""


class SlotTable:
    """Makes the rows for one who looks."""

    def __init__(
        self,
        viewer: Viewer,
        settings: SchedulerSettings,
        origin: Callable[[RequestId], Origin | None],
    ) -> None:
        self._viewer = viewer
        self._settings = settings
        self._origin = origin

    def rows(self, detail: Detail) -> list[Value]:
        """One for each slot that runs or could, by number."""
        views = {view.slot: view for view in detail.slots}
        running = {slot for slot, view in views.items() if view.state is not SlotState.CACHED}
        slot_count = self._settings.max_num_seqs
        idle = (slot for slot in range(slot_count) if slot not in running)
        shown = sorted([*running, *islice(idle, max(0, slot_count - len(running)))])
        return [self._row(slot, views.get(slot)) for slot in shown]

    def _row(self, slot: int, view: SlotView | None) -> Fields:
        is_running = view is not None and view.state is not SlotState.CACHED
        row: Fields = {
            "id": slot,
            "id_task": NOBODY,
            "n_ctx": self._settings.model_len_max,
            "speculative": False,
            "is_processing": is_running,
            "jitney": {
                "state": "idle" if view is None else view.state.value,
                "tokens": 0 if view is None else view.token_count,
            },
        }
        if view is not None and view.request_id is not None:
            row |= self._of_request(view, view.request_id)
        return row

    def _of_request(self, view: SlotView, request_id: RequestId) -> Fields:
        origin = self._origin(request_id)
        may_read = self._viewer.may_read(None if origin is None else origin.tenant)
        fields: Fields = {"id_task": request_id if may_read else None}
        if origin is None:
            return fields
        limit = NOBODY if origin.max_tokens is None else origin.max_tokens
        made = max(0, view.token_count + 1 - origin.prompt_tokens)
        done = min(view.token_count, origin.prompt_tokens)
        return fields | {
            "n_prompt_tokens": origin.prompt_tokens,
            "n_prompt_tokens_processed": max(0, done - origin.cached_tokens),
            "n_prompt_tokens_cache": origin.cached_tokens,
            "params": {"n_predict": limit, "max_tokens": limit},
            "next_token": [
                {
                    "has_next_token": True,
                    "n_remain": NOBODY if limit == NOBODY else max(0, limit - made),
                    "n_decoded": made,
                }
            ],
        }
