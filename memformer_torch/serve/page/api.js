// Requests to the server: JSON, and streams of server-sent events.

export class Problem extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

function headers(body, kind) {
  const token = sessionStorage.getItem("memformer.token");
  const found = token ? { Authorization: `Bearer ${token}` } : {};
  return body === undefined ? found : { ...found, "Content-Type": kind };
}

async function ask(method, path, body, kind = "application/json") {
  const sent = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, { method, body: sent, headers: headers(body, kind) });
  } catch {
    throw new Problem(0, "the server does not answer: is it still running?");
  }
  if (answer.ok) return answer;
  let reason = `the server answered ${answer.status}`;
  try {
    reason = (await answer.json()).error.message;
  } catch {
    // not of this server: the status must do
  }
  throw new Problem(answer.status, reason);
}

export async function get(path) {
  return (await ask("GET", path)).json();
}

export async function post(path, body = {}) {
  return (await ask("POST", path, body)).json();
}

export async function remove(path) {
  await ask("DELETE", path);
}

export async function blob(path) {
  return (await ask("GET", path)).blob();
}

// Calls `hear` with each event, and returns the last; a text is sent as it is.
export async function stream(path, body, hear) {
  const answer = await ask("POST", path, body, typeof body === "string" ? "text/plain; charset=utf-8" : "application/json");
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let last = null;
  for (;;) {
    const { value, done } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return last;
      last = JSON.parse(data);
      if (last.error) throw new Problem(last.error.code, last.error.message);
      hear(last);
    }
    if (done) throw new Problem(0, "the server broke off");
  }
}
