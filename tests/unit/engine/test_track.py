"""Tokens whose text is made by their reader: borders of deltas, slow readers, no missed news."""

import asyncio
import threading

import pytest

from jitney.core import limits
from jitney.core.events import FinishReason
from jitney.engine import track as track_module
from jitney.engine.answer import Delta, Ending
from jitney.engine.mailbox import UNREAD_TOKEN_BYTES, Mailbox
from jitney.engine.track import Track
from jitney.errors import EngineStopped
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

VOCABULARY = byte_vocabulary()
WAIT_S = 100.0
LENGTH = (FinishReason.LENGTH, None)


def make_track(resumed: tuple[int, ...] = (), index: int = 0) -> Track:
    return Track(index, resumed, VOCABULARY, skips_special=True)


def followed(*tracks: Track, is_bounded: bool = False) -> Mailbox:
    mailbox = Mailbox(is_bounded=is_bounded)
    mailbox.follow(tracks)
    return mailbox


def test_half_a_character_is_news_and_no_delta() -> None:
    """Guards invariant 5 at the border of two fetches, and a reader that spins on half of one."""
    track = make_track()
    first, second = "é".encode()
    track.add(first, 0.0)
    assert track.has_news
    assert track.take() is None
    assert not track.has_news
    track.add(second, 0.0)
    assert track.take() == Delta(0, "é", (first, second))


def test_what_is_half_at_the_end_comes_out_once() -> None:
    """Guards the last delta: with U+FFFD for what never became a character, and only one of it."""
    track = make_track()
    track.add("é".encode()[0], 0.0)
    assert track.take() is None
    track.end = LENGTH
    delta = track.take()
    assert delta is not None
    assert (delta.text, len(delta.tokens), delta.finish_reason) == ("\ufffd", 1, LENGTH[0])
    assert not track.has_news
    assert track.take() is None


def test_a_long_absence_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the event loop against one reader's backlog; the end comes with the last part."""
    monkeypatch.setattr(track_module, "TAKEN_MAX", 4)
    track, text = make_track(), "a bus 🚌 is here"
    for token in encode(text, special=False):
        track.add(token, 0.0)
    track.end = LENGTH
    mailbox, called = followed(track), list[int]()
    found = mailbox.read(lambda: called.append(1))
    assert called == [1], "there is more"
    while track.has_news:
        found += mailbox.read(lambda: None)
    deltas = [each for each in found if isinstance(each, Delta)]
    assert "".join(each.text for each in deltas) == text == track.text()
    assert [each.finish_reason for each in deltas if each.finish_reason] == [LENGTH[0]]
    assert all(len(each.tokens) <= 4 + 3 for each in deltas)
    assert [token for each in deltas for token in each.tokens] == track.tokens


def test_tokens_from_elsewhere_are_in_the_text_and_in_no_delta() -> None:
    """Guards a request that moved: its caller has that part, up to half a character."""
    tokens = encode("né", special=False)
    track = make_track(tuple(tokens[:-1]))
    assert not track.has_news
    track.add(tokens[-1], 0.0)
    assert track.take() == Delta(0, "é", (tokens[-1],))
    assert track.text() == "né"


def test_the_tail_of_a_text_has_its_last_whole_characters() -> None:
    """Guards who looks at a text under way."""
    tokens = encode("the buś", special=False)
    track = make_track(tuple(tokens))
    assert (track.tail(2), track.tail(0), track.tail(100)) == ("uś", "", "the buś")
    assert make_track(tuple(tokens[:-1])).tail(2) == "bu"


def test_the_ending_is_read_with_the_last_deltas_of_all_completions() -> None:
    """Guards against an end that overtakes text, and against a round more for each stream."""
    tracks = make_track(), make_track(index=1)
    mailbox, called = followed(*tracks), list[int]()
    for track in tracks:
        track.add(97, 0.0)
        track.end = LENGTH
    ending = Ending(None, EngineStopped("over"))
    mailbox.end(ending)
    assert mailbox.read(lambda: called.append(1)) == [
        Delta(0, "a", (97,), (), *LENGTH),
        Delta(1, "a", (97,), (), *LENGTH),
        ending,
    ]
    assert called == []
    assert mailbox.fetch() is ending


def test_a_reader_of_tracks_who_stops_is_noticed() -> None:
    """Guards memory: the unread tokens of all completions count, and how old they are."""
    tracks = make_track(), make_track(index=1)
    mailbox = followed(*tracks, is_bounded=True)
    unread_max = limits.UNREAD_BYTES_MAX // UNREAD_TOKEN_BYTES
    for _ in range(unread_max // 2 + 1):
        for track in tracks:
            track.add(97, 5.0)
    assert not mailbox.is_read_too_slowly(5.0 + limits.UNREAD_S_MAX)
    assert mailbox.is_read_too_slowly(5.1 + limits.UNREAD_S_MAX)
    assert mailbox.fetch() is not None
    assert not mailbox.is_read_too_slowly(5.1 + limits.UNREAD_S_MAX)


def test_no_news_is_missed_between_reading_and_listening() -> None:
    """Guards against a stream that stands still: the engine adds while its reader says that it
    waits. Without the order of the two this fails in most runs."""
    track, count = make_track(), 20_000
    mailbox = followed(track)

    def make() -> None:
        for _ in range(count):
            track.add(97, 0.0)
            mailbox.wake()
        track.end = LENGTH
        mailbox.wake()

    async def read() -> int:
        loop, got = asyncio.get_running_loop(), 0
        news = asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(news.set)

        threading.Thread(target=make, daemon=True).start()
        async with asyncio.timeout(WAIT_S):
            while True:
                for item in mailbox.read(listener):
                    assert isinstance(item, Delta)
                    got += len(item.tokens)
                    if item.finish_reason is not None:
                        return got
                await news.wait()
                news.clear()

    assert asyncio.run(read()) == count


def test_a_task_waits_on_when_there_is_half_a_character() -> None:
    """Guards callers of `async for`: half a character wakes them for nothing."""
    track = make_track()
    mailbox = followed(track)

    async def main() -> Delta | Ending:
        reading = asyncio.create_task(mailbox.get_async())
        for byte in "é".encode():
            await asyncio.sleep(0)
            track.add(byte, 0.0)
            mailbox.wake()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(WAIT_S):
            return await reading

    assert asyncio.run(main()) == Delta(0, "é", tuple("é".encode()))
