"""The OpenVINO backend: GGUF files of known families, fast on CPUs, with nothing to compile.

OpenVINO sends an event to its maker when it is imported. jitney sends nothing anywhere, so here its
package for that is not there: the library does without.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as Python allows
