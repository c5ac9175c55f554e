"""`%search`, `%%search` and `%branch`."""

from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from IPython.core.magic import line_cell_magic, line_magic, magics_class

from rolloutlab.errors import InputError, RolloutlabError
from rolloutlab.magics.base import LabMagics, argument, magic, unquote

if TYPE_CHECKING:
    from rolloutlab.search.index import IndexStatus
    from rolloutlab.search.query import Search
    from rolloutlab.trajectories.branch import Branch
    from rolloutlab.trajectories.search_view import SearchResult


@magics_class
class SearchMagics(LabMagics):
    """Search everything that was ever sampled."""

    @magic(binds="the result")
    @argument("query", nargs="*", help="a text, compared by meaning if there is an embedding model, else by words")
    @argument(
        "--where", metavar="CONDITION", type=unquote, help="a condition: \"reward < 0.5 and model == 'lab/practice'\""
    )
    @argument("--rank", metavar="RANK", type=unquote, help="the order: \"knn('paris') - 0.1 * field('reward')\"")
    @argument(
        "--group-by",
        metavar="FIELDS",
        type=unquote,
        values="fields",
        help="keep only the best hits of each group, such as collection",
    )
    @argument("--best", type=int, metavar="N", help="hits per group (default: 1)")
    @argument("-k", type=int, help="the number of hits, 0 for all (default: 10)")
    @argument("--offset", type=int, metavar="N", help="skip the first N hits")
    @argument("--select", metavar="FIELDS", type=unquote, values="fields", help="fields to show, such as reward,step")
    @argument(
        "--into", metavar="COLLECTION", type=unquote, values="collections", help="copy the hits to a new collection"
    )
    @argument(
        "--embed-with",
        metavar="MODEL",
        type=unquote,
        values="functions",
        help="an embedding model: a function, an address, a folder or a name; `none`: compare words",
    )
    @argument(
        "--model", metavar="NAME", type=unquote, values="", help="the model's name at the address of --embed-with"
    )
    @argument(
        "--key-env",
        metavar="NAME",
        type=unquote,
        values="key variables",
        help="the environment variable that holds its key",
    )
    @argument(
        "--insecure-http",
        action="store_true",
        help="let the key go unencrypted to an http:// address inside your own network, until the kernel ends",
    )
    @argument("--all", action="store_true", help="also search the collections that comparisons sampled")
    @argument("--status", action="store_true", help="how much is indexed")
    @argument("--reindex", action="store_true", help="rebuild the index")
    @line_cell_magic
    def search(self, options: Namespace, cell: str | None = None) -> "SearchResult | IndexStatus":
        """Find trajectories by meaning, text, reward and rank, among all that were ever sampled.

        The body of a cell is a whole search as a JSON dictionary (docs/search_format.md). For example:

            %search "answers in the wrong language" --where "reward < 0.5" --group-by collection
            %search --where "advantage_sign == -1 and step > 3" -k 20 -o worst
            %search --where "'carry' in reasoning_text" --select reward,reasoning_text

            %%search -o worst
            {"where": {"advantage_sign": -1}, "rank": {"$knn": {"query": "wrong language"}}, "limit": 20}
        """
        query = " ".join(map(unquote, options.query)) or None
        given = self.given(options, "where", "rank", "group_by", "best", "k", "offset", "select")
        body = None
        if cell and cell.strip():
            from rolloutlab.search.dictionary import parse

            body = parse(cell)
        self._check(options, given, query, body)
        if options.embed_with:
            status = self._embed_with(options)
        if options.reindex:
            status = self.session.index.rebuild()
        elif options.status:
            status = self.session.index.status()
        if options.reindex or options.status or (options.embed_with and not (query or given or body)):
            return status
        given |= self.given(options, "into") | ({"all": True} if options.all else {})
        return self.session.search(body or query, **given)

    @staticmethod
    def _check(options: Namespace, given: Mapping[str, Any], query: str | None, body: "Search | None") -> None:
        """Raise InputError if an option would have no effect."""
        if query and query[0] in "<>=!" and options.where:
            hint = f'--where "{options.where} {query}"'
            raise InputError("a condition with blanks in it is written in quotes", hint=hint)
        if options.embed_with == "none" and (options.model or options.key_env):
            raise InputError("--embed-with none has no model and no key", hint="%search --embed-with none")
        if (options.model or options.key_env or options.insecure_http) and not options.embed_with:
            hint = f"--where \"model == '{options.model}'\"" if options.model else "--embed-with https://api.example/v1"
            raise InputError("--model, --key-env and --insecure-http belong to --embed-with", hint=hint)
        if body and (query or given):
            hint = "its where, rank, group_by, limit, select"
            raise InputError("the body of the cell is the whole search", hint=hint)
        if (options.reindex or options.status) and (query or given or body or options.into):
            raise InputError("--status and --reindex search nothing", hint="%search --status")

    def after_cell(self, _result: Any) -> None:
        """Index in the background what the cell stored. Errors are left to the next search, which raises them."""
        with suppress(RolloutlabError):
            if self.opened.is_open:
                self.session.index.keep_up()

    def _embed_with(self, options: Namespace) -> "IndexStatus":
        name = options.embed_with
        value = self.variables.get(name)
        model = None if name == "none" else value if callable(value) else name
        further = {"insecure_http": True} if options.insecure_http else {}
        return self.session.index.embed_with(model, options.model, options.key_env, **further)

    @magic(binds="the messages")
    @argument("name", type=unquote, values="", help="a trajectory, as letters:1/0/3, or a hit, as worst[0]")
    @argument("--turn", type=int, metavar="N", help="how many answers are kept; default: all but the last")
    @argument("--as", dest="collection", metavar="COLLECTION", help="the name of the new collection (default: branch)")
    @line_magic
    def branch(self, options: Namespace) -> "Branch":
        """Branch from a turn of a conversation: the next cell gets all messages before the turn, ready to sample.

        For example:

            %branch letters:1/0/3 --turn 1 --as again
        """
        hit = options.name if "/" in options.name else self.value(options.name)
        branch = self.session.branch(hit, options.turn)
        self.shell.set_next_input(branch.cell(options.collection or "branch"))  # type: ignore[union-attr]
        return branch
