"""What torch loaded, turned into NumPy arrays and plain containers, with every tensor checked against its storage."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from profiler.errors import UnreadableDump
from profiler.readers.pt_pickle import MAX_DEPTH

if TYPE_CHECKING:
    import torch

_SCALARS = frozenset({str, int, float, bool, type(None)})


def plain_values(loaded: Any, *, storage_bytes: Counter[int], name: str) -> Any:
    """Turn tensors into arrays, in the containers as they are.

    Parameters
    ----------
    loaded : object
        What ``torch.load`` returned. Its lists and dicts are changed in place, so that nothing is held twice.
    storage_bytes : Counter
        How many members of the archive have which size: every storage must be one of them.
    name : str
        Name of the file, for messages.

    Raises
    ------
    UnreadableDump
        Naming the place (``records[3].positions``) of a value that is not read.
    """
    return _Conversion(storage_bytes, name).convert(loaded, where="", depth=0)


class _Conversion:
    """One file being converted; remembers containers and storages, because a pickle may refer to one often."""

    def __init__(self, storage_bytes: Counter[int], name: str) -> None:
        import torch

        self._torch = torch
        self._name = name
        self._unclaimed = Counter(storage_bytes)
        self._claimed: set[tuple[int, int]] = set()
        self._converted: dict[int, Any] = {}
        self._open: set[int] = set()
        self._kept_alive: list[Any] = []

    def convert(self, value: Any, *, where: str, depth: int) -> Any:
        if type(value) in _SCALARS:
            return value
        if isinstance(value, self._torch.Tensor):
            return self._array(value, where)
        if type(value) not in (list, tuple) and not isinstance(value, dict):
            raise self._refusal(where, f"is a {type(value).__name__}; only tensors and plain containers are read")
        if depth >= MAX_DEPTH:
            raise self._refusal(where, f"is nested more than {MAX_DEPTH} deep")
        if id(value) in self._open:
            raise self._refusal(where, "contains itself")
        if id(value) not in self._converted:
            self._open.add(id(value))
            self._kept_alive.append(value)  # else its id could come to mean another container
            self._converted[id(value)] = self._container(value, where, depth + 1)
            self._open.discard(id(value))
        return self._converted[id(value)]

    def _container(self, value: Any, where: str, depth: int) -> Any:
        if isinstance(value, dict):
            for key in value:
                if type(key) not in (str, int):
                    raise self._refusal(where, f"has a key of type {type(key).__name__}; keys are strings")
                value[key] = self.convert(value[key], where=f"{where}.{key}" if where else str(key), depth=depth)
            return value if type(value) is dict else dict(value)
        if set(map(type, value)) <= _SCALARS:
            return value
        items = (self.convert(item, where=f"{where}[{index}]", depth=depth) for index, item in enumerate(value))
        if isinstance(value, tuple):
            return tuple(items)
        for index, item in enumerate(items):
            value[index] = item
        return value

    def _array(self, tensor: torch.Tensor, where: str) -> Any:
        torch = self._torch
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
            raise self._refusal(where, f"is a {tensor.layout} {type(tensor).__name__}; only dense tensors are read")
        if tensor.device.type != "cpu":
            raise self._refusal(where, f"has no data: its device is {tensor.device}")
        if tensor.dtype.is_complex:
            raise self._refusal(where, f"holds {tensor.dtype} values; whole numbers and floats are read")
        self._check_storage(tensor, where)
        tensor = tensor.detach()
        if tensor.dtype is torch.bfloat16:  # NumPy has no such type
            tensor = tensor.to(torch.float32)
        if tensor.data_ptr() % tensor.element_size():  # a file packed by other means; NumPy counts on alignment
            tensor = tensor.clone()
        array = tensor.numpy()
        array.flags.writeable = False
        return array

    def _check_storage(self, tensor: torch.Tensor, where: str) -> None:
        """Compare the tensor with its storage, and the storage with the members of the archive."""
        storage = tensor.untyped_storage()
        held_bytes = storage.nbytes()
        if held_bytes and (storage.data_ptr(), held_bytes) not in self._claimed:
            if self._unclaimed[held_bytes] < 1:
                raise self._refusal(where, f"claims a storage of {held_bytes} bytes, which the archive does not hold")
            self._unclaimed[held_bytes] -= 1
            self._claimed.add((storage.data_ptr(), held_bytes))
        stated_bytes = tensor.numel() * tensor.element_size()
        if stated_bytes > held_bytes:
            raise self._refusal(
                where, f"states shape {list(tensor.shape)}, {stated_bytes} bytes, over a storage of {held_bytes}"
            )

    def _refusal(self, where: str, found: str) -> UnreadableDump:
        return UnreadableDump(f"{where or 'the object'} of {self._name} {found}.")
