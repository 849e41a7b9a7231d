"""A format is one entry of `FORMATS` and a file of its own, and no other edit.

It recognises a file by its bytes, never by its name. A file may hold several line formats (a
server's log with NCCL's lines in it): each reads it in a pass of its own. A document (JSON, XML)
is one thing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ingest import (
    bench_serving,
    csv_tables,
    kernel_log,
    kineto,
    lspci,
    model_configs,
    moe_tables,
    nccl_log_records,
    nccl_records,
    nccl_tests_json,
    nsys,
    nvidia_smi,
    nvidia_telemetry,
    operator_tables,
    pytest_benchmark_json,
    server_log,
    topology,
)
from ingest.facts import Read
from ingest.log import Log

HEAD_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format: `recognises` looks at a part of a file, `read` makes records and facts of it.

    example: a line of such a file, for `--formats`; several lines where several grammars are read.
    nothing: what to say of a file that is recognised and holds nothing to import.
    document: the whole file is this one thing, recognised by its first HEAD_BYTES.
    anywhere: `recognises` is quick, and looks at each part of a file until it finds a sign.
    """

    name: str
    example: tuple[str, ...]
    recognises: Callable[[bytes], bool]
    read: Callable[[Log], Iterator[Read]]
    nothing: str
    document: bool = False
    anywhere: bool = False


FORMATS = (
    Format(
        name="nccl-tests",
        example=(
            "        4096          1024     float     sum      -1    27.12    0.15    0.26      0 "
            "   26.90    0.15    0.27      0",
        ),
        recognises=nccl_records.recognises,
        read=nccl_records.read,
        nothing="an NCCL log without a table of times; give what nccl-tests printed, whole",
    ),
    Format(
        name="nccl-tests -J",
        example=(nccl_tests_json.EXAMPLE,),
        recognises=nccl_tests_json.recognises,
        read=nccl_tests_json.read,
        nothing="JSON of nccl-tests without a result; give that of a run that ended",
        document=True,
    ),
    Format(
        name="nccl-log",
        example=(nccl_log_records.EXAMPLE,),
        recognises=nccl_log_records.recognises,
        read=nccl_log_records.read,
        nothing=nccl_log_records.NOTHING,
        anywhere=True,
    ),
    Format(
        name="serving-log",
        example=server_log.EXAMPLES,
        recognises=server_log.recognises,
        read=server_log.read,
        nothing="a serving log without a line that tells a time; give one that covers decoding",
        anywhere=True,
    ),
    Format(
        name="kineto",
        example=(kineto.EXAMPLE,),
        recognises=kineto.recognises,
        read=kineto.read,
        nothing="a trace without an event; profile with ProfilerActivity.CUDA",
        document=True,
    ),
    Format(
        name="nsys",
        example=(nsys.EXAMPLE,),
        recognises=nsys.recognises,
        read=nsys.read,
        nothing="a database without an event; export a capture with --trace=cuda",
        document=True,
    ),
    Format(
        name="bench-serving",
        example=(
            '{"backend": "vllm", "max_concurrency": 8, "completed": 100, "median_ttft_ms": 210.4, '
            '"median_tpot_ms": 12.1, "spec_decode_acceptance_length": 2.6, ...}',
        ),
        recognises=bench_serving.recognises,
        read=bench_serving.read,
        nothing="a serving benchmark without a latency; give the result of a run that completed",
        document=True,
    ),
    Format(
        name="pytest-benchmark",
        example=('{"machine_info": {...}, "benchmarks": [{"name": "test_op[case]", "stats": ...',),
        recognises=pytest_benchmark_json.recognises,
        read=pytest_benchmark_json.read,
        nothing="JSON of pytest-benchmark without a benchmark; give that of a run with some",
        document=True,
    ),
    Format(
        name="config.json",
        example=('{"model_type": "deepseek_v3", "hidden_size": 7168, ...}  (target or drafter)',),
        recognises=model_configs.recognises,
        read=model_configs.read,
        nothing="a config.json without a model; give it as it was published",
        document=True,
    ),
    Format(
        name="expert times",
        example=moe_tables.EXAMPLE,
        recognises=moe_tables.recognises,
        read=moe_tables.read,
        nothing=moe_tables.NOTHING,
    ),
    Format(
        name="nvidia-smi -q",
        example=("==============NVSMI LOG==============",),
        recognises=nvidia_smi.recognises,
        read=nvidia_smi.read,
        nothing="output of nvidia-smi -q without a GPU; give it whole",
    ),
    Format(
        name="nvidia-smi -q -x",
        example=("<nvidia_smi_log>",),
        recognises=nvidia_smi.recognises_xml,
        read=nvidia_smi.read_xml,
        nothing="output of nvidia-smi -q -x without a GPU; give it whole",
        document=True,
    ),
    Format(
        name="nvidia-smi topo -m",
        example=("GPU0     X      NODE    SYS     SYS     0-47            0",),
        recognises=topology.recognises,
        read=topology.read,
        nothing="a topology of fewer than two GPUs; give the matrix whole",
    ),
    Format(
        name="nvidia-smi telemetry",
        example=(
            "timestamp, index, utilization.gpu [%], power.draw [W], power.limit [W], clocks.sm "
            "[MHz]",
        ),
        recognises=nvidia_telemetry.recognises,
        read=nvidia_telemetry.read,
        nothing="telemetry without a row; give the header and some rows",
    ),
    Format(
        name="operator-table",
        example=operator_tables.EXAMPLES,
        recognises=operator_tables.recognises,
        read=operator_tables.read,
        nothing=operator_tables.NOTHING,
        document=True,
    ),
    Format(
        name="CSV of times",
        example=csv_tables.EXAMPLE,
        recognises=csv_tables.recognises,
        read=csv_tables.read,
        nothing=csv_tables.NOTHING,
    ),
    Format(
        name="lspci -vvv",
        example=lspci.EXAMPLE,
        recognises=lspci.recognises,
        read=lspci.read,
        nothing=lspci.NOTHING,
    ),
    Format(
        name="kernel-log",
        example=kernel_log.EXAMPLE,
        recognises=kernel_log.recognises,
        read=kernel_log.read,
        nothing=kernel_log.NOTHING,
        anywhere=True,
    ),
)


def recognise(head: bytes) -> tuple[Format, ...]:
    """Return the formats of a file that begins with `head`: one document, or line formats."""
    documents = [known for known in FORMATS if known.document and known.recognises(head)]
    if documents:
        return tuple(documents[:1])
    return tuple(known for known in FORMATS if not known.document and known.recognises(head))
