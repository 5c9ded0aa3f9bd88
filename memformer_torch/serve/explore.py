"""`memformer explore`: a model on a page of this machine."""

import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from memformer_torch.runs import build_corpus, open_model, read_config
from memformer_torch.serve.limits import Limits
from memformer_torch.serve.store import Store
from memformer_torch.talk.opening import watched


def explore(
    run: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    data: Path | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    limits: Limits = Limits(),  # noqa: B008  frozen
    checkpoint: str = "best",
    device: str = "auto",
) -> None:
    """Explore a trained model on a page: let it read and write, and watch its memory; the same server offers an API.

    Sessions are kept in a file, whatever happens to the server. Ctrl-C ends it, and whatever is being written then is saved as
    far as it has come. The API (OpenAI's completions, and sessions) is described at /docs.

    For example: memformer explore runs/books

    Args:
        run: Folder of the run.
        host: Address to listen at; one that others can reach needs --token.
        port: Port to listen at; 0 takes a free one.
        token: What every request must bring as a bearer token; else $MEMFORMER_TOKEN.
        data: File of the sessions; by default sessions.sqlite in the run's folder.
        dtype: Precision: in float64 a text does not depend on who else is served.
        limits: What is taken on.
        checkpoint: "best" (lowest validation loss) or "last".
        device: "auto" (an accelerator if there is one), "cpu", "cuda", ...
    """
    try:
        import uvicorn

        from memformer_torch.serve.app import make_app
        from memformer_torch.serve.served import Served
    except ImportError as error:
        raise ImportError(f"explore needs a package ({error.name}): pip install 'memformer-torch[serve]'") from error
    token = token or os.environ.get("MEMFORMER_TOKEN") or None
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ValueError("--token goes into a header: use letters, digits and signs of ASCII alone")
    addresses = _addresses(host, port)
    loopback = all(ipaddress.ip_address(address[4][0]).is_loopback for address in addresses)
    if not loopback and token is None:
        raise ValueError(f"--host {host} can be reached by others: give a --token (or $MEMFORMER_TOKEN), or use 127.0.0.1")
    model, tokenizer, shape = open_model(run, device, checkpoint, quiet=not watched())
    with _listen(addresses, host, port) as listening:
        store = Store(data or run / "sessions.sqlite", limits.max_database)
        served = Served(
            name=run.resolve().name,
            model=model.to(getattr(torch, dtype)),
            tokenizer=tokenizer,
            image_shape=shape,
            store=store,
            limits=limits,
            token=token,
            hosts={"localhost", "127.0.0.1", "::1", host.lower()} if loopback else None,
            images=cache(lambda: build_corpus(read_config(run)["data"], quiet=True)["test"]),
        )
        app = make_app(served)
        if torch.get_num_threads() > 1:
            torch.set_num_threads(torch.get_num_threads() - 1)  # a core is left for those who ask
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=30)
        server = _ending_server(uvicorn.Server, app.state.service.engine.stop_all)(config)
        name, port = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        print(f"Explore {run} at http://{name}:{port}/ (Ctrl-C ends; the API is at /docs)", flush=True)
        server.run(sockets=[listening])
    print(f"Ended. Sessions are in {store.path}", file=sys.stderr)


def _addresses(host: str, port: int) -> Any:
    if not 0 <= port < 65536:
        raise ValueError(f"--port is {port}, but must be from 0 to 65535")
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ValueError(f"--host {host} is not an address of this machine: {error}") from error


def _listen(addresses: Any, host: str, port: int) -> socket.socket:
    family, *_, address = addresses[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=512)
    except OSError as error:
        raise ValueError(f"{host}:{port} cannot be listened at ({error.strerror}): choose another --port") from error


def _ending_server(server: Any, on_exit: Callable[[], None]) -> Any:
    """A server that a signal ends, once what is being done has been told to end."""

    class Server(server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            if threading.current_thread() is not threading.main_thread():
                yield
                return

            def end(number: int, frame: Any) -> None:
                on_exit()
                self.handle_exit(number, frame)

            before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    return Server
