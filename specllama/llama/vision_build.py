"""Compiles llama.cpp's libmtmd, which encodes images, into one shared object, in half a minute.

Users of text models need none of it, so llama.cpp is installed without. Its sources are kept at that
installation, in a folder that the user names, or downloaded. Imports no package but specllama, as
kernel_build.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

from specllama.llama.kernel_build import FLAGS, NATIVE, Unusable, compiler_of, folder_for, run_compilers

PACKAGE, TESTED = "llama-cpp-python", "0.3.36"  # the version that is supported
VARIABLE = "SPECLLAMA_LLAMA_CPP_SOURCE"
OBJECT = NATIVE / "specllama_vision.so"  # ready-made, in a wheel
PARTS = (  # of llama.cpp's source, those that are compiled and what they include
    "include/*.h",
    "ggml/include/*.h",
    "tools/mtmd/*.h",
    "tools/mtmd/debug/*.h",
    "tools/mtmd/models/*",
    *(f"tools/mtmd/{name}.cpp" for name in ("mtmd", "clip", "mtmd-image", "mtmd-audio")),
)
# Of them in that version.
CHECKSUM = "53e15efc80dd921483a08777f0cae1c8db7c696271faf9d459c724d121446fe2"
DOWNLOADING, COMPILING = "source of llama.cpp", "vision encoder"  # what is reported
Report = Callable[[str, float], None]
"""Gets one of these two, and the share of it that is done."""
_SECONDS, _MAX_BYTES = 600, 4 << 20  # of a download; of a file in it
_OPTIONS = (*FLAGS, "-DLLAMA_SHARED", "-DLLAMA_BUILD", "-DGGML_SHARED", "-DGGML_BACKEND_SHARED")
# What is compiled as one, at the same time as the other. Little of it is a loop: graphs are built once an
# image.
_UNITS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "clip": ("-Og", ("clip.cpp",)),
    "rest": ("-O1", ("models/*.cpp", "mtmd.cpp", "mtmd-image.cpp", "mtmd-audio.cpp")),
}


def key() -> str:
    """The checksum of what is compiled and how, 16 hexadecimal digits."""
    digest = hashlib.sha256(repr((CHECKSUM, _OPTIONS, _UNITS, platform.system())).encode())
    for path in sorted((NATIVE / "vision").iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_object(
    to: Path, environ: Mapping[str, str] = os.environ, report: Report = lambda *_: None
) -> None:
    """Compile the object into the file `to`, which is written whole or not at all. Raises Unusable."""
    compiler = compiler_of(environ)
    with folder_for(to, OBJECT.name) as work:
        source = _source(work, environ, report)
        report(COMPILING, 0.0)
        _compile(compiler, source, work)


def _compile(compiler: list[str], source: Path, work: Path) -> None:
    mtmd, own = source / "tools" / "mtmd", NATIVE / "vision"
    folders = [f"-I{folder}" for folder in (source / "include", source / "ggml" / "include", mtmd)]
    options = [*_OPTIONS, *folders, f'-DSPECLLAMA_SOURCES="{key()}"', "-include", str(own / "throws.h")]
    commands = []
    for name, (level, patterns) in _UNITS.items():
        parts = [path for pattern in patterns for path in sorted(mtmd.glob(pattern))]
        parts += [own / "open.cpp"] if name == "rest" else []
        (work / f"{name}.cpp").write_text("".join(f'#include "{path}"\n' for path in parts))
        commands.append([*compiler, *options, level, "-c", f"{name}.cpp", "-o", f"{name}.o"])
    run_compilers(commands, work)
    # Its symbols are those of the llama.cpp that is loaded, wherever that is.
    undefined = ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
    run_compilers(
        [[*compiler, "-shared", *undefined, "-o", OBJECT.name, *(f"{name}.o" for name in _UNITS)]], work
    )


# llama.cpp's source.


def checksum(folder: Path) -> str:
    """Of PARTS in this folder, hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in PARTS for path in folder.glob(pattern)):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _source(work: Path, environ: Mapping[str, str], report: Report) -> Path:
    """The folder of the source: the one that is named, that of the installation, or a download in `work`."""
    if given := environ.get(VARIABLE):
        if checksum(Path(given)) != CHECKSUM:
            raise Unusable(f"{VARIABLE} is {given}, which is not llama.cpp as in {PACKAGE} {TESTED}")
        return Path(given)
    kept = kept_source()
    if kept is not None and checksum(kept) == CHECKSUM:
        return kept
    report(DOWNLOADING, 0.0)
    try:
        for path, data in unpacked(download(TESTED, work), PARTS):
            target = work / "source" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    except (subprocess.SubprocessError, tarfile.TarError, EOFError) as error:
        raise Unusable(f"its source cannot be downloaded: {reason_of(error)}") from None
    if checksum(work / "source") != CHECKSUM:
        raise Unusable(f"what is downloaded as {PACKAGE} {TESTED} is another version of it")
    return work / "source"


def kept_source() -> Path | None:
    """The copy that an installation from source keeps (native/build.cmake), None without."""
    try:
        folder = Path(str(metadata.distribution(PACKAGE).locate_file("llama_cpp/source")))
    except metadata.PackageNotFoundError:
        return None
    return folder if folder.is_dir() else None


def download(version: str, directory: Path) -> Path:
    """The source package, 75 MB, which pip downloads from its configured index. Raises OSError and
    subprocess.SubprocessError.
    """
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += ["--retries", "1", "--timeout", "20", "--no-binary", PACKAGE, "--dest", str(directory)]
    subprocess.run(
        [*command, f"{PACKAGE}=={version}"],
        check=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return next(directory.glob("*.tar.gz"))


def unpacked(package: Path, parts: Sequence[str]) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The files of llama.cpp in a source package that match these patterns, by path. Raises OSError, EOFError
    and tarfile.TarError.
    """
    with tarfile.open(package) as archive:
        for member in archive:
            path = PurePosixPath(*PurePosixPath(member.name).parts[3:])  # below PACKAGE/vendor/llama.cpp
            alike = [part for part in parts if len(path.parts) == part.count("/") + 1 and path.match(part)]
            if member.isfile() and member.size < _MAX_BYTES and alike:
                content = archive.extractfile(member)
                assert content is not None
                yield path, content.read()


def reason_of(error: Exception) -> str:
    """Why a download has failed, in one line: the last that pip has printed."""
    printed = getattr(error, "stderr", "") or str(error)
    return (printed.strip().splitlines() or [type(error).__name__])[-1][:300]
