"""`/metrics`: counts in Prometheus' text format."""

from collections.abc import Iterator, Mapping

from memformer_torch.serve.guard import Notes
from memformer_torch.serve.service import Service

KIND = "text/plain; version=0.0.4"


def text(service: Service, notes: Notes) -> str:
    engine = service.engine
    counts = {
        "tokens_read_total": ("counter", "Tokens read.", engine.tokens_read),
        "tokens_written_total": ("counter", "Tokens written.", engine.tokens_written),
        "steps_total": ("counter", "Steps, each of a token for all who write.", engine.steps),
        "busy_seconds_total": ("counter", "Seconds that the model was at work.", round(engine.busy_seconds, 3)),
        "jobs_running": ("gauge", "Documents that are read or continued now.", engine.running),
        "jobs_waiting": ("gauge", "Documents that wait.", engine.waiting),
        "requests_in_flight": ("gauge", "Requests that read or write, or wait to.", service.in_flight),
        "sessions_live": ("gauge", "Sessions in memory.", len(service.sessions.live)),
        "start_time_seconds": ("gauge", "When the server began.", round(notes.begun, 3)),
    }
    lines = [line for name, (kind, what, value) in counts.items() for line in _one(name, kind, what, {"": value})]
    requests = {f'{{path="{path}",status="{status}"}}': number for (path, status), number in notes.requests.items()}
    lines += _one("requests_total", "counter", "Requests answered.", requests)
    seconds = {f'{{path="{path}"}}': round(number, 6) for path, number in notes.seconds.items()}
    lines += _one("request_seconds_total", "counter", "Seconds that requests took.", seconds)
    return "\n".join(lines) + "\n"


def _one(name: str, kind: str, what: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP memformer_{name} {what}"
    yield f"# TYPE memformer_{name} {kind}"
    for labels, value in values.items():
        yield f"memformer_{name}{labels} {value}"
