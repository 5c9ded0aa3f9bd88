"""Documents that go on together, though each comes and leaves when it will."""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from memformer_torch.lanes import Lanes

Guest = TypeVar("Guest")


class Seats(Generic[Guest]):
    """Lanes of one model: a document takes a free one, and leaves it free again, and either copies that lane alone.

    A free lane is computed for nothing. All lanes are copied only where there are more documents than ever before, or where
    half of the lanes are free.
    """

    def __init__(self) -> None:
        self._lanes: Lanes | None = None
        self.guests: list[Guest | None] = []

    def __len__(self) -> int:
        """Taken seats."""
        return sum(guest is not None for guest in self.guests)

    def __iter__(self) -> Iterator[tuple[int, Guest]]:
        return iter([(seat, guest) for seat, guest in enumerate(self.guests) if guest is not None])

    @property
    def lanes(self) -> Lanes:
        assert self._lanes is not None
        return self._lanes

    @property
    def taken(self) -> list[bool]:
        return [guest is not None for guest in self.guests]

    def enter(self, arrivals: Sequence[tuple[Guest, Lanes]]) -> None:
        """Seat some guests, each with a document of its own, which is copied."""
        free = [seat for seat, guest in enumerate(self.guests) if guest is None]
        for seat, (guest, lanes) in zip(free, arrivals, strict=False):
            self.lanes.put(seat, lanes)
            self.guests[seat] = guest
        more = arrivals[len(free) :]
        if more:
            first, *others = [*([self._lanes] if self._lanes is not None else []), *(lanes for _, lanes in more)]
            self._lanes = first.join(others)
            self.guests += [guest for guest, _ in more]

    def document(self, seat: int) -> Lanes:
        """A copy of a seat's document."""
        return self.lanes.take([seat])

    def leave(self, seats: Sequence[int]) -> None:
        """Free some seats."""
        for seat in seats:
            self.guests[seat] = None
        taken = [seat for seat, _ in self]
        if not taken:
            self._lanes, self.guests = None, []
        elif 2 * len(taken) <= len(self.guests):
            self._lanes, self.guests = self.lanes.take(taken), [self.guests[seat] for seat in taken]
