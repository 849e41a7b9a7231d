"""ARCHITECTURE's public interface is what is there: documented, used, and all that crosses folders.

The section is the only list. Tests may look anywhere.
"""

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import kernels

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("verifyscope", "kernels", "collectives", "graphs", "ingest", "suites", "reports")
UNITS = (
    *("second", "byte", "flop", "token", "row", "watt", "percent", "milliseconds", "MHz"),
    *("share", "ratio", "factor", "number", "count", "times", "probability"),
)
_ENDS_WITH_ITS_UNIT = re.compile(r"_(s|ms|us|bytes|mhz|w|per_s)$")


@dataclass(frozen=True, slots=True)
class Offered:
    """What the page lists of one folder: modules to import, modules to run."""

    modules: frozenset[str]
    commands: frozenset[str]


@cache
def page() -> dict[str, Offered]:
    """Return ARCHITECTURE's table, "each of its modules" written out."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Public interface")[2].partition("\n## ")[0]
    found = {}
    for folder, imported, commands in re.findall(
        r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", section, re.MULTILINE
    ):
        modules = re.findall(r"`([\w.]+)`", imported)
        if imported == "each of its modules":
            modules = [name for name in sources() if re.fullmatch(rf"{folder}\.[a-z]\w*", name)]
        found[folder] = Offered(
            frozenset(modules), frozenset(re.findall(r"`python -m ([\w.]+)`", commands))
        )
    return found


@cache
def sources() -> dict[str, Path]:
    """Return the modules of this checkout by name, packages as what their __init__ holds."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def crossing() -> Iterator[tuple[str, str, str]]:
    """Yield (importing file, module, name) of each import between folders; of modules no name."""
    for path in sources().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[tuple[str, str]] = []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.append((whole, "") if whole in sources() else (node.module, alias.name))
            elif isinstance(node, ast.Import):
                found = [(alias.name, "") for alias in node.names]
            here = path.relative_to(ROOT)
            for module, name in found:
                folder = module.partition(".")[0]
                if folder in FOLDERS and folder != here.parts[0]:
                    yield str(here), module, name


def test_every_folder_is_listed() -> None:
    assert set(page()) == set(FOLDERS)


def test_what_begins_with_an_underscore_does_not_leave_its_folder() -> None:
    assert [
        (file, module, name)
        for file, module, name in crossing()
        if any(word.startswith("_") for word in (*module.split("."), name))
    ] == []


def test_what_is_imported_across_folders_is_what_is_listed() -> None:
    listed = {module for offered in page().values() for module in offered.modules}
    used = {module for _, module, _ in crossing()}
    assert used - listed == set(), "list them, or do without"
    own = {name for name in listed if name.startswith("verifyscope.")}
    assert listed - used - own == set(), "nobody outside uses them"


def names_of(module: ModuleType) -> dict[str, object]:
    """Return what a listed module offers: its __all__, or what it defines without underscore."""
    if module is kernels:
        return {name: getattr(kernels, name) for name in kernels._HOME}
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


@pytest.mark.parametrize("name", sorted(set().union(*(o.modules for o in page().values()))))
def test_a_listed_module_says_what_it_promises_and_so_does_each_of_its_names(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip().splitlines()[0].endswith(
        (".", ":", ",")
    ) or module.__doc__
    missing = [
        word
        for word, value in names_of(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value)
    ]
    assert missing == []


def functions() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Yield (where, function, its words and those around it) of the public interface."""
    homes = set(kernels._HOME.values())
    for name in {module for offered in page().values() for module in offered.modules} | homes:
        tree = ast.parse(sources()[name].read_text(encoding="utf-8"))
        around = ast.get_docstring(tree) or ""
        wanted = {word for word, home in kernels._HOME.items() if home == name}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if node.name.startswith("_") or (name in homes and node.name not in wanted):
                    continue
                inside = node.body if isinstance(node, ast.ClassDef) else [node]
                words = around + (ast.get_docstring(node) or "")
                for one in inside:
                    if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
                        yield f"{name}.{one.name}", one, words + (ast.get_docstring(one) or "")


def test_what_a_public_function_raises_stands_in_its_words() -> None:
    unsaid = {
        (where, raised.exc.func.id)
        for where, function, words in functions()
        for raised in ast.walk(function)
        if isinstance(raised, ast.Raise)
        and isinstance(raised.exc, ast.Call)
        and isinstance(raised.exc.func, ast.Name)
        and raised.exc.func.id not in words
    }
    assert unsaid == set()


def test_a_number_that_a_public_function_returns_has_its_unit_in_name_or_words() -> None:
    unsaid = [
        where
        for where, function, words in functions()
        if function.returns is not None
        and "float" in ast.unparse(function.returns).split(" | ")
        and not _ENDS_WITH_ITS_UNIT.search(function.name)
        and not any(unit in words for unit in UNITS)
    ]
    assert unsaid == []


def test_what_kernels_finds_on_first_use_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(kernels.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname: node.module
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == dict(kernels._HOME)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(kernels, "nothing")  # noqa: B009  # mypy knows that there is none


# Commands.

STARTED = """
import contextlib, io, json, runpy, sys, warnings
warnings.simplefilter("ignore", RuntimeWarning)  # of modules that are run after their import
told = {}
for name in sys.argv[1:]:
    for option in ("--help", "--no-such-option"):
        out, err, status = io.StringIO(), io.StringIO(), None
        sys.argv = [name, option]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            except SystemExit as end:
                status = end.code
        told[name + option] = status, out.getvalue(), err.getvalue()
print(json.dumps({"told": told, "heavy": sorted(
    {"torch", "triton", "cupy", "numpy", "matplotlib", "jinja2", "pynvml"} & set(sys.modules)
)}))
"""


def commands() -> list[str]:
    return sorted(set().union(*(offered.commands for offered in page().values())))


@cache
def started() -> dict[str, object]:
    """Return what each command says to --help and to an option that it has not."""
    done = subprocess.run(
        [sys.executable, "-c", STARTED, *commands()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def said(command: str, option: str) -> tuple[int, str, str]:
    told = started()["told"]
    assert isinstance(told, dict)
    status, out, error = told[command + option]
    return status, out, error


def test_what_can_be_run_is_what_is_listed() -> None:
    runnable = {
        name.removesuffix(".__main__")
        for name, path in sources().items()
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8") and "._" not in name
    } | {name.removesuffix(".__main__") for name in sources() if name.endswith(".__main__")}
    assert set(commands()) == runnable


def test_readme_and_the_makefile_name_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"python3? -m ([\w.]+\w)", text)) - {"sglang.launch_server", "pip"}
    named |= set(re.findall(rf"-m ((?:{'|'.join(FOLDERS)})[\w.]*)", makefile))
    assert named - set(commands()) == set()


@pytest.mark.parametrize("command", commands())
def test_a_command_helps_and_refuses_what_it_does_not_know(command: str) -> None:
    status, out, error = said(command, "--help")
    assert (status, error) == (0, "")
    assert out.lower().startswith("usage: ")
    status, out, error = said(command, "--no-such-option")
    assert (status, out) == (2, "")
    assert "no-such-option" in error or "required" in error  # install asks for its step first


def test_no_command_needs_a_heavy_package_for_its_help() -> None:
    assert started()["heavy"] == []


def test_one_thing_has_one_name_in_all_commands() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(--[a-z-]+)`", text, re.MULTILINE))
    options = {command: options_of(command) for command in commands()}
    assert listed >= {
        *("--model", "--tp", "--rows", "--context", "--requests", "--records", "--json"),
        *("--gpus", "--timeout", "--out"),
    }
    for name in listed:
        assert any(name in found for found in options.values()), name
    for command, found in options.items():
        assert ("--gpus" in found) == ("--ranks" in found), command
        assert "--tokens" not in found or "--rows" in found, command
    several = {
        name: sorted(command for command, found in options.items() if name in found)
        for name in set().union(*options.values())
    }
    unlisted = {name: used for name, used in several.items() if len(used) > 1}
    assert set(unlisted) - listed - {"--help", "--ranks", "--tokens"} == set(), unlisted


def options_of(command: str) -> set[str]:
    """Return the long options that the help begins a line with."""
    out = said(command, "--help")[1]
    return set(re.findall(r"^  (?:-\w, )?(?:--\w[\w-]*, )?(--\w[\w-]*)", out, re.MULTILINE)) | set(
        re.findall(r"^  (--\w[\w-]*)", out, re.MULTILINE)
    )
