"""`StopTable`: finds stop strings in a text, character by character.

It is made with the sampling parameters, on the caller's thread, and does not change after that. All
completions of all requests with these parameters share it. The engine thread uses it
(`jitney.text.stop`).

It is the automaton of Aho and Corasick. A state is a beginning of a stop string: the longest one
with which the text ends. To make the table takes time and memory in proportion to the characters of
the stop strings. To follow a text takes time in proportion to the text.
"""

from array import array


class StopTable:
    """The states of some stop strings, numbered by length. State 0 is the empty beginning."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        assert sum(map(len, stops)) < 2**16, "numbers of states have 16 bits"
        self._stops = stops
        self._firsts = frozenset(stop[0] for stop in stops)
        # For each state: its last character, its length, and a stop string with this beginning.
        # Arrays of numbers: objects would take twenty times the memory.
        self._letters = array("I", [0])
        self._lengths = array("H", [0])
        self._owners = array("H", [0])
        # The first state that is one character longer; the others are in `_branches`.
        self._nexts = array("H", [0])
        self._branches: dict[int, dict[int, int]] = {}
        # The longest shorter state that this one ends with.
        self._retreats = array("H", [0])
        # One more than the index of the longest stop string that it ends with; 0: none.
        self._matches = array("H", [0])
        self._build()

    def __len__(self) -> int:
        return len(self._lengths)

    def follow(self, state: int, text: str) -> tuple[int, int]:
        """The state after this text, and how many characters were read: all, or those up to the end
        of the first match."""
        if state == 0 and self._firsts.isdisjoint(text):
            # Almost every token ends here.
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
        """How many of the last characters of the text are a beginning of a stop string."""
        return self._lengths[state]

    def beginning(self, state: int, count: int) -> str:
        """The first `count` characters of the state's beginning."""
        assert count <= self._lengths[state], "what comes after them is not known to be text"
        return self._stops[self._owners[state]][:count] if state else ""

    def _build(self) -> None:
        """Add all strings together, one character at a time. So shorter states, to which a state
        may retreat, exist already."""
        ends = [0] * len(self._stops)
        for length in range(1, max(map(len, self._stops), default=0) + 1):
            for owner, stop in enumerate(self._stops):
                if length > len(stop):
                    continue
                ends[owner] = self._grown(ends[owner], ord(stop[length - 1]), owner)
                if length == len(stop):
                    self._matches[ends[owner]] = owner + 1

    def _grown(self, parent: int, letter: int, owner: int) -> int:
        """The state that is one character longer; made if it does not exist."""
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

        Each retreat makes the state at least one character shorter, so there are at most as many
        retreats as characters.
        """
        while True:
            child = self._child(state, letter)
            if child or state == 0:
                return child
            state = self._retreats[state]

    def _child(self, state: int, letter: int) -> int:
        """The state that is longer by this character; 0 if no stop string begins like this."""
        child = self._nexts[state]
        if child and self._letters[child] == letter:
            return child
        branches = self._branches.get(state)
        return 0 if branches is None else branches.get(letter, 0)
