"""`%%rollout` as it is typed."""


def test_the_cell_is_the_body_of_a_program(notebook):
    made = notebook.run(
        "%%rollout capitals -n 2 --over countries --max-tokens 4 -o made\n"
        "messages = [{'role': 'user', 'content': f'What is the capital of {row[\"country\"]}?'}]\n"
        "answer = await client.chat.completions.create(messages=messages)\n"
        "return {'right': float(row['capital'] in (answer.choices[0].message.content or '')), 'known': len(countries)}"
    )
    assert notebook["made"] is made
    assert [group.prompt[0].content for group in made.groups] == [
        "What is the capital of France?", "What is the capital of Peru?",
    ]  # fmt: skip
    assert all(t.components["known"] == 2 for group in made.groups for t in group.trajectories)


def test_resume_takes_a_function_or_the_same_cell(notebook):
    cell = "await client.chat.completions.create(messages=[{'role': 'user', 'content': 'x'}], max_tokens=2)"
    notebook.run(f"%%rollout agent\n{cell}")
    assert len(notebook.run(f"%%rollout agent --resume\n{cell}").groups[0].trajectories) == 1
    assert "--resume keeps the settings" in notebook.error(f"%%rollout agent --resume -n 2\n{cell}")
    notebook.run("def solve(row, client): pass")
    assert "captured from the cell" in notebook.error("%%rollout agent --resume --with solve")


def test_resume_without_a_body_plays_the_program_of_the_collection_and_no_other(notebook):
    notebook.run("played = []")
    cell = "await client.chat.completions.create(messages=[{'role': 'user', 'content': 'x'}], max_tokens=2)"
    stops = "if played: raise SystemExit\nplayed.append(1)"
    assert "1 of 2 rollouts of agent:1 failed" in notebook.error(
        f"%%rollout agent -n 2 --concurrency 1\n{stops}\n{cell}"
    )
    notebook.run("played.clear()")
    assert len(notebook.run("%%rollout agent --resume\n").groups[0].trajectories) == 2
    assert "captured from the cell" in notebook.error(f"%%rollout agent --resume\n{cell}")
    assert "the cell is empty" in notebook.error("%%rollout agent\n")


def test_a_cell_that_is_empty_or_not_python_says_so(notebook):
    assert "the cell is empty" in notebook.error("%%rollout agent\n")
    assert "not Python: unmatched ')' (line 2)" in notebook.error("%%rollout agent\nx = 1\nreturn )")


def test_an_exception_names_its_line_of_the_cell(notebook):
    made = notebook.run(
        "%%rollout agent\n"
        "await client.chat.completions.create(messages=[{'role': 'user', 'content': 'x'}], max_tokens=2)\n"
        "return 1 / 0"
    )
    assert made.groups[0].trajectories[0].extra["logs"] == [
        "ended by ZeroDivisionError: division by zero (line 2 of rollout)"
    ]


def test_what_a_cell_has_left_is_played_by_that_cell(notebook):
    notebook.run("%%rollout agent\nawait client.chat.completions.create(messages=[{'role': 'user', 'content': 'x'}])")
    notebook.run("def solve(row, client): pass")
    assert "%%rollout agent --resume, with its cell" in notebook.error("%%rollout agent --resume --with solve")
