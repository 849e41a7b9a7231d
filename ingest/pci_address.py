"""PCI addresses as one form, whoever prints them: "0000:c1:00.0".

NVML and nvidia-smi write eight digits of the domain and capitals, lspci leaves out domain 0, NCCL
leaves out all separators (`busId c1000`). An address is a place on the board and names no host.
"""

import re

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


def normal(text: str) -> str | None:
    """Return the address that `text` is, with four digits of the domain; None for other text."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, device, function = found.groups(default="0")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def bus(address: str) -> tuple[str, int]:
    """Return the domain and the number of the bus of a normal address."""
    domain, number, _ = address.split(":")
    return domain, int(number, 16)
