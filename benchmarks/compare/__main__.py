"""`python -m benchmarks.compare`: compare with other systems that are installed, in one run.

Known are llama-server (from the wheel xllamacpp, and the one that LLAMA_SERVER names or that is on
the PATH), vLLM in an environment of its own (the Python that VLLM_PYTHON names, or with vllm on the
PATH), llama-cpp-python's server, OpenVINO GenAI and transformers. Servers are compared with
`jitney serve`, libraries with jitney in process.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.compare.comparison import CLIENTS, SETS, Comparison, files_of, sizes_at
from jitney.cli.failures import say
from jitney.config import resolve
from jitney.errors import SetupError
from jitney.loading import select_backend
from jitney.loading.model_source import located
from jitney_lab.bench.in_process import for_bench
from jitney_lab.bench.report import document, setup_of
from jitney_lab.bench.steal import StealWatch, with_steal
from jitney_lab.cli.bench_result import check_folder, give_out
from jitney_lab.cli.bounds import read_counts


def parse(words: list[str]) -> argparse.Namespace:
    """The options. `--set` has settings of jitney, as text."""
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)), help="how many at once")
    parser.add_argument("--runs", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="a GGUF file; the embedded model without one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of jitney"
    )
    parser.add_argument("-o", "--output", type=Path, help="a folder for the result and its plot")
    options = parser.parse_args(words)
    pairs = [word.partition("=") for word in options.set]
    if not all(sign for _, sign, _ in pairs):
        parser.error("--set takes NAME=VALUE; for example mix=decode-first.")
    options.settings = {name: value for name, _, value in pairs}
    if SETS & options.settings.keys():
        parser.error(f"--set {', '.join(SETS & options.settings.keys())}: it is set here already.")
    return options


def main(words: list[str]) -> None:
    """Compare, and give out the result. Raises SetupError."""
    options = parse(words)
    clients = read_counts("--clients", options.clients)
    resolved = resolve({"model": options.model, **options.settings}, None, {})
    check_folder(options.output)
    watch = StealWatch()
    # A wrong file is our error first: others say it in many words.
    select_backend(for_bench(located(resolved.settings), **sizes_at(max(clients))))
    files = files_of(resolved.settings, say)
    comparison = Comparison(
        resolved.settings, options.settings, files, runs=options.runs, seed=options.seed
    )
    result = with_steal(comparison.run(clients), watch.share())
    content = document(result, options.seed, setup_of(resolved, SETS))
    give_out(result, content, options.output, "benchmarks.compare.picture")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetupError as error:
        sys.exit(str(error))
