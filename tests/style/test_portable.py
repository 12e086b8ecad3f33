"""Tests of what other systems lack: make is 3.81 on macOS, bash 3.2, and its tools are BSD's.

Rules are patterns, and each is tried on a line that breaks it: a rule that finds nothing proves
nothing.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MAKEFILE = ROOT / "Makefile"

YOUNG_MAKE = {
    r"\.(ONESHELL|RECIPEPREFIX|EXTRA_PREREQS|NOTINTERMEDIATE|WAIT)\b": ".ONESHELL:",
    r"\bSHELLFLAGS\b": ".SHELLFLAGS := -ec",
    r"\$[({](file|guile|let|intcmp)\s": "$(file > list,$(NAMES))",
    r"^\w+\s*!=": "VERSION != git describe",
    r"^\w+\s*:{2,3}=": "VENV ::= .venv",
    r"^[^\t#=]*&:": "a b &: c",
    r"^(undefine|private|load|-load)\s": "undefine VENV",
    r"^define\s+\S+\s*[:+?]?=": "define recipe =",
    r"--(output-sync|shuffle|trace|eval)\b": "$(MAKE) --output-sync all",
}
"""Features of make younger than 3.81, and a line with each."""

GNU_TOOLS = {
    r"\bsed\b[^|;&]*\s(-i\b|-[a-z]*r\b|--)": "sed -i s/a/b/ file",
    r"\bgrep\b[^|;&]*\s-[a-zA-Z]*P": "grep -oP 'a' file",
    r"\breadlink\s+-f|\brealpath\b": "readlink -f .",
    r"\bdate\b[^|;&]*\s(-d\b|--|-I|\+[^ ]*%N)": "date -d yesterday",
    r"\bstat\s+(-c|--)": "stat -c %s file",
    r"\bfind\b[^|;&]*\s-(printf|readable|executable|regextype)\b|\bfind\s+-": "find . -printf %p",
    r"\bxargs\b[^|;&]*\s(-r|-d|--)": "xargs -r rm",
    r"\b(cp|mv|ln|rm|ls|mkdir|touch|head|tail|sort|mktemp)\b[^|;&]*\s--[a-z]": "rm --force a",
    r"\b(cp|mv|install|ln)\s+-[a-zA-Z]*[tDT]\b|\bln\s+-[a-z]*r": "cp -t folder file",
    r"\bhead\b[^|;&]*\s(-n\s*-|-c\s*-)": "head -n -1 file",
    r"\bsort\b[^|;&]*\s-[a-zA-Z]*V": "sort -V",
    r"(^|[\s;&|(])(nproc|timeout|tac|shuf|lscpu|free|sha256sum|md5sum|getent)\s": "nproc ",
    r"\bbase64\s+-w": "base64 -w 0 file",
    r"\bmake\b[^|;&]*\s-[a-zA-Z]*O\b": "make -O all",
    r"\b(gensub|strftime|systime|PROCINFO|asorti?)\b": "awk '{ print gensub(1, 2, 3) }'",
    r"\becho\s+-[en]": "echo -e a",
}
"""What only GNU's tools know, and a line with each."""

YOUNG_BASH = {
    r"\b(declare|local|typeset)\s+-[a-zA-Z]*[Angul]": "declare -A found",
    r"\b(mapfile|readarray|coproc)\b": "mapfile -t lines < file",
    r"\$\{\w+(\[[^]]*\])?(,|\^|@[A-Za-z])": 'echo "${name,,}"',
    r"&>>|\|&|;;?&": "make &>> log",
    r"\bshopt\s+-s\s+(globstar|lastpipe|inherit_errexit)": "shopt -s globstar",
    r"\bwait\s+-[np]": "wait -n",
    r"\$\{\w+\[-": 'echo "${names[-1]}"',
    r"\[\[\s+(!\s+)?-[vR]\s": "[[ -v NAME ]]",
    r"\bread\b[^|;&]*\s-[a-zA-Z]*[Ni]\b": "read -N 1 key",
    r"%\([^)]*\)T|\bEPOCHSECONDS\b|\bEPOCHREALTIME\b|\bBASHPID\b": "printf '%(%s)T'",
}
"""What bash 3.2 does not know, and a line with each."""

NOT_SH = {
    r"\[\[": "[[ -n $a ]]",
    r"<<<|<\(|>\(": "cat <<< a",
    r"(^|[;&|]\s*|\t@?)(source|function|local|declare)\s": "; source file",
    r"\btest\b[^|;&]*\s==\s|(^|\s)\[\s[^]]*\s==\s": "test a == b",
    r"\bpipefail\b": "set -o pipefail",
    r"&>|\$'": "make &> log",
    r"\{\d+\.\.\d+\}": "touch {1..9}",
}
"""What /bin/sh need not know, and a line with each: recipes are run by it."""

LINUX = re.compile(
    r"/proc\b|/sys/|[\"/]sys/fs|sched_[gs]et|prctl|TIOCOUTQ|SIOCOUTQ|epoll|eventfd|memfd|pidfd|inotify"
    r"|posix_fadvise|accept4|SO_REUSEPORT|TCP_INFO|TCP_USER_TIMEOUT|SOCK_(CLOEXEC|NONBLOCK)"
    r"|/dev/shm|setpriority|SC_AVPHYS|O_TMPFILE|sigtimedwait|sigwaitinfo|CLOCK_BOOTTIME"
)
WITHOUT = {
    "jitney_cluster/back_channel.py": "unit/cluster/test_back_channel.py",
    "jitney/sandbox/die_with_parent.py": "unit/sandbox/test_die_with_parent.py",
    "jitney/backends/machine/neighbours.py": "unit/backends/machine/test_neighbours.py",
    "jitney_lab/bench/steal.py": "unit/lab/bench/test_steal.py",
    "jitney/backends/machine/processor.py": "unit/backends/machine/test_processor.py",
    "jitney/backends/machine/free_memory.py": "unit/backends/machine/test_free_memory.py",
    "jitney/backends/machine/cores.py": "unit/backends/machine/test_cores.py",
    "jitney/sandbox/child.py": "unit/sandbox/test_child.py",
    "jitney/server/http/protocol.py": "unit/server/http/test_protocol.py",
    "jitney/server/lifecycle.py": "unit/server/test_lifecycle.py",
}
"""Every module that uses what only Linux has, and the tests that take it away."""


def scripts() -> list[Path]:
    """Every file that a shell runs."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    files = [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return [file for file in files if re.match(rb"#!.*\b(ba|da)?sh\b", file.read_bytes()[:80])]


def broken(file: Path, rules: dict[str, str]) -> list[str]:
    """Every line of a file that breaks one of the rules."""
    return [
        f"{file.relative_to(ROOT)}:{number} {line.strip()}"
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for rule in rules
        if not line.lstrip().startswith("#") and re.search(rule, line)
    ]


@pytest.mark.parametrize("rules", [YOUNG_MAKE, GNU_TOOLS, YOUNG_BASH, NOT_SH])
def test_every_rule_finds_what_it_is_for(rules: dict[str, str]) -> None:
    """Guards the tests below."""
    assert [rule for rule, line in rules.items() if not re.search(rule, line)] == []


def test_the_makefile_is_for_make_381() -> None:
    """Guards macOS: its make is of 2006, and mostly ignores in silence what it does not know."""
    found = broken(MAKEFILE, YOUNG_MAKE | GNU_TOOLS | NOT_SH)
    assert not found, "\n".join(found)


def test_scripts_are_for_bash_32() -> None:
    """Guards macOS: its bash is of 2007."""
    assert ROOT / ".ci" / "run" in scripts()
    found = [line for file in scripts() for line in broken(file, GNU_TOOLS | YOUNG_BASH)]
    assert not found, "\n".join(found)


def test_what_only_linux_has_is_done_without_somewhere() -> None:
    """Guards macOS: each such place has another way, and a test that takes the first away."""
    found = {
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        if LINUX.search(file.read_text(encoding="utf-8"))
    }
    assert found == set(WITHOUT)
    assert [name for name in WITHOUT.values() if not (ROOT / "tests" / name).exists()] == []


def test_the_pythons_that_make_looks_for_are_those_that_are_promised() -> None:
    """Guards newcomers: what the package says it runs on is what its Makefile takes."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    promised = [each.removeprefix(prefix) for each in told["classifiers"] if prefix in each]
    searched = re.findall(r"\bpython3\.(\d+)\b", MAKEFILE.read_text(encoding="utf-8"))
    assert searched == promised[::-1]
    assert told["requires-python"] == f">=3.{promised[0]}"
