"""What a pickle asks for, found by reading its instructions without carrying them out."""

from __future__ import annotations

import io
import pickletools
from typing import IO

from profiler.errors import UnreadableDump, UnsafePickle

PROTOCOL = 2
"""Of the pickles of ``torch.save``, whatever Python's own default is; its safe loader knows no other."""
MAX_CONTAINERS = 20_000_000
"""Lists, dicts, tuples and calls: one byte of pickle each, but about a hundred bytes of memory."""
MAX_DEPTH = 32
"""A recording is six containers deep. Tuples as keys are hashed by recursion, which far deeper ends the process."""

_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool", "Untyped")
TENSOR_GLOBALS = frozenset(
    {
        "collections OrderedDict",  # the hooks of a tensor, always empty
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor_v3",
        "torch.storage UntypedStorage",
        "torch uint16",
        "torch uint32",
        "torch uint64",
        *(f"torch {kind}Storage" for kind in _STORAGES),
    }
)
"""All that a dense tensor of whole numbers or floats needs."""

_PUSHES_SCALAR = frozenset(
    {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "GLOBAL"}
    | {"SHORT_BINSTRING"}
)
_PUSHES_CONTAINER = frozenset({"EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE"})
_TUPLE_ITEMS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_POPS = {"APPEND": 1, "SETITEM": 2, "STOP": 1}
_MAKES_OBJECTS = frozenset({"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4", "PERSID"})
_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "SHORT_BINSTRING"})
_DAMAGE = (ValueError, OverflowError, IndexError, KeyError, MemoryError)
"""What following a damaged pickle raises (``UnicodeDecodeError`` is a ``ValueError``)."""


def check_pickle(pickle: bytes, *, name: str) -> None:
    """Accept a pickle of tensors and plain containers, in the instructions that ``torch.save`` uses.

    Parameters
    ----------
    pickle : bytes
    name : str
        Name of the file, for messages.

    Raises
    ------
    UnsafePickle
        It names a class or function beyond those of a dense tensor, or holds an instruction that makes objects.
    UnreadableDump
        It is damaged, nested too deeply, or holds a kind of tensor that is not read.
    """
    nesting, globals_asked = _Nesting(), _Globals()
    try:
        for opcode, argument, _ in pickletools.genops(pickle):
            unknown = globals_asked.follow(opcode.name, argument)
            if unknown is not None:
                raise _refusal(unknown, name)
            nesting.follow(opcode.name, argument)
            if nesting.depth > MAX_DEPTH or nesting.containers > MAX_CONTAINERS:
                raise UnreadableDump(
                    f"{name} is nested more than {MAX_DEPTH} deep or holds more than {MAX_CONTAINERS} containers."
                )
    except _DAMAGE as error:
        unknown = find_unknown_global(io.BytesIO(pickle))  # it may come later, in a pickle made by other means
        if unknown is not None:
            raise _refusal(unknown, name) from None
        raise UnreadableDump(f"{name} is damaged: its pickle cannot be followed ({_short(error)}).") from error


def find_unknown_global(file: IO[bytes]) -> str | None:
    """Return the first thing a pickle asks for beyond a dense tensor, as far as the pickle can be followed.

    Returns
    -------
    str or None
        ``"module name"`` of a class or function, or the name of an instruction that makes objects.
    """
    globals_asked = _Globals()
    try:
        for opcode, argument, _ in pickletools.genops(file):
            unknown = globals_asked.follow(opcode.name, argument)
            if unknown is not None:
                return unknown
    except _DAMAGE:
        return None
    return None


class _Globals:
    """Watches for classes, functions and object-making instructions that a dense tensor does not need."""

    def __init__(self) -> None:
        self._strings = ("", "")

    def follow(self, instruction: str, argument: object) -> str | None:
        if instruction in _STRINGS:
            self._strings = (self._strings[1], str(argument))
        elif instruction == "GLOBAL":
            return None if argument in TENSOR_GLOBALS else str(argument)
        elif instruction == "STACK_GLOBAL":
            return " ".join(self._strings)  # may come from the memo instead; it is refused under any name
        elif instruction in _MAKES_OBJECTS:
            return f"{'' if argument is None else argument} {instruction}".strip()
        return None


class _Nesting:
    """The stack of a pickle machine on which every value is only the depth of its tuples."""

    def __init__(self) -> None:
        self.depth = 0
        self.containers = 0
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}

    def follow(self, instruction: str, argument: object) -> None:
        """Carry out one instruction; raises ``ValueError`` or ``IndexError`` where the machine would fail."""
        stack = self._stack
        if instruction in _PUSHES_SCALAR:
            stack.append(0)
        elif instruction in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(str(argument))])
        elif instruction in ("BINPUT", "LONG_BINPUT"):
            self._memo[int(str(argument))] = stack[-1]
        elif instruction == "MARK":
            self._marks.append(len(stack))
        elif instruction in ("APPENDS", "SETITEMS"):
            del stack[self._marks.pop() :]
        elif instruction in _POPS:
            del stack[len(stack) - _POPS[instruction] :]
        else:
            self._build(instruction, argument)

    def _build(self, instruction: str, argument: object) -> None:
        stack = self._stack
        if instruction in _PUSHES_CONTAINER:
            self._push_container(0)
        elif instruction == "TUPLE" or instruction in _TUPLE_ITEMS:
            start = self._marks.pop() if instruction == "TUPLE" else len(stack) - _TUPLE_ITEMS[instruction]
            items = stack[start:]
            del stack[start:]
            self._push_container(1 + max(items, default=0))
        elif instruction in ("REDUCE", "BINPERSID"):
            del stack[len(stack) - (2 if instruction == "REDUCE" else 1) :]
            self._push_container(0)
        elif (instruction, argument) != ("PROTO", PROTOCOL):
            raise ValueError(f"torch.save writes no {instruction} {'' if argument is None else argument}".rstrip())

    def _push_container(self, depth: int) -> None:
        self.depth = max(self.depth, depth)
        self.containers += 1
        self._stack.append(depth)


def _refusal(unknown: str, name: str) -> UnreadableDump | UnsafePickle:
    module, _, attribute = unknown.rpartition(" ")
    if module == "torch._utils" and attribute.startswith("_rebuild_"):
        return UnreadableDump(f"{name} holds {unknown}; only dense tensors of whole numbers and floats are read.")
    return UnsafePickle(f"{name} asks for {unknown}; only tensors and plain containers are read, and no code is run.")


def _short(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:120]
