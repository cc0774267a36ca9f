"""Getting and checking data files. A wrong hash is an error; a missing file says how to get it."""

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import urllib.request
from pathlib import Path

from eval.data.registry import LCB_REPO, LCB_REVISION, Benchmark, DataFile
from eval.types import UsageError

DATA_DIR_VARIABLE = "POPULORA_EVAL_DATA"
_CHUNK = 1 << 20


def data_directory(argument: str | None) -> Path:
    """``--data-dir``, else the environment variable, else the user's cache directory."""
    if argument:
        return Path(argument)
    if DATA_DIR_VARIABLE in os.environ:
        return Path(os.environ[DATA_DIR_VARIABLE])
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "populora" / "eval"


def file_digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _hub_note(path: Path) -> Path:
    return path.with_name(path.name + ".source.json")


def check_file(path: Path, spec: DataFile) -> str:
    """The SHA-256 of a data file, after checking it against its pin. Raises UsageError on a mismatch."""
    sha256 = file_digest(path, "sha256")
    if spec.digest:
        algorithm, _, expected = spec.digest.partition(":")
        actual = sha256 if algorithm == "sha256" else file_digest(path, algorithm)
    else:
        note = _hub_note(path)
        if not note.exists():
            raise UsageError(
                f"{path} has no {note.name} beside it, so it can't be checked against the pinned revision; "
                f"get it with: python -m eval fetch-data"
            )
        source = json.loads(note.read_text())
        if source["revision"] != LCB_REVISION:
            raise UsageError(f"{note} names revision {source['revision']}, expected {LCB_REVISION}")
        expected, actual = source["sha256"], sha256
    if actual != expected:
        raise UsageError(
            f"{path} has the wrong content: digest {actual}, expected {expected}. "
            f"Delete it and run: python -m eval fetch-data"
        )
    return sha256


def require_files(benchmark: Benchmark, directory: Path) -> dict[Path, str]:
    """Paths of a benchmark's checked files with their SHA-256. Raises UsageError if one is missing or wrong."""
    checked = {}
    for spec in benchmark.files:
        path = directory / spec.name
        if not path.exists():
            raise UsageError(
                f"{benchmark.title}: {path} is missing. Get it with: "
                f"python -m eval fetch-data --benchmarks {benchmark.name} --data-dir {directory}"
            )
        checked[path] = check_file(path, spec)
    return checked


def fetch(benchmark: Benchmark, directory: Path) -> list[Path]:
    """Download what is missing, check everything, return the paths. Files appear only once they are right."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for spec in benchmark.files:
        path = directory / spec.name
        if not path.exists():
            if spec.hub_path:
                _fetch_from_hub(spec, path)
            else:
                _fetch_url(spec, path)
        check_file(path, spec)
        paths.append(path)
    return paths


def _fetch_url(spec: DataFile, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        partial = Path(scratch) / spec.name
        try:
            with urllib.request.urlopen(spec.url, timeout=60) as response, partial.open("wb") as stream:
                source = gzip.GzipFile(fileobj=response) if spec.url.endswith(".gz") else response
                shutil.copyfileobj(source, stream, _CHUNK)
        except OSError as error:
            raise UsageError(
                f"could not download {spec.url}: {error}. Put the file at {path} yourself, or try again"
            ) from error
        check_file(partial, spec)
        partial.replace(path)


def _fetch_from_hub(spec: DataFile, path: Path) -> None:
    from huggingface_hub import hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import get_hf_file_metadata

    url = hf_hub_url(LCB_REPO, spec.hub_path, repo_type="dataset", revision=LCB_REVISION)
    try:
        stated = get_hf_file_metadata(url).etag
        cached = hf_hub_download(LCB_REPO, spec.hub_path, repo_type="dataset", revision=LCB_REVISION)
    except Exception as error:  # the hub's client raises its own, requests' and OS errors alike
        raise UsageError(f"could not download {spec.hub_path} of {LCB_REPO}@{LCB_REVISION[:8]}: {error}") from error
    actual = file_digest(Path(cached), "sha256")
    if stated != actual:
        raise UsageError(f"{spec.hub_path}: SHA-256 {actual}, but the hub states {stated} for this revision")
    note = {"repository": LCB_REPO, "revision": LCB_REVISION, "path": spec.hub_path, "sha256": actual}
    _hub_note(path).write_text(json.dumps(note, indent=1) + "\n")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        partial = Path(scratch) / spec.name
        shutil.copyfile(cached, partial)
        partial.replace(path)
