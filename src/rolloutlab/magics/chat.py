"""`%%chat`."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from IPython.core.magic import cell_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, literal, magic

if TYPE_CHECKING:
    from rolloutlab.sampling.preview import Preview
    from rolloutlab.trajectories.collection import Collection

_ONLY_FOR_NEW = ("n", "over", "limit", "prompt_column", "system")  # options that only a new collection can have

_SETTINGS = ("model", "temperature", "top_p", "max_tokens", "stop", "seed", "max_turns")


@magics_class
class ChatMagics(LabMagics):
    """Sample completions."""

    @magic("%chat", binds="the collection")
    @argument("name", nargs="?", default="chat", help="the collection to sample into (default: chat)")
    @argument("-n", type=int, help="completions per prompt (default: 1)")
    @argument("--over", metavar="ROWS", help="rows, such as rows[:16] or data.jsonl: one group per row")
    @argument("--limit", type=int, metavar="N", help="read and sample no more than the first N rows")
    @argument(
        "--prompt-column", metavar="COLUMN", help="the column with the prompt: a text, or messages as a list or JSON"
    )
    @argument("--system", type=literal, metavar="TEXT", help="a system message before the conversation")
    @argument("-m", "--model", help="a model to sample; default: the newest checkpoint of the selected one")
    @argument("--temperature", type=float, help="0 takes the most likely token (default: 1)")
    @argument("--top-p", type=float, help="sample from the most likely tokens that reach this probability (default: 1)")
    @argument("--max-tokens", type=int, help="the most tokens of one completion")
    @argument(
        "--stop", type=literal, metavar="TEXT", action="append", help="a text that ends a completion; up to four times"
    )
    @argument("--seed", type=int, help="makes the sampling repeatable; row i uses seed + i")
    @argument("--tools", metavar="FUNCTIONS", help="functions that the policy may call, such as weather,search")
    @argument("--env", metavar="ENVIRONMENT", help="what answers each turn: a class, a function, or PREFIX:NAME")
    @argument(
        "--env-timeout", type=float, metavar="SECONDS", help="limit of each call of the environment (default: 60)"
    )
    @argument(
        "--max-turns", type=int,
        help="limit of consecutive answers that call tools; with --env, of answers in an episode (default: 10)",
    )  # fmt: skip
    @argument("--concurrency", type=int, help="requests under way at once (default: 64)")
    @argument(
        "--budget", type=float, metavar="DOLLARS", help="send no request that could cost more than is left of this"
    )
    @argument("--continue", dest="continue_chat", action="store_true", help="go on with every conversation of NAME")
    @argument("--resume", action="store_true", help="sample only what is missing in NAME, with its own settings")
    @argument(
        "--top-up", type=float, nargs="?", const=2.0, metavar="FACTOR",
        help="sample more for the groups of NAME whose rewards are all equal, up to FACTOR times as many (default: 2)",
    )  # fmt: skip
    @argument(
        "--dry-run", dest="preview", action="store_true", help="show the first request and the cost; send nothing"
    )
    @cell_magic
    def chat(self, options: Namespace, cell: str) -> "Collection | Preview":
        """Sample completions into a collection.

        The cell is the conversation. A line that begins with `system:`, `user:` or `assistant:` begins a message.
        {{x}} is a column of the row, or a notebook variable. At an empty `assistant:` the policy answers, then the
        conversation goes on. An empty cell samples the prompts of NAME again, with the settings of NAME unless you
        give others. For example:

            %%chat capitals -n 8 --over questions
            system: Answer with one word.
            user: What is the capital of {{country}}?

            %%chat capitals --continue
            user: And its largest river?

            %%chat capitals --max-tokens 64

            %%chat capitals --resume

            %%chat capitals --top-up

            %%chat chats --over data.jsonl --limit 1000 --prompt-column messages

            %%chat guess -n 8 --over targets --env GuessNumber --max-turns 8
            system: Answer with one number.
        """
        given = self.given(options, "concurrency", "budget")
        if options.tools:
            given["tools"] = self.tools_named(options.tools)
        if options.env:
            given["env"] = self.environment(options.env)
        if options.top_up is not None:
            return self._top_up(options, cell, given)
        if options.resume:
            self.check_fixed(options, "%%chat --resume", *_SETTINGS, *_ONLY_FOR_NEW, "env_timeout", cell=cell)
            if options.preview:
                return self.session.preview(options.name, resume=True, **given)
            return self.session.resume(options.name, **given)
        given |= self.given(options, *_SETTINGS) | {"variables": self.variables}
        if options.continue_chat:
            self.check_fixed(options, "%%chat --continue", *_ONLY_FOR_NEW, "env", "env_timeout")
            if options.preview:
                return self.session.preview(options.name, cell, continue_chat=True, **given)
            return self.session.continue_chat(options.name, cell, **given)
        given |= self.given(options, "n", "limit", "prompt_column", "system", "env_timeout")
        given |= {"over": self.rows(options.over)} if options.over else {}
        sample = self.session.preview if options.preview else self.session.chat
        return sample(options.name, cell, **given)

    def _top_up(self, options: Namespace, cell: str, given: dict[str, Any]) -> "Collection | Preview":
        """Sample more for the groups that have nothing to learn, or show what that would send."""
        self.check_fixed(options, "%%chat --top-up", *_SETTINGS, *_ONLY_FOR_NEW, "env_timeout", cell=cell)
        if options.resume or options.continue_chat:
            other = "--resume" if options.resume else "--continue"
            message = f"--top-up cannot be combined with {other}"
            raise InputError(message, hint=f"%%chat {options.name} {other}, then %%chat {options.name} --top-up")
        if options.preview:
            return self.session.preview(options.name, top_up=options.top_up, **given)
        return self.session.top_up(options.name, options.top_up, **given)
