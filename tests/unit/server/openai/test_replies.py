"""What every reply begins with."""

from jitney.server.openai.replies import fingerprint
from jitney.tokenizers.byte_tokenizer import byte_vocabulary


def test_the_fingerprint_tells_whether_texts_are_equal() -> None:
    """Guards auditors: where a text may differ from run to run, they can see it."""
    vocabulary = byte_vocabulary()
    equal = fingerprint("m", vocabulary, batch_invariant=True)
    assert equal == fingerprint("m", vocabulary, batch_invariant=True)
    assert equal != fingerprint("m", vocabulary, batch_invariant=False)
    assert equal != fingerprint("n", vocabulary, batch_invariant=True)
