"""How an adapter's tensors are named in the weight stream: ``<adapter id>::<PEFT tensor name>``."""

_SEPARATOR = "::"


def pack(adapter_id: int, name: str) -> str:
    return f"{adapter_id}{_SEPARATOR}{name}"


def unpack(key: str) -> tuple[int, str]:
    adapter_id, name = key.split(_SEPARATOR, 1)
    return int(adapter_id), name
