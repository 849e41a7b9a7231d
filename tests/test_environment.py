"""The environment names the machine and its settings, guards each field, and names nobody."""

import getpass
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.fake_nvml import H200, FakeNvml
from verifyscope import environment, nvml, privacy
from verifyscope.records import Environment, GpuState


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    environment.current.cache_clear()
    privacy._names.cache_clear()
    yield
    environment.current.cache_clear()
    privacy._names.cache_clear()


def _install(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def test_a_gpu_is_described_in_the_units_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml([H200])
    _install(monkeypatch, fake)
    here = environment.current()
    assert here.driver == "580.95.05"
    assert here.cuda_driver == "13.0"
    assert here.gpus == (
        GpuState(
            index=0,
            name="NVIDIA H200",
            memory_bytes=150_754_820_096,
            capability="9.0",
            sm_max_mhz=1980,
            memory_max_mhz=3201,
            power_limit_w=700.0,
            pcie_generation=5,
            pcie_width=16,
            ecc=True,
            mig=False,
        ),
    )
    assert fake.open == 0, "the session is closed again"


@pytest.mark.parametrize("missing", sorted(set(H200) - {"nvmlDeviceGetName"}))
def test_one_unsupported_field_loses_no_other(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    _install(monkeypatch, FakeNvml([H200]))
    whole = msgspec.to_builtins(environment.current().gpus[0])
    environment.current.cache_clear()
    _install(monkeypatch, FakeNvml([{k: v for k, v in H200.items() if k != missing}]))
    partial = msgspec.to_builtins(environment.current().gpus[0])
    assert len(whole) - len(partial) in (0, 1, 2)  # two clocks come from one function
    assert partial == {name: whole[name] for name in partial}


def test_a_gpu_that_answers_nothing_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, FakeNvml([{}, H200]))
    assert environment.current().gpus[0] == GpuState(index=0, name="not known")
    assert environment.current().gpus[1].name == "NVIDIA H200"


def test_old_and_odd_answers_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {**H200, "nvmlDeviceGetName": b"NVIDIA A100-PCIE-40GB", "nvmlDeviceGetMigMode": [1, 0]}
    odd["nvmlDeviceGetEccMode"] = []
    _install(monkeypatch, FakeNvml([odd], cuda=12080, version=b"570.86.15"))
    here = environment.current()
    assert (here.driver, here.cuda_driver) == ("570.86.15", "12.8")
    assert here.gpus[0].name == "NVIDIA A100-PCIE-40GB"
    assert here.gpus[0].mig is True, "the mode in force counts, not the pending one"
    assert here.gpus[0].ecc is None


@pytest.mark.parametrize("fake", [FakeNvml(driver=False), None])
def test_without_a_driver_there_are_no_gpus_and_no_error(
    monkeypatch: pytest.MonkeyPatch, fake: FakeNvml | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    here = environment.current()
    assert (here.gpus, here.driver, here.cuda_driver) == ((), None, None)
    with nvml.session() as driver:
        assert driver.why_not is not None
        assert ("nvidia-ml-py" if fake is None else "no NVIDIA driver") in driver.why_not


def test_a_device_is_found_by_uuid_and_bus_id_and_never_by_torch_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = {**H200, "nvmlDeviceGetUUID": "GPU-aa", "bus": "0000:06:00.0"}
    _install(monkeypatch, FakeNvml([H200, other]))
    with nvml.session() as driver:
        for device in ("GPU-aa", "aa", "0000:06:00.0", 1):
            found = driver.find(device)
            assert found is not None
            assert found.index == 1
        assert driver.find("bb") is None
        assert driver.find(7) is None


def test_torch_adds_what_nvml_does_not_know_once_it_holds_a_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = [
        SimpleNamespace(uuid="other", multi_processor_count=1, L2_cache_size=2),
        SimpleNamespace(
            uuid="11111111-2222-3333-4444-555555555555",
            multi_processor_count=132,
            L2_cache_size=62_914_560,
        ),
    ]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=properties.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __spec__=None))
    monkeypatch.setattr(environment, "versions", dict)
    _install(monkeypatch, FakeNvml([H200]))
    gpu = environment.current().gpus[0]
    assert (gpu.multiprocessors, gpu.l2_bytes) == (132, 62_914_560)


def test_reading_the_environment_imports_no_torch() -> None:
    code = (
        "import sys; from verifyscope import environment; environment.current(); "
        "heavy = {'torch', 'triton', 'cupy', 'numpy', 'flashinfer'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_of_the_host_or_the_user_is_in_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = {
        "USER": "planted-user",
        "HOME": "/home/planted-user",
        "HOSTNAME": "planted-host",
        "HF_TOKEN": "planted-secret",
        "NCCL_GRAPH_FILE": "/home/planted-user/planted-folder/graph.xml",
        "NCCL_DEBUG_FILE": "/tmp/planted-host.log",
        "NCCL_CONF_FILE": "~planted-user/nccl.conf",
        "LD_PRELOAD": "/opt/planted-folder/libnccl.so.2",
        "UNLISTED": "planted-value",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: "planted-host")
    monkeypatch.setattr(getpass, "getuser", lambda: "planted-user")
    monkeypatch.setattr(sys, "orig_argv", ["python", "/home/planted-user/planted-folder/x.py"])
    _install(monkeypatch, FakeNvml([H200]))
    written = msgspec.json.encode(environment.current()).decode()
    assert "planted" not in written
    assert "graph.xml" in written


def test_equal_environments_share_an_id_and_any_field_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _install(monkeypatch, FakeNvml([H200]))
    first = environment.current()
    environment.current.cache_clear()
    assert environment.current().id == first.id
    environment.current.cache_clear()
    monkeypatch.setenv("NCCL_PROTO", "LL")
    assert environment.current().id != first.id


def test_the_commit_is_of_this_checkout_whatever_git_variables_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    expected = subprocess.run(
        ["git", "-C", str(environment._ROOT), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    )
    here = environment.current()
    assert here.commit == (expected.stdout.strip() or None)
    assert isinstance(here.dirty, bool) == (here.commit is not None)


def test_inside_somebody_elses_repository_there_is_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    inside = tmp_path / "site-packages"
    inside.mkdir()
    monkeypatch.setattr(environment, "_ROOT", inside)
    assert environment._commit() == (None, None)


def test_a_changed_file_makes_the_checkout_dirty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    monkeypatch.setattr(environment, "_ROOT", tmp_path.resolve())
    commit, dirty = environment._commit()
    assert dirty is False
    (tmp_path / "a").write_text("2")
    assert environment._commit() == (commit, True)


def test_the_cuda_of_torch_is_read_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for line, expected in (
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = '12.8'", "12.8"),
        ("cuda: Optional[str] = None", None),
    ):
        (package / "version.py").write_text(f"__version__ = '2.14'\n{line}\nhip = None\n")
        assert environment.torch_cuda() == expected


def test_the_number_of_nccl_is_read_as_a_version(tmp_path: Path) -> None:
    for number, expected in ((22705, "2.27.5"), (23007, "2.30.7"), (2804, "2.8.4")):
        source, library = tmp_path / f"{number}.c", tmp_path / f"{number}.so"
        source.write_text(f"int ncclGetVersion(int *v) {{ *v = {number}; return 0; }}")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        assert environment._nccl_version(str(library)) == expected
    assert environment._nccl_version(str(tmp_path / "absent.so")) is None


def _environment(**fields: object) -> Environment:
    base = Environment(id="a", created="c", command="x", system="s", processor="p", cores=2,
                       python="3.11.7")  # fmt: skip
    return msgspec.structs.replace(base, **fields)


def test_a_difference_names_the_field_and_says_what_absence_means() -> None:
    old = _environment(
        id="1",
        command="one",
        driver="570.1",
        gpus=(GpuState(index=0, name="A", power_limit_w=300.0, ecc=True),),
        versions={"torch": "2.13.0", "triton": "3.7.1"},
        settings={"NCCL_PROTO": "LL"},
        dirty=False,
    )
    new = _environment(
        id="2",
        command="two",
        gpus=(GpuState(index=0, name="A", power_limit_w=250.0, ecc=False),),
        versions={"torch": "2.14.1", "triton": "3.7.1", "vllm": "0.33.0"},
        settings={"NCCL_ALGO": "Ring"},
        dirty=True,
    )
    assert environment.difference(old, new) == [
        ("dirty", "no", "yes"),
        ("driver", "570.1", "not known"),
        ("gpus[0].power_limit_w", "300.0", "250.0"),
        ("gpus[0].ecc", "yes", "no"),
        ("versions.torch", "2.13.0", "2.14.1"),
        ("settings.NCCL_PROTO", "LL", "not set"),
        ("versions.vllm", "not installed", "0.33.0"),
        ("settings.NCCL_ALGO", "not set", "Ring"),
    ]
    assert environment.difference(old, msgspec.structs.replace(old, id="3", created="later")) == []


def test_governors_of_all_cpus_are_named_once(tmp_path: Path) -> None:
    assert environment.governor(tmp_path) is None
    for number, name in enumerate(("powersave", "performance", "powersave")):
        place = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        place.mkdir(parents=True)
        (place / "scaling_governor").write_text(f"{name}\n")
    assert environment.governor(tmp_path) == "performance and powersave"
