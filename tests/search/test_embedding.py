"""Embedding models: a function, an address, or a model of sentence-transformers; none gives anything but vectors."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import InputError, NotFoundError, ServiceError
from rolloutlab.search.embedding import embedder


@pytest.fixture
def http():
    http = HttpClient()
    yield http
    http.close()


@pytest.fixture
def service():
    """A local address with an answer to every request, which it keeps."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append((self.path, self.headers["Authorization"], body))
            answer = json.dumps(server.answer(body)).encode()
            self.send_response(server.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.status = [], 200
    server.answer = lambda body: {
        "data": [{"index": i, "embedding": [float(len(text)), 1.0]} for i, text in enumerate(body["input"])][::-1]
    }
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def lengths(texts):
    return [[float(len(text)), 1.0] for text in texts]


def test_a_function_is_a_model_by_its_name(http):
    model = embedder(http, lengths)
    assert (model.model.name, model.model.dimension) == ("lengths", 2)
    assert model(["a", "bcd"]) == [[1.0, 1.0], [3.0, 1.0]]


def test_models_of_one_name_are_told_apart_by_what_they_say(http):
    other = embedder(http, lambda texts: [[1.0, float(len(text))] for text in texts], "lengths")
    assert embedder(http, lengths).model != other.model
    assert embedder(http, lengths).model == embedder(http, lambda texts: lengths(texts), "lengths").model


@pytest.mark.parametrize(
    "wrong",
    [
        lambda texts: [[1.0]],
        lambda texts: [[1.0], [1.0, 2.0]],
        lambda texts: [[], []],
        lambda texts: [[float("nan")], [1.0]],
        lambda texts: ["a", "b"],
        lambda texts: None,
    ],
)
def test_what_gives_no_vector_per_text_is_refused(http, wrong):
    with pytest.raises(InputError):
        embedder(http, wrong)(["a", "b"])


def test_an_address_is_asked_with_its_model_and_key_and_answers_in_any_order(http, service):
    model = embedder(http, service.url + "/", "small", "KEY", {"KEY": "secret"})
    assert model(["a", "bcd"]) == [[1.0, 1.0], [3.0, 1.0]]
    body = {"model": "small", "input": ["a", "bcd"], "encoding_format": "float"}
    assert service.asked == [("/v1/embeddings", "Bearer secret", body)]
    assert "secret" not in repr(vars(model)) + model.name


def test_an_address_needs_the_name_of_a_model(http):
    with pytest.raises(InputError, match="needs the name of a model"):
        embedder(http, "http://127.0.0.1:9/v1")


def test_an_address_that_answers_something_else_is_no_embedding_model(http, service):
    service.answer = lambda _: {"object": "list"}
    with pytest.raises(ServiceError, match="did not return embeddings"):
        embedder(http, service.url, "small")(["a"])
    service.status = 404
    with pytest.raises(NotFoundError):
        embedder(http, service.url, "small")(["a"])


@pytest.mark.parametrize("model", [None, 7, "", " "])
def test_what_is_no_model_is_refused(http, model):
    with pytest.raises(InputError):
        embedder(http, model)


def test_a_folder_needs_sentence_transformers_and_says_so(http, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="needs sentence-transformers"):
        embedder(http, str(tmp_path))(["a"])


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """A folder with a tiny untrained model as sentence-transformers saves them."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models")
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=list(special.values()), show_progress=False)
    tokenizer.train_from_iterator(["the capital of france is paris"], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)
    wrapped.save_pretrained(folder / "bert")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 64}
    config = BertConfig(vocab_size=len(wrapped), num_hidden_layers=1, num_attention_heads=2, **sizes)
    BertModel(config).save_pretrained(folder / "bert")
    sentence_transformers.SentenceTransformer(str(folder / "bert")).save(str(folder / "tiny"))
    return folder / "tiny"


def test_a_folder_of_sentence_transformers_is_a_model(http, tiny_model):
    model = embedder(http, str(tiny_model))
    assert (model.model.name, model.model.dimension) == ("tiny", 32)
    near, far = model(["the capital of france", "of of of"])
    assert near == pytest.approx(model(["the capital of france"])[0], abs=1e-5)
    assert near != far


def test_a_folder_without_a_model_is_refused(http, tmp_path, tiny_model):
    with pytest.raises(InputError, match="cannot be loaded"):
        embedder(http, str(tmp_path))(["a"])
