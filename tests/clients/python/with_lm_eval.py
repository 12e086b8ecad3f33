"""EleutherAI's lm-eval: scores of texts, with the tokenizer of the server and a task of our own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import checks
from checks import MODEL
from lm_eval.__main__ import cli_evaluate

HOME = Path(os.environ["HOME"])
DIRECT = Path(__file__).parents[1] / "direct_scores.py"
ANSWER = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant"
ITEMS = [
    {"question": "The capital of France is", "choices": [" Paris", " Berlin", " Rome"], "key": 0},
    {"question": "Two plus two is", "choices": [" nine", " four and a half"], "key": 1},
    {"question": "The opposite of hot is", "choices": [" wet", " cold"], "key": 0},
    # After a whole answer the model would end: its score must not lose a token.
    {"question": ANSWER, "choices": ["\nYes.", "\nNo."], "key": 0},
]
TASK = f"""\
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {HOME / "items.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: key
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def logprobs() -> None:
    (HOME / "items.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ITEMS))
    (HOME / "choices.yaml").write_text(TASK)
    # The token is for the tokenizer, the variable for everything else.
    os.environ["OPENAI_API_KEY"] = checks.KEY
    given = f"model={MODEL},base_url={checks.BASE_URL}/completions,tokenizer_backend=remote"
    sys.argv = ["lm_eval", "run", "--model", "local-completions"]
    sys.argv += ["--model_args", f"{given},auth_token={checks.KEY}"]
    sys.argv += ["--include_path", str(HOME), "--tasks", "choices"]
    sys.argv += ["--log_samples", "--output_path", str(HOME / "out")]
    cli_evaluate()
    (samples,) = (HOME / "out").rglob("samples_*.jsonl")
    told = [json.loads(line) for line in samples.read_text().splitlines()]
    told.sort(key=lambda each: each["doc_id"])
    scores = [
        (float(score), is_greedy == "True")
        for each in told
        for score, is_greedy in each["filtered_resps"]
    ]
    pairs = [(each["question"], choice) for each in ITEMS for choice in each["choices"]]
    direct = direct_scores(pairs)
    for pair, ours, theirs in zip(pairs, direct, scores, strict=True):
        assert abs(ours[0] - theirs[0]) < 1e-6, (pair, ours, theirs)
        assert ours[1] == theirs[1], (pair, ours, theirs)
    (results,) = (HOME / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["choices"]["acc,none"] == accuracy(direct)


def direct_scores(pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    """The same from an engine of our own, without HTTP and without lm-eval."""
    done = subprocess.run(
        [os.environ["JITNEY_PYTHON"], str(DIRECT), os.environ["JITNEY_MODEL_LEN"]],
        # Without the variables of these checks, which would be settings of the engine.
        env={name: os.environ[name] for name in ("PATH", "HOME", "JITNEY_CACHE")},
        input=json.dumps(pairs).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return [(score, is_greedy) for score, is_greedy in json.loads(done.stdout)]


def accuracy(scores: list[tuple[float, bool]]) -> float:
    """How many items have their key as the likeliest choice."""
    left = iter(scores)
    right = 0
    for each in ITEMS:
        found = [next(left)[0] for _ in each["choices"]]
        right += found.index(max(found)) == each["key"]
    return right / len(ITEMS)


checks.run("lm_eval", logprobs)
