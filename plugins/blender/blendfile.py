"""What the first bytes of a .blend file tell, without Blender: its version, and its scenes' frames.

Every .blend begins with a header and, for each scene, a small block REND: first frame, last frame, name.
The active scene comes first. Files are plain, gzip (before 3.0) or Zstandard (since).
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

_HEAD_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneRange:
    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendHead:
    version: tuple[int, int] | None
    """Of the Blender that saved it; None when it is compressed in a way that cannot be read here."""
    scenes: tuple[SceneRange, ...] = ()
    """The active scene first; empty when they cannot be read."""


class NotABlend(Exception):
    """The bytes are not the start of a .blend file."""


def read(path: Path) -> BlendHead:
    """Raises NotABlend, and OSError when the file cannot be read."""
    with path.open("rb") as file:
        raw = file.read(_HEAD_BYTES)
    if raw.startswith(_ZSTD):
        plain = unpack_zstd(raw)
        return BlendHead(version=None) if plain is None else parse(plain)
    if raw.startswith(_GZIP):
        try:
            return parse(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw, _HEAD_BYTES))
        except zlib.error as error:
            raise NotABlend(f"broken gzip data: {error}") from error
    return parse(raw)


def parse(head: bytes) -> BlendHead:
    """`head` is the start of the unpacked file. Raises NotABlend."""
    if not head.startswith(b"BLENDER"):
        raise NotABlend("it does not begin with BLENDER")
    try:
        if head[7:8] in (b"-", b"_"):  # BLENDER-v304: pointer size, byte order, version
            order = "<" if head[8:9] == b"v" else ">"
            version = int(head[9:12])
            block = struct.Struct(order + ("4siQii" if head[7:8] == b"-" else "4siIii"))
            start, length_index = 12, 1
        elif head[7:10] == b"17-":  # BLENDER17-01v0500: header size, format, byte order, version
            order = "<"
            version = int(head[13:17])
            block = struct.Struct("<4siQqq")
            start, length_index = 17, 3
        else:
            raise NotABlend(f"unknown header {head[:17]!r}")
    except ValueError as error:
        raise NotABlend(f"unknown header {head[:17]!r}") from error
    return BlendHead(version=divmod(version, 100), scenes=_scenes(head, start, order, block, length_index))


def _scenes(
    head: bytes, start: int, order: str, block: struct.Struct, length_index: int
) -> tuple[SceneRange, ...]:
    scenes: list[SceneRange] = []
    while start + block.size <= len(head):
        fields = block.unpack_from(head, start)
        code, length = fields[0], fields[length_index]
        if length < 0 or (
            scenes and code != b"REND"
        ):  # broken; or past the REND blocks, which stand together
            break
        body = head[start + block.size : start + block.size + length]
        start += block.size + length
        if code != b"REND":
            continue
        if len(body) >= 9:
            first, last = struct.unpack_from(order + "ii", body)
            name = body[8:].partition(b"\0")[0].decode("utf-8", "replace")
            scenes.append(SceneRange(name=name, first=first, last=last))
    return tuple(scenes)


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("position", ctypes.c_size_t))


def unpack_zstd(raw: bytes) -> bytes | None:
    """The first bytes of Zstandard data; None without the system's libzstd (Python has none before 3.14).

    Raises NotABlend when the data is broken.
    """
    library = _libzstd()
    if library is None:
        return None
    stream = library.ZSTD_createDStream()
    try:
        source = ctypes.create_string_buffer(raw, len(raw))
        target = ctypes.create_string_buffer(_HEAD_BYTES)
        taken = _Buffer(ctypes.cast(source, ctypes.c_void_p), len(raw), 0)
        given = _Buffer(ctypes.cast(target, ctypes.c_void_p), _HEAD_BYTES, 0)
        while taken.position < taken.size and given.position < given.size:
            before = taken.position, given.position
            status = library.ZSTD_decompressStream(stream, ctypes.byref(given), ctypes.byref(taken))
            if library.ZSTD_isError(status):
                raise NotABlend("broken Zstandard data")
            if before == (taken.position, given.position):
                break
        return target.raw[: given.position]
    finally:
        library.ZSTD_freeDStream(stream)


def _libzstd() -> ctypes.CDLL | None:
    for name in ("libzstd.so.1", "libzstd.1.dylib", "libzstd.dylib"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.ZSTD_createDStream.restype = ctypes.c_void_p
        library.ZSTD_freeDStream.argtypes = (ctypes.c_void_p,)
        library.ZSTD_decompressStream.argtypes = (
            ctypes.c_void_p,
            ctypes.POINTER(_Buffer),
            ctypes.POINTER(_Buffer),
        )
        library.ZSTD_decompressStream.restype = ctypes.c_size_t
        library.ZSTD_isError.argtypes = (ctypes.c_size_t,)
        return library
    return None
