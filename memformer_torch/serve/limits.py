"""What a server takes on, and how it says no."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Limits:
    max_batch: int = 64
    """Documents that are read or continued at the same time; more wait."""
    max_waiting: int = 128
    """Requests that may wait; one more is refused (429)."""
    max_wait: float = 60.0
    """Seconds that a request may wait before it is refused (503)."""
    max_input: int = 1_000_000
    """Tokens that one request may give to read (413)."""
    max_output: int = 4096
    """Tokens that one request may ask for (422)."""
    max_body: int = 8_000_000
    """Bytes of a request (413)."""
    max_live: int = 64
    """Sessions that are kept in memory; those used least recently are on the disk alone."""
    max_database: int = 4_000_000_000
    """Bytes of the file of sessions (507)."""
    max_history: int = 1000
    """Segments of a session whose slots are kept, to step back to."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name in ("max_waiting", "max_wait", "max_history") else 1
            if not getattr(self, field.name) >= least:
                raise ValueError(f"limits.{field.name} is {getattr(self, field.name)}, but must be at least {least}")
        if self.max_wait == 0:
            raise ValueError("limits.max_wait is 0, but must be above 0: where nobody is to wait, set limits.max_waiting to 0")


class Refusal(Exception):  # noqa: N818  it is an answer
    """A request is answered by this status and one line."""

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry_after = status, " ".join(str(reason).split()), retry_after
