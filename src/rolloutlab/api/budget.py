"""Budget: an amount of money that several calls share; each request reserves its part before it is sent."""

from rolloutlab.api.prices import Amount, amount_of
from rolloutlab.errors import InputError
from rolloutlab.settings.values import MOST_DOLLARS


class Budget:
    """At most so many dollars. A request holds what it could cost at most, and pays what it did cost at its end.

    spent: so far. held: of requests under way. Their sum never exceeds the limit, as long as no request costs more than
    it held. Amounts are in 1e-12 dollars. Not for several threads at once.
    """

    def __init__(self, dollars: float) -> None:
        if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not 0 <= dollars <= MOST_DOLLARS:
            message = f"a budget is a number of dollars from 0 to {MOST_DOLLARS:,}, not {dollars!r}"
            raise InputError(message, hint="--budget 2.50")
        self.limit = amount_of(dollars)
        self.spent: Amount = 0
        self.held: Amount = 0

    @property
    def left(self) -> Amount:
        """What a further request may cost."""
        return self.limit - self.spent - self.held

    def hold(self, amount: Amount) -> bool:
        """Hold an amount, unless that would exceed the limit."""
        if amount > self.left:
            return False
        self.held += amount
        return True

    def pay(self, held: Amount, spent: Amount) -> None:
        """End a hold with what was spent of it."""
        self.held -= held
        self.spent += spent
