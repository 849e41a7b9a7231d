"""No folder, address, host or user name gets into a record."""

import getpass
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from verifyscope import cli, privacy, settings
from verifyscope.privacy import redacted

USER, HOST = "alice-w", "node17.cluster.example"


@pytest.fixture(autouse=True)
def _somebody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("USER", USER)
    monkeypatch.setenv("HOME", f"/home/{USER}")
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    privacy._names.cache_clear()
    yield
    privacy._names.cache_clear()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("LL,Simple", "LL,Simple"),
        ("^LL128", "^LL128"),
        ("max_split_size_mb:5120,expandable_segments:True", None),
        ("roundup_power2_divisions:[256:1,512:2]", None),
        ("mlx5_0:1,mlx5_1:1", None),
        ("ring;allreduce:tree", None),
        ("12.8.1", None),
        ("9.0a 12.0a", None),
        ("0,1,2,3", None),
        ("GPU-11111111-2222-3333-4444-555555555555", None),
        ("/data/models/graph.xml", "graph.xml"),
        ("configs/graph.xml", "graph.xml"),
        ("/usr/local/cuda-12.8/", "cuda-12.8"),
        ("/opt/a/libnccl.so.2:/opt/b/libx.so", "libnccl.so.2:libx.so"),
        (f"/home/{USER}", "<home>"),
        (f"/home/{USER}/.nccl.conf", ".nccl.conf"),
        ("/home/bob", "<home>"),
        (" /home/bob ", "<home>"),
        ("~", "<home>"),
        ("~bob", "<home>"),
        ("~/x.json", "x.json"),
        ("/", "<path>"),
        (f"/scratch/{USER}-graph.xml", "<user>-graph.xml"),
        ("/mnt/my disk/my graph.xml", "my graph.xml"),
        ("tcp://10.0.0.7:29500", "<address>"),
        ("http://bob:hunter2@proxy.example/path", "<address>"),
        ("10.0.0.7", "<address>"),
        ("10.0.0.7:29500,10.0.0.8:29500", "<address>,<address>"),
        ("[fe80::1%eth0]:80", "<address>:80"),
        ("::1", "<address>"),
        ("2001:db8::7", "<address>"),
        ("bob@example.com", "<address>"),
        ("worker-3:29500", "<address>"),
        ("worker-3.local:80", "<address>"),
        (f"{USER.upper()} on node17", "<user> on <host>"),
        (f"{HOST}", "<host>"),
    ],
)
def test_a_value_keeps_its_meaning_and_loses_where_it_came_from(
    given: str, expected: str | None
) -> None:
    assert redacted(given) == (given if expected is None else expected)


_folder = st.text("abcdefghijklmnopqrstuvwxyz._- ", min_size=1, max_size=8).filter(
    lambda name: name.strip(". ")
)


@examples(deadline=None)
@given(
    folders=st.lists(_folder, min_size=1, max_size=4),
    around=st.sampled_from(["{}", "a={}", "{},{}", "x:{}", "'{}'", "--out={} b"]),
)
def test_no_folder_of_an_absolute_path_survives(folders: list[str], around: str) -> None:
    marked = [f"FOLDER{at}{name}" for at, name in enumerate(folders)]
    path = "/".join(["", *marked, "file.txt"])
    text = redacted(around.format(path, path))
    assert "FOLDER" not in text
    assert "file.txt" in text


@examples(deadline=None)
@given(before=st.sampled_from(["", " ", "/", "=", ":", "-", "_", "(", "@"]), text=st.text())
def test_no_host_or_user_name_survives_as_a_word(before: str, text: str) -> None:
    for name in (USER, HOST, "node17"):
        for candidate in (f"{before}{name}", f"{text} {name} {text}", f"{name}/{text}"):
            words = redacted(candidate)
            assert name not in words.replace("<user>", "").replace("<host>", "")


def test_short_numeric_and_product_names_do_not_garble_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "vllm")
    monkeypatch.setenv("USER", "8")
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setattr(socket, "gethostname", lambda: "triton")
    privacy._names.cache_clear()
    assert redacted("vllm 8 triton") == "vllm 8 triton"


def test_a_name_that_names_nobody_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert redacted("2 switches, shared root (B)") == "2 switches, shared root (B)"
    assert redacted("localhost") == "localhost"


def test_a_user_without_an_account_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", unknown)
    privacy._names.cache_clear()
    assert redacted(f"/x/{USER}.txt") == "<user>.txt"


def test_the_command_names_files_and_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        "/usr/bin/python3.11",
        "-m",
        "collectives.sweep",
        f"--records=/home/{USER}/runs/a.jsonl",
        "--out",
        "../bob/out",
        "--master",
        "tcp://10.1.2.3:4",
        "runs/b.jsonl",
    ]
    monkeypatch.setattr(sys, "orig_argv", given)
    assert cli.command_line() == (
        "python3.11 -m collectives.sweep --records=a.jsonl --out out --master '<address>' "
        "runs/b.jsonl"
    )


def test_what_stands_behind_two_dashes_is_another_program_s_and_stays_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ["python", "-m", "collectives.attest", "--seconds", "9", "--", "x", "--api-key=abc"]
    monkeypatch.setattr(sys, "orig_argv", given)
    assert cli.command_line() == "python -m collectives.attest --seconds 9 -- ..."


def test_only_listed_variables_are_recorded_and_never_a_secret() -> None:
    listed = dict.fromkeys(settings.SETTINGS, "1")
    planted = {
        "HF_TOKEN": "hf_abc",
        "VLLM_API_KEY": "k",
        "NCCL_SECRET": "s",
        "MASTER_ADDR": "10.0.0.1",
        "HOSTNAME": HOST,
        "AWS_CREDENTIALS": "c",
        "PATH": "/home/alice-w/bin",
        "nccl_proto": "LL",
        "NCCL_PROTO_": "LL",
    }
    assert settings.in_force(listed | planted) == listed | dict(settings.HIDDEN)
    assert settings.in_force(planted) == {}


def test_every_listed_variable_has_a_reason_and_an_innocent_name() -> None:
    for name, reason in settings.SETTINGS.items():
        assert reason.strip()
        assert name == name.upper()
        assert not any(word in name for word in settings.NEVER)


def test_a_listed_name_that_turns_secret_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SETTINGS", {"NCCL_AUTH_FILE": "planted", "NCCL_ALGO": "why"})
    assert settings.in_force({"NCCL_AUTH_FILE": "x", "NCCL_ALGO": "Ring"}) == {"NCCL_ALGO": "Ring"}


@examples(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(settings.SETTINGS)), st.text(), max_size=5))
def test_any_value_can_be_recorded(values: dict[str, str]) -> None:
    assert set(settings.in_force(values)) == set(values)


def test_paths_in_settings_become_file_names(tmp_path: Path) -> None:
    given = {"NCCL_GRAPH_FILE": str(tmp_path / "box.xml"), "LD_PRELOAD": "/a/libnccl.so.2"}
    assert settings.in_force(given) == {"NCCL_GRAPH_FILE": "box.xml", "LD_PRELOAD": "libnccl.so.2"}


def test_a_setting_that_names_a_machine_keeps_only_that_it_is_set() -> None:
    given = {"NCCL_HOSTID": "rack7-node", "NCCL_PROTO": "LL"}
    assert settings.in_force(given) == {"NCCL_PROTO": "LL", "NCCL_HOSTID": "<host>"}


def test_a_name_in_no_encoding_can_be_written() -> None:
    assert privacy.redacted("runs/a\udcff.jsonl", relative_paths=True) == "runs/a?.jsonl"
