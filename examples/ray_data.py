"""Answers the lines of a JSONL file with Ray Data, and writes JSONL files with the answers.

python examples/ray_data.py in.jsonl -o answers                    the embedded model
python examples/ray_data.py in.jsonl -o answers --backend fake     without a model

A line is {"prompt": "..."} or {"messages": [...]}, with any other fields. On a Ray cluster, run it
on the head with RAY_ADDRESS=auto, and give paths that all machines share.
"""

import argparse

import ray

from jitney import RowAnswers


def main() -> None:
    """Read, answer and write, each while the others go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", help="a JSONL file, or a folder of them")
    parser.add_argument("-o", "--output", required=True, help="the folder for the answers")
    parser.add_argument("--model", help="what LLM takes; the embedded model if left out")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--engines", type=int, default=1, help="how many models are loaded")
    given = parser.parse_args()

    answered = ray.data.read_json(given.source).map_batches(
        RowAnswers,
        fn_constructor_kwargs={
            "model": given.model,
            "backend": given.backend,
            "max_tokens": given.max_tokens,
        },
        compute=ray.data.ActorPoolStrategy(size=given.engines),
        batch_size=64,
    )
    answered.write_json(given.output)


if __name__ == "__main__":
    main()
