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
from rolloutlab.policy.gguf_tokenizer import Vocabulary, check_tokenizer, mended

Note = Callable[[str], None]
"""Called with what is being done, again and again."""
_NEEDED = "pip install 'rolloutlab[gguf]'"
_FORM = 1
"""Of the folders; another one converts anew. Another `transformers` does not: checkpoints would lose their base."""
_RECORD = "converted.json"
_BEAT = 0.2
_LINK = "policy.gguf"
_ROPE = "rope.scaling.type"


def converted(file: Path, name: str, note: Note) -> Path:
    """The folder with what a GGUF file holds, written now unless it has been: cached by the bytes of the file.

    name: of the policy, for the folder. note: hears what is being done. Processes that want the same file wait for
    the first; a folder takes its place when it is complete, so that nothing of one that was killed is used.

    Raises:
        PolicyError: the file is none that `transformers` reads as a policy with its tokenizer and chat template.
        LabError: the cache cannot be written.
    """
    cache = Path(platformdirs.user_cache_dir("rolloutlab")) / "policies"
    with _Heard(file.name, note) as heard:
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
            heard.now("another process does it")
            with Lock(cache / f"{folder.name}.lock", thread_local=False):
                if not _is_whole(folder):
                    _convert(file, folder, heard)
        except OSError as error:
            hint = "set XDG_CACHE_HOME to a folder you can write to"
            raise refused(f"{cache} cannot be used", error, hint) from error
    return folder


def notes_of(folder: str) -> list[str]:
    """What the user of a converted file should know; nothing for other policies."""
    try:
        return [str(each) for each in json.loads((Path(folder) / _RECORD).read_text())["notes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


class _Heard:
    """A context in which `note` hears what is done with a file, and since when: some of it is silent for minutes."""

    def __init__(self, name: str, note: Note) -> None:
        self._name = name
        self._note = note
        self._doing = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def now(self, doing: str) -> None:
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
    """What a GGUF file says of its model. weights: how many numbers it has. dtype: in which they are kept."""

    values: dict[str, Any]
    weights: int
    dtype: torch.dtype
    vocabulary: Vocabulary = field(repr=False)


@lru_cache(maxsize=8)
def _digest(file: Path, size: int, changed: int) -> str:  # noqa: ARG001 (a file that was changed is read again)
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _is_whole(folder: Path) -> bool:
    """Whether a folder has all files of its record, each with its size."""
    try:
        sizes = json.loads((folder / _RECORD).read_text())["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert(file: Path, folder: Path, heard: _Heard) -> None:
    """Write the folder by way of a draft beside it."""
    heard.now("reading its description")
    header = _header(file)
    space, needed = shutil.disk_usage(folder.parent).free, header.weights * header.dtype.itemsize
    if space < needed:
        message = f"converting {file.name} needs {needed >> 20:,} MB in {folder.parent}, where {space >> 20:,} are free"
        raise PolicyError(message, hint="free some disk space, or set XDG_CACHE_HOME to another folder")
    draft = folder.with_name(f".{folder.name}.draft")
    remove(draft)
    own(draft / "from")
    notes = _write(file, header, draft, heard)
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


def _write(file: Path, header: _Header, draft: Path, heard: _Heard) -> list[str]:
    """Weights, configuration, tokenizer and chat template of the file into a folder; what is to be known of them."""
    # by itself: beside a file, transformers would read a tokenizer or an adapter of another model
    link = draft / "from" / _LINK
    try:
        link.symlink_to(file)
    except OSError:  # Windows allows it to few
        shutil.copyfile(file, link)
    with _reading(file):
        heard.now("reading the tokenizer")
        # neither this class nor a configuration at hand makes it read the description again, which takes seconds
        tokenizer = mended(PreTrainedTokenizerFast.from_pretrained(link.parent, gguf_file=_LINK), header.vocabulary)
        tokenizer.save_pretrained(draft)
        heard.now("reading the configuration")
        config = AutoConfig.from_pretrained(link.parent, gguf_file=_LINK)
        heard.now("reading the weights")
        with _counted(heard):
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
        raise PolicyError(f"{file.name} lacks weights of its model: {_some(missing)}", hint="another .gguf file")
    if infinite := [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]:
        raise PolicyError(f"weights of {file.name} are no numbers: {_some(infinite)}", hint="another .gguf file")
    with _reading(file):
        heard.now("writing the weights")
        # as long as it counts as quantized, a model is not saved
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.generation_config.eos_token_id = header.vocabulary.ends or None
        model.save_pretrained(draft)
        heard.now("checking the tokenizer")
        check_tokenizer(AutoTokenizer.from_pretrained(draft), header.vocabulary)
    return [*_left_out(file, header, model), *header.vocabulary.notes(file.name, tokenizer)]


def _left_out(file: Path, header: _Header, model: Any) -> Iterator[str]:
    """Notes on what the file has and the model has not."""
    scaling = {k: v for k, v in header.values.items() if k.endswith(f".{_ROPE}") and v not in {"none", ""}}
    rope = getattr(model.config, "rope_parameters", None) or {}
    kept = sum(each.numel() for each in {id(p): p for p in model.parameters()}.values())
    if scaling and rope.get("rope_type", "default") == "default":
        yield f"{file.name} scales positions ({_some(map(str, scaling.values()))}), which transformers leaves out"
    if header.weights > kept:
        yield f"transformers leaves out {header.weights - kept:,} of the {header.weights:,} numbers of {file.name}"


def _header(file: Path) -> _Header:
    """Raises PolicyError: the file is no GGUF file, is one of several parts, or is no policy."""
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
    with _reading(file):
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
    return _Header(values, weights, _dtype(kinds), Vocabulary.of(values))


def _dtype(kinds: set[str]) -> torch.dtype:
    """In what a file of these kinds of matrices is kept: as it is, or in bfloat16, which is finer than its blocks."""
    if kinds <= {"F32", "F16"}:
        return torch.float32 if "F32" in kinds else torch.float16
    return torch.bfloat16


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Translates what fails while a file is read; an error of the disk stays one."""
    try:
        yield
    except RolloutlabError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unread(file, error) from error
    except Exception as error:  # a file can be wrong in any way
        raise _unread(file, error) from error


def _unread(file: Path, error: Exception) -> PolicyError:
    why = (str(error).strip().splitlines() or [""])[0]
    named = why if isinstance(error, ValueError | NotImplementedError) and why else f"{type(error).__name__}: {why}"
    message = f"transformers {transformers.__version__} does not read {file.name}: {named}"
    return PolicyError(message, hint="a .gguf file of another architecture or quantization, such as Q8_0")


@contextmanager
def _counted(heard: _Heard) -> Iterator[None]:
    """Lets tensors be counted, where `transformers` shows a bar of its own in a terminal."""
    reading: Any = import_module("transformers.modeling_gguf_pytorch_utils")

    def counted(tensors: Iterable[Any], **_options: Any) -> Iterator[Any]:
        known = list(tensors)
        for done, each in enumerate(known):
            heard.now(f"{done} of {len(known)} tensors")
            yield each
        heard.now("putting them together")

    bar = reading.tqdm
    reading.tqdm = counted
    try:
        yield
    finally:
        reading.tqdm = bar


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:3]) + (f", and {len(shown) - 3} more" if len(shown) > 3 else "")
