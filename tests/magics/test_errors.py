"""Bad input: what happened, and what to type. Every error stops its cell and changes nothing."""

from rolloutlab.api.http.client import HttpClient
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

CHAT = "%%chat capitals -n 2 --over countries --max-tokens 4 --seed 1\nuser: Capital of {{country}}?"

SOME = "capitals/0/0, capitals/0/1, capitals/1/0 and 1 more"

SNAPSHOTS = {
    "%%chat unheard_of": """
InputError: the cell is empty: there is nothing to ask
  -> user: What is the capital of France?
""",
    "%%chat capitals\nrobot: hello": """
InputError: unknown role 'robot' in line 1
  -> one of system:, developer:, user:, assistant: - or a space before it
""",
    "%%chat capitals\nsystem: hello\nusr: hello": """
InputError: unknown role 'usr' in line 2
  -> user: ...
""",
    "%%chat capitals\nuser:": """
InputError: the user message is empty
  -> user: some text
""",
    "%%chat capitals --tempreature 1\nhello": """
InputError: unrecognized arguments: --tempreature 1
  -> --temperature
""",
    "%%chat capitals -n many\nhello": """
InputError: -n: invalid int value: 'many'
  -> %%chat? shows the options
""",
    "%%chat capitals -n 0\nhello": """
InputError: n: 0 is below 1
  -> %%chat? shows the options
""",
    "%%chat capitals --temperature 3\nhello": """
InputError: temperature: 3.0 is outside 0 to 2
  -> %%chat? shows the options
""",
    "%%chat capitals --sead 1 -n 2\nhello": """
InputError: unrecognized arguments: --sead 1
  -> --seed
""",
    "%%chat capitals --colour\nhello": """
InputError: unrecognized arguments: --colour
  -> %%chat? shows the options
""",
    "%%chat capitals --resume -n 9": """
InputError: --resume keeps the settings of the collection and cannot take -n
  -> %%chat capitals --resume, without -n
""",
    "%%chat capitals --resume\nhello": """
InputError: --resume keeps the settings of the collection and cannot take a text
  -> %%chat capitals --resume, without a text
""",
    "%%chat capitols --resume": """
NotFoundError: there is no collection 'capitols'
  -> capitals
""",
    "%%chat capitals --continue -n 2\nhello": """
InputError: --continue keeps the settings of the collection and cannot take -n
  -> %%chat capitals --continue, without -n
""",
    "%%chat capitals --concurrency 0\nhello": """
InputError: concurrency must be an integer ≥ 1, not 0
  -> --concurrency 64
""",
    "%%chat capitals --tools nothing\nhello": """
NotFoundError: there is no function and no context server 'nothing'
  -> def nothing(query: str): ..., or %tools add https://tools.example/mcp as nothing
""",
    "%%chat capitals --tools countries\nhello": """
InputError: a list is not a function with a name
  -> --tools FUNCTION
""",
    "%%chat a/b\nhello": """
InputError: 'a/b' is not a valid collection name
  -> letters, digits, _ - and .
""",
    "%%chat capitals\nWhat of {{nothing}}?": """
InputError: {{nothing}} is neither a column nor a variable
  -> nothing = ... in a cell before this one
""",
    "%%chat capitals --over countries\nWhat of {{city}}?": """
InputError: {{city}} is neither a column nor a variable
  -> columns: country, capital
""",
    "%%chat capitals --over nowhere\nhello": """
InputError: there is no variable 'nowhere'
  -> nowhere = ... in a cell before this one
""",
    "%%chat capitals -m lab/nobody\nhello": """
NotFoundError: there is no model 'lab/nobody'; there are tiny, lab/practice
  -> %model lab/nobody registers it
""",
    "%model nobody": """
InputError: 'nobody' is not a model name
  -> project/name, such as lab/practice
""",
    "%model some/hub-name": """
InputError: there is no model 'some/hub-name' here; a new model needs a base that is served: tiny
  -> %model some/hub-name --base tiny, or ROLLOUTLAB_POLICY=some/hub-name to serve what the hub has of that name
""",
    "%%reward capitals": """
InputError: the cell is empty: there is no reward function
  -> return float(len(answer) > 0)
""",
    "%%reward capitols\nreturn 1": """
NotFoundError: there is no collection 'capitols'
  -> capitals
""",
    "%%reward capitals\nreturn (1": """
InputError: the reward function is not Python: '(' was never closed (line 1)
  -> %%reward? shows an example
""",
    "%%reward capitals\nlen(answer)": """
InputError: the reward function returns nothing
  -> return float(...) in the last line
""",
    "%%reward capitals\nreturn float('nan')": """
RewardError: the reward of capitals/0/0 is nan, which is no finite number
  -> return a number
""",
    "%%reward capitals\nreturn {'style': None}": """
RewardError: the reward of capitals/0/0 (style) is None, which is no finite number
  -> return a number
""",
    "%%reward capitals\nreturn {}": """
RewardError: the reward of capitals/0/0 has no components
  -> return 0.0, or a component
""",
    "%%reward capitals\nreturn {'answer': 1.0}": """
RewardError: a component cannot be called 'answer', as a column is
  -> right_answer: ...
""",
    "%%reward capitals\nimport sys; return sys.exit(3)": """
RewardError: the reward function failed on capitals/0/0: SystemExit: 3 (line 1: import sys; return sys.exit(3))
  -> %group capitals/0 shows it; no reward was changed
""",
    "%%chat capitals -o 3bad\nhello": """
InputError: '3bad' is not a variable name
  -> -o NAME
""",
    "%%reward capitals -o class\nreturn 1": """
InputError: 'class' is not a variable name
  -> -o NAME
""",
    "%%train capitals capitals": """
InputError: a collection is given twice
  -> capitals
""",
    "%%reward capitals\nx = 1\nreturn row['town']": """
RewardError: the reward function failed on capitals/0/0: KeyError: 'town' (line 2: return row['town'])
  -> %group capitals/0 shows it; no reward was changed
""",
    "%%train capitals\nlearning_rat: 1": """
InputError: unknown option 'learning_rat'
  -> learning_rate: 2e-3
""",
    "%%train capitals\nlearning_rate 1": """
InputError: line 1 is not an option: 'learning_rate 1'
  -> learning_rate: 2e-3
""",
    "%%train capitals\nadvantage_balance: 2": """
InputError: advantage_balance: 2 is outside -1 to 1
  -> advantage_balance: 0.5
""",
    "%%train capitals\nppo: perhaps": """
InputError: ppo: 'perhaps' is neither true nor false
  -> ppo: true
""",
    "%%train capitals": """
NothingTrainsError: nothing in capitals would train: 4 left out: no reward yet ({some})
  -> %%reward capitals
""",
    "%%train nothing": """
NotFoundError: there is no collection 'nothing'
  -> %collections lists them
""",
    "%%train 'rep*'": """
NotFoundError: no collection's name fits 'rep*'
  -> %collections lists them
""",
    "%%train 'capitol*'": """
NotFoundError: no collection's name fits 'capitol*'
  -> capitals
""",
    "%%train capitals --dry-run\nepsilon: -1\nppo: 1": """
InputError: epsilon: -1 is below 0; ppo: 1 is neither true nor false
  -> epsilon: 0.2; ppo: true
""",
    "%job": """
NotFoundError: this lab has not submitted a job
  -> %%train NAME
""",
    "%group capitals/": """
InputError: 'capitals/' is not a group name
  -> %group capitals/0
""",
    "%group capitals/7": """
NotFoundError: there is no group 'capitals/7'
  -> %group capitals/0
""",
    "%job 123": """
NotFoundError: no job of this lab begins with '123'
  -> %jobs lists them
""",
}


def test_bad_input_stops_the_cell_with_two_lines_and_changes_nothing(notebook, session):
    collection = notebook.run(CHAT)
    before = collection.to_frame()
    for cell, lines in SNAPSHOTS.items():
        assert notebook.error(cell) == lines.strip().replace("{some}", SOME), cell
        assert len(session.collections()) == 1, cell
        assert collection.to_frame().equals(before), cell
        assert session.jobs().empty, cell


def test_a_misspelt_choice_is_told_with_the_closest(notebook):
    message, hint = notebook.error("%service stauts").splitlines()
    assert message.startswith("InputError: action: invalid choice: 'stauts'")
    assert hint == "  -> status"


MISUSES = {
    "lab.chat('x', 5)": "a prompt is a text or a list of messages",
    "lab.chat('x', {'role': 'user'})": "a prompt is a text or a list of messages",
    "lab.chat(5, 'hello')": "5 is not a valid collection name",
    "lab.reward('capitals', 'right')": "'right' is not a reward function",
    "lab.reward(None, len)": "a collection name must be a string, not NoneType",
    "lab.train(3)": "a collection name must be a string, not int",
    "lab.train(['capitals', None])": "a collection name must be a string, not NoneType",
    "lab.train('capitals', 5)": "options are a dict, not a int",
    "lab.collection(0)": "a collection name must be a string, not int",
    "lab.collection(None)": "a collection name must be a string, not NoneType",
    "lab.model(7)": "7 is not a model name",
    "lab.service('restart')": "the service cannot restart",
    "lab.connect(5)": "there is no profile 5",
}


def test_a_call_with_a_value_of_another_kind_says_what_it_takes(notebook, session):
    notebook.shell.user_ns["lab"] = session
    notebook.run(CHAT)
    for call, wanted in MISUSES.items():
        message, hint = notebook.error(call).splitlines()
        assert message.partition(": ")[2] == wanted, call
        assert hint.startswith("  -> "), call


def test_equal_rewards_are_named_as_the_reason_that_nothing_trains(notebook, session):
    notebook.run(CHAT)
    notebook.run("%%reward capitals\nreturn 1")
    assert notebook.error("%%train capitals") == (
        "NothingTrainsError: nothing in capitals would train: 4 left out: all rewards of the group are equal, "
        f"so nothing in it is better or worse; 3 of these cut off by max_tokens ({SOME})\n"
        "  -> %%reward capitals with a finer score, or sample capitals with a larger --max-tokens"
    )
    assert session.jobs().empty


def test_an_unreachable_service_is_named_with_what_to_check(notebook, session):
    session.settings = Settings(session.settings.home, Address("http://127.0.0.1:9", "http://127.0.0.1:9/v1"))
    session._connector.http = HttpClient(backoff=0)
    assert notebook.error(CHAT) == (
        "UnreachableError: nothing answers at http://127.0.0.1:9: the connection was refused\n"
        "  -> %service log, where it is the embedded one; %connect"
    )
    session._connector.http.close()
    assert session.collections().empty


def test_a_wrong_token_is_named_with_where_to_put_the_right_one(notebook, session, service):
    wrong = Address(service.address.base_url, service.address.inference_base_url, "of-another-lab")
    session.settings = Settings(session.settings.home, wrong)
    error = notebook.error(CHAT)
    assert error == (
        "SignInError: http://127.0.0.1 refused the token: 401 a valid bearer token is required\n"
        "  -> %service stop, where it is the embedded one; %connect http://127.0.0.1 --key-env ROLLOUTLAB_API_KEY"
    )
    assert "of-another-lab" not in error
    assert session.collections().empty


def test_a_reward_that_is_edited_to_infinity_is_refused(notebook):
    collection = notebook.run(CHAT)
    notebook.run("%%reward capitals\nreturn len(answer)")
    frame = collection.to_frame()
    frame.loc[frame.index[1], "reward"] = float("inf")
    before = collection.to_frame()
    notebook.shell.user_ns.update(collection=collection, frame=frame)
    assert notebook.error("collection.update_rewards(frame)") == (
        "RewardError: the reward of capitals/0/1 is inf, which is no finite number\n  -> return a number"
    )
    assert collection.to_frame().equals(before)


def test_a_session_needs_nothing_before_it_is_used(tmp_path):
    Session(Settings(home=tmp_path / "absent")).close()
    assert not (tmp_path / "absent").exists()
