"""`%%chat`."""

from IPython.core.magic import cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from rolloutlab.collection import Collection
from rolloutlab.magics.cells import LabMagics


@magics_class
class ChatMagics(LabMagics):
    """Sample completions."""

    @no_var_expand
    @magic_arguments("%chat")
    @argument("name", nargs="?", default="chat", help="the collection to sample into (default: chat)")
    @argument("-n", type=int, default=1, help="completions per prompt")
    @argument("--over", metavar="ROWS", help="a DataFrame or list, such as rows or rows[:16]: one group per row")
    @argument("-m", "--model", help="a model to sample; default: the newest checkpoint of the selected one")
    @argument("--temperature", type=float, default=1.0, help="0 takes the most likely token (default: 1)")
    @argument("--top-p", type=float, default=1.0, help="sample from the most likely tokens that reach this probability")
    @argument("--max-tokens", type=int, help="the most tokens of one completion")
    @argument("--seed", type=int, help="makes the sampling repeatable; row i uses seed + i")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the collection to this variable")
    @cell_magic
    def chat(self, line: str, cell: str) -> Collection:
        """Sample completions into a collection.

        The cell is the conversation: a line that begins with `system:`, `user:` or `assistant:` begins a message, and
        {{x}} is a column of the row or a notebook variable. For example:

            %%chat capitals -n 8 --over questions
            system: Answer with one word.
            user: What is the capital of {{country}}?
        """
        options = self.options(self.chat, line)
        collection = self.session.chat(
            options.name,
            cell,
            n=options.n,
            over=self.value(options.over) if options.over else None,
            model=options.model,
            temperature=options.temperature,
            top_p=options.top_p,
            max_tokens=options.max_tokens,
            seed=options.seed,
            variables=self.variables,
        )
        return self.bound(options.output, collection)
