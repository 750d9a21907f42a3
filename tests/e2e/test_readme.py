"""Every command of the README is run, in order, and prints what the README says.

``UPDATE_README=1 python -m pytest tests/e2e/test_readme.py`` writes what was printed into the README.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from service import ROOT, clean_environment, free_port, wait_until

from app.settings import ENV_PREFIX, Settings

README = ROOT / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "@@end of a command@@"
# What differs from run to run or from machine to machine.
VOLATILE = [
    (re.compile(r"\b[0-9a-f]{32}\b"), "0123456789abcdef0123456789abcdef"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"), "2026-12-01T12:00:00Z"),
    (re.compile(r'("name": )"[^"]*"(\s*\})'), r'\1"Example CPU"\2'),
    (re.compile(r"-?\d+\.\d{3,}"), "0.123456"),
]


def stable(text):
    for pattern, replacement in VOLATILE:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def blocks(text):
    """``(language, content, start, end)`` of every fenced block; start and end enclose the content."""
    return [(match[1], match[2], match.start(2), match.end(2)) for match in FENCE.finditer(text)]


def commands_of(content):
    return [line[2:] for line in content.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """``make serve`` on another port, as the README starts it; its installation is the one that runs the tests."""
    directory = tmp_path_factory.mktemp("readme")
    port = free_port()
    environment = clean_environment(directory) | {"DRAFTPORT_PORT": str(port)}
    del environment["PYTHONPATH"]
    with (directory / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            ["make", f"--assume-old={sys.prefix}/.installed", f"VENV={sys.prefix}", "serve"],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def ready():
        assert process.poll() is None, (directory / "serve.log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz/worker").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(ready, 120, 0.1)
    (directory / ".venv").symlink_to(sys.prefix)
    yield port, directory, environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    os.killpg(process.pid, 15)
    process.wait(30)


def run_console(content, serving):
    port, directory, environment = serving
    commands = commands_of(content)
    script = "\n".join(f"{command}\nprintf '\\n{MARK}\\n'" for command in commands)
    script = "set -eo pipefail\n" + script.replace("localhost:8000", f"localhost:{port}")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    outputs = done.stdout.split(f"{MARK}\n")
    assert len(outputs) == len(commands) + 1, f"{commands[len(outputs) - 1]}\n{done.stdout}{done.stderr}"
    assert done.stderr == ""
    shown = []
    for command, output in zip(commands, outputs, strict=False):
        shown += [f"$ {command}", *([text] if (text := stable(output)) else [])]
    return "\n".join(shown) + "\n"


def run_script(content, serving):
    port, directory, environment = serving
    done = subprocess.run(
        [sys.executable, "-c", content.replace("localhost:8000", f"localhost:{port}")],
        cwd=directory, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return stable(done.stdout) + "\n"


def settings_table():
    defaults = {
        "runtime_dir": "per user",
        "cache_dir": "per user",
    }
    rows = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = defaults.get(name)
        if default is None:
            value = field.get_default(call_default_factory=True)
            empty = value is None or value == []
            default = "" if empty else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        rows.append(f"| `{ENV_PREFIX}{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def with_settings(text):
    opening, closing = "<!-- settings -->\n", "\n<!-- /settings -->"
    before, _, rest = text.partition(opening)
    _, _, after = rest.partition(closing.strip())
    return f"{before}{opening}{settings_table()}{closing}{after}"


def with_outputs(text, serving):
    """The README with what its commands print now."""
    printed, parts, at = None, [], 0
    for language, content, start, end in blocks(text):
        now = content
        if language == "console":
            now = run_console(content, serving)
        elif language == "python":
            printed = run_script(content, serving)
        elif language == "text":
            now = printed
        parts += [text[at:start], now]
        at = end
    return "".join([*parts, text[at:]])


def test_every_command_prints_what_the_readme_says(serving):
    text = README.read_text()
    now = with_settings(with_outputs(text, serving))
    if os.environ.get("UPDATE_README"):
        README.write_text(now)
    assert now == text


def test_the_two_commands_are_targets_of_the_makefile():
    shell = [content.strip() for language, content, *_ in blocks(README.read_text()) if language == "sh"]
    assert shell == ["make serve", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE) for command in shell)


def test_every_path_of_the_api_is_shown(serving):
    port, *_ = serving
    paths = httpx.get(f"http://127.0.0.1:{port}/openapi.json").json()["paths"]
    shown = README.read_text().replace("/$LEASE", "/{lease_id}")
    missing = [path for path in paths if path not in shown]
    assert missing == []


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
