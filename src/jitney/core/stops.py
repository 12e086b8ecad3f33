"""Stop strings in a form in which they are found character by character: `StopTable`.

Made with the sampling parameters, on the caller's thread, and shared by all completions of all
requests that have these parameters; it does not change after that. The engine thread follows
texts with it (`jitney.text.stop`).

It is the automaton of Aho and Corasick. A state is a beginning of a stop string: the longest that
the text ends with so far. Making it takes time and memory in proportion to the characters of the
stop strings, and following a text takes time in proportion to the text, whatever the strings.
"""

from array import array


class StopTable:
    """The states of some stop strings, numbered from the empty beginning, 0, by their length."""

    __slots__ = (
        "_branches",
        "_firsts",
        "_lengths",
        "_letters",
        "_matches",
        "_nexts",
        "_owners",
        "_retreats",
        "_stops",
    )

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        assert sum(map(len, stops)) < 2**16, "numbers of states have 16 bits"
        self._stops = stops
        self._firsts = frozenset(stop[0] for stop in stops)
        # For each state: the character that leads to it, its length, and a stop string with this
        # beginning. Plain numbers side by side: as objects they would take twenty times the room.
        self._letters = array("I", [0])
        self._lengths = array("H", [0])
        self._owners = array("H", [0])
        # The state one character on; where there are several, the others are in `_branches`.
        self._nexts = array("H", [0])
        self._branches: dict[int, dict[int, int]] = {}
        # The state of the longest shorter beginning that it ends with.
        self._retreats = array("H", [0])
        # One more than the number of the longest stop string that it ends with; 0: none.
        self._matches = array("H", [0])
        self._build()

    def __len__(self) -> int:
        return len(self._lengths)

    def follow(self, state: int, text: str) -> tuple[int, int]:
        """The state after this text and how many characters were looked at: all of them, or those
        up to the end of the first match."""
        if state == 0 and self._firsts.isdisjoint(text):
            # The way of almost every token.
            return 0, len(text)
        for count, character in enumerate(text, 1):
            state = self._after(state, ord(character))
            if self._matches[state]:
                return state, count
        return state, len(text)

    def matched(self, state: int) -> str | None:
        """The longest stop string that the text of this state ends with."""
        match = self._matches[state]
        return self._stops[match - 1] if match else None

    def length(self, state: int) -> int:
        """How many characters the beginning has, which are the text's last."""
        return self._lengths[state]

    def beginning(self, state: int, count: int) -> str:
        """The first `count` of these characters."""
        assert count <= self._lengths[state], "what comes after them is not known to be text"
        return self._stops[self._owners[state]][:count] if state else ""

    def _build(self) -> None:
        """Grow all strings together, by one character at a time: what a state may retreat to is
        shorter, and so is there already."""
        ends = [0] * len(self._stops)
        for length in range(1, max(map(len, self._stops), default=0) + 1):
            for owner, stop in enumerate(self._stops):
                if length > len(stop):
                    continue
                ends[owner] = self._grown(ends[owner], ord(stop[length - 1]), owner)
                if length == len(stop):
                    self._matches[ends[owner]] = owner + 1

    def _grown(self, parent: int, letter: int, owner: int) -> int:
        """The state one character on, made if it is not there."""
        state = self._child(parent, letter)
        if state:
            return state
        retreat = self._after(self._retreats[parent], letter) if parent else 0
        state = len(self)
        if self._nexts[parent] == 0:
            self._nexts[parent] = state
        else:
            self._branches.setdefault(parent, {})[letter] = state
        self._letters.append(letter)
        self._lengths.append(self._lengths[parent] + 1)
        self._owners.append(owner)
        self._nexts.append(0)
        self._retreats.append(retreat)
        self._matches.append(self._matches[retreat])
        return state

    def _after(self, state: int, letter: int) -> int:
        """The state after one more character.

        Each retreat gives up at least one character that was taken before, so there are no more
        of them than characters.
        """
        while True:
            child = self._child(state, letter)
            if child or state == 0:
                return child
            state = self._retreats[state]

    def _child(self, state: int, letter: int) -> int:
        """The state that is longer by this character; 0 when no stop string begins so."""
        child = self._nexts[state]
        if child and self._letters[child] == letter:
            return child
        branches = self._branches.get(state)
        return 0 if branches is None else branches.get(letter, 0)
