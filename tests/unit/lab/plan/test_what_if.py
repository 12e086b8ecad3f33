"""Other settings as the user writes them."""

import pytest

from jitney.errors import ConfigError
from jitney_lab.plan.what_if import Change, named, read_change


def test_settings_and_replicas_are_read() -> None:
    found = read_change("max-num-seqs=32, mix=separate,replicas=3")
    assert dict(found.words) == {"max_num_seqs": "32", "mix": "separate"}
    assert found.replicas == 3
    assert read_change("policy=sjf") == Change("policy=sjf", {"policy": "sjf"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_num_seqs", "without a value"),
        ("max_num_seqs=", "without a value"),
        ("", "without a value"),
        ("max_num_seq=3", "the nearest is max_num_seqs"),
        ("model=other.gguf", "cannot change model"),
        ("wait_s=1", "cannot change wait_s"),
        ("foo=2", "cannot change foo; these can be changed: .*max_num_seqs, .*replicas, "),
        ("mix=separate,mix=fair", "changes mix twice"),
        ("replicas=0", "expected a number from 1 to"),
        ("replicas=many", "expected a number from 1 to"),
    ],
)
def test_a_wrong_change_gives_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_change(text)


def test_a_mistake_in_a_value_names_its_change() -> None:
    words = r"^--what-if mix=fast: mix is wrong\.$"
    with pytest.raises(ConfigError, match=words), named(Change("mix=fast", {"mix": "fast"})):
        raise ConfigError("mix is wrong.")
    with pytest.raises(ConfigError, match=r"^mix is wrong"), named(Change("present", {})):
        raise ConfigError("mix is wrong.")
