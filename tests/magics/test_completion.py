"""What Tab offers, through the shell's own completer; nothing is started or asked for it."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from IPython.core import completer

from rolloutlab.magics import register
from rolloutlab.magics.completion import VALUES, Matcher, _as_hook
from rolloutlab.objective.option_docs import OPTIONS
from rolloutlab.sampling.mcp.tools import ContextTool, ContextTools
from rolloutlab.session import Session
from rolloutlab.settings import Profile, Settings
from rolloutlab.store.models import NewGroup, SubmittedJob

pytestmark = pytest.mark.skipif(
    not hasattr(completer, "context_matcher"), reason="IPython before 8.6 completes by another way"
)


@pytest.fixture
def shell(bare, tmp_path):
    """A notebook with a lab and settings, and no service: whoever asks for one fails."""
    profiles = {"hosted": Profile("http://nowhere.invalid", project="research/capitals")}
    session = Session(Settings(home=tmp_path / "lab", profiles=profiles))
    session.embedded.address = session._connector.http.run = None
    shell = bare
    register(shell, session)
    find = ContextTool("find", "", {}, call=None)
    session.tools.servers["docs"] = ContextTools("docs", "https://tools.example/mcp", [find])
    session._connector.oauth.at("https://kept.example/mcp")
    rows = pd.DataFrame({"a": [1]})
    shell.user_ns.update(questions=rows, rows=[1], _hidden=[2], count=3, search=lambda text: text, session=session)
    yield shell
    session.close()


@pytest.fixture
def lab(shell):
    """Two generations of `capitals`, the newest with one group, one of `rivers`, deleted, and two jobs."""
    store = shell.user_ns["session"].store
    for groups in (2, 1):
        store.add_groups(store.open_collection("capitals"), [NewGroup((), {})] * groups)
    store.open_collection("rivers")
    store.lifecycle.delete("rivers")
    store.jobs.add(SubmittedJob("0123456789ab", "http://x", "lab/sorter", ("capitals",), {}, "2026-01-01"))
    store.jobs.add(SubmittedJob("abcdef012345", "http://x", "lab/sorter", ("capitals",), {}, "2026-01-02"))
    store.jobs.set_status("abcdef012345", "succeeded", 12)
    shell.user_ns["session"].models.seen.update({"lab/practice@0", "lab/practice@3"})
    return store


@pytest.fixture
def tab(shell):
    """The lines that a cell could end with after Tab."""

    def press(cell: str) -> list[str]:
        with completer.provisionalcompleter():
            result = list(shell.Completer.completions(cell, len(cell)))
        return sorted((cell[: c.start] + c.text).rpartition("\n")[2] for c in result)

    return press


def test_what_comparisons_sampled_is_offered_once_compare_is_typed(tab, lab):
    lab.open_collection("compare.capitals.lab.practice.step0")
    assert tab("%%reward c") == ["%%reward capitals", "%%reward capitals:1"]
    assert tab("%%reward compare") == ["%%reward compare.capitals.lab.practice.step0"]


OFFERED = {
    "%%reward cap": ["%%reward capitals", "%%reward capitals:1"],
    "%%reward capitals:": ["%%reward capitals:1"],
    "%%train capitals cap": ["%%train capitals capitals", "%%train capitals capitals:1"],
    "%%chat c": ["%%chat capitals", "%%chat capitals:1"],
    "%group ": ["%group capitals/0", "%group capitals:1/0", "%group capitals:1/1"],
    "%group capitals:1/": ["%group capitals:1/0", "%group capitals:1/1"],
    "found = %group capitals/": ["found = %group capitals/0"],
    "%model ": ["%model lab/practice", "%model lab/sorter"],
    "%model lab/new --from lab/s": ["%model lab/new --from lab/sorter", "%model lab/new --from lab/sorter@12"],
    "%models --delete lab/sorter": ["%models --delete lab/sorter", "%models --delete lab/sorter@12"],
    "%models --p": ["%models --purge"],
    "%%chat -m lab/s": ["%%chat -m lab/sorter", "%%chat -m lab/sorter@12"],
    "%%chat capitals --model lab/practice@": [
        "%%chat capitals --model lab/practice@0",
        "%%chat capitals --model lab/practice@3",
    ],
    "%%reward capitals --judge lab/s": [
        "%%reward capitals --judge lab/sorter",
        "%%reward capitals --judge lab/sorter@12",
    ],
    "%compare capitals lab/s": ["%compare capitals lab/sorter@12"],
    "%compare capitals lab/sorter@12 lab/p": [
        f"%compare capitals lab/sorter@12 lab/practice@{step}" for step in (0, 3)
    ],
    "%compare capitals --before ": ["%compare capitals --before 0", "%compare capitals --before 3"],
    "%compare capitals --after ": [f"%compare capitals --after {step}" for step in ("0", "3", "latest")],
    "%collections --delete ": ["%collections --delete capitals", "%collections --delete capitals:1"],
    "%collections --restore ": ["%collections --restore rivers", "%collections --restore rivers:1"],
    "%collections --rename c": ["%collections --rename capitals", "%collections --rename capitals:1"],
    "%job 01": ["%job 01234567"],
    "%%chat --over ": ["%%chat --over questions", "%%chat --over rows"],
    "%%chat --over=q": ["%%chat --over=questions"],
    "%%chat capitals --te": ["%%chat capitals --temperature"],
    "%%chat capitals -n 8 --te": ["%%chat capitals -n 8 --temperature"],
    "%service st": ["%service status", "%service stop"],
    "%connect ": ["%connect embedded", "%connect hosted", "%connect tinker:", "%connect wandb:"],
    "%login ": ["%login embedded", "%login https://kept.example/mcp", "%login https://tools.example/mcp"],
    "%logout https://k": ["%logout https://kept.example/mcp"],
    "%tools ": ["%tools add", "%tools call", "%tools docs"],
    "%tools add e": ["%tools add embedded"],
    "%tools add https://t": ["%tools add https://tools.example/mcp"],
    "%tools call ": ["%tools call docs.find"],
    "%tools -": ["%tools --output", "%tools -o"],
    "%%chat --tools docs": ["%%chat --tools docs", "%%chat --tools docs.find"],
    "%connect --project ": ["%connect --project research/capitals"],
    "%connect --key-env RO": ["%connect --key-env ROLLOUTLAB_API_KEY"],
    "%%train capitals\nlearn": ["learning_rate: "],
    "%%train capitals\nlearning_rate: 2e-3\nmask_p": ["mask_prob_ratio: "],
    "%%train capitals\nal": ["algorithm: "],
    "%%train capitals\nalgorithm: d": ["algorithm: dapo", "algorithm: dr_grpo"],
    "%%train capitals\nloss_aggregation: t": ["loss_aggregation: token_mean"],
    "%%train capitals\nppo: t": ["ppo: true"],
    "%%train capitals\nimportance_sampling_level: ": [
        f"importance_sampling_level: {level}" for level in ("average", "geometric_average", "sequence", "token")
    ],
}


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("cell", OFFERED)
def test_what_could_come_next_is_offered_and_nothing_else(tab, monkeypatch, cell):
    monkeypatch.setenv("ROLLOUTLAB_API_KEY", "sekret")
    assert tab(cell) == OFFERED[cell]


def test_a_model_that_was_made_from_a_checkpoint_has_no_checkpoint_0_to_offer(shell, tab, lab):
    models = shell.user_ns["session"]._models
    models._chosen = "lab/second"
    assert tab("%compare capitals --before ") == ["%compare capitals --before 0"]  # nothing is known of it
    models.seen.add("lab/second@2")
    assert tab("%compare capitals --before ") == ["%compare capitals --before 2"]


def test_registering_loads_no_magic_that_waits_for_its_first_use(bare):
    def waiting():
        return {name for name, each in bare.magics_manager.magics["line"].items() if type(each).__name__ == "LazyMagic"}

    before = waiting()
    register(bare)
    assert waiting() == before


def test_every_magic_offers_its_options_but_those_that_were_given(shell, tab):
    assert "%%chat capitals --over" in tab("%%chat capitals ")
    assert "%%chat capitals --over rows --over" not in tab("%%chat capitals --over rows --")
    for name, magic in ours(shell):
        options = {option for option in magic.parser._option_string_actions if option.startswith("--")} - {"--help"}
        assert set(tab(f"{name} --")) >= {f"{name} {option}" for option in options}


def test_every_option_of_a_job_is_offered_in_its_cell(tab):
    assert tab("%%train capitals\n") == sorted(f"{name}: " for name in ["algorithm", *OPTIONS])


def test_functions_are_offered_as_tools(shell):
    assert "search" in VALUES["tools"](shell.magics_manager.registry["ChatMagics"])


def test_the_lab_is_not_made_by_looking(tab, shell):
    assert not [line for line in tab("%%reward cap") if "capital" in line]
    assert not shell.user_ns["session"].settings.home.exists()


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("cell", ["prin", "%%chat capitals\nuser: cap", "capitals.tr", "%timeit cap", "%%bash cap"])
def test_other_cells_are_left_alone(tab, cell):
    assert not [line for line in tab(cell) if "capitals:1" in line or "learning_rate" in line]


def test_settings_that_cannot_be_read_offer_nothing(tmp_path, monkeypatch, shell, tab):
    (tmp_path / "broken.toml").write_text("[")
    monkeypatch.setenv("ROLLOUTLAB_SETTINGS", str(tmp_path / "broken.toml"))
    shell.user_ns["session"]._connector.__dict__.pop("settings")
    assert "%connect embedded" not in tab("%connect ")
    assert "%%chat x --over" in tab("%%chat x ")


def test_loading_again_keeps_the_session_and_doubles_nothing(shell, tab, lab):
    session, cleanups = shell.user_ns["session"], len(shell.input_transformers_cleanup)
    register(shell)
    assert len(shell.Completer.custom_matchers) == 1
    assert len(shell.input_transformers_cleanup) == cleanups
    assert shell.find_cell_magic("chat").__self__.session is session
    assert tab("%job 01") == ["%job 01234567"]


def test_reloading_the_extension_keeps_the_session(shell):
    session = shell.user_ns["session"]
    for line in ("load_ext", "reload_ext"):
        shell.run_line_magic(line, "rolloutlab")
        assert shell.find_cell_magic("chat").__self__.session is session
    assert len(shell.Completer.custom_matchers) == 1


def test_unloading_takes_everything_away_but_the_session(shell, lab):
    for line in ("load_ext", "unload_ext"):
        shell.run_line_magic(line, "rolloutlab")
    assert not list(ours(shell))
    assert shell.Completer.custom_matchers == []
    assert not [t for t in shell.input_transformers_cleanup if t.__module__.startswith("rolloutlab")]
    assert list(lab.sizes()) == ["capitals", "capitals:1"]


def ours(shell):
    """The magics of rolloutlab, as they are typed."""
    for kind, prefix in (("line", "%"), ("cell", "%%")):
        for name, magic in shell.magics_manager.magics[kind].items():
            if hasattr(getattr(magic, "__self__", None), "session"):
                yield f"{prefix}{name}", magic


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("line", "symbol", "offered"),
    [
        ("%%reward cap", "cap", ["capitals", "capitals:1"]),
        ("%%reward capitals:", "", ["1"]),
        ("%group capitals:1/", "1/", ["1/0", "1/1"]),
        ("%%chat --over=q", "q", ["questions"]),
        ("%%chat x --te", "--te", ["--temperature"]),
    ],
)
def test_before_ipython_8_6_what_follows_the_symbol_is_given(shell, line, symbol, offered):
    hook = _as_hook(Matcher(shell))
    assert hook(shell, SimpleNamespace(text_until_cursor=line, symbol=symbol)) == offered


def test_the_model_that_a_policy_has_by_default_is_offered(shell, tab):
    session = shell.user_ns["session"]
    session._connector.settings = replace(session.settings, policy="smollm2")
    assert tab("%model ") == ["%model lab/smollm2"]
