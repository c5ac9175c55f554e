"""GGUF files as policies: `transformers` converts a file once, into a folder of the user's cache."""

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import platformdirs
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rolloutlab.errors import PolicyError, RolloutlabError
from rolloutlab.fsutil import Lock, flush, own, refused, remove
from rolloutlab.policy.gguf_tokenizer import Vocabulary, check_tokenizer, mend_tokenizer

Note = Callable[[str], None]
"""Called with what is being done, again and again."""
_NEEDED = "pip install 'rolloutlab[gguf]'"
_FORM = 1
"""The version of the folders' form: with another one, files are converted anew. Another release of `transformers` does
not convert again: the new folder could be another base, which checkpoints do not fit.
"""
_RECORD = "converted.json"
_BEAT = 0.2
_LINK = "policy.gguf"
_ROPE = "rope.scaling.type"


def convert_file(file: Path, name: str, note: Note) -> Path:
    """Return the folder that a GGUF file is converted into, cached by the bytes of the file; convert it if need be.

    Processes that want the same file wait for the first of them. A folder gets its name when it is complete, so that
    nothing that a killed process has left is used.

    Args:
        file: The GGUF file.
        name: The name of the policy, for the folder's name.
        note: Called with what is being done.

    Raises:
        PolicyError: `transformers` does not read the file as a policy with a tokenizer and a chat template.
        LabError: the cache cannot be written.
    """
    cache = Path(platformdirs.user_cache_dir("rolloutlab")) / "policies"
    with _Activity(file.name, note) as activity:
        try:
            state = file.stat()
            digest = _digest(file, state.st_size, state.st_mtime_ns)
        except OSError as error:
            raise PolicyError(f"{file} cannot be read: {error.strerror}", hint=f"ls -l {file}") from error
        folder = cache / f"{name}-{digest[:16]}-{_FORM}"
        if _is_whole(folder):
            return folder
        try:
            own(cache)
            activity.begin("another process does it")
            with Lock(cache / f"{folder.name}.lock", thread_local=False):
                if not _is_whole(folder):
                    _convert(file, folder, activity)
        except OSError as error:
            hint = "set XDG_CACHE_HOME to a folder you can write to"
            raise refused(f"{cache} cannot be used", error, hint) from error
    return folder


def notes_of(folder: str) -> list[str]:
    """Return what the user of a converted file should know; nothing for other policies."""
    try:
        return [str(each) for each in json.loads((Path(folder) / _RECORD).read_text())["notes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


class _Activity:
    """A context that calls `note` five times a second with what is being done, and for how long.

    Some of the work is silent for minutes.
    """

    def __init__(self, name: str, note: Note) -> None:
        self._name = name
        self._note = note
        self._doing = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def begin(self, doing: str) -> None:
        """Set what is being done."""
        self._doing = doing

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._doing:
            self._note("loading the policy")

    def _repeat(self) -> None:
        begun = time.monotonic()
        while not self._over.wait(_BEAT):
            if self._doing:
                # the name comes last: a narrow terminal shows the beginning
                self._note(f"converting a policy: {self._doing}, {time.monotonic() - begun:.0f} s ({self._name})")


@dataclass(frozen=True)
class _Header:
    """What a GGUF file says of its model. weights: how many numbers it has. dtype: in which they are converted."""

    values: dict[str, Any]
    weights: int
    dtype: torch.dtype
    vocabulary: Vocabulary = field(repr=False)


@lru_cache(maxsize=8)
def _digest(file: Path, size: int, changed: int) -> str:  # noqa: ARG001 (part of the cache's key: a file that was changed is read again)
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _is_whole(folder: Path) -> bool:
    """Whether a folder has all files of its record, each with its size."""
    try:
        sizes = json.loads((folder / _RECORD).read_text())["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert(file: Path, folder: Path, activity: _Activity) -> None:
    """Write the folder, by way of a draft beside it."""
    activity.begin("reading its description")
    header = _read_header(file)
    space, needed = shutil.disk_usage(folder.parent).free, header.weights * header.dtype.itemsize
    if space < needed:
        message = f"converting {file.name} needs {needed >> 20:,} MB in {folder.parent}, where {space >> 20:,} are free"
        raise PolicyError(message, hint="free some disk space, or set XDG_CACHE_HOME to another folder")
    draft = folder.with_name(f".{folder.name}.draft")
    remove(draft)
    own(draft / "from")
    notes = _write(file, header, draft, activity)
    remove(draft / "from")
    written = sorted(each for each in draft.iterdir() if each.is_file())
    record = {
        "file": file.name,
        "transformers": transformers.__version__,
        "notes": notes,
        "sizes": {each.name: each.stat().st_size for each in written},
    }
    (draft / _RECORD).write_text(json.dumps(record, indent=2))
    for each in (*written, draft / _RECORD, draft):
        flush(each)
    remove(folder)  # one that is not whole
    draft.rename(folder)
    flush(folder.parent)


def _write(file: Path, header: _Header, draft: Path, activity: _Activity) -> list[str]:
    """Write the file's weights, configuration, tokenizer and chat template into a folder; return notes on them."""
    # linked into an empty folder: transformers would also read a tokenizer or an adapter that lies beside the file
    link = draft / "from" / _LINK
    try:
        link.symlink_to(file)
    except OSError:  # Windows allows it to few
        shutil.copyfile(file, link)
    with _map_read_errors(file):
        activity.begin("reading the tokenizer")
        # given this class and, below, a configuration, it does not read the description again, which takes seconds
        tokenizer = mend_tokenizer(
            PreTrainedTokenizerFast.from_pretrained(link.parent, gguf_file=_LINK), header.vocabulary
        )
        tokenizer.save_pretrained(draft)
        activity.begin("reading the configuration")
        config = AutoConfig.from_pretrained(link.parent, gguf_file=_LINK)
        activity.begin("reading the weights")
        with _count_tensors(activity):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                link.parent,
                gguf_file=_LINK,
                config=config,
                dtype=header.dtype,
                output_loading_info=True,
                quantization_config=transformers.GgufConfig(dequantize=True),
            )
    model, loading = loaded
    if missing := sorted(loading["missing_keys"]):
        raise PolicyError(f"{file.name} lacks weights of its model: {_list_some(missing)}", hint="another .gguf file")
    if infinite := [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]:
        raise PolicyError(f"weights of {file.name} are no numbers: {_list_some(infinite)}", hint="another .gguf file")
    with _map_read_errors(file):
        activity.begin("writing the weights")
        # transformers saves no model that counts as quantized
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.generation_config.eos_token_id = header.vocabulary.ends or None
        model.save_pretrained(draft)
        activity.begin("checking the tokenizer")
        check_tokenizer(AutoTokenizer.from_pretrained(draft), header.vocabulary)
    return [*_list_omissions(file, header, model), *header.vocabulary.notes(file.name, tokenizer)]


def _list_omissions(file: Path, header: _Header, model: Any) -> Iterator[str]:
    """Yield notes on what the file has and the model has not."""
    scaling = {k: v for k, v in header.values.items() if k.endswith(f".{_ROPE}") and v not in {"none", ""}}
    rope = getattr(model.config, "rope_parameters", None) or {}
    kept = sum(each.numel() for each in {id(p): p for p in model.parameters()}.values())
    if scaling and rope.get("rope_type", "default") == "default":
        yield f"{file.name} scales positions ({_list_some(map(str, scaling.values()))}), which transformers leaves out"
    if header.weights > kept:
        yield f"transformers leaves out {header.weights - kept:,} of the {header.weights:,} numbers of {file.name}"


def _read_header(file: Path) -> _Header:
    """Read a file's header. Raises PolicyError if it is no GGUF file, one of several parts, or no policy."""
    with file.open("rb") as opened:
        begin = opened.read(4)
    if begin != b"GGUF":
        what = "it is empty" if not begin else f"it begins with {begin!r}, and not with b'GGUF'"
        raise PolicyError(f"{file.name} is no GGUF file: {what}", hint="practice, a folder, or a .gguf file")
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise PolicyError(f"to read {file.name} needs {error.name}", hint=_NEEDED) from error
    if not hasattr(transformers, "GgufConfig"):
        raise PolicyError(f"transformers {transformers.__version__} is too old to read {file.name}", hint=_NEEDED)
    with _map_read_errors(file):
        reader = gguf.GGUFReader(file)
        values = {
            name: each.contents() if each.types[0] != gguf.GGUFValueType.ARRAY or "token" in name else None
            for name, each in reader.fields.items()
        }
        kinds = {each.tensor_type.name for each in reader.tensors if len(each.shape) > 1}
        weights = sum(int(each.n_elements) for each in reader.tensors)
    if int(values.get("split.count") or 1) > 1:
        message = f"{file.name} is one of {values['split.count']} parts of a model"
        raise PolicyError(message, hint=f"llama-gguf-split --merge {file.name} whole.gguf")
    if (kind := values.get("general.type", "model")) != "model":
        raise PolicyError(f"{file.name} is no model: it is of the type {kind!r}", hint="another .gguf file")
    if not values.get("tokenizer.chat_template"):
        raise PolicyError(f"{file.name} has no chat template", hint="use an instruction-tuned model")
    return _Header(values, weights, _choose_dtype(kinds), Vocabulary.of(values))


def _choose_dtype(kinds: set[str]) -> torch.dtype:
    """Choose the dtype for a file with these kinds of matrices: its own, or bfloat16, finer than quantized blocks."""
    if kinds <= {"F32", "F16"}:
        return torch.float32 if "F32" in kinds else torch.float16
    return torch.bfloat16


@contextmanager
def _map_read_errors(file: Path) -> Iterator[None]:
    """Map whatever fails while a file is read to PolicyError; errors of the disk stay as they are."""
    try:
        yield
    except RolloutlabError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unreadable_error(file, error) from error
    except Exception as error:  # a file can be wrong in any way
        raise _unreadable_error(file, error) from error


def _unreadable_error(file: Path, error: Exception) -> PolicyError:
    why = (str(error).strip().splitlines() or [""])[0]
    named = why if isinstance(error, ValueError | NotImplementedError) and why else f"{type(error).__name__}: {why}"
    message = f"transformers {transformers.__version__} does not read {file.name}: {named}"
    return PolicyError(message, hint="a .gguf file of another architecture or quantization, such as Q8_0")


@contextmanager
def _count_tensors(activity: _Activity) -> Iterator[None]:
    """Count the tensors that are read, in place of the progress bar that `transformers` shows in a terminal."""
    reading: Any = import_module("transformers.modeling_gguf_pytorch_utils")

    def counted(tensors: Iterable[Any], **_options: Any) -> Iterator[Any]:
        known = list(tensors)
        for done, each in enumerate(known):
            activity.begin(f"{done} of {len(known)} tensors")
            yield each
        activity.begin("putting them together")

    bar = reading.tqdm
    reading.tqdm = counted
    try:
        yield
    finally:
        reading.tqdm = bar


def _list_some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:3]) + (f", and {len(shown) - 3} more" if len(shown) > 3 else "")
