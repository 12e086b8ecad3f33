"""`python xllamacpp_server.py MODEL PORT SLOTS CONTEXT THREADS FLASH UBATCH`.

llama-server as the wheel `xllamacpp` brings it. Serves until it is stopped.
"""

import signal
import sys

from xllamacpp import CommonParams, Server, llama_flash_attn_type


def main(words: list[str]) -> None:
    """Serve on this port of the machine."""
    model, port, slots, context, threads, flash, ubatch = words
    params = CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.n_parallel = int(slots)
    params.n_ctx = int(context)
    params.n_batch = 2048
    params.n_ubatch = int(ubatch)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    kinds = llama_flash_attn_type
    enabled = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED
    disabled = kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.flash_attn_type = enabled if flash == "on" else disabled
    server = Server(params)
    assert server is not None
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(sys.argv[1:])
