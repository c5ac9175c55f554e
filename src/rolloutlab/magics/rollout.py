"""`%%rollout`."""

import ast
import linecache
from argparse import Namespace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from IPython.core.magic import cell_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic

if TYPE_CHECKING:
    from rolloutlab.sampling.programs.program import Program
    from rolloutlab.trajectories.collection import Collection

_FILENAME = "<%%rollout>"
_ONLY_FOR_NEW = ("n", "over", "limit", "model", "temperature", "top_p", "max_tokens", "seed")


@magics_class
class RolloutMagics(LabMagics):
    """Capture agent programs."""

    @magic("%rollout", binds="the collection")
    @argument("name", help="the collection of the rollouts")
    @argument("-n", type=int, help="rollouts per row (default: 1)")
    @argument("--over", metavar="ROWS", help="rows, such as rows[:16] or data.jsonl: one group per row")
    @argument("--limit", type=int, metavar="N", help="no more than the first N rows")
    @argument("--with", dest="function", metavar="FUNCTION", help="a function of row and client, instead of a cell")
    @argument("-m", "--model", help="a model to sample; default: the newest checkpoint of the selected one")
    @argument("--temperature", type=float, help="for every call; overrides the program's own")
    @argument("--top-p", type=float, help="for every call; overrides the program's own")
    @argument("--max-tokens", type=int, help="for every call; overrides the program's own")
    @argument("--seed", type=int, help="makes the sampling repeatable, if the program is deterministic")
    @argument("--concurrency", type=int, help="rollouts at a time (default: 64)")
    @argument("--timeout", type=float, metavar="SECONDS", help="of one rollout (default: 600)")
    @argument(
        "--budget", type=float, metavar="DOLLARS", help="send no request that could cost more than is left of this"
    )
    @argument("--resume", action="store_true", help="run only the rollouts that NAME lacks")
    @argument(
        "--top-up", type=float, nargs="?", const=2.0, metavar="FACTOR",
        help="run more for the groups of NAME whose rewards are all equal, up to FACTOR times as many (default: 2)",
    )  # fmt: skip
    @cell_magic
    def rollout(self, options: Namespace, cell: str) -> "Collection":
        """Run a program for each row; its chats with the policy are trajectories.

        The cell is the body of an async function of `row` and `client`. The client has `base_url`, `api_key` and
        `model` for any framework or process, and `await client.chat.completions.create(messages=...)`. What the cell
        returns is the reward: a number, a dict of components, or None. For example:

            %%rollout support -n 8 --over tasks
            agent = SomeFramework(base_url=client.base_url, api_key=client.api_key, model=client.model)
            result = await agent.run(row["task"])
            return {"right": float(result == row["answer"])}

            %%rollout support --resume

            %%rollout support --top-up
        """
        if options.function:
            if cell.strip():
                raise InputError("the program is in --with or in the cell, one of both", hint="an empty cell")
            program = self.value(options.function)
        elif (options.resume or options.top_up is not None) and not cell.strip():
            program = None  # the program of the collection
        else:
            program = compile_program(cell, self.variables)
        given = self.given(options, "concurrency", "timeout", "budget")
        if options.top_up is not None:
            self.check_fixed(options, "%%rollout --top-up", *_ONLY_FOR_NEW, "timeout")
            if options.resume:
                hint = f"%%rollout {options.name} --resume, then %%rollout {options.name} --top-up"
                raise InputError("--top-up cannot be combined with --resume", hint=hint)
            return self.session.top_up(options.name, options.top_up, program=program, **given)
        if options.resume:
            self.check_fixed(options, "%%rollout --resume", *_ONLY_FOR_NEW)
            return self.session.resume(options.name, program=program, **given)
        assert program, "only what is resumed can do without"
        given |= self.given(options, *_ONLY_FOR_NEW)
        if "over" in given:
            given["over"] = self.rows(options.over)
        return self.session.rollouts(options.name, program, **given)


def compile_program(body: str, variables: dict[str, Any]) -> "Program":
    """Make the program whose body is a cell. It sees the notebook's variables.

    Raises:
        InputError: the cell is empty, or not Python.
    """
    from rolloutlab.sampling.programs.program import Program

    if not body.strip():
        hint = "answer = await client.chat.completions.create(messages=[...])"
        raise InputError("the cell is empty: there is no program", hint=hint)
    module = ast.parse("async def rollout(row, client): pass")
    try:
        module.body[0].body = ast.parse(body, _FILENAME).body  # type: ignore[attr-defined]  # its lines are the cell's
        code = compile(module, _FILENAME, "exec")
    except SyntaxError as error:
        message = f"the program is not Python: {error.msg} (line {error.lineno})"
        raise InputError(message, hint="%%rollout? shows an example") from None
    linecache.cache[_FILENAME] = (len(body), None, body.splitlines(keepends=True), _FILENAME)
    scope: dict[str, Any] = {}
    exec(code, variables, scope)
    digest = sha256(body.strip().encode()).hexdigest()[:8]  # in the name, because `--resume` compares names of programs
    return Program(f"the cell {digest}", scope["rollout"])
