"""Reads the ``vllm serve`` command line that people already have, as far as drafting is concerned.

Nothing is executed and no shell is asked: variables stay unexpanded, and needing one is an error.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from .vllm_flags import (
    BOOLEAN_FLAGS,
    BOOLEAN_PREFIXES,
    COMMAND_MODULES,
    SHORT_FLAGS,
    TAKEN_FLAGS,
    TAKEN_SPECULATIVE,
    Taken,
)

_MOST_CHARACTERS = 65536
_MOST_TOKENS = 4096
_SHELL_END = frozenset({"|", "||", ";", "&&", "&"})
_REDIRECTION = re.compile(r"^\d*(>>?|<)(&?\d*|.*)$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_IMAGE = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)*[\w.-]*vllm[\w.-]*(?:/[\w.-]+)*(?::v?(?P<version>\d+\.\d+(?:\.\d+)?)?[\w.-]*)?(?:@\S+)?"
)
_SHORT_WITH_VALUE = re.compile(r"^-(tp|pp|dp|sc|q|dtp)(\d+|=.*)$")
_MULTIPLIERS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class VllmArgsError(ValueError):
    """The command line can't be read.

    Attributes:
        code: ``vllm_args_unparsable``, ``vllm_args_no_command``, ``vllm_args_missing_value``,
            ``vllm_args_invalid_value``, ``vllm_args_unexpanded``, ``vllm_args_too_long``.
        detail: one sentence that says what to do.
        flag: the flag it is about, or ``None``.
    """

    def __init__(self, code: str, detail: str, flag: str | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.flag = flag


class VllmArgs(Struct, kw_only=True):
    """What a command line says of drafting; ``None`` where it says nothing.

    Attributes:
        target: the model, a hub id or a path.
        target_revision: its revision.
        draft: the speculative config's ``model``.
        draft_revision: its revision.
        speculative: whether there is a speculative config at all.
        load_config: fields of the target's load config that are set.
        draft_load_config: the speculative config's.
        engine: ``vllm==<version>`` where an image tag names one, else ``vllm``.
        ignored: every flag that plays no part in the plan, as written, without its value.
    """

    target: str | None = None
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    speculative: bool = False
    method: str | None = None
    num_speculative_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    load_config: dict[str, Any] | None = None
    draft_load_config: dict[str, Any] | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    draft_tensor_parallel_size: int | None = None
    dtype: str | None = None
    enable_prefix_caching: bool | None = None
    engine: str = "vllm"
    ignored: tuple[str, ...] = ()


def parse_vllm_args(text: str) -> VllmArgs:
    """Reads ``vllm serve MODEL --flags``, ``python -m vllm.entrypoints...``, or the arguments after a vLLM image.

    Understood are environment prefixes, line continuations, ``--key value`` and ``--key=value``, dashes and
    underscores, short flags, JSON values and their dotted forms (``--speculative-config.method eagle``).

    Raises:
        VllmArgsError: the text is no such command line, or a value in it has the wrong type.
    """
    engine, tokens = _command(_tokens(text))
    flags, positional, ignored = _flags(tokens)
    result = VllmArgs(engine=engine)
    for name, value in flags.items():
        taken = TAKEN_FLAGS[name]
        _store(result, taken, _read(f"--{name}", value, taken))
    if result.target is None and positional:
        result.target = _plain("model", positional.pop(0))
    ignored += [_cut(token) for token in positional]
    ignored += _take_speculative(result, flags.get("speculative-config"))
    result.ignored = tuple(dict.fromkeys(ignored))
    return result


def _tokens(text: str) -> list[str]:
    if len(text) > _MOST_CHARACTERS:
        raise VllmArgsError(
            "vllm_args_too_long", f"A command line has at most {_MOST_CHARACTERS} characters here."
        )
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    try:
        tokens = shlex.split(joined)
    except ValueError as error:
        raise VllmArgsError(
            "vllm_args_unparsable", "A quote or a backslash is left open; check the quoting of JSON values."
        ) from error
    if len(tokens) > _MOST_TOKENS:
        raise VllmArgsError("vllm_args_too_long", f"A command line has at most {_MOST_TOKENS} words here.")
    return tokens


def _command(tokens: list[str]) -> tuple[str, list[str]]:
    """The engine and the words after the command that starts it."""
    for index, word in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        if word.rsplit("/", 1)[-1] == "vllm" and following in {"serve", "bench", "preload"}:
            return "vllm", _until_shell(tokens[index + 2 :])
        if word == "-m" and following is not None and following.startswith("vllm."):
            rest = tokens[index + 2 :]
            if following in COMMAND_MODULES and rest[:1] == ["serve"]:
                rest = rest[1:]
            return "vllm", _until_shell(rest)
    if tokens[:1] and tokens[0].rsplit("/", 1)[-1] in {"docker", "podman", "nerdctl"}:
        return _image_command(tokens)
    rest = [word for word in tokens if not _ASSIGNMENT.match(word)]
    if rest and rest[0].startswith("-"):
        return "vllm", _until_shell(rest)
    raise VllmArgsError(
        "vllm_args_no_command",
        "No 'vllm serve', no 'python -m vllm.entrypoints...' and no flags were found; give the whole command line.",
    )


def _image_command(tokens: list[str]) -> tuple[str, list[str]]:
    for index, word in enumerate(tokens):
        # A bare word, as after --name, is no image.
        match = _IMAGE.fullmatch(word) if "/" in word or ":" in word else None
        if match and index:
            version = match["version"]
            return f"vllm=={version}" if version else "vllm", _until_shell(tokens[index + 1 :])
    raise VllmArgsError("vllm_args_no_command", "No vLLM image was found in the container command.")


def _until_shell(tokens: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for token in tokens:
        if token in _SHELL_END:
            break
        if skip or _REDIRECTION.match(token):
            skip = not skip and token.rstrip("0123456789").endswith((">", "<"))
            continue
        ended = token.endswith(";")
        kept.append(token.removesuffix(";"))
        if ended:
            break
    return kept


def _flags(tokens: list[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Values of the flags that matter (the last one wins), positional words, names of the other flags."""
    flags: dict[str, Any] = {}
    dotted: list[tuple[str, list[str], str]] = []
    positional: list[str] = []
    ignored: list[str] = []
    index = 0
    while index < len(tokens):
        word = tokens[index]
        index += 1
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        written, name, value = _split_flag(word)
        head, *path = name.split(".")
        following = tokens[index] if index < len(tokens) else None
        if value is None and not _is_boolean(head) and _is_value(following, known=head in TAKEN_FLAGS):
            value = following
            index += 1
        if head not in TAKEN_FLAGS:
            ignored.append(_cut(written))
        elif TAKEN_FLAGS[head].kind == "bool":
            flags[head] = value is None or value.lower() not in {"false", "0"}
        elif value is None:
            raise VllmArgsError("vllm_args_missing_value", f"{_cut(written)} has no value.", _cut(written))
        elif path:
            dotted.append((head, path, value))
        else:
            flags[head] = value
    for head, path, value in dotted:
        flags[head] = _with_dotted(f"--{head}", flags.get(head), path, value)
    return flags, positional, ignored


def _split_flag(word: str) -> tuple[str, str, str | None]:
    """What was written, the flag's canonical name, and a value that came with ``=`` (or, ``-tp8``, without)."""
    if (match := _SHORT_WITH_VALUE.match(word)) is not None:
        written = f"-{match[1]}"
        return written, _canonical(written), match[2].removeprefix("=")
    written, separator, after = word.partition("=")
    name = _canonical(written)
    negated = name.removeprefix("no-")
    if name != negated and negated in TAKEN_FLAGS and TAKEN_FLAGS[negated].kind == "bool":
        return written, negated, "false"
    return written, name, after if separator else None


def _canonical(written: str) -> str:
    """The flag's long name with dashes, and the dotted path behind it as it stands."""
    head, dot, path = written.partition(".")
    name = head[2:].replace("_", "-") if head.startswith("--") else SHORT_FLAGS.get(head, head.lstrip("-"))
    return name + dot + path


def _is_boolean(name: str) -> bool:
    if name in TAKEN_FLAGS:
        return TAKEN_FLAGS[name].kind == "bool"
    return name in BOOLEAN_FLAGS or name.startswith(BOOLEAN_PREFIXES)


def _is_value(token: str | None, *, known: bool) -> bool:
    if token is None:
        return False
    return not token.startswith("-") or (known and re.fullmatch(r"-\d+(\.\d+)?", token) is not None)


def _with_dotted(flag: str, value: Any, path: list[str], text: str) -> dict[str, Any]:
    """A JSON flag's value with one dotted part set; ``key+`` appends to a list."""
    whole = _json_object(flag, value) if value is not None else {}
    place = whole
    for key in path[:-1]:
        deeper = place.setdefault(key, {})
        if not isinstance(deeper, dict):
            raise VllmArgsError(
                "vllm_args_invalid_value", f"{flag}: {_cut(key)} is set twice, in two shapes.", flag
            )
        place = deeper
    key = path[-1]
    try:
        item = json.loads(text)
    except (ValueError, RecursionError):
        item = text
    if key.endswith("+"):
        items = item if isinstance(item, list) else [item]
        earlier = place.setdefault(key[:-1], [])
        place[key[:-1]] = [*earlier, *items] if isinstance(earlier, list) else items
    else:
        place[key] = item
    return whole


def _read(flag: str, value: Any, taken: Taken) -> Any:
    if taken.kind == "bool":
        return value
    if taken.kind == "json":
        return _json_object(flag, value)
    text = _plain(flag, value)
    return _READERS[taken.kind](flag, text)


def _plain(flag: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if "$" in text or "`" in text:
        raise VllmArgsError(
            "vllm_args_unexpanded", f"{flag} has a shell variable in it; put its value there.", flag
        )
    return text


def _integer(flag: str, text: str) -> int:
    """``8k`` is 8000 and ``8K`` is 8192, as for vLLM."""
    match = re.fullmatch(r"(\d{1,12})(\.\d{1,6})?([kmgKMG])?", text.strip())
    if match is None or (match[2] and not (match[3] and match[3].islower())):
        raise VllmArgsError(
            "vllm_args_invalid_value", f"{flag} needs a whole number, not {_cut(text)!r}.", flag
        )
    number = float(match[1] + match[2]) if match[2] else int(match[1])
    return int(number * _MULTIPLIERS.get(match[3] or "", 1))


def _json_object(flag: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise VllmArgsError(
            "vllm_args_invalid_value",
            f"The value of {flag} is no JSON; quote it as one word, with double quotes inside.",
            flag,
        ) from error
    if not isinstance(parsed, dict):
        raise VllmArgsError("vllm_args_invalid_value", f"The value of {flag} is no JSON object.", flag)
    return parsed


_READERS: dict[str, Callable[[str, str], Any]] = {
    "text": lambda _flag, text: text,
    "int": _integer,
}


def _store(result: VllmArgs, taken: Taken, value: Any) -> None:
    if taken.load_field is not None:
        result.load_config = {**(result.load_config or {}), taken.load_field: value}
    elif taken.field is not None:
        setattr(result, taken.field, value)


def _take_speculative(result: VllmArgs, value: Any) -> list[str]:
    """Moves the speculative config's fields over; the rest is named as ignored."""
    if value is None:
        return []
    result.speculative = True
    ignored = []
    for key, item in _json_object("--speculative-config", value).items():
        taken = TAKEN_SPECULATIVE.get(key)
        path = f"speculative_config.{_cut(key)}"
        if taken is None or taken.field is None:
            ignored.append(path)
        elif item is not None:
            setattr(result, taken.field, _speculative_value(path, item, taken))
    return ignored


def _speculative_value(path: str, item: Any, taken: Taken) -> Any:
    if taken.kind == "int" and isinstance(item, int) and not isinstance(item, bool):
        return item
    if taken.kind == "json":
        return _json_object(path, item if isinstance(item, (dict, str)) else "")
    if taken.kind == "text" and isinstance(item, str):
        return _plain(path, item)
    wanted = {"int": "a whole number", "text": "a string", "json": "an object", "bool": "true or false"}[
        taken.kind
    ]
    raise VllmArgsError("vllm_args_invalid_value", f"{path} needs {wanted}.", path)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
