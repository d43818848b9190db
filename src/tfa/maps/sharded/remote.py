"""Photos in a bucket, or at whatever else has a URL: listed, and copied to this machine while they are encoded.

fsspec is what torch brings already; s3:// is read by Arrow's file system (extra `bucket`), other kinds of buckets by
the package that fsspec names for them. Keys, and the address of another service than Amazon's, come from the
environment of every worker (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from tfa.errors import BadImage, MissingExtra, NoImages
from tfa.photos.images import image_extensions

MARKS = ("ETag", "etag", "md5", "crc32c", "LastModified", "mtime", "created")


def is_remote(uri: str) -> bool:
    return "://" in uri


def list_bucket(url: str) -> Iterator[tuple[str, str]]:
    """URL and stamp of every photo below `url`, sorted by URL; hidden names are left out as in a folder."""
    system, root = _system(url)
    try:
        system.ls(root)  # `find` takes what cannot be listed for an empty folder
        found = system.find(root, detail=True)
    except Exception as error:  # each kind of bucket has errors of its own
        raise NoImages(f"{url} cannot be listed: {_words(error)}; check the address and the credentials") from None
    names = [name for name in sorted(found) if _is_photo(name.removeprefix(root))]
    if not names:
        raise NoImages(f"{url} holds no image; looked for .jpg, .png, .webp and what else Pillow reads")
    for name in names:
        facts = found[name]
        mark = next((str(facts[key]) for key in MARKS if facts.get(key)), "")
        yield system.unstrip_protocol(name), f"{facts.get('size')}-{mark}"


def copy_photo(uri: str, target: Path) -> None:
    """Copy a photo to a file of this machine."""
    system, name = _system(uri)
    try:
        system.get_file(name, str(target))
    except FileNotFoundError:
        raise BadImage(f"{uri} does not exist", uri) from None
    except OSError as error:
        if error.filename == str(target):
            raise  # ours: a full disk
        raise BadImage(f"{uri} cannot be read: {_words(error)}", uri) from None
    except Exception as error:
        raise BadImage(f"{uri} cannot be read: {_words(error)}", uri) from None


def _is_photo(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in image_extensions() and not any(part.startswith(".") for part in path.parts)


def _system(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    try:
        if scheme == "s3":
            name = url.partition("://")[2]  # as it is: names of objects may have % ? and # in them
            return _s3(name.partition("/")[0]), name.rstrip("/")
        from fsspec.core import url_to_fs

        return url_to_fs(url)
    except ImportError as error:
        raise MissingExtra(
            f"reading {scheme}:// needs a package that is not installed ({error}); for s3:// install it with: "
            "pip install 'tfa-vpr[bucket]'"
        ) from None
    except ValueError as error:
        raise NoImages(f"{url} is no address of photos: {error}; give a folder, a manifest or s3://BUCKET/…") from None


@lru_cache(maxsize=8)
def _s3(bucket: str) -> Any:
    """One client for each bucket, whose region it finds out."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    return ArrowFSWrapper(FileSystem.from_uri(f"s3://{bucket}")[0])


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
