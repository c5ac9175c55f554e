"""Budget: an amount of money that several calls share; each request reserves its part before it is sent."""

from rolloutlab.api.prices import Amount, amount_of
from rolloutlab.errors import InputError
from rolloutlab.settings.values import MOST_DOLLARS


class Budget:
    """A limit in dollars. A request reserves its highest possible cost before it is sent, and pays its real cost after.

    The sum of `spent` and `held` stays within the limit if no request costs more than it reserved. Amounts are in 1e-12
    dollars. A budget is not thread-safe.

    Attributes:
        limit: The limit.
        spent: What ended requests cost.
        held: What running requests have reserved.
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
        """Reserve an amount. False, and nothing is reserved, if that would exceed the limit."""
        if amount > self.left:
            return False
        self.held += amount
        return True

    def pay(self, held: Amount, spent: Amount) -> None:
        """Release a reserved amount, and add what the request cost."""
        self.held -= held
        self.spent += spent
