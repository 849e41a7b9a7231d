"""Settings in NCCL's logs: what was asked for, what each worker read, whose doing it was."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from collectives import attest
from collectives._attest import requested
from ingest import nccl_conf
from tests.nccl_workers import lines
from verifyscope import cli
from verifyscope.errors import UsageError
from verifyscope.records import Finding, read

LL = {"NCCL_PROTO": "LL"}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(attest.application, attest.PROGRAM, arguments)
    return int(ended.value.code or 0)


def logs_of(
    folder: Path, environments: Sequence[Mapping[str, str] | None], *, host: str = "alpha"
) -> list[str]:
    """Write the log of each rank, started with such an environment; None logs nothing."""
    folder.mkdir(exist_ok=True)
    for rank, environment in enumerate(environments):
        if environment is None:
            continue
        said = lines(rank, len(environments), environment)
        write(folder, said, number=100 + rank, device=rank, host=host)
    return sorted(map(str, folder.iterdir()))


def write(
    folder: Path, said: Sequence[str], *, number: int, device: int = 0, host: str = "alpha"
) -> Path:
    path = folder / f"nccl.{host}.{number}.log"
    path.write_text("".join(f"{host}:{number}:{number} [{device}] NCCL INFO {s}\n" for s in said))
    return path


@pytest.fixture
def out(tmp_path: Path) -> tuple[str, ...]:
    return "--records", str(tmp_path / "r.jsonl"), "--json", str(tmp_path / "a.json")


def findings(tmp_path: Path) -> dict[str, Finding]:
    records = read([tmp_path / "r.jsonl"])
    return {one.name: one for one in records if isinstance(one, Finding)}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["NCCL_PROTO=LL", "python", "serve.py"], {"NCCL_PROTO": "LL"}),
        (["env", "NCCL_PROTO=LL,Simple", "serve"], {"NCCL_PROTO": "LL,Simple"}),
        (["docker", "run", "-e", "NCCL_BUFFSIZE=1048576", "x"], {"NCCL_BUFFSIZE": "1048576"}),
        (["bash", "-c", "export NCCL_PROTO=LL; exec ./serve"], {"NCCL_PROTO": "LL"}),
        (["sh", "-c", "NCCL_ALGO='ring;allreduce:tree' x"], {"NCCL_ALGO": "ring;allreduce:tree"}),
        (["bash", "-c", "NCCL_PROTO=LL ./x 'open"], {"NCCL_PROTO": "LL"}),
        (["x", "NCCL_GRAPH_FILE=/data/alice/graph.xml"], {"NCCL_GRAPH_FILE": "graph.xml"}),
        (["x", "SGLANG_ENABLE_SPEC_V2=1"], {"SGLANG_ENABLE_SPEC_V2": "1"}),
        (["x", "HF_TOKEN=abc", "NCCL_COMM_ID=10.0.0.7:1", "--api-key=abc"], {}),
        (["x", "NCCL_DEBUG=INFO", "NCCL_PROTO="], {}),
        (["x", "--model=NCCL_PROTO", "NCCL_PROTO"], {}),
    ],
)
def test_what_a_command_asks_for_is_what_it_sets_of_the_listed_settings(
    command: list[str], expected: dict[str, str]
) -> None:
    assert requested.requested({}, command, ()) == expected


def test_the_command_wins_over_the_environment_and_what_is_expected_over_both() -> None:
    environment = {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring", "HOME": "/", "CUDA_HOME": "/c"}
    environment |= {"NCCL_BLOCKING_WAIT": "1", "NCCL_TESTS_SPLIT": "1", "NCCL_DEBUG": "WARN"}
    assert requested.requested(environment, ["NCCL_PROTO=LL", "x"], ["NCCL_ALGO=Tree"]) == {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Tree",
    }


@pytest.mark.parametrize("word", ["NCCL_PROTO", "HF_TOKEN=abc", "=x", "MY_SETTING=1"])
def test_what_may_not_be_told_cannot_be_expected(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        requested.requested({}, (), [word])
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("own", "level", "subsystems", "said"),
    [
        ({}, "INFO", "INIT,ENV,GRAPH,TUNING", 0),
        ({"NCCL_DEBUG": "info"}, "INFO", "INIT,ENV,GRAPH,TUNING", 0),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "ALL"}, "TRACE", "ALL", 0),
        ({"NCCL_DEBUG": "WARN"}, "INFO", "INIT,ENV,GRAPH,TUNING", 1),
        ({"NCCL_DEBUG_SUBSYS": "COLL,ENV"}, "INFO", "COLL,ENV,INIT,GRAPH,TUNING", 1),
        ({"NCCL_DEBUG_SUBSYS": "^ENV"}, "INFO", "INIT,ENV,GRAPH,TUNING", 1),
        ({"NCCL_DEBUG_FILE": "/home/alice/x"}, "INFO", "INIT,ENV,GRAPH,TUNING", 1),
    ],
)
def test_a_wish_for_more_of_the_log_is_kept_and_a_wish_for_less_is_said_to_be_overridden(
    own: dict[str, str], level: str, subsystems: str, said: int
) -> None:
    given, sentences = requested.logging(own, Path("/tmp/50%"))
    assert given == {
        "NCCL_DEBUG": level,
        "NCCL_DEBUG_SUBSYS": subsystems,
        "NCCL_DEBUG_FILE": "/tmp/50%%/nccl.%h.%p.log",
    }
    assert len(sentences) == said
    assert not any("alice" in sentence for sentence in sentences)


def test_a_configuration_file_sets_what_the_environment_does_not(tmp_path: Path) -> None:
    path = tmp_path / "nccl.conf"
    path.write_text("#NCCL_ALGO=Tree\nNCCL_PROTO=Simple\nNCCL_PROTO=LL\nHF_TOKEN=abc\nx\n")
    environment = {"NCCL_CONF_FILE": str(path)}
    assert nccl_conf.files(environment) == [path, nccl_conf.EVERYWHERE]
    assert nccl_conf.configured(environment) == {
        "NCCL_PROTO": nccl_conf.Configured(
            name="NCCL_PROTO", value="Simple", file="nccl.conf", line=2
        )
    }
    assert nccl_conf.configured(environment | LL) == {}


def test_without_a_named_file_the_one_of_the_users_home_comes_first() -> None:
    first, *_, last = nccl_conf.files({})
    assert (first.name, last) == (".nccl.conf", Path("/etc/nccl.conf"))


CASES: dict[str, tuple[list[Mapping[str, str] | None], str, int]] = {
    "all": ([LL] * 3, "NCCL_PROTO=LL reached all 3 workers", 0),
    "one": ([LL], "NCCL_PROTO=LL reached the one worker", 0),
    "case": ([{"NCCL_PROTO": "ll"}] * 2, "NCCL_PROTO=LL reached all 2 workers", 0),
    "dropped": (
        [LL, {"NCCL_ALGO": "Ring"}, LL],
        "NCCL_PROTO=LL reached 2 of 3 workers; pid 101 shows none",
        1,
    ),
    "others": (
        [LL, {"NCCL_PROTO": "Simple"}, {"NCCL_PROTO": "Simple"}, {}],
        "NCCL_PROTO=LL reached 1 of 4 workers; pid 101, pid 102 show Simple; pid 103 shows none",
        1,
    ),
    "silent": ([LL, None, LL], "NCCL_PROTO=LL reached 2 of 3 workers; rank 1 wrote no log", 1),
    "nobody": ([{}, {}], "NCCL_PROTO=LL reached 0 of 2 workers; pid 100, pid 101 show none", 1),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_line_says_how_far_a_setting_came_and_who_is_without_it(
    case: str, tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    environments, verdict, status = CASES[case]
    files = logs_of(tmp_path / "logs", environments)
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", *files) == status
    assert capsys.readouterr().out.splitlines()[0] == verdict
    found = msgspec.json.decode((tmp_path / "a.json").read_bytes())
    assert (found["verdict"], found["reached"]) == (verdict, status == 0)
    assert findings(tmp_path)["workers-attested"].sentence == verdict


def test_a_finding_points_to_the_line_in_the_log_of_the_worker(
    tmp_path: Path, out: tuple[str, ...]
) -> None:
    files = logs_of(tmp_path / "logs", [LL, {}, LL])
    run("--expect", "NCCL_PROTO=LL", *out, "--log", *files)
    shown = findings(tmp_path)["setting-not-everywhere"]
    assert [(one.file, one.at, one.value) for one in shown.evidence] == [
        ("nccl.101.log", 1, "pid 101: missing (NCCL names it wherever it is set)"),
        ("nccl.100.log", 4, "pid 100: LL"),
        ("nccl.102.log", 3, "pid 102: LL"),
    ]


def test_no_host_is_told_and_several_hosts_are_numbers(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank, host in enumerate(("alpha", "beta")):
        write(folder, lines(rank, 2, LL), number=100 + rank, host=host)
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", str(folder)) == 0
    text = capsys.readouterr().out + (tmp_path / "a.json").read_text()
    assert "nccl.node1.101.log" in text
    assert "pid 101 on node 1" in text
    assert "alpha" not in text
    assert "beta" not in text
    assert "alpha" not in (tmp_path / "r.jsonl").read_text()


def test_ranks_of_other_machines_may_have_logged_there(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    said = [line.replace("nNodes 1", "nNodes 2") for line in lines(0, 2, LL)]
    write(folder, said, number=100)
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", str(folder)) == 1
    assert "rank 1 wrote no log (there are several machines" in capsys.readouterr().out
    assert findings(tmp_path)["worker-without-log"].confidence == "hint"


@pytest.mark.parametrize(
    ("asked", "read_by_nccl", "state"),
    [
        ("NCCL_P2P_LEVEL=4", {"NCCL_P2P_LEVEL": "SYS"}, "reached"),
        ("NCCL_P2P_LEVEL=2", {"NCCL_P2P_LEVEL": "SYS"}, "other"),
        ("NCCL_BUFFSIZE=0x100000", {"NCCL_BUFFSIZE": "1048576"}, "reached"),
        ("NCCL_GRAPH_FILE=/a/g.xml", {"NCCL_GRAPH_FILE": "/b/g.xml"}, "reached"),
        ("NCCL_P2P_LEVEL=SYS", {"NCCL_BUFFSIZE": "1"}, "missing"),
        ("NCCL_P2P_LEVEL=SYS", {"NCCL_P2P_DISABLE": "1"}, "unknown"),
        ("NCCL_CUMEM_ENABLE=0", {"NCCL_BUFFSIZE": "1"}, "unknown"),
        ("SGLANG_ENABLE_SPEC_V2=1", {}, "unknown"),
    ],
)
def test_values_are_compared_as_nccl_understands_them(
    asked: str,
    read_by_nccl: dict[str, str],
    state: str,
    tmp_path: Path,
    out: tuple[str, ...],
) -> None:
    files = logs_of(tmp_path / "logs", [read_by_nccl] * 2)
    assert run("--expect", asked, *out, "--log", *files) == (state != "reached")
    found = msgspec.json.decode((tmp_path / "a.json").read_bytes())
    assert [one["state"] for one in found["settings"][0]["workers"]] == [state] * 2
    if state == "unknown":
        assert findings(tmp_path)["setting-not-shown"].confidence == "hint"


def test_what_nccl_names_when_it_uses_it_is_missing_where_only_others_name_it(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    files = logs_of(tmp_path / "logs", [{"NCCL_BUFFSIZE": "1048576"}, {}])
    assert run("--expect", "NCCL_BUFFSIZE=1048576", *out, "--log", *files) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "NCCL_BUFFSIZE=1048576 reached 1 of 2 workers; pid 101 shows none"


def test_a_worker_that_is_still_starting_is_not_accused(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    logs_of(folder, [LL, LL])
    write(folder, lines(1, 2, {})[:2], number=101)
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", str(folder)) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "NCCL_PROTO=LL reached 1 of 2 workers; pid 101 is not known: the start of its communicator "
        "is not complete"
    )


def test_a_process_that_reads_two_values_shows_both(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    said = [*lines(0, 1, LL), "NCCL_PROTO set by environment to Simple"]
    write(folder, said, number=100)
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", str(folder)) == 1
    assert "pid 100 shows LL, then Simple" in capsys.readouterr().out.splitlines()[0]


def test_a_plugin_is_named_as_the_one_who_set_a_value(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    adds = "NET/OFI Adding NCCL_PROTO=simple to environment"
    write(folder, [adds, *lines(0, 1, {"NCCL_PROTO": "simple"})], number=100)
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", str(folder)) == 1
    row = capsys.readouterr().out.splitlines()[2].split("\t")
    assert row[4:6] == ["simple", "plugin"]
    shown = findings(tmp_path)
    assert shown["setting-not-everywhere"].next_action is not None
    assert "a plugin sets it" in shown["setting-not-everywhere"].next_action
    assert "plugin-injected-env" in shown


def test_what_nccl_chose_is_told_by_size_and_a_choice_against_the_setting_in_the_verdict(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    call = "AllReduce: {} Bytes -> Algo RING proto {} channel{{Lo..Hi}}={{0..{}}}"
    taken = [
        (1024, "LL", 0),
        (2048, "LL", 0),
        (2048, "LL", 0),
        (4096, "LL", 3),
        (8192, "SIMPLE", 3),
    ]
    seat, calls = lines(0, 1, LL)[:-3], [call.format(*one) for one in taken]
    write(folder, [*seat, *calls], number=100)
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", str(folder)) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith("NCCL_PROTO=LL reached the one worker; NCCL_PROTO=LL is")
    rows = [row.split("\t") for row in text.splitlines() if row.startswith("all_reduce\t")]
    assert [row[1:6] for row in rows] == [
        ["1024", "2048", "ring/ll", "1", "3"],
        ["4096", "4096", "ring/ll", "4", "1"],
        ["8192", "8192", "ring/simple", "4", "1"],
    ]


def test_without_a_wish_workers_that_agree_are_fine_and_others_are_not(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*out, "--log", *logs_of(tmp_path / "a", [LL, LL])) == 0
    assert run(*out, "--log", *logs_of(tmp_path / "b", [LL, {"NCCL_PROTO": "Simple"}])) == 1
    first, *_ = [line for line in capsys.readouterr().out.splitlines() if "asked for; " in line]
    assert first == "no setting was asked for; all 2 workers show the same settings"


def test_one_log_of_several_processes_is_told_apart_by_process(
    tmp_path: Path, out: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    files = logs_of(tmp_path / "logs", [LL, {}, LL])
    merged = tmp_path / "all.txt"
    merged.write_text("".join(Path(file).read_text() for file in files))
    assert run("--expect", "NCCL_PROTO=LL", *out, "--log", str(merged)) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "NCCL_PROTO=LL reached 2 of 3 workers; pid 101 shows none"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to start"),
        (("--seconds", "0", "x"), "--seconds 0 is out of range"),
        (("--grace", "-1", "x"), "--grace -1 is out of range"),
        (("--log", "no-such.log"), "no-such.log: no such file"),
        (("--log", "empty"), "is an empty folder"),
        (("--log", "plain.txt"), "no line of NCCL"),
        (("--log", "plain.txt", "--seconds", "3"), "--seconds is for a command"),
        (("--expect", "HF_TOKEN=abc", "--log", "plain.txt"), "not on the list"),
        (("NCCL_PROTO=LL",), "no program behind the settings"),
        (("--out", "kept", "x"), "holds the logs of another run"),
        (("no-such-program",), "cannot start 'no-such-program'"),
    ],
)
def test_a_wrong_question_is_one_line(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain.txt").write_text("nothing\n")
    logs_of(tmp_path / "kept", [LL])
    assert run("--records", "r.jsonl", *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert "abc" not in said
