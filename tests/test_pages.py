"""The pages name files, functions and commands that are there."""

import re
from pathlib import Path

import pytest

from collectives._host import peer_findings, peer_tests
from graphs._stub import equality, memory
from kernels import _timing
from kernels.moe import fused_moe
from reports import _attention
from reports._comparison import verdicts
from suites import ceilings
from verifyscope import fresh_starts, pass_savings, published, roofline, stats

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "MEASURING.md")
_FILE = re.compile(r"`([\w./<>*-]+(?:/|\.(?:py|csv|j2|css|js|md|toml|txt|jsonl|json|png)))`")
# What a run makes, or a reader has; what a walk-through adds is held by test_walkthroughs.
_NOT_OURS = re.compile(
    r"(runs|report)/|report\.(md|html)|records\.jsonl|environment\.json|samples\.jsonl|config\.json|"
    r"[\w.]+\.(log|txt|jsonl)|perfetto\.dev|prefill\.py"
)


def files_in(page: str) -> list[tuple[str, str]]:
    """Return (line, file) of each file that a page names; without fences, which are programs."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    saved = set(re.findall(r"Save this as `([^`]+)`", text))
    return [
        (line, name)
        for line in text.splitlines()
        for name in _FILE.findall(line)
        if name not in saved | {"kernels/l2_norm_cupy.py"} and not _NOT_OURS.fullmatch(name)
    ]


def is_there(line: str, name: str) -> bool:
    """Say whether a file is there: from the checkout, or from the folder named before it."""
    pattern = re.sub(r"<\w+>", "*", name)
    if any(ROOT.glob(pattern)):
        return True
    before = line.partition(f"`{name}`")[0]
    folders = [ROOT / full for full in re.findall(r"`([\w/]+/)[\w.*<>]*`", before)]
    return any(any(folder.glob(pattern)) for folder in folders if folder.is_dir())


@pytest.mark.parametrize("page", PAGES)
def test_each_file_that_a_page_names_is_there(page: str) -> None:
    assert [(line, name) for line, name in files_in(page) if not is_there(line, name)] == []


def test_each_module_that_a_page_names_is_there() -> None:
    missing = set()
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        folders = "verifyscope|kernels|collectives|graphs|ingest|suites|reports"
        for name in re.findall(rf"`((?:{folders})(?:\.\w+)+)`", text):
            path = ROOT.joinpath(*name.split("."))
            inside = path.parent.with_suffix(".py")
            word = re.compile(rf"^(?:def |class |    \"?)?{path.name}\b", re.MULTILINE)
            if not (
                path.with_suffix(".py").exists()
                or path.is_dir()
                or (inside.exists() and word.search(inside.read_text(encoding="utf-8")))
            ):
                missing.add((page, name))
    assert missing == set()


def test_the_constants_that_measuring_names_are_those_of_the_code() -> None:
    page = " ".join((ROOT / "MEASURING.md").read_text(encoding="utf-8").split())
    said = (
        f"distinct input sets with N x touched bytes >= {_timing.CACHES_TO_WALK} x L2 "
        f"and N <= {_timing.MOST_INPUT_SETS}",
        f"at least max({ceilings.CACHES_TO_WALK} x L2, "
        f"{ceilings.SMALLEST_WALK_BYTES['cuda'] / 2**30:.0f} GiB)",
        f"flushed result above {ceilings.VOID_ABOVE:.0%}".replace("%", " %"),
        f"bootstrap at 95 %, {stats.RESAMPLES:,} resamples",
        f"below {1 - stats.SAME_WITHIN} `faster`, above {1 + stats.SAME_WITHIN} `slower`",
        f"else or under {stats.FEWEST_TO_JUDGE} samples `unsure`",
        f"(x - median) / MAD above {stats.OUTLIER_Z}",
        f"all samples of at least {fresh_starts.LEAST_STARTS} fresh starts",
        f"share = {roofline.REACHABLE_SHARE}, for experts {fused_moe.REACHABLE_SHARE:.2f}",
        f"held to {_attention.ABOVE_ROOFLINE} x the same ratio of roof + n nodes",
        f"{len(peer_tests.SIZES_BYTES)} sizes x {peer_tests.ROUNDS} rounds",
        f"the median of {peer_tests.SAMPLES} times until all had arrived",
        f"held to {peer_findings.SHARED_BELOW} x what each GPU's own link",
        f"products of at least {published.LARGE_BYTES / 1e6:.0f} MB of weights",
        f"fit in {memory.USABLE_SHARE:.0%}".replace("%", " %") + " of the free memory",
        f"sets x touched bytes >= {memory.CACHES_TO_PASS} x L2",
        f"within {equality.NOISE:.0f} x what two eager passes differ by",
        f"Benjamini and Hochberg at {verdicts.FALSE_ALARMS:.0%}".replace("%", " %"),
        f"what two runs differ by ({verdicts.RUN_TO_RUN:.1%}; {verdicts.SEVERAL:.0%} for".replace(
            "%", " %"
        ),
        f"else {verdicts.UNKNOWN:.0%} is assumed".replace("%", " %"),
        f"{pass_savings.ALL_REDUCES_PER_LAYER} x layers x (mean of the default's starts",
        f"a graph walks its sets again until a replay lasts {_timing.SHORTEST_REPLAY_S * 1e6:.0f}",
    )
    assert [words for words in said if words not in page] == []
