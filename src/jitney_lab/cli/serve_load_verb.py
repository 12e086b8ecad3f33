"""The command `jitney bench serve` and its options, with the names of `vllm bench serve`.

Imports nothing heavy.

Tests: tests/unit/cli/test_flags.py and tests/e2e/test_bench.py.
"""

from dataclasses import dataclass
from pathlib import Path

from jitney.cli.flags import COMMAND, SERVER_URL, Verb, option

LOAD = "Load"
DATASET = "Load of other datasets"
SAMPLING = "Sampling"
OUTPUT = "Output"
NUM_PROMPTS = 100
INPUT_LEN, OUTPUT_LEN = 128, 64
CUSTOM_OUTPUT_LEN = 256
PREFIX_LEN, SUFFIX_LEN, PREFIX_COUNT, PREFIX_OUTPUT_LEN = 256, 256, 10, 128
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLoadOptions:
    """Put load on a running server that speaks OpenAI's HTTP interface.

    Flags and results have the names of `vllm bench serve`: times to the first token (ttft), per
    token after it (tpot), between chunks of the stream (itl), of one token or several, and to the
    end (e2el).
    """

    base_url: str | None = option(
        COMMAND, f"Where the server is. Default: {SERVER_URL}.", metavar="URL"
    )
    host: str | None = option(COMMAND, "Its host, instead of a URL. Default: 127.0.0.1.")
    port: int | None = option(COMMAND, "Its port, instead of a URL. Default: 8000.")
    insecure: bool = option(COMMAND, "Do not check the certificate of an https server.", False)
    backend: str | None = option(
        COMMAND,
        "What is asked for: openai or vllm for completions, openai-chat for chats. Default: what "
        "the path says.",
        spelled=("--backend", "--endpoint-type"),
        metavar="NAME",
    )
    endpoint: str | None = option(
        COMMAND,
        f"The path of the requests; with `chat` in it they are chats. Default: {COMPLETIONS}, or "
        "that of --backend.",
        metavar="PATH",
    )
    model_name: str | None = option(
        COMMAND,
        "The name of the model. Default: the first one that the server lists.",
        spelled=("--model",),
        metavar="NAME",
    )
    served_model_name: str | None = option(
        COMMAND, "Its name at the server, if results are to have another one.", metavar="NAME"
    )
    api_key: str | None = option(
        COMMAND, "A key of the server; others on this machine can see it in `ps`."
    )
    header: tuple[str, ...] = option(
        COMMAND, "More headers of each request.", (), metavar="KEY=VALUE ..."
    )
    disable_tqdm: bool = option(COMMAND, "Show no progress bar.", False)
    dataset_name: str | None = option(
        LOAD,
        "random: prompts of common words. prefix_repetition: the same, some with equal beginnings. "
        "custom: a JSONL file with a prompt in each line. sharegpt: a JSON file of conversations, "
        "whose lengths are estimated at four characters a token. Default: random, or a trace if "
        "there is a file.",
        metavar="NAME",
    )
    dataset_path: Path | None = option(
        LOAD,
        "The file of a dataset. Without a name it is a JSONL trace: timestamp (ms), input_length "
        "and output_length in each line. Without timestamps, the requests arrive at "
        "--request-rate.",
    )
    num_prompts: int | None = option(
        LOAD, f"How many requests. Default: {NUM_PROMPTS}; all prompts of a custom file."
    )
    input_len: int | None = option(LOAD, f"Tokens of a prompt, about. Default: {INPUT_LEN}.")
    output_len: int | None = option(
        LOAD, f"Tokens of an answer. Default: {OUTPUT_LEN} for random; others have their own."
    )
    random_input_len: int | None = option(LOAD, "The same as --input-len, for random.")
    random_output_len: int | None = option(LOAD, "The same as --output-len, for random.")
    range_ratio: float | None = option(
        LOAD,
        "Lengths vary by up to this share. Default: 0.",
        spelled=("--random-range-ratio",),
        metavar="SHARE",
    )
    prefix_len: int | None = option(
        LOAD,
        "Tokens at the beginning that all prompts share. Default: 0.",
        spelled=("--random-prefix-len",),
    )
    request_rate: float | None = option(
        LOAD,
        "Requests per second. Default: inf, all at once; with a trace, its timestamps.",
    )
    burstiness: float | None = option(
        LOAD,
        "Of the request rate: 1 is a Poisson process, less is burstier, more is more even. "
        "Default: 1.",
    )
    max_concurrency: int | None = option(
        LOAD, "The most requests that are under way at once.", metavar="N"
    )
    num_warmups: int = option(LOAD, "Requests before the clock starts. They are not counted.", 0)
    ignore_eos: bool | None = option(
        LOAD,
        "Ask for answers of the whole length, if the server can. Default: yes, except for prompts "
        "from a file.",
        spelled=("--ignore-eos/--no-ignore-eos",),
    )
    custom_output_len: int | None = option(
        DATASET,
        "Tokens of an answer, for custom; -1 takes output_tokens of each line. Default: "
        f"output_tokens where a line has it, else {CUSTOM_OUTPUT_LEN}.",
    )
    sharegpt_output_len: int | None = option(
        DATASET, "Tokens of an answer, for sharegpt. Default: that of the conversation."
    )
    disable_shuffle: bool = option(DATASET, "Take the prompts of a file in their order.", False)
    no_oversample: bool = option(
        DATASET, "Do not repeat prompts if the file has fewer than --num-prompts.", False
    )
    skip_chat_template: bool = option(
        DATASET, "Send prompts of a file as they are, which is always done here.", False
    )
    prefix_repetition_prefix_len: int | None = option(
        DATASET, f"Tokens of a shared beginning. Default: {PREFIX_LEN}."
    )
    prefix_repetition_suffix_len: int | None = option(
        DATASET, f"Tokens after it. Default: {SUFFIX_LEN}."
    )
    prefix_repetition_num_prefixes: int | None = option(
        DATASET, f"How many beginnings there are. Default: {PREFIX_COUNT}."
    )
    prefix_repetition_output_len: int | None = option(
        DATASET, f"Tokens of an answer. Default: {PREFIX_OUTPUT_LEN}."
    )
    temperature: float = option(SAMPLING, "Default: 0, the most likely token.", 0.0)
    top_p: float | None = option(SAMPLING, "Sent as top_p, if given.")
    top_k: int | None = option(SAMPLING, "Sent as top_k, if given.")
    min_p: float | None = option(SAMPLING, "Sent as min_p, if given.")
    frequency_penalty: float | None = option(SAMPLING, "Sent as frequency_penalty, if given.")
    presence_penalty: float | None = option(SAMPLING, "Sent as presence_penalty, if given.")
    repetition_penalty: float | None = option(SAMPLING, "Sent as repetition_penalty, if given.")
    extra_body: str | None = option(
        SAMPLING, "More fields of each request, as a JSON object.", metavar="JSON"
    )
    percentile_metrics: str | None = option(
        OUTPUT,
        "The times that are reported, with commas. Default: ttft,tpot,itl,e2el.",
        metavar="NAME,...",
    )
    metric_percentiles: str = option(
        OUTPUT, "Percentiles, with commas. Default: 50,95,99.", "50,95,99", metavar="N,..."
    )
    goodput: tuple[str, ...] = option(
        OUTPUT,
        "Count requests within all these limits in ms, as ttft:500, tpot:50, e2el:2000, or itl:200 "
        "for each gap.",
        (),
        metavar="METRIC:MS ...",
    )
    save_result: bool = option(OUTPUT, "Save the result as one JSON file.", False)
    append_result: bool = option(OUTPUT, "Add it to the end of that file, as a line.", False)
    save_detailed: bool = option(
        OUTPUT, "Save the times of each request as well. Texts are not kept.", False
    )
    result_dir: Path | None = option(
        OUTPUT, "The folder of that file. Default: the present one.", metavar="FOLDER"
    )
    result_filename: str | None = option(
        OUTPUT,
        "The name of that file. Default: label, rate, model and date.",
        metavar="NAME",
    )
    label: str | None = option(OUTPUT, "A name for the run. Default: the backend.")
    metadata: tuple[str, ...] = option(
        OUTPUT, "What the result should say as well.", (), metavar="KEY=VALUE ..."
    )
    seed: int = option(COMMAND, "Lengths, prompts and arrivals come from it.", 0)
    output: Path | None = option(
        OUTPUT,
        "A folder for the result as JSON and its plots (PNG, SVG).",
        spelled=("--output", "-o"),
        metavar="FOLDER",
    )


SERVE_LOAD_VERB = Verb(
    path=("bench", "serve"),
    module="jitney_lab.cli.bench_serve",
    call="run_serve",
    options=ServeLoadOptions,
    examples=(
        "jitney bench serve --num-prompts 200 --request-rate 4",
        "jitney bench serve --dataset-path day.jsonl --goodput ttft:500 --goodput tpot:50",
        "jitney bench serve --dataset-name random --random-input-len 512 --random-output-len 64",
    ),
    settings=(),
)
