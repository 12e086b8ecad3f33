"""The OpenVINO backend: GGUF files of known families, fast on CPUs, with nothing to compile."""
