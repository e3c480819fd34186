"""Images of `run` and `chat`: which files are meant, and where they stand in a text. specllama/images.py
decodes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from specllama.client.prompt_input import Image
from specllama.errors import UsageError, option
from specllama.images import check_n_images, load_image, read_image_file
from specllama.text.terminal import visible

MARKER = "<__media__>"  # in a prompt, as llama-mtmd-cli has it: an image belongs here
_ENDING = re.compile(r"\.(png|jpe?g|webp|gif|bmp)['\"]?\s*$", re.I)
_AT_END = re.compile(r"""(?:^|(?<=\s))(?:'([^']+)'|"([^"]+)"|((?:file://|~?/)(?:\\.|[^\s\\'"])*))\s*$""")


@dataclass(slots=True)
class AttachedImage:
    """An image of a message. name: of its file. data: the bytes of the file."""

    name: str
    data: bytes
    _image: Image | None = None

    @property
    def image(self) -> Image:
        """It decoded, at the first use. Raises UsageError, ResourceError."""
        if self._image is None:
            self._image = load_image(self.data, f"the image {visible(self.name)}")
        return self._image

    def decoded(self) -> AttachedImage:
        """Itself, decoded now. Raises UsageError, ResourceError."""
        self._image = self.image
        return self

    def __str__(self) -> str:
        return f"{visible(self.name)} ({self.image.width} × {self.image.height})"


def attached(path: str) -> AttachedImage:
    """The image in a file, not decoded yet. Raises UsageError for a file that cannot be read."""
    return AttachedImage(Path(path).name, read_image_file(path))


def given_images(given: Sequence[str]) -> list[AttachedImage]:
    """The images of all --image, each a file, or several with commas between them, as llama.cpp reads them.
    Raises UsageError, ResourceError.
    """
    paths = [path for value in given for path in ([value] if os.path.exists(value) else _fields(value))]
    check_n_images(paths, option("image"))
    return [attached(path).decoded() for path in paths]


def _fields(row: str) -> Iterable[str]:
    """The fields of a row of CSV; a quotation mark within a field is one."""
    for quoted, plain in re.findall(r'(?:^|,)(?:"((?:[^"]|"")*)"(?=,|$)|([^,]*))', row):
        yield quoted.replace('""', '"') or plain


def placed(text: str, images: Sequence[Image]) -> str:
    """The text with the images' own markers: in the places of MARKER, in order, else before it. Raises
    UsageError for another number of MARKER than of images.
    """
    parts = text.split(MARKER)
    if not images or len(parts) == 1:
        return "".join(image.marker for image in images) + text
    if len(parts) - 1 != len(images):
        problem = f"the prompt has {len(parts) - 1} times {MARKER}, and there are {len(images)} images"
        raise UsageError(problem, f"write it once for each {option('image')}, or leave it out")
    return "".join(map(str.__add__, parts, [*(image.marker for image in images), ""]))


def no_projector(model: str) -> UsageError:
    """The error for an image and a model that reads none."""
    hint = f"{option('mmproj')} FILE gives it its projector, mmproj-….gguf, if there is one"
    return UsageError(f"{visible(model)} reads no images", hint)


def dropped(line: str) -> tuple[str, list[str]]:
    """(The text before, the paths) of image files at the end of a line, as terminals paste them where files
    are dropped: whole paths, in quotation marks, with backslashes, or as file: URLs. Only files that are
    there.
    """
    paths = list[str]()
    if "\n" not in line and _ENDING.search(line[-16:]):
        if _is_image(whole := os.path.expanduser(line.strip())):
            return "", [whole]
        while (match := _AT_END.search(line)) is not None:
            path = _path(match[1] or match[2] or re.sub(r"\\(.)", r"\1", match[3]))
            if not _is_image(path):
                break
            paths.insert(0, path)
            line = line[: match.start()].rstrip()
    return line, paths


def _path(text: str) -> str:
    if text.startswith("file://"):
        url = urlsplit(text)
        return unquote(url.path) if url.netloc in ("", "localhost") else ""
    return os.path.expanduser(text)


def _is_image(path: str) -> bool:
    try:
        return os.path.isabs(path) and _ENDING.search(path[-16:]) is not None and os.path.isfile(path)
    except ValueError:  # a NUL
        return False
