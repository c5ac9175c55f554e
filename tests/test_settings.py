"""Where the lab lives and which service it talks to, from the environment and the settings file."""

import dataclasses
from datetime import date
from pathlib import Path

import platformdirs
import pytest

from rolloutlab.errors import InputError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Embedding, ModelSettings, Price, Profile, Served, Settings, read_settings
from rolloutlab.settings.connected import connect_settings


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """The folder of a user who has no settings file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def with_file(tmp_path):
    """Reads settings from a file of this text."""

    def read(text: str, **more: str) -> Settings:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return read_settings({"ROLLOUTLAB_SETTINGS": str(path), **more})

    return read


HOSTED = {"ROLLOUTLAB_URL": "https://train.example", "ROLLOUTLAB_API_KEY": "sekret"}


def environment(**overrides: str) -> dict[str, str]:
    return {"ROLLOUTLAB_HOME": "/labs/mine", **overrides}


def test_an_empty_environment_means_the_users_data_folder_and_the_embedded_practice_policy():
    home = Path(platformdirs.user_data_dir("rolloutlab"))
    assert read_settings({}) == Settings(home=home, service=None, policy="practice", linger=60.0)


def test_every_variable_is_read():
    given = environment(**HOSTED, ROLLOUTLAB_POLICY="/policies/tiny", ROLLOUTLAB_LINGER="1.5")
    service = Address("https://train.example", "https://train.example/v1", "sekret")
    assert read_settings(given) == Settings(Path("/labs/mine"), service, "/policies/tiny", 1.5)


def test_without_an_argument_the_environment_of_the_process_is_read(monkeypatch):
    monkeypatch.setenv("ROLLOUTLAB_HOME", "/labs/mine")
    assert read_settings().home == Path("/labs/mine")


def test_a_tilde_is_the_users_home_and_a_relative_folder_becomes_absolute(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.chdir(tmp_path)
    assert read_settings({"ROLLOUTLAB_HOME": "~/lab"}).home == Path("/home/ada/lab")
    assert read_settings({"ROLLOUTLAB_HOME": "lab"}).home == tmp_path / "lab"


def test_the_files_of_a_lab_are_in_its_folder():
    settings = read_settings(environment())
    assert settings.database == Path("/labs/mine/lab.db")
    assert settings.service_folder == Path("/labs/mine/service")


@pytest.mark.parametrize(
    "url",
    ["https://train.example", "https://train.example/", "https://train.example/v1", "https://train.example/v1/"],
)
def test_the_base_address_excludes_the_version_and_the_inference_address_ends_in_it(url):
    service = read_settings(environment(ROLLOUTLAB_URL=url)).service
    assert service == Address("https://train.example", "https://train.example/v1", None)


def test_a_path_before_the_version_is_kept():
    service = read_settings(environment(ROLLOUTLAB_URL="https://train.example/api/v1")).service
    assert service == Address("https://train.example/api", "https://train.example/api/v1")


def test_inference_may_have_an_address_of_its_own():
    given = environment(**HOSTED, ROLLOUTLAB_INFERENCE_URL="https://infer.example/v1/")
    service = read_settings(given).service
    assert service == Address("https://train.example", "https://infer.example/v1", "sekret")


@pytest.mark.parametrize("bad", ["soon", "1 minute", "nan"])
def test_a_linger_that_is_no_number_of_seconds_is_refused_with_its_value(bad):
    with pytest.raises(InputError, match="ROLLOUTLAB_LINGER") as refused:
        read_settings(environment(ROLLOUTLAB_LINGER=bad))
    assert repr(bad) in refused.value.message
    assert refused.value.hint == "ROLLOUTLAB_LINGER=60"


@pytest.mark.parametrize(
    "name",
    [
        "ROLLOUTLAB_HOME",
        "ROLLOUTLAB_URL",
        "ROLLOUTLAB_INFERENCE_URL",
        "ROLLOUTLAB_API_KEY",
        "ROLLOUTLAB_POLICY",
        "ROLLOUTLAB_LINGER",
        "ROLLOUTLAB_PROJECT",
        "ROLLOUTLAB_PROFILE",
        "ROLLOUTLAB_SETTINGS",
    ],
)
def test_an_empty_variable_is_an_absent_one(name):
    others = {key: value for key, value in environment(**HOSTED).items() if key != name}
    assert read_settings({**others, name: ""}) == read_settings(others)


def test_no_token_is_shown_with_the_settings():
    settings = read_settings(environment(**HOSTED))
    assert settings.service.token == "sekret"
    assert "sekret" not in f"{settings} {settings!r} {settings.service} {settings.service!r}"


@pytest.mark.parametrize("value", [read_settings(environment()), Address("http://a", "http://a/v1")])
def test_settings_cannot_be_changed(value):
    first = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, first, "other")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("train.example", "https://train.example"),
        ("localhost:8000/v1", "http://localhost:8000/v1"),
        ("ftp://train.example", "https://train.example"),
        ("https://", "https://train.example"),
        ("https://train.example:port", "https://train.example"),
        ("https://train.example/v1?key=1", "https://train.example"),
        ("two words", "https://train.example"),
    ],
)
def test_an_address_that_is_none_is_told_with_one_that_would_do(url, hint):
    with pytest.raises(InputError, match="ROLLOUTLAB_URL") as refused:
        read_settings(environment(ROLLOUTLAB_URL=url))
    assert repr(url) in refused.value.message
    assert refused.value.hint == f"ROLLOUTLAB_URL={hint}"


def test_a_password_in_an_address_is_refused_and_not_shown():
    with pytest.raises(InputError, match="must not contain a user name or password") as refused:
        read_settings(environment(ROLLOUTLAB_URL="https://ada:sekret@train.example"))
    assert "sekret" not in f"{refused.value} {refused.value.hint}"


def test_spaces_around_an_address_do_not_matter():
    assert read_settings(environment(ROLLOUTLAB_URL=" https://train.example/v1 ")).service == Address(
        "https://train.example", "https://train.example/v1"
    )


FILE = """
home = "/labs/theirs"
policy = "/policies/tiny"
linger = 5
project = "research/capitals"
profile = "hosted"
embedding = "https://embed.example/v1"
embedding_model = "small"
embedding_key_env = "EMBED_KEY"
search = "http://localhost:8001/letters"
search_key_env = "CHROMA_KEY"
client_metadata_url = "https://lab.example/client.json"

[profiles.hosted]
url = "https://train.example/v1"
inference_url = "https://infer.example"
api_key_env = "TRAIN_KEY"

[profiles.other]
url = "http://localhost:8000"
project = "research/other"

[prices."lab/practice"]
prompt = 0.1
completion = 2
"""


def test_every_setting_of_the_file_is_read(with_file, tmp_path):
    found = with_file(FILE, TRAIN_KEY="sekret")
    assert (found.home, found.policy, found.linger) == (Path("/labs/theirs"), "/policies/tiny", 5.0)
    assert found.service == Address("https://train.example", "https://infer.example/v1", "sekret", "research/capitals")
    assert found.embedding == Embedding("https://embed.example/v1", "small", "EMBED_KEY")
    assert found.search == Served("http://localhost:8001/letters", "CHROMA_KEY")
    assert found.client_metadata_url == "https://lab.example/client.json"
    assert found.prices == {"lab/practice": Price(0.1, 2.0)}
    assert list(found.profiles) == ["hosted", "other"]
    assert set(found.origins.values()) == {str(tmp_path / "mine.toml"), f"profile hosted, {tmp_path / 'mine.toml'}"}


def test_the_file_is_in_the_users_config_folder_unless_the_environment_names_another(tmp_path, monkeypatch):
    path = Path(platformdirs.user_config_dir("rolloutlab")) / "settings.toml"
    path.parent.mkdir(parents=True)
    path.write_text('policy = "/policies/tiny"')
    assert read_settings({}).policy == "/policies/tiny"


def test_the_environment_wins_over_the_file(with_file):
    mine = {"HOME": "/labs/mine", "POLICY": "practice", "LINGER": "7", "PROJECT": "ada/mine", "PROFILE": "other"}
    found = with_file(FILE, **{f"ROLLOUTLAB_{name}": value for name, value in mine.items()})
    assert (found.home, found.policy, found.linger) == (Path("/labs/mine"), "practice", 7.0)
    assert found.service == Address("http://localhost:8000", "http://localhost:8000/v1", None, "ada/mine")
    assert found.origins["home"] == "ROLLOUTLAB_HOME"
    assert with_file(FILE, **HOSTED).service.token == "sekret"
    assert with_file(FILE, ROLLOUTLAB_PROFILE="embedded").service is None


def test_a_profiles_project_wins_over_the_files(with_file):
    assert with_file(FILE.replace('"hosted"\n', '"other"\n', 1)).service.project == "research/other"


def test_a_relative_lab_folder_is_beside_the_file_that_names_it(with_file, tmp_path):
    assert with_file('home = "lab"').home == tmp_path / "lab"


BROKEN = {
    "polcy = 'practice'": (1, "unknown setting 'polcy'", "policy"),
    "\nlinger = 'soon'": (2, "linger: must be a number of seconds ≥ 0, not 'soon'", "linger = 60"),
    "linger = -1": (1, "linger: must be a number of seconds ≥ 0, not -1", "linger = 60"),
    "linger = true": (1, "linger: must be a number of seconds ≥ 0, not True", "linger = 60"),
    "home = 3": (1, "home: must be a non-empty text, not 3", 'home = "..."'),
    "project = 'mine'": (1, "project: 'mine' is not a project name", 'project = "TEAM/PROJECT"'),
    "lora_rank = 0": (1, "lora_rank: must be greater than 0, not 0", "lora_rank = 16"),
    "dtype = 'int8'": (1, "dtype: must be 'float32' or 'bfloat16', not 'int8'", 'dtype = "bfloat16"'),
    "template_date = 2025": (
        1,
        "template_date: '2025' cannot be used: Invalid isoformat string: '2025'",
        "template_date = 2025-01-31",
    ),
    "device = 3": (1, "device: must be 'cuda', 'mps' or 'cpu', not 3", 'device = "cpu"'),
    "lora_targets = []": (1, "lora_targets: must be a non-empty text, not []", 'lora_targets = "..."'),
    "[profiles.a]\nurl = 'http://a'\ndevice = 'x'": (3, "unknown setting 'device'", "one of url"),
    "policy = 'practice'\nlinger = ": (2, "Invalid value", 'for example: policy = "practice"'),
    "profile = 'hostd'\n[profiles.hosted]\nurl = 'http://a'": (1, "there is no profile 'hostd'", "hosted"),
    "[profiles.a]\nurl = 'http://a'\n\n[profiles.b]\nurl = 'train.example'": (
        5,
        "url: 'train.example' lacks http:// or https://",
        'url = "https://train.example"',
    ),
    "[profiles.a]\nproject = 'a/b'": (1, "profiles.a has no url", "url = ..."),
    "[profiles.a]\nurl = 'http://a'\nadress = 'x'": (3, "unknown setting 'adress'", "one of url"),
    "profiles = 3": (1, "profiles is 3, not a table", "[profiles.NAME]"),
    "[profiles]\nhosted = 'http://a'": (2, "profiles.hosted is 'http://a', not a table", "[profiles.NAME]"),
    "[profiles.embedded]\nurl = 'http://a'": (1, "embedded is the service that comes with rolloutlab", "another name"),
    "[prices.'lab/practice']\nprompt = 1.0": (1, "prices.lab/practice has no completion", "completion = ..."),
    "[prices.'lab/practice']\nprompt = 1.0\ncompletion = nan": (
        3,
        "completion: must be a number of dollars from 0 to 100,000, not nan",
        "completion = 0.5",
    ),
    "[prices.'lab/practice']\nprompt = 1.0\ncompletion = 2.0\ntrain = inf": (
        4,
        "train: must be a number of dollars from 0 to 100,000, not inf",
        "train = 0.5",
    ),
    "[prices.'lab/practice']\nprompt = 1e300\ncompletion = 1": (
        2,
        "prompt: must be a number of dollars from 0 to 100,000, not 1e+300",
        "prompt = 0.5",
    ),
    "[profiles.a]\nurl = 'http://a'\nbudget = 1e9": (
        3,
        "budget: must be a number of dollars from 0 to 100,000, not 1000000000.0",
        "budget = 0.5",
    ),
    "[profiles.a]\nurl = 'http://a'\nbudget = -1": (
        3,
        "budget: must be a number of dollars from 0 to 100,000, not -1",
        "budget = 0.5",
    ),
    "[profiles.a]\nurl = 'http://a'\n[profiles.a.prices.'x/y']\nprompt = 1.0\ncompletion = nan": (
        5,
        "completion: must be a number of dollars from 0 to 100,000, not nan",
        "completion = 0.5",
    ),
    "[profiles.a]\nurl = 'http://a'\n[profiles.a.prices.'x/y']\nprompt = 1.0\ncompletion = 1.0\ntrian = 1": (
        6,
        "unknown setting 'trian'",
        "train",
    ),
    "[profiles.a]\nurl = 'http://a'\n[profiles.a.prices.'x/y']\nprompt = 1.0": (
        3,
        "profiles.a.prices.x/y has no completion",
        "completion = ...",
    ),
    "[prices.gpt-4.1]\nprompt = 1\ncompletion = 2": (
        1,
        "prices.gpt-4 has no prompt",
        '[prices."gpt-4.1"], with quotes',
    ),
    "[profiles.a]\nurl = 'http://a'\n[profiles.a.prices.Qwen2.5-7B]\nprompt = 1\ncompletion = 2": (
        3,
        "profiles.a.prices.Qwen2 has no prompt",
        '[profiles.a.prices."Qwen2.5-7B"], with quotes',
    ),
    "[prices.m]\ninput = 0.5\noutput = 2": (1, "prices.m has no prompt, but input", "prompt = 0.5"),
    "[prices.m]\nprompt = 0.5\noutput = 2": (1, "prices.m has no completion, but output", "completion = 2"),
    "budget = 20": (1, "budget is a setting of a profile", "[profiles.NAME] budget"),
    "[profiles.w]\nkind = 'WandB'": (
        2,
        "kind: must be 'rolloutlab', 'openai' or 'wandb', not 'WandB'",
        'kind = "wandb"',
    ),
    **{
        f"[profiles.a]\nurl = 'https://a.example'\nkind = '{kind}'": (
            3,
            f"kind: must be 'rolloutlab', 'openai' or 'wandb', not '{kind}'",
            'kind = "openai"',
        )
        for kind in ("together", "vllm", "openai-compatible")
    },
    "[profiles.a]\nkind = 'tinker'": (
        2,
        "kind: must be 'rolloutlab', 'openai' or 'wandb', not 'tinker'",
        'engine = "tinker", without a profile',
    ),
    "engine_url = 'ray://10.0.0.1:10001'": (
        1,
        "engine_url: the engine joins a cluster at HOST:PORT of its head, without ray://",
        'engine_url = "10.0.0.1:6379"',
    ),
    **{
        f"engine_url = '{place}'": (
            1,
            "engine_url: this is neither an http(s) URL nor HOST:PORT",
            'engine_url = "gpu1.example:6379"',
        )
        for place in ("h:99999", "h:0", "10.0.0.1", "auto", "a:b", "a b:1")
    },
    "engine_url = 'http://h:99999'": (1, "engine_url: 'http://h:99999' is not a service URL", "engine_url = "),
}


def test_a_profile_has_prices_and_a_budget_which_its_address_keeps(with_file):
    text = """
[profiles.a]
url = "https://paid.example"
budget = 20
[profiles.a.prices."x/y"]
prompt = 1
completion = 2.5
train = 0
"""
    settings = with_file(f'profile = "a"\n{text}')
    assert settings.service.prices == {"x/y": Price(1.0, 2.5, 0.0)}
    assert settings.service.budget == 20.0
    changed = connect_settings(settings, settings, None, {"project": "team/other"})
    assert (changed.service.budget, changed.service.prices) == (20.0, settings.service.prices)
    assert connect_settings(settings, settings, "https://paid.example", {}).service.budget is None


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_wrong_in_the_file_is_told_with_its_line(with_file, tmp_path, text):
    line, said, hint = BROKEN[text]
    with pytest.raises(InputError) as refused:
        with_file(text)
    assert refused.value.message == f"{tmp_path / 'mine.toml'}, line {line}: {said}"
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "line", ["api_key = 'sk-sekret'", "token = 'sekret'", "key = 'sekret'", "api_key_env = 'sk-sekret'"]
)
def test_a_key_has_no_place_in_the_file_and_is_not_shown(with_file, line):
    with pytest.raises(InputError, match=r"line 3: .*environment variable that holds it") as refused:
        with_file(f"[profiles.hosted]\nurl = 'https://train.example'\n{line}")
    assert refused.value.hint == 'api_key_env = "ROLLOUTLAB_API_KEY"'
    assert "sekret" not in refused.value.message


def test_a_named_file_that_is_not_there_is_told_and_an_absent_one_of_the_user_is_none(tmp_path):
    with pytest.raises(InputError, match="there is no settings file"):
        read_settings({"ROLLOUTLAB_SETTINGS": str(tmp_path / "absent.toml")})
    assert read_settings({}).prices == {}


def test_a_file_that_is_no_text_is_told(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        read_settings({"ROLLOUTLAB_SETTINGS": str(tmp_path / "mine.toml")})


FILE_OF_AN_EARLIER_RELEASE = """\
# settings of the lab at the institute
home = 'lab'   # beside this file
policy = "  Qwen/Qwen2.5-0.5B-Instruct "
linger = "90.5"
project = "research/capitals"
profile = "hosted"
embedding = "BAAI/bge-small-en"
embedding_model = "small"
embedding_key_env = "EMBED_KEY"
search = "http://localhost:8001/letters"
search_key_env = "CHROMA_KEY"
client_metadata_url = "https://lab.example/client.json"
profiles.hosted.url = "https://train.example/v1/"
profiles.hosted.inference_url = "https://infer.example/"
profiles.hosted.api_key_env = "TRAIN_KEY"

[profiles."two words"]
url = " http://localhost:8000/api/v1 "
project = "research/other"

[prices]
"lab/practice" = {prompt = 0, completion = 2}
other = {prompt = 0.25, completion = 1e1}
"""


def test_a_settings_file_of_an_earlier_release_means_what_it_meant(with_file, tmp_path):
    settings = with_file(FILE_OF_AN_EARLIER_RELEASE, TRAIN_KEY="sekret")
    path = tmp_path / "mine.toml"
    assert settings == Settings(
        home=tmp_path / "lab",
        service=Address("https://train.example", "https://infer.example/v1", "sekret", "research/capitals"),
        policy="Qwen/Qwen2.5-0.5B-Instruct",
        linger=90.5,
        project="research/capitals",
        embedding=Embedding("BAAI/bge-small-en", "small", "EMBED_KEY"),
        search=Served("http://localhost:8001/letters", "CHROMA_KEY"),
        client_metadata_url="https://lab.example/client.json",
        prices={"lab/practice": Price(0, 2), "other": Price(0.25, 10)},
        profiles={
            "hosted": Profile("https://train.example", "https://infer.example/v1", "TRAIN_KEY"),
            "two words": Profile("http://localhost:8000/api", project="research/other"),
        },
    )
    names = "home policy linger project embedding embedding_model embedding_key_env search search_key_env"
    origins = dict.fromkeys([*names.split(), "client_metadata_url"], str(path))
    assert settings.origins == {**origins, "service": f"profile hosted, {path}"}
    assert settings.file == path
    assert settings.service.key_env == "TRAIN_KEY"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("profiles.a.url = 'http://a'\nprofiles.a.adress = 'x'", 2),
        ('policy = \'practice\'\n\nproject = """\nmine\n"""\nlinger = 1', 3),
        ("linger = -1\npolcy = 'practice'", 1),
    ],
)
def test_a_line_is_that_of_the_first_wrong_key_however_it_is_written(with_file, text, line):
    with pytest.raises(InputError, match=f", line {line}: "):
        with_file(text)


def test_a_url_that_is_read_once_is_not_shortened_again(with_file):
    settings = with_file("", ROLLOUTLAB_URL="https://e.example/v1/v1", ROLLOUTLAB_PROJECT="team/rivers")
    assert settings.service is not None
    assert settings.service.base_url == "https://e.example/v1"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ROLLOUTLAB_CLIENT_METADATA_URL", "https://[::1"),
        ("ROLLOUTLAB_HOME", "~no-such-user/lab"),
        ("ROLLOUTLAB_POLICY", "~no-such-user/policy"),
        ("ROLLOUTLAB_HOME", "lab\0"),
        ("ROLLOUTLAB_LINGER", "9" * 400),
    ],
)
def test_a_value_that_cannot_be_used_is_an_error_that_names_its_variable(variable, value):
    with pytest.raises(InputError, match=variable):
        read_settings({variable: value})


@pytest.mark.parametrize("text", ["linger = " + "9" * 400, "x = " + "[" * 3000 + "]" * 3000, 'home = "~no-such-user"'])
def test_an_odd_file_is_an_error_that_names_it(with_file, text):
    with pytest.raises(InputError, match=r"mine\.toml"):
        with_file(text)


def test_a_file_may_begin_with_a_byte_order_mark(with_file):
    assert with_file("\ufeffpolicy = 'tiny'").policy == "tiny"


MODEL = ModelSettings(
    engine="ray",
    engine_url="10.0.0.1:6379",
    sampler_url="http://127.0.0.1:8000",
    lora_rank=4,
    lora_alpha=9,
    lora_targets="q_proj",
    dtype="bfloat16",
    device="cpu",
    gradient_checkpointing=True,
    template_date=date(2025, 1, 31),
)


def test_how_a_policy_is_loaded_is_read_from_the_file_and_from_variables(with_file):
    text = """
        engine = "ray"
        engine_url = "10.0.0.1:6379"
        sampler_url = "http://127.0.0.1:8000/v1"
        lora_rank = 4
        lora_alpha = 9
        lora_targets = "q_proj"
        dtype = "bfloat16"
        device = "cpu"
        gradient_checkpointing = true
        template_date = 2025-01-31
    """
    assert with_file(text).model == MODEL
    assert with_file(text.replace("2025-01-31", '"2025-01-31"')).model == MODEL
    variables = {f"ROLLOUTLAB_{name.upper()}": str(value) for name, value in MODEL.model_dump().items()}
    settings = read_settings(variables)
    assert settings.model == MODEL
    assert settings.origins["lora_rank"] == "ROLLOUTLAB_LORA_RANK"
    assert with_file(text, ROLLOUTLAB_LORA_RANK="8").model == MODEL.model_copy(update={"lora_rank": 8})
    assert read_settings({}).model == ModelSettings()
    assert "--template-date=2025-01-31" in MODEL.arguments


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [("LORA_RANK", "many", "16"), ("LORA_ALPHA", "-1", "32"), ("DEVICE", "gpu", "cpu"), ("DTYPE", "fp8", "bfloat16")],
)
def test_a_wrong_variable_of_how_a_policy_is_loaded_is_an_error_with_an_example(name, value, hint):
    with pytest.raises(InputError, match=rf"ROLLOUTLAB_{name}: must .*, not '{value}'") as refused:
        read_settings({f"ROLLOUTLAB_{name}": value})
    assert refused.value.hint == f"ROLLOUTLAB_{name}={hint}"


@pytest.mark.parametrize("value", ["today", "2025", "2025-02-30", "1738281600", "2025-01-31 08:00"])
def test_a_template_date_that_is_no_day_is_an_error_with_an_example(value):
    with pytest.raises(InputError, match=f"ROLLOUTLAB_TEMPLATE_DATE: '{value}' cannot be used") as refused:
        read_settings({"ROLLOUTLAB_TEMPLATE_DATE": value})
    assert refused.value.hint == "ROLLOUTLAB_TEMPLATE_DATE=2025-01-31"


def test_a_relative_lab_folder_is_the_same_after_a_change_of_folder(monkeypatch, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path / "begun")
    monkeypatch.setenv("ROLLOUTLAB_HOME", "mine")
    given, read = Session(Settings(home=Path("given"))), Session()
    assert read.settings.home == tmp_path / "begun" / "mine"
    monkeypatch.chdir(tmp_path / "later")
    for session in (given, read, Session()):
        assert session.collections().empty
        session.close()
    assert sorted(path.name for path in (tmp_path / "begun").iterdir()) == ["given", "mine"]
    assert list((tmp_path / "later").iterdir()) == []
